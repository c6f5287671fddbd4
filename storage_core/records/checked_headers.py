"""Read a segment's batch headers and check all CRCs, fast. It takes no longer than to read the
bytes.

Recovery and verification look at each byte once, for its checksum. So the bytes are read in pieces
that stay in a core's own cache until that is done, and the next piece takes their place. What is
handed on are the headers of many pieces together: a window's worth of work in numpy costs hardly
less for 60 batches than for 4,000.

Several threads check stretches of one segment beside each other. Where a batch begins only the one
before it tells, so a stretch begins where a batch seems to, and counts if the stretch before it
ends there. From the first place on where the two do not meet, all is read in order, as if nobody
had guessed: what comes out, errors and their places too, does not depend on the threads.
"""

import ctypes
from collections.abc import Generator, Iterator
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from typing import Final

import numpy as np
from numpy.typing import NDArray

from storage_core.errors import BadBytesError, PylogError, StorageError
from storage_core.formats.batch_v2 import (
    ATTRIBUTES_AT,
    BATCH_LENGTH_AT,
    HEADER_BYTES,
    LENGTH_OVERHEAD,
    MAGIC_AT,
    MAGIC_V2,
)
from storage_core.kernels import batch_scan
from storage_core.kernels._intrinsics import CAN_CALL
from storage_core.kernels.batch_scan import COLUMN_COUNT, guess_start, read_checked
from storage_core.records.batch_table import BatchTable
from storage_core.records.reader import (
    DEFAULT_WINDOW_BYTES,
    CrcCheck,
    Large,
    Tail,
    Window,
    scan_windows,
)
from storage_core.store.base import DescriptorReader, FileReader, SharedReader
from storage_core.threads import in_order

# Guess where a v2 batch begins in the middle of a segment. Nobody has read the segment's
# beginning.
#
# Only whoever goes from batch to batch knows where the next one begins; what looks like a header
# may lie in a record's value. So what is found here is a guess, and who uses it has to prove it.

# Three batches of a producer's default size fit in the first look, in the second those of the
# largest that a broker takes by default.
_LOOKS_BYTES: Final = (1 << 16, 4 << 20)
# Tries in one look: bytes may be made to look like headers, one beside the other.
_MOST_TRIES: Final = 64
# So many that follow each other are hardly chance.
_IN_A_ROW: Final = 2


def possible_headers(data: NDArray[np.uint8], remaining_bytes: int) -> NDArray[np.int64]:
    """Return where headers may begin whose fields make sense, in order.

    Args:
        data: uint8[n], bytes of a segment.
        remaining_bytes: How many bytes the segment has from ``data[0]`` on; a batch has to end
            within them.

    Returns:
        int64[m], positions in data, with a whole header behind each.
    """
    starts = max(0, data.size - HEADER_BYTES + 1)
    magics = data[MAGIC_AT : MAGIC_AT + starts]
    # Only the low byte of the attributes is in use.
    unused = data[ATTRIBUTES_AT : ATTRIBUTES_AT + starts]
    places = np.flatnonzero((magics == MAGIC_V2) & (unused == 0))
    sizes = read_numbers(data, places + BATCH_LENGTH_AT, 4) + LENGTH_OVERHEAD
    is_sane = (sizes >= HEADER_BYTES) & (sizes <= remaining_bytes - places)
    return places[is_sane]


def read_numbers(
    data: NDArray[np.uint8], places: NDArray[np.int64], width: int
) -> NDArray[np.int64]:
    """Return the signed big-endian numbers of width bytes at the places."""
    sign = data[places].astype(np.int8).astype(np.int64)
    number = sign
    for step in range(1, width):
        number = (number << 8) | data[places + step]
    return number


