"""A task works on several small partitions at once, on big ones alone, and hands rows on in order.

The partitions of each test meet in the middle of their commits, as if they waited for a disk there:
one after the other they would wait for each other in vain.
"""

import threading
from dataclasses import replace
from functools import partialmethod
from pathlib import Path

import pytest

from pylog_spark.operations import ingest_task as ingest
from pylog_spark.operations.compact import task as commit
from pylog_spark.operations.ingest_task import IngestContext, ingest_partitions
from pylog_spark.operations.recover import task as recovery
from pylog_spark.operations.recover.task import (
    RecoveryContext,
    RecoveryWork,
    recover_whole,
)
from pylog_spark.operations.retain.task import RetentionContext, SweepWork, commit_sweeps
from pylog_spark.operations.verify import task as verification
from pylog_spark.operations.verify.task import (
    Stretch,
    Target,
    VerifiedRow,
    measure_segments,
    verify_stretches,
)
from pylog_spark.options import HighWatermarkSource, JobOptions
from pylog_spark.rows import rows_to_batch
from pylog_spark.run.plan_table import read_planned
from pylog_spark.schemas import INGEST
from pylog_spark.tasks import ahead
from pylog_spark.tasks.ahead import BYTES_AT_ONCE
from pylog_spark.tasks.listing import list_partitions
from pylog_spark.tasks.observe import Step
from pylog_spark.tasks.run_context import PartitionRef, WriteContext
from storage_core.catalog.roles import Role
from storage_core.catalog.topic_filter import TopicFilter
from storage_core.checkpoint.checkpoints import PartitionCheckpoints
from storage_core.commit.claim import create_claim
from storage_core.commit.scratch import claim_path
from storage_core.config import CleanerConfig
from storage_core.errors import StorageError
from storage_core.filenames import TopicPartition
from storage_core.maintenance.ingest.partition import IngestRules
from storage_core.maintenance.verification.findings import DirectoryContext, VerifyOptions
from storage_core.roots.broker import BrokerAccess
from storage_core.threads import waiting
from tests.kit.builders import BatchSpec, RecordSpec
from tests.kit.compare import read_tree
from tests.kit.directories import SegmentSpec, write_partition
from tests.pylog_spark.broker_roots import FIRST_ROUNDS, FIRST_ROUNDS_MS, broker_directory
from tests.pylog_spark.tasks.observed import observed, run_context
from tests.pylog_spark.tasks.pipeline import Pipeline, proof_of

NOW_MS = 1_700_000_000_000
PARTITIONS = 4


class Meeting:
    """Wraps a function: so many calls have to be in it at once; counts how many there were.

    The first one has to meet nobody where ``begins_alone``: that one is done without threads.
    """

    def __init__(self, function, *, calls: int = 1, begins_alone: bool = False) -> None:
        self._function = function
        self._is_met = not begins_alone
        self._barrier = threading.Barrier(calls, timeout=20)
        self._counting = threading.Lock()
        self._inside = 0
        self.most = 0

    def __call__(self, *arguments, **named):
        with self._counting:
            self._inside += 1
            self.most = max(self.most, self._inside)
            is_met, self._is_met = self._is_met, True
        try:
            with waiting():
                if is_met:
                    self._barrier.wait()
            return self._function(*arguments, **named)
        finally:
            with self._counting:
                self._inside -= 1


@pytest.fixture(autouse=True)
def _seems_to_wait_for_its_disk(monkeypatch):
    monkeypatch.setattr(ahead, "_LEAST_WAITED", -1.0)


@pytest.fixture
def cleaning(tmp_path: Path) -> Pipeline:
    root = broker_directory(tmp_path / "log", FIRST_ROUNDS[:PARTITIONS])
    pipeline = Pipeline(root, FIRST_ROUNDS_MS)
    assert len(pipeline.plans) == PARTITIONS
    pipeline.allow_commits()
    return pipeline


def rows_of(batches) -> list[dict]:
    return [row for batch in batches for row in batch.to_pylist()]


def ordinals(rows) -> list[int]:
    return [row["ordinal"] for row in rows]


def test_small_partitions_are_cleaned_and_committed_at_the_same_time(cleaning, monkeypatch):
    both = Meeting(commit.clean_whole, calls=PARTITIONS - 1, begins_alone=True)
    ends = Meeting(commit.plan_commit, calls=PARTITIONS - 1, begins_alone=True)
    monkeypatch.setattr(commit, "clean_whole", both)
    monkeypatch.setattr(commit, "plan_commit", ends)
    rows = cleaning.clean_whole()
    assert ordinals(rows) == list(range(PARTITIONS))
    assert [row["error"] for row in rows] == [None] * PARTITIONS


