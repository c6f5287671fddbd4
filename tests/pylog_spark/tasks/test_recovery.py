"""What the tasks of a recovery do when an attempt before them was killed amid its commit."""

import logging
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from pylog_spark.operations.recover import task as recovery
from pylog_spark.operations.recover.task import (
    RecoveredLog,
    RecoveryContext,
    RecoveryWork,
    ScannedSegment,
    fold_partitions,
    recover_whole,
    scan_segments,
)
from pylog_spark.options import JobOptions
from pylog_spark.rows import batches_of, row_writer, schema_of
from pylog_spark.tasks import ahead
from pylog_spark.tasks.ahead import BYTES_AT_ONCE
from pylog_spark.tasks.message import PART, cut_batches, join_messages, with_part
from pylog_spark.tasks.run_context import PartitionRef, WriteContext
from storage_core.checkpoint.checkpoints import PartitionCheckpoints
from storage_core.commit.claim import create_claim
from storage_core.commit.scratch import claim_path
from storage_core.filenames import TopicPartition, offset_of
from storage_core.log import segment_scan
from storage_core.roots import broker
from storage_core.roots.broker import BrokerAccess
from storage_core.store import LocalStore
from storage_core.threads import waiting
from tests.kit.compare import read_tree
from tests.kit.faulty_store import SimulatedCrash
from tests.kit.file_damage import flip
from tests.pylog_spark.broker_roots import FIRST_ROUNDS_MS, broker_directory
from tests.pylog_spark.tasks.observed import run_context
from tests.pylog_spark.tasks.pipeline import proof_of

TOPIC = "clean-headers-none-s101"


class DyingStore(LocalStore):
    """Dies before what was removed is durable."""

    def sync_directory(self) -> None:
        raise SimulatedCrash


