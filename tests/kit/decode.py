"""A segment, taken apart in plain Python: slow and obvious, for tests and for comparisons.

Every field is read by its format table. Nothing here is shared with the kernels or the readers,
so that a mistake of theirs cannot hide in both sides of a comparison; only the codecs are.
"""

from dataclasses import dataclass

import crc32c
import numpy as np

from storage_core.errors import DecompressionError
from storage_core.formats.batch_v2 import (
    BATCH_HEADER,
    CODEC_MASK,
    CRC_START,
    HEADER_BYTES,
    HEADER_UP_TO_MAGIC_BYTES,
    LENGTH_OVERHEAD,
    MAGIC_V2,
    MIN_ENTRY_LENGTH,
    TIMESTAMP_TYPE_BIT,
    Codec,
)
from storage_core.formats.legacy import MAGIC_V0, MAGIC_V1
from storage_core.records.codecs import decompress
from tests.kit.decode_legacy import (
    DecodedEntry,
    MalformedEntryError,
    messages_of,
    parse_entry,
)

MAX_DECOMPRESSED_BYTES = 2**30
CONTINUE_BIT = 0x80


class UndecodableError(ValueError):
    """A batch is not what the format says; the text tells where."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodedRecord:
    """A record. Header names as they are in the file, for not every name is UTF-8."""

    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[bytes, bytes | None], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodedBatch:
    """A batch: every field of a v2 header by its name, and its records.

    records are empty where the CRC is wrong. Timestamps of a v2 batch with log append time are all
    its max_timestamp, as readers are told. Of an entry of an older format the header says what a
    v2 batch of the same records would say, but for magic, length and crc, which are its own.
    """

    position: int
    size: int
    header: dict[str, int]
    crc_ok: bool
    records: tuple[DecodedRecord, ...]

    @property
    def base_offset(self) -> int:
        """The first offset of its range."""
        return self.header["base_offset"]

    @property
    def last_offset(self) -> int:
        """The last offset of its range, whether or not a record has it."""
        return self.header["base_offset"] + self.header["last_offset_delta"]


def decode_segment(data: bytes) -> tuple[list[DecodedBatch], int]:
    """Take a .log file apart.

    Returns:
        Its whole batches, and the position just past the last one: the rest is a torn tail.

    Raises:
        UndecodableError: A batch has an unknown magic, or its records do not fit its header.
    """
    batches: list[DecodedBatch] = []
    position = 0
    while position + HEADER_UP_TO_MAGIC_BYTES < len(data):
        entry = parse_entry(data, position)
        is_legacy = entry.magic in {MAGIC_V0, MAGIC_V1}
        if entry.magic != MAGIC_V2 and not is_legacy:
            raise UndecodableError(f"position {position}: magic {entry.magic}, expected 0 to 2")
        smallest = LENGTH_OVERHEAD + MIN_ENTRY_LENGTH if is_legacy else HEADER_BYTES
        if entry.size < smallest or position + entry.size > len(data):
            break
        if is_legacy:
            batches.append(_decode_entry(entry, position))
        else:
            batch = data[position : position + entry.size]
            batches.append(_decode_batch(batch, position, _header(data, position)))
        position += entry.size
    return batches, position


def _decode_entry(entry: DecodedEntry, position: int) -> DecodedBatch:
    records: tuple[DecodedRecord, ...] = ()
    if entry.crc_ok:
        try:
            records = tuple(
                DecodedRecord(
                    offset=one.offset,
                    timestamp=one.timestamp,
                    key=one.key,
                    value=one.value,
                    headers=(),
                )
                for one in messages_of(entry)
            )
        except (MalformedEntryError, DecompressionError) as error:
            raise UndecodableError(f"entry at position {position}: {error}") from error
    base_offset = records[0].offset if records else entry.offset
    header = dict.fromkeys(BATCH_HEADER.names or (), -1) | {
        "base_offset": base_offset,
        "batch_length": entry.size - LENGTH_OVERHEAD,
        "magic": entry.magic,
        "crc": entry.crc,
        "attributes": entry.codec | (TIMESTAMP_TYPE_BIT if entry.is_append_time else 0),
        "last_offset_delta": entry.offset - base_offset,
        "base_timestamp": records[0].timestamp if records else entry.timestamp,
        "max_timestamp": entry.timestamp,
        "record_count": len(records),
    }
    return DecodedBatch(
        position=position, size=entry.size, header=header, crc_ok=entry.crc_ok, records=records
    )


def _header(data: bytes, position: int) -> dict[str, int]:
    row = np.frombuffer(data, BATCH_HEADER, 1, position)[0]
    return {name: int(row[name]) for name in BATCH_HEADER.names or ()}


def _decode_batch(batch: bytes, position: int, header: dict[str, int]) -> DecodedBatch:
    crc_ok = crc32c.crc32c(batch[CRC_START:]) == header["crc"]
    records: tuple[DecodedRecord, ...] = ()
    if crc_ok:
        codec = Codec(header["attributes"] & CODEC_MASK)
        body = batch[HEADER_BYTES:]
        if codec is not Codec.NONE:
            body = bytes(decompress(codec, body, limit_bytes=MAX_DECOMPRESSED_BYTES))
        try:
            records = _decode_records(body, header)
        except (UndecodableError, IndexError) as error:
            raise UndecodableError(f"batch at position {position}: {error}") from error
    return DecodedBatch(
        position=position, size=len(batch), header=header, crc_ok=crc_ok, records=records
    )


def _decode_records(body: bytes, header: dict[str, int]) -> tuple[DecodedRecord, ...]:
    reader = _Reader(body)
    records = tuple(_decode_record(reader, header) for _ in range(header["record_count"]))
    if reader.position != len(body):
        raise UndecodableError(f"{len(body) - reader.position} bytes after the last record")
    return records


def _decode_record(reader: "_Reader", header: dict[str, int]) -> DecodedRecord:
    length = reader.varint()
    end = reader.position + length
    reader.take(1)  # attributes, unused
    timestamp = _wrapped(header["base_timestamp"] + reader.varint())
    if header["attributes"] & TIMESTAMP_TYPE_BIT:
        timestamp = header["max_timestamp"]
    record = DecodedRecord(
        timestamp=timestamp,
        offset=header["base_offset"] + reader.varint(),
        key=reader.nullable(),
        value=reader.nullable(),
        headers=tuple(
            (reader.take(reader.varint()), reader.nullable()) for _ in range(reader.varint())
        ),
    )
    if reader.position != end:
        raise UndecodableError(
            f"the record of offset {record.offset} says {length} bytes, "
            f"its fields take {reader.position - end + length}"
        )
    return record


def _wrapped(number: int) -> int:
    """Return what 64-bit arithmetic makes of a number."""
    return (number + 2**63) % 2**64 - 2**63


class _Reader:
    """A position in bytes, and what can be read there."""

    def __init__(self, data: bytes) -> None:
        self.data, self.position = data, 0

    def take(self, count: int) -> bytes:
        end = self.position + count
        if count < 0 or end > len(self.data):
            raise UndecodableError(f"{count} bytes at {self.position} of {len(self.data)}")
        taken = self.data[self.position : end]
        self.position = end
        return taken

    def nullable(self) -> bytes | None:
        count = self.varint()
        return None if count < 0 else self.take(count)

    def varint(self) -> int:
        zigzag = shift = 0
        while True:
            byte = self.data[self.position]
            self.position += 1
            zigzag |= (byte & ~CONTINUE_BIT) << shift
            shift += 7
            if not byte & CONTINUE_BIT:
                return (zigzag >> 1) ^ -(zigzag & 1)