@pytest.mark.thorough
@pytest.mark.parametrize("is_paced", [False, True], ids=["no room for two", "a rate of bytes"])
def test_one_partition_is_cleaned_at_a_time_where_two_would_be_too_many(
    tmp_path, monkeypatch, is_paced
):
    root = broker_directory(tmp_path / "log", FIRST_ROUNDS[:PARTITIONS])
    cleaner = CleanerConfig(io_max_bytes_per_second=1e12) if is_paced else CleanerConfig()
    cleaning = Pipeline(root, FIRST_ROUNDS_MS, cleaner=cleaner)
    cleaning.allow_commits()
    if not is_paced:
        monkeypatch.setattr(commit, "BYTES_AT_ONCE", 1)
    alone = Meeting(commit.clean_whole)
    # While one waits for its syncs, the next one is cleaned.
    syncs = Meeting(commit.Unsynced.sync, calls=PARTITIONS - 1, begins_alone=True)
    monkeypatch.setattr(commit, "clean_whole", alone)
    monkeypatch.setattr(commit.Unsynced, "sync", partialmethod(syncs))
    assert [row["error"] for row in cleaning.clean_whole()] == [None] * PARTITIONS
    assert alone.most == 1


@pytest.mark.thorough
@pytest.mark.parametrize(("room", "threads"), [(BYTES_AT_ONCE, {1}), (1, {4})])
def test_a_partition_that_is_cleaned_beside_others_has_one_thread(
    cleaning, monkeypatch, room, threads
):
    told = set()
    clean = commit.clean_whole

    def noted(store, plan, access, context, unsynced):
        told.add(context.threads)
        return clean(store, plan, access, context, unsynced)

    monkeypatch.setattr(commit, "BYTES_AT_ONCE", room)
    monkeypatch.setattr(commit, "clean_whole", noted)
    cleaning.context = replace(cleaning.context, threads=4)
    assert [row["error"] for row in cleaning.clean_whole()] == [None] * PARTITIONS
    assert told == threads


@pytest.mark.thorough
def test_a_partition_that_fails_leaves_those_beside_it_alone(cleaning, monkeypatch):
    victim = cleaning.plans[1]["directory"]
    before = read_tree(Path(victim))
    verify = commit.verify_inputs

    def failing(files, plan):
        if plan.location == victim:
            raise StorageError(victim, "Input/output error")
        verify(files, plan)

    monkeypatch.setattr(commit, "verify_inputs", failing)
    merged = cleaning.index()
    rows = cleaning.commit(cleaning.pairs(merged, cleaning.rewrite(merged)))
    assert ordinals(rows) == list(range(PARTITIONS))
    assert [row["error"] is None for row in rows] == [True, False, True, True]
    assert rows[1]["touched"] is False
    assert read_tree(Path(victim)) == before


@pytest.fixture
def logs(tmp_path: Path) -> Path:
    """Four logs of two segments, all of which is old."""
    root = tmp_path / "log"
    for number in range(PARTITIONS):
        write_partition(
            root / f"t-{number}",
            [
                SegmentSpec(
                    base_offset=base,
                    batches=(
                        BatchSpec(
                            base_offset=base,
                            records=(RecordSpec(key=b"k", value=b"v", timestamp=NOW_MS - 10**8),),
                        ),
                    ),
                    modified_ms=NOW_MS - 10**8,
                    producers=(),
                )
                for base in (0, 1)
            ],
        )
    return root


def write_context(root: Path, configs, *, is_unclean: bool = False) -> WriteContext:
    run = run_context(
        str(root),
        configs,
        JobOptions(
            now_ms=NOW_MS,
            high_watermark=HighWatermarkSource.LOG_END,
            allow_truncate=True,
            max_truncate_bytes=1 << 30,
        ),
        unclean_roots=frozenset({str(root)} if is_unclean else ()),
    )
    scratch = root.parent / "scratch"
    scratch.mkdir()
    for number in range(PARTITIONS):
        create_claim(claim_path(str(scratch), root / f"t-{number}", "run"))
    access = BrokerAccess(run_id="run", lock=proof_of(root), shared=str(scratch))
    return WriteContext(run=run, roots={str(root): access})


def in_the_middle_of_commits(monkeypatch) -> None:
    """Let no commit go on until all of them have begun."""
    meeting = Meeting(BrokerAccess.commit, calls=PARTITIONS - 1, begins_alone=True)

    def commit_together(*arguments):
        return meeting(*arguments)

    monkeypatch.setattr(BrokerAccess, "commit", commit_together)


