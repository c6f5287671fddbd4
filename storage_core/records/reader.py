"""A segment read in windows: bounded buffers that hold whole batches.

A window is as large as it was asked for, or as the one batch that does not fit. The next window
overwrites the last one's bytes: keep nothing but what you copied.
"""

import enum
import threading
import zlib
from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Generator, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import Final, Self

import crc32c
import numpy as np
from numpy.typing import NDArray

from storage_core.errors import CorruptRecordError
from storage_core.formats.batch_v2 import (
    BATCH_LENGTH_AT,
    CRC_START,
    HEADER_BYTES,
    HEADER_UP_TO_MAGIC_BYTES,
    LENGTH_OVERHEAD,
    MAGIC_V2,
    MIN_ENTRY_LENGTH,
)
from storage_core.formats.legacy import ENTRY_CRC_START
from storage_core.kernels import batch_scan
from storage_core.kernels.batch_scan import (
    COLUMN_COUNT,
    check_crcs,
    read_control_types,
    scan_batches,
)
from storage_core.records.batch_table import BatchTable
from storage_core.records.file_starts import read_starts
from storage_core.store.base import FileReader, HoledReader, LogStore, MappedReader

DEFAULT_WINDOW_BYTES = 8 * 1024 * 1024
# As large as a window: Kafka's brokers take batches of 1 MiB by default.
LARGE_BATCH_BYTES = DEFAULT_WINDOW_BYTES
_PIECE_BYTES = 1 << 20
# Less than this is copied sooner than it is mapped.
LEAST_MAPPED_BYTES = 128 << 10
# A window begins with room for the headers of small batches and grows when there are more. With a
# power of two the numbers of a batch would push each other out of the nearest cache.
_FIRST_CAPACITY = 4072
_MIN_BATCH_BYTES = LENGTH_OVERHEAD + MIN_ENTRY_LENGTH


class Tail(enum.Enum):
    """The action where bytes stop being whole batches."""

    RAISE = "raise"  # it is corruption
    STOP = "stop"  # end there, as Kafka's file iterator does at a torn tail
    ZEROS = "zeros"  # the same, and where nothing but zeros follows: for who reads, not for a load


class CrcCheck(enum.Enum):
    """The action on each batch's checksum. It is CRC-32C, and CRC-32 before format v2."""

    SKIP = "skip"  # it has been checked before
    NOTE = "note"  # set the column crc_ok
    RAISE = "raise"  # a wrong one is corruption
    LATER = "later"  # the same, once ``check_crc`` is asked; that of a large batch at once


class Large(enum.Enum):
    """The part to read of a batch above LARGE_BATCH_BYTES. A file with holes may have a batch of
    any length.

    Its checksum is found piece by piece first. Of one that is not read whole the window has the
    header, of a control batch the first MiB, and zeros that take no memory as long as nobody looks
    at them.
    """

    WHOLE = "whole"  # all, unless CrcCheck.RAISE refuses it before
    VALID = "valid"  # all if its CRC is right, which CrcCheck.NOTE finds out
    HEADER = "header"  # never more than the header


@dataclass(frozen=True, slots=True)
class Window:
    """A stretch of a segment that begins and ends with a batch."""

    file: str
    file_position: int  # where in the file ``data[0]`` lies
    data: NDArray[np.uint8]  # uint8[n], the bytes; valid until the next window is asked for
    batches: BatchTable  # the batches in it; their positions count from ``data[0]``
    # False where the records are not in ``data``: it is one large batch of which only the header
    # was read, or nothing but headers was asked for.
    is_whole: bool = True
    # Where it holds several whole files, as `join_files` reads them: their names, where in ``data``
    # each begins, and `row_bounds`. ``file`` is the first of them.
    files: tuple[str, ...] = ()
    starts: tuple[int, ...] = ()
    bounds: NDArray[np.int64] | None = None

    @property
    def begins(self) -> NDArray[np.int64]:
        """Where byte 0 of each of its files lies, counted from ``data[0]``."""
        return np.array(self.starts or (-self.file_position,), np.int64)

    def row_bounds(self) -> NDArray[np.int64]:
        """Return int64[files + 1]: the first row of each of its files, and the number of rows."""
        return np.array([0, len(self.batches)], np.int64) if self.bounds is None else self.bounds

    def place_of(self, row: int) -> tuple[str, int]:
        """Return in which file a batch begins, and at which position."""
        if not self.files:
            return self.file, self.position_of(row)
        number = bisect_right(self.starts, int(self.batches.position[row])) - 1
        return self.files[number], int(self.batches.position[row]) - self.starts[number]

    @property
    def size_bytes(self) -> int:
        """How many bytes of the file it stands for."""
        return int(self.batches.position[-1] + self.batches.size[-1])

    def position_of(self, row: int) -> int:
        """Return where in the file a batch begins."""
        return self.file_position + int(self.batches.position[row])


