"""The stages of a compaction without Spark; Apache Kafka's results are the referee."""

import json
import multiprocessing
import os
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from pylog_spark.engines.engine import Inline
from pylog_spark.operations.compact.pass_task import (
    Route,
    SegmentKeyIndex,
    index_segments,
    merge_partitions,
    rewrite_groups,
    send_keys,
)
from pylog_spark.tasks import observe
from pylog_spark.tasks.observe import decode_plan
from storage_core.checkpoint.lock import LogDirectoryLock
from storage_core.commit.claim import revoke_claim
from storage_core.config import CleanerConfig
from storage_core.filenames import LOG_SUFFIX
from storage_core.json_values import read_value
from storage_core.maintenance.compaction.key_sidecar import SidecarFolder
from storage_core.maintenance.compaction.merged import encode_start
from storage_core.maintenance.compaction.plan import CompactionPlan
from storage_core.store import LocalStore, syncing
from tests.kit.compare import read_tree
from tests.kit.file_damage import flip
from tests.kit.golden_data import Golden
from tests.kit.one_partition import clean_partition
from tests.pylog_spark.broker_roots import (
    FIRST_ROUNDS,
    FIRST_ROUNDS_MS,
    LATER_ROUNDS,
    LATER_ROUNDS_MS,
    broker_directory,
    differences_from_kafka,
)
from tests.pylog_spark.tasks.pipeline import Pipeline, published

MANY_GROUPS = "clean-hw-none-s161"
TRANSACTIONS = "clean-txn-none-s101-3"


@pytest.mark.sampled(1)
@pytest.mark.item("CMP-36")
@pytest.mark.parametrize("tasks", [1, 2, 8])
@pytest.mark.parametrize(
    ("names", "now_ms"),
    [(FIRST_ROUNDS, FIRST_ROUNDS_MS), (LATER_ROUNDS, LATER_ROUNDS_MS)],
    ids=["first rounds", "later rounds with transactions"],
)
def test_any_number_of_tasks_leaves_what_apache_kafka_left(tmp_path, names, now_ms, tasks):
    root = broker_directory(tmp_path / "log", names)
    rows = Pipeline(root, now_ms).run(tasks=tasks)
    assert [row["error"] for row in rows] == [None] * len(rows)
    assert differences_from_kafka(root.path, names, tmp_path) == []


@pytest.mark.thorough
@pytest.mark.item("CMP-36")
@pytest.mark.parametrize("buckets", [1, 2, 7])
@pytest.mark.parametrize(
    ("names", "now_ms"),
    [(FIRST_ROUNDS, FIRST_ROUNDS_MS), (LATER_ROUNDS, LATER_ROUNDS_MS)],
    ids=["first rounds", "later rounds with transactions"],
)
def test_keys_that_are_exchanged_by_hash_leave_the_same(tmp_path, names, now_ms, buckets):
    root = broker_directory(tmp_path / "log", names)
    pipeline = Pipeline(root, now_ms)
    pipeline.allow_commits()
    rows = pipeline.exchange(buckets=buckets)
    assert [row["error"] for row in rows] == [None] * len(rows)
    by_merging = pipeline.index()
    for ordinal, merged in by_merging.items():
        (said,) = [r["numbers"] for r in rows if r["ordinal"] == ordinal and r["numbers"]]
        assert json.loads(said) == json.loads(merged["numbers"])
    commits = pipeline.commit(pipeline.pairs(by_merging, rows))
    assert [row["error"] for row in commits] == [None] * len(commits)
    assert differences_from_kafka(root.path, names, tmp_path) == []


