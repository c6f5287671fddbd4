"""Log entries of message formats v0 and v1 from plain values, byte by byte: slow and obvious.

::

    old = LegacyMessage(offset=5, key=b"k", value=None)
    new = LegacySet(messages=(old, LegacyMessage(offset=6, value=b"v")), codec=Codec.GZIP)
    data = encode_entry(old) + encode_entry(new)
"""

import struct
import zlib
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from storage_core.formats.batch_v2 import (
    NO_LEADER_EPOCH,
    NO_TIMESTAMP,
    TIMESTAMP_TYPE_BIT,
    Codec,
    TimestampType,
)
from storage_core.formats.legacy import MAGIC_V0, MAGIC_V1
from storage_core.records.codecs import compress
from tests.kit.builders import SOME_TIME_MS, BatchSpec, encode_batch

_LZ4_CHECKSUM_AT: Final = 6
# What Kafka's first LZ4 writer made of "60 40", for it took the frame's magic into the checksum.
_BROKEN_LZ4_CHECKSUM: Final = 0x1A


@dataclass(frozen=True, slots=True, kw_only=True)
class LegacyMessage:
    """A message that is not compressed."""

    offset: int = 0  # of the entry, as it is in the log; see encode_entry for those in a set
    key: bytes | None = None  # none for no key
    value: bytes | None = b""  # none for a tombstone
    timestamp: int = SOME_TIME_MS  # epoch milliseconds; v0 has none and does not write it
    magic: int = MAGIC_V1  # 0 or 1; other numbers are laid out as v1
    attributes: int = 0  # as they are

    @property
    def base_offset(self) -> int:
        """Its offset."""
        return self.offset

    @property
    def last_offset(self) -> int:
        """Its offset."""
        return self.offset

    @property
    def next_offset(self) -> int:
        """Just past its offset."""
        return self.offset + 1

    @property
    def largest_timestamp(self) -> int:
        """What a reader of its header gets."""
        return NO_TIMESTAMP if self.magic == MAGIC_V0 else self.timestamp

    @property
    def leader_epoch(self) -> int:
        """None is known."""
        return NO_LEADER_EPOCH


@dataclass(frozen=True, slots=True, kw_only=True)
class LegacySet:
    """A compressed message with a set of messages inside. What is None follows from the others."""

    messages: tuple[LegacyMessage, ...] = ()  # those inside, with the offsets that readers see
    codec: Codec = Codec.GZIP  # how the set is compressed
    magic: int = MAGIC_V1  # of the wrapper
    offset: int | None = None  # of the wrapper; None for the last message's
    timestamp_type: TimestampType = TimestampType.CREATE_TIME  # of the wrapper
    timestamp: int | None = None  # of the wrapper; None for the largest inside
    # What the first message's offset is stored as; None as brokers do it: the offset itself in v0,
    # 0 in v1
    first_inner_offset: int | None = None
    # The wrapper's value, in place of the compressed set; an absent one is null
    payload: bytes | None = b""

    @property
    def base_offset(self) -> int:
        """Offset of the first message inside."""
        return self.messages[0].offset

    @property
    def last_offset(self) -> int:
        """Offset of the wrapper."""
        return self.messages[-1].offset if self.offset is None else self.offset

    @property
    def next_offset(self) -> int:
        """Just past the wrapper's offset."""
        return self.last_offset + 1

    @property
    def largest_timestamp(self) -> int:
        """What a reader of the wrapper's header gets."""
        if self.magic == MAGIC_V0:
            return NO_TIMESTAMP
        newest = max((message.timestamp for message in self.messages), default=NO_TIMESTAMP)
        return newest if self.timestamp is None else self.timestamp

    @property
    def leader_epoch(self) -> int:
        """None is known."""
        return NO_LEADER_EPOCH


LegacyEntry = LegacyMessage | LegacySet
AnyBatch = BatchSpec | LegacyEntry


def encode_any(batch: AnyBatch) -> bytes:
    """Encode a batch of any format."""
    return encode_batch(batch) if isinstance(batch, BatchSpec) else encode_entry(batch)


def encoded(batches: Iterable[AnyBatch]) -> bytes:
    """Return a segment of these batches, of any formats."""
    return b"".join(map(encode_any, batches))


def encode_entry(entry: LegacyEntry) -> bytes:
    """Encode an entry of a log, with the right size and CRC."""
    return encode_message(entry) if isinstance(entry, LegacyMessage) else _encode_set(entry)


def encode_message(message: LegacyMessage, *, stored_offset: int | None = None) -> bytes:
    """Encode a message with offset and size before it; stored_offset stands in for its own."""
    body = struct.pack(">bb", message.magic, message.attributes)
    if message.magic != MAGIC_V0:
        body += struct.pack(">q", message.timestamp)
    body += _nullable(message.key) + _nullable(message.value)
    offset = message.offset if stored_offset is None else stored_offset
    return struct.pack(">qiI", offset, 4 + len(body), zlib.crc32(body)) + body


def _nullable(data: bytes | None) -> bytes:
    return struct.pack(">i", -1) if data is None else struct.pack(">i", len(data)) + data


def encode_inner_set(entry: LegacySet) -> bytes:
    """Encode the messages of a set, not compressed, with their offsets as they are stored."""
    if not entry.messages:
        return b""
    first = entry.messages[0].offset
    stored_first = entry.first_inner_offset
    if stored_first is None:
        stored_first = first if entry.magic == MAGIC_V0 else 0
    return b"".join(
        encode_message(message, stored_offset=message.offset - first + stored_first)
        for message in entry.messages
    )


def compress_set(codec: Codec, data: bytes, *, magic: int) -> bytes:
    """Compress a set as brokers of its time did."""
    packed = compress(codec, data)
    if codec is Codec.LZ4 and magic == MAGIC_V0:
        checksum = bytes([_BROKEN_LZ4_CHECKSUM])
        packed = packed[:_LZ4_CHECKSUM_AT] + checksum + packed[_LZ4_CHECKSUM_AT + 1 :]
    return packed


def _encode_set(entry: LegacySet) -> bytes:
    value = entry.payload
    if entry.payload == b"" and entry.messages:
        value = compress_set(entry.codec, encode_inner_set(entry), magic=entry.magic)
    is_append = entry.timestamp_type is TimestampType.LOG_APPEND_TIME
    return encode_message(
        LegacyMessage(
            offset=entry.last_offset,
            value=value,
            timestamp=entry.largest_timestamp,
            magic=entry.magic,
            attributes=int(entry.codec) | (TIMESTAMP_TYPE_BIT if is_append else 0),
        )
    )
