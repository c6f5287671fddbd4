"""Appends one after the other, compiled and plain, against the roll rule and the index rule."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from storage_core.kernels import append_plan, index_build
from storage_core.log.append.segment import RollParams, SegmentAge, should_roll
from tests.storage_core.kernels.twins import in_both_ways

BATCHES = st.lists(
    st.tuples(st.integers(60, 400), st.integers(1, 2**30), st.integers(-1, 5_000)),
    min_size=1,
    max_size=30,
)


def new_state(interval_bytes=0, entries=1):
    state = index_build.new_state(0, interval_bytes, 0)
    state[[index_build.STATE_MAX_OFFSET_ENTRIES, index_build.STATE_MAX_TIME_ENTRIES]] = entries
    return state


@in_both_ways(add_until_roll=append_plan.add_until_roll)
@given(
    batches=BATCHES,
    segment_bytes=st.integers(400, 3_000),
    max_ms=st.integers(1, 6_000),
    interval_bytes=st.sampled_from((0, 200)),
    entries=st.integers(1, 9),
    was_rolled=st.booleans(),
)
def test_batches_are_counted_up_to_the_first_that_has_to_be_rolled_for(
    add_until_roll, batches, segment_bytes, max_ms, interval_bytes, entries, was_rolled
):
    size, step, times = (np.array(column, np.int64) for column in zip(*batches, strict=True))
    last_offset = np.cumsum(step)
    room = (len(batches), 2)
    found = new_state(interval_bytes, entries)
    count, status = add_until_roll(
        found,
        size,
        last_offset,
        times,
        was_rolled,
        77,
        max_ms,
        segment_bytes,
        np.empty(room, np.int64),
        np.empty(room, np.int64),
    )
    state = new_state(interval_bytes, entries)
    first_batch_timestamp = -1
    expected = 0
    for row in range(len(batches)):
        age = SegmentAge(
            base_offset=0,
            size_bytes=int(state[index_build.STATE_POSITION]),
            first_batch_timestamp=first_batch_timestamp,
            created_ms=0,
            jitter_ms=0,
            is_index_full=bool(
                state[index_build.STATE_OFFSET_ENTRIES] >= entries
                or state[index_build.STATE_TIME_ENTRIES] >= entries - 1
            ),
        )
        params = RollParams(
            max_segment_ms=max_ms,
            max_segment_bytes=segment_bytes,
            max_timestamp=int(times[row]),
            last_offset=int(last_offset[row]),
            append_bytes=int(size[row]),
            now_ms=77,
        )
        if should_roll(age, params) and not (was_rolled and row == 0):
            assert status == append_plan.ROLL
            break
        if row == 0:
            first_batch_timestamp = int(times[0])
        _, expected_status = index_build.add_batches(
            state,
            size[row : row + 1],
            last_offset[row : row + 1],
            times[row : row + 1],
            np.empty(room, np.int64),
            np.empty(room, np.int64),
        )
        if expected_status != index_build.DONE:
            assert status == expected_status
            break
        expected += 1
    else:
        assert status == index_build.DONE
    first = found[index_build.STATE_FIRST_BATCH_TIMESTAMP]
    assert (count, first) == (expected, first_batch_timestamp)
    if status not in {index_build.OFFSET_INDEX_FULL, index_build.TIME_INDEX_FULL}:
        assert found.tolist() == state.tolist()


@pytest.mark.parametrize("kernel", [append_plan.add_until_roll, append_plan.add_until_roll.py_func])
def test_no_batches_are_no_roll(kernel):
    none = np.empty(0, np.int64)
    pairs = np.empty((0, 2), np.int64)
    state = new_state()
    assert kernel(state, none, none, none, False, 0, 1, 1, pairs, pairs) == (0, index_build.DONE)
    assert state[index_build.STATE_FIRST_BATCH_TIMESTAMP] == -1
