"""What our builders build, as Kafka reads and opens it."""

from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings

from storage_core.formats.batch_v2 import TimestampType
from storage_core.formats.control import ControlType
from tests.kit.builders import (
    SOME_TIME_MS,
    BatchSpec,
    encode_batch,
    end_txn_marker,
    segment_bytes,
    some_batches,
)
from tests.kit.compare import read_tree
from tests.kit.directories import SegmentSpec, write_partition
from tests.kit.strategies import segments
from tests.oracle.jvm import python_bytes
from tests.oracle.kafka import Kafka
from tests.oracle.records import ReadBatch, end_transaction_marker, read_batches

pytestmark = [pytest.mark.oracle, pytest.mark.usefixtures("kafka_jvm")]

MAX_SEQUENCE = 2**31 - 1


def expected_batch(spec: BatchSpec, position: int) -> ReadBatch:
    """Return what Kafka has to read; records apart."""
    has_sequence = spec.base_sequence >= 0
    delta = spec.last_offset - spec.base_offset
    data = encode_batch(spec)
    return ReadBatch(
        position=position,
        size=len(data),
        base_offset=spec.base_offset,
        last_offset=spec.last_offset,
        magic=2,
        crc=int.from_bytes(data[17:21], "big"),
        is_valid=True,
        codec=spec.codec.name.lower(),
        timestamp_type=str(spec.timestamp_type),
        base_timestamp=spec.timestamp_base,
        max_timestamp=spec.largest_timestamp,
        producer_id=spec.producer_id,
        producer_epoch=spec.producer_epoch,
        base_sequence=spec.base_sequence,
        last_sequence=(spec.base_sequence + delta) % (MAX_SEQUENCE + 1) if has_sequence else -1,
        is_transactional=spec.is_transactional,
        is_control=spec.is_control,
        leader_epoch=spec.leader_epoch,
        delete_horizon_ms=spec.delete_horizon_ms,
        record_count=len(spec.records),
        records=(),
    )


@pytest.mark.thorough
@settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(segments())
def test_kafka_reads_what_was_described(specs: list[BatchSpec]):
    position = 0
    found = read_batches(segment_bytes(specs))
    assert len(found) == len(specs)
    for batch, spec in zip(found, specs, strict=True):
        expected = expected_batch(spec, position)
        position += expected.size
        assert {name: getattr(batch, name) for name in batch.__slots__ if name != "records"} == {
            name: getattr(expected, name) for name in expected.__slots__ if name != "records"
        }
        broker_time = spec.timestamp_type is TimestampType.LOG_APPEND_TIME
        assert [(r.offset, r.timestamp, r.key, r.value, r.headers) for r in batch.records] == [
            (
                spec.base_offset + delta,
                spec.largest_timestamp if broker_time else record.timestamp,
                record.key,
                record.value,
                record.headers,
            )
            for record, delta in zip(spec.records, spec.offset_deltas, strict=True)
        ]


@pytest.mark.parametrize("commit", [True, False], ids=["commit", "abort"])
def test_a_marker_has_kafkas_bytes(commit: bool):
    kafkas = end_transaction_marker(
        producer_id=4711, epoch=3, commit=commit, coordinator_epoch=9, timestamp=SOME_TIME_MS
    )
    ours = end_txn_marker(
        base_offset=0,
        producer_id=4711,
        producer_epoch=3,
        control_type=ControlType.COMMIT if commit else ControlType.ABORT,
        coordinator_epoch=9,
        leader_epoch=-1,
    )
    assert encode_batch(ours) == python_bytes(kafkas.buffer())


def test_kafka_opens_and_closes_a_built_partition_without_changing_it(tmp_path: Path):
    specs = some_batches(count=40, records=3)
    directory = write_partition(
        tmp_path / "topic-0",
        [
            SegmentSpec(base_offset=0, batches=specs[:15]),
            SegmentSpec(base_offset=45, batches=specs[15:30], producers=[]),
            SegmentSpec(base_offset=90, batches=specs[30:], producers=[]),
            SegmentSpec(base_offset=120, producers=[]),
        ],
        index_interval_bytes=300,
    )
    before = read_tree(directory)
    kafka = Kafka(now_ms=SOME_TIME_MS)
    config = {"index.interval.bytes": 300, "internal.segment.bytes": 100_000, "retention.ms": -1}
    with kafka.open_partition(directory, config=config) as partition:
        assert partition.log_end_offset == 120
    assert read_tree(directory) == before
