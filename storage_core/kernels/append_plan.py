"""Count the batches of a segment up to its roll. Each batch is an append of its own."""

from typing import Final

import numpy as np
from numpy.typing import NDArray

from storage_core.formats.batch_v2 import NO_TIMESTAMP
from storage_core.formats.index_entries import MAX_RELATIVE_OFFSET
from storage_core.kernels._jit import kernel
from storage_core.kernels.index_build import (
    DONE,
    STATE_BASE_OFFSET,
    STATE_FIRST_BATCH_TIMESTAMP,
    STATE_MAX_OFFSET_ENTRIES,
    STATE_MAX_TIME_ENTRIES,
    STATE_OFFSET_ENTRIES,
    STATE_POSITION,
    STATE_TIME_ENTRIES,
    add_batches,
)

ROLL: Final = -1  # the batch at `row` belongs into the next segment


@kernel
def add_until_roll(
    state: NDArray[np.int64],
    size: NDArray[np.int64],
    last_offset: NDArray[np.int64],
    max_timestamp: NDArray[np.int64],
    is_first_free: bool,  # numba takes no keyword-only arguments
    clock_waited_ms: int,
    roll_after_ms: int,
    max_segment_bytes: int,
    offset_entries: NDArray[np.int64],
    time_entries: NDArray[np.int64],
) -> tuple[int, int]:
    """Count batches into a segment until one asks for a roll. Each batch is an append of its own.

    Args:
        state: int64[index_build.STATE_SIZE].
        size: int64[n].
        last_offset: int64[n].
        max_timestamp: int64[n].
        is_first_free: Whether the first batch goes in without a question: the segment was just
            rolled for it.
        max_segment_bytes: Size that it may have.
        offset_entries: int64[n, 2], out.
        time_entries: int64[n, 2], out.

    Returns:
        (row, status): the batch that was not counted and why: ROLL or a status of add_batches;
        (n, DONE) if all were.
    """
    first_offset_entry = state[STATE_OFFSET_ENTRIES]
    first_time_entry = state[STATE_TIME_ENTRIES]
    for row in range(size.size):
        if row > 0 or not is_first_free:
            waited = clock_waited_ms
            if state[STATE_FIRST_BATCH_TIMESTAMP] > NO_TIMESTAMP:
                waited = max_timestamp[row] - state[STATE_FIRST_BATCH_TIMESTAMP]
            relative = last_offset[row] - state[STATE_BASE_OFFSET]
            if (
                state[STATE_POSITION] > max_segment_bytes - size[row]
                or (state[STATE_POSITION] > 0 and waited > roll_after_ms)
                or state[STATE_OFFSET_ENTRIES] >= state[STATE_MAX_OFFSET_ENTRIES]
                or state[STATE_TIME_ENTRIES] >= state[STATE_MAX_TIME_ENTRIES] - 1
                or relative < 0
                or relative > MAX_RELATIVE_OFFSET
            ):
                return row, ROLL
        _, status = add_batches(
            state,
            size[row : row + 1],
            last_offset[row : row + 1],
            max_timestamp[row : row + 1],
            offset_entries[state[STATE_OFFSET_ENTRIES] - first_offset_entry :],
            time_entries[state[STATE_TIME_ENTRIES] - first_time_entry :],
        )
        if status != DONE:
            return row, status
    return size.size, DONE
