"""A log that is open for appends: what stands in its directory after each of them."""

import contextlib
import dataclasses
import itertools
import random
import zlib

import numpy as np
import pyarrow as pa
import pytest

from storage_core.checkpoint.checkpoints import EpochEntry, parse_leader_epochs
from storage_core.clock import ManualClock
from storage_core.config import LogConfig
from storage_core.errors import (
    CorruptRecordError,
    InvalidAppendError,
    InvalidColumnError,
    InvalidNameError,
    InvalidProducerEpochError,
    InvalidRecordError,
    InvalidTimestampError,
    LogClosedError,
    OffsetOutOfRangeError,
    OffsetsOutOfOrderError,
    OutOfOrderSequenceError,
    PylogError,
    RecordBatchTooLargeError,
    RecordTooLargeError,
    RecordValidationError,
    RollError,
    StorageError,
    UnexpectedAppendOffsetError,
)
from storage_core.formats.batch_v2 import Codec, TimestampType
from storage_core.formats.index_entries import TIME_INDEX_ENTRY
from storage_core.index.segment_indexes import parse_transaction_index
from storage_core.log.append.validator import ProducerSettings, batch_settings
from storage_core.log.producer_snapshot import parse_producer_snapshot
from storage_core.log.producer_state import AppendOrigin
from storage_core.log.unified_log import UnifiedLog
from storage_core.records.batch_builder import BatchSettings, build_all
from storage_core.records.new_records import ByteColumn, NewRecords
from tests.kit.builders import (
    SOME_TIME_MS,
    BatchSpec,
    RecordSpec,
    encode_batch,
    with_valid_crc,
)
from tests.kit.compare import read_tree
from tests.kit.decode import decode_segment
from tests.kit.one_partition import load_partition
from tests.storage_core.log.append_logs import NotedFiles, batch, open_log

HOUR_MS = 3_600_000


def columns(count, *, timestamp=SOME_TIME_MS, key=b"key"):
    return NewRecords.from_arrow(
        pa.table(
            {
                "key": pa.array([key] * count, pa.binary()),
                "value": pa.array([b"value-%d" % i for i in range(count)], pa.binary()),
                "timestamp": pa.array([timestamp] * count, pa.int64()),
            }
        )
    )


def files_of(directory):
    return sorted(path.name for path in (directory / "t-0").iterdir())


def batches_of(directory):
    return [
        one
        for path in sorted((directory / "t-0").glob("*.log"))
        for one in decode_segment(path.read_bytes())[0]
    ]


@pytest.mark.item("APP-04", "SEG-06", "PRD-10")
def test_a_new_log_has_its_files_and_a_snapshot_at_its_end(tmp_path):
    with open_log(tmp_path) as log:
        assert log.append_as_leader(batch(3), leader_epoch=4).last_offset == 2
        assert log.append_as_leader(batch(2), leader_epoch=4).first_offset == 3
    assert files_of(tmp_path) == [
        "00000000000000000000.index",
        "00000000000000000000.log",
        "00000000000000000000.timeindex",
        "00000000000000000005.snapshot",
        "leader-epoch-checkpoint",
    ]
    assert [(b.base_offset, b.last_offset) for b in batches_of(tmp_path)] == [(0, 2), (3, 4)]
    assert {b.header["partition_leader_epoch"] for b in batches_of(tmp_path)} == {4}


def test_a_log_goes_on_where_it_was_closed(tmp_path):
    for first in (0, 2, 4):
        with open_log(tmp_path) as log:
            assert log.log_end_offset == first
            log.append_as_leader(batch(2), leader_epoch=1)
    assert [b.base_offset for b in batches_of(tmp_path)] == [0, 2, 4]
    assert "00000000000000000006.snapshot" in files_of(tmp_path)


def test_what_was_closed_loads_without_a_change(tmp_path):
    with open_log(tmp_path, internal_segment_bytes=300, index_interval_bytes=0) as log:
        for _ in range(20):
            log.append_as_leader(batch(2), leader_epoch=1)
    loaded = load_partition(tmp_path / "t-0")
    assert loaded.operations == ()
    assert loaded.log_end_offset == 40


