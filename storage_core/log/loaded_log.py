"""What loading a log results in."""

from dataclasses import dataclass

from storage_core.checkpoint.checkpoint_files import EpochEntry
from storage_core.commit import CommitPlan, Operation
from storage_core.json_values import Count, FileName, SystemText
from storage_core.log.log_segment import SegmentState
from storage_core.log.producer_snapshot import ProducerEntry


@dataclass(frozen=True, slots=True, kw_only=True)
class Cut:
    """Bytes of one file that recovery removes.

    Attributes:
        base_offset: Base offset of the segment.
        file: Name of the file that has the bytes now.
        position: Where in the file they begin.
        size_bytes: How many they are; 0 where a segment is removed that had none.
        zero_bytes: How many of them are the zeros in which they end: a broker put these there ahead
            of its batches, or a crash left them. They are no bytes of records.
        first_offset: The first offset that the log does not have any more.
        is_whole_segment: Whether the segment is removed rather than cut.
        reason: Why.
    """

    base_offset: Count
    file: FileName
    position: Count
    size_bytes: Count
    zero_bytes: Count
    first_offset: Count
    is_whole_segment: bool
    reason: SystemText

    @property
    def lost_bytes(self) -> int:
        """Bytes of records."""
        return self.size_bytes - self.zero_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class LogRepairs:
    """What recovery had to do beyond reading.

    Attributes:
        cuts: The cuts, in file order.
        rebuilt: Base offsets of the segments whose indexes were built anew.
        split: Base offsets of the segments that were split because their offsets did not fit.
        scanned_bytes: Bytes of the segments that were read from end to end.
    """

    cuts: tuple[Cut, ...] = ()
    rebuilt: tuple[int, ...] = ()
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
    """The end of a log that was cut to follow a leader.

    Attributes:
        log_end_offset: Where the log ends once it is opened again; below the cut's offset if that
            lay inside of a batch, which goes as a whole.
        clean_end_offset: Highest cleaner point that is still true; None where any is.
    """

    log_end_offset: int
    clean_end_offset: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedLog:
    """A log that has been loaded.

    Attributes:
        location: Path or URL of the partition directory.
        segments: In order of base offsets, the active one last.
        log_start_offset: First offset that may be read.
        log_end_offset: Offset that the next record would get.
        recovery_point: First offset that is not known to be on the disk.
        high_watermark: First offset that is not known to be on all in-sync replicas.
        last_stable_offset: First offset that a committed read does not reach.
        producers: Live producers, in the order of their first appearance.
        epochs: Leader epochs.
        snapshot_offsets: Offsets of the producer snapshots, as the operations will leave them.
        operations: Kafka's changes of the directory on loading and cleanly closing this log.
        repairs: The recovery's repairs.
        follower_end: Where it ends after its cuts; None without any.
    """

    location: str
    segments: tuple[SegmentState, ...]
    log_start_offset: int
    log_end_offset: int
    recovery_point: int
    high_watermark: int
    last_stable_offset: int
    producers: tuple[ProducerEntry, ...]
    epochs: tuple[EpochEntry, ...]
    snapshot_offsets: frozenset[int]
    operations: tuple[Operation, ...]
    repairs: LogRepairs = LogRepairs()
    follower_end: FollowerEnd | None = None

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
