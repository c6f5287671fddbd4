"""Batch headers of a window: one row of numbers a batch, nothing decompressed.

The table has one row a *column* here, ``int64[COLUMN_COUNT, capacity]``, so that a column is a
contiguous array. A batch of magic 0 or 1 gets POSITION, SIZE and MAGIC only: the caller decides
what it does with a format that these kernels do not read further.
"""

from typing import Final

import numpy as np
from numpy.typing import NDArray

from storage_core.formats.batch_v2 import (
    ATTRIBUTES_AT,
    BASE_OFFSET_AT,
    BASE_SEQUENCE_AT,
    BASE_TIMESTAMP_AT,
    BATCH_LENGTH_AT,
    CODEC_MASK,
    CONTROL_BIT,
    CRC_AT,
    CRC_START,
    HEADER_BYTES,
    HEADER_UP_TO_MAGIC_BYTES,
    LAST_OFFSET_DELTA_AT,
    LEADER_EPOCH_AT,
    LENGTH_OVERHEAD,
    MAGIC_AT,
    MAGIC_V2,
    MAX_TIMESTAMP_AT,
    MIN_ENTRY_LENGTH,
    PRODUCER_EPOCH_AT,
    PRODUCER_ID_AT,
    RECORD_COUNT_AT,
)
from storage_core.formats.control import (
    CONTROL_KEY_BYTES,
    CONTROL_TYPE_AT,
    COORDINATOR_EPOCH_AT,
    END_TXN_VALUE_BYTES,
    NO_CONTROL_RECORD,
)
from storage_core.kernels._jit import kernel
from storage_core.kernels.crc32c import crc32c
from storage_core.kernels.record_scan import parse_record
from storage_core.kernels.varint import read_i16, read_i32, read_i64, read_u32

# Columns of the table.
POSITION: Final = 0  # of the batch in the window
SIZE: Final = 1  # whole batch, bytes
BASE_OFFSET: Final = 2
LAST_OFFSET: Final = 3
LEADER_EPOCH: Final = 4
MAGIC: Final = 5
ATTRIBUTES: Final = 6
BASE_TIMESTAMP: Final = 7
MAX_TIMESTAMP: Final = 8
PRODUCER_ID: Final = 9
PRODUCER_EPOCH: Final = 10
BASE_SEQUENCE: Final = 11
RECORD_COUNT: Final = 12
CRC: Final = 13  # as stored
CRC_OK: Final = 14  # 1, 0, or CRC_NOT_CHECKED
CONTROL_TYPE: Final = 15  # of a control batch's first record; NO_CONTROL_RECORD; else NOT_CONTROL
COORDINATOR_EPOCH: Final = 16  # of an end-transaction marker, else -1
COLUMN_COUNT: Final = 17

CRC_NOT_CHECKED: Final = -1
NOT_CONTROL: Final = -3
# A control batch whose record cannot be read; readers that need it raise.
BAD_CONTROL_RECORD: Final = -4

# Why a scan stopped.
DONE: Final = 0  # at the end of the window, on a batch's end
TRUNCATED: Final = 1  # the batch at `end` runs past the window
BAD_LENGTH: Final = 2  # the length field at `end` is impossible
NO_ROOM: Final = 3  # the table is full


