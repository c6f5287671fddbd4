"""What a run saw: one look for all steps, and another at what it has changed since."""

import os
from collections.abc import Iterator
from types import SimpleNamespace

import pyarrow as pa
import pytest

from pylog_spark.discovery import LogRoot
from pylog_spark.engines.choice import Local
from pylog_spark.operations import observation
from pylog_spark.operations.compact.driver import compact
from pylog_spark.operations.observation import Observation
from pylog_spark.operations.observation_task import (
    SCHEMAS,
    ObservationContext,
    encode_rows,
    observe_rest,
)
from pylog_spark.options import JobOptions
from pylog_spark.rows import rows_to_batch
from pylog_spark.schemas import OBSERVED, PARTITION, PLAN
from pylog_spark.tasks.observe import Step
from storage_core.catalog.roles import Role
from tests.pylog_spark.broker_roots import FIRST_ROUNDS_MS, broker_directory

ROOT = "/log"
USUAL = {"root": ROOT, "role": "broker", "kind": "partition", "partition": 0}


def row_of(step: Step, topic: str, **columns: object) -> dict[str, object]:
    row = {"root": ROOT, "topic": topic, "partition": 0, "directory": f"{ROOT}/{topic}-0"}
    if step is not Step.PURGE:
        row |= {"status": "skipped", "reason": "NOTHING_TO_RETAIN"}
    return row | columns


class Disk:
    """Stands for what tasks see: rows by step, and which looks there were."""

    def __init__(self, rows: dict[Step, list[dict[str, object]]]) -> None:
        self.rows = rows
        self.looks: list[tuple[set[Step], list[str] | None]] = []
        self.are_looks: list[bool | None] = []

    def look(self, work, schema, what, roots=None, *, partitions=None, is_look=None) -> pa.Table:
        assert schema is OBSERVED
        self.are_looks.append(is_look)
        assert ROOT in what
        batch = rows_to_batch(PARTITION, [USUAL | {"topic": "a"}])
        return pa.Table.from_batches(work(iter([batch if partitions is None else partitions])))

    def observe_steps(
        self, batches: Iterator[pa.RecordBatch], context: ObservationContext
    ) -> Iterator[pa.RecordBatch]:
        asked = [place for batch in batches for place in batch["directory"].to_pylist()]
        places = None if asked == [None] else asked
        self.looks.append((set(context.steps), places))
        self.context = context
        for step in context.steps:
            chosen = [r for r in self.rows[step] if places is None or r["directory"] in places]
            cell = encode_rows(step, rows_to_batch(SCHEMAS[step], chosen))
            yield pa.RecordBatch.from_pylist([cell], schema=OBSERVED)


@pytest.fixture
def disk(monkeypatch) -> Disk:
    rows = {
        Step.RETAIN: [row_of(Step.RETAIN, "a"), row_of(Step.RETAIN, "b", reason="COMPACTED")],
        Step.SWEEP: [row_of(Step.SWEEP, "a", reason="NOT_COMPACTED"), row_of(Step.SWEEP, "b")],
        Step.PURGE: [row_of(Step.PURGE, "b")],
    }
    disk = Disk(rows)
    monkeypatch.setattr(observation, "observe_steps", disk.observe_steps)
    return disk


def observation_of(disk: Disk, steps: set[Step]) -> Observation:
    root = LogRoot(location=ROOT, role=Role.BROKER, is_said=True)
    options = JobOptions(now_ms=1, keep_deleted=True, dry_run=True)
    job = SimpleNamespace(roots=(root,), options=options, places=ROOT)
    run = SimpleNamespace(look=disk.look, looks_alone=lambda _: False, job=job, note=list)
    return Observation(run, SimpleNamespace(catalogs={}), steps)


ALL = {Step.RETAIN, Step.SWEEP, Step.PURGE}


def facts(table: pa.Table) -> dict[str, str | None]:
    rows = table.to_pylist()
    return {row["topic"]: row.get("reason") for row in rows}


def test_all_steps_are_planned_from_one_look(disk):
    seen = observation_of(disk, ALL)
    assert disk.looks == []
    assert facts(seen.rows(Step.RETAIN)) == {"a": "NOTHING_TO_RETAIN", "b": "COMPACTED"}
    assert facts(seen.rows(Step.SWEEP)) == {"a": "NOT_COMPACTED", "b": "NOTHING_TO_RETAIN"}
    assert facts(seen.rows(Step.PURGE)) == {"b": None}
    assert disk.looks == [(ALL, None)]


