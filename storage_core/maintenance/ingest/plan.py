"""Plan an ingest: segments, contradictions between them, and the cost.

First the candidates, by listings alone: closed, settled, in order. Then, when their edges have been
read, what is wrong with them together: a mirror whose sync copied from two replicas, or kept what
its broker had compacted away, has segments that overlap or whose leader epochs fall; taking them
would make a log that no broker ever had.
"""

import enum
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from itertools import pairwise
from typing import Final, NamedTuple

from storage_core.checkpoint.checkpoints import (
    MAX_LEADER_EPOCH_BYTES,
    MAX_PARTITION_METADATA_BYTES,
    EpochEntry,
    PartitionCheckpoints,
    parse_leader_epochs,
    parse_partition_metadata,
)
from storage_core.errors import CorruptRecordError, GuardRefusedError, InconsistentTopicIdError
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

# Read edges of a mirror's segments and its small files. Records between the edges are not read.
#
# A segment's first batch, its indexes, and what lies behind the last index entry tell which
# offsets and leader epochs it holds, and whether it ends where a batch ends. That is a few
# kilobytes of a gigabyte, whose records the store itself copies.

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
class SmallFacts:
    """What a partition's small files say of its log, in the mirror or in the managed root."""

    topic_id: str | None = None  # None if unknown
    epochs: tuple[EpochEntry, ...] = ()  # entries of the leader epoch file; empty without one
    # In the managed root, the recovery point is up to where the mirror's segments were taken.
    checkpoints: PartitionCheckpoints = PartitionCheckpoints()


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


_EDGES: Final = (OFFSET_INDEX_SUFFIX, TIME_INDEX_SUFFIX)


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidates:
    """Segments that may be taken as far as listings tell."""

    segments: tuple[MirrorSegment, ...]  # in order of base offsets
    # Where each of them ends: the base offset of the next one; None for the newest one, which is a
    # candidate only if no sync writes any more.
    ends: tuple[int | None, ...]
    skip_reasons: Mapping[int, LeftReason]  # why each other new segment stays, by base offset
    snapshots: Mapping[int, ListedFile]  # the producer snapshots that both listings have, by offset


@dataclass(frozen=True, slots=True, kw_only=True)
class TakenSegment:
    """A segment that is taken."""

    segment: MirrorSegment
    end_offset: int  # just past what it holds: where the next one begins
    largest_timestamp: int | None  # epoch milliseconds, None where the time index does not say


@dataclass(frozen=True, slots=True, kw_only=True)
class IngestPlan:
    """The segments and files to take of one partition."""

    location: str  # location of the mirror's directory
    segments: tuple[TakenSegment, ...]  # in order; may be empty
    skip_reasons: Mapping[int, LeftReason]  # why each other new segment stays, by base offset
    snapshot: ListedFile | None  # producer snapshot at the end of what is taken, None without one
    # What the managed partition's will say afterwards; high watermark and cleaner offset are the
    # attested ones, at most up to where the mirror will have been taken. Log start and cleaner
    # offset are those of a partition that is new.
    after: SmallFacts

    @property
    def end_offset(self) -> int | None:
        """Up to where the mirror will have been taken; None if nothing ever was."""
        return self.after.checkpoints.recovery_point

    @property
    def files(self) -> tuple[ListedFile, ...]:
        """All files that are taken, records first in each segment."""
        files = [file for one in self.segments for file in one.segment.files]
        if self.segments and self.snapshot is not None and self.snapshot not in files:
            files.append(self.snapshot)
        return tuple(files)

    @property
    def record_bytes(self) -> int:
        """Bytes of records that are taken."""
        return sum(one.segment.log.size_bytes for one in self.segments)

    @property
    def companion_bytes(self) -> int:
        """Bytes of all other files that are taken."""
        return sum(file.size_bytes for file in self.files) - self.record_bytes


def choose_candidates(
    first: MirrorListing,
    second: MirrorListing,
    *,
    end_offset: int | None,
    sync_has_stopped: bool,
) -> Candidates:
    """Choose new closed segments with equal facts in both listings.

    Args:
        second: A later listing of the same directory.
        end_offset: Up to where segments were taken before, None for the first time.
        sync_has_stopped: Whether the owner says that nothing is written to the mirror any more: the
            newest segment is as good as the others then.
    """
    before = {segment.base_offset: segment for segment in first.segments}
    new = [s for s in second.segments if end_offset is None or s.base_offset >= end_offset]
    segments: list[MirrorSegment] = []
    ends: list[int | None] = []
    skip_reasons: dict[int, LeftReason] = {}
    is_settled = True
    for number, segment in enumerate(new):
        following = new[number + 1].base_offset if number + 1 < len(new) else None
        is_settled = is_settled and _is_unchanged(before.get(segment.base_offset), segment)
        if following is None and not sync_has_stopped:
            skip_reasons[segment.base_offset] = LeftReason.OPEN
        elif not is_settled:
            skip_reasons[segment.base_offset] = LeftReason.NOT_SETTLED
        else:
            segments.append(segment)
            ends.append(following)
    return Candidates(
        segments=tuple(segments),
        ends=tuple(ends),
        skip_reasons=skip_reasons,
        snapshots={
            offset: snapshot
            for offset, snapshot in second.snapshots.items()
            if _is_same_file(first.snapshots.get(offset), snapshot)
        },
    )


