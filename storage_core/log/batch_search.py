"""Single batches of a segment's file, by a walk over its headers."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from storage_core.formats.batch_v2 import (
    BATCH_LENGTH_AT,
    HEADER_BYTES,
    LENGTH_OVERHEAD,
    MAGIC_AT,
    MAGIC_V2,
    MAX_TIMESTAMP_AT,
    NO_TIMESTAMP,
)
from storage_core.records.payload import Limits, open_batches
from storage_core.records.reader import Window, scan_headers
from storage_core.store.base import FileReader

# What lies behind the last index entry is little, but for a segment without an index.
_WINDOW_BYTES = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundBatch:
    """Where a batch stands.

    Attributes:
        position: Byte position in its segment's file.
        size_bytes: All of it.
        base_offset: Its first offset; of a compressed legacy entry the last, which is all that
            its header tells.
        last_offset: Its last offset.
    """

    position: int
    size_bytes: int
    base_offset: int
    last_offset: int


def find_batch_for_offset(
    reader: FileReader, offset: int, *, start: int = 0, end: int | None = None
) -> FoundBatch | None:
    """Return the batch that contains an offset, or the one that follows it; None behind the last.

    This is Kafka's walk: on to the first batch that begins at the offset or behind it, then back
    by one if that reaches the offset. It is the first batch that reaches the offset, except where
    batches do not stand in the order of their offsets.

    Args:
        reader: The open .log file.
        offset: What to look for.
        start: Position of a batch that does not begin behind the one to be found.
        end: Where the segment ends, the end of the file if None.

    Raises:
        CorruptRecordError: Bytes on the way are no batches.
        StorageError: The file cannot be read.
    """
    previous = None
    for window in scan_headers(reader, start=start, end=end, window_bytes=_WINDOW_BYTES):
        reaching = np.flatnonzero(window.batches.base_offset >= offset)
        if reaching.size:
            row = int(reaching[0])
            found = _place(window, row)
            before = _place(window, row - 1) if row else previous
            if found.base_offset != offset and before and before.last_offset >= offset:
                return before
            return found
        previous = _place(window, len(window.batches) - 1)
    return previous if previous and previous.last_offset >= offset else None


def first_batch_timestamp(reader: FileReader) -> int:
    """Return the largest timestamp of a segment's first batch, NO_TIMESTAMP without one.

    Raises:
        CorruptRecordError: The segment begins with something else.
        StorageError: The file cannot be read.
    """
    header = np.empty(HEADER_BYTES, np.uint8)
    if reader.read_into(0, header) == HEADER_BYTES and header[MAGIC_AT] == MAGIC_V2:
        size = _number(header[BATCH_LENGTH_AT:LENGTH_OVERHEAD]) + LENGTH_OVERHEAD
        if HEADER_BYTES <= size <= reader.size_bytes:
            return _number(header[MAX_TIMESTAMP_AT : MAX_TIMESTAMP_AT + 8])
    windows = scan_headers(
        reader,
        window_bytes=1,  # it grows to the one batch
    )
    first = next(windows, None)
    return NO_TIMESTAMP if first is None else int(first.batches.max_timestamp[0])


def first_offset_of(window: Window, row: int, limits: Limits) -> int:
    """Return the first offset of a batch; a compressed legacy one has to be opened for that.

    Args:
        window: Holds the batch.
        row: Which one it is.
        limits: How large its records may become.

    Raises:
        PylogError: It cannot be opened.
    """
    batches = window.batches
    if batches.is_message_set[row]:
        wanted = np.zeros(len(batches), np.bool_)
        wanted[row] = True
        batches = open_batches(window, wanted, row, limits).batches
    return int(batches.base_offset[row])


def _number(field: NDArray[np.uint8]) -> int:
    return int.from_bytes(field.tobytes(), "big", signed=True)


def _place(window: Window, row: int) -> FoundBatch:
    batches = window.batches
    return FoundBatch(
        position=window.position_of(row),
        size_bytes=int(batches.size[row]),
        base_offset=int(batches.base_offset[row]),
        last_offset=int(batches.last_offset[row]),
    )
