"""What loading a log results in."""

from bisect import bisect_right
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass

from storage_core.checkpoint.checkpoints import EpochEntry
from storage_core.commit import CommitPlan, Operation
from storage_core.errors import CorruptRecordError
from storage_core.filenames import (
    OFFSET_INDEX_SUFFIX,
    TIME_INDEX_SUFFIX,
    TXN_INDEX_SUFFIX,
    log_file,
    segment_file,
)
from storage_core.formats.batch_v2 import NO_TIMESTAMP
from storage_core.formats.index_entries import OFFSET_INDEX_ENTRY, TIME_INDEX_ENTRY
from storage_core.index.segment_indexes import (
    AbortedTxn,
    TimeIndex,
    parse_transaction_index,
    read_last_entry,
)
from storage_core.json_values import Count, FileName, SystemText
from storage_core.log.batch_search import MAX_INDEX_BYTES, first_batch_timestamp
from storage_core.log.directory_view import DirectoryView
from storage_core.log.producer_snapshot import ProducerEntry

# One segment as a listing and its small files describe it.


@dataclass(frozen=True, slots=True)  # by place, too: a plan may have thousands
class SegmentState:
    """What is known of a segment without its records."""

    base_offset: int  # lower bound of its offsets; names its files
    # Name of the file that holds its records now. After a crash inside a swap this may be a
    # ``.swap`` file, which the load operations rename.
    log_file: str
    offset_index_file: str  # name of the file that holds its offset index now
    size_bytes: int
    modified_ms: int
    offset_index_bytes: int  # length of the offset index, whole entries only
    time_index_bytes: int  # length of the time index, whole entries only
    # Timestamp of the last time index entry, NO_TIMESTAMP without one; None if nobody asked for it.
    max_timestamp: int | None
    # Largest timestamp of the first batch, NO_TIMESTAMP where there is none or it was not asked
    # for.
    first_batch_timestamp: int
    aborted: tuple[AbortedTxn, ...]  # its transaction index
    has_txn_index: bool  # whether it has a transaction index file, an empty one included


def segments_from(base_offsets: Sequence[int], offset: int) -> Sequence[int]:
    """Return the segments to search for an offset, as Kafka chooses.

    Args:
        offset: Below the first segment it means all of them.
    """
    return base_offsets[max(0, bisect_right(base_offsets, offset) - 1) :]


def read_aborted(view: DirectoryView, base_offset: int) -> tuple[AbortedTxn, ...]:
    """Return the transaction index of a segment."""
    name = segment_file(base_offset, TXN_INDEX_SUFFIX)
    if name not in view:
        return ()
    return parse_transaction_index(name, base_offset, view.read(name, limit_bytes=MAX_INDEX_BYTES))


def describe_segment(
    view: DirectoryView,
    base_offset: int,
    *,
    needs_max_timestamp: bool,
    needs_first_timestamp: bool,
) -> SegmentState:
    """Return what a segment's listing and indexes say.

    Args:
        view: The partition directory; the segment has its indexes.
        needs_max_timestamp: Whether its time index is read.
        needs_first_timestamp: Whether its first batch is.
    """
    log_name = log_file(base_offset)
    time_name = segment_file(base_offset, TIME_INDEX_SUFFIX)
    times_bytes = view.source(time_name).size_bytes
    log = view.source(log_name)
    index = view.source(segment_file(base_offset, OFFSET_INDEX_SUFFIX))
    has_txn_index = segment_file(base_offset, TXN_INDEX_SUFFIX) in view
    entry_bytes = OFFSET_INDEX_ENTRY.itemsize
    return SegmentState(
        base_offset=base_offset,
        log_file=log.name,
        offset_index_file=index.name,
        size_bytes=log.size_bytes,
        modified_ms=log.modified_ms,
        offset_index_bytes=index.size_bytes // entry_bytes * entry_bytes,
        time_index_bytes=times_bytes - times_bytes % TIME_INDEX_ENTRY.itemsize,
        max_timestamp=(
            _last_timestamp(view, base_offset, time_name) if needs_max_timestamp else None
        ),
        first_batch_timestamp=(
            _first_batch_timestamp(view, log_name) if needs_first_timestamp else NO_TIMESTAMP
        ),
        aborted=read_aborted(view, base_offset) if has_txn_index else (),
        has_txn_index=has_txn_index,
    )


