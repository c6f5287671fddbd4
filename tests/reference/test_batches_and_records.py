"""The parsing twins against what the builders built, and against Kafka's own segments."""

from pathlib import Path

import pytest
from hypothesis import given, settings

from storage_core.formats.batch_v2 import Codec
from storage_core.records.codecs import decompress
from tests.kit.builders import (
    BatchSpec,
    RecordSpec,
    encode_batch,
    encode_records,
    log_with,
)
from tests.kit.damage import (
    BadRecord,
    bad_record,
    with_lying_count,
    with_lying_length,
    with_trailing_bytes,
)
from tests.kit.decode import decode_segment
from tests.kit.golden_data import Golden, goldens
from tests.kit.strategies import batches
from tests.reference.batches import HEADER_BYTES, Stop, crc_of, parse_header, scan
from tests.reference.records import MalformedRecordError, parse_records, timestamp_of


def records_of(batch: bytes) -> bytes:
    codec = Codec(parse_header(batch).attributes & 7)
    return bytes(decompress(codec, batch[HEADER_BYTES:], limit_bytes=2**24))


@pytest.mark.thorough
@settings(max_examples=200, deadline=None)
@given(batches())
def test_a_built_batch_is_read_back(spec: BatchSpec):
    batch = encode_batch(spec)
    header = parse_header(batch)
    assert header.size == len(batch)
    assert header.crc == crc_of(batch)
    assert (header.base_offset, header.last_offset) == (spec.base_offset, spec.last_offset)
    assert (header.producer_id, header.base_sequence) == (spec.producer_id, spec.base_sequence)
    data = records_of(batch) if spec.records else b""
    records = parse_records(data, header.record_count)
    assert [record.offset_delta for record in records] == spec.offset_deltas
    for parsed, record in zip(records, spec.records, strict=True):
        key, value = record.key, record.value
        assert timestamp_of(header.base_timestamp, parsed.timestamp_delta) == record.timestamp
        assert parsed.key_length == (-1 if key is None else len(key))
        assert data[parsed.key_start :].startswith(key or b"")
        assert parsed.value_length == (-1 if value is None else len(value))
        assert data[parsed.value_start :].startswith(value or b"")
        assert len(parsed.headers) == len(record.headers)


@pytest.mark.parametrize("golden", goldens("dump-*"), ids=lambda golden: golden.name)
def test_both_decoders_agree_on_kafkas_segments(golden: Golden, tmp_path: Path):
    for log in sorted(golden.unpack(tmp_path).glob("*.log")):
        data = log.read_bytes()
        starts, end, stop = scan(data)
        decoded, decoded_end = decode_segment(data)
        assert (end, stop) == (decoded_end, Stop.END)
        assert starts == [batch.position for batch in decoded]
        for start, batch in zip(starts, decoded, strict=True):
            header = parse_header(data, start)
            assert batch.crc_ok
            assert header.crc == crc_of(data[start : start + header.size])
            records = parse_records(
                records_of(data[start : start + header.size]), len(batch.records)
            )
            assert [header.base_offset + record.offset_delta for record in records] == [
                record.offset for record in batch.records
            ]


@pytest.mark.parametrize("tail", [0, 1, 16, 17, 18, 60, 61, 70])
def test_a_scan_stops_before_a_torn_batch(tail: int):
    whole = log_with(batches=3)
    starts, end, stop = scan(log_with(batches=3, torn_tail=tail))
    assert (len(starts), end) == (3, len(whole))
    assert stop is (Stop.TORN if tail else Stop.END)


@pytest.mark.parametrize("length", [-1, 0, 13], ids=lambda length: f"length {length}")
def test_a_scan_stops_at_an_impossible_length(length: int):
    batch = with_lying_length(encode_batch(BatchSpec()), length)
    assert scan(batch + bytes(100)) == ([], 0, Stop.BAD_LENGTH)


@pytest.mark.parametrize("bad", BadRecord, ids=lambda bad: bad.value)
def test_malformed_records_are_refused(bad: BadRecord):
    with pytest.raises(MalformedRecordError):
        parse_records(records_of(bad_record(bad)), 1)


def test_a_lying_count_and_trailing_bytes_are_refused():
    spec = BatchSpec(records=(RecordSpec(key=b"k"),) * 2)
    batch = encode_batch(spec)
    for count in (-1, 1, 3, 2**31 - 1):
        lying = with_lying_count(batch, count)
        with pytest.raises(MalformedRecordError):
            parse_records(encode_records(spec), parse_header(lying).record_count)
    with pytest.raises(MalformedRecordError):
        parse_records(records_of(with_trailing_bytes(spec)), 2)
