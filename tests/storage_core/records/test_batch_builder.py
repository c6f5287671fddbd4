"""New records as columns, and their batches against batches built byte by byte."""

import dataclasses

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from storage_core.errors import InvalidColumnError, UnsupportedForMessageFormatError
from storage_core.formats.batch_v2 import Codec, TimestampType
from storage_core.kernels import batch_scan
from storage_core.records import batch_builder
from storage_core.records.batch_builder import (
    BatchSettings,
    build_all,
    build_batches,
    end_txn_marker,
)
from storage_core.records.batch_table import BatchTable
from storage_core.records.new_records import ByteColumn, HeaderColumn, NewRecords
from tests.kit import builders
from tests.kit.builders import SOME_TIME_MS, BatchSpec, RecordSpec, encode_batch
from tests.kit.strategies import segments
from tests.storage_core.records.new_columns import HEADERS, columns_of, table_of

RECORDS = [
    RecordSpec(
        key=None if i % 5 == 0 else b"key-%d" % i,
        value=None if i % 7 == 0 else b"v" * (i * i),
        timestamp=SOME_TIME_MS + (i * 37) % 100 - 50,
        headers=(("größe", b"1"), ("", None)) if i % 3 == 0 else (),
    )
    for i in range(50)
]


@pytest.mark.parametrize("codec", Codec)
def test_columns_become_the_batches_of_the_slow_builder(codec):
    built = build_all(
        columns_of(RECORDS),
        BatchSettings(codec=codec, base_offset=7, leader_epoch=3, max_batch_records=20),
    )
    expected = b"".join(
        encode_batch(
            BatchSpec(
                records=tuple(RECORDS[first : first + 20]),
                base_offset=7 + first,
                codec=codec,
                leader_epoch=3,
            )
        )
        for first in (0, 20, 40)
    )
    assert built.data.tobytes() == expected


@given(segments())
def test_any_records_become_the_bytes_of_the_slow_builder(specs):
    for spec in specs:
        if not spec.records or spec.is_control or spec.delete_horizon_ms is not None:
            continue
        spec = dataclasses.replace(  # noqa: PLW2901
            spec,
            codec=Codec.NONE,
            base_timestamp=None,
            last_offset_delta=None,
            record_count=None,
            magic=2,
            max_timestamp=SOME_TIME_MS
            if spec.timestamp_type is TimestampType.LOG_APPEND_TIME
            else None,
        )
        if min(record.timestamp for record in spec.records) < -1:
            continue
        first = spec.base_offset + spec.offset_deltas[0]
        deltas = np.array(spec.offset_deltas, np.int64)
        try:
            settings = BatchSettings(
                offsets=spec.base_offset + deltas,
                leader_epoch=spec.leader_epoch,
                timestamp_type=spec.timestamp_type,
                append_time_ms=SOME_TIME_MS,
                producer_id=spec.producer_id,
                producer_epoch=spec.producer_epoch,
                base_sequence=spec.base_sequence,
                is_transactional=spec.is_transactional,
                max_batch_bytes=10**9,
            )
            built = build_all(columns_of(spec.records), settings)
        except InvalidColumnError:
            continue
        moved = dataclasses.replace(
            spec,
            base_offset=first,
            records=tuple(
                dataclasses.replace(record, offset_delta=int(delta - deltas[0]))
                for record, delta in zip(spec.records, deltas, strict=True)
            ),
        )
        assert built.data.tobytes() == encode_batch(moved)


@pytest.mark.parametrize("magic", [0, 1, 2])
@pytest.mark.parametrize("codec", [Codec.NONE, Codec.GZIP])
def test_the_table_is_what_a_scan_of_the_bytes_gives(magic, codec):
    records = [dataclasses.replace(record, headers=()) for record in RECORDS]
    built = build_all(
        columns_of(records),
        BatchSettings(magic=magic, codec=codec, base_offset=9, max_batch_records=8),
    )
    table = np.empty((batch_scan.COLUMN_COUNT, 100), np.int64)
    count, end, status = batch_scan.scan_batches(built.data, 0, built.data.size, table)
    assert (end, status) == (built.data.size, batch_scan.DONE)
    assert batch_scan.check_crcs(built.data, table, count) == -1
    scanned = BatchTable(table[:, :count])
    for name in [
        "position",
        "size",
        "base_offset",
        "last_offset",
        "leader_epoch",
        "magic",
        "attributes",
        "base_timestamp",
        "max_timestamp",
        "producer_id",
        "producer_epoch",
        "base_sequence",
        "record_count",
        "crc_ok",
    ]:
        assert getattr(built.batches, name).tolist() == getattr(scanned, name).tolist(), name


@pytest.mark.parametrize("magic", [0, 1, 2])
def test_no_batch_has_more_records_than_it_may(magic):
    records = [RecordSpec(key=b"k", value=b"v")] * 7
    settings = BatchSettings(magic=magic, codec=Codec.GZIP, max_batch_records=3)
    assert build_all(columns_of(records), settings).batches.last_offset.tolist() == [2, 5, 6]


