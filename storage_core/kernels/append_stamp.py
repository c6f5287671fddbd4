"""Write a leader's offsets, epoch and timestamps into batches. The leader stores the rest of
such a batch as it came."""

import numpy as np
from numpy.typing import NDArray

from storage_core.formats.batch_v2 import (
    ATTRIBUTES_AT,
    BASE_OFFSET_AT,
    CODEC_MASK,
    CONTROL_BIT,
    CRC_AT,
    CRC_START,
    DELETE_HORIZON_BIT,
    LEADER_EPOCH_AT,
    MAGIC_V2,
    MAX_TIMESTAMP_AT,
    TIMESTAMP_TYPE_BIT,
    TRANSACTIONAL_BIT,
)
from storage_core.formats.legacy import (
    ENTRY_ATTRIBUTES_AT,
    ENTRY_CRC_AT,
    ENTRY_CRC_START,
    MAGIC_V0,
    OFFSET_AT,
    TIMESTAMP_AT,
)
from storage_core.kernels._jit import kernel
from storage_core.kernels.batch_scan import (
    ATTRIBUTES,
    BASE_OFFSET,
    CRC,
    LAST_OFFSET,
    LEADER_EPOCH,
    MAGIC,
    MAX_TIMESTAMP,
    POSITION,
    SIZE,
)
from storage_core.kernels.crc32 import crc32
from storage_core.kernels.crc32c import crc32c
from storage_core.kernels.varint import write_i16, write_i32, write_i64

_KEPT_BITS = CODEC_MASK | TRANSACTIONAL_BIT | CONTROL_BIT | DELETE_HORIZON_BIT


@kernel
def stamp_batches(
    data: NDArray[np.uint8],
    table: NDArray[np.int64],
    last_offset: NDArray[np.int64],
    leader_epoch: int,
    is_append_time: bool,  # numba takes no keyword-only arguments
    max_timestamp: NDArray[np.int64],
) -> None:
    """Write offsets, leader epoch and timestamps into batches, and into their table.

    A checksum is computed anew only where type or timestamp change: offset and epoch lie outside
    of it. Bits of the attributes that mean nothing go then, and stay otherwise, as in Kafka.

    Args:
        data: uint8[], the batches.
        table: int64[COLUMN_COUNT, n], theirs.
        last_offset: int64[n], the offset that the last record of each gets.
        leader_epoch: Of the leader; formats before v2 have none.
        is_append_time: Whether timestamps are the broker's.
        max_timestamp: int64[n]; format v0 has none.
    """
    type_bit = TIMESTAMP_TYPE_BIT if is_append_time else 0
    for row in range(table.shape[1]):
        at = table[POSITION, row]
        end = at + table[SIZE, row]
        changes = (table[ATTRIBUTES, row] & TIMESTAMP_TYPE_BIT) != type_bit or (
            table[MAX_TIMESTAMP, row] != max_timestamp[row]
        )
        if table[MAGIC, row] >= MAGIC_V2:
            delta = table[LAST_OFFSET, row] - table[BASE_OFFSET, row]
            table[BASE_OFFSET, row] = last_offset[row] - delta
            table[LEADER_EPOCH, row] = leader_epoch
            write_i64(data, at + BASE_OFFSET_AT, last_offset[row] - delta)
            write_i32(data, at + LEADER_EPOCH_AT, leader_epoch)
            if changes:
                table[ATTRIBUTES, row] = (table[ATTRIBUTES, row] & _KEPT_BITS) | type_bit
                write_i16(data, at + ATTRIBUTES_AT, table[ATTRIBUTES, row])
                write_i64(data, at + MAX_TIMESTAMP_AT, max_timestamp[row])
                table[CRC, row] = crc32c(data, at + CRC_START, end)
                write_i32(data, at + CRC_AT, table[CRC, row])
        else:
            table[BASE_OFFSET, row] = last_offset[row]
            write_i64(data, at + OFFSET_AT, last_offset[row])
            changes = changes and table[MAGIC, row] > MAGIC_V0
            if changes:
                table[ATTRIBUTES, row] = (table[ATTRIBUTES, row] & CODEC_MASK) | type_bit
                data[at + ENTRY_ATTRIBUTES_AT] = table[ATTRIBUTES, row]
                write_i64(data, at + TIMESTAMP_AT, max_timestamp[row])
                table[CRC, row] = crc32(data, at + ENTRY_CRC_START, end)
                write_i32(data, at + ENTRY_CRC_AT, table[CRC, row])
        table[LAST_OFFSET, row] = last_offset[row]
        if changes:
            table[MAX_TIMESTAMP, row] = max_timestamp[row]
