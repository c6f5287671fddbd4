"""Plan a read: turn topics, offsets and times into file ranges.

This runs once for each request; of a query on Spark it is the driver's half. It lists directories;
beyond that it reads only what the request needs: an end offset for offsets that it names, indexes
for points in time, producer snapshots for committed reads. Of a managed root it pins the generation
of each partition, of any other the files that a load would leave: who reads a range reads exactly
those, whatever is committed meanwhile, or refuses.
"""

import logging
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from typing import Final, TypeVar

import pyarrow as pa

from storage_core.catalog.log_directories import DirectoryKind, classify_directory
from storage_core.checkpoint.checkpoints import Checkpoints, read_checkpoints
from storage_core.errors import (
    ChangedWhileReadError,
    ConfigError,
    OffsetOutOfRangeError,
    OffsetsInTierError,
)
from storage_core.filenames import (
    CLEANER_FILE,
    LOG_START_FILE,
    LOG_SUFFIX,
    OFFSET_INDEX_SUFFIX,
    TIME_INDEX_SUFFIX,
    TopicPartition,
    kind_of,
    log_file,
    offset_of,
    segment_file,
)
from storage_core.log.batch_search import (
    ListedSegment,
    find_cut_offsets,
    find_end_offset,
    find_lost_logs,
)
from storage_core.log.committed_view import (
    find_last_stable_offset,
    find_offset_for_time,
    has_snapshots,
)
from storage_core.log.loaded_log import LogBounds
from storage_core.log.settled_store import SettledStore, settle
from storage_core.reading.ranges import ReadRange, is_tiered_topic, read_on, report_gap
from storage_core.reading.request import EARLIEST, LATEST, Bound, ReadRequest, TopicChoice
from storage_core.records.payload import DEFAULT_LIMITS
from storage_core.roots.open_root import find_root, map_over_root
from storage_core.roots.partition_facts import manifest_checkpoints
from storage_core.roots.remote_logs import RemoteLogs
from storage_core.roots.root import Root
from storage_core.store import LogStore, open_store
from storage_core.store.open_objects import is_url

# More ranges of one partition are a mistake: a user's, or a log's with wrong offsets.
_MOST_RANGES: Final = 1_000_000
# Seconds to wait before each new attempt to plan a partition with changing files.
_PAUSES: Final = (0.1, 0.5)
_READABLE: Final = frozenset({DirectoryKind.PARTITION, DirectoryKind.METADATA})
# Time for the rest of a preceding segment to arrive, by a copy of several files at a time.
_ON_ITS_WAY_MS: Final = 15 * 60 * 1000

_log: Final = logging.getLogger(__name__)

T = TypeVar("T")
R = TypeVar("R")


@dataclass(frozen=True, slots=True, kw_only=True)
class LogPlace:
    """Where a partition is."""

    root: Root
    location: str  # its own directory, as ``open_store`` takes it


@dataclass(frozen=True, slots=True, kw_only=True)
class _PlannedLog:
    """A partition that is read."""

    partition: TopicPartition
    location: str
    has_manifest: bool  # whether its manifest says what checkpoint files say of others
    store: SettledStore
    segments: tuple[ListedSegment, ...]  # in offset order; at least one
    log_start_offset: int  # first offset that a consumer may see
    cleaner_offset: int | None  # the entry in its cleaner checkpoint, None without
    # Log start of a tiered topic that lies below the first segment; None where all of the log is
    # here.
    tier_start: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Extent:
    """The offsets of a log that are read."""

    start: int
    end: int | None  # just past the last one; None for no bound but the files' ends


@dataclass(frozen=True, slots=True, kw_only=True)
class LogOffsets(LogBounds):
    """What a reader of a growing log can have of it now."""

    start: int
    end: int  # just past the last one that can be read by now


@dataclass(frozen=True, slots=True, kw_only=True)
class _RangePart:
    """Segments that are read in one go, or a piece of one."""

    segments: tuple[ListedSegment, ...]  # consecutive ones; a single one where there is an end
    size_bytes: int
    start: int = 0  # first offset of a piece, 0 where nothing of the segments lies before
    # Just past the last offset of a piece, None where nothing of the segments lies behind.
    end: int | None = None


