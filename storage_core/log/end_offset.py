"""Where a segment ends, and where in it an offset lies, by its offset index and its headers."""

from contextlib import closing
from dataclasses import dataclass

from storage_core.formats.index_entries import OFFSET_INDEX_ENTRY
from storage_core.index.offset_index import OffsetIndex
from storage_core.log.directory_view import DirectoryView
from storage_core.records.reader import CrcCheck, Tail, scan_windows

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


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchPlace:
    """Where a batch stands.

    Attributes:
        position: Byte position in its segment's file.
        base_offset: Its first offset.
    """

    position: int
    base_offset: int


def find_batch(
    view: DirectoryView, log_name: str, offset: int, from_position: int
) -> BatchPlace | None:
    """Return the first batch at or after from_position that reaches offset."""
    with closing(view.store.open_file(view.source(log_name).name)) as reader:
        for window in scan_windows(
            reader,
            start=from_position,
            window_bytes=_WINDOW_BYTES,
            crc=CrcCheck.SKIP,
            tail=Tail.STOP,
        ):
            reaching = (window.batches.last_offset >= offset).nonzero()[0]
            if reaching.size:
                row = int(reaching[0])
                return BatchPlace(
                    position=window.position_of(row),
                    base_offset=int(window.batches.base_offset[row]),
                )
    return None


def find_position(
    view: DirectoryView, log_name: str, offset: int, from_position: int
) -> int | None:
    """Return the position of the first batch at or after from_position that reaches offset."""
    batch = find_batch(view, log_name, offset, from_position)
    return None if batch is None else batch.position


def find_next_offset(view: DirectoryView, base_offset: int, log_name: str, index_name: str) -> int:
    """Return the offset after a segment's last batch, its base offset where it has none.

    Starts, as Kafka does, at the batch of the last offset index entry.

    Raises:
        CorruptRecordError: The bytes after that batch are no batches; after a clean shutdown
            Kafka does not open such a log either.
    """
    index = read_offset_index(view, base_offset, index_name)
    last = index.last_offset
    start = find_position(view, log_name, last, index.look_up(last))
    if start is None:
        return base_offset
    next_offset = base_offset
    with closing(view.store.open_file(view.source(log_name).name)) as reader:
        for window in scan_windows(
            reader, start=start, window_bytes=_WINDOW_BYTES, crc=CrcCheck.SKIP, tail=Tail.STOP
        ):
            next_offset = int(window.batches.last_offset[-1]) + 1
    return next_offset
