"""Offset and time index of a segment: parsed, searched as Kafka searches them, cut, read piecewise.

Kafka's binary search defines the answer also for an index whose entries are not sorted, such as one
that ends in the zeros of a preallocated file. The newest entries, 8192 bytes of them, are searched
first; in a sorted index that changes nothing but the speed.
"""

from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from typing import Any, ClassVar, Final, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from storage_core.errors import StorageError
from storage_core.filenames import OFFSET_INDEX_SUFFIX, TIME_INDEX_SUFFIX, segment_file
from storage_core.formats.batch_v2 import NO_TIMESTAMP
from storage_core.formats.index_entries import OFFSET_INDEX_ENTRY, TIME_INDEX_ENTRY
from storage_core.store.base import LogStore

WARM_BYTES: Final = 8192
NO_SLOT: Final = -1
# Most indexes are one piece: on an object store each is a request.
_PIECE_BYTES: Final = 4 << 20


class Slots(NamedTuple):
    """The result of a search.

    Attributes:
        at_or_below: The entry with the largest value at or below the target, NO_SLOT for none.
        at_or_above: The entry with the smallest value at or above it, NO_SLOT for none. Where the
            search is down to a single entry Kafka takes the next one without looking whether this
            one equals the target; so does this.
    """

    at_or_below: int
    at_or_above: int


