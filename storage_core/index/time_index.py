"""The time index of a segment: largest timestamps so far, and where they stand."""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from storage_core.formats.batch_v2 import NO_TIMESTAMP
from storage_core.formats.index_entries import TIME_INDEX_ENTRY
from storage_core.index.slot_search import NO_SLOT, find_slots


class TimeEntry(NamedTuple):
    """An entry, its offset absolute: nothing at or before the offset is newer.

    Attributes:
        timestamp: Epoch milliseconds, NO_TIMESTAMP where there is no entry.
        offset: Last offset of the batch with that timestamp, the base offset without an entry.
    """

    timestamp: int
    offset: int


@dataclass(frozen=True, slots=True)
class TimeIndex:
    """Entries of one ``.timeindex`` file, a ragged tail left out.

    Attributes:
        base_offset: Base offset of the segment.
        entries: TIME_INDEX_ENTRY[n].
    """

    base_offset: int
    entries: NDArray[np.void]

    @classmethod
    def parse(cls, base_offset: int, data: bytes) -> "TimeIndex":
        """Read the bytes of a file; whatever they say is taken as it is, as Kafka does."""
        count = len(data) // TIME_INDEX_ENTRY.itemsize
        return cls(base_offset, np.frombuffer(data, TIME_INDEX_ENTRY, count))

    @property
    def last_timestamp(self) -> int:
        """Timestamp of the last entry, NO_TIMESTAMP where there is none."""
        return self.last_entry.timestamp

    @property
    def last_entry(self) -> TimeEntry:
        """The last entry."""
        return self._entry(len(self.entries) - 1)

    def look_up(self, timestamp: int) -> TimeEntry:
        """Return the entry with the largest timestamp <= timestamp."""
        slots = find_slots(
            self.entries["timestamp"], timestamp, entry_bytes=TIME_INDEX_ENTRY.itemsize
        )
        return self._entry(slots.at_or_below)

    def _entry(self, slot: int) -> TimeEntry:
        if slot == NO_SLOT:
            return TimeEntry(NO_TIMESTAMP, self.base_offset)
        relative = int(self.entries["relative_offset"][slot])
        return TimeEntry(int(self.entries["timestamp"][slot]), self.base_offset + relative)
