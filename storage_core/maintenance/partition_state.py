"""The observed state of one partition, for decisions about it.

Observation has levels, each of them dearer than the one before. A state has what was observed and
nothing else: a question above that is an error, so that whoever decides either looks further or
says which bound he takes in place of the fact.
"""

import enum
from collections.abc import Collection, Iterable, Mapping
from contextlib import closing
from dataclasses import dataclass

from storage_core.checkpoint.checkpoints import PartitionCheckpoints
from storage_core.errors import ContradictedAgeError
from storage_core.filenames import (
    LOG_SUFFIX,
    OFFSET_INDEX_SUFFIX,
    TIME_INDEX_SUFFIX,
    kind_of,
    log_file,
    offset_of,
    segment_file,
)
from storage_core.formats.batch_v2 import NO_TIMESTAMP
from storage_core.formats.index_entries import TIME_INDEX_ENTRY
from storage_core.index.segment_indexes import TimeEntry, TimeIndex, read_last_entry
from storage_core.log.batch_search import ListedSegment, sample_times
from storage_core.log.loaded_log import LoadedLog
from storage_core.store.base import FileInfo, LogStore


class FactLevel(enum.IntEnum):
    """Depth of an observation, without reading records."""

    LISTING = 0  # names, sizes and times of files: a listing, or a manifest
    INDEX_TAILS = 1  # last entries of time indexes, twelve bytes each; manifests have them, too
    HEADERS = 2  # of batches, and the newest producer snapshot: what loading a log reads


class Fact(enum.Enum):
    """Facts that an observation may lack, with their levels."""

    NAMES = ("the names of its files", FactLevel.LISTING)
    TIMESTAMP = ("the largest timestamp", FactLevel.INDEX_TAILS)
    LOG_END = ("the log end offset", FactLevel.HEADERS)
    STABLE_OFFSET = ("the last stable offset", FactLevel.HEADERS)
    FIRST_BATCH = ("the timestamp of the first batch", FactLevel.HEADERS)

    @property
    def level(self) -> FactLevel:
        """How far one has to look for it."""
        return self.value[1]


class UnobservedError(ValueError):
    """A decision needs a fact that the state does not have."""

    def __init__(self, base_offset: int, fact: Fact) -> None:
        super().__init__(
            f"{fact.value[0]} of segment {base_offset} was not observed: that takes a look at "
            f"{fact.level.name.lower().replace('_', ' ')}"
        )
        self.base_offset, self.fact = base_offset, fact


@dataclass(frozen=True, slots=True, kw_only=True)
class ObservedSegment:
    """One segment."""

    base_offset: int  # lower bound of its offsets; names its files
    size_bytes: int
    modified_ms: int
    # Of the last time index entry, NO_TIMESTAMP where there is none; None if it was not observed.
    max_timestamp: int | None = None
    # Largest timestamp of the first batch, NO_TIMESTAMP where there is none; None if it was not
    # observed.
    first_timestamp: int | None = None

    @property
    def largest_timestamp(self) -> int:
        """Age of the newest record by the time index, else the file."""
        if self.max_timestamp is None:
            raise UnobservedError(self.base_offset, Fact.TIMESTAMP)
        return self.max_timestamp if self.max_timestamp > NO_TIMESTAMP else self.modified_ms

    @property
    def first_batch_timestamp(self) -> int:
        """Largest timestamp of the first batch."""
        if self.first_timestamp is None:
            raise UnobservedError(self.base_offset, Fact.FIRST_BATCH)
        return self.first_timestamp


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionState:
    """A partition, as far as it was observed."""

    location: str
    segments: tuple[ObservedSegment, ...]  # in order of base offsets, the active one last
    log_start_offset: int  # first offset that may be read
    # First offset not known to be on all in-sync replicas, within the log; None for the log's end.
    high_watermark: int | None = None
    # Of all files of the directory; None if only the log was loaded.
    file_names: frozenset[str] | None = None
    log_end: int | None = None  # offset of the next record; None if it was not observed
    # First offset that a committed read does not reach; None if it was not observed.
    stable_end: int | None = None

    @classmethod
    def of_listing(
        cls,
        location: str,
        files: Iterable[FileInfo],
        *,
        checkpoints: PartitionCheckpoints = PartitionCheckpoints(),
        max_timestamps: Mapping[int, int] | None = None,
    ) -> "PartitionState":
        """Return the state by a listing or manifest, perhaps without a segment.

        Args:
            checkpoints: Without a high watermark the log's end counts.
            max_timestamps: Last entries of time indexes, by base offset, as far as something else
                than the indexes tells them.
        """
        listed = {file.name: file for file in files}
        logs = {
            base: file
            for name, file in listed.items()
            if kind_of(name) == LOG_SUFFIX and (base := offset_of(name)) is not None
        }
        timestamps = max_timestamps or {}
        start = max(checkpoints.log_start_offset or 0, min(logs, default=0))
        watermark = checkpoints.high_watermark
        return cls(
            location=location,
            segments=tuple(
                ObservedSegment(
                    base_offset=base,
                    size_bytes=logs[base].size_bytes,
                    modified_ms=logs[base].modified_ms,
                    max_timestamp=timestamps.get(base),
                )
                for base in sorted(logs)
            ),
            log_start_offset=start,
            # It lies in the log, as in a broker that has loaded it.
            high_watermark=None if watermark is None else max(watermark, start),
            file_names=frozenset(listed),
        )

    @classmethod
    def of_log(cls, log: LoadedLog) -> "PartitionState":
        """Return what loading a log observes."""
        return cls(
            location=log.location,
            segments=tuple(
                ObservedSegment(
                    base_offset=segment.base_offset,
                    size_bytes=segment.size_bytes,
                    modified_ms=segment.modified_ms,
                    max_timestamp=segment.max_timestamp,
                    first_timestamp=segment.first_batch_timestamp,
                )
                for segment in log.segments
            ),
            log_start_offset=log.log_start_offset,
            high_watermark=log.high_watermark,
            log_end=log.log_end_offset,
            stable_end=log.last_stable_offset,
        )

    @property
    def active_segment(self) -> ObservedSegment:
        """The segment that takes appends."""
        return self.segments[-1]

    @property
    def size_bytes(self) -> int:
        """Bytes of all segments' records."""
        return sum(segment.size_bytes for segment in self.segments)

    @property
    def names(self) -> frozenset[str]:
        """Names of all files of the directory."""
        if self.file_names is None:
            raise UnobservedError(self.active_segment.base_offset, Fact.NAMES)
        return self.file_names

    @property
    def log_end_offset(self) -> int:
        """Offset of the next record."""
        if self.log_end is None:
            raise UnobservedError(self.active_segment.base_offset, Fact.LOG_END)
        return self.log_end

    @property
    def last_stable_offset(self) -> int:
        """First offset that a committed read does not reach."""
        if self.stable_end is None:
            raise UnobservedError(self.active_segment.base_offset, Fact.STABLE_OFFSET)
        return self.stable_end


