"""A segment's offset and time index: parse, search, truncate, read in pieces. Searches give the
same results as Kafka's.

Kafka's binary search defines the answer also for an index whose entries are not sorted, such as one
that ends in the zeros of a preallocated file. The newest entries, 8192 bytes of them, are searched
first; in a sorted index that changes nothing but the speed.

A broker that crashes leaves indexes of 10 MiB that are nearly all zeros. Who searches one reads the
entries that the search looks at; who needs all entries reads up to the last that is no zeros.
"""

from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass
from typing import Any, ClassVar, Final, NamedTuple, Protocol, Self

import numpy as np
from numpy.typing import NDArray

from storage_core.errors import StorageError
from storage_core.formats.batch_v2 import NO_TIMESTAMP
from storage_core.formats.index_entries import OFFSET_INDEX_ENTRY, TIME_INDEX_ENTRY
from storage_core.store.base import FileReader, LogStore, data_end_of

WARM_BYTES: Final = 8192
NO_SLOT: Final = -1
# Most indexes are read in one piece: on an object store each piece is a request.
_PIECE_BYTES: Final = 4 << 20
# A longer index is read page by page, as far as a search needs. A gibibyte of batches of 8 KiB has
# such an offset index.
_WHOLE_BYTES: Final = 1 << 20
# More than the newest entries; object stores keep reads of this size.
_PAGE_BYTES: Final = 64 << 10


class EntryColumn(Protocol):
    """The values of all entries of an index, in file order."""

    def __len__(self) -> int: ...

    def __getitem__(self, slot: int, /) -> Any: ...


class Slots(NamedTuple):
    """The result of a search."""

    at_or_below: int  # the entry with the largest value at or below the target, NO_SLOT for none
    # The entry with the smallest value at or above it, NO_SLOT for none. Where the search is down
    # to a single entry Kafka takes the next one without looking whether this one equals the target;
    # so does this.
    at_or_above: int


def find_slots(column: EntryColumn, target: int, *, entry_bytes: int) -> Slots:
    """Search a column of an index."""
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


class PagedEntries:
    """The entries of an index file, read on demand with their neighbours. Entries that a file has
    lost since count as zeros; a broker cuts those off.

    Args:
        open_file: Opens the file; a page is read with a call of its own.
        entry: The type of the file's entries.
        limit_bytes: The most that the file may have.
    """

    def __init__(
        self,
        open_file: Callable[[], FileReader],
        path: str,
        entry: np.dtype[np.void],
        *,
        limit_bytes: int,
    ) -> None:
        self._open_file = open_file
        self._entry = entry
        self._pages: dict[int, NDArray[np.void]] = {}
        with closing(open_file()) as reader:
            _check_length(reader, path, limit_bytes)
            self._count = self._used = reader.size_bytes // entry.itemsize
            is_long = self._count * entry.itemsize > _WHOLE_BYTES
            self._data_end = data_end_of(reader) if is_long else reader.size_bytes
            self._page_entries = _PAGE_BYTES // entry.itemsize if is_long else max(self._count, 1)
            if self._count:  # nearly every search begins with the newest entries
                self._pages[0] = self._read(reader, 0)

    def __len__(self) -> int:
        return self._used

    def __getitem__(self, field: str) -> EntryColumn:
        """Return the values of one field."""
        return _PagedColumn(self, field)

    def at(self, slot: int) -> np.void:
        """Return an entry by its number, -1 for the last."""
        number = self._used + slot if slot < 0 else slot
        if not 0 <= number < self._used:
            raise IndexError(slot)
        # Pages are counted from the end: the newest entries lie in one.
        page, back = divmod(self._count - 1 - number, self._page_entries)
        if page not in self._pages:
            with closing(self._open_file()) as reader:
                self._pages[page] = self._read(reader, page)
        entry: np.void = self._pages[page][-1 - back]
        return entry

    def end_before_zeros(self) -> None:
        """Leave out the zeros at the end of an unclosed broker's index."""
        if self._count and not any(self.at(-1).tobytes()):
            self._used = _count_used(self._count, lambda slot: self.at(slot).tobytes())

    def _read(self, reader: FileReader, page: int) -> NDArray[np.void]:
        end = self._count - page * self._page_entries
        first = max(0, end - self._page_entries)
        size = self._entry.itemsize
        content = np.zeros((end - first) * size, np.uint8)
        if first * size < self._data_end:
            reader.read_into(first * size, content)
        return content.view(self._entry)


class _PagedColumn:
    """One field of entries that are read page by page."""

    def __init__(self, entries: PagedEntries, field: str) -> None:
        self._entries = entries
        self._field = field

    def __len__(self) -> int:
        return len(self._entries)

    def __getitem__(self, slot: int) -> Any:
        return self._entries.at(slot)[self._field]


@dataclass(frozen=True, slots=True)
class _SegmentIndex:
    """Entries of one index file, a ragged tail left out."""

    entry: ClassVar[np.dtype[np.void]]  # the type of the file's entries
    base_offset: int
    # entry[n], or entries that are read as they are needed.
    entries: NDArray[np.void] | PagedEntries

    @classmethod
    def parse(cls, base_offset: int, data: bytes) -> Self:
        """Parse the bytes of a file without checking values, as Kafka does."""
        count = len(data) // cls.entry.itemsize
        return cls(base_offset, np.frombuffer(data, cls.entry, count))

    @classmethod
    def of_file(
        cls, base_offset: int, open_file: Callable[[], FileReader], path: str, *, limit_bytes: int
    ) -> Self:
        """Return the index in a file; a search reads only its part."""
        return cls(base_offset, PagedEntries(open_file, path, cls.entry, limit_bytes=limit_bytes))

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
        """Return the position of the largest offset <= offset, else 0."""
        slot = self._find("relative_offset", offset - self.base_offset).at_or_below
        return 0 if slot == NO_SLOT else int(self.entries["position"][slot])

    def find_offset_at(self, position: int) -> int | None:
        """Return the first entry's offset at or behind a position, else None. The position is one
        in the log file.

        Everything that begins before the position has a smaller offset, as every entry names the
        last offset of its batch.
        """
        slot = self._find("position", position).at_or_above
        return None if slot == NO_SLOT else self._offset(slot)

    def _offset(self, slot: int) -> int:
        return self.base_offset + int(self.entries["relative_offset"][slot])


