"""Build a segment's offset and time index entries, batch by batch.

The entries are made as the segment is written. An entry is added *before* a batch is counted, when
more bytes than the interval lie since the last one: so the first batch of a segment never gets one,
and chunks do not matter.
"""

from typing import Final

import numpy as np
from numpy.typing import NDArray

from storage_core.formats.batch_v2 import NO_TIMESTAMP
from storage_core.formats.index_entries import (
    MAX_RELATIVE_OFFSET,
    OFFSET_INDEX_ENTRY,
    TIME_INDEX_ENTRY,
)
from storage_core.kernels._jit import kernel

# State of one segment's indexes, int64[STATE_SIZE]: what has been counted, then its limits.
STATE_BYTES_SINCE_ENTRY: Final = 0
STATE_POSITION: Final = 1
STATE_MAX_TIMESTAMP: Final = 2
STATE_MAX_TIMESTAMP_OFFSET: Final = 3
STATE_LAST_INDEX_OFFSET: Final = 4
STATE_LAST_TIME: Final = 5
STATE_LAST_TIME_OFFSET: Final = 6
STATE_OFFSET_ENTRIES: Final = 7
STATE_TIME_ENTRIES: Final = 8
STATE_FIRST_BATCH_TIMESTAMP: Final = 9  # largest timestamp of the segment's first batch
STATE_BASE_OFFSET: Final = 10
STATE_INTERVAL_BYTES: Final = 11  # index.interval.bytes
STATE_MAX_OFFSET_ENTRIES: Final = 12  # how many the index file may hold
STATE_MAX_TIME_ENTRIES: Final = 13  # with the last one, which is kept for the end of the segment
STATE_SIZE: Final = 14

DONE: Final = 0
OFFSET_INDEX_FULL: Final = 1
TIME_INDEX_FULL: Final = 2
BAD_OFFSET: Final = 3  # an entry's offset does not rise
OVERFLOW: Final = 4  # an offset that is no 31-bit number above the base


def new_state(base_offset: int, interval_bytes: int, max_index_bytes: int) -> NDArray[np.int64]:
    """Return the state of a segment without batches."""
    state = np.zeros(STATE_SIZE, np.int64)
    state[[STATE_MAX_TIMESTAMP, STATE_LAST_TIME, STATE_FIRST_BATCH_TIMESTAMP]] = NO_TIMESTAMP
    state[[STATE_MAX_TIMESTAMP_OFFSET, STATE_LAST_TIME_OFFSET, STATE_BASE_OFFSET]] = base_offset
    state[STATE_INTERVAL_BYTES] = interval_bytes
    state[STATE_MAX_OFFSET_ENTRIES] = max_index_bytes // OFFSET_INDEX_ENTRY.itemsize
    state[STATE_MAX_TIME_ENTRIES] = max_index_bytes // TIME_INDEX_ENTRY.itemsize
    return state


@kernel
def offer_time_entry(
    state: NDArray[np.int64],
    entries: NDArray[np.int64],
    first: int,
    skip_full_check: bool,  # numba takes no keyword-only arguments
) -> int:
    """Append (largest timestamp, its offset) to entries if the timestamp is new.

    Args:
        state: int64[STATE_SIZE].
        entries: int64[capacity, 2], absolute offsets.
        first: How many time entries were emptied out of entries before.
        skip_full_check: Whether the slot kept for the last entry may be used.

    Returns:
        DONE, TIME_INDEX_FULL or BAD_OFFSET.
    """
    if not skip_full_check and state[STATE_TIME_ENTRIES] >= state[STATE_MAX_TIME_ENTRIES] - 1:
        return TIME_INDEX_FULL
    if (
        state[STATE_TIME_ENTRIES] > 0
        and state[STATE_MAX_TIMESTAMP_OFFSET] < state[STATE_LAST_TIME_OFFSET]
    ):
        return BAD_OFFSET
    if state[STATE_MAX_TIMESTAMP] > state[STATE_LAST_TIME]:
        entries[state[STATE_TIME_ENTRIES] - first, 0] = state[STATE_MAX_TIMESTAMP]
        entries[state[STATE_TIME_ENTRIES] - first, 1] = state[STATE_MAX_TIMESTAMP_OFFSET]
        state[STATE_TIME_ENTRIES] += 1
        state[STATE_LAST_TIME] = state[STATE_MAX_TIMESTAMP]
        state[STATE_LAST_TIME_OFFSET] = state[STATE_MAX_TIMESTAMP_OFFSET]
    return DONE


@kernel
def add_batches(
    state: NDArray[np.int64],
    size: NDArray[np.int64],
    last_offset: NDArray[np.int64],
    max_timestamp: NDArray[np.int64],
    offset_entries: NDArray[np.int64],
    time_entries: NDArray[np.int64],
) -> tuple[int, int]:
    """Count batches into a segment.

    Args:
        state: int64[STATE_SIZE].
        size: int64[n].
        last_offset: int64[n].
        max_timestamp: int64[n].
        offset_entries: int64[capacity, 2], out: new entries from row 0 on.
        time_entries: int64[capacity, 2], out: the same.

    Returns:
        (row, status): the batch that could not be counted and why, or (count, DONE).
    """
    first_offset_entry = state[STATE_OFFSET_ENTRIES]
    first_time_entry = state[STATE_TIME_ENTRIES]
    for row in range(size.size):
        if state[STATE_POSITION] == 0:
            state[STATE_FIRST_BATCH_TIMESTAMP] = max_timestamp[row]
        relative = last_offset[row] - state[STATE_BASE_OFFSET]
        if relative < 0 or relative > MAX_RELATIVE_OFFSET:
            return row, OVERFLOW
        if max_timestamp[row] > state[STATE_MAX_TIMESTAMP]:
            state[STATE_MAX_TIMESTAMP] = max_timestamp[row]
            state[STATE_MAX_TIMESTAMP_OFFSET] = last_offset[row]
        if state[STATE_BYTES_SINCE_ENTRY] > state[STATE_INTERVAL_BYTES]:
            if state[STATE_OFFSET_ENTRIES] >= state[STATE_MAX_OFFSET_ENTRIES]:
                return row, OFFSET_INDEX_FULL
            if (
                state[STATE_OFFSET_ENTRIES] > 0
                and last_offset[row] <= state[STATE_LAST_INDEX_OFFSET]
            ):
                return row, BAD_OFFSET
            entry = state[STATE_OFFSET_ENTRIES] - first_offset_entry
            offset_entries[entry, 0] = last_offset[row]
            offset_entries[entry, 1] = state[STATE_POSITION]
            state[STATE_OFFSET_ENTRIES] += 1
            state[STATE_LAST_INDEX_OFFSET] = last_offset[row]
            status = offer_time_entry(
                state,
                time_entries,
                first_time_entry,
                False,  # as above
            )
            if status != DONE:
                return row, status
            state[STATE_BYTES_SINCE_ENTRY] = 0
        state[STATE_POSITION] += size[row]
        state[STATE_BYTES_SINCE_ENTRY] += size[row]
    return size.size, DONE