def test_batches_are_filled_to_the_limit_and_a_larger_record_stands_alone():
    records = [RecordSpec(key=b"k", value=b"v" * size) for size in (30, 30, 30, 500, 30)]
    two = len(encode_batch(BatchSpec(records=tuple(records[:2]))))
    for limit, expected in ((two, [2, 1, 1, 1]), (two - 1, [1, 1, 1, 1, 1]), (10_000, [5])):
        built = build_all(columns_of(records), BatchSettings(max_batch_bytes=limit))
        assert built.batches.record_count.tolist() == expected


def test_blocks_have_the_bytes_of_one_block(monkeypatch):
    columns = columns_of(RECORDS)
    settings = BatchSettings(
        max_batch_records=3,
        codec=Codec.SNAPPY,
        base_sequence=2**31 - 5,
        producer_id=1,
        producer_epoch=0,
    )
    whole = build_all(columns, settings)
    monkeypatch.setattr(batch_builder, "BLOCK_BYTES", 1_000)
    blocks = [block.data.tobytes() for block in build_batches(columns, settings)]
    assert len(blocks) > 5
    assert b"".join(blocks) == whole.data.tobytes()
    assert build_all(columns, settings).batches.columns.tolist() == whole.batches.columns.tolist()
    assert whole.batches.base_sequence.tolist()[:3] == [2**31 - 5, 2**31 - 2, 1]


def test_offsets_that_lie_too_far_apart_begin_a_batch():
    offsets = np.array([0, 2**31 - 1, 2**31, 2**31 + 1], np.int64)
    built = build_all(columns_of(RECORDS[:4]), BatchSettings(offsets=offsets))
    assert built.batches.base_offset.tolist() == [0, 2**31]


@pytest.mark.parametrize(
    ("records", "settings"),
    [
        ([RecordSpec(timestamp=-2)], {}),
        (RECORDS[:2], {"offsets": np.array([5, 5])}),
        (RECORDS[:2], {"offsets": np.array([5])}),
        (RECORDS[:2], {"is_transactional": True}),
        (RECORDS[:2], {"producer_id": 1}),
        (RECORDS[:2], {"producer_id": 1, "producer_epoch": 0}),
        ([RecordSpec(timestamp=-2)], {"magic": 1}),
        ([RecordSpec(), RecordSpec()], {"magic": 1, "offsets": np.array([5, 5])}),
    ],
    ids=[
        "timestamp",
        "offsets",
        "too few offsets",
        "transaction without producer",
        "no epoch",
        "no sequence",
        "legacy timestamp",
        "legacy offsets",
    ],
)
def test_what_contradicts_itself_is_refused(records, settings):
    with pytest.raises(InvalidColumnError):
        build_all(columns_of(records), BatchSettings(**settings))


@pytest.mark.parametrize(
    "settings",
    [
        {"magic": 1, "codec": Codec.ZSTD},
        {"magic": 0, "producer_id": 1, "producer_epoch": 0, "base_sequence": 0},
        {"magic": 1},
    ],
    ids=["zstd", "producer", "headers"],
)
def test_what_an_old_format_does_not_have_is_refused(settings):
    with pytest.raises(UnsupportedForMessageFormatError):
        build_all(columns_of(RECORDS[:1]), BatchSettings(**settings))


def test_no_records_are_no_batches():
    assert build_all(columns_of([]), BatchSettings()).data.size == 0


@pytest.mark.parametrize("is_abort", [True, False])
def test_a_marker_is_that_of_the_slow_builder(is_abort):
    ours = end_txn_marker(
        producer_id=4711,
        producer_epoch=3,
        is_abort=is_abort,
        timestamp=SOME_TIME_MS,
        coordinator_epoch=9,
        base_offset=5,
        leader_epoch=2,
    )
    expected = builders.end_txn_marker(
        base_offset=5,
        producer_id=4711,
        producer_epoch=3,
        control_type=builders.ControlType.ABORT if is_abort else builders.ControlType.COMMIT,
        coordinator_epoch=9,
        leader_epoch=2,
    )
    assert ours.tobytes() == encode_batch(expected)


@given(st.integers(1, 40), st.integers(1, 400))
def test_every_record_lands_in_exactly_one_batch(max_records, max_bytes):
    built = build_all(
        columns_of(RECORDS),
        BatchSettings(max_batch_bytes=max_bytes, max_batch_records=max_records),
    )
    assert int(built.batches.record_count.sum()) == len(RECORDS)
    assert built.batches.base_offset[1:].tolist() == (built.batches.last_offset[:-1] + 1).tolist()
    alone = built.batches.record_count == 1
    assert (alone | (built.batches.size <= max_bytes)).all()