def plan_ranges(request: ReadRequest, *, now_ms: int) -> list[ReadRange]:
    """Return the file ranges of a read request; none without records.

    Args:
        now_ms: The reader's clock, epoch milliseconds.
    """
    logs = _list_logs(request, now_ms)
    ranges = _look_at_each(logs, lambda planner, log: planner.plan(log, planner.ranges))
    return [wanted for of_log in ranges for wanted in of_log or []]


def find_offsets(
    request: ReadRequest, reached: Mapping[TopicPartition, int], *, now_ms: int
) -> dict[TopicPartition, LogOffsets]:
    """Return the offsets readable now, even while a copy extends directories.

    Nothing that may still be on its way is passed over: where a segment came a short time ago and
    the one before it does not reach up to it, that one's end is where a read ends for now.

    Args:
        request: The request; its end is that of the logs.
        reached: Up to where a log was read before; without an entry, nothing of it was.
        now_ms: The reader's clock, epoch milliseconds.

    Returns:
        The offsets of each partition that has a log, in the order of partitions.
    """
    logs = _list_logs(request, now_ms)
    offsets_of_logs = _look_at_each(
        logs, lambda planner, log: planner.plan(log, partial(planner.offsets, reached))
    )
    return {
        log.partition: offsets
        for (_, log), offsets in zip(logs, offsets_of_logs, strict=True)
        if offsets is not None
    }


def find_bounds(request: ReadRequest, *, now_ms: int) -> dict[TopicPartition, LogOffsets]:
    """Return where a read of each partition starts and ends, in the order of partitions.

    Args:
        now_ms: The reader's clock, epoch milliseconds.
    """
    logs = _list_logs(request, now_ms)
    bounds = _look_at_each(logs, lambda planner, log: planner.plan(log, planner.bounds))
    return {
        log.partition: found
        for (_, log), found in zip(logs, bounds, strict=True)
        if found is not None
    }


def _list_logs(request: ReadRequest, now_ms: int) -> list[tuple["_Planner", _PlannedLog]]:
    """Return a request's logs with their planners; none for empty ones."""
    place_of = choose_places(request)
    for bound in (request.starting, request.ending):
        _validate_coverage(bound, place_of, may_be_missing=request.choice.may_be_missing)
    remote = RemoteLogs(find_root(path)[0] for path in request.paths)
    planners = {
        place.root.location: _Planner(place.root, request, now_ms, remote)
        for place in place_of.values()
    }
    places = [
        (planners[place.root.location], (partition, place.location))
        for partition, place in place_of.items()
    ]
    listed = _look_at_each(places, lambda _, place: _list_log(*place))
    for planner in planners.values():
        planner.read_checkpoints()
    logs = []
    for (planner, (partition, _)), log in zip(places, listed, strict=True):
        if log is not None:
            logs.append((planner, log))
            continue
        offset = request.starting.offset_of(partition) or 0
        if offset > 0 and request.fail_on_data_loss:
            raise OffsetOutOfRangeError(str(partition), offset, 0, 0)
    return logs


def _look_at_each(
    items: Sequence[tuple["_Planner", T]], look: Callable[["_Planner", T], R]
) -> list[R]:
    """Apply a function to each item; return the results in order. On an object store several
    calls run at once."""
    roots = [planner.root for planner, _ in items]
    slowest = next((root for root in roots if root.has_requests), None)
    if slowest is None:
        return [look(planner, item) for planner, item in items]
    return map_over_root(slowest, lambda pair: look(*pair), items)