# The ages of segments: what time indexes say of them, and whether their records agree.


def read_last_time(
    store: LogStore, names: Collection[str], base_offset: int, *, is_closed: bool
) -> tuple[TimeEntry, int]:
    """Return a time index's last entry and the file's length."""
    time_name = segment_file(base_offset, TIME_INDEX_SUFFIX)
    tail, size_bytes = b"", 0
    # A missing time index counts as an empty one, as for Kafka's loader.
    if time_name in names:
        with closing(store.open_file(time_name)) as reader:
            tail = read_last_entry(reader, TIME_INDEX_ENTRY, is_closed=is_closed)
            size_bytes = reader.size_bytes
    return TimeIndex.parse(base_offset, tail).last_entry, size_bytes


def check_segment_ages(
    store: LogStore,
    names: Collection[str],
    segments: Iterable[ObservedSegment],
    *,
    limit_ms: int,
) -> None:
    """Refuse segments of which an age says more than their records.

    Args:
        segments: Taken for older than the limit.
        limit_ms: The time from which on a record is too young, epoch milliseconds.
    """
    for segment in segments:
        if segment.size_bytes:
            _check_age(store, names, segment, limit_ms)


def _check_age(
    store: LogStore, names: Collection[str], segment: ObservedSegment, limit_ms: int
) -> None:
    base = segment.base_offset
    last, index_bytes = read_last_time(store, names, base, is_closed=True)
    listed = ListedSegment(
        base_offset=base,
        size_bytes=segment.size_bytes,
        has_offset_index=segment_file(base, OFFSET_INDEX_SUFFIX) in names,
        has_time_index=index_bytes > 0,
    )
    times = sample_times(store, listed, last.offset)
    file, position = log_file(base), 0
    if index_bytes:
        file = segment_file(base, TIME_INDEX_SUFFIX)
        position = max(index_bytes // TIME_INDEX_ENTRY.itemsize - 1, 0) * TIME_INDEX_ENTRY.itemsize
    actual = f"the last entry, {last.timestamp} ms of offset {last.offset}"
    if last.timestamp <= NO_TIMESTAMP:
        actual = f"no entry, and a file of {segment.modified_ms} ms"
    elif last.timestamp != times.at_offset and times.newest > NO_TIMESTAMP:
        held = "no batch" if times.at_offset is None else f"a batch of {times.at_offset} ms"
        raise ContradictedAgeError(
            f"{store.location}/{file}", position, f"{held} at offset {last.offset}", actual
        )
    # Older than the limit, not as old as it.
    if times.newest >= limit_ms:
        raise ContradictedAgeError(
            f"{store.location}/{file}",
            position,
            f"an entry for a batch of {times.newest} ms",
            actual,
        )
