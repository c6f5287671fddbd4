"""Keys of the records of a window, hashed as they are parsed.

Parsing and hashing in one loop, inserting into the offset table in another: so the CPU overlaps
the cache misses of the table, and no key is visited twice.
"""

from typing import Final

import numpy as np
from numpy.typing import NDArray

from storage_core.formats.batch_v2 import (
    ATTRIBUTES_AT,
    CODEC_MASK,
    CONTROL_BIT,
    CRC_AT,
    CRC_START,
    HEADER_BYTES,
    HEADER_UP_TO_MAGIC_BYTES,
    LAST_OFFSET_DELTA_AT,
    MAGIC_AT,
    MAGIC_V2,
    RECORD_COUNT_AT,
    TRANSACTIONAL_BIT,
)
from storage_core.formats.record_v2 import MIN_RECORD_BYTES
from storage_core.kernels._intrinsics import prefetch_byte
from storage_core.kernels._jit import inlined_kernel, kernel
from storage_core.kernels.batch_notes import PLACE, RECORDS_END, RECORDS_START
from storage_core.kernels.batch_scan import (
    BASE_OFFSET,
    CRC,
    LAST_OFFSET,
    NO_ROOM,
    RECORD_COUNT,
    TRUNCATED,
    find_size,
)
from storage_core.kernels.crc32c import crc32c
from storage_core.kernels.key_hash import MD5_WORDS, md5_128, siphash_each
from storage_core.kernels.record_scan import (
    AHEAD_BYTES,
    BAD_RECORD,
    DONE,
    EXPANDED,
    HAS_KEYLESS,
    HAS_STRAY,
    HAS_TOMBSTONE,
    INDEXED,
    LEFTOVER,
    OPENED,
    TOO_LARGE,
    WRONG_CRC,
    parse_record,
)
from storage_core.kernels.varint import read_i16, read_i32, read_i64, read_u32

# Columns of keys, uint64[KEY_COLUMNS, capacity].
LOW: Final = 0  # lower half of the hash
HIGH: Final = 1  # upper half
RANK: Final = 2  # of the record among those of the wanted batches
BATCH: Final = 3  # row of its batch
KEY_COLUMNS: Final = 4

# What hashing needs, uint32[HASHER_WORDS].
HASH_KIND: Final = 0
HASH_KEY: Final = 1  # of SipHash, four words, the lowest first
SCRATCH: Final = 5  # room for MD5 to work in, MD5_WORDS
HASHER_WORDS: Final = SCRATCH + MD5_WORDS

SIPHASH: Final = 0
MD5: Final = 1
# Of hash_plain_batches; no number of a scan.
NOT_PLAIN: Final = 13
_NO_LIMIT: Final = 2**62
# Keys of small batches are hashed several at a time, as long as their bytes are in the CPU's cache.
_HASHED_AT_ONCE: Final = 64


@inlined_kernel
def _parse_batch(
    source: NDArray[np.uint8],
    position: int,
    end: int,
    record_count: int,
    base_offset: int,
    last_offset: int,
    row: int,
    first_offset: int,
    max_body_bytes: int,
    first_rank: int,
    count: int,
    keys: NDArray[np.uint64],
) -> tuple[int, int, int, int]:
    """Find the keys of a batch's records, source[position:end], from an offset on.

    The first of them becomes key ``count``. Of each key LOW gets where it starts in source and HIGH
    how long it is.

    Returns:
        (count, flags, status, position): keys so far; what was seen; DONE, or why and where it
        stopped.
    """
    low, high, rank, batch = keys[LOW], keys[HIGH], keys[RANK], keys[BATCH]
    flags = OPENED | (INDEXED if base_offset >= first_offset else 0)
    for i in range(record_count):
        prefetch_byte(source, position + AHEAD_BYTES)
        record = parse_record(source, position, end)
        if record.next_position < 0:
            return count, flags, BAD_RECORD, position
        if record.body_bytes > max_body_bytes:
            return count, flags, TOO_LARGE, position
        if record.value_length < 0:
            flags |= HAS_TOMBSTONE
        if record.offset_delta < 0 or base_offset + record.offset_delta > last_offset:
            flags |= HAS_STRAY
        if record.key_length < 0:
            flags |= HAS_KEYLESS
        elif base_offset + record.offset_delta >= first_offset:
            low[count] = np.uint64(record.key_start)
            high[count] = np.uint64(record.key_length)
            rank[count] = np.uint64(first_rank + i)
            batch[count] = np.uint64(row)
            count += 1
        position = record.next_position
    if position != end and record_count:  # as Kafka, which does not look behind none
        return count, flags, LEFTOVER, position
    return count, flags, DONE, position


@kernel
def _hash(
    source: NDArray[np.uint8],
    hasher: NDArray[np.uint32],
    first: int,
    end: int,
    keys: NDArray[np.uint64],
) -> None:
    """Hash the keys from first on that _parse_batch has found in source."""
    low, high = keys[LOW], keys[HIGH]
    if hasher[HASH_KIND] == MD5:
        for i in range(first, end):
            low[i], high[i] = md5_128(source, np.int64(low[i]), np.int64(high[i]), hasher[SCRATCH:])
        return
    key = hasher[HASH_KEY:SCRATCH]
    key_low = np.uint64(key[0]) | (np.uint64(key[1]) << np.uint64(32))
    key_high = np.uint64(key[2]) | (np.uint64(key[3]) << np.uint64(32))
    siphash_each(source, low, high, first, end, key_low, key_high)