def _is_unchanged(before: MirrorSegment | None, now: MirrorSegment) -> bool:
    return (
        before is not None
        and len(before.files) == len(now.files)
        and all(map(_is_same_file, before.files, now.files))
    )


def _is_same_file(before: ListedFile | None, now: ListedFile) -> bool:
    """Whether two listings agree about a file; tags may be missing. An inventory may have no
    tags."""
    if before is None or (before.name, before.size_bytes) != (now.name, now.size_bytes):
        return False
    return before.etag in {"", now.etag}


def plan_ingest(
    location: str,
    candidates: Candidates,
    edges: Sequence[SegmentEdges],
    attested: SmallFacts,
    ingested: SmallFacts,
) -> IngestPlan:
    """Decide which candidates are taken.

    Args:
        location: Location of the mirror's directory, for messages.
        edges: Edges of the candidates, in their order.
        attested: By the mirror's own files, or by its owner.
        ingested: By the managed partition, before.
    """
    expected, topic_id = ingested.topic_id, attested.topic_id
    if expected is not None and topic_id is not None and expected != topic_id:
        raise InconsistentTopicIdError(location, expected, topic_id)
    ends = [
        edge.next_offset if end is None else end
        for end, edge in zip(candidates.ends, edges, strict=True)
    ]
    for segment, edge, end in zip(candidates.segments, edges, ends, strict=True):
        _check_range(location, segment, edge, end)
    _check_epochs(location, candidates.segments, edges, attested.epochs)
    _check_continuation(location, candidates.segments, ingested, attested)
    segments, skip_reasons = [], dict(candidates.skip_reasons)
    marks = attested.checkpoints
    for segment, edge, end in zip(candidates.segments, edges, ends, strict=True):
        limit = marks.high_watermark
        if limit is not None and end > limit:
            skip_reasons[segment.base_offset] = LeftReason.ABOVE_HIGH_WATERMARK
            continue
        segments.append(
            TakenSegment(segment=segment, end_offset=end, largest_timestamp=edge.largest_timestamp)
        )
    end_offset = segments[-1].end_offset if segments else ingested.checkpoints.recovery_point
    return IngestPlan(
        location=location,
        segments=tuple(segments),
        skip_reasons=skip_reasons,
        snapshot=candidates.snapshots.get(segments[-1].end_offset) if segments else None,
        after=SmallFacts(
            topic_id=ingested.topic_id or attested.topic_id,
            epochs=_merge_epochs(ingested.epochs, attested.epochs, end_offset),
            checkpoints=PartitionCheckpoints(
                log_start_offset=_first_log_start(segments, marks.log_start_offset),
                recovery_point=end_offset,
                high_watermark=_bounded(marks.high_watermark, end_offset),
                cleaner_offset=_bounded(marks.cleaner_offset, end_offset),
            ),
        ),
    )


def _check_range(location: str, segment: MirrorSegment, edge: SegmentEdges, end: int) -> None:
    file = f"{location}/{segment.log.name}"
    if edge.first_offset < segment.base_offset:
        raise CorruptRecordError(
            file, 0, f"expected offsets from {segment.base_offset} on, found {edge.first_offset}"
        )
    if edge.next_offset > end:
        raise GuardRefusedError(
            "OVERLAPPING_SEGMENTS",
            f"{file} holds offsets up to {edge.next_offset - 1}, the next segment begins at "
            f"{end}: the mirror has segments of several replicas, or some that its broker has "
            "since compacted into others",
        )


def _check_epochs(
    location: str,
    segments: Sequence[MirrorSegment],
    edges: Sequence[SegmentEdges],
    epochs: Sequence[EpochEntry],
) -> None:
    """Refuse leader epochs falling, or at odds with the epoch file."""
    for (older, before), (newer, after) in pairwise(zip(segments, edges, strict=True)):
        if NO_LEADER_EPOCH < after.first_epoch < before.last_epoch:
            raise _mixed(
                f"{location}/{newer.log.name} begins in leader epoch {after.first_epoch}, "
                f"{older.log.name} before it ends in {before.last_epoch}"
            )
    for segment, edge in zip(segments, edges, strict=True):
        points = ((edge.first_offset, edge.first_epoch), (edge.next_offset - 1, edge.last_epoch))
        for offset, epoch in points:
            expected = _epoch_at(epochs, offset)
            if NO_LEADER_EPOCH not in {epoch, expected} and epoch != expected:
                raise _mixed(
                    f"{location}/{segment.log.name} has leader epoch {epoch} at offset {offset}, "
                    f"the leader epoch file of its directory has {expected}"
                )


