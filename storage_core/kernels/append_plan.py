"""How many batches, each an append of its own, go into a segment before it has to be rolled."""

from typing import Final

import numpy as np
from numpy.typing import NDArray

from storage_core.formats.batch_v2 import NO_TIMESTAMP
from storage_core.kernels._jit import kernel
from storage_core.kernels.index_build import (
    DONE,
    OFFSET_ENTRIES,
    POSITION,
    TIME_ENTRIES,
    add_batches,
)

ROLL: Final = -1  # the batch at `row` belongs into the next segment


@kernel
def add_until_roll(  # arrays side by side
    state: NDArray[np.int64],
    base_offset: int,
    size: NDArray[np.int64],
    last_offset: NDArray[np.int64],
    max_timestamp: NDArray[np.int64],
    is_first_free: bool,  # numba takes no keyword-only arguments
    first_batch_timestamp: int,
    clock_waited_ms: int,
    roll_after_ms: int,
    max_segment_bytes: int,
    interval_bytes: int,
    max_offset_entries: int,
    max_time_entries: int,
    max_relative_offset: int,
    offset_entries: NDArray[np.int64],
    time_entries: NDArray[np.int64],
) -> tuple[int, int, int]:
    """Count batches into a segment, one append after the other, until one asks for a roll.

    Args:
        state: int64[index_build.STATE_SIZE].
        base_offset: Of the segment.
        size: int64[n].
        last_offset: int64[n].
        max_timestamp: int64[n].
        is_first_free: Whether the first batch goes in without a question: the segment was just
            rolled for it.
        first_batch_timestamp: Largest timestamp of the segment's first batch.
        clock_waited_ms: Age of the segment by the clock.
        roll_after_ms: Age at which it is rolled.
        max_segment_bytes: Size that it may have.
        interval_bytes: As for add_batches, and so the following.
        max_offset_entries: See above.
        max_time_entries: See above.
        max_relative_offset: See above.
        offset_entries: int64[n, 2], out.
        time_entries: int64[n, 2], out.

    Returns:
        (row, status, first_batch_timestamp): the batch that was not counted and why: ROLL or a
        status of add_batches; (n, DONE) if all were. The segment's first batch may be among them.
    """
    first_offset_entry = state[OFFSET_ENTRIES]
    first_time_entry = state[TIME_ENTRIES]
    for row in range(size.size):
        if row > 0 or not is_first_free:
            waited = clock_waited_ms
            if first_batch_timestamp > NO_TIMESTAMP:
                waited = max_timestamp[row] - first_batch_timestamp
            relative = last_offset[row] - base_offset
            if (
                state[POSITION] > max_segment_bytes - size[row]
                or (state[POSITION] > 0 and waited > roll_after_ms)
                or state[OFFSET_ENTRIES] >= max_offset_entries
                or state[TIME_ENTRIES] >= max_time_entries - 1
                or relative < 0
                or relative > max_relative_offset
            ):
                return row, ROLL, first_batch_timestamp
        if state[POSITION] == 0:
            first_batch_timestamp = max_timestamp[row]
        _, status = add_batches(
            state,
            base_offset,
            size[row : row + 1],
            last_offset[row : row + 1],
            max_timestamp[row : row + 1],
            interval_bytes,
            max_offset_entries,
            max_time_entries,
            max_relative_offset,
            offset_entries[state[OFFSET_ENTRIES] - first_offset_entry :],
            time_entries[state[TIME_ENTRIES] - first_time_entry :],
        )
        if status != DONE:
            return row, status, first_batch_timestamp
    return size.size, DONE, first_batch_timestamp