def guess_batch_start(reader: FileReader, position: int, stop: int) -> int | None:
    """Return the likely start of a batch near a position. It is at the position or a little behind
    it.

    Args:
        stop: Nothing counts that does not end before.

    Returns:
        A position from which whole batches with rising offsets follow each other; None where none
        was found near by, as among batches of old formats or of many megabytes.
    """
    table = np.empty((COLUMN_COUNT, _IN_A_ROW), np.int64)
    for look_bytes in _LOOKS_BYTES:
        data = np.empty(min(look_bytes, stop - position), np.uint8)
        data = data[: reader.read_into(position, data)]
        place = guess_start(data, _MOST_TRIES, table)
        if place >= 0:
            return position + place
        if data.size < look_bytes:
            break
    return None


# Find the next batch behind bytes that are none.
#
# What is found is sure: its checksum is right, and its offsets are in order. A batch in a record's
# value has these, too: so where a length leads to the next batch, that is to be believed first.

_LOOK_BYTES: Final = 1 << 20
# What looks like headers may claim to be long: so often as much as there is is read for them.
_MOST_READS: Final = 4


class BatchFinder:
    """Searches a segment for v2 batches, byte by byte.

    Args:
        stop: Nothing counts that does not end before.
    """

    def __init__(self, reader: FileReader, stop: int) -> None:
        self._reader = reader
        self._stop = stop
        self._budget = _MOST_READS * stop
        self._data = np.empty(min(_LOOK_BYTES, stop), np.uint8)

    def find(self, position: int, first_offset: int, end_offset: int) -> int | None:
        """Return where the next batch begins, None without one.

        Args:
            end_offset: Nor is it this, or above.
        """
        while position + HEADER_BYTES <= self._stop:
            rest = self._stop - position
            look = self._data[: min(self._data.size, rest)]
            look = look[: self._reader.read_into(position, look)]
            if look.size < HEADER_BYTES:  # the file was longer when it was opened
                return None
            places = possible_headers(look, rest)
            bases = read_numbers(look, places, 8)
            places = places[(bases >= first_offset) & (bases < end_offset)]
            sizes = read_numbers(look, places + BATCH_LENGTH_AT, 4) + LENGTH_OVERHEAD
            for place, size in zip(places.tolist(), sizes.tolist(), strict=True):
                self._budget -= size
                if self._budget < 0:
                    return None
                start: int = position + place
                if self.is_batch(start, start + size):
                    return start
            # A header may lie across the end of what was looked at.
            position += look.size - HEADER_BYTES + 1
        return None

    def is_batch(self, start: int, end: int | None = None) -> bool:
        """Tell whether a batch with a right checksum begins at a position.

        Args:
            end: Where it ends at most; None for the finder's own end.
        """
        try:
            windows = scan_windows(
                self._reader,
                start=start,
                end=self._stop if end is None else end,
                window_bytes=HEADER_BYTES,
                crc=CrcCheck.NOTE,
                tail=Tail.STOP,
                large=Large.HEADER,
            )
            window = next(windows, None)
            return window is not None and int(window.batches.crc_ok[0]) == 1
        except BadBytesError:
            return False


# About the second-level cache of a core. Of pieces of 8 MiB a core checks a fifth fewer bytes a
# second, with 128 KiB the system's calls begin to count. Objects are read ahead only by requests of
# at least this size.
_PIECE_BYTES: Final = 1 << 20
# What is handed on at once, at most: rows for the memory they take, no power of two as for those of
# `reader`; bytes for those who wait.
MOST_ROWS: Final = 32_744
MOST_BYTES: Final = 64 << 20
# What a thread looks at in one go: some milliseconds of work. Batches of format v2 that have a
# record are no more than the rows, 36 MiB of them; a thread that finds more leaves the rest to be
# read in order.
_STRETCH_BYTES: Final = 16 << 20
_STRETCH_ROWS: Final = 1 << 18
# Between two stretches a thread waits for the interpreter's lock, which others may keep for
# milliseconds. So stretches become so many times as long where that makes no more rows than these.
_MOST_LONGER: Final = 4
_LONG_ROWS: Final = 1 << 15
# Read by machine code, a file of the operating system costs Python no call a piece: threads need
# not wait for each other.
PREAD: Final = ctypes.cast(ctypes.CDLL(None).pread, ctypes.c_void_p).value or 0
_NO_BYTES: Final = np.empty(0, np.uint8)


