"""Keys of the records of a window, hashed as they are parsed.

Parsing and hashing in one loop, inserting into the offset table in another: so the CPU overlaps
the cache misses of the table, and no key is visited twice.
"""

from typing import Final

import numpy as np
from numpy.typing import NDArray

from storage_core.kernels._jit import kernel
from storage_core.kernels.key_hash import md5_128, siphash_1_3_128
from storage_core.kernels.record_scan import (
    BAD_RECORD,
    DONE,
    EXPANDED,
    HAS_KEYLESS,
    HAS_TOMBSTONE,
    INDEXED,
    LEFTOVER,
    OPENED,
    TOO_LARGE,
    parse_record,
)

SIPHASH: Final = 0
MD5: Final = 1


@kernel
def hash_keys(  # arrays side by side
    data: NDArray[np.uint8],
    arena: NDArray[np.uint8],
    in_arena: NDArray[np.uint8],
    start: NDArray[np.int64],
    end: NDArray[np.int64],
    record_count: NDArray[np.int64],
    base_offset: NDArray[np.int64],
    wanted: NDArray[np.uint8],
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
    INDEXED (none of its offsets lies below first_offset), HAS_TOMBSTONE and HAS_KEYLESS.
    ``scratch`` is room for MD5 to work in, uint32[MD5_WORDS].

    Returns:
        (count, status, row, position): keys found; DONE, or why and in which batch and at which
        position of its bytes it stopped.
    """
    count = 0
    next_rank = first_rank
    for row in range(start.size):
        if not wanted[row]:
            continue
        source = arena if in_arena[row] else data
        position = start[row]
        flags = OPENED
        if base_offset[row] >= first_offset:
            flags |= INDEXED
        for i in range(record_count[row]):
            record = parse_record(source, position, end[row])
            if record.next_position < 0:
                return count, BAD_RECORD, row, position
            if record.body_bytes > max_body_bytes and in_arena[row] == EXPANDED:
                return count, TOO_LARGE, row, position
            if record.value_length < 0:
                flags |= HAS_TOMBSTONE
            if record.key_length < 0:
                flags |= HAS_KEYLESS
            elif base_offset[row] + record.offset_delta >= first_offset:
                if hash_kind == MD5:
                    low[count], high[count] = md5_128(
                        source, record.key_start, record.key_length, scratch
                    )
                else:
                    low[count], high[count] = siphash_1_3_128(
                        source, record.key_start, record.key_length, hash_key_low, hash_key_high
                    )
                key_batch[count] = row
                rank[count] = next_rank + i
                count += 1
            position = record.next_position
        if position != end[row] and record_count[row]:  # as Kafka, which does not look behind none
            return count, LEFTOVER, row, position
        batch_flags[row] = flags
        next_rank += record_count[row]
    return count, DONE, 0, 0
