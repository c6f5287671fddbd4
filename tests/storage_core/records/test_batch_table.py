"""Batches and records as columns: what headers say, and what records do."""

import dataclasses

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from storage_core.errors import InvalidRecordError
from storage_core.formats.batch_v2 import NO_TIMESTAMP, Codec, TimestampType
from storage_core.kernels import batch_scan
from storage_core.records import payload as payload_module
from storage_core.records.batch_table import BatchTable
from storage_core.records.payload import Limits, RecordColumns, decode_header_key, decode_records
from storage_core.records.reader import Window
from tests.kit import damage
from tests.kit.builders import (
    SOME_TIME_MS,
    BatchSpec,
    RecordSpec,
    encode_batch,
    encode_record,
    encode_varint,
    segment_bytes,
    some_batches,
)
from tests.kit.decode import decode_segment
from tests.kit.golden_data import goldens
from tests.kit.strategies import segments
from tests.storage_core.records.memory_file import FILE, only_window_of


def table_of(specs: list[BatchSpec]) -> BatchTable:
    return only_window_of(segment_bytes(specs)).batches


def table_with(**columns: list[int]) -> BatchTable:
    """Return a table in which only these columns mean anything."""
    count = len(next(iter(columns.values())))
    numbers = np.zeros((batch_scan.COLUMN_COUNT, count), np.int64)
    for name, values in columns.items():
        numbers[getattr(batch_scan, name.upper())] = values
    return BatchTable(numbers)


@pytest.mark.thorough
@given(specs=segments(max_batches=4).filter(bool))
def test_every_column_is_the_field_of_its_name(specs):
    table = table_of(specs)
    assert len(table) == len(specs)
    encoded = [encode_batch(spec) for spec in specs]
    assert table.size.tolist() == [len(batch) for batch in encoded]
    assert table.position.tolist() == [len(b"".join(encoded[:i])) for i in range(len(specs))]
    assert (table.magic == 2).all()
    for name in (
        "base_offset",
        "last_offset",
        "leader_epoch",
        "attributes",
        "producer_id",
        "producer_epoch",
        "base_sequence",
    ):
        assert getattr(table, name).tolist() == [getattr(spec, name) for spec in specs], name
    assert table.base_timestamp.tolist() == [spec.timestamp_base for spec in specs]
    assert table.max_timestamp.tolist() == [spec.largest_timestamp for spec in specs]
    assert table.record_count.tolist() == [len(spec.records) for spec in specs]
    assert table.codec.tolist() == [spec.codec for spec in specs]
    assert table.has_producer_id.tolist() == [spec.producer_id >= 0 for spec in specs]
    horizons = [spec.delete_horizon_ms for spec in specs]
    assert table.delete_horizon_ms.tolist() == [
        NO_TIMESTAMP if horizon is None else horizon for horizon in horizons
    ]


@pytest.mark.item("FMT-03")
def test_every_attribute_is_read_from_its_bits():
    attributes = list(range(128))
    # Bits 7 and above are in nobody's use and change nothing.
    for unused in (0, 0x80, 0x7F00, -(2**15)):
        table = table_with(attributes=[bits | unused for bits in attributes])
        assert table.codec.tolist() == [bits % 8 for bits in attributes]
        assert table.is_log_append_time.tolist() == [bool(bits & 8) for bits in attributes]
        assert table.is_transactional.tolist() == [bool(bits & 16) for bits in attributes]
        assert table.is_control.tolist() == [bool(bits & 32) for bits in attributes]
        assert table.has_delete_horizon.tolist() == [bool(bits & 64) for bits in attributes]


@pytest.mark.item("FMT-04")
def test_the_range_of_a_batch_may_end_behind_its_last_record():
    spec = BatchSpec(records=(RecordSpec(key=b"k"),), base_offset=10, last_offset_delta=6)
    table = table_of([spec, dataclasses.replace(spec, base_offset=17, records=())])
    assert table.last_offset.tolist() == [16, 23]


@pytest.mark.item("FMT-06")
def test_a_delete_horizon_is_the_base_timestamp_where_the_bit_is_set():
    table = table_with(attributes=[0x40, 0, 0x48], base_timestamp=[7, 8, 9])
    assert table.delete_horizon_ms.tolist() == [7, NO_TIMESTAMP, 9]