def test_a_directory_that_is_no_partitions_is_refused(tmp_path):
    with pytest.raises(InvalidNameError):
        UnifiedLog.open(tmp_path / "topic")


def test_a_closed_log_takes_nothing(tmp_path):
    log = open_log(tmp_path)
    log.close()
    for act in (
        lambda: log.append_as_leader(batch(), leader_epoch=0),
        lambda: log.append_columns(columns(1)),
        log.roll,
        log.flush,
        log.close,
    ):
        with pytest.raises(LogClosedError):
            act()


# What is refused.

REFUSED = {
    "a flipped bit": (InvalidRecordError, None),
    "a base offset": (InvalidRecordError, {"base_offset": 1}),
    "a count that is wrong": (InvalidRecordError, {"record_count": 5}),
    "a control batch": (InvalidRecordError, {"is_control": True}),
    "a producer without a sequence": (
        InvalidRecordError,
        {"producer_id": 3, "producer_epoch": 0, "base_sequence": -1},
    ),
    "a timestamp too far ahead": (InvalidTimestampError, {"timestamp": SOME_TIME_MS + 2 * HOUR_MS}),
    "a sequence that skips": (
        OutOfOrderSequenceError,
        {"producer_id": 9, "producer_epoch": 1, "base_sequence": 5},
    ),
    "a fenced epoch": (
        InvalidProducerEpochError,
        {"producer_id": 9, "producer_epoch": 0, "base_sequence": 1},
    ),
}


@pytest.mark.item("APP-01", "APP-07")
@pytest.mark.parametrize("name", REFUSED, ids=str)
def test_what_is_refused_leaves_the_directory_as_it_was(name, tmp_path):
    kind, fields = REFUSED[name]
    with open_log(tmp_path) as log:
        known = batch(producer_id=9, producer_epoch=1, base_sequence=0)
        log.append_as_leader(known, leader_epoch=2)
        before, end = read_tree(tmp_path), log.log_end_offset
        data = batch(2, **(fields or {}))
        if fields is None:
            data = data[:70] + bytes([data[70] ^ 1]) + data[71:]
            kind = PylogError
        with pytest.raises(kind):
            log.append_as_leader(data, leader_epoch=2)
        assert (read_tree(tmp_path), log.log_end_offset) == (before, end)


@pytest.mark.item("APP-01")
def test_a_refusal_after_the_roll_leaves_the_rolled_segment(tmp_path):
    with open_log(tmp_path, internal_segment_bytes=200) as log:
        good, bad = (
            batch(2, producer_id=1, producer_epoch=0, base_sequence=sequence) for sequence in (0, 7)
        )
        log.append_as_leader(batch(2), leader_epoch=0)
        log.append_as_leader(good, leader_epoch=0)
        with pytest.raises(OutOfOrderSequenceError):
            log.append_as_leader(bad, leader_epoch=0)
        assert [base for base, _ in log.segments] == [0, 2, 4]
        assert log.log_end_offset == 4


def append_four(directory, fails_at=None):
    """Append until the disk fails; return how many appends returned, and the steps there were."""
    files = NotedFiles(directory / "t-0")
    files.fails_at = fails_at
    appended = 0
    with (
        contextlib.suppress(StorageError),
        open_log(directory, files=files, internal_segment_bytes=250, index_interval_bytes=0) as log,
    ):
        for _ in range(4):
            log.append_as_leader(batch(2), leader_epoch=0)
            appended += 1
    return appended, len(files.notes)


@pytest.mark.thorough
@pytest.mark.item("APP-01")
def test_a_disk_that_fails_at_any_step_leaves_a_log_that_loads(tmp_path):
    appended, steps = append_four(tmp_path / "whole")
    assert appended == 4
    assert steps > 20
    for step in range(steps):
        directory = tmp_path / str(step)
        appended, _ = append_four(directory, fails_at=step)
        with open_log(directory, clean_shutdown=False) as log:
            assert log.log_end_offset in {2 * appended, 2 * appended + 2}
            log.append_as_leader(batch(2), leader_epoch=0)