class WindowRoom:
    """The memory reused by the windows of one or several scans. The windows lie in it one after
    the other.

    Attributes:
        joined: The window of several files that lies in it, for one that asks for them again.
    """

    def __init__(self) -> None:
        self.table = np.empty((COLUMN_COUNT, _FIRST_CAPACITY), np.int64)
        self.joined: Window | None = None
        self._buffer = np.empty(0, np.uint8)

    def buffer_of(self, size_bytes: int) -> NDArray[np.uint8]:
        """Return the room for the bytes of a window, uint8[size_bytes]."""
        if self._buffer.size < size_bytes:
            self._buffer = np.empty(size_bytes, np.uint8)
        return self._buffer[:size_bytes]

    def find_batches(self, buffer: NDArray[np.uint8]) -> tuple[int, int]:
        """Fill the table with the whole batches at the begin of some bytes; return their number
        and where they end."""
        self.joined = None
        count, used, status = scan_batches(buffer, 0, buffer.size, self.table)
        while status == batch_scan.NO_ROOM:
            self.grow()
            count, used, status = scan_batches(buffer, 0, buffer.size, self.table)
        return count, used

    def find_first(self, buffer: NDArray[np.uint8]) -> None:
        """Fill the table with the first of the batches in some bytes."""
        self.joined = None
        scan_batches(buffer, 0, buffer.size, self.table[:, :1])

    def grow(self) -> None:
        """Make room for the headers of more batches, in place of those that it holds."""
        self.table = np.empty((COLUMN_COUNT, 4 * self.table.shape[1]), np.int64)


# Fills the table of a room with the batches at the begin of some bytes, which lie at a position of
# the file; returns their number, and where the last batch of the bytes ends.
FindBatches = Callable[[WindowRoom, NDArray[np.uint8], int], tuple[int, int]]


@dataclass(slots=True)
class Scanned:
    """How many bytes of segments were scanned."""

    size_bytes: int = 0
    left_out_bytes: int = 0  # of batches of which nothing but the headers were read
    # Of batches newer than the times that were asked for, which may have older records all the
    # same.
    doubtful_bytes: int = 0

    def __iadd__(self, other: Self) -> Self:
        self.size_bytes += other.size_bytes
        self.left_out_bytes += other.left_out_bytes
        self.doubtful_bytes += other.doubtful_bytes
        return self

    def __sub__(self, other: Self) -> "Scanned":
        return Scanned(
            self.size_bytes - other.size_bytes,
            self.left_out_bytes - other.left_out_bytes,
            self.doubtful_bytes - other.doubtful_bytes,
        )


class _ThreadLocal(threading.local):
    def __init__(self) -> None:
        self.scanned = Scanned()


_thread: Final = _ThreadLocal()


def scanned_bytes() -> Scanned:
    """Return how much this thread has scanned so far."""
    return replace(_thread.scanned)


def note_scanned(more: Scanned) -> None:
    """Add to what this thread has scanned."""
    _thread.scanned += more


def scan_windows(  # noqa: PLR0913  # what to read, and what to make of it
    reader: FileReader,
    *,
    start: int = 0,
    end: int | None = None,
    window_bytes: int = DEFAULT_WINDOW_BYTES,
    mapped_bytes: int = 0,
    crc: CrcCheck = CrcCheck.RAISE,
    tail: Tail = Tail.RAISE,
    large: Large = Large.WHOLE,
    rooms: deque[WindowRoom] | None = None,
    find: FindBatches | None = None,
) -> Generator[Window]:
    """Read the batches of a segment between two positions. Batches are what Kafka's file iterator
    takes for such, of whatever magic: see ``kernels.batch_scan``.

    Args:
        end: Where to stop reading, the end of the file if None. A batch that reaches past it is a
            tail.
        window_bytes: How much to hold at a time, unless one batch is larger.
        mapped_bytes: How much to look at at a time where it need not be held, if that is more.
        tail: What to do where no whole batch follows.
        rooms: Where the windows lie, in turns: as many are valid at the same time, the last one and
            those before it. It is turned to the room of the next window, where another scan may go
            on. One room of the scan's own if there are none.
        find: Finds the batches in place of ``WindowRoom.find_batches``; may leave some out, but not
            the first one of a window.

    Yields:
        Windows with at least one batch, in file order.
    """
    stop = reader.size_bytes if end is None else min(end, reader.size_bytes)
    room_bytes = max(HEADER_BYTES, min(window_bytes, stop - start))
    turns = rooms or deque([WindowRoom()])
    position = start
    while position < stop:
        room = turns[0]
        buffer = _map(reader, position, min(max(room_bytes, mapped_bytes), stop - position))
        if buffer is None:
            buffer = _read(reader, position, room.buffer_of(min(room_bytes, stop - position)))
        note_scanned(Scanned(buffer.size))
        count, used = find(room, buffer, position) if find else room.find_batches(buffer)
        if count == 0:
            needed = _bytes_of_first_batch(reader, position, buffer, stop, tail)
            if needed is None:
                return
            window = None
            if needed > LARGE_BATCH_BYTES:
                window = _read_header(reader, position, needed, crc, large)
            if window is None:
                room_bytes = needed
                continue
            yield window
            position += needed
            continue
        batches = BatchTable(room.table[:, :count])
        window = Window(reader.name, position, buffer[:used], batches)
        if crc is CrcCheck.RAISE:
            check_crc(window)
        elif crc is CrcCheck.NOTE:
            check_crcs(buffer, batches.columns, count)
        read_control_types(buffer, batches.columns, count)
        yield window
        position += used
        turns.rotate(-1)


