"""Sets of offsets with their epochs, as ranges."""

from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

Ranges = NDArray[np.int64]


def no_ranges() -> Ranges:
    """Return an empty set: int64[0, 3], first offset, last offset, epoch."""
    return np.empty((0, 3), np.int64)


def of_offsets(offsets: NDArray[np.int64], epochs: NDArray[np.int64]) -> Ranges:
    """Return offsets, in any order, as ranges of one offset each."""
    return np.column_stack([offsets, offsets, epochs])


def union(parts: Iterable[Ranges]) -> Ranges:
    """Return what is in any of the parts, neighbours joined, by epoch and offset."""
    rows = np.concatenate([no_ranges(), *parts])
    if not len(rows):
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
    """Return how many offsets a set has whose ranges do not overlap within an epoch."""
    return int((ranges[:, 1] - ranges[:, 0] + 1).sum())
