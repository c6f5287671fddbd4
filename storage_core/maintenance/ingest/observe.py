"""Read edges of a mirror's segments and its small files. Records between the edges are not read.

A segment's first batch, its indexes, and what lies behind the last index entry tell which offsets
and leader epochs it holds, and whether it ends where a batch ends. That is a few kilobytes of a
gigabyte, whose records the store itself copies.
"""

import enum
from collections.abc import Callable, Iterable
from contextlib import closing
from dataclasses import dataclass
from typing import Final, NamedTuple

from storage_core.checkpoint.checkpoint_files import (
    MAX_LEADER_EPOCH_BYTES,
    MAX_PARTITION_METADATA_BYTES,
    EpochEntry,
    parse_leader_epochs,
    parse_partition_metadata,
)
from storage_core.errors import CorruptRecordError
from storage_core.filenames import (
    INDEX_SUFFIXES,
    LEADER_EPOCH_FILE,
    LOG_SUFFIX,
    OFFSET_INDEX_SUFFIX,
    PARTITION_METADATA_FILE,
    SNAPSHOT_SUFFIX,
    SWAP_SUFFIX,
    TIME_INDEX_SUFFIX,
    kind_of,
    log_file,
    offset_of,
    segment_file,
    snapshot_file,
)
from storage_core.formats.batch_v2 import NO_LEADER_EPOCH, NO_TIMESTAMP
from storage_core.index.segment_indexes import OffsetIndex, TimeIndex
from storage_core.records.reader import CrcCheck, Large, Tail, Window, scan_windows
from storage_core.store.base import FileReader, LogStore
from storage_core.store.listing import ListedFile

MAX_COMPANION_BYTES: Final = 1 << 30
_HEAD_BYTES: Final = 64 << 10
_TAIL_BYTES: Final = 1 << 20
CompanionReader = Callable[[str], bytes]


class LeftReason(enum.StrEnum):
    """Reasons to skip a segment of the mirror; the values are stable."""

    OPEN = "OPEN"  # the newest one: a broker may still write it
    NOT_SETTLED = "NOT_SETTLED"  # the two listings differ about it or a segment before it
    ABOVE_HIGH_WATERMARK = "ABOVE_HIGH_WATERMARK"  # part of it may not be replicated


@dataclass(frozen=True, slots=True, kw_only=True)
class MirrorSegment:
    """The files of one segment."""

    base_offset: int
    log: ListedFile
    # Its indexes and the producer snapshot at its base, as far as there are.
    companions: tuple[ListedFile, ...]

    @property
    def files(self) -> tuple[ListedFile, ...]:
        """All of them."""
        return (self.log, *self.companions)


@dataclass(frozen=True, slots=True, kw_only=True)
class MirrorListing:
    """The files of a partition's directory by kind."""

    segments: tuple[MirrorSegment, ...]  # in order of base offsets
    snapshots: dict[int, ListedFile]
    epoch_file: ListedFile | None  # the leader epochs, None without
    metadata_file: ListedFile | None  # the topic's id, None without
    # Files of a swap that the broker had not finished when they were copied.
    unfinished: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentEdges:
    """Offsets, epochs and times of a segment's first and last batches."""

    first_offset: int
    next_offset: int  # after the last batch, the same of a segment without any
    first_epoch: int  # leader epoch of the first batch, -1 where it is not known
    last_epoch: int
    # Timestamp of the last time index entry, epoch milliseconds; None without one.
    largest_timestamp: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class MirrorFacts:
    """Facts about the partition from the mirror's files; None if unknown."""

    topic_id: str | None
    epochs: tuple[EpochEntry, ...]  # entries of the leader epoch file; empty without one
    high_watermark: int | None  # the high watermark of the mirror's checkpoint, or by its owner
    log_start_offset: int | None  # the log start of the mirror's checkpoint
    cleaner_offset: int | None  # the cleaner offset of the mirror's checkpoint


