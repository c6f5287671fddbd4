"""Which records, batches and markers a round keeps: each rule on a log made for it."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from storage_core.config import CleanerConfig, LogConfig
from storage_core.errors import InvalidRecordError
from storage_core.formats.batch_v2 import Codec, TimestampType
from storage_core.formats.control import ControlType
from storage_core.maintenance.compaction import pass_one
from storage_core.maintenance.compaction.index import KeptRecords
from storage_core.maintenance.compaction.plan import CleanRequest
from storage_core.records import payload as payload_module
from storage_core.records.batch_table import BatchNotes, BatchTable
from storage_core.records.payload import DEFAULT_LIMITS, Payload, open_batches
from storage_core.records.reader import Window
from tests.kit.builders import (
    SOME_TIME_MS,
    BatchSpec,
    RecordSpec,
    encode_batch,
    encode_records,
    end_txn_marker,
    leader_change_batch,
    segment_bytes,
    some_batches,
)
from tests.kit.compare import Exactness, compare_partitions, read_tree
from tests.kit.damage import with_lying_count
from tests.kit.decode import DecodedBatch, decode_segment
from tests.kit.directories import AbortedTxnSpec, ProducerSpec, SegmentSpec, write_partition
from tests.kit.golden_cleaning import Way, clean_spread
from tests.kit.legacy import LegacyMessage, LegacySet, encode_entry
from tests.kit.one_partition import clean_partition
from tests.kit.partition_views import batches_in
from tests.storage_core.maintenance.compaction.hand_made import (
    NOW,
    RETENTION_MS,
    P,
    Q,
    batch,
    clean,
    cleaning,
    produced,
    record,
    records_in,
    write_log,
)
from tests.storage_core.records.memory_file import only_window_of, windows_of

ATTRIBUTES_KEPT = 0x3F
HORIZON_BIT = 0x40
LATER = NOW + RETENTION_MS


def cleaner_for(*, keys: int) -> CleanerConfig:
    return CleanerConfig(dedupe_buffer_bytes=keys * 24, load_factor=1.0)


def offsets_in(directory):
    return [offset for offset, _, _ in records_in(directory)]


def horizons_in(directory):
    """(base offset, delete horizon) of the batches that have one."""
    return [
        (each.base_offset, each.header["base_timestamp"])
        for each in batches_in(directory)
        if each.header["attributes"] & HORIZON_BIT
    ]


# --- records


@pytest.mark.item("CMP-18")
def test_the_newest_record_of_every_key_stays(tmp_path):
    directory = write_log(
        tmp_path / "t-0",
        [batch(0, record(b"a"), record(b"b"), record(b"a")), batch(3, record(b"c"))],
        [batch(4, record(b"b", b"new"), record(b"", b"empty key"))],
    )
    clean(directory)
    assert records_in(directory) == [
        (2, b"a", b"v"),
        (3, b"c", b"v"),
        (4, b"b", b"new"),
        (5, b"", b"empty key"),
    ]


@pytest.mark.item("CMP-18")
def test_a_clean_record_goes_when_its_key_is_in_the_dirty_section(tmp_path):
    directory = write_log(
        tmp_path / "t-0",
        [batch(0, record(b"a"), record(b"b"), record(b"a", b"not looked at in the clean part"))],
        [batch(3, record(b"b"))],
    )
    clean(directory, cleaner_offset=3)
    assert offsets_in(directory) == [0, 2, 3]


@pytest.mark.item("CMP-18")
def test_a_clean_record_beyond_what_the_header_says_is_judged_by_its_own_offset(tmp_path):
    lying = batch(0, record(b"a"), record(b"a", b"40", offset_delta=40), last_offset_delta=1)
    directory = write_log(tmp_path / "t-0", [lying], [batch(3, record(b"a"))])
    clean(directory, cleaner_offset=2)
    assert offsets_in(directory) == [40, 3]


@pytest.mark.item("CMP-18", "CMP-19")
def test_records_above_the_end_of_a_full_map_stay_those_without_a_key_too(tmp_path):
    records = [record(b"a"), record(None), record(b"a"), record(b"b"), record(None), record(b"a")]
    directory = write_log(tmp_path / "t-0", [batch(0, *records)])
    result = clean(directory, cleaner=cleaner_for(keys=2))
    # a and b fill the map at offset 3; the next keyed record ends the round before it.
    assert result.next_offset == 4
    assert offsets_in(directory) == [2, 3, 4, 5]
    assert result.invalid_messages_read == 1


@pytest.mark.item("CMP-15")
@pytest.mark.parametrize(
    ("keys", "next_offset"),
    [
        pytest.param(1, 1, id="a full map ends the round even before a key that it has"),
        pytest.param(2, 3, id="in mid-batch"),
        pytest.param(3, 7, id="where a batch ended"),
        pytest.param(4, 8, id="not full before the end"),
    ],
)
def test_a_full_map_ends_the_round_before_the_next_record_with_a_key(tmp_path, keys, next_offset):
    directory = write_log(
        tmp_path / "t-0",
        [batch(0, record(b"a"), record(b"a"), record(b"b"), record(b"b")), batch(4, record(b"c"))],
        [batch(5, record(None), record(None)), batch(7, record(b"d"))],
    )
    result = clean(directory, cleaner=cleaner_for(keys=keys))
    assert result.next_offset == next_offset
    assert result.cleaner_checkpoint == next_offset


@pytest.mark.item("CMP-19")
def test_records_without_a_key_are_dropped_and_counted(tmp_path):
    directory = write_log(
        tmp_path / "t-0",
        [batch(0, record(None), record(b"a"), record(None, None))],
        [batch(3, record(None))],
    )
    assert clean(directory).invalid_messages_read == 3
    assert records_in(directory) == [(1, b"a", b"v")]


@pytest.mark.item("CMP-19")
def test_what_stays_keeps_timestamp_key_value_and_headers(tmp_path):
    headers = (("h", b"1"), ("h", None), ("", b""))
    kept = [
        record(b"a", b"first", timestamp=NOW - 5, headers=headers),
        record(b"b", b"second", timestamp=NOW - 9),
    ]
    gone = record(b"a", b"old", timestamp=NOW - 7)
    directory = write_log(tmp_path / "t-0", [batch(0, gone, *kept)])
    before = batches_in(directory)[0].records
    clean(directory)
    assert batches_in(directory)[0].records == before[1:]


# --- tombstones


@pytest.mark.item("CMP-20", "CMP-22")
def test_a_tombstone_gets_a_horizon_once_and_goes_when_that_has_come(tmp_path):
    directory = write_log(tmp_path / "t-0", [batch(0, record(b"a"), record(b"a", None))])
    clean(directory)
    assert records_in(directory) == [(1, b"a", None)]
    assert horizons_in(directory) == [(0, LATER)]
    for now_ms in (NOW + 1, LATER - 1):
        clean(directory, now_ms=now_ms, first_dirty_offset=0)
        assert horizons_in(directory) == [(0, LATER)]
    clean(directory, now_ms=LATER, first_dirty_offset=0)
    assert records_in(directory) == []


@pytest.mark.item("CMP-22")
def test_a_batch_without_a_tombstone_gets_no_horizon(tmp_path):
    directory = write_log(
        tmp_path / "t-0",
        [batch(0, record(b"a", None), record(b"b")), batch(2, record(b"a"), record(b"c"))],
    )
    clean(directory)
    assert offsets_in(directory) == [1, 2, 3]
    assert horizons_in(directory) == []


@pytest.mark.item("CMP-22")
def test_a_horizon_stays_when_the_last_tombstone_went(tmp_path):
    directory = write_log(
        tmp_path / "t-0",
        [batch(0, record(b"a", None), record(b"b"), delete_horizon_ms=NOW)],
    )
    clean(directory)
    assert records_in(directory) == [(1, b"b", b"v")]
    assert horizons_in(directory) == [(0, NOW)]


# --- batches


@pytest.mark.item("CMP-29")
@pytest.mark.parametrize("codec", Codec)
def test_a_batch_that_loses_nothing_is_copied_byte_for_byte(tmp_path, codec):
    whole = batch(0, record(b"a", b"x" * 500), record(b"b"), codec=codec, leader_epoch=3)
    directory = write_log(tmp_path / "t-0", [whole, batch(2, record(b"c"), record(b"c"))])
    clean(directory)
    log = (directory / f"{0:020d}.log").read_bytes()
    assert log.startswith(encode_batch(whole))


@pytest.mark.item("CMP-30")
@pytest.mark.parametrize("codec", Codec)
@pytest.mark.parametrize("timestamp_type", TimestampType)
def test_a_rebuilt_batch_keeps_its_identity(tmp_path, codec, timestamp_type):
    is_append_time = timestamp_type is TimestampType.LOG_APPEND_TIME
    source = produced(
        10,
        record(b"a", timestamp=NOW - 9),
        record(b"b", timestamp=NOW - 7),
        record(b"c", timestamp=NOW - 8),
        record(b"d", timestamp=NOW - 1),
        codec=codec,
        timestamp_type=timestamp_type,
        max_timestamp=NOW - 3 if is_append_time else None,
        leader_epoch=7,
        producer_epoch=2,
        last_offset_delta=6,
    )
    later = batch(17, record(b"a"), record(b"d"))
    directory = write_log(tmp_path / "t-0", [source, later])
    clean(directory)
    header = dict(batches_in(directory)[0].header)
    del header["crc"], header["batch_length"]
    assert header == {
        "base_offset": 10,
        "partition_leader_epoch": 7,
        "magic": 2,
        "attributes": codec | (8 if is_append_time else 0),
        "last_offset_delta": 6,
        "base_timestamp": NOW - 3 if is_append_time else NOW - 7,
        "max_timestamp": NOW - 3 if is_append_time else NOW - 7,
        "producer_id": P,
        "producer_epoch": 2,
        "base_sequence": 10,
        "record_count": 2,
    }
    assert offsets_in(directory)[:2] == [11, 12]


@pytest.mark.item("CMP-23", "CMP-24", "CMP-32")
def test_the_last_batch_of_a_live_producer_stays_as_a_bare_header(tmp_path):
    lost = produced(0, record(b"a"), record(b"b"), codec=Codec.GZIP, leader_epoch=4)
    log = [lost, batch(2, record(b"a"), record(b"b"))]
    live = ProducerSpec(producer_id=P, last_offset=1, last_sequence=1, last_timestamp=NOW)
    directory = write_log(tmp_path / "t-0", log, producers=[live])
    clean(directory)
    emptied = batches_in(directory)[0]
    header = dict(emptied.header)
    del header["crc"]
    assert (emptied.size, emptied.crc_ok) == (61, True)
    assert header == {
        "base_offset": 0,
        "batch_length": 49,
        "partition_leader_epoch": 4,
        "magic": 2,
        "attributes": 0,
        "last_offset_delta": 1,
        "base_timestamp": -1,
        "max_timestamp": NOW,
        "producer_id": P,
        "producer_epoch": 0,
        "base_sequence": 0,
        "record_count": 0,
    }


@pytest.mark.item("CMP-24")
@pytest.mark.parametrize(
    ("age_ms", "stays"), [(86_399_999, True), (86_400_000, False)], ids=["alive", "expired"]
)
def test_an_expired_producer_keeps_no_batch(tmp_path, age_ms, stays):
    log = [produced(0, record(b"a")), batch(1, record(b"a"))]
    known = ProducerSpec(producer_id=P, last_offset=0, last_sequence=0, last_timestamp=NOW)
    directory = write_log(tmp_path / "t-0", log, producers=[known])
    clean(directory, now_ms=NOW + age_ms)
    bases = [each.base_offset for each in batches_in(directory)]
    assert bases == ([0, 1] if stays else [1])


@pytest.mark.item("CMP-24")
@pytest.mark.parametrize(("epoch", "stays"), [(0, False), (1, True)], ids=["older", "current"])
def test_a_producer_without_data_keeps_markers_of_its_epoch(tmp_path, epoch, stays):
    marker = end_txn_marker(
        base_offset=0, producer_id=P, producer_epoch=epoch, delete_horizon_ms=NOW
    )
    known = ProducerSpec(producer_id=P, producer_epoch=1, last_timestamp=NOW)
    directory = write_log(tmp_path / "t-0", [marker, batch(1, record(b"a"))], producers=[known])
    clean(directory)
    found = [(each.base_offset, each.size) for each in batches_in(directory)]
    assert ((0, 61) in found) == stays


@pytest.mark.item("CMP-23")
@pytest.mark.parametrize("high_watermark", [1, 2, 3])
def test_the_batch_that_ends_at_the_high_watermark_stays_empty(tmp_path, high_watermark):
    directory = write_log(
        tmp_path / "t-0", [batch(i, record(b"a")) for i in range(4)], [batch(4, record(b"a"))]
    )
    clean(directory, high_watermark=high_watermark, first_dirty_offset=0)
    found = [(each.base_offset, each.header["record_count"]) for each in batches_in(directory)]
    assert found == [(high_watermark - 1, 0), (4, 1)]


# --- transactions


def in_txn(base_offset, *records, **fields):
    return produced(base_offset, *records, is_transactional=True, **fields)


def marker(base_offset, kind, producer_id=P, **fields):
    return end_txn_marker(
        base_offset=base_offset,
        producer_id=producer_id,
        producer_epoch=0,
        control_type=kind,
        timestamp=NOW,
        **fields,
    )


def aborted(first, last, producer_id=P):
    return AbortedTxnSpec(
        producer_id=producer_id, first_offset=first, last_offset=last, last_stable_offset=last + 1
    )


@pytest.mark.item("CMP-25")
def test_a_key_whose_newest_value_was_aborted_keeps_the_committed_one(tmp_path):
    log = [
        batch(0, record(b"a", b"committed"), record(b"b", b"committed")),
        in_txn(2, record(b"a", b"aborted"), record(b"x", b"aborted")),
        marker(4, ControlType.ABORT),
        in_txn(5, record(b"b", b"newer")),
        marker(6, ControlType.COMMIT),
    ]
    directory = write_log(tmp_path / "t-0", log, aborted={0: [aborted(2, 4)]})
    clean(directory)
    data = [(offset, key) for offset, key, value in records_in(directory) if len(value) > 6]
    assert data == [(0, b"a")]
    assert (5, b"b", b"newer") in records_in(directory)


@pytest.mark.item("CMP-25")
def test_an_aborted_transaction_over_two_segments_goes_whole(tmp_path):
    directory = write_log(
        tmp_path / "t-0",
        [batch(0, record(b"a")), in_txn(1, record(b"a")), in_txn(2, record(b"b"))],
        [in_txn(3, record(b"c")), in_txn(4, record(b"a"), producer_id=Q)],
        [marker(5, ControlType.ABORT), marker(6, ControlType.COMMIT, Q)],
        aborted={2: [aborted(1, 5)]},
    )
    clean(directory)
    assert offsets_in(directory) == [4, 5, 6]


@pytest.mark.item("CMP-25", "CMP-36")
@pytest.mark.parametrize("way", Way)
def test_a_transaction_over_two_groups_below_the_dirty_section_goes_the_same_spread(tmp_path, way):
    """What passes the marker's group has to know that the group before it had the data."""
    log = [
        [batch(0, record(b"a")), in_txn(1, record(b"b", b"x" * 200))],
        [marker(2, ControlType.ABORT), batch(3, record(b"c", b"x" * 200))],
        [batch(4, record(b"d"))],
    ]
    spread, whole = (
        write_log(tmp_path / place / "t-0", *log, aborted={1: [aborted(1, 2)]})
        for place in ("spread", "whole")
    )
    overrides = {"internal.segment.bytes": 400}
    round_ = cleaning(overrides=overrides, first_dirty_offset=4)
    assert round_.clean(whole).segments == 4
    clean_spread(spread, round_, way=way)
    assert offsets_in(whole) == [0, 2, 3, 4]
    assert offsets_in(spread) == offsets_in(whole)
    assert compare_partitions(read_tree(whole), read_tree(spread), Exactness.BYTES) == []


