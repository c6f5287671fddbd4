"""From an offset to its batch, by a walk over the headers of a segment's file."""

from dataclasses import dataclass

import numpy as np

from storage_core.records.reader import CrcCheck, Tail, Window, scan_windows
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
    for window in scan_windows(
        reader,
        start=start,
        end=end,
        window_bytes=_WINDOW_BYTES,
        crc=CrcCheck.SKIP,
        tail=Tail.STOP,
    ):
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


def _place(window: Window, row: int) -> FoundBatch:
    batches = window.batches
    return FoundBatch(
        position=window.position_of(row),
        size_bytes=int(batches.size[row]),
        base_offset=int(batches.base_offset[row]),
        last_offset=int(batches.last_offset[row]),
    )