@pytest.mark.item("FMT-07")
def test_sequences_wrap_from_the_largest_to_zero():
    table = table_with(
        base_sequence=[2147483645, 2147483645, 2147483647, 5, -1, 0],
        base_offset=[40, 40, 40, 40, 40, 40],
        last_offset=[42, 45, 41, 40, 99, 2**31 - 1 + 40],
    )
    assert table.last_sequence.tolist() == [2147483647, 2, 0, 5, -1, 2147483647]


@pytest.mark.item("FMT-07")
def test_minus_one_is_no_producer():
    table = table_with(producer_id=[-1, 0, 2**63 - 1])
    assert table.has_producer_id.tolist() == [False, True, True]


def test_log_append_time_is_a_timestamp_type():
    table = table_of([BatchSpec(timestamp_type=TimestampType.LOG_APPEND_TIME, max_timestamp=9)])
    assert table.is_log_append_time.tolist() == [True]


def test_rows_are_a_view():
    table = table_with(size=[1, 2, 3, 4])
    part = table.rows(1, 3)
    assert part.size.tolist() == [2, 3]
    assert part.columns.base is table.columns


LIMITS = Limits(max_record_bytes=2**31 - 9, max_batch_bytes=2**24)
GOOD = encode_batch(some_batches(count=1, records=2)[0])
Row = tuple[int, int, bytes | None, bytes | None, list[tuple[str, bytes | None]]]


def columns_of(
    window: Window, *, wanted: list[bool] | None = None, limits: Limits = LIMITS
) -> list[RecordColumns]:
    chosen = np.ones(len(window.batches), bool) if wanted is None else np.array(wanted)
    return list(decode_records(window, chosen, limits))


def rows_of(columns: RecordColumns) -> list[Row]:
    headers = [
        [(header["key"], header["value"]) for header in of_record]
        for of_record in columns.headers().to_pylist()
    ]
    return list(
        zip(
            columns.offset.tolist(),
            columns.timestamp.tolist(),
            columns.keys().to_pylist(),
            columns.values().to_pylist(),
            headers,
            strict=True,
        )
    )


def expected_rows(segment: bytes) -> list[Row]:
    return [
        (
            record.offset,
            record.timestamp,
            record.key,
            record.value,
            [(name.decode("utf-8", "replace"), value) for name, value in record.headers],
        )
        for batch in decode_segment(segment)[0]
        for record in batch.records
    ]


@pytest.mark.thorough
@pytest.mark.item("FMT-04", "FMT-05", "FMT-09")
@given(specs=segments(max_batches=4).filter(bool))
def test_columns_are_what_the_obvious_decoder_finds(specs):
    segment = segment_bytes(specs)
    (columns,) = columns_of(only_window_of(segment))
    assert rows_of(columns) == expected_rows(segment)
    assert len(columns) == sum(len(spec.records) for spec in specs)
    numbers = [row for row, spec in enumerate(specs) for _ in spec.records]
    assert columns.batch.tolist() == numbers
    for array in (columns.keys(), columns.values(), columns.headers()):
        array.validate(full=True)


@pytest.mark.parametrize("golden", goldens("dump-*"), ids=lambda golden: golden.name)
def test_columns_of_kafkas_segments_are_what_the_obvious_decoder_finds(golden, tmp_path):
    for log in sorted(golden.unpack(tmp_path).glob("*.log")):
        segment = log.read_bytes()
        found = [row for part in columns_of(only_window_of(segment)) for row in rows_of(part)]
        assert found == expected_rows(segment)


@pytest.mark.thorough
@given(specs=segments(max_batches=6).filter(bool), budget=st.sampled_from([0, 1, 60, 300]))
def test_a_small_arena_gives_the_same_records(specs, budget):
    segment = segment_bytes(specs)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(payload_module, "ARENA_BUDGET_BYTES", budget)
        parts = columns_of(only_window_of(segment))
    assert [row for part in parts for row in rows_of(part)] == expected_rows(segment)
    if budget == 0:
        compressed = sum(spec.codec is not Codec.NONE for spec in specs)
        assert len(parts) in {compressed, compressed + 1}


