"""The offset index of a segment: from an offset to a position at or before its batch."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from storage_core.formats.index_entries import OFFSET_INDEX_ENTRY


@dataclass(frozen=True, slots=True)
class OffsetIndex:
    """Entries of one ``.index`` file, a ragged tail left out.

    Attributes:
        base_offset: Base offset of the segment.
        entries: OFFSET_INDEX_ENTRY[n].
    """

    base_offset: int
    entries: NDArray[np.void]

    @classmethod
    def parse(cls, base_offset: int, data: bytes) -> "OffsetIndex":
        """Read the bytes of a file; whatever they say is taken as it is, as Kafka does."""
        count = len(data) // OFFSET_INDEX_ENTRY.itemsize
        return cls(base_offset, np.frombuffer(data, OFFSET_INDEX_ENTRY, count))

    @property
    def last_offset(self) -> int:
        """Offset of the last entry, the base offset where there is none."""
        if not len(self.entries):
            return self.base_offset
        return self.base_offset + int(self.entries["relative_offset"][-1])

    def look_up(self, offset: int) -> int:
        """Return the position of the entry with the largest offset <= offset, else 0."""
        relative = self.entries["relative_offset"]
        slot = _last_not_above(relative, offset - self.base_offset)
        return int(self.entries["position"][slot]) if slot >= 0 else 0


def _last_not_above(column: NDArray[np.int32], target: int) -> int:
    """Return the slot that Kafka's binary search finds for target, -1 for none.

    The search is spelled out because it defines the answer for an index whose entries are not
    sorted, such as one that ends in the zeros of a preallocated file.
    """
    count = len(column)
    if count == 0:
        return -1
    # The newest entries are searched first: the last 8192 bytes.
    first_warm = max(0, count - 1 - 8192 // OFFSET_INDEX_ENTRY.itemsize)
    if int(column[first_warm]) < target:
        low, high = first_warm, count - 1
    elif int(column[0]) > target:
        return -1
    else:
        low, high = 0, first_warm
    while low < high:
        middle = (low + high + 1) >> 1
        found = int(column[middle])
        if found > target:
            high = middle - 1
        elif found < target:
            low = middle
        else:
            return middle
    return low