def test_what_was_changed_is_looked_at_again_by_the_steps_that_it_concerns(disk):
    seen = observation_of(disk, ALL)
    plans = seen.rows(Step.SWEEP)
    seen.note_changes(plans, {1: object()})
    disk.rows[Step.SWEEP][1]["reason"] = "UNCLEAN_SHUTDOWN"
    disk.rows[Step.PURGE] = []
    excluded = frozenset({f"{ROOT}/b-0"})
    # To compaction's own sweep it is news, for retention it is compacted as before.
    assert facts(seen.rows(Step.SWEEP, excluded=excluded))["b"] == "UNCLEAN_SHUTDOWN"
    assert disk.context.excluded == excluded
    assert facts(seen.rows(Step.RETAIN)) == {"a": "NOTHING_TO_RETAIN", "b": "COMPACTED"}
    assert facts(seen.rows(Step.PURGE)) == {}
    again = [f"{ROOT}/b-0"]
    assert disk.looks == [(ALL, None), ({Step.SWEEP}, again), ({Step.PURGE}, again)]


def test_of_some_partitions_nobody_looks_again_at_others(disk):
    seen = observation_of(disk, {Step.SWEEP})
    seen.note_changes(seen.rows(Step.SWEEP), [0, 1])
    assert facts(seen.rows(Step.SWEEP, among=[f"{ROOT}/b-0"])) == {"b": "NOTHING_TO_RETAIN"}
    assert disk.looks[1:] == [({Step.SWEEP}, [f"{ROOT}/b-0"])]
    assert facts(seen.rows(Step.SWEEP, among=[])) == {}
    assert len(disk.looks) == 2


def test_what_could_not_be_planned_for_compaction_is_left_alone_by_its_sweep(disk):
    seen = observation_of(disk, {Step.SWEEP})
    disk.rows[Step.SWEEP][1] |= {"status": "planned", "reason": None}
    failed = {"root": ROOT, "directory": ROOT, "status": "failed", "error": "cannot be listed"}
    disk.rows[Step.SWEEP].append(failed)
    assert facts(seen.rows(Step.SWEEP))["b"] is None
    disk.rows[Step.SWEEP][1] |= {"status": "skipped", "reason": "COMPACTED"}
    excluded = frozenset({f"{ROOT}/b-0", ROOT})
    assert facts(seen.rows(Step.SWEEP, excluded=excluded)) == {
        "a": "NOT_COMPACTED",
        "b": "COMPACTED",
        None: None,
    }
    assert disk.looks[1:] == [({Step.SWEEP}, [f"{ROOT}/b-0"])]


def test_a_purge_hears_of_what_the_run_itself_left(disk):
    seen = observation_of(disk, ALL)
    seen.note_changes(seen.rows(Step.RETAIN), [0])
    disk.rows[Step.PURGE] = [row_of(Step.PURGE, topic) for topic in "ab"]
    assert facts(seen.rows(Step.PURGE)) == {"a": None, "b": None}


def test_a_generation_makes_no_other_partition(disk):
    seen = observation_of(disk, {Step.SWEEP})
    plans = pa.table({"root": [ROOT], "directory": [f"{ROOT}/b-0#generation=3"]})
    disk.rows[Step.SWEEP][1]["directory"] = f"{ROOT}/b-0#generation=2"
    seen.rows(Step.SWEEP)
    seen.note_changes(plans, [0])
    disk.rows[Step.SWEEP][1] |= {"directory": f"{ROOT}/b-0", "reason": "COMPACTION"}
    assert facts(seen.rows(Step.SWEEP)) == {"a": "NOT_COMPACTED", "b": "COMPACTION"}


def test_a_partition_in_two_directories_is_refused_at_each_step(disk):
    disk.rows[Step.RETAIN].append(row_of(Step.RETAIN, "a", directory=f"{ROOT}/other/a-0"))
    table = observation_of(disk, {Step.RETAIN}).rows(Step.RETAIN)
    assert table["reason"].to_pylist() == [
        "DUPLICATE_PARTITION",
        "COMPACTED",
        "DUPLICATE_PARTITION",
    ]


@pytest.mark.thorough
@pytest.mark.parametrize("most", [2, 10])
def test_what_no_listing_settles_is_looked_at_by_other_processes_where_it_is_much(
    tmp_path, monkeypatch, most
):
    names = ["clean-active-none-s161", "clean-checkpoint-below-s201"]
    root = broker_directory(tmp_path / "log", names)
    options = JobOptions(
        now_ms=FIRST_ROUNDS_MS, now_is_said=True, dry_run=True, topic_configs=root.configs
    )
    alone = compact(Local(1), [root.path], options).plans
    monkeypatch.setattr(observation, "LEAST_TO_SPREAD", most)
    processes = tmp_path / "processes"
    processes.mkdir()

    def note(batches, context):
        (processes / str(os.getpid())).touch()
        yield from observe_rest(batches, context)

    monkeypatch.setattr(observation, "observe_rest", note)
    spread = compact(Local(1), [root.path], options).plans
    assert spread["status"].to_pylist() == ["planned", "planned"]
    same = [name for name in PLAN.names if name not in {"plan", "duration_ms"}]
    assert spread.select(same).equals(alone.select(same))
    is_here = {int(path.name) for path in processes.iterdir()} == {os.getpid()}
    assert is_here is (most == 10)