@pytest.mark.item("CMP-26")
def test_an_aborted_transactions_entry_lasts_as_long_as_its_data(tmp_path):
    log = [in_txn(0, record(b"a")), marker(1, ControlType.ABORT), batch(2, record(b"z"))]
    directory = write_log(tmp_path / "t-0", log, aborted={0: [aborted(0, 1)]})
    txn_index = directory / f"{0:020d}.txnindex"
    before = txn_index.read_bytes()
    clean(directory)
    assert txn_index.read_bytes() == before
    clean(directory, first_dirty_offset=0)
    assert not txn_index.exists()


@pytest.mark.item("CMP-27")
@pytest.mark.parametrize("kind", [ControlType.COMMIT, ControlType.ABORT], ids=str)
def test_a_marker_goes_in_the_third_round_at_the_earliest(tmp_path, kind):
    """First its data go, then it gets a horizon, then that comes."""
    log = [in_txn(0, record(b"a")), marker(1, kind), batch(2, record(b"a"))]
    entries = {0: [aborted(0, 1)]} if kind is ControlType.ABORT else {}
    directory = write_log(tmp_path / "t-0", log, aborted=entries)
    clean(directory)
    assert (offsets_in(directory), horizons_in(directory)) == ([1, 2], [])
    clean(directory, now_ms=NOW + 5, first_dirty_offset=0)
    assert (offsets_in(directory), horizons_in(directory)) == ([1, 2], [(1, LATER + 5)])
    clean(directory, now_ms=LATER + 4, first_dirty_offset=0)
    assert offsets_in(directory) == [1, 2]
    clean(directory, now_ms=LATER + 5, first_dirty_offset=0)
    assert offsets_in(directory) == [2]