@kernel
def scan_batches(
    data: NDArray[np.uint8], start: int, end: int, table: NDArray[np.int64]
) -> tuple[int, int, int]:
    """Fill the table with the headers of the whole batches in data[start:end].

    Args:
        data: uint8[n], a window of a segment.
        start: Position of the first batch.
        end: Position just past the bytes that may be read.
        table: int64[COLUMN_COUNT, capacity]; CRC_OK, CONTROL_TYPE and COORDINATOR_EPOCH are set
            to "not known" values here.

    Returns:
        (count, end, status): batches found, position just past the last one, and why the scan
        stopped: DONE, TRUNCATED, BAD_LENGTH or NO_ROOM. Never raises.
    """
    count = 0
    position = start
    capacity = table.shape[1]
    while end - position > HEADER_UP_TO_MAGIC_BYTES:
        size = read_i32(data, position + BATCH_LENGTH_AT) + LENGTH_OVERHEAD
        magic = np.int64(np.int8(data[position + MAGIC_AT]))
        if size < MIN_ENTRY_LENGTH + LENGTH_OVERHEAD or (magic >= MAGIC_V2 and size < HEADER_BYTES):
            return count, position, BAD_LENGTH
        if size > end - position:
            return count, position, TRUNCATED
        if count == capacity:
            return count, position, NO_ROOM
        table[POSITION, count] = position
        table[SIZE, count] = size
        table[MAGIC, count] = magic
        if magic >= MAGIC_V2:
            base_offset = read_i64(data, position + BASE_OFFSET_AT)
            table[BASE_OFFSET, count] = base_offset
            table[LAST_OFFSET, count] = base_offset + read_i32(
                data, position + LAST_OFFSET_DELTA_AT
            )
            table[LEADER_EPOCH, count] = read_i32(data, position + LEADER_EPOCH_AT)
            table[ATTRIBUTES, count] = read_i16(data, position + ATTRIBUTES_AT)
            table[BASE_TIMESTAMP, count] = read_i64(data, position + BASE_TIMESTAMP_AT)
            table[MAX_TIMESTAMP, count] = read_i64(data, position + MAX_TIMESTAMP_AT)
            table[PRODUCER_ID, count] = read_i64(data, position + PRODUCER_ID_AT)
            table[PRODUCER_EPOCH, count] = read_i16(data, position + PRODUCER_EPOCH_AT)
            table[BASE_SEQUENCE, count] = read_i32(data, position + BASE_SEQUENCE_AT)
            table[RECORD_COUNT, count] = read_i32(data, position + RECORD_COUNT_AT)
            table[CRC, count] = read_u32(data, position + CRC_AT)
            table[CRC_OK, count] = CRC_NOT_CHECKED
            table[CONTROL_TYPE, count] = NOT_CONTROL
            table[COORDINATOR_EPOCH, count] = -1
        count += 1
        position += size
    return count, position, DONE if position == end else TRUNCATED


@kernel
def check_crcs(data: NDArray[np.uint8], table: NDArray[np.int64], count: int) -> int:
    """Set CRC_OK of the first count batches of magic 2; return the first bad row, or -1."""
    first_bad = -1
    for row in range(count):
        if table[MAGIC, row] < MAGIC_V2:
            continue
        start = table[POSITION, row]
        found = crc32c(data, start + CRC_START, start + table[SIZE, row])
        table[CRC_OK, row] = 1 if found == table[CRC, row] else 0
        if first_bad < 0 and found != table[CRC, row]:
            first_bad = row
    return first_bad


@kernel
def read_control_types(data: NDArray[np.uint8], table: NDArray[np.int64], count: int) -> int:
    """Set CONTROL_TYPE and COORDINATOR_EPOCH of the control batches; return how many there are.

    A compressed control batch, which Kafka never writes, is a BAD_CONTROL_RECORD.
    """
    found = 0
    for row in range(count):
        if table[MAGIC, row] < MAGIC_V2 or not table[ATTRIBUTES, row] & CONTROL_BIT:
            continue
        found += 1
        start = table[POSITION, row]
        end = start + table[SIZE, row]
        if table[RECORD_COUNT, row] == 0:
            table[CONTROL_TYPE, row] = NO_CONTROL_RECORD
            continue
        table[CONTROL_TYPE, row] = BAD_CONTROL_RECORD
        if table[ATTRIBUTES, row] & CODEC_MASK or table[RECORD_COUNT, row] < 0:
            continue
        record = parse_record(data, start + HEADER_BYTES, end)
        if record.next_position < 0 or record.key_length < CONTROL_KEY_BYTES:
            continue
        if read_i16(data, record.key_start) < 0:
            continue
        table[CONTROL_TYPE, row] = read_i16(data, record.key_start + CONTROL_TYPE_AT)
        if record.value_length >= END_TXN_VALUE_BYTES:
            table[COORDINATOR_EPOCH, row] = read_i32(
                data, record.value_start + COORDINATOR_EPOCH_AT
            )
    return found
