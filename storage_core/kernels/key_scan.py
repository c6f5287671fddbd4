"""Keys of the records of a window, hashed as they are parsed.

Parsing and hashing in one loop, inserting into the offset table in another: so the CPU overlaps
the cache misses of the table, and no key is visited twice.
"""

from typing import Final

import numpy as np
from numpy.typing import NDArray

from storage_core.formats.batch_v2 import CRC_START, HEADER_BYTES
from storage_core.kernels._intrinsics import prefetch_byte
from storage_core.kernels._jit import kernel
from storage_core.kernels.crc32c import crc32c
from storage_core.kernels.key_hash import (
    md5_128,
    siphash_each,
)
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

SIPHASH: Final = 0
MD5: Final = 1
_NO_LIMIT: Final = 2**62


@kernel
def _parse_batch(  # arrays side by side
    data: NDArray[np.uint8],
    start: int,
    end: int,
    record_count: int,
    base_offset: int,
    last_offset: int,
    first_offset: int,
    max_body_bytes: int,
    first_rank: int,
    count: int,
    low: NDArray[np.uint64],
    high: NDArray[np.uint64],
    rank: NDArray[np.int64],
) -> tuple[int, int, int, int]:
    """Find the keys of the records of a batch at or above an offset; the next is key count.

    Of each low gets where it starts in data and high how long it is.

    Returns:
        (count, flags, status, position): keys so far; what was seen; DONE, or why and where it
        stopped.
    """
    position = start
    flags = 0
    for i in range(record_count):
        prefetch_byte(data, position + AHEAD_BYTES)
        record = parse_record(data, position, end)
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
            rank[count] = first_rank + i
            count += 1
        position = record.next_position
    if position != end and record_count:  # as Kafka, which does not look behind none
        return count, flags, LEFTOVER, position
    return count, flags, DONE, position


@kernel
def hash_keys(  # arrays side by side
    data: NDArray[np.uint8],
    arena: NDArray[np.uint8],
    place: NDArray[np.int64],
    start: NDArray[np.int64],
    end: NDArray[np.int64],
    record_count: NDArray[np.int64],
    base_offset: NDArray[np.int64],
    last_offset: NDArray[np.int64],
    wanted: NDArray[np.uint8],
    crc: NDArray[np.int64],
    first_offset: int,
    max_body_bytes: int,
    hash_kind: int,
    hash_key_low: np.uint64,
    hash_key_high: np.uint64,
    first_rank: int,
    scratch: NDArray[np.uint32],
    batch_flags: NDArray[np.uint8],
    key_batch: NDArray[np.int32],
    low: NDArray[np.uint64],
    high: NDArray[np.uint64],
    rank: NDArray[np.int64],
) -> tuple[int, int, int, int]:
    """Hash the keys of the records at or above first_offset of the wanted batches, in order.

    ``rank`` counts the records of the wanted batches from first_rank: the count in the header of
    a batch that is not opened proves nothing. ``batch_flags`` of the wanted ones gets OPENED,
    INDEXED (none of its offsets lies below first_offset), HAS_TOMBSTONE, HAS_KEYLESS and HAS_STRAY.
    ``scratch`` is room for MD5 to work in, uint32[MD5_WORDS].

    ``crc`` has the checksums that all the batches should have, wanted or not; it is empty where
    they have been checked. Those of batches of format v2 whose records lie in data can be checked
    here: what one has read, the other finds in the CPU's cache.

    Returns:
        (count, status, row, position): keys found; DONE, or why and in which batch and at which
        position of its bytes it stopped.
    """
    count = 0
    next_rank = first_rank
    status, stopped_row, position = DONE, 0, 0
    for row in range(start.size):
        if crc.size:
            checked_from = start[row] - HEADER_BYTES + CRC_START
            if crc32c(data, checked_from, end[row]) != crc[row]:
                return count, WRONG_CRC, row, start[row]
        if not wanted[row]:
            continue
        source = arena if place[row] else data
        first = count
        count, flags, status, position = _parse_batch(
            source,
            start[row],
            end[row],
            record_count[row],
            base_offset[row],
            last_offset[row],
            first_offset,
            max_body_bytes if place[row] == EXPANDED else _NO_LIMIT,
            next_rank,
            first,
            low,
            high,
            rank,
        )
        for i in range(first, count):
            key_batch[i] = row
        if hash_kind == MD5:
            for i in range(first, count):
                low[i], high[i] = md5_128(source, np.int64(low[i]), np.int64(high[i]), scratch)
        else:
            siphash_each(source, low, high, first, count, hash_key_low, hash_key_high)
        if status != DONE:
            stopped_row = row
            break
        flags |= OPENED | (INDEXED if base_offset[row] >= first_offset else 0)
        batch_flags[row] = flags
        next_rank += record_count[row]
    return count, status, stopped_row, position if status != DONE else 0
