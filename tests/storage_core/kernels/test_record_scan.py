"""Parsing records: against the reference, every kind of malformed one, and whole batches."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from storage_core.formats.batch_v2 import HEADER_BYTES, Codec
from storage_core.formats.record_v2 import MIN_RECORD_BYTES
from storage_core.kernels import record_scan
from storage_core.kernels.varint import INVALID
from tests.kit.builders import (
    BatchSpec,
    RecordSpec,
    encode_batch,
    encode_record,
    encode_records,
    encode_varint,
    segment_bytes,
)
from tests.kit.damage import BadRecord, bad_record, with_payload, with_trailing_bytes
from tests.kit.decode import decode_segment
from tests.kit.golden_data import Golden, goldens
from tests.kit.strategies import batches, segments
from tests.reference.records import MalformedRecordError, parse_record
from tests.storage_core.kernels.arguments import NO_BYTES, Opened, as_array, fenced, noted, opened
from tests.storage_core.kernels.twins import in_both_ways

NO_LIMIT = 2**31 - 1
DELTAS_32 = st.integers(-(2**31), 2**31 - 1)
DELTAS_64 = st.integers(-(2**63), 2**63 - 1)
RECORDS = st.builds(
    encode_record,
    st.builds(
        RecordSpec,
        key=st.one_of(st.none(), st.binary(max_size=70)),
        value=st.one_of(st.none(), st.binary(max_size=70)),
        headers=st.lists(
            st.tuples(st.text(max_size=3), st.one_of(st.none(), st.binary(max_size=3))), max_size=3
        ).map(tuple),
    ),
    timestamp_delta=DELTAS_64,
    offset_delta=DELTAS_32,
)
PARTS = (
    "next_position",
    "timestamp_delta",
    "offset_delta",
    "key_start",
    "key_length",
    "value_start",
    "value_length",
    "header_start",
    "body_bytes",
)


def assert_parsed_as_the_reference_does(parse, record: bytes) -> None:
    data, start, end = fenced(record)
    found = parse(data, start, end)
    try:
        expected = parse_record(data.tobytes(), start, end)
    except MalformedRecordError:
        assert found.next_position == INVALID
        return
    assert [getattr(found, part) for part in PARTS] == [getattr(expected, part) for part in PARTS]
    assert found.header_count == len(expected.headers)


@pytest.mark.item("FMT-08")
@in_both_ways(parse=record_scan.parse_record)
@given(record=RECORDS, rest=st.binary(max_size=3))
def test_every_part_of_a_record_is_where_the_reference_finds_it(parse, record, rest):
    assert_parsed_as_the_reference_does(parse, record + rest)


@in_both_ways(parse=record_scan.parse_record)
@given(record=RECORDS, at=st.integers(0, 200), byte=st.integers(0, 255), cut=st.integers(0, 3))
def test_a_changed_byte_means_what_the_reference_makes_of_it(parse, record, at, byte, cut):
    damaged = bytearray(record)
    damaged[at % len(record)] = byte
    assert_parsed_as_the_reference_does(parse, bytes(damaged[: len(damaged) - cut]))


@pytest.mark.item("FMT-10", "FMT-11")
@in_both_ways(parse=record_scan.parse_record)
@pytest.mark.parametrize("bad", BadRecord, ids=lambda bad: bad.value)
def test_malformed_records_are_invalid(parse, bad):
    data, start, end = fenced(bad_record(bad)[HEADER_BYTES:])
    assert parse(data, start, end).next_position == INVALID


@pytest.mark.item("FMT-08", "FMT-10", "FMT-11")
@in_both_ways(parse=record_scan.parse_record)
@pytest.mark.parametrize(
    ("body", "is_valid"),
    [
        pytest.param("00 00 00 01 01 00", True, id="nulls"),
        pytest.param("00 00 00 03 03 00", True, id="lengths of -2 are null too"),
        pytest.param("00 00 00 00 00 00", True, id="empty key and value"),
        pytest.param("ff 00 00 01 01 00", True, id="any attributes"),
        pytest.param("00 808080808000 00 01 01 00", True, id="a timestamp delta of 6 bytes"),
        pytest.param("00 80808080808080808000 00 01 01 00", True, id="one of 10 bytes"),
        pytest.param("00 8080808080808080808000 00 01 01 00", False, id="one of 11 bytes"),
        pytest.param("00 00 8080808000 01 01 00", True, id="an offset delta of 5 bytes"),
        pytest.param("00 00 808080808000 01 01 00", False, id="one of 6 bytes"),
        pytest.param("00 00 00 02 01 00", False, id="a key that eats the value's length"),
        pytest.param("00 00 00 01 01 01", False, id="-1 headers"),
        pytest.param("00 00 00 01 01 02 00 01", True, id="a header without name bytes"),
        pytest.param("00 00 00 01 01 02 01 01", False, id="a header with a null name"),
        pytest.param("00 00 00 01 01 02 00 03", True, id="a header value of length -2"),
        pytest.param("00 00 00 01 01 04 00 01", False, id="two headers, one there"),
        pytest.param("00 00 00 01 01 02 00 02", False, id="a header value past the end"),
        pytest.param("00 00 00 01 01 00 00", False, id="a byte after the headers"),
        pytest.param("00 00 00 01 01", False, id="no header count"),
        pytest.param("00", False, id="attributes alone"),
        pytest.param("", False, id="no body"),
    ],
)
def test_a_body_has_to_be_consumed_exactly(parse, body, is_valid):
    record = encode_varint(len(bytes.fromhex(body))) + bytes.fromhex(body)
    data, start, end = fenced(record)
    assert parse(data, start, end).next_position == (end if is_valid else INVALID)
    assert_parsed_as_the_reference_does(parse, record)


@pytest.mark.item("FMT-08")
@in_both_ways(parse=record_scan.parse_record)
@pytest.mark.parametrize(
    ("delta", "encoded_size"), [(2**31, 5), (-(2**31) - 1, 5), (2**40, 6), (-(2**62) - 1, 10)]
)
def test_a_timestamp_delta_has_64_bits(parse, delta, encoded_size):
    assert len(encode_varint(delta)) == encoded_size
    record = encode_record(RecordSpec(key=b"k"), timestamp_delta=delta, offset_delta=0)
    assert parse(as_array(record), 0, len(record)).timestamp_delta == delta


@in_both_ways(check_counts=record_scan.check_counts)
def test_a_count_has_to_fit_the_bytes(check_counts):
    start = np.array([10, 20, 0], np.int64)
    end = start + np.array([MIN_RECORD_BYTES, 0, 4 * MIN_RECORD_BYTES - 1])
    notes = noted(3, records_start=start, records_end=end)

    def checked(*counts: int, wanted=(1, 1, 1)) -> tuple[int, int]:
        return check_counts(np.array(counts, np.int64), notes, np.array(wanted, np.uint8))

    assert checked(1, 0, 3) == (4, -1)
    assert checked(0, 0, 0) == (0, -1)
    assert checked(2, 0, 3)[1] == 0
    assert checked(1, 1, 3)[1] == 1
    assert checked(1, 0, 4)[1] == 2
    assert checked(1, -1, 3)[1] == 1
    assert checked(1, 0, 2**31 - 1)[1] == 2
    assert checked(2, 0, 3, wanted=(0, 1, 1)) == (3, -1)
    assert checked(2, 0, 4, wanted=(0, 1, 0)) == (0, -1)
    smallest = encode_record(RecordSpec(value=None), timestamp_delta=0, offset_delta=0)
    assert len(smallest) == MIN_RECORD_BYTES


def decoded(decode_records, window: Opened, *, limit: int = NO_LIMIT):
    room = int(np.maximum(window.record_count, 0).sum())
    records = np.full((record_scan.RECORD_COLUMN_COUNT, room), -99, np.int64)
    answer = decode_records(
        window.data,
        window.arena,
        window.record_count,
        window.notes,
        np.arange(len(window)),
        limit,
        records,
    )
    return records, *answer


@in_both_ways(decode_records=record_scan.decode_records)
def test_only_the_batches_that_are_asked_for_are_decoded(decode_records):
    specs = [BatchSpec(records=(RecordSpec(key=b"k"),) * count) for count in (2, 3, 1)]
    window = opened(segment_bytes(specs))
    records = np.full((record_scan.RECORD_COLUMN_COUNT, 3), -99, np.int64)
    count, *_ = decode_records(
        window.data,
        window.arena,
        window.record_count,
        window.notes,
        np.array([0, 2]),
        NO_LIMIT,
        records,
    )
    assert count == 3
    assert records[record_scan.RECORD_BATCH].tolist() == [0, 0, 2]


def part(window: Opened, records: np.ndarray, i: int, start: int, length: int) -> bytes | None:
    row = records[record_scan.RECORD_BATCH, i]
    source = window.arena if window.in_arena[row] else window.data
    begin, size = records[start, i], records[length, i]
    return None if size < 0 else source[begin : begin + size].tobytes()


def assert_decoded_as(window: Opened, records: np.ndarray, segment: bytes) -> None:
    """Compare with the obvious decoder, but for timestamps, whose meaning is not the kernel's."""
    expected = [
        (row, record.offset, record.key, record.value, len(record.headers))
        for row, batch in enumerate(decode_segment(segment)[0])
        for record in batch.records
    ]
    found = [
        (
            records[record_scan.RECORD_BATCH, i],
            window.base_offset[records[record_scan.RECORD_BATCH, i]]
            + records[record_scan.RECORD_OFFSET_DELTA, i],
            part(window, records, i, record_scan.RECORD_KEY_START, record_scan.RECORD_KEY_LENGTH),
            part(
                window, records, i, record_scan.RECORD_VALUE_START, record_scan.RECORD_VALUE_LENGTH
            ),
            records[record_scan.RECORD_HEADER_COUNT, i],
        )
        for i in range(records.shape[1])
    ]
    assert found == expected


