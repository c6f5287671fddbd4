"""Sets of offsets with their epochs, as ranges."""

from collections.abc import Iterable
from typing import Final

import numpy as np
from numpy.typing import NDArray

Ranges = NDArray[np.int64]
_LEAST: Final = -(2**63)
_MOST: Final = 2**63 - 1


def no_ranges() -> Ranges:
    """Return an empty set: int64[0, 3], first offset, last offset, epoch."""
    return np.empty((0, 3), np.int64)


def of_offsets(offsets: NDArray[np.int64], epochs: NDArray[np.int64]) -> Ranges:
    """Return offsets, in any order, as ranges of one offset each."""
    return np.column_stack([offsets, offsets, epochs])


def union(parts: Iterable[Ranges]) -> Ranges:
    """Unite sets of ranges, join neighbours, sort by epoch and offset."""
    rows = np.concatenate([no_ranges(), *parts])
    if len(rows) <= 1:
        return rows
    rows = rows[np.lexsort((rows[:, 0], rows[:, 2]))]
    # Up to a row, the largest last offset of its epoch: epochs are apart by more than any offset.
    reach = np.empty(len(rows), np.int64)
    starts = np.flatnonzero(np.diff(rows[:, 2], prepend=rows[0, 2] - 1))
    for first, end in zip(starts, [*starts[1:], len(rows)], strict=True):
        reach[first:end] = np.maximum.accumulate(rows[first:end, 1])
    begins = np.ones(len(rows), np.bool_)
    begins[1:] = (rows[1:, 2] != rows[:-1, 2]) | (rows[1:, 0] > reach[:-1] + 1)
    at = np.flatnonzero(begins)
    ends = np.append(at[1:], len(rows)) - 1
    joined: Ranges = np.column_stack([rows[at, 0], reach[ends], rows[at, 2]])
    return joined[np.lexsort((joined[:, 2], joined[:, 0]))]


def clip(ranges: Ranges, *, start: int | None = None, end: int | None = None) -> Ranges:
    """Return the offsets at or above a start and below an end."""
    rows = ranges.copy()
    if start is not None:
        rows[:, 0] = np.maximum(rows[:, 0], start)
    if end is not None:
        rows[:, 1] = np.minimum(rows[:, 1], end - 1)
    return rows[rows[:, 0] <= rows[:, 1]]


def count(ranges: Ranges) -> int:
    """Return the number of offsets in ranges without overlaps in an epoch."""
    return int((ranges[:, 1] - ranges[:, 0] + 1).sum())


def subtract(ranges: Ranges, others: Ranges) -> Ranges:
    """Return the offsets of the first set outside the second. Both sets are results of
    ``union``."""
    # Equal replicas are the rule: for these, the sets below took most of the time.
    if not len(ranges) or not len(others):
        return ranges
    if np.array_equal(ranges, others):
        return no_ranges()
    parts = [ranges[~np.isin(ranges[:, 2], others[:, 2])]]
    for epoch in np.intersect1d(ranges[:, 2], others[:, 2]).tolist():
        own, other = (rows[rows[:, 2] == epoch] for rows in (ranges, others))
        # Gaps of the second set: before, between and after its ranges.
        first = np.concatenate([[_LEAST], other[:, 1] + 1])
        last = np.concatenate([other[:, 0] - 1, [_MOST]])
        begin = np.searchsorted(last, own[:, 0])
        counts = np.maximum(np.searchsorted(first, own[:, 1], side="right") - begin, 0)
        row = np.repeat(np.arange(len(own)), counts)
        free = begin[row] + np.arange(len(row)) - np.repeat(np.cumsum(counts) - counts, counts)
        bounds = np.maximum(own[row, 0], first[free]), np.minimum(own[row, 1], last[free])
        gaps = np.column_stack([*bounds, np.full(len(row), epoch)])
        parts.append(gaps[gaps[:, 0] <= gaps[:, 1]])
    return union(parts)


def intersect(ranges: Ranges, others: Ranges) -> Ranges:
    """Return what is in both sets; both are as ``union`` makes them."""
    return subtract(ranges, subtract(ranges, others))


def contain(
    ranges: Ranges, offsets: NDArray[np.int64], epochs: NDArray[np.int64]
) -> NDArray[np.bool_]:
    """Return which offsets, with their epochs, are in a set."""
    is_in = np.zeros(len(offsets), np.bool_)
    for epoch in np.unique(ranges[:, 2]).tolist():
        own = ranges[ranges[:, 2] == epoch]
        rows = np.flatnonzero(epochs == epoch)
        at = np.searchsorted(own[:, 0], offsets[rows], side="right") - 1
        is_in[rows] = (at >= 0) & (offsets[rows] <= own[at, 1])
    return is_in


def is_within(offsets: NDArray[np.int64], spans: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Return which offsets lie in spans, whatever their epochs.

    Args:
        offsets: int64[n].
        spans: int64[m, 2 or more], first and last offset, rising and apart from each other.
    """
    at = np.searchsorted(spans[:, 1], offsets)
    is_inside: NDArray[np.bool_] = np.append(spans[:, 0], _MOST)[at] <= offsets
    return is_inside