class TimeEntry(NamedTuple):
    """A time index entry: no record up to this offset is newer. The offset is absolute."""

    timestamp: int
    offset: int  # last offset of the batch with that timestamp, the base offset without an entry


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
    """Return an offset index's entries below an offset, without a ragged tail."""
    return _truncate(base_offset, data, offset, OFFSET_INDEX_ENTRY)


def truncate_time_index(base_offset: int, data: bytes, offset: int) -> bytes:
    """Return a time index's entries with offsets below an offset."""
    return _truncate(base_offset, data, offset, TIME_INDEX_ENTRY)


def _truncate(base_offset: int, data: bytes, offset: int, entry: np.dtype[np.void]) -> bytes:
    count = len(data) // entry.itemsize
    column: NDArray[np.int32] = np.frombuffer(data, entry, count)["relative_offset"]
    relative = offset - base_offset
    slot = find_slots(column, relative, entry_bytes=entry.itemsize).at_or_below
    if slot >= 0 and int(column[slot]) != relative:
        slot += 1
    return data[: max(slot, 0) * entry.itemsize]


def _check_length(reader: FileReader, path: str, limit_bytes: int) -> None:
    if reader.size_bytes > limit_bytes:
        reason = f"is longer than the {limit_bytes} bytes it may have: {reader.size_bytes}"
        raise StorageError(path, reason)


def read_entries(
    store: LogStore,
    name: str,
    entry: np.dtype[Any],
    *,
    limit_bytes: int,
    with_hole: bool = True,
) -> Iterator[NDArray[np.void]]:
    """Yield the entries of an index in order, without a ragged tail. It suits a single pass over a
    file that may be long and all holes.

    Args:
        limit_bytes: The most that the file may have.
        with_hole: Whether the entries count that lie in a hole at the file's end: all zeros.

    Yields:
        entry[n], n > 0, valid until the next piece is asked for.
    """
    with closing(store.open_file(name)) as reader:
        _check_length(reader, f"{store.location}/{name}", limit_bytes)
        end = reader.size_bytes - reader.size_bytes % entry.itemsize
        if not with_hole:
            end = min(end, -(-data_end_of(reader) // entry.itemsize) * entry.itemsize)
        piece_bytes = _PIECE_BYTES - _PIECE_BYTES % entry.itemsize
        buffer = np.empty(min(end, piece_bytes), np.uint8)
        position = 0
        while position < end:
            filled = reader.read_into(position, buffer[: end - position])
            filled -= filled % entry.itemsize
            if not filled:  # it has been cut since
                return
            yield buffer[:filled].view(entry)
            position += filled


class UsedBytes(NamedTuple):
    """An index without the zeros at its end."""

    content: bytes  # its bytes up to the last entry that is no zeros; of a shorter tail all of it
    file_bytes: int


def read_used(store: LogStore, name: str, entry: np.dtype[Any], *, limit_bytes: int) -> UsedBytes:
    """Read an index up to its last entry other than zeros. Holes at the file's end are not read.

    Args:
        limit_bytes: The most that the file may have.
    """
    with closing(store.open_file(name)) as reader:
        _check_length(reader, f"{store.location}/{name}", limit_bytes)
        start = end = min(reader.size_bytes, data_end_of(reader))
        piece = np.empty(min(end, _PIECE_BYTES), np.uint8)
        while end:
            start = max(0, end - _PIECE_BYTES)
            filled = reader.read_into(start, piece[: end - start])
            is_used = piece[:filled] != 0
            if is_used.any():
                end = start + filled - int(np.argmax(is_used[::-1]))
                break
            end = start
        end = min(-(-end // entry.itemsize) * entry.itemsize, reader.size_bytes)
        content = piece[:end]
        if start:
            content = np.empty(end, np.uint8)
            content = content[: reader.read_into(0, content)]
        elif end > len(piece):  # the last entry is completed by zeros of a hole
            content = np.append(piece, np.zeros(end - len(piece), np.uint8))
        return UsedBytes(content.tobytes(), reader.size_bytes)


def read_last_entry(reader: FileReader, entry: np.dtype[Any], *, is_closed: bool = True) -> bytes:
    """Return the last whole entry of an index; empty without one.

    Args:
        is_closed: Whether a broker closed it. If not, zeros at its end are no entries: the last one
            before them is searched.
    """

    def read(number: int) -> bytes:
        content = np.empty(entry.itemsize, np.uint8)
        return content[: reader.read_into(number * entry.itemsize, content)].tobytes()

    entries = reader.size_bytes // entry.itemsize
    last = read(entries - 1) if entries else b""
    if is_closed or any(last):
        return last
    used = _count_used(entries, read)
    return read(used - 1) if used else b""


def _count_used(entries: int, read: Callable[[int], bytes]) -> int:
    """Return how many entries stand before the zeros at a file's end. With zeros amid the
    entries, the result may be the start of any of them."""
    used = 0
    while used < entries:
        middle = (used + entries) // 2
        used, entries = (middle + 1, entries) if any(read(middle)) else (used, middle)
    return used
