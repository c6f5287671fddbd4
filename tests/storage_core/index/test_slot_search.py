"""Kafka's binary search beside a linear one."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from storage_core.index.segment_indexes import NO_SLOT, WARM_BYTES, find_slots


@pytest.mark.item("IDX-11", "IDX-12", "IDX-14")
@given(
    values=st.sets(st.integers(1, 400), max_size=300).map(sorted),
    target=st.integers(-1, 402),
    entry_bytes=st.sampled_from((8, 12, 400)),
)
def test_it_finds_what_a_linear_search_finds(values, target, entry_bytes):
    column = np.array(values, np.int32)
    below = [slot for slot, value in enumerate(values) if value <= target]
    found = find_slots(column, target, entry_bytes=entry_bytes)
    assert found.at_or_below == (below[-1] if below else NO_SLOT)


@pytest.mark.item("IDX-13")
@given(
    values=st.sets(st.integers(1, 400), max_size=300).map(sorted),
    target=st.integers(-1, 402),
    entry_bytes=st.sampled_from((8, 12, 400)),
)
def test_upwards_it_finds_the_first_at_or_above_or_the_one_after_an_equal(
    values, target, entry_bytes
):
    found = find_slots(np.array(values, np.int32), target, entry_bytes=entry_bytes).at_or_above
    above = [slot for slot, value in enumerate(values) if value >= target]
    first = above[0] if above else NO_SLOT
    if found != first:
        # An equal entry at which the search ends without a look is passed over.
        assert values[first] == target
        assert found == (first + 1 if first + 1 < len(values) else NO_SLOT)


@pytest.mark.item("IDX-14")
@pytest.mark.parametrize(("entry_bytes", "warm"), [(8, 1024), (12, 682)], ids=["offset", "time"])
def test_the_warm_entries_are_as_many_as_kafkas(entry_bytes, warm):
    assert WARM_BYTES // entry_bytes == warm
    column = np.arange(1, 3 * warm, dtype=np.int32)
    for target in (1, len(column) - warm - 1, len(column) - warm, len(column) - warm + 1):
        assert find_slots(column, target, entry_bytes=entry_bytes).at_or_below == target - 1