@pytest.mark.thorough
@in_both_ways(decode_records=record_scan.decode_records)
@given(specs=segments())
def test_batches_of_any_codec_are_decoded(decode_records, specs):
    segment = segment_bytes(specs)
    window = opened(segment)
    records, count, status, _, _ = decoded(decode_records, window)
    assert (count, status) == (records.shape[1], record_scan.DONE)
    assert_decoded_as(window, records, segment)
    deltas = [r.timestamp - spec.timestamp_base for spec in specs for r in spec.records]
    assert records[record_scan.RECORD_TIMESTAMP_DELTA].tolist() == deltas


@pytest.mark.item("FMT-08", "FMT-09")
@pytest.mark.parametrize("golden", goldens("dump-*"), ids=lambda golden: golden.name)
def test_kafkas_records_are_decoded_as_kafka_reads_them(golden: Golden, tmp_path: Path):
    seen = 0
    for log in sorted(golden.unpack(tmp_path).glob("*.log")):
        segment = log.read_bytes()
        window = opened(segment)
        records, count, status, _, _ = decoded(record_scan.decode_records, window)
        assert (count, status) == (records.shape[1], record_scan.DONE)
        assert_decoded_as(window, records, segment)
        seen += count
    assert seen


@pytest.mark.item("FMT-11")
@in_both_ways(decode_records=record_scan.decode_records)
def test_a_batch_without_records_yields_nothing(decode_records):
    window = opened(segment_bytes([BatchSpec(), BatchSpec(last_offset_delta=3)]))
    records, *found = decoded(decode_records, window)
    assert found == [0, record_scan.DONE, 0, 0]
    assert records.shape[1] == 0


