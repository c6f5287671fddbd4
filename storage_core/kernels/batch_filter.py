"""Which records of a window survive a round of compaction.

Two steps: ``preview_batches`` settles what the bitmaps alone settle, so that those batches are
never opened, or only copied from; ``filter_records`` opens the rest. What happens to a whole
batch is an *action*, decided before, from headers.
"""

from typing import Final

import numpy as np
from numpy.typing import NDArray

from storage_core.kernels._jit import kernel
from storage_core.kernels.record_scan import (
    BAD_RECORD,
    DONE,
    EXPANDED,
    HAS_KEYLESS,
    HAS_TOMBSTONE,
    INDEXED,
    LEFTOVER,
    TOO_LARGE,
    parse_record,
)
from storage_core.kernels.survivors import count_range, is_set

# What is done with a batch.
DROP: Final = 0  # the whole batch goes, unopened
FILTER: Final = 1  # each record by key, offset and tombstone rules
KEEP_RECORDS: Final = 2  # every record stays
DISCARD_RECORDS: Final = 3  # every record goes, but the batch's header may stay

# What preview_batches says of a row.
SETTLED: Final = 0  # kept is final, and the records are not needed
TO_FILTER: Final = 1  # filter_records has to look at the records
BY_BITS: Final = 2  # kept is final, and the bits say which records stay

NO_RECORD_OFFSET: Final = -(2**63)

# A record of this batch breaks the order of offsets, or has an impossible timestamp: a batch that
# is rebuilt from it would not be readable, and Kafka refuses it too.
BAD_ORDER: Final = 5
BAD_TIMESTAMP: Final = 6


@kernel
def preview_batches(  # arrays side by side
    action: NDArray[np.uint8],
    flags: NDArray[np.uint8],
    last_offset: NDArray[np.int64],
    record_count: NDArray[np.int64],
    latest_offset: int,
    words: NDArray[np.uint64],
    first_bit: NDArray[np.int64],
    first: int,
    end: int,
    kept: NDArray[np.int64],
    step: NDArray[np.uint8],
) -> None:
    """Set kept and step (SETTLED, TO_FILTER or BY_BITS) of rows [first, end).

    The bitmap decides about a row alone when its flags have INDEXED and not HAS_KEYLESS and it
    lies below latest_offset: then a row without a set bit goes, and one without a tombstone keeps
    exactly the records whose bits are set. KEEP_RECORDS and the other FILTER rows are filtered.
    """
    for row in range(first, end):
        kept[row] = 0
        step[row] = SETTLED
        if action[row] == KEEP_RECORDS:
            step[row] = TO_FILTER
        elif action[row] == FILTER:
            step[row] = TO_FILTER
            if (
                flags[row] & INDEXED
                and not flags[row] & HAS_KEYLESS
                and last_offset[row] <= latest_offset
            ):
                count = record_count[row]
                alive = count_range(words, first_bit[row], first_bit[row] + count)
                if alive == 0:
                    step[row] = SETTLED
                elif not flags[row] & HAS_TOMBSTONE:
                    step[row] = SETTLED if alive == count else BY_BITS
                    kept[row] = alive


@kernel
def filter_records(  # arrays side by side
    data: NDArray[np.uint8],
    arena: NDArray[np.uint8],
    in_arena: NDArray[np.uint8],
    start: NDArray[np.int64],
    end: NDArray[np.int64],
    record_count: NDArray[np.int64],
    base_offset: NDArray[np.int64],
    action: NDArray[np.uint8],
    keeps_tombstones: NDArray[np.uint8],
    step: NDArray[np.uint8],
    latest_offset: int,
    words: NDArray[np.uint64],
    first_bit: NDArray[np.int64],
    is_looked_up: NDArray[np.uint8],
    found_words: NDArray[np.uint64],
    found_bit: NDArray[np.int64],
    first_record: NDArray[np.int64],
    first_row: int,
    end_row: int,
    max_body_bytes: int,
    keep: NDArray[np.uint8],
    kept: NDArray[np.int64],
    kept_tombstones: NDArray[np.int64],
) -> tuple[int, int, int, int]:
    """Set keep of the rows in [first_row, end_row) that are TO_FILTER or BY_BITS.

    Of those TO_FILTER also kept and kept_tombstones.

    ``keep[first_record[row] + i]`` belongs to record i of a row. Whether it is the newest of its
    key, bit ``first_bit[row] + i`` of words says, or ``found_bit[row] + i`` of found_words where
    the row was looked up.

    Returns:
        (invalid, status, row, position): keyless records dropped; DONE, or why and where it
        stopped.
    """
    invalid = 0
    for row in range(first_row, end_row):
        bits, bit = words, first_bit[row]
        if is_looked_up[row]:
            bits, bit = found_words, found_bit[row]
        if step[row] == BY_BITS:
            for i in range(record_count[row]):
                keep[first_record[row] + i] = 1 if is_set(bits, bit + i) else 0
        if step[row] != TO_FILTER:
            continue
        source = arena if in_arena[row] else data
        position = start[row]
        kept[row] = 0
        kept_tombstones[row] = 0
        for i in range(record_count[row]):
            record = parse_record(source, position, end[row])
            if record.next_position < 0:
                return invalid, BAD_RECORD, row, position
            if record.body_bytes > max_body_bytes and in_arena[row] == EXPANDED:
                return invalid, TOO_LARGE, row, position
            if record.offset_delta < 0:
                return invalid, BAD_ORDER, row, position
            if (
                action[row] == KEEP_RECORDS
                or base_offset[row] + record.offset_delta > latest_offset
            ):
                stays = True
            elif record.key_length < 0:
                stays = False
                invalid += 1
            else:
                stays = is_set(bits, bit + i) and (
                    record.value_length >= 0 or keeps_tombstones[row] != 0
                )
            keep[first_record[row] + i] = 1 if stays else 0
            if stays:
                kept[row] += 1
                if record.value_length < 0:
                    kept_tombstones[row] += 1
            position = record.next_position
        if position != end[row] and record_count[row]:  # as Kafka, which does not look behind none
            return invalid, LEFTOVER, row, position
    return invalid, DONE, 0, 0
