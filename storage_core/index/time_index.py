"""The time index of a segment: largest timestamps so far, and where they stand."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from storage_core.formats.batch_v2 import NO_TIMESTAMP
from storage_core.formats.index_entries import TIME_INDEX_ENTRY


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
        return int(self.entries["timestamp"][-1]) if len(self.entries) else NO_TIMESTAMP
