"""Batches from plain values, byte by byte: slow, obvious, and nothing of the kernels in it.

A test says what matters to it and gets the rest as a producer and a broker would have made it::

    batch = BatchSpec(base_offset=7, records=(RecordSpec(key=b"k", value=None),))
    data = segment_bytes([batch, end_txn_marker(base_offset=8, producer_id=1, producer_epoch=0)])

Every field of the header can be overridden, so a batch that contradicts itself can be built too;
its CRC is right all the same. Other damage comes from ``tests.kit.damage``.
"""

import dataclasses
import struct
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

import crc32c
import numpy as np

from storage_core.formats.batch_v2 import (
    BATCH_HEADER,
    CONTROL_BIT,
    CRC_AT,
    CRC_START,
    DELETE_HORIZON_BIT,
    HEADER_BYTES,
    LENGTH_OVERHEAD,
    MAGIC_V2,
    NO_PRODUCER_EPOCH,
    NO_PRODUCER_ID,
    NO_SEQUENCE,
    NO_TIMESTAMP,
    TIMESTAMP_TYPE_BIT,
    TRANSACTIONAL_BIT,
    Codec,
    TimestampType,
)
from storage_core.formats.control import CONTROL_KEY, END_TXN_VALUE, ControlType
from storage_core.records.codecs import compress

# Where the clocks of tests begin: 2023-11-14 22:13:20 UTC.
SOME_TIME_MS: Final = 1_700_000_000_000

_VARINT_BITS: Final = 7
_CONTINUE_BIT: Final = 0x80
_NULL_LENGTH: Final = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordSpec:
    """A record."""

    key: bytes | None = None  # none for no key
    value: bytes | None = b""  # none for a tombstone
    timestamp: int = SOME_TIME_MS  # epoch milliseconds
    # Names and values, in order; a value may be None
    headers: tuple[tuple[str, bytes | None], ...] = ()
    # Offset minus the batch's base offset; None for one more than the record before, 0 for the
    # first
    offset_delta: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchSpec:
    """A v2 batch. A field that is None is derived from the others."""

    # In offset order; may be empty, as compaction leaves batches
    records: tuple[RecordSpec, ...] = ()
    base_offset: int = 0  # first offset of its range
    codec: Codec = Codec.NONE  # how the records are compressed
    leader_epoch: int = 0  # -1 for unknown
    # With log append time, set max_timestamp to the broker's time
    timestamp_type: TimestampType = TimestampType.CREATE_TIME
    producer_id: int = NO_PRODUCER_ID  # -1 for none, as for the two below
    producer_epoch: int = NO_PRODUCER_EPOCH
    base_sequence: int = NO_SEQUENCE
    is_transactional: bool = False  # belongs to a transaction
    is_control: bool = False  # holds a control record
    delete_horizon_ms: int | None = None  # epoch milliseconds; None for no horizon
    last_offset_delta: int | None = None  # none for the last record's; 0 without records
    # None for the horizon, else the first record's timestamp, else -1
    base_timestamp: int | None = None
    max_timestamp: int | None = None  # none for the records' largest timestamp, else -1
    record_count: int | None = None  # none for the number of records
    magic: int = MAGIC_V2  # of the header; the layout is v2 whatever it says

    @property
    def offset_deltas(self) -> list[int]:
        """The offset delta of each record."""
        deltas: list[int] = []
        for record in self.records:
            following = deltas[-1] + 1 if deltas else 0
            deltas.append(following if record.offset_delta is None else record.offset_delta)
        return deltas

    @property
    def last_offset(self) -> int:
        """The last offset of its range."""
        if self.last_offset_delta is not None:
            return self.base_offset + self.last_offset_delta
        return self.base_offset + max(self.offset_deltas, default=0)

    @property
    def next_offset(self) -> int:
        """Just past the last offset of its range."""
        return self.last_offset + 1

    @property
    def timestamp_base(self) -> int:
        """What the timestamps of its records are relative to."""
        if self.base_timestamp is not None:
            return self.base_timestamp
        if self.delete_horizon_ms is not None:
            return self.delete_horizon_ms
        return self.records[0].timestamp if self.records else NO_TIMESTAMP

    @property
    def largest_timestamp(self) -> int:
        """What its header says about the largest timestamp."""
        if self.max_timestamp is not None:
            return self.max_timestamp
        return max((record.timestamp for record in self.records), default=NO_TIMESTAMP)

    @property
    def attributes(self) -> int:
        """The attributes of its header."""
        bits = int(self.codec)
        if self.timestamp_type is TimestampType.LOG_APPEND_TIME:
            bits |= TIMESTAMP_TYPE_BIT
        if self.is_transactional:
            bits |= TRANSACTIONAL_BIT
        if self.is_control:
            bits |= CONTROL_BIT
        if self.delete_horizon_ms is not None:
            bits |= DELETE_HORIZON_BIT
        return bits


def encode_varint(number: int) -> bytes:
    """Encode a number of 64 bits or fewer as a zigzag varint."""
    zigzag = 2 * number if number >= 0 else -2 * number - 1
    out = bytearray()
    while zigzag >= _CONTINUE_BIT:
        out.append(zigzag % _CONTINUE_BIT | _CONTINUE_BIT)
        zigzag >>= _VARINT_BITS
    out.append(zigzag)
    return bytes(out)


def encode_record(record: RecordSpec, *, timestamp_delta: int, offset_delta: int) -> bytes:
    """Encode a record with its length before it."""
    parts = [
        b"\0",  # attributes, unused
        encode_varint(timestamp_delta),
        encode_varint(offset_delta),
        _encode_nullable(record.key),
        _encode_nullable(record.value),
        encode_varint(len(record.headers)),
    ]
    for name, value in record.headers:
        parts += [_encode_nullable(name.encode()), _encode_nullable(value)]
    body = b"".join(parts)
    return encode_varint(len(body)) + body