@pytest.mark.item("APP-03")
@pytest.mark.parametrize("length", [0, 11, 12, 60, 61, 90])
def test_input_without_a_whole_batch_appends_nothing(length, tmp_path):
    with open_log(tmp_path) as log:
        info = log.append_as_leader(batch()[:length], leader_epoch=0)
        assert (info.first_offset, info.last_offset, info.valid_bytes) == (-1, -1, 0)
        assert log.log_end_offset == 0


@pytest.mark.item("APP-02", "APP-12")
def test_a_batch_may_have_max_message_bytes_and_no_more(tmp_path):
    size = len(batch(3))
    with open_log(tmp_path, max_message_bytes=size) as log:
        log.append_as_leader(batch(3), leader_epoch=0)
        with pytest.raises(RecordTooLargeError):
            log.append_as_leader(batch(4), leader_epoch=0)
        large = batch(4, base_offset=3, leader_epoch=0)
        assert log.append_as_follower(large, leader_epoch=0).last_offset == 6


@pytest.mark.item("APP-12")
def test_a_batch_that_grows_when_it_is_rebuilt_is_measured_again(tmp_path):
    records = tuple(RecordSpec(key=b"k", value=b"a" * 100) for _ in range(10))
    packed = encode_batch(BatchSpec(records=records, codec=Codec.GZIP, leader_epoch=-1))
    with open_log(tmp_path, max_message_bytes=len(packed), compression_type="uncompressed") as log:
        with pytest.raises(RecordTooLargeError):
            log.append_as_leader(packed, leader_epoch=0)
        assert log.log_end_offset == 0


@pytest.mark.item("APP-12")
def test_an_append_may_fill_a_segment_and_no_more(tmp_path):
    size = len(batch(3))
    with open_log(tmp_path, internal_segment_bytes=size) as log:
        log.append_as_leader(batch(3), leader_epoch=0)
        with pytest.raises(RecordBatchTooLargeError) as caught:
            log.append_as_leader(batch(4), leader_epoch=0)
        assert (caught.value.size_bytes, caught.value.segment_bytes) == (len(batch(4)), size)


# Epochs.


@pytest.mark.item("APP-11")
def test_epochs_are_noted_where_they_begin_and_a_legacy_append_ends_them(tmp_path):
    file = tmp_path / "t-0" / "leader-epoch-checkpoint"

    def noted():
        return parse_leader_epochs(file.read_bytes(), file=file.name)

    with open_log(tmp_path) as log:
        for epoch in (3, 3, 7):
            log.append_as_leader(batch(2), leader_epoch=epoch)
        assert noted() == [EpochEntry(3, 0), EpochEntry(7, 4)]
        entry = build_all(columns(1), BatchSettings(magic=1, base_offset=6))
        log.append_as_follower(entry.data, leader_epoch=7)
        assert noted() == []
        log.append_as_leader(batch(1), leader_epoch=7)
        assert noted() == [EpochEntry(7, 7)]


# Rolls.


@pytest.mark.item("APP-13", "APP-17", "PRD-10", "SEG-06")
def test_a_roll_completes_the_old_segment_and_writes_the_producers_down(tmp_path):
    with open_log(tmp_path, internal_segment_bytes=200) as log:
        first = batch(2, producer_id=5, producer_epoch=0, base_sequence=0)
        log.append_as_leader(first, leader_epoch=0)
        log.append_as_leader(batch(2, timestamp=SOME_TIME_MS + 5), leader_epoch=0)
        assert [base for base, _ in log.segments] == [0, 2]
        assert log.recovery_point == 2
        directory = tmp_path / "t-0"
        assert (directory / "00000000000000000000.timeindex").stat().st_size == 12
        name = "00000000000000000002.snapshot"
        [entry] = parse_producer_snapshot(name, (directory / name).read_bytes())
        assert (entry.producer_id, entry.last_offset) == (5, 1)


@pytest.mark.item("APP-17")
def test_files_in_the_way_of_a_new_segment_are_deleted(tmp_path):
    with open_log(tmp_path) as log:
        log.append_as_leader(batch(2), leader_epoch=0)
        left = tmp_path / "t-0" / "00000000000000000002.txnindex"
        left.write_bytes(b"left by somebody")
        log.roll()
        assert not left.exists()


