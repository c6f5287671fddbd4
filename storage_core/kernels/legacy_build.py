"""Entries of message formats v0 and v1 out of columns, and the wrapper of a compressed set."""

import numpy as np
from numpy.typing import NDArray

from storage_core.formats.batch_v2 import NO_TIMESTAMP
from storage_core.formats.legacy import (
    ENTRY_ATTRIBUTES_AT,
    ENTRY_CRC_AT,
    ENTRY_CRC_START,
    ENTRY_MAGIC_AT,
    ENTRY_OVERHEAD,
    KEY_AT_V0,
    KEY_AT_V1,
    LENGTH_BYTES,
    MAGIC_V0,
    OFFSET_AT,
    SIZE_AT,
    TIMESTAMP_AT,
)
from storage_core.kernels._intrinsics import copy_bytes
from storage_core.kernels._jit import kernel
from storage_core.kernels.crc32 import crc32
from storage_core.kernels.varint import write_i32, write_i64


@kernel
def write_entry_head(
    out: NDArray[np.uint8],
    at: int,
    offset: int,
    size: int,
    magic: int,
    attributes: int,
    timestamp: int,
) -> int:
    """Write everything of an entry before its key, but for the CRC; return where the key goes.

    Args:
        out: uint8[].
        at: Where the entry begins.
        offset: Its offset field.
        size: Bytes of the whole entry.
        magic: 0 or 1.
        attributes: Codec and timestamp type.
        timestamp: Not written with magic 0.
    """
    write_i64(out, at + OFFSET_AT, offset)
    write_i32(out, at + SIZE_AT, size - ENTRY_OVERHEAD)
    out[at + ENTRY_MAGIC_AT] = magic
    out[at + ENTRY_ATTRIBUTES_AT] = attributes
    if magic == MAGIC_V0:
        return at + KEY_AT_V0
    write_i64(out, at + TIMESTAMP_AT, timestamp)
    return at + KEY_AT_V1


@kernel
def seal_entry(out: NDArray[np.uint8], at: int, size: int) -> None:
    """Write the CRC of an entry whose bytes are in place."""
    write_i32(out, at + ENTRY_CRC_AT, crc32(out, at + ENTRY_CRC_START, at + size))


@kernel
def write_entries(  # arrays side by side
    out: NDArray[np.uint8],
    at: int,
    first: int,
    end: int,
    magic: int,
    attributes: int,
    append_time: int,
    first_offset: int,
    offset_origin: int,
    keys: NDArray[np.uint8],
    key_start: NDArray[np.int64],
    key_length: NDArray[np.int64],
    values: NDArray[np.uint8],
    value_start: NDArray[np.int64],
    value_length: NDArray[np.int64],
    timestamps: NDArray[np.int64],
    offsets: NDArray[np.int64],
) -> int:
    """Write the records [first, end) as entries at out[at:]; return the position after them.

    Args:
        out: uint8[], with room for them.
        at: Where to begin.
        first: First record.
        end: Just past the last record.
        magic: 0 or 1.
        attributes: Of every entry.
        append_time: Timestamp of every entry, NO_TIMESTAMP for the records' own.
        first_offset: Offset of record 0, where offsets is empty.
        offset_origin: What is taken from every offset: the set's base inside a v1 wrapper.
        keys: uint8[].
        key_start: int64[n].
        key_length: int64[n], negative for null.
        values: uint8[].
        value_start: int64[n].
        value_length: int64[n], negative for null.
        timestamps: int64[n].
        offsets: int64[n], or empty.
    """
    head = KEY_AT_V0 if magic == MAGIC_V0 else KEY_AT_V1
    for i in range(first, end):
        key_bytes = max(key_length[i], 0)
        value_bytes = max(value_length[i], 0)
        size = head + 2 * LENGTH_BYTES + key_bytes + value_bytes
        offset = first_offset + i
        if offsets.size > 0:
            offset = offsets[i]
        timestamp = timestamps[i] if append_time == NO_TIMESTAMP else append_time
        position = write_entry_head(
            out, at, offset - offset_origin, size, magic, attributes, timestamp
        )
        write_i32(out, position, key_length[i])
        position += LENGTH_BYTES
        copy_bytes(out, position, keys, key_start[i], key_bytes)
        position += key_bytes
        write_i32(out, position, value_length[i])
        copy_bytes(out, position + LENGTH_BYTES, values, value_start[i], value_bytes)
        seal_entry(out, at, size)
        at += size
    return at