def test_only_the_wanted_batches_are_decoded():
    specs = some_batches(count=4, records=2)
    window = only_window_of(segment_bytes(specs))
    (columns,) = columns_of(window, wanted=[False, True, False, True])
    assert columns.offset.tolist() == [2, 3, 6, 7]
    assert columns.batch.tolist() == [1, 1, 3, 3]
    assert columns.keys().to_pylist() == [b"key-2", b"key-3", b"key-6", b"key-7"]
    (nothing,) = columns_of(window, wanted=[False] * 4)
    assert (len(nothing), nothing.headers().to_pylist()) == (0, [])


@pytest.mark.parametrize("codec", [Codec.NONE, Codec.LZ4], ids=["none", "lz4"])
def test_chosen_records_are_selected(codec):
    headers = (("h", b"1"),)
    records = tuple(RecordSpec(key=b"%d" % i, headers=headers * i) for i in range(4))
    (columns,) = columns_of(only_window_of(encode_batch(BatchSpec(records=records, codec=codec))))
    chosen = columns.select(columns.offset % 2 == 1)
    assert chosen.keys().to_pylist() == [b"1", b"3"]
    assert [len(of_record) for of_record in chosen.headers().to_pylist()] == [1, 3]


@pytest.mark.item("FMT-05")
def test_timestamps_may_fall_and_the_brokers_replace_them():
    times = [SOME_TIME_MS + 5, SOME_TIME_MS - 7, -1, 2**45]
    created = BatchSpec(records=tuple(RecordSpec(timestamp=time) for time in times))
    stamped = dataclasses.replace(
        created,
        base_offset=4,
        timestamp_type=TimestampType.LOG_APPEND_TIME,
        max_timestamp=SOME_TIME_MS + 99,
    )
    (columns,) = columns_of(only_window_of(segment_bytes([created, stamped])))
    assert columns.timestamp.tolist() == times + [SOME_TIME_MS + 99] * 4


@pytest.mark.item("FMT-06")
@pytest.mark.parametrize("horizon", [0, SOME_TIME_MS + 86_400_000, 2**45])
def test_a_delete_horizon_changes_no_timestamp(horizon):
    times = [SOME_TIME_MS + 5, SOME_TIME_MS - 7, 2**44]
    spec = BatchSpec(
        records=tuple(RecordSpec(timestamp=time) for time in times), delete_horizon_ms=horizon
    )
    (columns,) = columns_of(only_window_of(encode_batch(spec)))
    assert columns.timestamp.tolist() == times


@pytest.mark.item("FMT-07")
def test_sequences_of_records_wrap_from_the_largest_to_zero():
    idempotent = BatchSpec(
        records=(RecordSpec(),) * 6, producer_id=1, producer_epoch=0, base_sequence=2147483645
    )
    plain = BatchSpec(records=(RecordSpec(),), base_offset=6)
    gaps = dataclasses.replace(
        idempotent,
        records=(RecordSpec(offset_delta=1), RecordSpec(offset_delta=4)),
        base_offset=7,
        base_sequence=2147483646,
    )
    # Anything below zero is none, for a record.
    odd = dataclasses.replace(plain, base_offset=12, base_sequence=-5)
    (columns,) = columns_of(only_window_of(segment_bytes([idempotent, plain, gaps, odd])))
    assert columns.sequence.tolist() == [
        *(2147483645, 2147483646, 2147483647, 0, 1, 2),
        -1,
        *(2147483647, 2),
        -1,
    ]


@pytest.mark.item("FMT-09")
@pytest.mark.parametrize("codec", [Codec.NONE, Codec.ZSTD], ids=["none", "zstd"])
def test_headers_keep_their_order_repeats_nulls_and_empty_names(codec):
    headers = (("b", b"1"), ("a", None), ("b", b"1"), ("", b""), ("ä€𝄞", b"\xff"))
    spec = BatchSpec(records=(RecordSpec(), RecordSpec(headers=headers)), codec=codec)
    (columns,) = columns_of(only_window_of(encode_batch(spec)))
    assert columns.headers().type == pa.list_(
        pa.struct([("key", pa.string()), ("value", pa.binary())])
    )
    assert [rows[4] for rows in rows_of(columns)] == [[], list(headers)]


