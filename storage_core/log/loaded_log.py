"""What loading a log results in."""

from dataclasses import dataclass

from storage_core.checkpoint.checkpoint_files import EpochEntry
from storage_core.commit import CommitPlan, Operation
from storage_core.json_values import Count, FileName, SystemText
from storage_core.log.log_segment import SegmentState
from storage_core.log.producer_snapshot import ProducerEntry


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
class LoadedLog:
    """A log that has been loaded."""

    location: str
    segments: tuple[SegmentState, ...]  # in order of base offsets, the active one last
    log_start_offset: int  # first offset that may be read
    log_end_offset: int
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