@pytest.mark.item("APP-17")
def test_an_empty_active_segment_is_made_anew_and_one_with_records_is_not(tmp_path):
    with open_log(tmp_path) as log:
        assert log.roll() == 0
        log.append_as_leader(batch(2), leader_epoch=0)
        assert log.roll() == 2
        assert log.roll() == 2
        assert log.roll(9) == 9
        with pytest.raises(RollError):
            log.roll(3)
    assert not [name for name in files_of(tmp_path) if name.endswith(".deleted")]


@pytest.mark.item("APP-16")
@pytest.mark.parametrize(
    ("magic", "base_offset"), [(2, 2**31 + 4), (1, 5)], ids=["known first offset", "legacy"]
)
def test_a_roll_for_an_offset_out_of_reach_begins_where_the_append_may(
    magic, base_offset, tmp_path
):
    with open_log(tmp_path) as log:
        log.append_as_leader(batch(2), leader_epoch=0)
        settings = BatchSettings(magic=magic, base_offset=2**31 + 4, leader_epoch=0)
        log.append_as_follower(build_all(columns(1), settings).data, leader_epoch=0)
        assert [base for base, _ in log.segments] == [0, base_offset]


@pytest.mark.item("SEG-07")
def test_a_preallocated_segment_is_cut_when_it_becomes_inactive(tmp_path):
    with open_log(tmp_path, preallocate=True, internal_segment_bytes=5_000) as log:
        log.append_as_leader(batch(2), leader_epoch=0)
        path = tmp_path / "t-0" / "00000000000000000000.log"
        assert path.stat().st_size == 5_000
        log.roll()
        assert path.stat().st_size == len(batch(2))
        log.append_as_leader(batch(2), leader_epoch=0)
    assert (tmp_path / "t-0" / "00000000000000000002.log").stat().st_size == len(batch(2))


@pytest.mark.item("SEG-11")
def test_the_size_of_a_log_is_that_of_its_records(tmp_path):
    with open_log(tmp_path, internal_segment_bytes=250, index_interval_bytes=0) as log:
        for _ in range(5):
            log.append_as_leader(batch(2), leader_epoch=0)
        assert log.size_bytes == 5 * len(batch(2)) == sum(size for _, size in log.segments)


# Producers and transactions.


@pytest.mark.item("PRD-01", "PRD-07")
def test_each_of_the_last_five_batches_of_a_producer_is_known_again(tmp_path):
    def numbered(number):
        return batch(2, producer_id=7, producer_epoch=0, base_sequence=2 * number)

    with open_log(tmp_path) as log:
        for number in range(6):
            log.append_as_leader(numbered(number), leader_epoch=0)
        before = read_tree(tmp_path)
        for number in range(1, 6):
            info = log.append_as_leader(numbered(number), leader_epoch=0)
            assert (info.first_offset, info.last_offset) == (2 * number, 2 * number + 1)
            assert info.is_duplicate
        assert read_tree(tmp_path) == before
        with pytest.raises(OutOfOrderSequenceError):
            log.append_as_leader(numbered(0), leader_epoch=0)
    with open_log(tmp_path) as log:  # a snapshot holds one batch
        assert log.append_as_leader(numbered(5), leader_epoch=0).is_duplicate
        with pytest.raises(OutOfOrderSequenceError):
            log.append_as_leader(numbered(4), leader_epoch=0)


@pytest.mark.item("PRD-06", "APP-20", "SEG-06")
def test_an_abort_notes_how_far_committed_reads_got(tmp_path):
    def transactional(producer_id):
        return batch(
            2, producer_id=producer_id, producer_epoch=0, base_sequence=0, is_transactional=True
        )

    with open_log(tmp_path) as log:
        log.append_as_leader(transactional(1), leader_epoch=0)
        log.append_as_leader(transactional(2), leader_epoch=0)
        assert "00000000000000000000.txnindex" not in files_of(tmp_path)
        log.end_transaction(producer_id=2, producer_epoch=0, is_abort=True, leader_epoch=0)
        log.end_transaction(producer_id=1, producer_epoch=0, is_abort=True, leader_epoch=0)
        log.update_high_watermark(5)
        assert (log.first_unstable_offset, log.last_stable_offset) == (0, 0)
        log.update_high_watermark(6)
        assert (log.first_unstable_offset, log.last_stable_offset) == (None, 6)
    name = "00000000000000000000.txnindex"
    aborted = parse_transaction_index(name, 0, (tmp_path / "t-0" / name).read_bytes())
    assert [
        (a.producer_id, a.first_offset, a.last_offset, a.last_stable_offset) for a in aborted
    ] == [
        (2, 2, 4, 0),
        (1, 0, 5, 6),
    ]