class _Planner:
    """Plans partition by partition; one whose files change meanwhile is planned anew.

    Checkpoints are read after the listings that they are for: whoever removes segments raises the
    log start first, so that no listing with some of them left is taken for the whole log.
    """

    def __init__(self, root: Root, request: ReadRequest, now_ms: int, remote: RemoteLogs) -> None:
        self.root = root
        self._request = request
        self._now_ms = now_ms
        self._checkpoints = Checkpoints()
        self._remote = remote

    def read_checkpoints(self) -> None:
        """Read what the root's files say of logs that were listed."""
        self._checkpoints = read_checkpoints(self.root, [LOG_START_FILE, CLEANER_FILE])

    def plan(self, listed: _PlannedLog, work: Callable[[_PlannedLog], T]) -> T | None:
        """Run work on a log's plan, again after changes; None if vanished."""
        for pause in _PAUSES:
            try:
                return work(listed)
            except ChangedWhileReadError:
                time.sleep(pause)
            again = _list_log(listed.partition, listed.location)
            if again is None:
                return None
            listed = again
            self.read_checkpoints()
        return work(listed)

    def offsets(self, reached: Mapping[TopicPartition, int], log: _PlannedLog) -> LogOffsets:
        """Return the offsets readable now in a log still being copied."""
        checkpointed = self._with_checkpoints(log)
        if log.partition not in reached:
            self._check_tier(checkpointed)
        bounds = _find_bounds(checkpointed, self._request, self._now_ms)
        hole = _find_hole_on_its_way(checkpointed, reached.get(log.partition, 0), self._now_ms)
        return bounds if hole is None else replace(bounds, end=min(hole, bounds.end))

    def bounds(self, log: _PlannedLog) -> LogOffsets:
        """Return where the read of a log starts and ends."""
        checkpointed = self._with_checkpoints(log)
        self._check_tier(checkpointed)
        return _find_bounds(checkpointed, self._request, self._now_ms)

    def ranges(self, log: _PlannedLog) -> list[ReadRange]:
        """Return the ranges of a log."""
        checkpointed = self._with_checkpoints(log)
        self._check_tier(checkpointed)
        whole = _find_whole(checkpointed, self._request)
        if whole is not None:
            return [whole]
        if self._request.is_of_whole_logs and not self._request.is_committed:
            extent = _Extent(start=checkpointed.log_start_offset, end=None)
        else:
            bounds = _find_bounds(checkpointed, self._request, self._now_ms)
            extent = _Extent(start=bounds.start, end=bounds.end)
        _check_lost_logs(checkpointed, extent, self._request)
        return [
            wanted
            for piece in _cut_by_offsets(checkpointed, extent, self._request.range_offsets)
            for wanted in _split(checkpointed, piece, self._request)
        ]

    def _check_tier(self, log: _PlannedLog) -> None:
        """Report offsets that are asked for and lie in the topic's tier."""
        local = log.segments[0].base_offset
        if log.tier_start is None or log.tier_start >= local:
            return
        bound = self._request.starting
        timestamp_ms = bound.timestamp_of(log.partition)
        offset = bound.offset_of(log.partition)
        if timestamp_ms is not None:
            # Where the first local record is the answer, an earlier one may be.
            is_local = _offset_for_time(log, timestamp_ms) != log.log_start_offset
        else:
            is_local = offset == LATEST or (offset is not None and offset >= local)
        if is_local:
            return
        first = log.tier_start if offset is None else max(offset, log.tier_start)
        uploads = self._remote.uploads(open_store(log.location), log.partition)
        error = OffsetsInTierError(log.location, first, local, uploads.tell(first, local))
        if self._request.fail_on_data_loss:
            raise error
        _log.warning("%s", error)

    def _with_checkpoints(self, log: _PlannedLog) -> _PlannedLog:
        """Return a log with its checkpoints' offsets; managed logs have their own."""
        if log.has_manifest:
            return log
        checkpointed = self._checkpoints.of(log.partition)
        start = checkpointed.log_start_offset or 0
        return replace(
            log,
            log_start_offset=max(start, log.log_start_offset),
            cleaner_offset=checkpointed.cleaner_offset,
            tier_start=self._remote.tier_start(
                open_store(log.location),
                log.partition,
                checkpointed,
                log.segments[0].base_offset,
                is_tiered=lambda: is_tiered_topic(log.location, log.partition.topic),
            ),
        )


def choose_places(request: ReadRequest) -> dict[TopicPartition, LogPlace]:
    """Return the place of each requested partition, in order of partitions."""
    places = find_places(request.paths)
    return {
        partition: _only_place(partition, places[partition])
        for partition in request.choice.choose(places, request.paths)
    }


def find_places(paths: Sequence[str]) -> dict[TopicPartition, list[LogPlace]]:
    """Return the places of each partition below some paths. A partition's own directory has only
    that partition.

    Args:
        paths: Paths or URLs of log directories or of single partition directories.
    """
    roots: dict[str, Root] = {}
    places: dict[TopicPartition, list[LogPlace]] = {}
    for path in paths:
        opened, names = find_root(path)
        root = roots.setdefault(opened.location, opened)
        for name in names:
            kind, partition = classify_directory(name)
            if partition is None or kind not in _READABLE:
                continue
            place = LogPlace(root=root, location=root.locate(name))
            of_partition = places.setdefault(partition, [])
            if all(place.location != other.location for other in of_partition):
                of_partition.append(place)
    return places


