"""The index of a round: pass one's results, asked by pass two.

``pass_one.py`` makes it in process; spread over executors it comes of a merge of partial indexes
(``merged.py``), or of keys that were exchanged by hash (``exchanged_index.py``).
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from storage_core.kernels.offset_table import ORDINAL_BITS
from storage_core.maintenance.compaction.buffers import RoundBuffers
from storage_core.maintenance.compaction.kept_hashes import KeptHashes
from storage_core.maintenance.compaction.kept_records import KeptRecords
from storage_core.maintenance.compaction.offset_map import OffsetMap

NO_OFFSET = -1
_WORD_BITS = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class IndexedSegment:
    """What pass one noted of one segment."""

    base_offset: int
    start_position: int
    # uint8[n], of each batch from there on (record_scan.INDEXED and so on).
    flags: NDArray[np.uint8]
    # int64[], records of the batches of legacy formats that have ordinals: their headers do not
    # say.
    legacy_counts: NDArray[np.int64]
    record_count: int
    bytes_read: int  # bytes of the batches of its dirty part
    messages_read: int  # records of those, markers included

    @property
    def word_count(self) -> int:
        """Length of its bitmap in 64-bit words."""
        return words_for(self.record_count)

    def to_parts(self, suffix: str = "") -> tuple[dict[str, int], dict[str, NDArray[Any]]]:
        """Return its numbers, and its arrays by name and suffix, for packing. They are packed
        together with others."""
        numbers = {name: getattr(self, name) for name in _NUMBERS}
        return numbers, {name + suffix: getattr(self, name) for name in _ARRAYS}

    @classmethod
    def from_parts(
        cls, numbers: Mapping[str, int], arrays: Mapping[str, NDArray[Any]], suffix: str = ""
    ) -> "IndexedSegment":
        """Return what to_parts took apart."""
        parts: dict[str, Any] = {name: arrays[name + suffix] for name in _ARRAYS}
        return cls(**parts | dict(numbers))


_ARRAYS: Final = ("flags", "legacy_counts")
_NUMBERS: Final = ("base_offset", "start_position", "record_count", "bytes_read", "messages_read")


@dataclass(frozen=True, slots=True, kw_only=True)
class IndexStats:
    """What pass one read."""

    bytes_read: int
    messages_read: int  # records, markers included
    keys: int  # distinct keys found


@dataclass(frozen=True, kw_only=True)  # no slots: every segment asks for its place
class CompactionIndex:
    """The result of pass one."""

    offset_map: OffsetMap  # every key's newest record, for records that have no bit
    # What was noted of the segments, by base offset, oldest first.
    segments: dict[int, IndexedSegment]
    words: NDArray[np.uint64]  # uint64[], survivors' bitmaps of all of them, one behind the other
    latest_offset: int  # records above it are not touched, -1 where nothing was mapped
    stats: IndexStats
    # Records of batches that were decompressed, some or none.
    records: KeptRecords = field(default_factory=KeptRecords)
    pool: RoundBuffers = field(default_factory=RoundBuffers)
    # Of the keys of the segments, some or none.
    hashes: KeptHashes = field(default_factory=KeptHashes)

    @cached_property
    def numbers(self) -> Mapping[int, int]:
        """Number of each segment among them, by base offset."""
        return {base_offset: number for number, base_offset in enumerate(self.segments)}

    @property
    def end_offset(self) -> int:
        """Segments below it are rewritten, and the next round begins there."""
        return self.latest_offset + 1

    def bitmap_of(self, base_offset: int) -> NDArray[np.uint64]:
        """Return the survivors' bitmap of a segment, as a view. It is empty for a segment
        without records."""
        number = self.numbers[base_offset]
        first, end = self._bounds[number : number + 2].tolist()
        return self.words[first:end]

    @cached_property
    def _bounds(self) -> NDArray[np.int64]:
        return bitmap_bounds(self.segments.values())


def words_for(record_count: int) -> int:
    """Return how many 64-bit words hold a bit for each record."""
    return (record_count + _WORD_BITS - 1) // _WORD_BITS


def bitmap_bounds(segments: Iterable[IndexedSegment]) -> NDArray[np.int64]:
    """Return int64[n + 1]: first word of each segment's bitmap, and total."""
    return np.cumsum([0, *(segment.word_count for segment in segments)], dtype=np.int64)


def rank_of(segment_number: int, ordinal: int) -> int:
    """Return a rank: number of the dirty segment, then ordinal. The number is in the upper bits,
    the ordinal in the lower ones."""
    return ordinal + (segment_number << ORDINAL_BITS)
