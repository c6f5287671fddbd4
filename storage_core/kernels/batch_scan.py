"""Batch headers of a window, one row of numbers each.

Nothing is decompressed. The table has one row a *column* here, ``int64[COLUMN_COUNT, capacity]``,
so that a column is a contiguous array. What is a batch is what Kafka's file iterator takes for one:
the magic decides only how its fields lie. From 2 on they are those of a v2 batch, unknown magics
included; below, it is a legacy entry (``formats.legacy``), whose header tells less: both offsets
are the stored one, RECORD_COUNT is UNKNOWN_COUNT, ATTRIBUTES have the bits that the format knows
and no others, and the rest is "none". A batch of magic 2 or more that is smaller than a header is
never valid: its CRC_OK is 0 from the start, and what it says beyond its first fields is not read.
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
    NO_LEADER_EPOCH,
    NO_PRODUCER_EPOCH,
    NO_PRODUCER_ID,
    NO_SEQUENCE,
    NO_TIMESTAMP,
    PRODUCER_EPOCH_AT,
    PRODUCER_ID_AT,
    RECORD_COUNT_AT,
    TIMESTAMP_TYPE_BIT,
    TRANSACTIONAL_BIT,
)
from storage_core.formats.control import (
    CONTROL_KEY_BYTES,
    CONTROL_TYPE_AT,
    COORDINATOR_EPOCH_AT,
    END_TXN_VALUE_BYTES,
    NO_CONTROL_RECORD,
)
from storage_core.formats.legacy import (
    ENTRY_ATTRIBUTES_AT,
    ENTRY_CRC_AT,
    ENTRY_CRC_START,
    MAGIC_V0,
    OFFSET_AT,
    TIMESTAMP_AT,
)
from storage_core.kernels._intrinsics import call_function, prefetch_byte
from storage_core.kernels._jit import inlined_kernel, kernel
from storage_core.kernels.crc32 import crc32
from storage_core.kernels.crc32c import crc32c
from storage_core.kernels.record_scan import AHEAD_BYTES, parse_record
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
MARKER_TIMESTAMP: Final = 17  # base and delta of that record, else NO_TIMESTAMP
COLUMN_COUNT: Final = 18

CRC_NOT_CHECKED: Final = -1
# The record count of a legacy entry that nobody has opened.
UNKNOWN_COUNT: Final = -1
NOT_CONTROL: Final = -3
# A control batch whose record cannot be read; readers that need it raise.
BAD_CONTROL_RECORD: Final = -4

# What find_kinds found among batches. Most windows have nothing of it, and much need not be asked.
HAS_LEGACY: Final = 1
HAS_CODEC: Final = 2
HAS_TRANSACTION: Final = 4  # batches of transactions, control batches
HAS_UNREADABLE: Final = 8  # of an unknown format, smaller than a header, a BAD_CONTROL_RECORD

# What a cache holds together; most of a header lies in two.
_LINE: Final = 64

# Why a scan stopped.
DONE: Final = 0  # at the end of the window, on a batch's end
TRUNCATED: Final = 1  # the batch at `end` runs past the window
BAD_LENGTH: Final = 2  # the length field at `end` is impossible
NO_ROOM: Final = 3  # the table is full


@inlined_kernel
def _set_nothing(table: NDArray[np.int64], row: int, offset: int) -> None:
    """Fill a row with an offset and no other header field."""
    table[BASE_OFFSET, row] = offset
    table[LAST_OFFSET, row] = offset
    table[LEADER_EPOCH, row] = NO_LEADER_EPOCH
    table[ATTRIBUTES, row] = 0
    table[BASE_TIMESTAMP, row] = NO_TIMESTAMP
    table[MAX_TIMESTAMP, row] = NO_TIMESTAMP
    table[PRODUCER_ID, row] = NO_PRODUCER_ID
    table[PRODUCER_EPOCH, row] = NO_PRODUCER_EPOCH
    table[BASE_SEQUENCE, row] = NO_SEQUENCE
    table[RECORD_COUNT, row] = UNKNOWN_COUNT


@kernel
def _read_legacy_entry(
    data: NDArray[np.uint8], position: int, magic: int, table: NDArray[np.int64], row: int
) -> None:
    """Fill a row from a legacy entry. An entry of a negative magic is read as v1, as in Kafka."""
    _set_nothing(table, row, read_i64(data, position + OFFSET_AT))
    attributes = np.int64(data[position + ENTRY_ATTRIBUTES_AT])
    if magic == MAGIC_V0:
        table[ATTRIBUTES, row] = attributes & CODEC_MASK
    else:
        table[ATTRIBUTES, row] = attributes & (CODEC_MASK | TIMESTAMP_TYPE_BIT)
        timestamp = read_i64(data, position + TIMESTAMP_AT)
        table[BASE_TIMESTAMP, row] = timestamp
        table[MAX_TIMESTAMP, row] = timestamp
    table[CRC, row] = read_u32(data, position + ENTRY_CRC_AT)
    table[CRC_OK, row] = CRC_NOT_CHECKED


@kernel
def _read_short_batch(
    data: NDArray[np.uint8], position: int, table: NDArray[np.int64], row: int
) -> None:
    """Fill a row from a v2 batch smaller than a header."""
    _set_nothing(table, row, read_i64(data, position + BASE_OFFSET_AT))
    table[CRC, row] = read_u32(data, position + CRC_AT)
    table[CRC_OK, row] = 0


@inlined_kernel
def read_batch(
    data: NDArray[np.uint8], position: int, size: int, table: NDArray[np.int64], row: int
) -> None:
    """Fill a row from the header of a whole batch."""
    magic = np.int64(np.int8(data[position + MAGIC_AT]))
    table[POSITION, row] = position
    table[SIZE, row] = size
    table[MAGIC, row] = magic
    table[CONTROL_TYPE, row] = NOT_CONTROL
    table[COORDINATOR_EPOCH, row] = -1
    table[MARKER_TIMESTAMP, row] = NO_TIMESTAMP
    if magic < MAGIC_V2:
        _read_legacy_entry(data, position, magic, table, row)
    elif size < HEADER_BYTES:
        _read_short_batch(data, position, table, row)
    else:
        base_offset = read_i64(data, position + BASE_OFFSET_AT)
        table[BASE_OFFSET, row] = base_offset
        table[LAST_OFFSET, row] = base_offset + read_i32(data, position + LAST_OFFSET_DELTA_AT)
        table[LEADER_EPOCH, row] = read_i32(data, position + LEADER_EPOCH_AT)
        table[ATTRIBUTES, row] = read_i16(data, position + ATTRIBUTES_AT)
        table[BASE_TIMESTAMP, row] = read_i64(data, position + BASE_TIMESTAMP_AT)
        table[MAX_TIMESTAMP, row] = read_i64(data, position + MAX_TIMESTAMP_AT)
        table[PRODUCER_ID, row] = read_i64(data, position + PRODUCER_ID_AT)
        table[PRODUCER_EPOCH, row] = read_i16(data, position + PRODUCER_EPOCH_AT)
        table[BASE_SEQUENCE, row] = read_i32(data, position + BASE_SEQUENCE_AT)
        table[RECORD_COUNT, row] = read_i32(data, position + RECORD_COUNT_AT)
        table[CRC, row] = read_u32(data, position + CRC_AT)
        table[CRC_OK, row] = CRC_NOT_CHECKED


@inlined_kernel
def find_size(data: NDArray[np.uint8], position: int, end: int) -> tuple[int, int]:
    """Return the size of the batch at a position, and DONE, or why none can be read there.

    The caller has checked that the fields up to the magic lie before ``end``. What comes behind the
    batch is asked for, too.
    """
    for ahead in range(AHEAD_BYTES, AHEAD_BYTES + 2 * _LINE, _LINE):
        prefetch_byte(data, position + ahead)
    size = read_i32(data, position + BATCH_LENGTH_AT) + LENGTH_OVERHEAD
    if size < MIN_ENTRY_LENGTH + LENGTH_OVERHEAD:
        return size, BAD_LENGTH
    return size, TRUNCATED if size > end - position else DONE


@kernel
def _scan_rows(
    data: NDArray[np.uint8], start: int, end: int, table: NDArray[np.int64], first_row: int
) -> tuple[int, int, int]:
    """Do what ``scan_batches`` does, from a row on; return the row behind the last one."""
    row = first_row
    position = start
    capacity = table.shape[1]
    while end - position > HEADER_UP_TO_MAGIC_BYTES:
        size, status = find_size(data, position, end)
        if status != DONE:
            return row, position, status
        if row == capacity:
            return row, position, NO_ROOM
        read_batch(data, position, size, table, row)
        row += 1
        position += size
    return row, position, DONE if position == end else TRUNCATED


@kernel
def scan_batches(
    data: NDArray[np.uint8], start: int, end: int, table: NDArray[np.int64]
) -> tuple[int, int, int]:
    """Fill the table with the headers of the whole batches in data[start:end].

    Args:
        data: uint8[n], a window of a segment.
        end: Position just past the bytes that may be read.
        table: int64[COLUMN_COUNT, capacity]; CRC_OK and what is read from control records are set
            to "not known" values here.

    Returns:
        (count, end, status): batches found, position just past the last one, and why the scan
        stopped: DONE, TRUNCATED, BAD_LENGTH or NO_ROOM. Never raises.
    """
    return _scan_rows(data, start, end, table, 0)


@kernel
def guess_start(data: NDArray[np.uint8], most_tries: int, table: NDArray[np.int64]) -> int:
    """Return where v2 batches with rising offsets seem to follow each other; -1 for nowhere.

    Args:
        data: uint8[n], bytes of a segment.
        most_tries: How many possible headers to look behind.
        table: int64[COLUMN_COUNT, 2], gets the first two batches; both have to lie in data.
    """
    tries = 0
    for place in range(data.size - HEADER_BYTES + 1):
        # Only the low byte of the attributes is in use.
        if data[place + MAGIC_AT] != MAGIC_V2 or data[place + ATTRIBUTES_AT] != 0:
            continue
        size = read_i32(data, place + BATCH_LENGTH_AT) + LENGTH_OVERHEAD
        if not HEADER_BYTES <= size <= data.size - place:
            continue
        if tries == most_tries:
            break
        tries += 1
        count, _, _ = _scan_rows(data, place, data.size, table, 0)
        is_next = count > 1 and table[BASE_OFFSET, 1] > table[LAST_OFFSET, 0]
        if is_next and table[MAGIC, 1] == MAGIC_V2:
            return place
    return -1


@kernel
def scan_stretches(
    data: NDArray[np.uint8],
    starts: NDArray[np.int64],
    lengths: NDArray[np.int64],
    table: NDArray[np.int64],
    row_ends: NDArray[np.int64],
    statuses: NDArray[np.int64],
) -> int:
    """Do what ``scan_batches`` does for n stretches of data; return the number of batches.

    Args:
        starts, lengths: int64[n], the stretches; the caller has checked them.
        table: int64[COLUMN_COUNT, capacity], out: the batches of all, one stretch after the other.
        row_ends: int64[n], out: the row behind the last batch of each.
        statuses: int64[n], out: why the scan of each stopped.
    """
    row = 0
    for number in range(starts.size):
        start = starts[number]
        row, _, statuses[number] = _scan_rows(data, start, start + lengths[number], table, row)
        row_ends[number] = row
    return row


@kernel
def find_kinds(table: NDArray[np.int64]) -> int:
    """Return the kinds of the batches: bits of HAS_LEGACY and so on."""
    kinds = 0
    for row in range(table.shape[1]):
        magic, attributes = table[MAGIC, row], table[ATTRIBUTES, row]
        if magic < MAGIC_V2:
            kinds |= HAS_LEGACY
        elif table[SIZE, row] < HEADER_BYTES:
            kinds |= HAS_UNREADABLE
        if attributes & CODEC_MASK:
            kinds |= HAS_CODEC
        if attributes & (TRANSACTIONAL_BIT | CONTROL_BIT):
            kinds |= HAS_TRANSACTION
        if not MAGIC_V0 <= magic <= MAGIC_V2 or table[CONTROL_TYPE, row] == BAD_CONTROL_RECORD:
            kinds |= HAS_UNREADABLE
    return kinds


@kernel
def check_batch_crc(data: NDArray[np.uint8], table: NDArray[np.int64], row: int) -> bool:
    """Set CRC_OK of a batch; return whether it is 1."""
    start = table[POSITION, row]
    end = start + table[SIZE, row]
    if table[MAGIC, row] < MAGIC_V2:
        is_good = crc32(data, start + ENTRY_CRC_START, end) == table[CRC, row]
    elif table[SIZE, row] < HEADER_BYTES:
        is_good = False
    else:
        is_good = crc32c(data, start + CRC_START, end) == table[CRC, row]
    table[CRC_OK, row] = 1 if is_good else 0
    return is_good


@kernel
def check_crcs(data: NDArray[np.uint8], table: NDArray[np.int64], count: int) -> int:
    """Set CRC_OK of the first count batches; return the first bad row. The result is -1 where no
    row is bad."""
    first_bad = -1
    for row in range(count):
        if not check_batch_crc(data, table, row) and first_bad < 0:
            first_bad = row
    return first_bad


@kernel
def _read_control_type(data: NDArray[np.uint8], table: NDArray[np.int64], row: int) -> None:
    """Fill the control columns of a control batch."""
    start = table[POSITION, row]
    end = start + table[SIZE, row]
    if table[RECORD_COUNT, row] == 0:
        table[CONTROL_TYPE, row] = NO_CONTROL_RECORD
        return
    table[CONTROL_TYPE, row] = BAD_CONTROL_RECORD
    if table[ATTRIBUTES, row] & CODEC_MASK or table[RECORD_COUNT, row] < 0:
        return
    record = parse_record(data, start + HEADER_BYTES, end)
    if record.next_position < 0 or record.key_length < CONTROL_KEY_BYTES:
        return
    if read_i16(data, record.key_start) < 0:
        return
    table[CONTROL_TYPE, row] = read_i16(data, record.key_start + CONTROL_TYPE_AT)
    if record.value_length >= END_TXN_VALUE_BYTES:
        table[COORDINATOR_EPOCH, row] = read_i32(data, record.value_start + COORDINATOR_EPOCH_AT)
        table[MARKER_TIMESTAMP, row] = table[BASE_TIMESTAMP, row] + record.timestamp_delta


@kernel
def read_control_types(data: NDArray[np.uint8], table: NDArray[np.int64], count: int) -> int:
    """Fill the control columns of control batches; return their number.

    These columns are CONTROL_TYPE and what follows it. A compressed control batch, which Kafka
    never writes, is a BAD_CONTROL_RECORD.
    """
    control_count = 0
    for row in range(count):
        if table[ATTRIBUTES, row] & CONTROL_BIT:  # neither a legacy nor a short batch has it
            _read_control_type(data, table, row)
            control_count += 1
    return control_count


@kernel
def read_checked(
    pread: int,
    descriptor: int,
    start: int,
    stop: int,
    most_bytes: int,
    piece: NDArray[np.uint8],
    table: NDArray[np.int64],
) -> tuple[int, int]:
    """Read whole batches of a file, piece by piece, and check them.

    It does for many pieces at one call what ``scan_batches``, ``check_crcs`` and
    ``read_control_types`` do for each.

    Args:
        pread: Address of C's function of that name.
        start: Position of the first batch in the file.
        stop: Nothing is read from there on.
        most_bytes: No piece is read once there are so many.
        piece: uint8[n], room for the bytes; a batch that does not fit ends the work.
        table: int64[COLUMN_COUNT, capacity], out; positions count from ``start``.

    Returns:
        (count, end): batches, and position in the file just past the last one. None at all where
        the first batch is not whole, does not fit, or cannot be read.
    """
    count = 0
    position = start
    while position < stop and position - start < most_bytes:
        wanted = min(piece.size, stop - position)
        found = call_function(pread, descriptor, piece.ctypes.data, wanted, position, 0)
        if found != wanted:
            break
        first = count
        count, used, _ = _scan_rows(piece, 0, wanted, table, first)
        if used == 0:
            break
        for row in range(first, count):
            check_batch_crc(piece, table, row)
            if table[ATTRIBUTES, row] & CONTROL_BIT:
                _read_control_type(piece, table, row)
            table[POSITION, row] += position - start
        position += used
    return count, position


@kernel
def walk_headers(
    pread: int,
    descriptor: int,
    start: int,
    stop: int,
    head: NDArray[np.uint8],
    table: NDArray[np.int64],
) -> tuple[int, int]:
    """Read the headers of a file's batches, one after the other, and no records but those of
    control batches.

    Args:
        pread: Address of C's function of that name.
        start: Position of the first batch in the file.
        stop: Nothing is read from there on.
        head: uint8[n], room for a header, and for a whole control batch.
        table: int64[COLUMN_COUNT, capacity], out; positions count from ``start``.

    Returns:
        (count, end): batches, and position in the file just past the last one. The walk ends where
        the table is full, and before a batch of another format, one that is not whole, a control
        batch that does not fit, and one that cannot be read.
    """
    count = 0
    position = start
    while count < table.shape[1] and stop - position >= HEADER_BYTES:
        wanted = min(head.size, stop - position)
        if call_function(pread, descriptor, head.ctypes.data, wanted, position, 0) != wanted:
            break
        size = read_i32(head, BATCH_LENGTH_AT) + LENGTH_OVERHEAD
        is_control = read_i16(head, ATTRIBUTES_AT) & CONTROL_BIT != 0
        is_fitting = HEADER_BYTES <= size <= (wanted if is_control else stop - position)
        if head[MAGIC_AT] != MAGIC_V2 or not is_fitting:
            break
        read_batch(head, 0, size, table, count)
        if is_control:
            _read_control_type(head, table, count)
        table[POSITION, count] = position - start
        position += size
        count += 1
    return count, position
