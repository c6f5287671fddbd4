"""Batches of a .log file: where they are, what their headers say, whether their CRCs are right."""

import enum
import struct
from dataclasses import dataclass

import crc32c

# The header of message format v2, spelled out once more so that the format table is checked too.
HEADER = struct.Struct(">qiibIhiqqqhii")
HEADER_BYTES = 61
LENGTH_AT, MAGIC_AT, CRC_START = 8, 16, 21
BYTES_BEFORE_LENGTH_COUNTS = 12
SMALLEST_LENGTH = 14  # of any format


class Stop(enum.Enum):
    """Why a scan stopped."""

    END = "at the end of the last batch"
    TORN = "the next batch runs past the end"
    BAD_LENGTH = "the next batch has an impossible length"


@dataclass(frozen=True, slots=True)
class Header:
    """The fields of a header, in their order."""

    base_offset: int
    batch_length: int
    partition_leader_epoch: int
    magic: int
    crc: int
    attributes: int
    last_offset_delta: int
    base_timestamp: int
    max_timestamp: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    record_count: int

    @property
    def last_offset(self) -> int:
        """The last offset of its range."""
        return self.base_offset + self.last_offset_delta

    @property
    def size(self) -> int:
        """Bytes of the whole batch."""
        return BYTES_BEFORE_LENGTH_COUNTS + self.batch_length


def parse_header(data: bytes, position: int = 0) -> Header:
    """Parse the header at a position; the bytes have to be there."""
    return Header(*HEADER.unpack_from(data, position))


def crc_of(batch: bytes) -> int:
    """Return the CRC-32C that a batch has to have."""
    return crc32c.crc32c(batch[CRC_START:])


def scan(data: bytes) -> tuple[list[int], int, Stop]:
    """Find the batches of a file, as Kafka's file iterator does.

    Returns:
        Where they begin, the position just past the last one, and why there is no further one.
    """
    starts: list[int] = []
    position = 0
    while len(data) - position > MAGIC_AT + 1:
        (length,) = struct.unpack_from(">i", data, position + LENGTH_AT)
        size = BYTES_BEFORE_LENGTH_COUNTS + length
        if length < SMALLEST_LENGTH:
            return starts, position, Stop.BAD_LENGTH
        if position + size > len(data):
            return starts, position, Stop.TORN
        starts.append(position)
        position += size
    return starts, position, Stop.END if position == len(data) else Stop.TORN