def test_partitions_are_swept_at_the_same_time(logs, monkeypatch):
    write = write_context(logs, {"t": {"cleanup.policy": "delete", "retention.ms": "1000"}})
    listed = [
        {"error_class": None, "error": None} | row
        for row in list_partitions(str(logs), "broker", TopicFilter())
    ]
    works = list(read_planned(SweepWork, observed(listed, write.run, Step.RETAIN)))
    in_the_middle_of_commits(monkeypatch)
    context = RetentionContext(run=write.run, step=Step.RETAIN)
    commits = list(commit_sweeps(works, context, write))
    assert [each.ordinal for each in commits] == [work.ref.ordinal for work in works]
    assert [each.failure.error for each in commits] == [None] * PARTITIONS


def recovery_of(logs: Path) -> tuple[list[tuple[RecoveryWork, int]], RecoveryContext]:
    write = write_context(logs, {}, is_unclean=True)
    items = [
        (
            RecoveryWork(
                ref=PartitionRef(
                    ordinal=number,
                    root=str(logs),
                    directory=str(logs / f"t-{number}"),
                    partition=TopicPartition("t", number),
                ),
                is_clean=False,
                checkpoints=PartitionCheckpoints(),
            ),
            1000,
        )
        for number in range(PARTITIONS)
    ]
    return items, RecoveryContext(run=write.run, write=write)


def test_small_partitions_are_recovered_at_the_same_time(logs, monkeypatch):
    items, context = recovery_of(logs)
    in_the_middle_of_commits(monkeypatch)
    logs = list(recover_whole(items, context))
    assert [log.ordinal for log in logs] == list(range(PARTITIONS))
    assert [log.status for log in logs] == ["done"] * PARTITIONS


def test_big_partitions_are_recovered_one_at_a_time(logs, monkeypatch):
    items, context = recovery_of(logs)
    alone = Meeting(recovery.plan_recovery)
    monkeypatch.setattr(recovery, "plan_recovery", alone)
    monkeypatch.setattr(recovery, "BYTES_AT_ONCE", 1999)
    assert [log.status for log in recover_whole(items, context)] == ["done"] * 4
    assert alone.most == 1


def stretches(root: str, *, size_bytes: int) -> list[Stretch]:
    return [
        Stretch(
            target=Target(
                ordinal=number,
                root=root,
                directory=f"{root}/t-{number}",
                partition=TopicPartition("t", number),
                context=DirectoryContext(role=Role.MANAGED, is_clean=True),
                checkpoints=PartitionCheckpoints(),
                roots=(),
            ),
            size_bytes=size_bytes,
        )
        for number in range(PARTITIONS)
    ]


@pytest.mark.parametrize(
    ("root", "size_bytes", "most"),
    [
        pytest.param("managed+s3://bucket/root", 1000, PARTITIONS, id="small ones far away"),
        pytest.param("s3://bucket/root", BYTES_AT_ONCE, 1, id="big ones far away"),
        pytest.param("/var/lib/kafka", 1000, 1, id="on a disk, where the processor is the limit"),
    ],
)
def test_partitions_far_away_are_verified_beside_each_other(monkeypatch, root, size_bytes, most):
    verify = Meeting(
        lambda stretch, _: [VerifiedRow(row="partition", ordinal=stretch.target.ordinal)],
        calls=most,
    )
    monkeypatch.setattr(verification, "verify_stretch", verify)
    rows = verify_stretches(stretches(root, size_bytes=size_bytes), VerifyOptions(now_ms=NOW_MS))
    assert [row.ordinal for row in rows] == list(range(PARTITIONS))
    assert verify.most == most


def test_segments_of_partitions_far_away_are_listed_beside_each_other(monkeypatch):
    monkeypatch.setattr(
        verification, "open_store", Meeting(verification.open_store, calls=PARTITIONS)
    )
    targets = [each.target for each in stretches("managed+memory://nowhere", size_bytes=0)]
    sizes = measure_segments(targets)
    assert [(each.directory, each.sizes) for each in sizes] == [
        (target.directory, ()) for target in targets
    ]


@pytest.mark.parametrize(("size_bytes", "most"), [(1000, PARTITIONS), (BYTES_AT_ONCE, 1)])
def test_small_partitions_are_ingested_beside_each_other(monkeypatch, tmp_path, size_bytes, most):
    take = Meeting(lambda row, *_: {"partition": row["partition"]}, calls=most)
    monkeypatch.setattr(ingest, "_attempt", take)
    rules = IngestRules()
    context = IngestContext(
        run_id="run",
        mirror=str(tmp_path),
        root="memory://root",
        rules=rules,
        high_watermark=HighWatermarkSource.CHECKPOINT,
        lease=None,
    )
    rows = [{"partition": n, "file_bytes": [size_bytes]} for n in range(PARTITIONS)]
    found = rows_of(ingest_partitions(iter([rows_to_batch(INGEST, rows)]), context))
    assert [row["partition"] for row in found] == list(range(PARTITIONS))
    assert take.most == most