def _check_continuation(
    location: str, segments: Sequence[MirrorSegment], ingested: SmallFacts, attested: SmallFacts
) -> None:
    """Refuse segments with a gap before them or from another history."""
    end = ingested.checkpoints.recovery_point
    if end is None or not segments:
        return
    first = segments[0].base_offset
    removed_to = attested.checkpoints.log_start_offset
    if first > end and (removed_to is None or removed_to < first):
        raise GuardRefusedError(
            "MISSING_SEGMENTS",
            f"{location}: segments were taken up to offset {end}, the mirror goes on at {first}: "
            "what lies between is in no segment of its own any more",
        )
    for entry in ingested.epochs:
        epoch = _epoch_at(attested.epochs, entry.start_offset)
        if epoch not in {NO_LEADER_EPOCH, entry.epoch}:
            raise _mixed(
                f"{location}: its leader epoch file has epoch {epoch} at offset "
                f"{entry.start_offset}, what was taken before has {entry.epoch}"
            )


def _epoch_at(epochs: Sequence[EpochEntry], offset: int) -> int:
    """Return an offset's leader epoch, -1 without a fitting entry."""
    earlier = [entry.epoch for entry in epochs if entry.start_offset <= offset]
    return max(earlier, default=NO_LEADER_EPOCH)


def _merge_epochs(
    ingested: Sequence[EpochEntry], attested: Sequence[EpochEntry], end_offset: int | None
) -> tuple[EpochEntry, ...]:
    """Return ingested epochs and the mirror's newer ones, up to the end. The end is that of the
    segments in the plan."""
    newest = max((entry.epoch for entry in ingested), default=NO_LEADER_EPOCH)
    new = [
        entry
        for entry in sorted(attested)
        if entry.epoch > newest and end_offset is not None and entry.start_offset < end_offset
    ]
    return (*ingested, *new)


def _bounded(offset: int | None, end_offset: int | None) -> int | None:
    return offset if offset is None or end_offset is None else min(offset, end_offset)


def _first_log_start(segments: Sequence[TakenSegment], log_start: int | None) -> int | None:
    if not segments:
        return None
    first = segments[0].segment.base_offset
    return first if log_start is None else min(max(first, log_start), segments[-1].end_offset)


def _mixed(reason: str) -> GuardRefusedError:
    return GuardRefusedError("MIXED_REPLICAS", reason)


@dataclass(frozen=True, slots=True, kw_only=True)
class IngestCost:
    """What a plan costs: requests to the stores, and bytes."""

    list_requests: int  # pages of listings, of the second look only
    get_requests: int  # ranged and whole reads, of the plan and of the commit
    copy_requests: int  # copies that the store makes by itself
    put_requests: int  # writes, the manifest and its history among them
    head_requests: int  # questions about single objects
    copied_bytes: int  # bytes that the store copies by itself
    moved_bytes: int  # bytes that are read and written again by us


def cost_of(
    plan: IngestPlan,
    candidates: Candidates,
    listing: MirrorListing,
    *,
    in_place: bool,
    is_server_side: bool,
) -> IngestCost:
    """Count a plan's and its commit's requests and bytes, if predictable.

    Args:
        in_place: Whether objects are adopted where they are.
        is_server_side: Whether the store copies records by itself.
    """
    small = sum(file is not None for file in (listing.epoch_file, listing.metadata_file))
    # The edges of each segment: its indexes, the head and the tail of its records.
    edges = sum(
        sum(file.name.endswith(_EDGES) for file in segment.companions)
        + (2 if segment.log.size_bytes else 0)
        for segment in candidates.segments
    )
    base = IngestCost(
        list_requests=1,
        get_requests=1 + small + edges,
        copy_requests=0,
        put_requests=2 if plan.segments else 0,
        head_requests=0,
        copied_bytes=0,
        moved_bytes=0,
    )
    if not plan.segments or in_place:
        return base
    logs = [one.segment.log for one in plan.segments if one.segment.log.size_bytes]
    packs = len(plan.segments) + 2
    snapshots = sum(
        file.name.endswith(SNAPSHOT_SUFFIX)
        for one in plan.segments
        for file in one.segment.companions
    )
    return IngestCost(
        list_requests=1,
        get_requests=base.get_requests + snapshots + (0 if is_server_side else len(logs)),
        copy_requests=len(logs) if is_server_side else 0,
        put_requests=base.put_requests + packs + (0 if is_server_side else len(logs)),
        head_requests=len(logs),
        copied_bytes=plan.record_bytes if is_server_side else 0,
        moved_bytes=plan.companion_bytes + (0 if is_server_side else plan.record_bytes),
    )