# Boundaries.


@pytest.mark.item("APP-20")
def test_the_high_watermark_stays_inside_and_the_log_start_below_it(tmp_path):
    with open_log(tmp_path) as log:
        for epoch in (1, 2):
            log.append_as_leader(batch(5), leader_epoch=epoch)
        assert log.high_watermark == 0
        with pytest.raises(OffsetOutOfRangeError):
            log.maybe_increment_log_start_offset(1)
        assert log.update_high_watermark(99) == 10
        assert log.maybe_increment_log_start_offset(7)
        assert not log.maybe_increment_log_start_offset(6)
        assert (log.log_start_offset, log.recovery_point) == (7, 7)
        assert log.epochs == (EpochEntry(2, 7),)
        assert log.update_high_watermark(3) == 7


# Followers.


@pytest.mark.item("APP-18")
def test_a_follower_keeps_offsets_that_rise_from_the_logs_end(tmp_path):
    def replicated(base_offset, epoch=1):
        return batch(2, base_offset=base_offset, leader_epoch=epoch)

    with open_log(tmp_path, max_message_bytes=10) as log:
        info = log.append_as_follower(
            replicated(4) + replicated(9) + replicated(20, epoch=2), leader_epoch=1
        )
        assert (info.first_offset, info.last_offset, log.log_end_offset) == (4, 10, 11)
        with pytest.raises(UnexpectedAppendOffsetError) as caught:
            log.append_as_follower(replicated(10), leader_epoch=1)
        assert (caught.value.first, caught.value.log_end_offset) == (10, 11)
        with pytest.raises(OffsetsOutOfOrderError):
            log.append_as_follower(replicated(30) + replicated(25), leader_epoch=1)
        assert log.log_end_offset == 11


@pytest.mark.item("APP-19")
def test_a_follower_that_begins_inside_of_a_batch_starts_over_at_that_batch(tmp_path):
    straddling = batch(21, base_offset=90, leader_epoch=1)
    with open_log(tmp_path, log_start_offset=100) as log:
        assert (log.log_start_offset, log.log_end_offset) == (100, 100)
        log.append_records_to_follower(straddling, leader_epoch=1)
        assert (log.log_start_offset, log.log_end_offset) == (90, 111)
        with pytest.raises(UnexpectedAppendOffsetError):
            log.append_records_to_follower(straddling, leader_epoch=1)
    assert "00000000000000000100.log" not in files_of(tmp_path)
    assert "00000000000000000090.log" in files_of(tmp_path)


def test_a_raft_leaders_batches_keep_their_offsets_and_epoch(tmp_path):
    with open_log(tmp_path) as log:
        good = batch(2, base_offset=0, leader_epoch=6)
        log.append_as_leader(good, leader_epoch=6, origin=AppendOrigin.RAFT_LEADER)
        later = batch(2, base_offset=10, leader_epoch=6)
        log.append_as_leader(later, leader_epoch=6, origin=AppendOrigin.RAFT_LEADER)
        assert log.log_end_offset == 12
        other = batch(2, base_offset=12, leader_epoch=5)
        with pytest.raises(InvalidRecordError):
            log.append_as_leader(other, leader_epoch=6, origin=AppendOrigin.RAFT_LEADER)


# Flushing.


@pytest.mark.item("APP-21")
def test_flush_messages_syncs_from_the_recovery_point_on_and_then_moves_it(tmp_path):
    files = NotedFiles(tmp_path / "t-0")
    with open_log(tmp_path, files=files, flush_messages=5) as log:
        log.append_as_leader(batch(4), leader_epoch=0)
        assert (files.synced, log.recovery_point) == ([], 0)
        log.append_as_leader(batch(1), leader_epoch=0)
        names = [f"00000000000000000000{suffix}" for suffix in (".log", ".index", ".timeindex")]
        assert (files.synced, log.recovery_point) == ([*names, "directory"], 5)
        files.notes.clear()
        log.append_as_leader(batch(5), leader_epoch=0)
        assert (files.synced, log.recovery_point) == (names, 10)


