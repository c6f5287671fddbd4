"""The offset index of a segment: from an offset to a position at or before its batch."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from storage_core.formats.index_entries import OFFSET_INDEX_ENTRY
from storage_core.index.slot_search import NO_SLOT, find_slots


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
        return self._offset(-1)

    def look_up(self, offset: int) -> int:
        """Return the position of the entry with the largest offset <= offset, else 0."""
        slots = find_slots(
            self.entries["relative_offset"],
            offset - self.base_offset,
            entry_bytes=OFFSET_INDEX_ENTRY.itemsize,
        )
        if slots.at_or_below == NO_SLOT:
            return 0
        return int(self.entries["position"][slots.at_or_below])

    def find_offset_at(self, position: int) -> int | None:
        """Return the offset of the first entry at or behind a position in the file, else None.

        Everything that begins before the position has a smaller offset, as every entry names the
        last offset of its batch.
        """
        slots = find_slots(
            self.entries["position"], position, entry_bytes=OFFSET_INDEX_ENTRY.itemsize
        )
        return None if slots.at_or_above == NO_SLOT else self._offset(slots.at_or_above)

    def _offset(self, slot: int) -> int:
        return self.base_offset + int(self.entries["relative_offset"][slot])