@pytest.mark.item("CMP-23")
def test_a_spent_marker_that_is_a_producers_last_word_stays_empty(tmp_path):
    spent = marker(0, ControlType.COMMIT, delete_horizon_ms=NOW)
    known = ProducerSpec(producer_id=P, producer_epoch=0, last_timestamp=NOW)
    directory = write_log(tmp_path / "t-0", [spent, batch(1, record(b"a"))], producers=[known])
    clean(directory)
    emptied = batches_in(directory)[0]
    assert (emptied.base_offset, emptied.size) == (0, 61)
    assert emptied.header["attributes"] & ATTRIBUTES_KEPT == 0x30


@pytest.mark.item("CMP-28")
def test_a_leader_change_stays_and_an_emptied_marker_without_a_producer_goes(tmp_path):
    log = [
        leader_change_batch(base_offset=0, leader_epoch=1),
        batch(1, producer_id=P, producer_epoch=0, is_transactional=True, is_control=True),
        batch(2, record(b"a")),
    ]
    directory = write_log(tmp_path / "t-0", log)
    for round_number in range(3):
        clean(directory, now_ms=NOW + round_number * RETENTION_MS, first_dirty_offset=0)
    assert [each.base_offset for each in batches_in(directory)] == [0, 2]


NOW_MS = SOME_TIME_MS + 1000
TOMBSTONE = BatchSpec(records=(RecordSpec(key=b"k", value=None),))