@pytest.mark.parametrize(
    ("name", "text"),
    [
        (b"\xff", "\ufffd"),
        (b"a\xfe\xffb", "a\ufffd\ufffdb"),
        (b"\xc3", "\ufffd"),
        (b"\xc3\xa4\xc3", "ä\ufffd"),
        (b"\xe2\x82", "\ufffd"),
        (b"\xf0\x9d\x84x", "\ufffdx"),
        (b"\xc0\x80", "\ufffd\ufffd"),
        # Encoded surrogates: one for each, unlike in Python.
        (b"\xed\xa0\x80", "\ufffd"),
        (b"\xed\xa0\x80\xed\xbf\xbf", "\ufffd\ufffd"),
        (b"\xed\xa0x", "\ufffdx"),
        (b"\xed\x9f\xbf", "\ud7ff"),
    ],
)
def test_names_that_are_no_utf_8_are_read_as_java_reads_them(name, text):
    assert decode_header_key(name) == text
    body = b"\0\0\0\1\1\2" + encode_varint(len(name)) + name + encode_varint(-1)
    named = encode_varint(len(body)) + body
    plain = encode_record(RecordSpec(headers=(("ok", b"v"),)), timestamp_delta=0, offset_delta=1)
    spec = BatchSpec(record_count=2, last_offset_delta=1)
    (columns,) = columns_of(only_window_of(damage.with_payload(spec, named + plain)))
    assert columns.headers().to_pylist() == [
        [{"key": text, "value": None}],
        [{"key": "ok", "value": b"v"}],
    ]


@pytest.mark.item("FMT-10", "FMT-11")
@pytest.mark.parametrize("codec", [Codec.NONE, Codec.GZIP], ids=["none", "gzip"])
@pytest.mark.parametrize("bad", damage.BadRecord, ids=lambda bad: bad.value)
def test_a_malformed_record_is_told_with_its_place(bad, codec):
    window = only_window_of(
        GOOD + damage.bad_record(bad, BatchSpec(base_offset=2, codec=codec)) + GOOD
    )
    with pytest.raises(InvalidRecordError, match="batch at offset 2, a record whose") as caught:
        columns_of(window)
    assert (caught.value.file, caught.value.position) == (FILE, len(GOOD))
    assert len(columns_of(window, wanted=[True, False, True])[0]) == 4


@pytest.mark.item("FMT-11")
@pytest.mark.parametrize("count", [1, 3], ids=["too few", "too many"])
def test_a_lying_count_is_told_with_its_place(count):
    window = only_window_of(GOOD + damage.with_lying_count(GOOD, count))
    with pytest.raises(InvalidRecordError, match="batch at offset 0") as caught:
        columns_of(window)
    assert (caught.value.file, caught.value.position) == (FILE, len(GOOD))


@pytest.mark.item("FMT-11")
def test_bytes_after_the_last_record_are_told_with_their_place():
    (spec,) = some_batches(count=1, records=2)
    window = only_window_of(GOOD + damage.with_trailing_bytes(spec, b"12345"))
    with pytest.raises(InvalidRecordError, match="bytes after the last record") as caught:
        columns_of(window)
    assert caught.value.position == len(GOOD)


@pytest.mark.item("FMT-29")
def test_a_decompressed_record_above_the_limit_is_told_with_its_place():
    limits = Limits(max_record_bytes=64 * 1024, max_batch_bytes=2**24)
    bomb = BatchSpec(records=(RecordSpec(value=bytes(2**20)),), codec=Codec.GZIP)
    window = only_window_of(GOOD + encode_batch(bomb))
    with pytest.raises(InvalidRecordError, match=r"max\.decompressed\.message\.bytes") as caught:
        columns_of(window, limits=limits)
    assert (caught.value.file, caught.value.position) == (FILE, len(GOOD))
    plain = encode_batch(dataclasses.replace(bomb, codec=Codec.NONE))
    assert len(columns_of(only_window_of(plain), limits=limits)[0]) == 1