def join_files(
    store: LogStore, files: Sequence[str], sizes: Sequence[int], rooms: deque[WindowRoom]
) -> Window | None:
    """Read small files as one window, one behind the other; no checksum is looked at.

    Args:
        sizes: Their lengths.
        rooms: As of `scan_windows`; the window lies in the next one. It is not read again if it
            lies there already, and then it is the caller's alone.

    Returns:
        None where one of the files has another length or is not whole batches, or all are empty:
        a scan of each says why.
    """
    room = rooms[0]
    window, room.joined = room.joined, None
    if window is not None and window.files == tuple(files):
        rooms.rotate(-1)
        return window
    *starts, end = accumulate(sizes, initial=0)
    buffer = room.buffer_of(end)
    found = read_starts(store, files, buffer, np.array([*starts, end], np.int64))
    if found is None:
        for file, size, start in zip(files, sizes, starts, strict=True):
            with closing(store.open_file(file)) as reader:
                is_whole = reader.size_bytes == size
                if not is_whole or reader.read_into(0, buffer[start : start + size]) != size:
                    return None
    elif found.tolist() != list(sizes):
        return None
    count, used = room.find_batches(buffer)
    if not count or used != buffer.size:
        return None
    batches = BatchTable(room.table[:, :count])
    begins = np.array([*starts, end], np.int64)
    bounds = np.searchsorted(batches.position, begins)
    is_inside = begins < end
    rows = bounds[is_inside].clip(max=count - 1)
    if (batches.position[rows] != begins[is_inside]).any():
        return None
    window = Window(
        files[0], 0, buffer, batches, files=tuple(files), starts=tuple(starts), bounds=bounds
    )
    read_control_types(buffer, batches.columns, count)
    room.joined = window
    rooms.rotate(-1)
    return window


def _map(reader: FileReader, position: int, size_bytes: int) -> NDArray[np.uint8] | None:
    """Map bytes of the page cache; None if they must be read."""
    if size_bytes < LEAST_MAPPED_BYTES or not isinstance(reader, MappedReader):
        return None
    return reader.map(position, size_bytes)


