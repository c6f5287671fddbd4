"""Build entries of message formats v0 and v1 from columns. The wrapper of a compressed set is
built here too."""

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
from storage_core.kernels.record_rows import RecordRows
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
    """Write an entry up to its key; return the key's position. The CRC is left out.

    Args:
        out: uint8[].
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
def write_entries(
    out: NDArray[np.uint8],
    first: int,
    end: int,
    magic: int,
    attributes: int,
    append_time: int,
    offset_origin: int,
    rows: RecordRows,
) -> int:
    """Write records [first, end) as entries from out[0] on; return their size.

    Args:
        out: uint8[], with room for them.
        magic: 0 or 1.
        append_time: Timestamp of every entry, NO_TIMESTAMP for the records' own.
        offset_origin: What is taken from every offset: the set's base inside a v1 wrapper.
    """
    head = KEY_AT_V0 if magic == MAGIC_V0 else KEY_AT_V1
    at = 0
    for i in range(first, end):
        key_bytes = max(rows.key_length[i], 0)
        value_bytes = max(rows.value_length[i], 0)
        size = head + 2 * LENGTH_BYTES + key_bytes + value_bytes
        timestamp = rows.timestamps[i] if append_time == NO_TIMESTAMP else append_time
        position = write_entry_head(
            out, at, rows.offsets[i] - offset_origin, size, magic, attributes, timestamp
        )
        write_i32(out, position, rows.key_length[i])
        position += LENGTH_BYTES
        copy_bytes(out, position, rows.keys, rows.key_start[i], key_bytes)
        position += key_bytes
        write_i32(out, position, rows.value_length[i])
        copy_bytes(out, position + LENGTH_BYTES, rows.values, rows.value_start[i], value_bytes)
        seal_entry(out, at, size)
        at += size
    return at
