"""Offset and time index entries of a segment, batch by batch as it is written.

An entry is added *before* a batch is counted, when more bytes than the interval lie since the last
one: so the first batch of a segment never gets one, and chunks do not matter.
"""

from typing import Final

import numpy as np
from numpy.typing import NDArray

from storage_core.kernels._jit import kernel

# Running state of one segment's indexes: int64[STATE_SIZE].
BYTES_SINCE_ENTRY: Final = 0
POSITION: Final = 1
MAX_TIMESTAMP: Final = 2
MAX_TIMESTAMP_OFFSET: Final = 3
LAST_INDEX_OFFSET: Final = 4
LAST_TIME: Final = 5
LAST_TIME_OFFSET: Final = 6
OFFSET_ENTRIES: Final = 7
TIME_ENTRIES: Final = 8
STATE_SIZE: Final = 9

DONE: Final = 0
OFFSET_INDEX_FULL: Final = 1
TIME_INDEX_FULL: Final = 2
BAD_OFFSET: Final = 3  # an entry's offset does not rise
OVERFLOW: Final = 4  # an offset that is no 31-bit number above the base


@kernel
def offer_time_entry(
    state: NDArray[np.int64],
    entries: NDArray[np.int64],
    first: int,
    max_entries: int,
    skip_full_check: bool,  # numba takes no keyword-only arguments
) -> int:
    """Append (largest timestamp, its offset) to entries unless the timestamp is not new.

    Args:
        state: int64[STATE_SIZE].
        entries: int64[capacity, 2], absolute offsets.
        first: How many time entries were emptied out of entries before.
        max_entries: How many the index file may hold.
        skip_full_check: Whether the slot kept for the last entry may be used.

    Returns:
        DONE, TIME_INDEX_FULL or BAD_OFFSET.
    """
    if not skip_full_check and state[TIME_ENTRIES] >= max_entries - 1:
        return TIME_INDEX_FULL
    if state[TIME_ENTRIES] > 0 and state[MAX_TIMESTAMP_OFFSET] < state[LAST_TIME_OFFSET]:
        return BAD_OFFSET
    if state[MAX_TIMESTAMP] > state[LAST_TIME]:
        entries[state[TIME_ENTRIES] - first, 0] = state[MAX_TIMESTAMP]
        entries[state[TIME_ENTRIES] - first, 1] = state[MAX_TIMESTAMP_OFFSET]
        state[TIME_ENTRIES] += 1
        state[LAST_TIME] = state[MAX_TIMESTAMP]
        state[LAST_TIME_OFFSET] = state[MAX_TIMESTAMP_OFFSET]
    return DONE


@kernel
def add_batches(  # arrays side by side
    state: NDArray[np.int64],
    base_offset: int,
    size: NDArray[np.int64],
    last_offset: NDArray[np.int64],
    max_timestamp: NDArray[np.int64],
    interval_bytes: int,
    max_offset_entries: int,
    max_time_entries: int,
    max_relative_offset: int,
    offset_entries: NDArray[np.int64],
    time_entries: NDArray[np.int64],
) -> tuple[int, int]:
    """Count batches into a segment; new entries go to offset_entries and time_entries from row 0.

    Returns:
        (row, status): the batch that could not be counted and why, or (count, DONE).
    """
    first_offset_entry = state[OFFSET_ENTRIES]
    first_time_entry = state[TIME_ENTRIES]
    for row in range(size.size):
        relative = last_offset[row] - base_offset
        if relative < 0 or relative > max_relative_offset:
            return row, OVERFLOW
        if max_timestamp[row] > state[MAX_TIMESTAMP]:
            state[MAX_TIMESTAMP] = max_timestamp[row]
            state[MAX_TIMESTAMP_OFFSET] = last_offset[row]
        if state[BYTES_SINCE_ENTRY] > interval_bytes:
            if state[OFFSET_ENTRIES] >= max_offset_entries:
                return row, OFFSET_INDEX_FULL
            if state[OFFSET_ENTRIES] > 0 and last_offset[row] <= state[LAST_INDEX_OFFSET]:
                return row, BAD_OFFSET
            entry = state[OFFSET_ENTRIES] - first_offset_entry
            offset_entries[entry, 0] = last_offset[row]
            offset_entries[entry, 1] = state[POSITION]
            state[OFFSET_ENTRIES] += 1
            state[LAST_INDEX_OFFSET] = last_offset[row]
            status = offer_time_entry(
                state,
                time_entries,
                first_time_entry,
                max_time_entries,
                False,  # as above
            )
            if status != DONE:
                return row, status
            state[BYTES_SINCE_ENTRY] = 0
        state[POSITION] += size[row]
        state[BYTES_SINCE_ENTRY] += size[row]
    return size.size, DONE