def strings(column):
    return [
        None if length < 0 else column.data[start : start + length].tobytes()
        for start, length in zip(column.start.tolist(), column.length.tolist(), strict=True)
    ]


TEXTS = [b"a", None, b"", b"longer than the others", None]


@pytest.mark.parametrize("kind", [pa.binary(), pa.large_binary(), pa.string(), pa.large_string()])
def test_arrow_arrays_are_taken_with_their_nulls_and_without_a_copy(kind):
    array = pa.array([b"cut", *TEXTS, b"cut"], pa.binary()).cast(kind).slice(1, len(TEXTS))
    column = ByteColumn.from_arrow(array)
    assert strings(column) == TEXTS
    assert column.data.ctypes.data == array.buffers()[2].address
    assert strings(column.rows(2, 4)) == TEXTS[2:4]


def test_chunked_and_null_arrays_are_taken():
    chunked = pa.chunked_array([pa.array(TEXTS[:2], pa.binary()), pa.array(TEXTS[2:], pa.binary())])
    assert strings(ByteColumn.from_arrow(chunked)) == TEXTS
    assert strings(ByteColumn.from_arrow(pa.nulls(3))) == [None] * 3
    assert strings(ByteColumn.from_arrow(pa.array([], pa.binary()))) == []


def test_spans_may_lie_anywhere_in_their_buffer():
    data = np.frombuffer(b"abcdef", np.uint8)
    column = ByteColumn.of_spans(data, np.array([4, 0, 0]), np.array([2, 3, -1]))
    assert strings(column) == [b"ef", b"abc", None]


@pytest.mark.parametrize(
    ("start", "length"),
    [([5], [2]), ([-1], [1]), ([0], [7]), ([0], [-2]), ([2**62], [2**62]), ([0, 1], [1])],
)
def test_spans_outside_of_their_buffer_are_refused(start, length):
    data = np.frombuffer(b"abcdef", np.uint8)
    with pytest.raises(InvalidColumnError):
        ByteColumn.of_spans(data, np.array(start), np.array(length))


@pytest.mark.parametrize("offsets", [[], [0, 7], [0, 3, 2], [-1, 3]])
def test_offsets_that_fall_or_leave_the_buffer_are_refused(offsets):
    with pytest.raises(InvalidColumnError):
        ByteColumn.of_offsets(np.frombuffer(b"abcdef", np.uint8), np.array(offsets, np.int64))


def test_a_table_needs_a_value_and_nothing_else():
    records = NewRecords.from_arrow(pa.table({"value": pa.array([b"v", None], pa.binary())}))
    assert strings(records.keys) == [None, None]
    assert records.timestamps.tolist() == [-1, -1]
    assert records.headers.first.tolist() == [0, 0, 0]
    with pytest.raises(InvalidColumnError, match="value"):
        NewRecords.from_arrow(pa.table({"key": pa.array([b"k"], pa.binary())}))


@pytest.mark.parametrize("unit", ["s", "ms", "us", "ns"])
def test_arrow_timestamps_become_milliseconds(unit):
    times = pa.array([1_700_000_000_000, None], pa.timestamp("ms")).cast(pa.timestamp(unit))
    table = pa.table({"value": pa.array([b"", b""], pa.binary()), "timestamp": times})
    assert NewRecords.from_arrow(table).timestamps.tolist() == [1_700_000_000_000, -1]


@pytest.mark.parametrize(
    "table",
    [
        {"value": pa.array([1])},
        {"value": pa.array([b"v"]), "timestamp": pa.array([1.5])},
        {"value": pa.array([b"v"]), "headers": pa.array([[1]])},
        {"value": pa.array([b"v"]), "headers": pa.array([[{"key": None, "value": b""}]], HEADERS)},
    ],
    ids=["value", "timestamp", "headers", "null header key"],
)
def test_columns_of_another_type_are_refused(table):
    with pytest.raises(InvalidColumnError):
        NewRecords.from_arrow(pa.table(table))


def test_headers_stay_with_their_records_when_rows_are_chosen():
    records = [
        RecordSpec(key=b"k", headers=tuple((f"h{i}", b"%d" % j) for j in range(i)))
        for i in range(4)
    ]
    sliced = NewRecords.from_arrow(table_of(records).slice(1, 3))
    assert strings(sliced.headers.keys) == [b"h1", b"h2", b"h2", b"h3", b"h3", b"h3"]
    last = columns_of(records).rows(2, 4)
    assert last.headers.first.tolist() == [1, 3, 6]
    with pytest.raises(InvalidColumnError):
        HeaderColumn.of(np.array([0, 9]), sliced.headers.keys, sliced.headers.values)


def test_columns_of_different_lengths_are_refused():
    with pytest.raises(InvalidColumnError):
        NewRecords.of(
            keys=ByteColumn.nulls(2), values=ByteColumn.nulls(3), timestamps=np.zeros(3, np.int64)
        )