def cleaned_batches(directory: Path, *, delete_retention_ms: int) -> list[DecodedBatch]:
    """Clean a log whose first segment is one tombstone; return what is left of that segment."""
    active = BatchSpec(records=(RecordSpec(key=b"other"),), base_offset=1)
    segments = [
        SegmentSpec(base_offset=0, batches=[TOMBSTONE]),
        SegmentSpec(base_offset=1, batches=[active], producers=()),
    ]
    write_partition(directory, segments)
    clean_partition(
        directory,
        config=LogConfig.from_topic_overrides(
            {
                "cleanup.policy": "compact",
                "min.cleanable.dirty.ratio": "0",
                "delete.retention.ms": str(delete_retention_ms),
            }
        ),
        cleaner=CleanerConfig(),
        request=CleanRequest(now_ms=NOW_MS),
    )
    return decode_segment((directory / f"{0:020d}.log").read_bytes())[0]


@pytest.mark.parametrize(
    "delete_retention_ms", [0, 1, 86_400_000, 2**63 - 1 - NOW_MS], ids=lambda ms: f"{ms} ms"
)
def test_a_horizon_that_fits_64_bits_is_set(tmp_path, delete_retention_ms):
    (batch,) = cleaned_batches(tmp_path / "t-0", delete_retention_ms=delete_retention_ms)
    assert batch.header["attributes"] & 0x40
    assert batch.header["base_timestamp"] == NOW_MS + delete_retention_ms
    assert batch.records[0].timestamp == SOME_TIME_MS