def _only_place(partition: TopicPartition, places: Sequence[LogPlace]) -> LogPlace:
    if len(places) > 1:
        raise ConfigError(
            "path",
            ", ".join(place.location for place in places),
            f"each has {partition}, whose records would come several times; read one of them",
        )
    return places[0]


def _validate_coverage(
    bound: Bound, partitions: Collection[TopicPartition], *, may_be_missing: bool
) -> None:
    """Check, as Spark, that offsets or times cover exactly the read partitions."""
    if bound.partitions is None:
        return
    missing = sorted(set(partitions).difference(bound.partitions))
    surplus = sorted(set(bound.partitions).difference(partitions))
    is_time = bound.timestamps_ms is not None
    if missing:
        reason = "no time is said" if is_time else "no offset is said; -2 is earliest, -1 latest"
        raise ConfigError(bound.option, ", ".join(map(str, missing)), f"read, but {reason}")
    if surplus and not may_be_missing:
        reason = f"{'a time' if is_time else 'an offset'} is said, but it is not read"
        raise ConfigError(bound.option, ", ".join(map(str, surplus)), reason)


def _list_log(partition: TopicPartition, location: str) -> _PlannedLog | None:
    store = open_store(location)
    checkpoints = manifest_checkpoints(store)
    settled = settle(store)
    segments = []
    for file in settled.list_files():
        base_offset = offset_of(file.name)
        if kind_of(file.name) != LOG_SUFFIX or base_offset is None:
            continue
        segments.append(
            ListedSegment(
                base_offset=base_offset,
                size_bytes=file.size_bytes,
                has_offset_index=segment_file(base_offset, OFFSET_INDEX_SUFFIX) in settled.files,
                has_time_index=segment_file(base_offset, TIME_INDEX_SUFFIX) in settled.files,
            )
        )
    if not segments:
        return None
    segments.sort(key=lambda segment: segment.base_offset)
    start = 0 if checkpoints is None else checkpoints.log_start_offset or 0
    return _PlannedLog(
        partition=partition,
        location=location,
        has_manifest=checkpoints is not None,
        store=settled,
        segments=tuple(segments),
        log_start_offset=max(start, segments[0].base_offset),
        cleaner_offset=None if checkpoints is None else checkpoints.cleaner_offset,
    )


def _find_whole(log: _PlannedLog, request: ReadRequest) -> ReadRange | None:
    """Return a whole log's range without its end; None for other reads.

    The end is the last stable offset. Where no producer snapshot tells it, finding it takes the
    headers of all batches. A reader of the whole log in one go has them anyway, so it finds the
    end.
    """
    if not (request.is_of_whole_logs and request.is_committed) or has_snapshots(log.store):
        return None
    if log.log_start_offset != log.segments[0].base_offset:
        return None  # the transaction that holds the end may have begun before it
    if any(find_lost_logs(log.store.list_files(), log.store.removed)):
        return None  # these matter if they are below the end
    extent = _Extent(start=log.log_start_offset, end=None)
    first = next(_split(log, extent, request), None)
    if first is None or first.end_offset is not None:
        return None
    return first if first.segments == tuple(_overlapping(log.segments, extent)) else None


def _find_bounds(log: _PlannedLog, request: ReadRequest, now_ms: int) -> LogOffsets:
    """Return the offsets to read, up to the log's end at most."""
    log_end = readable_end = find_end_offset(log.store, log.segments[-1])
    if request.is_committed:
        stable = find_last_stable_offset(
            log.store, now_ms=now_ms, log_start_checkpoint=log.log_start_offset
        )
        # An offset between the two is in the log, but a committed read returns nothing there yet.
        readable_end = min(stable, log_end)
    return LogOffsets(
        log_start_offset=log.log_start_offset,
        log_end_offset=log_end,
        start=_find_start(log, request, log_end, readable_end),
        end=min(_find_end(log, request, log_end), readable_end),
    )