def _encode_nullable(data: bytes | None) -> bytes:
    return encode_varint(_NULL_LENGTH) if data is None else encode_varint(len(data)) + data


def encode_records(batch: BatchSpec) -> bytes:
    """Encode the records of a batch, end to end, not compressed."""
    return b"".join(
        encode_record(
            record,
            timestamp_delta=record.timestamp - batch.timestamp_base,
            offset_delta=offset_delta,
        )
        for record, offset_delta in zip(batch.records, batch.offset_deltas, strict=True)
    )


def encode_batch(batch: BatchSpec, *, payload: bytes | None = None) -> bytes:
    """Encode a batch with the right length and CRC.

    Args:
        payload: What stands after the header, in place of the batch's own records.
    """
    if payload is None:
        payload = compress(batch.codec, encode_records(batch)) if batch.records else b""
    count = len(batch.records) if batch.record_count is None else batch.record_count
    header = np.zeros(1, BATCH_HEADER)
    header["base_offset"] = batch.base_offset
    header["batch_length"] = HEADER_BYTES + len(payload) - LENGTH_OVERHEAD
    header["partition_leader_epoch"] = batch.leader_epoch
    header["magic"] = batch.magic
    header["attributes"] = batch.attributes
    header["last_offset_delta"] = batch.last_offset - batch.base_offset
    header["base_timestamp"] = batch.timestamp_base
    header["max_timestamp"] = batch.largest_timestamp
    header["producer_id"] = batch.producer_id
    header["producer_epoch"] = batch.producer_epoch
    header["base_sequence"] = batch.base_sequence
    header["record_count"] = count
    return with_valid_crc(header.tobytes() + payload)


def with_valid_crc(batch: bytes) -> bytes:
    """Return the same batch with the CRC that its bytes ask for."""
    crc = struct.pack(">I", crc32c.crc32c(batch[CRC_START:]))
    return batch[:CRC_AT] + crc + batch[CRC_AT + len(crc) :]


def end_txn_marker(
    *,
    base_offset: int,
    producer_id: int,
    producer_epoch: int,
    control_type: ControlType = ControlType.COMMIT,
    timestamp: int = SOME_TIME_MS,
    coordinator_epoch: int = 0,
    leader_epoch: int = 0,
    delete_horizon_ms: int | None = None,
) -> BatchSpec:
    """Return the batch of a commit or abort marker."""
    value = np.zeros(1, END_TXN_VALUE)
    value["coordinator_epoch"] = coordinator_epoch
    return BatchSpec(
        records=(
            RecordSpec(key=_control_key(control_type), value=value.tobytes(), timestamp=timestamp),
        ),
        base_offset=base_offset,
        leader_epoch=leader_epoch,
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        is_transactional=True,
        is_control=True,
        delete_horizon_ms=delete_horizon_ms,
    )


def leader_change_batch(
    *, base_offset: int, leader_epoch: int, leader_id: int = 1, timestamp: int = SOME_TIME_MS
) -> BatchSpec:
    """Return the control batch that a new leader of a KRaft log writes, without voters."""
    # int16 version, int32 leader, two empty compact arrays, no tagged fields.
    value = struct.pack(">hi", 0, leader_id) + b"\x01\x01\x00"
    key = _control_key(ControlType.LEADER_CHANGE)
    return BatchSpec(
        records=(RecordSpec(key=key, value=value, timestamp=timestamp),),
        base_offset=base_offset,
        leader_epoch=leader_epoch,
        is_control=True,
    )


def _control_key(control_type: ControlType) -> bytes:
    key = np.zeros(1, CONTROL_KEY)
    key["type"] = control_type
    return key.tobytes()


def segment_bytes(batches: Iterable[BatchSpec]) -> bytes:
    """Encode the batches of a .log file, end to end."""
    return b"".join(encode_batch(batch) for batch in batches)


def some_batches(
    *,
    count: int,
    records: int = 1,
    base_offset: int = 0,
    timestamp: int = SOME_TIME_MS,
    codec: Codec = Codec.NONE,
    leader_epoch: int = 0,
) -> list[BatchSpec]:
    """Return count plain batches of that many records each, keys by turns, a millisecond apart."""
    return [
        BatchSpec(
            records=tuple(
                RecordSpec(
                    key=b"key-%d" % ((first + i) % 10),
                    value=b"value-%d" % (first + i),
                    timestamp=timestamp + first + i - base_offset,
                )
                for i in range(records)
            ),
            base_offset=first,
            codec=codec,
            leader_epoch=leader_epoch,
        )
        for first in range(base_offset, base_offset + count * records, records)
    ]


def log_with(
    *,
    batches: int,
    records: int = 1,
    base_offset: int = 0,
    codec: Codec = Codec.NONE,
    torn_tail: int = 0,
) -> bytes:
    """Return a .log file of plain batches.

    Args:
        torn_tail: How many bytes there are of one more batch.
    """
    specs = some_batches(count=batches + 1, records=records, base_offset=base_offset, codec=codec)
    encoded = [encode_batch(spec) for spec in specs]
    return b"".join(encoded[:-1]) + encoded[-1][:torn_tail]


def in_a_row(batches: Iterable[BatchSpec], *, base_offset: int = 0) -> list[BatchSpec]:
    """Return the batches with base offsets that follow each other from base_offset on."""
    moved: list[BatchSpec] = []
    for batch in batches:
        moved.append(dataclasses.replace(batch, base_offset=base_offset))
        base_offset = moved[-1].next_offset
    return moved