@kernel
def hash_keys(
    data: NDArray[np.uint8],
    arena: NDArray[np.uint8],
    table: NDArray[np.int64],
    notes: NDArray[np.int64],
    flags: NDArray[np.uint8],
    checks_crc: bool,  # numba takes no keyword-only arguments
    first_offset: int,
    max_body_bytes: int,
    hasher: NDArray[np.uint32],
    keys: NDArray[np.uint64],
) -> tuple[int, int, int, int]:
    """Hash the keys of the wanted batches from first_offset on, in order.

    Ranks count from 0: the count in the header of a batch that is not opened proves nothing.

    Args:
        data: uint8[], the window.
        arena: uint8[], records that do not lie in it.
        table: int64[COLUMN_COUNT, n], the headers.
        notes: int64[NOTE_COUNT, n], where the records lie.
        flags: uint8[n], in: whether a batch is wanted; out, of the wanted ones: OPENED, INDEXED
            (none of its offsets lies below first_offset), HAS_TOMBSTONE, HAS_KEYLESS, HAS_STRAY.
        checks_crc: Whether to look at the checksums of all the batches, wanted or not; they are of
            format v2 then, and their records lie in data. What a checksum has read, the hash finds
            in the CPU's cache.
        max_body_bytes: The largest record that was compressed.
        hasher: uint32[HASHER_WORDS].
        keys: uint64[KEY_COLUMNS, capacity], out.

    Returns:
        (count, status, row, position): how many keys; DONE, or why and in which batch and at which
        position of its bytes it stopped.
    """
    count = 0
    hashed = 0  # how many of the keys are hashed
    hashed_place = np.int64(0)  # where the others lie
    next_rank = 0
    row, status, position = 0, DONE, np.int64(0)
    for row in range(table.shape[1]):
        start = notes[RECORDS_START, row]
        if checks_crc:
            checked_from = start - HEADER_BYTES + CRC_START
            if crc32c(data, checked_from, notes[RECORDS_END, row]) != table[CRC, row]:
                status, position = WRONG_CRC, start
                break
        if not flags[row]:
            continue
        place = notes[PLACE, row]
        if place != hashed_place or count - hashed >= _HASHED_AT_ONCE:
            _hash(arena if hashed_place else data, hasher, hashed, count, keys)
            hashed, hashed_place = count, place
        count, record_flags, status, position = _parse_batch(
            arena if place else data,
            start,
            notes[RECORDS_END, row],
            table[RECORD_COUNT, row],
            table[BASE_OFFSET, row],
            table[LAST_OFFSET, row],
            row,
            first_offset,
            max_body_bytes if place == EXPANDED else _NO_LIMIT,
            next_rank,
            count,
            keys,
        )
        if status != DONE:
            break
        flags[row] = record_flags
        next_rank += table[RECORD_COUNT, row]
    _hash(arena if hashed_place else data, hasher, hashed, count, keys)
    if status != DONE:
        return count, status, row, position
    return count, DONE, 0, 0


@kernel
def hash_plain_batches(
    data: NDArray[np.uint8],
    checks_crc: bool,  # as above
    first_offset: int,
    hasher: NDArray[np.uint32],
    flags: NDArray[np.uint8],
    keys: NDArray[np.uint64],
) -> tuple[int, int, int, int, int]:
    """Do what ``scan_batches`` and ``hash_keys`` do for all batches of data, without a table.

    Args:
        data: uint8[], a window of a segment.
        checks_crc: Whether to look at checksums.
        flags: uint8[> n / HEADER_BYTES], out: as of ``hash_keys``.
        keys: uint64[KEY_COLUMNS, capacity], out.

    Returns:
        (batches, count, records, end, status): how many there are of batches, keys and records;
        position behind the last batch; DONE, NO_ROOM where there is none for the keys, or
        NOT_PLAIN at a batch that takes more than this: it is no whole one of format v2, has a codec
        or a transaction, or a fault.
    """
    count = hashed = records = batches = 0
    position = np.int64(0)
    status = DONE
    while data.size - position > HEADER_UP_TO_MAGIC_BYTES:
        size, found = find_size(data, position, data.size)
        if found == TRUNCATED:
            break
        status = NOT_PLAIN
        if found != DONE or size < HEADER_BYTES or data[np.uint64(position + MAGIC_AT)] != MAGIC_V2:
            break
        kind = read_i16(data, position + ATTRIBUTES_AT)
        if kind & (CODEC_MASK | TRANSACTIONAL_BIT | CONTROL_BIT):
            break
        start, end = position + HEADER_BYTES, position + size
        record_count = read_i32(data, position + RECORD_COUNT_AT)
        if not 0 <= record_count <= (end - start) // MIN_RECORD_BYTES:
            break
        crc = read_u32(data, position + CRC_AT)
        if checks_crc and crc32c(data, position + CRC_START, end) != crc:
            break
        if record_count > keys.shape[1] - count:
            status = NO_ROOM
            break
        base_offset = read_i64(data, position)
        count, flags[batches], found, _ = _parse_batch(
            data,
            start,
            end,
            record_count,
            base_offset,
            base_offset + read_i32(data, position + LAST_OFFSET_DELTA_AT),
            batches,
            first_offset,
            _NO_LIMIT,
            records,
            count,
            keys,
        )
        if found != DONE:
            break
        status = DONE
        batches += 1
        records += record_count
        position = end
        if count - hashed >= _HASHED_AT_ONCE:
            _hash(data, hasher, hashed, count, keys)
            hashed = count
    _hash(data, hasher, hashed, count, keys)
    return batches, count, records, position, status
