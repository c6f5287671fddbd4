"""Read the edges of a mirror's segments, and its small files: no record in the middle is read.

A segment's first batch, its indexes, and what lies behind the last index entry tell which offsets
and leader epochs it holds, and whether it ends where a batch ends. That is a few kilobytes of a
gigabyte, whose records the store itself copies.
"""

from collections.abc import Callable
from contextlib import closing
from typing import Final, NamedTuple

from storage_core.checkpoint.leader_epoch_file import (
    MAX_LEADER_EPOCH_BYTES,
    EpochEntry,
    parse_leader_epochs,
)
from storage_core.checkpoint.partition_metadata import (
    MAX_PARTITION_METADATA_BYTES,
    parse_partition_metadata,
)
from storage_core.errors import CorruptRecordError
from storage_core.filenames import (
    LEADER_EPOCH_FILE,
    OFFSET_INDEX_SUFFIX,
    PARTITION_METADATA_FILE,
    TIME_INDEX_SUFFIX,
    segment_file,
)
from storage_core.formats.batch_v2 import NO_LEADER_EPOCH, NO_TIMESTAMP
from storage_core.index.offset_index import OffsetIndex
from storage_core.index.time_index import TimeIndex
from storage_core.maintenance.ingest.state import MirrorListing, MirrorSegment, SegmentEdges
from storage_core.records.reader import CrcCheck, Large, Tail, Window, scan_windows
from storage_core.store.base import FileReader, LogStore

MAX_COMPANION_BYTES: Final = 1 << 30
_HEAD_BYTES: Final = 64 << 10
_TAIL_BYTES: Final = 1 << 20

CompanionReader = Callable[[str], bytes]


def read_edges(store: LogStore, segment: MirrorSegment, read: CompanionReader) -> SegmentEdges:
    """Return what the first and last batches of a segment say.

    Args:
        store: The mirror's directory.
        segment: One of its segments.
        read: Returns a companion by its name; they are read once, for this and for their copy.

    Raises:
        CorruptRecordError: The segment does not begin with a batch, or ends inside of one.
        StorageError: The store failed.
    """
    base = segment.base_offset
    present = {file.name for file in segment.companions}
    index_name = segment_file(base, OFFSET_INDEX_SUFFIX)
    time_name = segment_file(base, TIME_INDEX_SUFFIX)
    index = OffsetIndex.parse(base, read(index_name) if index_name in present else b"")
    times = TimeIndex.parse(base, read(time_name) if time_name in present else b"")
    largest = times.last_timestamp if times.last_timestamp > NO_TIMESTAMP else None
    if segment.log.size_bytes == 0:
        return SegmentEdges(
            first_offset=base,
            next_offset=base,
            first_epoch=NO_LEADER_EPOCH,
            last_epoch=NO_LEADER_EPOCH,
            largest_timestamp=largest,
        )
    place = f"{store.location}/{segment.log.name}"
    with closing(store.open_file(segment.log.name)) as reader:
        head = _first_window(reader, place)
        tail = _find_end(reader, index, place)
    return SegmentEdges(
        first_offset=_first_offset(head, base),
        next_offset=tail.next_offset,
        first_epoch=int(head.batches.leader_epoch[0]),
        last_epoch=tail.last_epoch,
        largest_timestamp=largest,
    )


def read_topic_id(store: LogStore, listing: MirrorListing) -> str | None:
    """Return the id of the topic that a directory belongs to, None where it does not say.

    Raises:
        CheckpointError: The file is malformed.
        StorageError: The store failed.
    """
    if listing.metadata_file is None:
        return None
    content = store.read_file(PARTITION_METADATA_FILE, limit_bytes=MAX_PARTITION_METADATA_BYTES)
    place = f"{store.location}/{PARTITION_METADATA_FILE}"
    return parse_partition_metadata(content, file=place).topic_id


def read_epochs(store: LogStore, listing: MirrorListing) -> tuple[EpochEntry, ...]:
    """Return the leader epochs of a directory, none where it has no file of them.

    Raises:
        CheckpointError: The file is malformed.
        StorageError: The store failed.
    """
    if listing.epoch_file is None:
        return ()
    content = store.read_file(LEADER_EPOCH_FILE, limit_bytes=MAX_LEADER_EPOCH_BYTES)
    return tuple(parse_leader_epochs(content, file=f"{store.location}/{LEADER_EPOCH_FILE}"))


def _first_offset(head: Window, base: int) -> int:
    """Return the first offset; a compressed set of an old format names only its last."""
    first = int(head.batches.base_offset[0])
    return base if head.batches.is_legacy[0] and first > base else first


def _first_window(reader: FileReader, place: str) -> Window:
    windows = scan_windows(reader, window_bytes=_HEAD_BYTES, crc=CrcCheck.SKIP, tail=Tail.STOP)
    window = next(windows, None)
    if window is None:
        raise CorruptRecordError(place, 0, "expected a batch, found none")
    return window


class _End(NamedTuple):
    """Where the valid batches of a segment end, and what the last of them says."""

    position: int
    next_offset: int = 0
    last_epoch: int = NO_LEADER_EPOCH


def _find_end(reader: FileReader, index: OffsetIndex, place: str) -> _End:
    """Return the end of a segment, from the last index entry on.

    Raises:
        CorruptRecordError: It is not where the file ends.
    """
    start = index.look_up(index.last_offset) if len(index.entries) else 0
    end = _scan_from(reader, start) if 0 < start < reader.size_bytes else _End(0)
    if end.position != reader.size_bytes:
        # There is no index, or it is wrong: only the batches themselves can say what the end is.
        end = _scan_from(reader, 0)
    if end.position != reader.size_bytes:
        raise CorruptRecordError(
            place,
            end.position,
            f"expected the last batch to end at {reader.size_bytes}, the end of the file: a closed "
            "segment that ends inside a batch is no whole copy",
        )
    return end


def _scan_from(reader: FileReader, start: int) -> _End:
    end = _End(start)
    try:
        for window in scan_windows(
            reader,
            start=start,
            window_bytes=_TAIL_BYTES,
            crc=CrcCheck.NOTE,
            tail=Tail.STOP,
            large=Large.HEADER,
        ):
            batches = window.batches
            if (batches.crc_ok == 0).any():
                break
            end = _End(
                position=window.position_of(-1) + int(batches.size[-1]),
                next_offset=int(batches.last_offset[-1]) + 1,
                last_epoch=int(batches.leader_epoch[-1]),
            )
    except CorruptRecordError:
        return end
    return end
