"""Looking up positions, beside a linear search and beside Kafka's binary search."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from storage_core.formats.index_entries import OFFSET_INDEX_ENTRY
from storage_core.index.segment_indexes import OffsetIndex

BASE = 5000
WARM_ENTRIES = 8192 // 8


def index_of(offsets: list[int], *, tail: bytes = b"") -> OffsetIndex:
    """Return an index whose entry for an offset has ten times that as its position."""
    entries = np.zeros(len(offsets), OFFSET_INDEX_ENTRY)
    entries["relative_offset"] = np.array(offsets, np.int64) - BASE
    entries["position"] = (np.array(offsets, np.int64) - BASE) * 10
    return OffsetIndex.parse(BASE, entries.tobytes() + tail)


def linear(offsets: list[int], target: int) -> int:
    return max(((offset - BASE) * 10 for offset in offsets if offset <= target), default=0)


@pytest.mark.item("IDX-11")
@given(
    offsets=st.sets(st.integers(BASE + 1, BASE + 60), max_size=30).map(sorted),
    target=st.integers(BASE - 2, BASE + 62),
)
def test_the_entry_with_the_largest_offset_up_to_the_target_is_found(offsets, target):
    assert index_of(offsets).look_up(target) == linear(offsets, target)


@pytest.mark.item("IDX-11")
def test_without_a_lower_entry_the_segment_is_read_from_its_start():
    assert index_of([]).look_up(BASE + 7) == 0
    assert index_of([BASE + 7]).look_up(BASE + 6) == 0
    assert index_of([BASE + 7]).look_up(BASE + 7) == 70


@pytest.mark.item("IDX-14")
@pytest.mark.parametrize(
    "count",
    [1, 2, WARM_ENTRIES - 1, WARM_ENTRIES, WARM_ENTRIES + 1, WARM_ENTRIES + 2, 3 * WARM_ENTRIES],
)
def test_the_warm_section_changes_no_result(count):
    offsets = [BASE + 3 * i + 2 for i in range(count)]
    index = index_of(offsets)
    positions = np.array([0] + [(offset - BASE) * 10 for offset in offsets])
    targets = np.arange(BASE - 1, offsets[-1] + 3)
    expected = positions[np.searchsorted(offsets, targets, side="right")]
    assert [index.look_up(int(target)) for target in targets] == expected.tolist()


@pytest.mark.parametrize("tail", range(8), ids=lambda tail: f"{tail} bytes")
def test_a_ragged_tail_is_no_entry(tail):
    index = index_of([BASE + 3, BASE + 9], tail=b"\x7f" * tail)
    assert len(index.entries) == 2
    assert index.last_offset == BASE + 9
    assert index.look_up(BASE + 100) == 90


def test_the_last_offset_of_an_empty_index_is_the_base_offset():
    assert index_of([]).last_offset == BASE


def kafkas_search(column: list[int], target: int) -> int:
    """Binary search for the slot, with the newest entries first, as Kafka's index does it."""
    if not column:
        return -1

    def between(low: int, high: int) -> int:
        while low < high:
            middle = -(-(low + high) // 2)
            if column[middle] == target:
                return middle
            low, high = (middle, high) if column[middle] < target else (low, middle - 1)
        return low

    last = len(column) - 1
    first_warm = max(0, last - WARM_ENTRIES)
    if column[first_warm] < target:
        return between(first_warm, last)
    return -1 if column[0] > target else between(0, first_warm)


@pytest.mark.parametrize("zeros", [1, 5, 700, 2 * WARM_ENTRIES])
@pytest.mark.parametrize("count", [1, 30, 1500])
def test_an_index_that_ends_in_zeros_is_searched_as_kafka_searches_it(count, zeros):
    relative = [3 * i + 2 for i in range(count)] + [0] * zeros
    entries = np.zeros(len(relative), OFFSET_INDEX_ENTRY)
    entries["relative_offset"] = relative
    entries["position"] = np.arange(len(relative)) + 1
    index = OffsetIndex.parse(BASE, entries.tobytes())
    for target in range(-1, 3 * count + 3, 7):
        slot = kafkas_search(relative, target)
        assert index.look_up(BASE + target) == (slot + 1 if slot >= 0 else 0)
    assert index.last_offset == BASE