def _read(reader: FileReader, position: int, target: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Fill a buffer and return it."""
    filled = reader.read_into(position, target)
    if filled < target.size:
        raise CorruptRecordError(
            reader.name,
            position + filled,
            f"the file ends here while it is read; opened, it had {reader.size_bytes} bytes",
        )
    return target


def scan_headers(
    reader: FileReader,
    *,
    start: int = 0,
    end: int | None = None,
    window_bytes: int = DEFAULT_WINDOW_BYTES,
    tail: Tail = Tail.STOP,
) -> Generator[Window]:
    """Read the headers of batches between two positions, until a torn tail.

    No checksum is looked at, and of a large batch nothing but its header is read; whoever needs its
    records after all asks ``read_whole``.

    Args:
        end: Where to stop reading, the end of the file if None.
        window_bytes: How much to hold at a time, unless one batch is larger.

    Yields:
        Windows with at least one batch, in file order.
    """
    return scan_windows(
        reader,
        start=start,
        end=end,
        window_bytes=window_bytes,
        crc=CrcCheck.SKIP,
        tail=tail,
        large=Large.HEADER,
    )


def find_zeros(reader: FileReader, start: int, end: int) -> int:
    """Return the start of a range's trailing zeros; its end without any.

    A hole at the end of the file is not read, where the store knows of it. The rest is read from
    its end on, up to the last byte that is none.
    """
    zeros_start = (
        max(start, min(end, reader.data_end())) if isinstance(reader, HoledReader) else end
    )
    piece = np.empty(min(zeros_start - start, _PIECE_BYTES), np.uint8)
    while zeros_start > start:
        position = max(start, zeros_start - piece.size)
        count = reader.read_into(position, piece[: zeros_start - position])
        (used,) = np.nonzero(piece[:count])
        if used.size:
            return position + int(used[-1]) + 1
        zeros_start = position
    return start


def read_whole(reader: FileReader, window: Window) -> Window:
    """Return a window with its records, if it has only headers. A scan of Large.HEADER leaves the
    records out.

    Args:
        window: What the scan gave.
    """
    if window.is_whole:
        return window
    start = window.file_position
    (whole,) = scan_windows(reader, start=start, end=start + window.data.size, window_bytes=1)
    return whole


def _read_header(
    reader: FileReader, position: int, size_bytes: int, crc: CrcCheck, large: Large
) -> Window | None:
    """Return a large batch's window without records; None to read all."""
    data = np.zeros(size_bytes, np.uint8)  # pages that nobody touches take no memory
    if reader.read_into(position, data[:HEADER_BYTES]) < HEADER_BYTES:
        return None
    table = np.empty((COLUMN_COUNT, 2), np.int64)
    scan_batches(data, 0, size_bytes, table)
    batches = BatchTable(table[:, :1])
    is_valid = crc is CrcCheck.SKIP or _has_right_crc(reader, position, batches)
    if crc in {CrcCheck.RAISE, CrcCheck.LATER} and not is_valid:
        raise CorruptRecordError(
            reader.name,
            position,
            _what_is_wrong(batches, 0),
            offset=int(batches.base_offset[0]),
        )
    is_left_out = large is Large.HEADER or (large is Large.VALID and not is_valid)
    if not is_left_out:
        return None
    if batches.is_control[0]:  # its first record says what it is
        reader.read_into(position, data[:_PIECE_BYTES])
    if crc is not CrcCheck.SKIP:
        table[batch_scan.CRC_OK, 0] = is_valid
    read_control_types(data, batches.columns, 1)
    return Window(reader.name, position, data, batches, is_whole=False)


def _has_right_crc(reader: FileReader, position: int, batches: BatchTable) -> bool:
    """Whether a batch's checksum is right, read in pieces."""
    is_modern = batches.magic[0] >= MAGIC_V2
    checksum = 0
    place = position + (CRC_START if is_modern else ENTRY_CRC_START)
    end = position + int(batches.size[0])
    piece = np.empty(_PIECE_BYTES, np.uint8)
    while place < end:
        filled = reader.read_into(place, piece[: end - place])
        if not filled:
            return False
        data = piece[:filled].data
        checksum = crc32c.crc32c(data, checksum) if is_modern else zlib.crc32(data, checksum)
        place += filled
    return checksum == int(batches.crc[0])


def _bytes_of_first_batch(
    reader: FileReader, position: int, data: NDArray[np.uint8], stop: int, tail: Tail
) -> int | None:
    """Return the window size to hold the first batch; None to stop. The batch did not fit into
    the window."""
    remaining_bytes = stop - position
    if tail is Tail.ZEROS and not data.any() and find_zeros(reader, position, stop) == position:
        return None
    if data.size >= LENGTH_OVERHEAD:
        length = int.from_bytes(data[BATCH_LENGTH_AT:LENGTH_OVERHEAD].tobytes(), "big", signed=True)
        size = length + LENGTH_OVERHEAD
        if data.size < size <= remaining_bytes:
            return size
        reason = (
            f"the batch says that it has {size} bytes; expected {_MIN_BATCH_BYTES} to "
            f"{remaining_bytes}, which is what the file still has"
        )
    else:
        reason = (
            f"expected a batch, found {remaining_bytes} bytes, fewer than a batch's first fields "
            "have"
        )
    if tail is not Tail.RAISE and (data.size <= HEADER_UP_TO_MAGIC_BYTES or size > remaining_bytes):
        return None
    raise CorruptRecordError(reader.name, position, reason)


def check_crc(window: Window) -> None:
    """Check the checksums of a window's batches, in any thread."""
    batches = window.batches
    row = check_crcs(window.data, batches.columns, len(batches))
    if row >= 0:
        raise CorruptRecordError(
            *window.place_of(row),
            _what_is_wrong(batches, row),
            offset=int(batches.base_offset[row]),
        )


def _what_is_wrong(batches: BatchTable, row: int) -> str:
    """Return why a batch is not valid."""
    batch = f"the batch at offset {batches.base_offset[row]}"
    if batches.magic[row] >= MAGIC_V2 and batches.size[row] < HEADER_BYTES:
        return f"{batch} has {batches.size[row]} bytes, fewer than a header's {HEADER_BYTES}"
    name = "CRC-32C" if batches.magic[row] >= MAGIC_V2 else "CRC-32"
    return f"{name} of {batch} is wrong: stored {batches.crc[row]:#010x}"