@dataclass(frozen=True, slots=True)
class _FilePart:
    """A part of a file that a thread looks at."""

    start: int
    end: int
    # What was found from start on; it may end before the stretch does.
    windows: tuple[Window, ...] = ()


def scan_checked_headers(
    reader: FileReader,
    *,
    start: int = 0,
    end: int | None = None,
    window_bytes: int = DEFAULT_WINDOW_BYTES,
    large: Large = Large.HEADER,
    threads: int = 1,
) -> Generator[Window]:
    """Read batches between two positions, check CRCs, keep only the headers.

    Args:
        end: Where to stop reading, the end of the file if None.
        window_bytes: How much of the file to hold at a time, at most; of each thread.
        threads: How many to use; of a file that threads cannot share, one reads.

    Yields:
        Windows with at least one batch and no records, in file order, up to a torn tail; a wrong
        CRC is told by the column ``crc_ok``. Where windows end may depend on the threads.
    """
    stop = reader.size_bytes if end is None else min(end, reader.size_bytes)
    piece_bytes = max(0, min(window_bytes, _PIECE_BYTES, stop - start))
    scan = partial(_scan, reader, rooms=_Rooms(piece_bytes), large=large)
    threads = min(threads, -(-(stop - start) // _STRETCH_BYTES))
    position = start
    if threads > 1 and isinstance(reader, SharedReader):
        length = _StretchLength(threads)

        def look(stretch: _FilePart) -> _FilePart:
            windows = _first_windows(scan(start=stretch.start, end=stretch.end))
            length.learn_from(windows)
            return _FilePart(stretch.start, stretch.end, windows)

        stretches = in_order(_cut(reader, start, stop, length), look, threads=threads)
        with closing(_adjacent(stretches, start)) as windows:
            for window in _together(windows):
                yield window
                position = window.file_position + window.size_bytes
    yield from scan(start=position, end=stop)


def _adjacent(stretches: Generator[_FilePart], position: int) -> Generator[Window]:
    """Yield the windows of stretches as long as each begins where the one before it ends."""
    with closing(stretches):
        for stretch in stretches:
            if stretch.start != position:
                return
            for window in stretch.windows:
                yield window
                position = window.file_position + window.size_bytes


class _StretchLength:
    """How long stretches are, by what was found in others."""

    def __init__(self, threads: int) -> None:
        self._threads = threads
        self._most_bytes = _STRETCH_BYTES

    def learn_from(self, windows: tuple[Window, ...]) -> None:
        """Note how many batches a stretch had."""
        size_bytes = sum(window.size_bytes for window in windows)
        rows = sum(len(window.batches) for window in windows)
        self._most_bytes = min(
            size_bytes * _LONG_ROWS // max(1, rows), _MOST_LONGER * _STRETCH_BYTES
        )

    def within(self, remaining_bytes: int) -> int:
        """Return the length of the next stretch. Towards the end they are shorter: no thread works
        long alone."""
        return max(_STRETCH_BYTES, min(self._most_bytes, remaining_bytes // (2 * self._threads)))


def _cut(reader: FileReader, start: int, stop: int, length: _StretchLength) -> Generator[_FilePart]:
    """Yield adjacent parts of a file with likely batch starts. It ends at a place where no batch
    seems to begin."""
    while (place := start + length.within(stop - start)) < stop:
        try:
            guess = guess_batch_start(reader, place, stop)
        except StorageError:
            return  # whoever reads in order meets it behind all that can be read
        if guess is None:
            return
        yield _FilePart(start, guess)
        start = guess
    yield _FilePart(start, stop)


def _first_windows(windows: Iterator[Window]) -> tuple[Window, ...]:
    """Return the windows before an error; a reader in order meets it."""
    first_windows: list[Window] = []
    rows = 0
    try:
        for window in windows:
            first_windows.append(window)
            rows += len(window.batches)
            if rows >= _STRETCH_ROWS:
                break
    except PylogError:
        pass
    return tuple(first_windows)


def _scan(
    reader: FileReader, *, start: int, end: int, rooms: "_Rooms", large: Large
) -> Generator[Window]:
    """Do what ``scan_checked_headers`` does, with one thread."""
    read_pieces = partial(
        scan_windows,
        reader,
        end=end,
        window_bytes=rooms.piece_bytes,
        crc=CrcCheck.NOTE,
        tail=Tail.STOP,
        large=large,
    )
    if not (CAN_CALL and isinstance(reader, DescriptorReader)):
        yield from _together(map(headers_of, read_pieces(start=start)))
        return
    while start < end:
        batches, used = rooms.read(reader.descriptor, start, end)
        if len(batches):
            yield Window(reader.name, start, _NO_BYTES, batches, is_whole=False)
            start = used
            continue
        # The next batch is larger than a piece or no whole one, or the file cannot be read.
        with closing(read_pieces(start=start)) as windows:
            window = next(windows, None)
        if window is None:
            return
        yield headers_of(window)
        start += window.size_bytes


class _Rooms:
    """Memory in which threads read pieces and their headers, as much as work at the same time.

    Args:
        piece_bytes: How much of the file to hold at a time.
    """

    def __init__(self, piece_bytes: int) -> None:
        self.piece_bytes = piece_bytes
        self._free: list[tuple[NDArray[np.uint8], NDArray[np.int64]]] = []

    def read(self, descriptor: int, start: int, end: int) -> tuple[BatchTable, int]:
        """Return the headers of a file's next batches, and where the last one ends."""
        try:
            piece, table = self._free.pop()
        except IndexError:
            piece, table = np.empty(self.piece_bytes, np.uint8), _new_table()
        count, used = read_checked(PREAD, descriptor, start, end, MOST_BYTES, piece, table)
        columns = table[:, :count]
        if count > MOST_ROWS // 2:
            table = _new_table()
        else:  # the system clears all of a new table, however few rows get into it
            columns = columns.copy()
        self._free.append((piece, table))
        return BatchTable(columns), used


def _new_table() -> NDArray[np.int64]:
    return np.empty((COLUMN_COUNT, MOST_ROWS), np.int64)


def _together(windows: Iterator[Window]) -> Generator[Window]:
    """Join windows of headers to some that have enough for a step of numpy."""
    parts: list[Window] = []
    size_bytes = rows = 0
    try:
        for window in windows:
            parts.append(window)
            size_bytes += window.size_bytes
            rows += len(window.batches)
            if rows >= MOST_ROWS or size_bytes >= MOST_BYTES:
                yield join_headers(parts)
                parts, size_bytes, rows = [], 0, 0
    except PylogError:
        if parts:
            yield join_headers(parts)
        raise
    if parts:
        yield join_headers(parts)


def headers_of(piece: Window) -> Window:
    """Return a copy of what will be overwritten, without the records."""
    batches = BatchTable(piece.batches.columns.copy())
    return Window(piece.file, piece.file_position, _NO_BYTES, batches, is_whole=False)


def join_headers(pieces: list[Window]) -> Window:
    """Return neighbours as one."""
    first = pieces[0]
    if len(pieces) == 1:
        return first
    columns = np.concatenate([piece.batches.columns for piece in pieces], axis=1)
    further = [piece.file_position - first.file_position for piece in pieces]
    columns[batch_scan.POSITION] += np.repeat(further, [len(piece.batches) for piece in pieces])
    return Window(first.file, first.file_position, _NO_BYTES, BatchTable(columns), is_whole=False)