@pytest.mark.item("APP-21")
def test_flush_ms_syncs_with_the_first_append_after_it(tmp_path):
    files, clock = NotedFiles(tmp_path / "t-0"), ManualClock(SOME_TIME_MS)
    with open_log(tmp_path, files=files, clock=clock, flush_ms=1_000) as log:
        log.append_as_leader(batch(), leader_epoch=0)
        clock.advance(1_000)
        assert log.recovery_point == 0
        log.append_as_leader(batch(), leader_epoch=0)
        assert log.recovery_point == 2


@pytest.mark.item("APP-21")
def test_a_failed_sync_does_not_move_the_recovery_point(tmp_path):
    files = NotedFiles(tmp_path / "t-0")
    log = open_log(tmp_path, files=files)
    log.append_as_leader(batch(), leader_epoch=0)
    files.fails_at = len(files.notes) + 1
    with pytest.raises(StorageError):
        log.flush()
    assert log.recovery_point == 0
    log.abandon()


@pytest.mark.item("APP-21")
def test_a_roll_and_a_close_sync_what_they_complete(tmp_path):
    files = NotedFiles(tmp_path / "t-0")
    with open_log(tmp_path, files=files) as log:
        log.append_as_leader(batch(2), leader_epoch=0)
        log.roll()
        assert "00000000000000000000.log" in files.synced
        assert log.recovery_point == 2
        log.append_as_leader(batch(2), leader_epoch=0)
        files.notes.clear()
    assert files.synced[0] == "00000000000000000002.log"
    assert files.synced[-1] == "directory"


# Columns.


def test_columns_are_the_batches_that_a_producer_would_have_sent(tmp_path):
    with open_log(tmp_path / "columns") as log:
        info = log.append_columns(columns(10), leader_epoch=3, batch_records=4)
        assert (info.first_offset, info.last_offset) == (0, 9)
    with open_log(tmp_path / "batches") as log:
        for first in (0, 4, 8):
            part = columns(10).rows(first, min(first + 4, 10))
            log.append_as_leader(build_all(part, BatchSettings()).data, leader_epoch=3)
    assert read_tree(tmp_path / "columns") == read_tree(tmp_path / "batches")


def test_no_columns_append_nothing(tmp_path):
    with open_log(tmp_path) as log:
        assert log.append_columns(columns(0)).last_offset == -1
        assert log.log_end_offset == 0


@pytest.mark.item("APP-08", "APP-09", "APP-12")
@pytest.mark.parametrize(
    ("kind", "records", "settings"),
    [
        pytest.param(
            RecordValidationError, columns(3, key=None), {"cleanup_policy": "compact"}, id="no key"
        ),
        pytest.param(
            InvalidTimestampError, columns(3, timestamp=SOME_TIME_MS + 2 * HOUR_MS), {}, id="ahead"
        ),
        pytest.param(RecordTooLargeError, columns(3), {"max_message_bytes": 60}, id="too large"),
        pytest.param(InvalidColumnError, columns(3, timestamp=-2), {}, id="negative timestamp"),
    ],
)
def test_columns_that_a_batch_of_them_would_not_pass_are_refused_whole(
    kind, records, settings, tmp_path
):
    with open_log(tmp_path, **settings) as log:
        with pytest.raises(kind):
            log.append_columns(records)
        assert log.log_end_offset == 0


@pytest.mark.item("APP-13")
def test_columns_roll_as_their_batches_would(tmp_path):
    with open_log(tmp_path, internal_segment_bytes=1_000, index_interval_bytes=200) as log:
        log.append_columns(columns(500), batch_records=7)
        sizes = [size for _, size in log.segments]
    assert len(sizes) > 10
    assert max(sizes) <= 1_000
    assert [b.header["record_count"] for b in batches_of(tmp_path)] == [7] * 71 + [3]


