"""Ranges of offsets with epochs behave as sets of (offset, epoch)."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from storage_core.cluster.log_batches import (
    Ranges,
    clip,
    contain,
    count,
    intersect,
    is_within,
    no_ranges,
    of_offsets,
    subtract,
    union,
)

ROWS = st.lists(
    st.tuples(st.integers(0, 30), st.integers(0, 6), st.integers(0, 3)).map(
        lambda row: (row[0], row[0] + row[1], row[2])
    ),
    max_size=8,
)


def ranges(rows: list[tuple[int, int, int]]) -> Ranges:
    return np.array(rows, np.int64).reshape(-1, 3)


def members(rows: Ranges) -> set[tuple[int, int]]:
    return {(offset, epoch) for first, last, epoch in rows for offset in range(first, last + 1)}


@given(one=ROWS, two=ROWS)
def test_a_union_has_what_is_in_any_part_and_counts_it_once(one, two):
    joined = union([ranges(one), ranges(two)])
    assert members(joined) == members(ranges(one)) | members(ranges(two))
    assert count(joined) == len(members(joined))
    starts = joined[:, 0].tolist()
    assert starts == sorted(starts)
    # Neighbours of one epoch are one range.
    ends = {(int(last) + 1, int(epoch)) for _, last, epoch in joined}
    assert not ends & {(int(first), int(epoch)) for first, _, epoch in joined}


@given(rows=ROWS, start=st.integers(0, 40), end=st.integers(0, 40))
def test_a_clip_leaves_what_lies_between(rows, start, end):
    whole = union([ranges(rows)])
    expected = {(offset, epoch) for offset, epoch in members(whole) if start <= offset < end}
    assert members(clip(whole, start=start, end=end)) == expected


@given(one=ROWS, two=ROWS)
def test_sets_are_cut_as_those_of_python(one, two):
    first, second = union([ranges(one)]), union([ranges(two)])
    assert members(subtract(first, second)) == members(first) - members(second)
    assert members(intersect(first, second)) == members(first) & members(second)
    pairs = [(offset, epoch) for offset in range(40) for epoch in range(5)]
    columns = np.array(pairs, np.int64).T
    is_in = contain(first, *columns)
    assert is_in.tolist() == [pair in members(first) for pair in pairs]


def test_offsets_become_ranges():
    offsets, epochs = np.array([5, 3, 4]), np.array([1, 1, 2])
    assert union([of_offsets(offsets, epochs)]).tolist() == [[3, 3, 1], [4, 4, 2], [5, 5, 1]]
    assert count(no_ranges()) == 0


def test_spans_hold_their_first_and_last_offset():
    spans = np.array([(2, 4, 0), (6, 6, 0)])
    inside = np.flatnonzero(is_within(np.arange(9), spans))
    assert inside.tolist() == [2, 3, 4, 6]
    assert not is_within(np.arange(9), spans[:0]).any()