@pytest.mark.parametrize("delete_retention_ms", [2**63 - NOW_MS, 2**63 - 1])
def test_tombstones_that_are_to_stay_for_ever_get_no_horizon(tmp_path, delete_retention_ms):
    # Kafka's sum wraps to a negative number, which it takes for none: the batch stays as it is.
    cleaned_batches(tmp_path / "t-0", delete_retention_ms=delete_retention_ms)
    log = tmp_path / "t-0" / f"{0:020d}.log"
    assert log.read_bytes() == encode_batch(TOMBSTONE)


ROOM = 1 << 20
SPECS = some_batches(count=4, records=3, codec=Codec.ZSTD)
SIZE = sum(len(encode_records(spec)) for spec in SPECS)


def opened(window: Window, wanted: list[bool] | None = None) -> Payload:
    chosen = np.ones(len(window.batches), bool) if wanted is None else np.array(wanted)
    return open_batches(window, chosen, 0, DEFAULT_LIMITS)


def taken(kept: KeptRecords, window: Window, wanted: list[bool] | None = None) -> Payload | None:
    chosen = np.ones(len(window.batches), bool) if wanted is None else np.array(wanted)
    return kept.take(window, chosen, BatchNotes.empty(len(window.batches)))


def test_a_window_that_was_kept_is_taken_with_its_records():
    data = segment_bytes(SPECS)
    kept = KeptRecords(ROOM)
    assert kept.put(opened(only_window_of(data)))
    window = only_window_of(data)
    payload = taken(kept, window)
    assert payload.window is window
    assert (payload.first_row, payload.end_row) == (0, 4)
    starts, ends = payload.notes.records_start, payload.notes.records_end
    records = [payload.arena[starts[row] : ends[row]].tobytes() for row in range(4)]
    assert records == [encode_records(spec) for spec in SPECS]
    assert taken(kept, window) is None