class FixedDice(random.Random):
    def randrange(self, *_):
        return 500


@pytest.mark.item("APP-14")
def test_jitter_lets_columns_roll_as_early_as_batches(tmp_path):
    config = LogConfig.from_topic_overrides({"segment.ms": "1000", "segment.jitter.ms": "999"})
    timestamps = SOME_TIME_MS + np.arange(20) * 100
    key = ByteColumn.of_offsets(np.zeros(20, np.uint8), np.arange(21))
    with UnifiedLog.open(tmp_path / "t-0", config=config, dice=FixedDice()) as log:
        log.append_columns(
            NewRecords.of(keys=key, values=key, timestamps=timestamps), batch_records=1
        )
        assert [base for base, _ in log.segments] == [0, 6, 12, 18]


@pytest.mark.item("APP-13")
def test_a_segment_is_rolled_when_its_time_index_has_room_for_its_last_entry_only(tmp_path):
    with open_log(tmp_path, segment_index_bytes=48, index_interval_bytes=1) as log:
        for number in range(20):
            log.append_as_leader(batch(timestamp=SOME_TIME_MS + number), leader_epoch=0)
        bases = [base for base, _ in log.segments]
    assert len(bases) > 2
    for base, following in itertools.pairwise(bases):
        name = f"{base:020d}.timeindex"
        entries = np.frombuffer((tmp_path / "t-0" / name).read_bytes(), TIME_INDEX_ENTRY)
        assert len(entries) == 48 // TIME_INDEX_ENTRY.itemsize - 1
        assert entries["timestamp"][-1] == SOME_TIME_MS + following - 1


def test_columns_of_a_producer_go_on_with_its_sequence(tmp_path):
    producer = ProducerSettings(producer_id=4, producer_epoch=1, is_transactional=True)
    with open_log(tmp_path) as log:
        log.append_columns(columns(10), producer=producer, batch_records=4)
        log.append_columns(columns(3), producer=producer)
        assert log.producers[4].last_sequence == 12
        assert log.first_unstable_offset == 0
        for sequence, count in ((0, 4), (4, 4), (8, 2), (10, 3)):
            fields = {"producer_id": 4, "producer_epoch": 1, "is_transactional": True}
            again = batch(count, base_sequence=sequence, **fields)
            assert log.append_as_leader(again, leader_epoch=0).is_duplicate
        with pytest.raises(OutOfOrderSequenceError):
            log.append_columns(columns(1), producer=dataclasses.replace(producer, base_sequence=20))
        log.end_transaction(producer_id=4, producer_epoch=1, is_abort=False, leader_epoch=0)
    assert [b.header["base_sequence"] for b in batches_of(tmp_path)] == [0, 4, 8, 10, -1]


def test_a_large_column_append_spans_blocks(tmp_path):
    count = 40_000
    data = np.random.default_rng(5).integers(0, 255, count * 400, np.uint8, endpoint=True)
    records = NewRecords.of(
        keys=ByteColumn.of_offsets(data, np.arange(count + 1) * 8),
        values=ByteColumn.of_offsets(data, np.arange(count + 1) * 400),
        timestamps=np.full(count, SOME_TIME_MS),
    )
    with open_log(tmp_path, segment_bytes=4_194_304) as log:
        log.append_columns(records, batch_bytes=100_000)
        assert log.log_end_offset == count
        assert len(log.segments) == 5
    with open_log(tmp_path) as log:
        assert log.log_end_offset == count


def hostile(rng):
    """Return an append of any format with some bytes changed, its checksum often right."""
    magic, codec = rng.choice((0, 1, 2, 2, 2)), rng.choice((Codec.NONE, Codec.GZIP, Codec.LZ4))
    built = build_all(columns(rng.randrange(1, 4)), BatchSettings(magic=magic, codec=codec))
    data = bytearray(built.data.tobytes())
    for _ in range(rng.choice((1, 1, 2, 5))):
        data[rng.randrange(len(data))] = rng.choice((0, 1, 127, 128, 255, rng.randrange(256)))
    if magic == 2 and len(data) >= 61 and rng.random() < 0.8:
        return with_valid_crc(bytes(data))
    if magic < 2 and codec is not Codec.NONE and rng.random() < 0.8:
        data[12:16] = zlib.crc32(data[16:]).to_bytes(4, "big")
    return bytes(data)