def _last_timestamp(view: DirectoryView, base_offset: int, time_name: str) -> int:
    """Return the timestamp of a time index's last entry, NO_TIMESTAMP without one."""
    with closing(view.open(time_name)) as reader:
        last = read_last_entry(reader, TIME_INDEX_ENTRY)
    return TimeIndex.parse(base_offset, last).last_timestamp


def _first_batch_timestamp(view: DirectoryView, log_name: str) -> int:
    """Return a segment's first batch's largest timestamp, NO_TIMESTAMP without one. A segment
    that begins with other bytes is loaded nevertheless: its timestamp may never be needed."""
    with closing(view.open(log_name)) as reader:
        try:
            return first_batch_timestamp(reader)
        except CorruptRecordError:
            return NO_TIMESTAMP


@dataclass(frozen=True, slots=True, kw_only=True)
class Cut:
    """Bytes of one file that recovery removes."""

    base_offset: Count
    file: FileName
    position: Count
    size_bytes: Count  # how many they are; 0 where a segment is removed that had none
    # How many of them are the zeros in which they end: a broker put these there ahead of its
    # batches, or a crash left them. They are no bytes of records.
    zero_bytes: Count
    first_offset: Count
    is_whole_segment: bool  # whether the segment is removed rather than cut
    reason: SystemText

    @property
    def lost_bytes(self) -> int:
        """Bytes of records."""
        return self.size_bytes - self.zero_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class LogRepairs:
    """What recovery had to do beyond reading."""

    cuts: tuple[Cut, ...] = ()  # the cuts, in file order
    rebuilt: tuple[int, ...] = ()  # base offsets of the segments whose indexes were built anew
    # Base offsets of the segments that were split because their offsets did not fit.
    split: tuple[int, ...] = ()
    scanned_bytes: int = 0

    @property
    def truncated_bytes(self) -> int:
        """Bytes by which files become shorter, as Kafka counts them."""
        return sum(cut.size_bytes for cut in self.cuts)

    @property
    def lost_bytes(self) -> int:
        """Bytes of records that are lost."""
        return sum(cut.lost_bytes for cut in self.cuts)

    @property
    def deleted_segments(self) -> int:
        """How many segments are removed whole."""
        return sum(cut.is_whole_segment for cut in self.cuts)


@dataclass(frozen=True, slots=True, kw_only=True)
class FollowerEnd:
    """The end of a log that was cut to follow a leader."""

    # Where the log ends once it is opened again; below the cut's offset if that lay inside of a
    # batch, which goes as a whole.
    log_end_offset: int
    clean_end_offset: int | None  # highest cleaner point that is still true; None where any is


@dataclass(frozen=True, slots=True, kw_only=True)
class LogBounds:
    """Where a log begins and ends."""

    log_start_offset: int  # first offset that may be read
    log_end_offset: int  # offset of the next record


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadChanges:
    """What loading and cleanly closing a log changes; the fields are those of ``LoadedLog``."""

    operations: tuple[Operation, ...]
    snapshot_offsets: frozenset[int]


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedLog(LogBounds):
    """A log that has been loaded."""

    location: str
    segments: tuple[SegmentState, ...]  # in order of base offsets, the active one last
    recovery_point: int
    high_watermark: int  # first offset that is not known to be on all in-sync replicas
    last_stable_offset: int  # first offset that a committed read does not reach
    producers: tuple[ProducerEntry, ...]  # live producers, in the order of their first appearance
    epochs: tuple[EpochEntry, ...]
    # Offsets of the producer snapshots, as the operations will leave them.
    snapshot_offsets: frozenset[int]
    # Kafka's changes of the directory on loading and cleanly closing this log.
    operations: tuple[Operation, ...]
    repairs: LogRepairs = LogRepairs()  # the recovery's repairs
    follower_end: FollowerEnd | None = None  # where it ends after its cuts; None without any

    @property
    def plan(self) -> CommitPlan:
        """The operations, for the executor."""
        return CommitPlan(location=self.location, operations=self.operations)

    @property
    def active_segment(self) -> SegmentState:
        """The segment that takes appends."""
        return self.segments[-1]

    @property
    def size_bytes(self) -> int:
        """Bytes of all segments' records."""
        return sum(segment.size_bytes for segment in self.segments)
