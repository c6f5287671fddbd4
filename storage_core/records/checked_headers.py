"""What the headers of a segment say, every checksum checked, at the rate at which bytes are read.

Recovery and verification look at each byte once, for its checksum. So the bytes are read in pieces
that stay in a core's own cache until that is done, and the next piece takes their place. What is
handed on are the headers of many pieces together: a window's worth of work in numpy costs the same
for 30 batches as for 500.
"""

from collections.abc import Iterator
from typing import Final

import numpy as np

from storage_core.errors import PylogError
from storage_core.kernels import batch_scan
from storage_core.records.batch_table import BatchTable
from storage_core.records.reader import (
    DEFAULT_WINDOW_BYTES,
    CrcCheck,
    Large,
    Tail,
    Window,
    scan_windows,
)
from storage_core.store.base import FileReader

# About the second-level cache of a core. Measured with `bench_verify`: of pieces of 8 MiB a core
# checks two thirds as many bytes a second, and with 128 KiB the calls begin to count. Objects are
# read ahead only by requests of at least this size.
_PIECE_BYTES: Final = 1 << 20
# Small batches have more rows than bytes are worth: so many are handed on at once.
_MOST_ROWS: Final = 1 << 15
_NO_BYTES: Final = np.empty(0, np.uint8)


def scan_checked_headers(
    reader: FileReader,
    *,
    start: int = 0,
    end: int | None = None,
    window_bytes: int = DEFAULT_WINDOW_BYTES,
    large: Large = Large.HEADER,
) -> Iterator[Window]:
    """Read the batches between two positions, check their CRCs, and keep only their headers.

    Args:
        reader: The open .log file.
        start: Position of a batch.
        end: Where to stop reading, the end of the file if None.
        window_bytes: About how much a window stands for, at most.
        large: What to read of a batch that is larger than others are.

    Yields:
        Windows with at least one batch and no records, in file order, up to a torn tail; a wrong
        CRC is told by the column ``crc_ok``.

    Raises:
        CorruptRecordError: A batch's length is impossible; all before it have been yielded.
        StorageError: The file cannot be read; likewise.
    """
    pieces: list[Window] = []
    size_bytes = rows = 0
    try:
        for piece in scan_windows(
            reader,
            start=start,
            end=end,
            window_bytes=min(window_bytes, _PIECE_BYTES),
            crc=CrcCheck.NOTE,
            tail=Tail.STOP,
            large=large,
        ):
            if pieces and size_bytes + piece.size_bytes > window_bytes:
                yield _join(pieces)
                pieces, size_bytes, rows = [], 0, 0
            pieces.append(_headers_of(piece))
            size_bytes += piece.size_bytes
            rows += len(piece.batches)
            if rows >= _MOST_ROWS:
                yield _join(pieces)
                pieces, size_bytes, rows = [], 0, 0
    except PylogError:
        if pieces:
            yield _join(pieces)
        raise
    if pieces:
        yield _join(pieces)


def _headers_of(piece: Window) -> Window:
    """Return a copy of what will be overwritten, without the records."""
    batches = BatchTable(piece.batches.columns.copy())
    return Window(piece.file, piece.file_position, _NO_BYTES, batches, is_whole=False)


def _join(pieces: list[Window]) -> Window:
    """Return neighbours as one."""
    first = pieces[0]
    for piece in pieces[1:]:
        piece.batches.columns[batch_scan.POSITION] += piece.file_position - first.file_position
    columns = np.concatenate([piece.batches.columns for piece in pieces], axis=1)
    return Window(first.file, first.file_position, _NO_BYTES, BatchTable(columns), is_whole=False)
