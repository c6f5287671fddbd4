"""Which partitions a wave works on, and at what rate: without Spark."""

import shutil
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest

from pylog_spark.config import RunLimits, Tuning
from pylog_spark.operations import broker_root, retention_waves, rounds
from pylog_spark.operations.broker_root import BrokerRoot
from pylog_spark.operations.budgets import RunBudget
from pylog_spark.operations.disks import Disks
from pylog_spark.operations.due_partitions import DuePartition, Outcome, RoundLimits
from pylog_spark.operations.recovery_waves import Due, WaveRunner
from pylog_spark.operations.retention_waves import DueSweep, SweepWaves
from pylog_spark.operations.rounds import CompactionRounds
from pylog_spark.planning import Strategy
from pylog_spark.schemas import PLAN, RETENTION_PLAN, SWEPT
from pylog_spark.tasks.cells import MOST_CELL_BYTES
from pylog_spark.tasks.recovery import RecoveryWork
from pylog_spark.tasks.retention import SweepWork
from storage_core.errors import StorageError
from storage_core.filenames import TopicPartition

EIO = OSError(5, "Input/output error")
GOOD, BAD = TopicPartition("good", 0), TopicPartition("bad", 0)
ANY: Any = None


class Disk:
    """Two log directories under their locks; the disk of one can fail."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.places = {name: folder / name / "log" for name in ("good", "bad")}
        self.has_failed = False
        for place in self.places.values():
            (place / f"{place.parent.name}-0").mkdir(parents=True)
        self.roots = {
            str(place): BrokerRoot(str(place), run_id="run", mark_clean=True, is_alone=False)
            for place in self.places.values()
        }
        usage, claim = shutil.disk_usage, broker_root.create_claim
        failure = StorageError("a claim", "Input/output error")
        monkeypatch.setattr(shutil, "disk_usage", self._failing(usage, EIO))
        monkeypatch.setattr(broker_root, "create_claim", self._failing(claim, failure))

    def _failing(self, original, error):
        def touch(path):
            if self.has_failed and Path(path).is_relative_to(self.places["bad"].parent):
                raise error
            return original(path)

        return touch

    def root(self, partition: TopicPartition) -> str:
        return str(self.places[partition.topic])

    def directory(self, partition: TopicPartition) -> str:
        return str(self.places[partition.topic] / str(partition))


@pytest.fixture
def disk(tmp_path: Path, monkeypatch) -> Iterator[Disk]:
    disk = Disk(tmp_path, monkeypatch)
    with ExitStack() as stack:
        for root in disk.roots.values():
            stack.enter_context(root)
        yield disk


def due(disk: Disk, ordinal: int, partition: TopicPartition, **changes: Any) -> DuePartition:
    given = {"segment_bytes": (), "strategy": Strategy.WHOLE, "plan_bytes": 0} | changes
    return DuePartition(
        plans=PLAN.empty_table(),
        ordinal=ordinal,
        root=disk.root(partition),
        directory=disk.directory(partition),
        partition=partition,
        size_bytes=1000,
        extra_bytes=1000,
        map_bytes=100,
        **given,
    )


LIMITS = RoundLimits(
    least_unit_bytes=1,
    most_unit_bytes=1,
    budget_bytes=2**30,
    slots=16,
    can_broadcast=True,
    max_keys=None,
)


def compaction(disk: Disk, limits: RoundLimits, **budget: Any) -> CompactionRounds:
    dispatcher: Any = SimpleNamespace(release=lambda: None)
    spent = RunBudget(RunLimits(**budget))
    return CompactionRounds(dispatcher, disk.roots, ANY, limits, spent, title="compact")


def says_why(outcome: Outcome) -> bool:
    columns = outcome.columns
    return (columns["status"], columns["error_class"]) == ("failed", "StorageError") and (
        "Input/output error" in columns["error"]
    )


@pytest.fixture
def waves(monkeypatch, disk):
    """What each wave of a compaction was given: the partitions, and the context of its tasks."""
    given: list[tuple[list[TopicPartition], Any]] = []

    def clean(_self, partitions, wave):
        given.append(([each.partition for each in partitions], wave.context))
        for each in partitions:
            wave.outcomes[each.ordinal].columns = {"status": "done"}

    context = rounds.write_context

    def write_context(_run, roots):
        return replace(context(ANY, roots), wave=0)

    monkeypatch.setattr(rounds, "write_context", write_context)
    monkeypatch.setattr(CompactionRounds, "_clean_whole", clean)
    monkeypatch.setattr(CompactionRounds, "_clean_spread", clean)
    return given


@pytest.mark.item("DIR-12")
@pytest.mark.parametrize("fails_at", ["begin", "between two waves", "its own wave"])
def test_a_compaction_gives_no_tasks_to_a_directory_whose_disk_failed(
    disk, waves, monkeypatch, fails_at
):
    disk.has_failed = fails_at == "begin"
    listed = [due(disk, n, name) for n, name in enumerate([GOOD, BAD, GOOD])]
    monkeypatch.setattr(rounds, "find_due", lambda *_, **__: listed)
    limits = LIMITS if fails_at == "its own wave" else replace(LIMITS, wave_tasks=1)
    if fails_at == "its own wave":
        # Where free space is asked for it still answers.
        monkeypatch.setattr(BrokerRoot, "free_bytes", lambda _: 10**9)
        disk.has_failed = True
    outcomes: dict[int, Outcome] = {}
    for ended in compaction(disk, limits).clean(PLAN.empty_table()):
        outcomes |= ended
        disk.has_failed = True
    assert {partition for members, _ in waves for partition in members} == {GOOD}
    assert [outcomes[n].columns["status"] for n in range(3)] == ["done", "failed", "done"]
    assert says_why(outcomes[1])
    assert [root.failure is None for root in disk.roots.values()] == [True, False]


def test_what_a_full_disk_and_a_spent_budget_refuse_is_said_of_no_failed_one(
    disk, waves, monkeypatch
):
    listed = [due(disk, 0, BAD), due(disk, 1, GOOD)]
    monkeypatch.setattr(rounds, "find_due", lambda *_, **__: listed)
    disk.has_failed = True
    work = compaction(disk, LIMITS, max_bytes=0)
    outcomes = {n: each for ended in work.clean(PLAN.empty_table()) for n, each in ended.items()}
    assert says_why(outcomes[0])
    assert outcomes[1].columns["reason"] == "BUDGET_SPENT"
    assert waves == []


def test_plans_that_travel_inside_of_closures_bound_a_wave(disk, waves, monkeypatch):
    listed = [due(disk, n, GOOD, plan_bytes=5 << 20) for n in range(3)]
    monkeypatch.setattr(rounds, "find_due", lambda *_, **__: listed)
    monkeypatch.setattr(BrokerRoot, "free_bytes", lambda _: 10**9)
    limits = replace(LIMITS, can_broadcast=False, budget_bytes=MOST_CELL_BYTES)
    assert len(list(compaction(disk, limits).clean(PLAN.empty_table()))) == 3
    assert [len(members) for members, _ in waves] == [1, 1, 1]


def test_what_was_committed_counts_though_scratch_files_stay(disk, waves, monkeypatch):
    def refuse(*_):
        raise EIO

    monkeypatch.setattr(rounds, "remove_wave", refuse)
    for root in disk.roots.values():
        root.begin_writing()
    member = due(disk, 0, GOOD, segment_bytes=(1000,), strategy=Strategy.FILES)
    outcomes = compaction(disk, LIMITS)._run_wave([member])
    assert outcomes[0].columns["status"] == "done"


@pytest.mark.parametrize("is_alone", [True, False])
def test_a_disk_that_does_not_say_what_is_free_has_failed(tmp_path, monkeypatch, is_alone):
    def usage(_):
        raise EIO

    monkeypatch.setattr(shutil, "disk_usage", usage)
    root = BrokerRoot(str(tmp_path), run_id="run", mark_clean=True, is_alone=is_alone)
    if is_alone:
        with pytest.raises(StorageError, match="Input/output error"):
            root.free_bytes()
    else:
        assert root.free_bytes() == 0
        assert "Input/output error" in str(root.failure)


@pytest.mark.item("CMP-43")
@pytest.mark.parametrize(
    ("per_disk", "disks", "expected"),
    [(None, (), 7), (1, (1, 1), 1), (1, (1, 2), 2), (2, (1, 2), 4), (1, (1,), 4), (9, (1, 1), 7)],
)
def test_tasks_share_the_bytes_a_second_with_as_many_as_run_at_once(
    disk, waves, per_disk, disks, expected
):
    """Three segments and a whole partition in one root, three segments in the other."""
    by_root = dict(zip(disk.roots, disks, strict=False))
    limits = replace(LIMITS, disks=Disks(per_disk=per_disk, by_root=by_root))
    spread = {"segment_bytes": (300, 300, 400), "strategy": Strategy.BROADCAST}
    members = [due(disk, 0, GOOD, **spread), due(disk, 1, GOOD), due(disk, 2, BAD, **spread)]
    for root in disk.roots.values():
        root.begin_writing()
    work = compaction(disk, limits)
    if per_disk is None:
        # Small partitions beside big ones have their own threads, which are not of interest.
        members[1] = due(disk, 1, GOOD, segment_bytes=(1000,), strategy=Strategy.BROADCAST)
    work._run_wave(members)
    assert {context.tasks_at_once for _, context in waves} == {expected}
    compaction(disk, replace(limits, slots=1))._run_wave(members)
    assert waves[-1][1].tasks_at_once == 1


@pytest.mark.item("DIR-12")
@pytest.mark.parametrize(
    ("fails_at", "limits"),
    [("before", {}), ("before", {"max_bytes": 0}), ("its own wave", {})],
)
def test_a_sweep_gives_no_tasks_to_a_directory_whose_disk_failed(
    disk, monkeypatch, fails_at, limits
):
    listed = [
        DueSweep(
            work=SweepWork(
                ordinal=n,
                root=disk.root(name),
                directory=disk.directory(name),
                topic=name.topic,
                log_start_checkpoint=0,
                high_watermark=None,
                removed=(0,),
                log_start_offset=5,
            ),
            partition=name,
            first_base_offset=5,
            is_replicated=True,
        )
        for n, name in enumerate([BAD, GOOD])
    ]
    monkeypatch.setattr(retention_waves, "find_due", lambda _: listed)
    disk.has_failed = True
    if fails_at == "before":
        disk.roots[disk.root(BAD)].free_bytes()
    given: list[list[SweepWork]] = []

    def collect(listed, *_):
        given.append([work for unit in listed for work in unit])
        rows = [{"ordinal": work.ordinal, "touched": False} for work in given[-1]]
        return pa.Table.from_pylist(rows, schema=SWEPT)

    run: Any = SimpleNamespace(
        roots=disk.roots,
        budget=RunBudget(RunLimits(**limits)),
        disks=Disks(),
        job=SimpleNamespace(title="retain", options=SimpleNamespace(tuning=Tuning(), trash=None)),
        dispatcher=SimpleNamespace(
            slots=2, release=lambda: None, spread=lambda units, *_: units, collect=collect
        ),
        write_context=lambda _: None,
    )
    context: Any = SimpleNamespace(run=SimpleNamespace())
    outcomes: dict[int, Outcome] = {}
    for ended in SweepWaves(run, context).sweep(RETENTION_PLAN.empty_table()):
        outcomes |= ended
    assert says_why(outcomes[0])
    is_spent = bool(limits)
    assert outcomes[1].columns["status"] == ("skipped" if is_spent else "done")
    names = [[work.topic for work in works] for works in given]
    assert names == ([] if is_spent else [["good"]])


@pytest.mark.item("DIR-12")
def test_a_recovery_gives_no_tasks_to_a_directory_whose_disk_failed():
    work = RecoveryWork(
        ordinal=3,
        root="/bad/log",
        directory="/bad/log/bad-0",
        partition=BAD,
        is_clean=False,
        recovery_point=0,
        log_start_offset=0,
        high_watermark=None,
    )
    runner = WaveRunner(ANY, Tuning(), Disks())  # nobody is asked to start a stage
    failure = StorageError("/bad/log", "Input/output error")
    (row,) = runner.run(
        [Due(work=work, scan_offsets=(0,), scan_bytes=(9,))],
        ANY,
        "recover",
        failures={"/bad/log": failure},
    )
    assert (row["ordinal"], row["status"], row["touched"]) == (3, "failed", False)
    assert row["error"] == "/bad/log: Input/output error"
