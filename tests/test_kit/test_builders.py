"""Builders against Kafka's own bytes, and against the plain decoder."""

import dataclasses
from pathlib import Path

import pytest
from hypothesis import given, settings

from storage_core.formats.batch_v2 import Codec, TimestampType
from storage_core.formats.control import ControlType
from tests.kit.builders import (
    SOME_TIME_MS,
    BatchSpec,
    RecordSpec,
    encode_batch,
    end_txn_marker,
    in_a_row,
    leader_change_batch,
    log_with,
    segment_bytes,
    some_batches,
)
from tests.kit.decode import DecodedBatch, decode_segment
from tests.kit.golden_data import Golden, goldens
from tests.kit.strategies import batches, segments


def spec_of(batch: DecodedBatch) -> BatchSpec:
    """Return the description of a decoded batch; bytes of the records are left to the builder."""
    attributes = batch.header["attributes"]
    log_append = bool(attributes & 0x08)
    return BatchSpec(
        records=tuple(
            RecordSpec(
                key=record.key,
                value=record.value,
                timestamp=record.timestamp,
                headers=tuple((name.decode(), value) for name, value in record.headers),
                offset_delta=record.offset - batch.base_offset,
            )
            for record in batch.records
        ),
        base_offset=batch.base_offset,
        codec=Codec(attributes & 0x07),
        leader_epoch=batch.header["partition_leader_epoch"],
        timestamp_type=TimestampType.LOG_APPEND_TIME if log_append else TimestampType.CREATE_TIME,
        producer_id=batch.header["producer_id"],
        producer_epoch=batch.header["producer_epoch"],
        base_sequence=batch.header["base_sequence"],
        is_transactional=bool(attributes & 0x10),
        is_control=bool(attributes & 0x20),
        delete_horizon_ms=batch.header["base_timestamp"] if attributes & 0x40 else None,
        last_offset_delta=batch.header["last_offset_delta"],
        base_timestamp=batch.header["base_timestamp"],
        max_timestamp=batch.header["max_timestamp"],
    )


V2 = [golden for golden in goldens("clean-*") if golden.case["category"] != "legacy"]
UNCOMPRESSED = [golden for golden in V2 if golden.case["codecs"] == ["none"]] + goldens(
    "dump-none*"
)


@pytest.mark.parametrize("golden", UNCOMPRESSED, ids=lambda golden: golden.name)
def test_kafkas_uncompressed_segments_are_built_byte_for_byte(golden: Golden, tmp_path: Path):
    checked = 0
    for log in sorted(golden.unpack(tmp_path).glob("*.log")):
        data = log.read_bytes()
        for batch in decode_segment(data)[0]:
            spec = spec_of(batch)
            if spec.timestamp_type is TimestampType.LOG_APPEND_TIME:
                continue  # the decoder gives the broker's time, the bytes the producer's
            assert encode_batch(spec) == data[batch.position : batch.position + batch.size]
            checked += 1
    assert checked or "appendtime" in golden.name


@pytest.mark.thorough
@settings(max_examples=200, deadline=None)
@given(batches())
def test_every_field_of_a_batch_comes_back(spec: BatchSpec):
    (batch,), end = decode_segment(encode_batch(spec))
    assert end == batch.size
    assert batch.crc_ok
    again = spec_of(batch)
    if spec.timestamp_type is TimestampType.LOG_APPEND_TIME:
        again = dataclasses.replace(again, records=())
        spec = dataclasses.replace(spec, records=(), base_timestamp=spec.timestamp_base)
    assert encode_batch(again) == encode_batch(spec)


@pytest.mark.thorough
@settings(max_examples=50, deadline=None)
@given(segments())
def test_segments_are_their_batches_end_to_end(specs: list[BatchSpec]):
    decoded, _ = decode_segment(segment_bytes(specs))
    assert [(batch.base_offset, batch.last_offset) for batch in decoded] == [
        (spec.base_offset, spec.last_offset) for spec in specs
    ]


def test_a_batch_says_what_was_left_open():
    spec = BatchSpec(
        base_offset=10,
        records=(
            RecordSpec(key=b"a", timestamp=500),
            RecordSpec(key=b"b", timestamp=900, offset_delta=4),
            RecordSpec(key=b"c", timestamp=700),
        ),
    )
    assert spec.offset_deltas == [0, 4, 5]
    assert (spec.last_offset, spec.next_offset) == (15, 16)
    assert (spec.timestamp_base, spec.largest_timestamp) == (500, 900)
    empty = BatchSpec(base_offset=3)
    assert (empty.last_offset, empty.timestamp_base, empty.largest_timestamp) == (3, -1, -1)


def test_a_marker_takes_78_bytes_and_82_with_a_horizon_two_days_away():
    marker = end_txn_marker(base_offset=5, producer_id=7, producer_epoch=1, coordinator_epoch=3)
    assert len(encode_batch(marker)) == 78
    (batch,), _ = decode_segment(encode_batch(marker))
    assert batch.records[0].key == bytes.fromhex("00000001")
    assert batch.records[0].value == bytes.fromhex("000000000003")
    horizon = SOME_TIME_MS + 2 * 86_400_000
    later = end_txn_marker(
        base_offset=5,
        producer_id=7,
        producer_epoch=1,
        control_type=ControlType.ABORT,
        delete_horizon_ms=horizon,
    )
    assert len(encode_batch(later)) == 82
    (batch,), _ = decode_segment(encode_batch(later))
    assert batch.records[0].timestamp == SOME_TIME_MS
    assert batch.header["base_timestamp"] == horizon


def test_a_leader_change_is_the_one_that_kafka_writes(tmp_path: Path):
    (golden,) = goldens("clean-control-s231-3")
    log = min(golden.unpack(tmp_path).glob("*.log")).read_bytes()
    found = [
        batch
        for batch in decode_segment(log)[0]
        if batch.records and batch.records[0].key == bytes.fromhex("00000002")
    ]
    assert found
    for batch in found:
        leader_id = int.from_bytes((batch.records[0].value or b"")[2:6], "big")
        spec = leader_change_batch(
            base_offset=batch.base_offset,
            leader_epoch=batch.header["partition_leader_epoch"],
            leader_id=leader_id,
            timestamp=batch.records[0].timestamp,
        )
        assert spec_of(decode_segment(encode_batch(spec))[0][0]).records == spec_of(batch).records


def test_plain_batches_follow_each_other():
    specs = some_batches(count=3, records=4, base_offset=100)
    assert [(spec.base_offset, spec.last_offset) for spec in specs] == [
        (100, 103),
        (104, 107),
        (108, 111),
    ]
    assert in_a_row(specs, base_offset=7)[2].base_offset == 15


def test_a_log_may_have_a_torn_tail():
    whole = log_with(batches=3, records=2, base_offset=9, codec=Codec.LZ4)
    torn = log_with(batches=3, records=2, base_offset=9, codec=Codec.LZ4, torn_tail=7)
    assert torn[: len(whole)] == whole
    assert len(torn) == len(whole) + 7
    assert len(decode_segment(torn)[0]) == 3
