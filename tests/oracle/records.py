"""What goes into Kafka and what comes out, as plain values: batches to append, batches read."""

from dataclasses import dataclass
from typing import Any, Final

import jpype

from tests.oracle.jvm import java, java_bytes, python_bytes

INTERNAL: Final = "org.apache.kafka.common.record.internal."
NO_PRODUCER: Final = -1
NO_TIMESTAMP: Final = -1
BUFFER_BYTES: Final = 4096  # where Kafka's builder starts; it grows by itself


@dataclass(frozen=True, slots=True, kw_only=True)
class NewRecord:
    """A record to append; offset_gap is how many offsets are left out before it."""

    key: bytes | None
    value: bytes | None
    timestamp: int
    headers: tuple[tuple[str, bytes | None], ...] = ()
    offset_gap: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class NewBatch:
    """A batch to append; without a producer if its id is -1.

    magic: of a legacy set 0 or 1; it has neither producer nor headers, and each of its messages is
    an entry of its own unless they are compressed. append_time: when a broker that puts its own
    time on records took it, epoch milliseconds; not for magic 0.
    """

    records: tuple[NewRecord, ...]
    codec: str = "none"
    producer_id: int = NO_PRODUCER
    producer_epoch: int = -1
    base_sequence: int = -1
    transactional: bool = False
    magic: int = 2
    append_time: int | None = None

    def memory_records(self, *, base_offset: int, leader_epoch: int) -> Any:
        """Return Kafka's MemoryRecords of this batch, its first offset as given plus the gap."""
        builder = java(INTERNAL + "MemoryRecords").builder(
            java("java.nio.ByteBuffer").allocate(BUFFER_BYTES),
            jpype.JByte(self.magic),
            compression(self.codec),
            getattr(java("org.apache.kafka.common.record.TimestampType"), self._timestamp_type()),
            jpype.JLong(base_offset),
            jpype.JLong(NO_TIMESTAMP if self.append_time is None else self.append_time),
            jpype.JLong(self.producer_id),
            jpype.JShort(self.producer_epoch),
            jpype.JInt(self.base_sequence),
            self.transactional,
            jpype.JInt(leader_epoch),
        )
        offset = base_offset
        for record in self.records:
            offset += record.offset_gap
            builder.appendWithOffset(
                jpype.JLong(offset),
                jpype.JLong(record.timestamp if self.magic else NO_TIMESTAMP),
                java_bytes(record.key),
                java_bytes(record.value),
                _java_headers(record.headers),
            )
            offset += 1
        return builder.build()

    def _timestamp_type(self) -> str:
        if not self.magic:
            return "NO_TIMESTAMP_TYPE"
        return "CREATE_TIME" if self.append_time is None else "LOG_APPEND_TIME"


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadRecord:
    """A record as Kafka reads it."""

    offset: int
    timestamp: int
    sequence: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadBatch:
    """A batch as Kafka reads it; no records if its CRC is wrong. Times in epoch milliseconds."""

    position: int
    size: int
    base_offset: int
    last_offset: int
    magic: int
    crc: int
    is_valid: bool
    codec: str
    timestamp_type: str
    base_timestamp: int
    max_timestamp: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    last_sequence: int
    is_transactional: bool
    is_control: bool
    leader_epoch: int
    delete_horizon_ms: int | None
    record_count: int
    records: tuple[ReadRecord, ...]


def read_batches(data: bytes) -> list[ReadBatch]:
    """Read the bytes of a segment as Kafka does; v2 only. A torn batch at the end is left out."""
    buffer = java("java.nio.ByteBuffer").wrap(java_bytes(data))
    position = 0
    result = []
    for batch in java(INTERNAL + "MemoryRecords").readableRecords(buffer).batches():
        result.append(_read_batch(batch, position))
        position += result[-1].size
    return result


def read_record(record: Any) -> ReadRecord:
    """Copy one of Kafka's records."""
    return ReadRecord(
        offset=int(record.offset()),
        timestamp=int(record.timestamp()),
        sequence=int(record.sequence()),
        key=python_bytes(record.key()),
        value=python_bytes(record.value()),
        headers=tuple(
            (str(header.key()), None if header.value() is None else bytes(header.value()))
            for header in record.headers()
        ),
    )


def compression(codec: str) -> Any:
    """Return Kafka's Compression of that name, at its default level."""
    return java("org.apache.kafka.common.compress.Compression").of(codec).build()


def end_transaction_marker(
    *, producer_id: int, epoch: int, commit: bool, coordinator_epoch: int, timestamp: int
) -> Any:
    """Return the MemoryRecords of a commit or abort marker."""
    kinds = java(INTERNAL + "ControlRecordType")
    marker = java(INTERNAL + "EndTransactionMarker")(
        kinds.COMMIT if commit else kinds.ABORT, coordinator_epoch
    )
    return java(INTERNAL + "MemoryRecords").withEndTransactionMarker(
        jpype.JLong(timestamp), jpype.JLong(producer_id), jpype.JShort(epoch), marker
    )


def leader_change(*, base_offset: int, timestamp: int, leader_epoch: int) -> Any:
    """Return the MemoryRecords of a KRaft leader-change control batch."""
    message = java("org.apache.kafka.common.message.LeaderChangeMessage")().setLeaderId(1)
    return java(INTERNAL + "MemoryRecords").withLeaderChangeMessage(
        jpype.JLong(base_offset),
        jpype.JLong(timestamp),
        jpype.JInt(leader_epoch),
        java("java.nio.ByteBuffer").allocate(BUFFER_BYTES),
        message,
    )


def _java_headers(headers: tuple[tuple[str, bytes | None], ...]) -> Any:
    header = java("org.apache.kafka.common.header.internals.RecordHeader")
    interface = java("org.apache.kafka.common.header.Header")
    return jpype.JArray(interface)([header(key, java_bytes(value)) for key, value in headers])


def _read_batch(batch: Any, position: int) -> ReadBatch:
    valid, horizon = bool(batch.isValid()), batch.deleteHorizonMs()
    return ReadBatch(
        position=position,
        size=int(batch.sizeInBytes()),
        base_offset=int(batch.baseOffset()),
        last_offset=int(batch.lastOffset()),
        magic=int(batch.magic()),
        crc=int(batch.checksum()),
        is_valid=valid,
        codec=str(batch.compressionType().name),
        timestamp_type=str(batch.timestampType().toString()),
        base_timestamp=int(batch.baseTimestamp()),
        max_timestamp=int(batch.maxTimestamp()),
        producer_id=int(batch.producerId()),
        producer_epoch=int(batch.producerEpoch()),
        base_sequence=int(batch.baseSequence()),
        last_sequence=int(batch.lastSequence()),
        is_transactional=bool(batch.isTransactional()),
        is_control=bool(batch.isControlBatch()),
        leader_epoch=int(batch.partitionLeaderEpoch()),
        delete_horizon_ms=int(horizon.getAsLong()) if horizon.isPresent() else None,
        record_count=int(batch.countOrNull()),
        records=tuple(read_record(record) for record in batch) if valid else (),
    )