def test_a_window_that_leaves_batches_out_is_taken_with_the_records_of_the_others():
    kept = KeptRecords(ROOM)
    assert kept.put(opened(only_window_of(segment_bytes(SPECS))))
    whole = only_window_of(segment_bytes(SPECS))
    window = replace(whole, batches=BatchTable(whole.batches.columns[:, [0, 2]]))
    payload = taken(kept, window)
    starts, ends = payload.notes.records_start, payload.notes.records_end
    records = [payload.arena[starts[row] : ends[row]].tobytes() for row in range(2)]
    assert records == [encode_records(SPECS[0]), encode_records(SPECS[2])]


def test_a_batch_that_was_not_opened_is_missing_and_one_without_a_codec_is_not():
    plain = some_batches(count=1)[0]
    data = segment_bytes([*SPECS, plain])
    kept = KeptRecords(ROOM)
    assert kept.put(opened(only_window_of(data), [True, True, False, True, False]))
    window = only_window_of(data)
    assert taken(kept, window) is None
    assert taken(kept, window, [True, False, False, True, True]) is not None


def test_another_window_is_not_taken_for_it():
    kept = KeptRecords(ROOM)
    assert kept.put(opened(only_window_of(segment_bytes(SPECS))))
    assert taken(kept, only_window_of(segment_bytes(SPECS[:3]))) is None
    *_, second = windows_of(segment_bytes(SPECS), window_bytes=len(segment_bytes(SPECS[:2])))
    assert taken(kept, second) is None
    bigger = some_batches(count=4, records=5, codec=Codec.ZSTD)
    assert taken(kept, only_window_of(segment_bytes(bigger))) is None