def _find_hole_on_its_way(log: _PlannedLog, reached: int, now_ms: int) -> int | None:
    """Return the end before an early segment, None without one. A copy brought the segment
    before those that precede it."""
    # A name may have its number in another form than Kafka's.
    arrived = {
        offset_of(file.name): file.modified_ms
        for file in log.store.list_files()
        if kind_of(file.name) == LOG_SUFFIX
    }
    for segment, following in pairwise(log.segments):
        is_new = now_ms - arrived[following.base_offset] < _ON_ITS_WAY_MS
        if not is_new or following.base_offset <= max(reached, log.cleaner_offset or 0):
            continue
        end = find_end_offset(log.store, segment)
        if end < following.base_offset:
            _log.warning(
                "%s: waiting for offsets %d to %d: %s ends before them, %s came a short time ago",
                log.location,
                end,
                following.base_offset - 1,
                log_file(segment.base_offset),
                log_file(following.base_offset),
            )
            return end
    return None


def _find_start(log: _PlannedLog, request: ReadRequest, log_end: int, readable_end: int) -> int:
    bound = request.starting
    timestamp_ms = bound.timestamp_of(log.partition)
    if timestamp_ms is not None:
        start = _offset_for_time(log, timestamp_ms)
        if start is None and not bound.is_past_end_allowed:
            reason = f"{log.partition} has no record at or after it"
            raise ConfigError(bound.option, timestamp_ms, reason)
        return readable_end if start is None else start
    offset = bound.offset_of(log.partition)
    if offset == LATEST:
        return readable_end
    return _offset_in(log, offset, EARLIEST, log_end, request)


def _find_end(log: _PlannedLog, request: ReadRequest, log_end: int) -> int:
    bound = request.ending
    timestamp_ms = bound.timestamp_of(log.partition)
    if timestamp_ms is not None:
        end = _offset_for_time(log, timestamp_ms)
        return log_end if end is None else end
    return _offset_in(log, bound.offset_of(log.partition), LATEST, log_end, request)


def _offset_in(
    log: _PlannedLog, offset: int | None, default: int, log_end: int, request: ReadRequest
) -> int:
    """Return an offset that is asked for, within what the log has."""
    if offset is None:
        offset = default
    if offset in {EARLIEST, LATEST}:
        return log.log_start_offset if offset == EARLIEST else log_end
    if request.fail_on_data_loss and not log.log_start_offset <= offset <= log_end:
        raise OffsetOutOfRangeError(str(log.partition), offset, log.log_start_offset, log_end)
    return min(max(offset, log.log_start_offset), log_end)


def _offset_for_time(log: _PlannedLog, target_ms: int) -> int | None:
    return find_offset_for_time(
        log.store,
        log.segments,
        target_ms=target_ms,
        log_start_offset=log.log_start_offset,
        limits=DEFAULT_LIMITS,
    )


def _check_lost_logs(log: _PlannedLog, extent: _Extent, request: ReadRequest) -> None:
    """Report segments of which the listing shows that their records are lost."""
    for gap in find_lost_logs(log.store.list_files(), log.store.removed):
        if gap.reaches_into(extent.start, extent.end):
            # A sync in progress may have brought the newest indexes before their log.
            is_on_its_way = gap.end_offset is None and is_url(log.location)
            is_error = request.fail_on_data_loss and not is_on_its_way
            report_gap(gap, log.store.location, is_error=is_error)


def _cut_by_offsets(log: _PlannedLog, extent: _Extent, most: int | None) -> Iterator[_Extent]:
    """Cut an extent into pieces of at most so many offsets."""
    if most is None or extent.end is None:
        yield extent
        return
    if (extent.end - extent.start) // most > _MOST_RANGES:
        reason = f"would cut {log.partition} into more than {_MOST_RANGES:,} ranges"
        raise ConfigError("maxRecordsPerPartition", most, reason)
    for start in range(extent.start, extent.end, most):
        yield _Extent(start=start, end=min(start + most, extent.end))


