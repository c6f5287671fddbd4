"""Entries of message formats v0 and v1, taken apart one message after the other, in plain Python.

As ``tests.kit.decode`` it shares nothing with the kernels but the codecs. What it takes
and refuses is what Kafka's iterator takes and refuses.
"""

import struct
import zlib
from dataclasses import dataclass
from typing import Final

from storage_core.formats.batch_v2 import CODEC_MASK, NO_TIMESTAMP, TIMESTAMP_TYPE_BIT, Codec
from storage_core.formats.legacy import (
    ENTRY_OVERHEAD,
    LENGTH_BYTES,
    MAGIC_V0,
    MAGIC_V1,
    MIN_MESSAGE_BYTES_V0,
)
from storage_core.records.codecs import decompress

LIMIT_BYTES: Final = 2**30
MAX_MESSAGE_BYTES: Final = 2**31 - 9
_HEAD: Final = struct.Struct(">qiIbB")  # offset, size, crc, magic, attributes
_SIZE: Final = struct.Struct(">i")
_LENGTH: Final = struct.Struct(">i")
_TIMESTAMP: Final = struct.Struct(">q")
# In the message: behind the crc the checksum begins, behind magic and attributes the rest.
_CRC_START: Final = 4
_REST_AT: Final = 6


class MalformedEntryError(ValueError):
    """Kafka's iterator would refuse the entry."""


@dataclass(frozen=True, slots=True)
class DecodedMessage:
    """A message as a reader gets it; the timestamp is -1 for none."""

    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodedEntry:
    """An entry."""

    offset: int
    size: int  # of the whole entry, in bytes
    magic: int
    attributes: int  # as stored, 0 to 255
    crc: int
    crc_ok: bool  # whether it is right
    message: bytes  # the bytes that size counts

    @property
    def codec(self) -> int:
        """Number of its codec."""
        return self.attributes & CODEC_MASK

    @property
    def timestamp(self) -> int:
        """Its own timestamp, -1 in v0."""
        if self.magic == MAGIC_V0:
            return NO_TIMESTAMP
        timestamp: int = _TIMESTAMP.unpack_from(self.message, _REST_AT)[0]
        return timestamp

    @property
    def is_append_time(self) -> bool:
        """Whether the broker gave it its timestamp."""
        return self.magic != MAGIC_V0 and bool(self.attributes & TIMESTAMP_TYPE_BIT)


def parse_entry(data: bytes, position: int = 0) -> DecodedEntry:
    """Parse the entry at a position; all of its bytes have to be there."""
    offset, size, crc, magic, attributes = _HEAD.unpack_from(data, position)
    start = position + ENTRY_OVERHEAD
    message = data[start : start + size]
    return DecodedEntry(
        offset=offset,
        size=ENTRY_OVERHEAD + size,
        magic=magic,
        attributes=attributes,
        crc=crc,
        crc_ok=zlib.crc32(message[_CRC_START:]) == crc,
        message=message,
    )


def messages_of(
    entry: DecodedEntry, *, max_message_bytes: int = MAX_MESSAGE_BYTES
) -> list[DecodedMessage]:
    """Return the messages that a reader gets of an entry.

    Args:
        max_message_bytes: The largest message that may lie in a compressed one.
    """
    if entry.codec == Codec.NONE:
        return [DecodedMessage(entry.offset, entry.timestamp, *_key_and_value(entry))]
    if entry.codec > Codec.LZ4:
        raise MalformedEntryError(f"codec {entry.codec}")
    _, value = _key_and_value(entry)
    if value is None:
        raise MalformedEntryError("compressed, and no value")
    data = decompress(Codec(entry.codec), value, limit_bytes=LIMIT_BYTES, magic=entry.magic)
    inner = _inner_entries(bytes(data), max_message_bytes)
    shift = 0
    if entry.magic == MAGIC_V1 and entry.offset != 0:
        shift = entry.offset - inner[-1].offset
        if shift < 0:
            raise MalformedEntryError("the offset of the wrapper lies below the last one inside")
    return [
        DecodedMessage(
            shift + one.offset,
            entry.timestamp if entry.is_append_time and one.magic == MAGIC_V1 else one.timestamp,
            *_key_and_value(one),
        )
        for one in inner
    ]


def _inner_entries(data: bytes, max_message_bytes: int) -> list[DecodedEntry]:
    found: list[DecodedEntry] = []
    position = 0
    while len(data) - position >= ENTRY_OVERHEAD:
        (size,) = _SIZE.unpack_from(data, position + ENTRY_OVERHEAD - _SIZE.size)
        if size < MIN_MESSAGE_BYTES_V0:
            raise MalformedEntryError(f"a message of {size} bytes")
        if size > max_message_bytes:
            raise MalformedEntryError(f"a message of {size} bytes, more than allowed")
        if size > len(data) - position - ENTRY_OVERHEAD:
            break
        found.append(parse_entry(data, position))
        position += found[-1].size
    if not found:
        raise MalformedEntryError("no message inside")
    if any(one.codec for one in found):
        raise MalformedEntryError("a compressed message inside")
    return found


def _key_and_value(entry: DecodedEntry) -> tuple[bytes | None, bytes | None]:
    at = _REST_AT if entry.magic == MAGIC_V0 else _REST_AT + _TIMESTAMP.size
    key, at = _nullable(entry.message, at)
    value, _ = _nullable(entry.message, at)
    return key, value


def _nullable(message: bytes, at: int) -> tuple[bytes | None, int]:
    if at + LENGTH_BYTES > len(message):
        raise MalformedEntryError(f"no length at {at}")
    (length,) = _LENGTH.unpack_from(message, at)
    at += LENGTH_BYTES
    if length < 0:
        return None, at
    if length > len(message) - at:
        raise MalformedEntryError(f"{length} bytes at {at}, {len(message) - at} are left")
    return message[at : at + length], at + length