@in_both_ways(decode_records=record_scan.decode_records)
def test_bytes_of_a_batch_that_counts_no_records_are_not_looked_at(decode_records):
    window = opened(with_payload(BatchSpec(record_count=0), b"anything at all"))
    assert decoded(decode_records, window)[1:] == (0, record_scan.DONE, 0, 0)


@pytest.mark.item("FMT-10", "FMT-11")
@in_both_ways(decode_records=record_scan.decode_records)
@pytest.mark.parametrize("codec", [Codec.NONE, Codec.GZIP], ids=lambda codec: codec.name)
@pytest.mark.parametrize("bad", BadRecord, ids=lambda bad: bad.value)
def test_the_batch_with_a_malformed_record_is_named(decode_records, bad, codec):
    good = encode_batch(BatchSpec(records=(RecordSpec(key=b"k"),) * 2, codec=codec))
    window = opened(good + bad_record(bad, BatchSpec(codec=codec)) + good)
    _, count, status, row, position = decoded(decode_records, window)
    assert (count, status, row, position) == (2, record_scan.BAD_RECORD, 1, window.start[1])


@pytest.mark.item("FMT-11")
@in_both_ways(decode_records=record_scan.decode_records)
@pytest.mark.parametrize("codec", [Codec.NONE, Codec.GZIP], ids=lambda codec: codec.name)
def test_bytes_after_the_last_record_are_refused(decode_records, codec):
    spec = BatchSpec(records=(RecordSpec(key=b"k"),) * 2, codec=codec)
    window = opened(with_trailing_bytes(spec))
    _, count, status, row, position = decoded(decode_records, window)
    assert (count, status, row) == (2, record_scan.LEFTOVER, 0)
    assert position == window.start[0] + len(encode_records(spec))


