"""A segment's offset and time index: parse, search, truncate, read in pieces. Searches give the
same results as Kafka's.

Kafka's binary search defines the answer also for an index whose entries are not sorted, such as one
that ends in the zeros of a preallocated file. The newest entries, 8192 bytes of them, are searched
first; in a sorted index that changes nothing but the speed.

A broker that crashes leaves indexes of 10 MiB that are nearly all zeros. Who searches one reads the
entries that the search looks at; who needs all entries reads up to the last that is no zeros.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import Any, ClassVar, Final, NamedTuple, Protocol, Self

import numpy as np
from numpy.typing import NDArray

from storage_core.errors import (
    BadBytesError,
    CorruptIndexError,
    IndexFullError,
    IndexVersionError,
    OffsetOverflowError,
    StorageError,
)
from storage_core.formats.batch_v2 import NO_TIMESTAMP
from storage_core.formats.index_entries import (
    OFFSET_INDEX_ENTRY,
    TIME_INDEX_ENTRY,
    TXN_INDEX_ENTRY,
    TXN_INDEX_VERSION,
)
from storage_core.kernels import index_build
from storage_core.kernels.index_build import add_batches, new_state, offer_time_entry
from storage_core.store.base import FileReader, LogStore, data_end_of

# Offset and time index of a segment that is being written.


class IndexBuilder:
    """Collects the index entries of one segment, batch by batch."""

    def __init__(
        self, file: str, base_offset: int, *, interval_bytes: int, max_index_bytes: int
    ) -> None:
        self._file = file
        self._base_offset = base_offset
        self._interval_bytes = interval_bytes
        self._state = new_state(base_offset, interval_bytes, max_index_bytes)
        self._offset_parts: list[NDArray[np.int64]] = []
        self._time_parts: list[NDArray[np.int64]] = []

    @property
    def size_bytes(self) -> int:
        """Bytes of the batches so far."""
        return int(self._state[index_build.STATE_POSITION])

    def add(
        self,
        size: NDArray[np.int64],
        last_offset: NDArray[np.int64],
        max_timestamp: NDArray[np.int64],
    ) -> None:
        """Count batches, in file order."""
        _, error = self.add_until(size, last_offset, max_timestamp)
        if error is not None:
            raise error

    def add_until(
        self,
        size: NDArray[np.int64],
        last_offset: NDArray[np.int64],
        max_timestamp: NDArray[np.int64],
    ) -> tuple[int, BadBytesError | None]:
        """Count batches, in file order, up to the first that cannot be.

        Returns:
            How many were counted, and what `add` would raise for the next one, None if all were.
        """
        # Each entry but the first of a block has at least interval_bytes before it.
        room = int(size.sum()) // max(1, self._interval_bytes) + 2
        room = min(room, size.size + 1)
        offsets = np.empty((room, 2), np.int64)
        times = np.empty((room, 2), np.int64)
        offset_count = int(self._state[index_build.STATE_OFFSET_ENTRIES])
        time_count = int(self._state[index_build.STATE_TIME_ENTRIES])
        row, status = add_batches(self._state, size, last_offset, max_timestamp, offsets, times)
        self._offset_parts.append(
            offsets[: self._state[index_build.STATE_OFFSET_ENTRIES] - offset_count]
        )
        self._time_parts.append(times[: self._state[index_build.STATE_TIME_ENTRIES] - time_count])
        if status == index_build.DONE:
            return row, None
        return row, self._error(status, int(last_offset[row]))

    def finish(self) -> tuple[bytes, bytes]:
        """Add the last time entry and return the bytes of (.index, .timeindex)."""
        last = np.empty((1, 2), np.int64)
        before = int(self._state[index_build.STATE_TIME_ENTRIES])
        status = offer_time_entry(self._state, last, before, True)  # noqa: FBT003  # a kernel takes no keywords
        if status != index_build.DONE:
            raise self._error(status, int(self._state[index_build.STATE_MAX_TIMESTAMP_OFFSET]))
        self._time_parts.append(last[: self._state[index_build.STATE_TIME_ENTRIES] - before])
        return self.encode()

    def encode(self) -> tuple[bytes, bytes]:
        """Return current bytes of (.index, .timeindex), without a last time entry."""
        nothing = np.empty((0, 2), np.int64)
        rows = np.concatenate([nothing, *self._offset_parts])
        offsets = np.empty(len(rows), OFFSET_INDEX_ENTRY)
        offsets["relative_offset"] = rows[:, 0] - self._base_offset
        offsets["position"] = rows[:, 1]
        rows = np.concatenate([nothing, *self._time_parts])
        times = np.empty(len(rows), TIME_INDEX_ENTRY)
        times["timestamp"] = rows[:, 0]
        times["relative_offset"] = rows[:, 1] - self._base_offset
        return offsets.tobytes(), times.tobytes()

    def _error(self, status: int, offset: int) -> BadBytesError:
        position = self.size_bytes
        if status == index_build.OFFSET_INDEX_FULL:
            entries = self._state[index_build.STATE_MAX_OFFSET_ENTRIES]
            limit = f"{entries} entries of segment.index.bytes"
            return IndexFullError(self._file, position, f"the offset index is full ({limit})")
        if status == index_build.TIME_INDEX_FULL:
            entries = self._state[index_build.STATE_MAX_TIME_ENTRIES]
            limit = f"{entries} entries of segment.index.bytes, one kept for the end"
            return IndexFullError(self._file, position, f"the time index is full ({limit})")
        if status == index_build.OVERFLOW:
            return OffsetOverflowError(
                self._file,
                position,
                f"offset {offset} does not fit a segment with base offset {self._base_offset}",
            )
        return CorruptIndexError(
            self._file, position, f"offset {offset} does not rise above the last index entry"
        )


# A segment's transaction index: transactions aborted by markers in that segment.


@dataclass(frozen=True, slots=True, kw_only=True)
class AbortedTxn:
    """One aborted transaction."""

    producer_id: int
    first_offset: int
    last_offset: int
    last_stable_offset: int  # the last stable offset when the marker was written


def parse_transaction_index(file: str, base_offset: int, data: bytes) -> tuple[AbortedTxn, ...]:
    """Read a ``.txnindex`` file, without a ragged tail."""
    count = len(data) // TXN_INDEX_ENTRY.itemsize
    if not count:  # as of nearly every segment
        return ()
    entries = np.frombuffer(data, TXN_INDEX_ENTRY, count)
    return read_transactions(file, base_offset, entries, start=0)


def read_transactions(
    file: str, base_offset: int, entries: NDArray[np.void], *, start: int
) -> tuple[AbortedTxn, ...]:
    """Read some entries of a ``.txnindex`` file.

    Args:
        entries: TXN_INDEX_ENTRY[n].
    """
    is_unknown = entries["version"] != TXN_INDEX_VERSION
    for row in np.flatnonzero(is_unknown | (entries["last_offset"] < base_offset)).tolist():
        position = start + row * TXN_INDEX_ENTRY.itemsize
        if is_unknown[row]:
            raise IndexVersionError(
                file,
                position,
                f"expected version {TXN_INDEX_VERSION}, found {entries['version'][row]}; "
                "Kafka does not load such a log either: move the file away, so that recovery "
                "rebuilds it",
            )
        raise CorruptIndexError(
            file,
            position,
            f"expected a last offset of at least {base_offset}, "
            f"found {entries['last_offset'][row]}",
        )
    names = ("producer_id", "first_offset", "last_offset", "last_stable_offset")
    columns = [entries[name].tolist() for name in names]
    return tuple(
        AbortedTxn(
            producer_id=producer_id,
            first_offset=first_offset,
            last_offset=last_offset,
            last_stable_offset=last_stable_offset,
        )
        for producer_id, first_offset, last_offset, last_stable_offset in zip(*columns, strict=True)
    )


def encode_transaction_index(transactions: Sequence[AbortedTxn]) -> bytes:
    """Return the bytes of a file with these entries."""
    entries = np.empty(len(transactions), TXN_INDEX_ENTRY)
    entries["version"] = TXN_INDEX_VERSION
    for name in ("producer_id", "first_offset", "last_offset", "last_stable_offset"):
        entries[name] = [getattr(transaction, name) for transaction in transactions]
    return entries.tobytes()


def collect_aborted(
    indexes: Iterable[Sequence[AbortedTxn]], *, fetch_offset: int, upper_bound_offset: int
) -> list[AbortedTxn]:
    """Collect the aborted transactions that reach into [fetch_offset, upper_bound_offset).

    Args:
        indexes: Transaction indexes of consecutive segments, from the one that holds the first
            offset of interest on.
        fetch_offset: Transactions that ended before it do not count.
        upper_bound_offset: Transactions that began at or above it do not count; the search ends
            with the first whose last stable offset has reached it.
    """
    aborted = []
    for index in indexes:
        for transaction in index:
            if (
                transaction.last_offset >= fetch_offset
                and transaction.first_offset < upper_bound_offset
            ):
                aborted.append(transaction)
            if transaction.last_stable_offset >= upper_bound_offset:
                return aborted
    return aborted


def truncate_aborted(aborted: Sequence[AbortedTxn], offset: int) -> tuple[AbortedTxn, ...]:
    """Return the entries before the first with a last offset >= offset."""
    count = next(
        (row for row, entry in enumerate(aborted) if entry.last_offset >= offset), len(aborted)
    )
    return tuple(aborted[:count])


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
