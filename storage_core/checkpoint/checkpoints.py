"""Entries of a log directory's checkpoints, of all partitions and of one.

The one place that knows which files there are, and which offset of a partition each of them keeps.
A broker writes four of them into each log directory; in a managed root the same four offsets stand
in the manifest of each partition.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Final, Self

from storage_core.checkpoint.checkpoint_files import (
    MAX_OFFSET_CHECKPOINT_BYTES,
    parse_offset_checkpoint,
)
from storage_core.checkpoint.small_files import SmallFiles
from storage_core.errors import CheckpointError
from storage_core.filenames import (
    CLEANER_FILE,
    LOG_START_FILE,
    RECOVERY_POINT_FILE,
    REPLICATION_FILE,
    TopicPartition,
)
from storage_core.json_values import Count

# Each file, and the offset of a partition in it.
CHECKPOINT_FILES: Final[Mapping[str, str]] = {
    RECOVERY_POINT_FILE: "recovery_point",
    LOG_START_FILE: "log_start_offset",
    REPLICATION_FILE: "high_watermark",
    CLEANER_FILE: "cleaner_offset",
}
# Files that a loader reads and a recovery writes.
RECOVERY_FILES: Final = (RECOVERY_POINT_FILE, LOG_START_FILE, REPLICATION_FILE)
# Files on which retention and compaction depend, in logs that need no recovery.
UPKEEP_FILES: Final = (REPLICATION_FILE, LOG_START_FILE, CLEANER_FILE)


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionCheckpoints:
    """The checkpointed offsets of one partition; None for no entry."""

    log_start_offset: Count | None = None  # first offset that may be read
    # Up to it the log is on disk; in a manifest, up to it the log was taken.
    recovery_point: Count | None = None
    high_watermark: Count | None = None
    cleaner_offset: Count | None = None

    def start_in_tier(self, local_start: int) -> int | None:
        """Return a log start below the first local offset, else None. Kafka keeps such an entry
        of tiered logs alone: the offsets between lie in the tier."""
        start = self.log_start_offset
        return start if start is not None and start < local_start else None

    def moved(self, changes: Self) -> Self:
        """Return these offsets with changes; no recovery point below the log's start.

        Args:
            changes: None leaves an offset as it is.
        """
        entries = {name: getattr(changes, name) for name in CHECKPOINT_FILES.values()}
        moved = replace(self, **{name: at for name, at in entries.items() if at is not None})
        start, point = moved.log_start_offset, moved.recovery_point
        if start is None or point is None:
            return moved
        return replace(moved, recovery_point=max(point, start))


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoints:
    """What the checkpoint files of one log directory say."""

    # Offsets by file and partition; a file that was not read, or is not there, has none.
    entries: Mapping[str, Mapping[TopicPartition, int]] = field(default_factory=dict)
    # The fault of each malformed file, by file; such a file has no entries.
    problems: Mapping[str, CheckpointError] = field(default_factory=dict)

    def of(self, partition: TopicPartition) -> PartitionCheckpoints:
        """Return what they say of one partition."""
        return PartitionCheckpoints(
            **{
                offset: self.entries.get(file, {}).get(partition)
                for file, offset in CHECKPOINT_FILES.items()
            }
        )


def read_checkpoints(
    directory: SmallFiles, files: Iterable[str] = tuple(CHECKPOINT_FILES), *, strict: bool = True
) -> Checkpoints:
    """Read checkpoint files of a log directory; a missing file is empty.

    Args:
        strict: Whether a malformed file is an error; else it is told as a problem, and counts as
            empty.
    """
    entries: dict[str, dict[TopicPartition, int]] = {}
    problems: dict[str, CheckpointError] = {}
    for name in files:
        try:
            content = directory.read(name, limit_bytes=MAX_OFFSET_CHECKPOINT_BYTES)
            if content is not None:
                file = f"{directory.location}/{name}"
                entries[name] = parse_offset_checkpoint(content, file=file)
        except CheckpointError as error:
            if strict:
                raise
            problems[name] = error
    return Checkpoints(entries=entries, problems=problems)


def merge_entries(
    entries: Mapping[TopicPartition, int], changes: Mapping[TopicPartition, int | None]
) -> dict[TopicPartition, int]:
    """Return the entries of a file with changes; None removes an entry."""
    merged = {**entries, **changes}
    return {partition: offset for partition, offset in merged.items() if offset is not None}


def log_start_entry(log_start_offset: int, first_base_offset: int) -> int | None:
    """Return the log's entry in the log-start checkpoint; None for none.

    A log that begins at its first segment needs none; one whose first segment still holds deleted
    records in front does, or these would be back after a restart.
    """
    return log_start_offset if log_start_offset > first_base_offset else None