def find_slots(column: NDArray[np.integer], target: int, *, entry_bytes: int) -> Slots:
    """Search a column of an index.

    Args:
        column: The values of all entries, in the order of the file.
        target: What to look for.
        entry_bytes: Size of an entry in the file.
    """
    count = len(column)
    if count == 0:
        return Slots(NO_SLOT, NO_SLOT)
    first_warm = max(0, count - 1 - WARM_BYTES // entry_bytes)
    if int(column[first_warm]) < target:
        low, high = first_warm, count - 1
    elif int(column[0]) > target:
        return Slots(NO_SLOT, 0)
    else:
        low, high = 0, first_warm
    while low < high:
        middle = (low + high + 1) >> 1
        value = int(column[middle])
        if value > target:
            high = middle - 1
        elif value < target:
            low = middle
        else:
            return Slots(middle, middle)
    return Slots(low, NO_SLOT if low == count - 1 else low + 1)


@dataclass(frozen=True, slots=True)
class _SegmentIndex:
    """Entries of one index file, a ragged tail left out.

    Attributes:
        entry: What the file is made of.
        base_offset: Base offset of the segment.
        entries: entry[n].
    """

    entry: ClassVar[np.dtype[np.void]]
    base_offset: int
    entries: NDArray[np.void]

    @classmethod
    def parse(cls, base_offset: int, data: bytes) -> Self:
        """Parse the bytes of a file; the values are not checked, as in Kafka."""
        count = len(data) // cls.entry.itemsize
        return cls(base_offset, np.frombuffer(data, cls.entry, count))

    def _find(self, field: str, target: int) -> Slots:
        return find_slots(self.entries[field], target, entry_bytes=self.entry.itemsize)


class OffsetIndex(_SegmentIndex):
    """Entries of one ``.index`` file: OFFSET_INDEX_ENTRY[n]."""

    __slots__ = ()
    entry = OFFSET_INDEX_ENTRY

    @property
    def last_offset(self) -> int:
        """Offset of the last entry, the base offset where there is none."""
        if not len(self.entries):
            return self.base_offset
        return self._offset(-1)

    def look_up(self, offset: int) -> int:
        """Return the position of the entry with the largest offset <= offset, else 0."""
        slot = self._find("relative_offset", offset - self.base_offset).at_or_below
        return 0 if slot == NO_SLOT else int(self.entries["position"][slot])

    def find_offset_at(self, position: int) -> int | None:
        """Return the offset of the first entry at or behind a position in the file, else None.

        Everything that begins before the position has a smaller offset, as every entry names the
        last offset of its batch.
        """
        slot = self._find("position", position).at_or_above
        return None if slot == NO_SLOT else self._offset(slot)

    def _offset(self, slot: int) -> int:
        return self.base_offset + int(self.entries["relative_offset"][slot])


class TimeEntry(NamedTuple):
    """An entry, its offset absolute: nothing at or before the offset is newer.

    Attributes:
        timestamp: Epoch milliseconds, NO_TIMESTAMP where there is no entry.
        offset: Last offset of the batch with that timestamp, the base offset without an entry.
    """

    timestamp: int
    offset: int


class TimeIndex(_SegmentIndex):
    """Entries of one ``.timeindex`` file: TIME_INDEX_ENTRY[n]."""

    __slots__ = ()
    entry = TIME_INDEX_ENTRY

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
        return self._entry(self._find("timestamp", timestamp).at_or_below)

    def _entry(self, slot: int) -> TimeEntry:
        if slot == NO_SLOT:
            return TimeEntry(NO_TIMESTAMP, self.base_offset)
        relative = int(self.entries["relative_offset"][slot])
        return TimeEntry(int(self.entries["timestamp"][slot]), self.base_offset + relative)


def truncate_offset_index(base_offset: int, data: bytes, offset: int) -> bytes:
    """Return the entries of an offset index below an offset, a ragged tail left out."""
    return _truncate(base_offset, data, offset, OFFSET_INDEX_ENTRY)


def truncate_time_index(base_offset: int, data: bytes, offset: int) -> bytes:
    """Return the entries of a time index whose offsets lie below an offset."""
    return _truncate(base_offset, data, offset, TIME_INDEX_ENTRY)


def _truncate(base_offset: int, data: bytes, offset: int, entry: np.dtype[np.void]) -> bytes:
    count = len(data) // entry.itemsize
    column: NDArray[np.int32] = np.frombuffer(data, entry, count)["relative_offset"]
    relative = offset - base_offset
    slot = find_slots(column, relative, entry_bytes=entry.itemsize).at_or_below
    if slot >= 0 and int(column[slot]) != relative:
        slot += 1
    return data[: max(slot, 0) * entry.itemsize]


def read_entries(
    store: LogStore, name: str, entry: np.dtype[Any], *, limit_bytes: int
) -> Iterator[NDArray[np.void]]:
    """Yield the entries of an index in their order; a tail shorter than an entry is left out.

    For a reader that goes through the file once: it may be long and all holes.

    Args:
        store: The partition directory.
        name: Of the file.
        entry: What it is made of.
        limit_bytes: The most that the file may have.

    Yields:
        entry[n], n > 0, valid until the next piece is asked for.

    Raises:
        StorageError: It cannot be read, or is longer than limit_bytes.
    """
    with closing(store.open_file(name)) as reader:
        if reader.size_bytes > limit_bytes:
            reason = f"is longer than the {limit_bytes} bytes it may have: {reader.size_bytes}"
            raise StorageError(f"{store.location}/{name}", reason)
        end = reader.size_bytes - reader.size_bytes % entry.itemsize
        piece_bytes = _PIECE_BYTES - _PIECE_BYTES % entry.itemsize
        buffer = np.empty(min(end, piece_bytes), np.uint8)
        position = 0
        while position < end:
            filled = reader.read_into(position, buffer[: end - position])
            filled -= filled % entry.itemsize
            if not filled:  # it is shorter by now
                return
            yield buffer[:filled].view(entry)
            position += filled


class LazyIndexes:
    """The indexes of one partition's segments.

    A file that is missing is as an empty one.

    Args:
        store: The partition directory.
        names: The files that there are; one that is not among them is not looked for.
        limit_bytes: The most that an index may have.

    Attributes:
        opened: How many index files have been read.
    """

    def __init__(self, store: LogStore, names: frozenset[str], *, limit_bytes: int) -> None:
        self._store = store
        self._names = names
        self._limit_bytes = limit_bytes
        self._offsets: dict[int, OffsetIndex] = {}
        self._times: dict[int, TimeIndex] = {}
        self.opened = 0

    def offset_index(self, base_offset: int) -> OffsetIndex:
        """Return the offset index of a segment.

        Raises:
            StorageError: It cannot be read, or is too large.
        """
        index = self._offsets.get(base_offset)
        if index is None:
            data = self._read(segment_file(base_offset, OFFSET_INDEX_SUFFIX))
            index = self._offsets[base_offset] = OffsetIndex.parse(base_offset, data)
        return index

    def time_index(self, base_offset: int) -> TimeIndex:
        """Return the time index of a segment.

        Raises:
            StorageError: It cannot be read, or is too large.
        """
        index = self._times.get(base_offset)
        if index is None:
            data = self._read(segment_file(base_offset, TIME_INDEX_SUFFIX))
            index = self._times[base_offset] = TimeIndex.parse(base_offset, data)
        return index

    def release(self) -> None:
        """Forget what has been read; it is read again when it is needed again."""
        self._offsets.clear()
        self._times.clear()

    def _read(self, name: str) -> bytes:
        if name not in self._names:
            return b""
        self.opened += 1
        return self._store.read_file(name, limit_bytes=self._limit_bytes)