@pytest.mark.thorough
def test_hostile_bytes_are_appended_or_refused_and_the_log_stays_whole(tmp_path):
    rng = random.Random(11)
    appended = 0
    with open_log(tmp_path, index_interval_bytes=0, internal_segment_bytes=2_000) as log:
        for _ in range(600):
            data, before = hostile(rng), log.log_end_offset
            with contextlib.suppress(PylogError):
                if rng.random() < 0.7:
                    log.append_as_leader(data, leader_epoch=0)
                else:
                    log.append_as_follower(data, leader_epoch=2**31 - 1)
            appended += log.log_end_offset > before
    assert appended > 20
    with open_log(tmp_path) as again:
        assert again.log_end_offset == log.log_end_offset


# Batches that were built elsewhere.


def built(records, *, log, codec=Codec.NONE, base_offset=0):
    """Return batches as a task of a write builds them for this log."""
    settings = batch_settings(
        log.config,
        source=codec,
        base_offset=base_offset,
        leader_epoch=0,
        now_ms=SOME_TIME_MS,
        producer=None,
        next_sequence=0,
    ).limited(max_bytes=None, max_records=7)
    return build_all(records, settings).data


@pytest.mark.parametrize("codec", [Codec.NONE, Codec.ZSTD], ids=lambda codec: codec.name)
@pytest.mark.parametrize("time", ["CreateTime", "LogAppendTime"])
def test_batches_built_elsewhere_are_appended_as_columns_are(tmp_path, codec, time):
    settings = {
        "internal_segment_bytes": 2000,
        "index_interval_bytes": 100,
        "message_timestamp_type": time,
    }
    for way in ("columns", "batches"):
        with open_log(tmp_path / way, **settings) as log:
            for count in (500, 40):
                records = columns(count)
                if way == "columns":
                    log.append_columns(records, codec=codec, batch_records=7)
                    continue
                # Where they begin does not count.
                data = built(records, log=log, codec=codec, base_offset=count * 3)
                info = log.append_batches(data)
                assert (info.last_offset, info.valid_bytes) == (log.log_end_offset - 1, data.size)
                assert info.first_offset == log.log_end_offset - count
            assert len(log.segments) > 1
    assert read_tree(tmp_path / "batches") == read_tree(tmp_path / "columns")


def test_what_is_no_run_of_whole_batches_is_not_appended(tmp_path):
    with open_log(tmp_path, max_message_bytes=4000) as log:
        good = built(columns(20), log=log)
        first = build_all(columns(7), BatchSettings()).data.size
        apart = np.concatenate([built(columns(7), log=log), built(columns(7), log=log)])
        broken = good.copy()
        broken[first + 70] ^= 1
        appended_time = build_all(
            columns(1), BatchSettings(timestamp_type=TimestampType.LOG_APPEND_TIME)
        ).data
        produced = build_all(
            columns(1), BatchSettings(producer_id=1, producer_epoch=0, base_sequence=0)
        ).data
        legacy = build_all(columns(1), BatchSettings(magic=1)).data
        large = build_all(columns(900), BatchSettings()).data
        for data, kind, words in [
            (good[:-1], InvalidAppendError, "expected whole batches"),
            (good[:0], InvalidAppendError, "expected whole batches"),
            (apart, OffsetsOutOfOrderError, "does not rise"),
            (built(columns(3), log=log)[:], None, ""),
            (np.concatenate([good, built(columns(7), log=log, base_offset=21)]),
             InvalidAppendError, f"that at byte {good.size}"),
            (broken, CorruptRecordError, "CRC"),
            (appended_time, InvalidAppendError, "timestamp type"),
            (produced, InvalidAppendError, "without producers"),
            (legacy, InvalidAppendError, "v2"),
            (large, RecordTooLargeError, "max.message.bytes, 4000"),
        ]:  # fmt: skip
            before = log.log_end_offset
            if kind is None:
                log.append_batches(data)
                continue
            with pytest.raises(kind, match=words):
                log.append_batches(data.copy())
            assert log.log_end_offset == before