def _split(log: _PlannedLog, extent: _Extent, request: ReadRequest) -> Iterator[ReadRange]:
    """Split and join segments into ranges of about equal size."""
    following = dict(pairwise(segment.base_offset for segment in log.segments))
    overlapping = _overlapping(log.segments, extent)
    for part in _parts(log.store, overlapping, following, request.range_bytes):
        start = max(part.start, extent.start)
        ends = [end for end in (part.end, extent.end) if end is not None]
        end = min(ends, default=None)
        if end is not None and start >= end:
            continue
        names = [
            name
            for segment in part.segments
            for name in (
                log_file(segment.base_offset),
                segment_file(segment.base_offset, OFFSET_INDEX_SUFFIX),
            )
        ]
        yield ReadRange(
            directory=log.store.location,
            partition=log.partition,
            segments=part.segments,
            files=log.store.pick(names),
            growing=log.store.growing,
            next_base_offset=following.get(part.segments[-1].base_offset),
            start_offset=start,
            end_offset=end,
            is_cut=part.end is not None,
            size_bytes=part.size_bytes,
            is_committed=request.is_committed,
            cleaned_to=log.cleaner_offset,
            fail_on_data_loss=request.fail_on_data_loss,
            columns=request.columns,
            keys=request.keys,
            limits=DEFAULT_LIMITS,
        )


def _overlapping(segments: Sequence[ListedSegment], extent: _Extent) -> list[ListedSegment]:
    """Return the segments in an extent, empty ones in the middle included."""
    floor = max((s.base_offset for s in segments if s.base_offset <= extent.start), default=0)
    return [
        segment
        for segment in segments
        if (segment.size_bytes or segment is not segments[-1])
        and segment.base_offset >= floor
        and (extent.end is None or segment.base_offset < max(extent.end, extent.start))
    ]


def _parts(
    store: LogStore,
    segments: Sequence[ListedSegment],
    following: Mapping[int, int],
    part_bytes: int,
) -> Iterator[_RangePart]:
    """Yield consecutive small segments together, and large ones in pieces.

    Args:
        following: By base offset, that of the next segment; the last one has none.
        part_bytes: How large a part may be.
    """
    group: list[ListedSegment] = []
    size = 0
    for segment in segments:
        cuts = _find_cuts(store, segment, following.get(segment.base_offset), part_bytes)
        if cuts or (size and size + segment.size_bytes > part_bytes):
            if group:
                yield _RangePart(segments=tuple(group), size_bytes=size)
            group, size = [], 0
        if cuts:
            piece_bytes = segment.size_bytes // (len(cuts) + 1)
            for start, end in zip([0, *cuts], [*cuts, None], strict=True):
                yield _RangePart(segments=(segment,), size_bytes=piece_bytes, start=start, end=end)
            continue
        group.append(segment)
        size += segment.size_bytes
    if size:
        yield _RangePart(segments=tuple(group), size_bytes=size)


def _find_cuts(
    store: LogStore, segment: ListedSegment, next_base_offset: int | None, part_bytes: int
) -> list[int]:
    cuts = find_cut_offsets(store, segment, part_bytes=part_bytes)
    if cuts and next_base_offset is None:
        # Bytes behind the last whole batch belong to the last piece alone.
        next_base_offset = find_end_offset(store, segment)
    return [cut for cut in cuts if next_base_offset is None or cut < next_base_offset]


# Follow a range across replaced files, like a broker's consumer.
#
# A query wants the records of one moment, and refuses where files have changed. A stream wants
# each offset once: what it has not read yet it takes from the files that are there then.

# A sync, and a nightly, replace a file once.
_MOST_CHANGES: Final = 5


def follow_range(
    wanted: ReadRange, request: ReadRequest, *, now_ms: int
) -> Iterator[pa.RecordBatch]:
    """Yield a range's records in offset order, across replaced files.

    Args:
        now_ms: The reader's clock, epoch milliseconds.
    """
    ranges = [wanted]
    reached = wanted.start_offset
    changes = 0
    while ranges:
        try:
            for next_offset, batch in read_on(ranges[0]):
                yield batch
                reached = next_offset
        except ChangedWhileReadError:
            changes += 1
            if changes > _MOST_CHANGES:
                raise
            ranges = plan_ranges(_rest(wanted, reached, request), now_ms=now_ms)
        else:
            reached = ranges.pop(0).end_offset or reached


def _rest(wanted: ReadRange, reached: int, request: ReadRequest) -> ReadRequest:
    """Return what is left to read of a range."""
    partition, end = wanted.partition, wanted.end_offset
    return replace(
        request,
        choice=TopicChoice(assigned=frozenset({partition}), option="assign"),
        starting=Bound(offsets={partition: reached}, option="startingOffsets"),
        ending=Bound() if end is None else Bound(offsets={partition: end}, option="endingOffsets"),
    )
