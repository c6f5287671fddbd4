"""Digests of a replica, summed over fixed ranges of offsets.

Ranges do not know of segments: replicas that rolled at other offsets have the same sums. Where
sums differ, batches do; where they are equal, the batches are, in whatever order.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from storage_core.cluster.log_batches import LogReader, ReadDepth
from storage_core.cluster.resting_log import RestingLog
from storage_core.kernels.batch_digest import fold_digests

# For so many bytes of a log, sums take 1/4,096 of that, and little is read again for a difference.
_RANGE_BYTES: Final = 64 << 10
_MOST_RANGES: Final = 1 << 16


@dataclass(frozen=True, slots=True)
class OffsetRanges:
    """Ranges of offsets of the same length, one behind the other."""

    first: int
    count: int
    shift: int  # each has ``2**shift`` offsets, from its number times that on

    @classmethod
    def of(cls, first_offset: int, end_offset: int, size_bytes: int) -> "OffsetRanges":
        """Return the ranges for logs between two offsets."""
        wanted = max(1, min(_MOST_RANGES, size_bytes // _RANGE_BYTES))
        length = max(1, -(-(end_offset - first_offset) // wanted))
        shift = (length - 1).bit_length()
        first = first_offset >> shift
        return cls(first, ((max(end_offset, 1) - 1) >> shift) - first + 1, shift)

    def bounds(self, mask: NDArray[np.bool_]) -> list[tuple[int, int]]:
        """Return first and end offset of the chosen ones, neighbours joined."""
        numbers = np.flatnonzero(mask)
        if not numbers.size:
            return []
        gaps = np.flatnonzero(np.diff(numbers) > 1)
        starts = numbers[np.append(0, gaps + 1)] + self.first
        ends = numbers[np.append(gaps, numbers.size - 1)] + self.first + 1
        return [
            (start << self.shift, end << self.shift)
            for start, end in zip(starts.tolist(), ends.tolist(), strict=True)
        ]


def digest_log(log: RestingLog, ranges: OffsetRanges) -> tuple[NDArray[np.uint64], LogReader]:
    """Return digest sums of a replica's ranges, uint64[count, 2], and its reader. The reader has
    reached the log's end."""
    sums = np.zeros((ranges.count, 2), np.uint64)
    reader = LogReader(log.view, log.base_offsets, ReadDepth.SUMS)
    while True:
        reader.fill()
        rows = reader.rows
        if reader.is_at_end:
            return sums, reader
        columns = np.ascontiguousarray(rows.batches.columns)
        fold_digests(columns, np.ascontiguousarray(rows.digests), ranges.first, ranges.shift, sums)
        reader.rows = rows.take(np.zeros(len(rows), np.bool_))


def find_unequal(sums: Sequence[NDArray[np.uint64]]) -> NDArray[np.bool_]:
    """Return in which ranges not all replicas have the same sum."""
    unequal = np.zeros(len(sums[0]), np.bool_)
    for each in sums[1:]:
        unequal |= (each != sums[0]).any(axis=1)
    return unequal