class Recoverer:
    """The stages over a log with a damaged segment in the middle."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(exist_ok=True)
        root = broker_directory(folder / "log", [TOPIC])
        self.root, self.directory = str(root.path), root.path / f"{TOPIC}-0"
        self.logs = sorted(self.directory.glob("*.log"))
        damaged = self.logs[len(self.logs) // 2]
        flip(damaged)
        scratch = folder / "scratch"
        scratch.mkdir()
        run = run_context(
            self.root,
            root.configs,
            JobOptions(now_ms=FIRST_ROUNDS_MS, allow_truncate=True, max_truncate_bytes=1 << 30),
            unclean_roots=frozenset({self.root}),
        )
        access = BrokerAccess(run_id="run", lock=proof_of(root.path), shared=str(scratch))
        write = WriteContext(run=run, roots={self.root: access})
        self.context = RecoveryContext(run=run, write=write)
        self.work = RecoveryWork(
            ref=PartitionRef(
                ordinal=0,
                root=self.root,
                directory=str(self.directory),
                partition=TopicPartition(TOPIC, 0),
            ),
            is_clean=False,
            checkpoints=PartitionCheckpoints(),
        )
        self.claim = claim_path(str(scratch), self.directory, "run")
        create_claim(self.claim)

    def scan(self) -> pa.Table:
        offsets = [(self.work, offset_of(log.name) or 0) for log in self.logs]
        scans = scan_segments(offsets, {0: 0}, self.context)
        pieces = cut_batches(batches_of(ScannedSegment, scans))
        return pa.Table.from_batches(pieces, schema=with_part(schema_of(ScannedSegment)))

    def fold(self, scans: pa.Table) -> dict[str, Any]:
        ordered = scans.sort_by([("base_offset", "ascending"), (PART, "ascending")])
        joined = join_messages(ScannedSegment, ordered.to_batches())
        (log,) = fold_partitions(joined, {0: self.work}, self.context)
        return row_writer(RecoveredLog)(log)

    def whole(self) -> dict[str, Any]:
        (log,) = recover_whole([(self.work, 0)], self.context)
        return row_writer(RecoveredLog)(log)

    def kill(self, scans: pa.Table, monkeypatch) -> None:
        """Let an attempt die when it has removed the segment after the damage."""
        with monkeypatch.context() as patch:
            patch.setattr(broker, "LocalStore", DyingStore)
            with pytest.raises(SimulatedCrash):
                self.fold(scans)


def timeless(row: dict[str, Any]) -> dict[str, Any]:
    return row | {"duration_ms": 0}


@pytest.mark.item("FLT-10", "FLT-14")
def test_scans_that_are_done_again_amid_a_commit_do_not_fail_the_partition(tmp_path, monkeypatch):
    """The executor that died had the commit begun, and had the results of scans, too."""
    undisturbed, killed = Recoverer(tmp_path / "undisturbed"), Recoverer(tmp_path / "killed")
    expected = undisturbed.fold(undisturbed.scan())
    assert (expected["status"], expected["touched"]) == ("done", False)
    killed.kill(killed.scan(), monkeypatch)
    again = killed.scan()
    assert set(again["error_class"].to_pylist()) == {None, "StorageError"}
    row = killed.fold(again)
    assert (row["status"], row["error"], row["touched"]) == ("done", None, False)
    for name in ("cuts", "steps", "log_end_offset", "bytes_after"):
        assert row[name] == expected[name]
    assert read_tree(killed.directory) == read_tree(undisturbed.directory)


@pytest.mark.item("FLT-10")
def test_a_segment_that_cannot_be_read_fails_the_partition_before_anything_is_touched(
    tmp_path, caplog
):
    recoverer = Recoverer(tmp_path)
    scans = recoverer.scan()
    recoverer.logs[-1].unlink()
    before = read_tree(recoverer.directory)
    caplog.set_level(logging.INFO, "pylog_spark")
    row = recoverer.fold(recoverer.scan())
    assert (row["status"], row["error_class"], row["touched"]) == ("failed", "StorageError", False)
    assert [record.getMessage() for record in caplog.records] == [row["error"]]
    assert recoverer.logs[-1].name in row["error"]
    assert read_tree(recoverer.directory) == before
    # The disk that has no such segment has no claim either: what is said is the first of it.
    recoverer.claim.unlink()
    assert timeless(recoverer.fold(recoverer.scan())) == timeless(row)
    assert recoverer.fold(scans)["error_class"] == "GuardRefusedError"


@pytest.mark.item("FLT-10", "FLT-14")
@pytest.mark.parametrize("stage", ["fold", "whole"])
def test_an_attempt_that_cannot_read_its_claim_does_not_say_that_nothing_was_touched(
    tmp_path, monkeypatch, stage
):
    recoverer = Recoverer(tmp_path)
    scans = recoverer.scan()
    recoverer.kill(scans, monkeypatch)
    recoverer.claim.write_bytes(b"\xff\n")
    row = recoverer.fold(scans) if stage == "fold" else recoverer.whole()
    assert (row["status"], row["error_class"], row["touched"]) == ("failed", "ManifestError", True)


@pytest.mark.parametrize(("room", "at_once"), [(recovery.BYTES_AT_ONCE, 2), (1, 1)])
def test_logs_wait_for_their_disks_beside_each_other_as_far_as_their_scans_leave_room(
    tmp_path, monkeypatch, room, at_once
):
    recoverer = Recoverer(tmp_path)
    one = recoverer.scan()
    ordinals = one.schema.get_field_index("ordinal")
    scans = [
        one.set_column(ordinals, "ordinal", pa.array([number] * one.num_rows, pa.int64()))
        for number in range(3)
    ]
    meeting, met = threading.Barrier(2, timeout=60), []

    def wait_for_disk(work: RecoveryWork, *_: Any) -> RecoveredLog:
        log = RecoveredLog(ordinal=work.ref.ordinal, touched=False, duration_ms=1)
        if log.ordinal == 0:  # the first one is done without threads
            return log
        with waiting():
            try:
                meeting.wait(timeout=30 if at_once > 1 else 0.2)
            except threading.BrokenBarrierError:
                met.append(1)
            else:
                met.append(2)
        return log

    monkeypatch.setattr(ahead, "_LEAST_WAITED", -1.0)
    monkeypatch.setattr(recovery, "BYTES_AT_ONCE", room)
    monkeypatch.setattr(recovery, "_recover", wait_for_disk)
    works = {
        number: replace(recoverer.work, ref=replace(recoverer.work.ref, ordinal=number))
        for number in range(3)
    }
    batches = [batch for table in scans for batch in table.to_batches()]
    joined = join_messages(ScannedSegment, batches)
    logs = fold_partitions(joined, works, recoverer.context)
    assert [log.ordinal for log in logs] == [0, 1, 2]
    assert met == [at_once] * 2


@pytest.mark.parametrize(
    ("size_bytes", "threads"),
    [
        pytest.param(BYTES_AT_ONCE, 3, id="alone"),
        pytest.param(BYTES_AT_ONCE - 1, 1, id="others beside it"),
    ],
)
def test_segments_are_read_with_the_threads_of_a_task_that_reads_one_partition(
    tmp_path, monkeypatch, size_bytes, threads
):
    recoverer = Recoverer(tmp_path)
    recoverer.context = replace(recoverer.context, threads=3)
    asked: set[int] = set()
    scan = segment_scan.scan_checked_headers

    def noted(*arguments: Any, **settings: Any) -> Any:
        asked.add(settings["threads"])
        return scan(*arguments, **settings)

    monkeypatch.setattr(segment_scan, "scan_checked_headers", noted)
    recoverer.scan()
    assert asked == {3}
    asked.clear()
    log = next(recover_whole([(recoverer.work, size_bytes)], recoverer.context))
    assert (log.status, asked) == ("done", {threads})