def plans_read(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """Return a list that gets each plan that is decoded from now on, as it travels."""
    read = []

    def counted(kind: Any, value: object, where: str) -> Any:
        if kind is CompactionPlan:
            read.append(value)
        return read_value(kind, value, where)

    monkeypatch.setattr(observe, "read_value", counted)
    decode_plan.cache_clear()
    return read


@pytest.mark.parametrize("way", ["in rows", "exchanged"])
def test_a_task_reads_a_plan_once_however_many_segments_it_gets(tmp_path, monkeypatch, way):
    root = broker_directory(tmp_path / "log", [MANY_GROUPS])
    pipeline = Pipeline(root, FIRST_ROUNDS_MS)
    assert len(pipeline.plans[0]["segment_bytes"]) >= 3
    read = plans_read(monkeypatch)
    if way == "exchanged":
        pipeline.exchange()
    else:
        pipeline.rewrite(pipeline.index())
    assert len(read) == 1


@pytest.mark.parametrize("stage", ["pass one", "exchange", "pass two"])
def test_a_task_reads_each_plan_once_where_it_gets_segments_of_several(
    tmp_path, monkeypatch, stage
):
    root = broker_directory(tmp_path / "log", [MANY_GROUPS, "clean-lag-none-s161"])
    pipeline = Pipeline(root, FIRST_ROUNDS_MS)
    pipeline.allow_commits()
    merged = pipeline.index() if stage == "pass two" else {}
    plans, work = pipeline.encoded, pipeline.passes
    read = plans_read(monkeypatch)
    # The largest come first, of whichever partition they are.
    items = [(ordinal, number) for number in range(2) for ordinal in plans]
    units = dict.fromkeys(plans, 0)
    routes = {n: Route(first_unit=2 * n, buckets=1, group_units=(0,) * 9) for n in plans}
    run = {
        "pass one": lambda: index_segments(work, units, items),
        "exchange": lambda: send_keys(work, Inline(routes), items),
        "pass two": lambda: rewrite_groups(work, published(merged), items),
    }[stage]
    messages = list(run())
    assert not any(each.failure for each in messages)
    assert {each.ordinal for each in messages} == {0, 1}
    assert len(read) == 2


def test_an_error_of_a_segment_whose_keys_are_exchanged_is_the_partitions(tmp_path):
    root = broker_directory(tmp_path / "log", [MANY_GROUPS, "clean-group-all-s211"])
    flip(sorted((root.path / f"{MANY_GROUPS}-0").glob("*.log"))[1])
    pipeline = Pipeline(root, FIRST_ROUNDS_MS)
    damaged = [plan["topic"] for plan in pipeline.plans].index(MANY_GROUPS)
    rows = pipeline.exchange()
    errors = {row["ordinal"]: row["error_class"] for row in rows if row["error_class"]}
    assert errors == {damaged: "CorruptRecordError"}
    assert all(row["error_class"] for row in rows if row["ordinal"] == damaged)


@pytest.mark.thorough
def test_an_error_of_a_bucket_is_the_partitions_however_large_the_start_of_a_group_is(
    tmp_path, monkeypatch
):
    root = broker_directory(tmp_path / "log", [MANY_GROUPS])

    def fail(*_):
        raise ZeroDivisionError

    monkeypatch.setattr("pylog_spark.operations.compact.pass_task.KeyBucket.survivors", fail)
    # Longer than a piece: the tracker of a log with very many open transactions.
    monkeypatch.setattr(
        "pylog_spark.operations.compact.pass_task.encode_start",
        lambda start: encode_start(start) + b" " * 3_000_000,
    )
    rows = Pipeline(root, FIRST_ROUNDS_MS).exchange(buckets=2)
    first = next(row for row in rows if row["group"] == 0)
    assert first["error_class"] == "ZeroDivisionError"


@pytest.mark.parametrize("way", ["in process", "whole", "spread"])
def test_every_file_is_durable_before_it_gets_into_the_directory(tmp_path, monkeypatch, way):
    root = broker_directory(tmp_path / "log", [MANY_GROUPS])
    synced, promoted, promote = set(), [], LocalStore.promote

    def promote_durable(store: LocalStore, scratch_path: str, name: str) -> None:
        promoted.append(name)
        assert Path(scratch_path).stat().st_ino in synced, name
        promote(store, scratch_path, name)

    monkeypatch.setattr(syncing, "way_of", lambda *_: syncing.Way.ALONE)
    monkeypatch.setattr(os, "fsync", lambda file: synced.add(os.fstat(file).st_ino))
    monkeypatch.setattr(LocalStore, "promote", promote_durable)
    if way == "in process":
        clean_partition(
            root.path / f"{MANY_GROUPS}-0",
            config=root.config(MANY_GROUPS),
            cleaner=CleanerConfig(),
            request=root.request(MANY_GROUPS, FIRST_ROUNDS_MS),
        )
    else:
        pipeline = Pipeline(root, FIRST_ROUNDS_MS)
        pipeline.allow_commits()
        rows = pipeline.clean_whole() if way == "whole" else pipeline.run(tasks=2)
        assert not any(row["error"] for row in rows)
    assert len(promoted) > 3


@pytest.mark.thorough
def test_a_task_that_cleans_a_partition_whole_leaves_key_sidecars(tmp_path):
    root = broker_directory(tmp_path / "log", FIRST_ROUNDS)
    folder = tmp_path / "keys"
    pipeline = Pipeline(root, FIRST_ROUNDS_MS, cleaner=CleanerConfig(key_sidecars=str(folder)))
    pipeline.allow_commits()
    assert not any(row["error"] for row in pipeline.clean_whole())
    assert differences_from_kafka(root.path, FIRST_ROUNDS, tmp_path) == []
    known = 0
    for plan in pipeline.plans:
        store = LocalStore(Path(plan["directory"]))
        sidecars = SidecarFolder(folder).of(store.location)
        for segment in decode_plan(plan["plan"]).segments:
            if store.has(segment.log_file):
                with closing(store.open_file(segment.log_file)) as reader:
                    known += sidecars.read(reader, segment.base_offset) is not None
        assert sidecars.secret.hex() not in decode_plan(plan["plan"]).hash_key
    assert known >= len(pipeline.plans)
    assert not list(folder.rglob("*.part"))


def test_keys_that_are_missing_are_an_error_and_no_empty_keys(tmp_path):
    pipeline = Pipeline(broker_directory(tmp_path / "log", FIRST_ROUNDS[:1]), FIRST_ROUNDS_MS)
    message = SegmentKeyIndex(ordinal=0, segment=0, duration_ms=0)
    [merged] = merge_partitions(pipeline.passes, {0: 1 << 20}, [message])
    assert "the message has no keys" in (merged.failure.error or "")


@pytest.mark.parametrize("name", ["clean-group-all-s211", TRANSACTIONS])
def test_scratch_files_may_lie_inside_the_partition(tmp_path, name):
    root = broker_directory(tmp_path / "log", [name])
    now_ms = Golden(name).case["clock_ms"]
    pipeline = Pipeline(root, now_ms, has_shared_scratch=False)
    rows = pipeline.run(tasks=2)
    assert [row["error"] for row in rows] == [None]
    revoke_claim(pipeline.claim(pipeline.plans[0]))
    assert differences_from_kafka(root.path, [name], tmp_path) == []


@pytest.mark.thorough
def test_the_result_row_tells_what_became_of_the_partition(tmp_path):
    root = broker_directory(tmp_path / "log", [MANY_GROUPS])
    pipeline = Pipeline(root, FIRST_ROUNDS_MS)
    in_process = root.copy(tmp_path / "copy")
    result = clean_partition(
        in_process.path / f"{MANY_GROUPS}-0",
        config=root.config(MANY_GROUPS),
        cleaner=CleanerConfig(),
        request=root.request(MANY_GROUPS, FIRST_ROUNDS_MS),
    )
    expected = Golden(MANY_GROUPS).case["expected"]
    (row,) = pipeline.run()
    assert row["next_offset"] == result.cleaner_checkpoint == expected["next"]
    assert row["segments_after"] == result.segments == len(expected["segments"])
    assert row["bytes_after"] == result.size == sum(size for _, size in expected["segments"])
    dropped = expected["messages_read"] - expected["messages_written"]
    assert row["records_before"] - row["records_after"] == dropped
    assert row["touched"] is False


@pytest.mark.thorough
@pytest.mark.item("CMP-46")
@pytest.mark.parametrize("way", ["spread over tasks", "whole"])
@pytest.mark.parametrize(
    ("names", "now_ms"),
    [(FIRST_ROUNDS, FIRST_ROUNDS_MS), (LATER_ROUNDS, LATER_ROUNDS_MS)],
    ids=["first rounds", "later rounds with transactions"],
)
def test_the_numbers_of_a_round_are_those_of_kafka(tmp_path, names, now_ms, way):
    root = broker_directory(tmp_path / "log", names)
    pipeline = Pipeline(root, now_ms)
    pipeline.allow_commits()
    if way == "whole":
        rows = pipeline.clean_whole()
    else:
        merged = pipeline.index()
        rows = pipeline.commit(pipeline.pairs(merged, pipeline.rewrite(merged)))
    for row in rows:
        golden = Golden(pipeline.plans[row["ordinal"]]["topic"])
        expected = golden.case["expected"]
        said = json.loads(row["statistics"])
        names_of = {
            "messages_read",
            "messages_written",
            "bytes_read",
            "map_messages_read",
            "invalid_messages_read",
        }
        assert {name: said[name] for name in names_of} == {
            name: expected[name] for name in names_of
        }
        assert said["keys"] == expected["map_entries"]
        if golden.case["compare"] == "bytes":
            assert said["bytes_written"] == expected["bytes_written"]


@pytest.mark.item("FLT-14")
def test_a_pass_that_runs_twice_is_promoted_once(tmp_path):
    root = broker_directory(tmp_path / "log", [MANY_GROUPS])
    pipeline = Pipeline(root, FIRST_ROUNDS_MS)
    pipeline.allow_commits()
    merged = pipeline.index()
    first = pipeline.rewrite(merged)
    second = pipeline.rewrite(merged, tasks=2)
    assert {row["manifest"] for row in first}.isdisjoint({row["manifest"] for row in second})
    pipeline.commit(pipeline.pairs(merged, second))
    assert differences_from_kafka(root.path, [MANY_GROUPS], tmp_path) == []


@pytest.mark.item("FLT-14")
def test_a_commit_that_runs_twice_changes_nothing_and_says_the_same(tmp_path):
    root = broker_directory(tmp_path / "log", [MANY_GROUPS])
    pipeline = Pipeline(root, FIRST_ROUNDS_MS)
    pairs = pipeline.prepared()
    (first,) = pipeline.commit(pairs)
    tree = read_tree(root.path)
    (again,) = pipeline.commit(pairs)
    (whole,) = pipeline.clean_whole()
    assert first | {"duration_ms": 0} == again | {"duration_ms": 0}
    assert first | {"duration_ms": 0} == whole | {"duration_ms": 0}
    assert read_tree(root.path) == tree


def _commit_in_a_process(pipeline, pairs, barrier, results):
    barrier.wait()
    results.put(pipeline.commit(pairs))


@pytest.mark.thorough
@pytest.mark.item("FLT-14")
def test_commits_that_run_at_once_make_one_commit(tmp_path):
    root = broker_directory(tmp_path / "log", [TRANSACTIONS])
    with LogDirectoryLock(root.path) as lock:
        pipeline = Pipeline(root, LATER_ROUNDS_MS, held=lock.proof)
        pairs = pipeline.prepared()
        processes = multiprocessing.get_context("fork")
        barrier, results = processes.Barrier(3, timeout=60), processes.Queue()
        attempts = [
            processes.Process(target=_commit_in_a_process, args=(pipeline, pairs, barrier, results))
            for _ in range(3)
        ]
        for process in attempts:
            process.start()
        rows = [results.get(timeout=60)[0] | {"duration_ms": 0} for _ in attempts]
        for process in attempts:
            process.join(timeout=60)
    assert rows[0] == rows[1] == rows[2]
    assert rows[0]["error"] is None
    assert differences_from_kafka(root.path, [TRANSACTIONS], tmp_path) == []


def test_a_late_commit_of_a_run_that_ended_changes_nothing(tmp_path):
    root = broker_directory(tmp_path / "log", [MANY_GROUPS])
    pipeline = Pipeline(root, FIRST_ROUNDS_MS)
    pairs = pipeline.prepared()
    revoke_claim(pipeline.claim(pipeline.plans[0]))
    before = read_tree(root.path)
    (row,) = pipeline.commit(pairs)
    assert row["error_class"] == "GuardRefusedError"
    assert read_tree(root.path) == before


@pytest.mark.item("FLT-10", "FLT-14")
def test_an_attempt_that_cannot_read_its_claim_does_not_say_that_nothing_was_touched(tmp_path):
    root = broker_directory(tmp_path / "log", [MANY_GROUPS])
    pipeline = Pipeline(root, FIRST_ROUNDS_MS)
    pairs = pipeline.prepared()
    # What an attempt before it wrote down, on a disk that fails.
    pipeline.claim(pipeline.plans[0]).write_bytes(b"\xff\n")
    rows = [*pipeline.commit(pairs), *pipeline.clean_whole()]
    assert [(r["error_class"], r["touched"]) for r in rows] == [("ManifestError", True)] * 2


def log_files(root: Path) -> list[Path]:
    return sorted(root.glob(f"*/*{LOG_SUFFIX}"))


@pytest.mark.item("FLT-10", "FLT-15")
def test_a_partition_that_somebody_wrote_to_is_not_committed(tmp_path):
    root = broker_directory(tmp_path / "log", [MANY_GROUPS])
    pipeline = Pipeline(root, FIRST_ROUNDS_MS)
    pairs = pipeline.prepared()
    with log_files(root.path)[-1].open("ab") as file:
        file.write(b"an append of a broker that was started meanwhile")
    before = read_tree(root.path / f"{MANY_GROUPS}-0")
    (row,) = pipeline.commit(pairs)
    assert (row["error_class"], row["touched"]) == ("ChangedWhileReadError", False)
    assert read_tree(root.path / f"{MANY_GROUPS}-0") == before


@pytest.mark.item("FLT-10")
def test_a_task_on_a_host_without_the_lock_writes_nothing(tmp_path):
    root = broker_directory(tmp_path / "log", [MANY_GROUPS])
    pipeline = Pipeline(root, FIRST_ROUNDS_MS)
    pipeline.allow_commits()
    merged = pipeline.index()
    (root.path / ".lock").unlink()
    before = read_tree(tmp_path)
    rows = [*pipeline.rewrite(merged), *pipeline.clean_whole()]
    assert {row["error_class"] for row in rows} == {"GuardRefusedError"}
    assert read_tree(tmp_path) == before


def test_a_merged_index_above_its_limit_is_left_to_a_whole_clean(tmp_path, monkeypatch):
    monkeypatch.setattr("tests.pylog_spark.tasks.pipeline.NO_LIMIT", 10)
    root = broker_directory(tmp_path / "log", [MANY_GROUPS])
    (row,) = Pipeline(root, FIRST_ROUNDS_MS).index().values()
    assert (row["index"], row["error"]) == (None, None)
    assert row["end_offset"] == 57


def test_an_error_of_any_segment_is_the_partitions(tmp_path):
    root = broker_directory(tmp_path / "log", [MANY_GROUPS])
    pipeline = Pipeline(root, FIRST_ROUNDS_MS)
    log_files(root.path)[1].unlink()
    (row,) = pipeline.index(tasks=2).values()
    assert row["error_class"] == "StorageError"
    assert log_files(root.path)[0].name not in row["error"]


@pytest.mark.thorough
@pytest.mark.item("FLT-13")
def test_the_wall_clock_of_executors_decides_nothing(tmp_path, monkeypatch):
    root = broker_directory(tmp_path / "log", FIRST_ROUNDS)

    def read_clock() -> int:
        raise AssertionError("a task read the wall clock")

    monkeypatch.setattr("time.time", read_clock)
    monkeypatch.setattr("time.time_ns", read_clock)
    rows = Pipeline(root, FIRST_ROUNDS_MS).run()
    monkeypatch.undo()
    assert not any(row["error"] for row in rows)
    assert differences_from_kafka(root.path, FIRST_ROUNDS, tmp_path) == []