@dataclass(frozen=True, slots=True, kw_only=True)
class ManagedFacts:
    """Facts about the managed partition before the ingest; defaults if new."""

    # Up to where the mirror's segments were taken, None before the first.
    end_offset: int | None = None
    topic_id: str | None = None
    epochs: tuple[EpochEntry, ...] = ()  # entries of its own leader epoch file


def group_files(files: Iterable[ListedFile]) -> MirrorListing:
    """Sort a directory's files by kind, without other names. Only names as Kafka writes them
    count: 20 digits and one of its suffixes."""
    by_name = {file.name: file for file in files}
    snapshots = {}
    segments = []
    for name, file in sorted(by_name.items()):
        offset = offset_of(name)
        if offset is None:
            continue
        if kind_of(name) == LOG_SUFFIX and name == log_file(offset):
            names = [segment_file(offset, suffix) for suffix in INDEX_SUFFIXES]
            companions = [by_name[other] for other in names if other in by_name]
            segments.append((offset, file, companions))
        elif kind_of(name) == SNAPSHOT_SUFFIX and name == snapshot_file(offset):
            snapshots[offset] = file
    return MirrorListing(
        segments=tuple(
            MirrorSegment(
                base_offset=base,
                log=log,
                companions=(*companions, *([snapshots[base]] if base in snapshots else [])),
            )
            for base, log, companions in segments
        ),
        snapshots=snapshots,
        epoch_file=by_name.get(LEADER_EPOCH_FILE),
        metadata_file=by_name.get(PARTITION_METADATA_FILE),
        unfinished=tuple(name for name in sorted(by_name) if name.endswith(SWAP_SUFFIX)),
    )


def read_edges(store: LogStore, segment: MirrorSegment, read: CompanionReader) -> SegmentEdges:
    """Return offsets, epochs and times of a segment's first and last batches.

    Args:
        store: The mirror's directory.
        read: Returns a companion by its name; they are read once, for this and for their copy.
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
    first = int(head.batches.base_offset[0])
    # A compressed set of an old format names only its last offset.
    is_last = bool(head.batches.is_legacy[0]) and first > base
    return SegmentEdges(
        first_offset=base if is_last else first,
        next_offset=tail.next_offset,
        first_epoch=int(head.batches.leader_epoch[0]),
        last_epoch=tail.last_epoch,
        largest_timestamp=largest,
    )


def read_topic_id(store: LogStore, listing: MirrorListing) -> str | None:
    """Return the topic id of a directory, None without one."""
    if listing.metadata_file is None:
        return None
    content = store.read_file(PARTITION_METADATA_FILE, limit_bytes=MAX_PARTITION_METADATA_BYTES)
    place = f"{store.location}/{PARTITION_METADATA_FILE}"
    return parse_partition_metadata(content, file=place).topic_id


def read_epochs(store: LogStore, listing: MirrorListing) -> tuple[EpochEntry, ...]:
    """Return a directory's leader epochs, none without a file of them."""
    if listing.epoch_file is None:
        return ()
    content = store.read_file(LEADER_EPOCH_FILE, limit_bytes=MAX_LEADER_EPOCH_BYTES)
    return tuple(parse_leader_epochs(content, file=f"{store.location}/{LEADER_EPOCH_FILE}"))


def _first_window(reader: FileReader, place: str) -> Window:
    windows = scan_windows(reader, window_bytes=_HEAD_BYTES, crc=CrcCheck.SKIP, tail=Tail.STOP)
    window = next(windows, None)
    if window is None:
        raise CorruptRecordError(place, 0, "expected a batch, found none")
    return window


class _End(NamedTuple):
    """The end of a segment's valid batches, and the last one's facts."""

    position: int
    next_offset: int = 0
    last_epoch: int = NO_LEADER_EPOCH


def _find_end(reader: FileReader, index: OffsetIndex, place: str) -> _End:
    """Return the end of a segment, from the last index entry on."""
    start = index.look_up(index.last_offset) if len(index.entries) else 0
    end = _scan_from(reader, start) if 0 < start < reader.size_bytes else _End(0)
    if end.position != reader.size_bytes:
        # Without a correct index, only the batches tell the end.
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
