"""A segment of which only batches with records of some times are read.

The header of each batch says how new its newest record is; how old the oldest one is it says of
batches with one time. So a batch is left out where its header rules it out, and no other one: in a
partition neither producers' nor brokers' clocks rise for sure. No checksum is looked at of what is
left out.
"""

from collections import deque
from collections.abc import Generator
from functools import partial
from itertools import pairwise
from typing import Final

import numpy as np
from numpy.typing import NDArray

from storage_core.formats.batch_v2 import HEADER_BYTES
from storage_core.kernels import batch_scan
from storage_core.kernels._intrinsics import CAN_CALL
from storage_core.kernels.batch_scan import COLUMN_COUNT, walk_headers
from storage_core.records.batch_table import BatchTable
from storage_core.records.checked_headers import PREAD
from storage_core.records.reader import (
    CrcCheck,
    Scanned,
    Tail,
    Window,
    WindowRoom,
    note_scanned,
    scan_windows,
)
from storage_core.store.base import DescriptorReader, FileReader

# A header, and the record of a control batch.
_HEAD_BYTES: Final = HEADER_BYTES + 35
_ROWS_AT_A_TIME: Final = 1024
# A disk reads no less than a page, and what lies behind it ahead: to leave out less saves nothing.
_PAGE_BYTES: Final = 4 << 10
_LEAST_BYTES: Final = 64 << 10
# So much is read without a look at headers first, where they left out nothing.
_STRETCH_BYTES: Final = 16 << 20
_NO_BYTES: Final = np.empty(0, np.uint8)


def scan_sifted(
    reader: FileReader,
    *,
    start: int,
    end: int,
    window_bytes: int,
    tail: Tail,
    times_ms: tuple[int, int],
) -> Generator[Window]:
    """Read the batches of a segment between two positions that may hold a record of some times.

    Of an object, and of the formats before v2, everything is read: a request costs more than the
    bytes.

    Args:
        end: Where to stop reading. A batch that reaches past it is a tail.
        window_bytes: How much to hold at a time, unless one batch is larger.
        tail: What to do where no whole batch follows.
        times_ms: The first and the last time, epoch milliseconds.

    Yields:
        Windows with at least one batch, in file order, as ``scan_windows`` with CrcCheck.LATER;
        those of what is left out have the headers alone.
    """
    read = partial(
        scan_windows,
        reader,
        window_bytes=window_bytes,
        crc=CrcCheck.LATER,
        tail=tail,
        rooms=deque([WindowRoom()]),
    )
    if not (CAN_CALL and isinstance(reader, DescriptorReader)):
        yield from read(start=start, end=end)
        return
    head = np.empty(_HEAD_BYTES, np.uint8)
    table = np.empty((COLUMN_COUNT, _ROWS_AT_A_TIME), np.int64)
    while start < end:
        count, reached = walk_headers(PREAD, reader.descriptor, start, end, head, table)
        batches = BatchTable(table[:, :count])
        edges = _find_edges(batches, batches.may_hold_time(*times_ms))
        if edges is None:
            stretch_end = start + _STRETCH_BYTES
            for window in read(start=start, end=end):
                yield window
                start = window.file_position + window.size_bytes
                if start >= stretch_end:
                    break
            else:
                return
            continue
        for first, past, is_read in edges:
            rows = batches.rows(first, past)
            place = start + int(rows.position[0])
            size_bytes = int(rows.size.sum())
            if is_read:
                yield from read(start=place, end=place + size_bytes)
                continue
            read_bytes = _HEAD_BYTES * len(rows)
            note_scanned(Scanned(read_bytes, left_out_bytes=size_bytes - read_bytes))
            columns = rows.columns.copy()
            columns[batch_scan.POSITION] -= columns[batch_scan.POSITION, 0]
            yield Window(reader.name, place, _NO_BYTES, BatchTable(columns), is_whole=False)
        start = reached


def _find_edges(
    batches: BatchTable, is_wanted: NDArray[np.bool_]
) -> list[tuple[int, int, bool]] | None:
    """Return runs of batches, and whether they are to be read; None where all are."""
    runs = _runs(is_wanted)
    for first, past, is_read in runs:
        size_bytes = int(batches.size[first:past].sum())
        if not is_read and size_bytes < max(_LEAST_BYTES, _PAGE_BYTES * (past - first)):
            is_wanted[first:past] = True
    return None if is_wanted.all() else _runs(is_wanted)


def _runs(is_wanted: NDArray[np.bool_]) -> list[tuple[int, int, bool]]:
    edges = [0, *(np.flatnonzero(np.diff(is_wanted)) + 1).tolist(), len(is_wanted)]
    return [
        (first, past, bool(is_wanted[first])) for first, past in pairwise(edges) if first < past
    ]
