"""What every task of a run is told: values only, made on the driver, the same for all."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from pylog_spark.options import HighWatermarkSource
from pylog_spark.tasks.root_access import RootAccess
from storage_core.catalog.root_files import RootFiles, open_root
from storage_core.catalog.topic_catalog import TopicCatalog
from storage_core.checkpoint.checkpoint_files import (
    MAX_OFFSET_CHECKPOINT_BYTES,
    parse_offset_checkpoint,
)
from storage_core.config import CleanerConfig
from storage_core.errors import CheckpointError
from storage_core.filenames import (
    CLEANER_FILE,
    LOG_START_FILE,
    RECOVERY_POINT_FILE,
    REPLICATION_FILE,
    TopicPartition,
)
from storage_core.maintenance.throttler import Throttler, share_of

# The checkpoint files that a loader reads and a recovery writes.
RECOVERY_FILES: Final = (RECOVERY_POINT_FILE, LOG_START_FILE, REPLICATION_FILE)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunContext:
    """The values that observation and planning share.

    Attributes:
        run_id: Name of the run; part of the names of its scratch files.
        now_ms: The one clock of the run, taken on the driver: tasks have no clock of their own.
        hash_key: 16 bytes of key for the offset maps, fresh for each run.
        cleaner: Settings of compaction that do not belong to a topic.
        catalogs: What is known of the topics, by root.
        unclean_roots: Broker roots without the marker of a clean shutdown.
        high_watermark: Where the high watermark comes from.
        remote_roots: Roots whose broker kept segments in remote storage.
        expected_recoveries: Digests of the operations that a saved plan has, by directory: other
            recoveries are not made. None where any may be made.
        unrecovered: Partition directories that a recovery of this run did not bring in order.
        from_start: Whether a recovery reads every log from its start, whatever marker and
            recovery points say.
    """

    run_id: str
    now_ms: int
    hash_key: bytes = field(repr=False)
    cleaner: CleanerConfig
    catalogs: Mapping[str, TopicCatalog]
    unclean_roots: frozenset[str]
    high_watermark: HighWatermarkSource
    remote_roots: frozenset[str] = frozenset()
    expected_recoveries: Mapping[str, str] | None = None
    unrecovered: frozenset[str] = frozenset()
    from_start: bool = False

    def is_unclean(self, root: str, directory: str) -> bool:
        """Whether a partition needs recovery before anything else."""
        return root in self.unclean_roots or directory in self.unrecovered


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteContext:
    """The values that tasks need to write; a dry run has none.

    Attributes:
        run: What all tasks share.
        roots: How the partitions of each root are read and changed.
        tasks_at_once: How many tasks share the budget of bytes a second.
        wave: Number of the wave, part of the names of files that its tasks share.
    """

    run: RunContext
    roots: Mapping[str, RootAccess]
    tasks_at_once: int = 1
    wave: int = 0

    def throttler(self) -> Throttler:
        """Return what keeps one task within its share of the run's bytes a second."""
        rate = self.run.cleaner.io_max_bytes_per_second
        return Throttler(share_of(rate, tasks=self.tasks_at_once))


@dataclass(frozen=True, slots=True, kw_only=True)
class RootCheckpoints:
    """What the checkpoint files of one log directory say.

    Attributes:
        high_watermarks: ``replication-offset-checkpoint``.
        log_starts: ``log-start-offset-checkpoint``.
        cleaner_points: ``cleaner-offset-checkpoint``.
    """

    high_watermarks: Mapping[TopicPartition, int]
    log_starts: Mapping[TopicPartition, int]
    cleaner_points: Mapping[TopicPartition, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class RecoveryCheckpoints:
    """What the checkpoint files of one log directory say to a loader.

    Attributes:
        recovery_points: ``recovery-point-offset-checkpoint``.
        log_starts: ``log-start-offset-checkpoint``.
        high_watermarks: ``replication-offset-checkpoint``.
    """

    recovery_points: Mapping[TopicPartition, int]
    log_starts: Mapping[TopicPartition, int]
    high_watermarks: Mapping[TopicPartition, int]


def read_recovery_checkpoints(root: str) -> RecoveryCheckpoints:
    """Read the checkpoint files that recovery needs; one that is not there is empty.

    One that is malformed counts as empty too: without recovery points every segment is read. The
    run says so, and leaves such a file as it is.

    Raises:
        StorageError: One of them cannot be read.
    """
    found = {name: read_if_sound(root, name)[0] for name in RECOVERY_FILES}
    return RecoveryCheckpoints(
        recovery_points=found[RECOVERY_POINT_FILE],
        log_starts=found[LOG_START_FILE],
        high_watermarks=found[REPLICATION_FILE],
    )


def read_if_sound(root: str, name: str) -> tuple[dict[TopicPartition, int], str]:
    """Read one checkpoint file of a log directory.

    Returns:
        (entries, problem): no entries and what is wrong with it where it is malformed.

    Raises:
        StorageError: It cannot be read.
    """
    try:
        return read_offset_checkpoint(root, name), ""
    except CheckpointError as error:
        return {}, str(error)


def read_root_checkpoints(root: str | RootFiles) -> RootCheckpoints:
    """Read the checkpoint files of a root; one that is not there is empty.

    Raises:
        CheckpointError: One of them is malformed.
        StorageError: One of them cannot be read.
    """
    files = open_root(root) if isinstance(root, str) else root
    return RootCheckpoints(
        high_watermarks=read_offset_checkpoint(files, REPLICATION_FILE),
        log_starts=read_offset_checkpoint(files, LOG_START_FILE),
        cleaner_points=read_offset_checkpoint(files, CLEANER_FILE),
    )


def read_offset_checkpoint(root: str | RootFiles, name: str) -> dict[TopicPartition, int]:
    """Read one checkpoint file of a root; empty if it is not there.

    Args:
        root: The root, or its path or URL.
        name: Of the file.

    Raises:
        CheckpointError: It is malformed.
        StorageError: It cannot be read.
    """
    files = open_root(root) if isinstance(root, str) else root
    content = files.read(name, limit_bytes=MAX_OFFSET_CHECKPOINT_BYTES)
    if content is None:
        return {}
    return parse_offset_checkpoint(content, file=f"{files.location}/{name}")
