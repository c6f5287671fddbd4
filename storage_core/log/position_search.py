"""From an offset to a position in a segment's file, without trusting its index."""

from contextlib import closing
from dataclasses import dataclass

from storage_core.errors import BadBytesError
from storage_core.filenames import MAX_OFFSET, OFFSET_INDEX_SUFFIX, log_file, segment_file
from storage_core.index.offset_index import OffsetIndex
from storage_core.log.end_offset import MAX_INDEX_BYTES
from storage_core.records.reader import CrcCheck, Large, Tail, scan_headers, scan_windows
from storage_core.store.base import FileReader, LogStore

# What lies behind the last index entry is little, but for a segment without an index.
_WINDOW_BYTES = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class ListedSegment:
    """A segment as a listing shows it.

    Attributes:
        base_offset: Its base offset.
        size_bytes: Length of its .log file then; what was appended later does not count.
        has_offset_index: Whether it has an offset index.
        has_time_index: Whether it has a time index.
    """

    base_offset: int
    size_bytes: int
    has_offset_index: bool
    has_time_index: bool


def find_start_position(store: LogStore, segment: ListedSegment, offset: int) -> int:
    """Return where to begin reading a segment so that no batch which reaches offset is missed.

    The offset index says it, if a good batch of a fitting offset stands where it points; else
    reading begins at 0. A wrong index costs time, never records.

    Raises:
        StorageError: The store failed.
    """
    if not segment.has_offset_index or offset <= segment.base_offset:
        return 0
    name = segment_file(segment.base_offset, OFFSET_INDEX_SUFFIX)
    data = store.read_file(name, limit_bytes=MAX_INDEX_BYTES)
    position = OffsetIndex.parse(segment.base_offset, data).look_up(offset)
    with closing(store.open_file(log_file(segment.base_offset))) as reader:
        return checked_start(reader, segment.base_offset, segment.size_bytes, position, offset)


def checked_start(
    reader: FileReader, base_offset: int, size_bytes: int, position: int, offset: int
) -> int:
    """Return a position that an index gave for an offset if a good batch stands there, else 0.

    Args:
        reader: The open .log file.
        base_offset: Of the segment.
        size_bytes: Of the segment.
        position: What the index says.
        offset: A batch that begins behind it is no place to begin.

    Raises:
        StorageError: The store failed.
    """
    if not 0 < position < size_bytes:
        return 0
    windows = scan_windows(
        reader,
        start=position,
        end=size_bytes,
        window_bytes=1,  # it grows to the one batch
        crc=CrcCheck.NOTE,
        tail=Tail.STOP,
        large=Large.HEADER,
    )
    try:
        first = next(windows, None)
    except BadBytesError:
        return 0
    if first is None:
        return 0
    found = int(first.batches.base_offset[0])
    is_fitting = bool(first.batches.crc_ok[0] == 1) and base_offset <= found <= offset
    return position if is_fitting else 0


def find_end_offset(store: LogStore, segment: ListedSegment) -> int:
    """Return the offset after a segment's last whole batch, its base offset where it has none.

    Raises:
        CorruptRecordError: The bytes behind its last index entry are no batches.
        StorageError: The store failed.
    """
    position = find_start_position(store, segment, MAX_OFFSET)
    end_offset = segment.base_offset
    with closing(store.open_file(log_file(segment.base_offset))) as reader:
        for window in scan_headers(
            reader, start=position, end=segment.size_bytes, window_bytes=_WINDOW_BYTES
        ):
            end_offset = int(window.batches.last_offset[-1]) + 1
    return end_offset