def test_the_first_ones_go_where_there_is_no_room_for_all():
    data = segment_bytes(SPECS * 2)
    half = len(data) // 2
    kept = KeptRecords(2 * SIZE - 1)
    for window in windows_of(data, window_bytes=half):
        assert kept.put(opened(window))
    results = [taken(kept, window) is not None for window in windows_of(data, window_bytes=half)]
    assert results == [False, True]
    assert not KeptRecords(SIZE - 1).put(opened(only_window_of(segment_bytes(SPECS))))
    assert not KeptRecords().put(opened(only_window_of(segment_bytes(SPECS))))


def test_only_whole_windows_of_format_v2_are_kept(monkeypatch):
    old = encode_entry(LegacySet(messages=(LegacyMessage(offset=0, key=b"k"),)))
    assert not KeptRecords(ROOM).put(opened(only_window_of(old + segment_bytes(SPECS))))
    assert not KeptRecords(ROOM).put(opened(only_window_of(segment_bytes(some_batches(count=2)))))
    monkeypatch.setattr(payload_module, "ARENA_BUDGET_BYTES", SIZE // 2)
    assert not KeptRecords(ROOM).put(opened(only_window_of(segment_bytes(SPECS))))


def test_a_count_that_cannot_be_true_is_refused_here_too():
    plain = segment_bytes(some_batches(count=1))
    data = segment_bytes(SPECS) + with_lying_count(plain, 100)
    kept = KeptRecords(ROOM)
    assert kept.put(opened(only_window_of(data), [True] * 4 + [False]))
    with pytest.raises(InvalidRecordError, match="counts 100 records"):
        taken(kept, only_window_of(data))


@pytest.mark.parametrize("room", [0, 150, ROOM], ids=["nothing", "a part", "all"])
def test_a_round_gives_the_same_whatever_was_kept(tmp_path: Path, monkeypatch, room: int):
    results = []
    for name, limit in (("one", 0), ("other", room)):
        monkeypatch.setattr(pass_one, "KEPT_BYTES", limit)
        directory = write_log(
            tmp_path / name / "t-0",
            [
                batch(0, record(b"a"), record(b"b"), codec=Codec.ZSTD),
                batch(2, record(b"b"), record(b"c"), codec=Codec.LZ4),
            ],
            [batch(4, record(b"c"), record(b"d"), codec=Codec.GZIP)],
            [batch(6, record(b"e"))],
        )
        clean(directory)
        results.append(read_tree(directory))
    assert results[0] == results[1]


def test_pass_two_decompresses_nothing_again(tmp_path: Path, monkeypatch):
    opened_rows: list[int] = []
    original = payload_module.decompress_blocks

    def counted(codec: Codec, blocks, *rest, **limits: int) -> int:
        opened_rows.append(len(blocks.start))
        return original(codec, blocks, *rest, **limits)

    monkeypatch.setattr(payload_module, "decompress_blocks", counted)
    directory = write_log(
        tmp_path / "t-0",
        [batch(0, record(b"a"), record(b"b"), codec=Codec.LZ4)],
        [batch(2, record(b"b"))],
        [batch(3, record(b"c"))],
    )
    result = clean(directory)
    assert result.messages_written == 3
    assert opened_rows == [1]


@pytest.mark.parametrize("threads", [1, 2, 4])
def test_pass_two_finds_the_windows_of_pass_one_with_any_number_of_threads(
    tmp_path: Path, monkeypatch, threads: int
):
    asked: list[bool] = []
    original = KeptRecords.take

    def told(self: KeptRecords, *arguments) -> Payload | None:
        payload = original(self, *arguments)
        asked.append(payload is not None)
        return payload

    monkeypatch.setattr(KeptRecords, "take", told)
    batches = [
        batch(3 * n, *[record(b"%d" % (n % 9), b"%d" % i) for i in range(3)], codec=Codec.ZSTD)
        for n in range(60)
    ]
    directory = write_log(tmp_path / "t-0", batches, [batch(180, record(b"x"), codec=Codec.ZSTD)])
    cleaning(cleaner=CleanerConfig(window_bytes=600)).clean(directory, threads=threads)
    assert len(asked) > 5
    assert all(asked)