@in_both_ways(decode_records=record_scan.decode_records)
def test_a_record_that_the_count_expects_and_the_bytes_lack_is_refused(decode_records):
    spec = BatchSpec(records=(RecordSpec(key=b"k"),) * 2, record_count=3)
    window = opened(encode_batch(spec))
    _, count, status, row, position = decoded(decode_records, window)
    assert (count, status, row, position) == (2, record_scan.BAD_RECORD, 0, window.end[0])


@pytest.mark.item("FMT-29")
@in_both_ways(decode_records=record_scan.decode_records)
def test_a_compressed_record_above_the_limit_is_refused(decode_records):
    record = RecordSpec(key=b"k", value=bytes(2**20))
    body = len(encode_record(record, timestamp_delta=0, offset_delta=0)) - 4
    window = opened(encode_batch(BatchSpec(records=(record,), codec=Codec.ZSTD)))
    assert decoded(decode_records, window, limit=body)[2] == record_scan.DONE
    _, count, status, row, position = decoded(decode_records, window, limit=body - 1)
    assert (count, status, row, position) == (0, record_scan.TOO_LARGE, 0, 0)
    assert decoded(decode_records, window, limit=64 * 1024)[2] == record_scan.TOO_LARGE


@pytest.mark.item("FMT-29")
@in_both_ways(decode_records=record_scan.decode_records)
def test_the_limit_is_for_what_was_decompressed_only(decode_records):
    # Kafka's iterator over an uncompressed batch has no limit to begin with.
    record = RecordSpec(key=b"k", value=bytes(2**20))
    window = opened(encode_batch(BatchSpec(records=(record,))))
    assert decoded(decode_records, window, limit=64 * 1024)[2] == record_scan.DONE


@given(spec=batches(max_records=4))
def test_headers_begin_where_the_reference_finds_them(spec):
    window = opened(encode_batch(spec))
    records, *_ = decoded(record_scan.decode_records, window)
    source = (window.arena if len(window) and window.in_arena[0] else window.data).tobytes()
    position = int(window.start[0])
    for i in range(records.shape[1]):
        expected = parse_record(source, position, int(window.end[0]))
        assert records[record_scan.RECORD_HEADER_START, i] == expected.header_start
        position = expected.next_position


def test_no_batches_are_no_records():
    window = Opened(
        data=NO_BYTES,
        table=np.empty((17, 0), np.int64),
        arena=NO_BYTES,
        notes=noted(0),
    )
    assert decoded(record_scan.decode_records, window)[1:] == (0, record_scan.DONE, 0, 0)
