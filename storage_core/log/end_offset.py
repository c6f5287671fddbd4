"""Where a segment ends, and where in it an offset lies, by its offset index and its headers."""

from contextlib import closing
from dataclasses import dataclass

from storage_core.errors import CorruptIndexError
from storage_core.formats.index_entries import OFFSET_INDEX_ENTRY
from storage_core.index.offset_index import OffsetIndex
from storage_core.log.batch_search import FoundBatch, find_batch_for_offset
from storage_core.log.directory_view import DirectoryView
from storage_core.records.reader import scan_headers

# An index file is bounded by its own 31-bit positions; real ones have 10 MiB at most by default.
MAX_INDEX_BYTES = 1 << 30
# From an index entry to the end lies little but where indexes are missing.
_WINDOW_BYTES = 1 << 20


def read_offset_index(view: DirectoryView, base_offset: int, name: str) -> OffsetIndex:
    """Read an offset index; one that is not there is as an empty one."""
    data = view.read(name, limit_bytes=MAX_INDEX_BYTES) if name in view else b""
    return OffsetIndex.parse(
        base_offset, data[: len(data) - len(data) % OFFSET_INDEX_ENTRY.itemsize]
    )


def find_batch(
    view: DirectoryView, log_name: str, offset: int, from_position: int
) -> FoundBatch | None:
    """Return the batch that Kafka's search for an offset finds at or after from_position.

    An index that is wrong may name a position below the file; the search begins at its start then.
    """
    with closing(view.open(log_name)) as reader:
        return find_batch_for_offset(reader, offset, start=max(from_position, 0))


def find_position(
    view: DirectoryView, log_name: str, offset: int, from_position: int
) -> int | None:
    """Return the position of the first batch at or after from_position that reaches offset."""
    batch = find_batch(view, log_name, offset, from_position)
    return None if batch is None else batch.position


@dataclass(frozen=True, slots=True, kw_only=True)
class NewestBatch:
    """The first of the batches with the largest timestamp of a stretch.

    Attributes:
        max_timestamp: Its largest timestamp, epoch milliseconds.
        last_offset: Its last offset.
    """

    max_timestamp: int
    last_offset: int


def find_newest_batch(view: DirectoryView, log_name: str, from_position: int) -> NewestBatch | None:
    """Return the batch with the largest timestamp at or after a position, None without batches.

    Raises:
        CorruptIndexError: The position, from an index, is negative.
    """
    if from_position < 0:
        raise CorruptIndexError(
            log_name, 0, f"the offset index leads to position {from_position}, before the file"
        )
    newest = None
    with closing(view.open(log_name)) as reader:
        for window in scan_headers(reader, start=from_position, window_bytes=_WINDOW_BYTES):
            row = int(window.batches.max_timestamp.argmax())
            timestamp = int(window.batches.max_timestamp[row])
            if newest is None or timestamp > newest.max_timestamp:
                last_offset = int(window.batches.last_offset[row])
                newest = NewestBatch(max_timestamp=timestamp, last_offset=last_offset)
    return newest


def find_next_offset(view: DirectoryView, base_offset: int, log_name: str, index_name: str) -> int:
    """Return the offset after a segment's last batch, its base offset where it has none.

    Starts, as Kafka does, at the batch of the last offset index entry.

    Raises:
        CorruptRecordError: The bytes after that batch are no batches; after a clean shutdown
            Kafka does not open such a log either.
    """
    return next_offset_by_index(view, log_name, read_offset_index(view, base_offset, index_name))


def next_offset_by_index(view: DirectoryView, log_name: str, index: OffsetIndex) -> int:
    """Return the offset after a segment's last batch, as `find_next_offset`.

    Raises:
        CorruptRecordError: As `find_next_offset`.
    """
    last = index.last_offset
    start = find_position(view, log_name, last, index.look_up(last))
    if start is None:
        return index.base_offset
    next_offset = index.base_offset
    with closing(view.open(log_name)) as reader:
        for window in scan_headers(reader, start=start, window_bytes=_WINDOW_BYTES):
            next_offset = int(window.batches.last_offset[-1]) + 1
    return next_offset
