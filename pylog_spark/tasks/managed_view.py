"""What the manifest of a managed partition tells without its files being read.

For every other kind of partition these functions say that nothing is known that way, so that what
asks them need not care where a partition is.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace

from pylog_spark.tasks.run_context import RecoveryCheckpoints, RootCheckpoints
from storage_core.checkpoint.checkpoint_files import (
    MAX_PARTITION_METADATA_BYTES,
    parse_partition_metadata,
)
from storage_core.filenames import PARTITION_METADATA_FILE, TopicPartition
from storage_core.maintenance.compaction.candidates import CleanRequest
from storage_core.maintenance.partition_state import PartitionState
from storage_core.store import LocalStore, LogStore, ManagedStore
from storage_core.store.manifest import Checkpoints


def partition_checkpoints(
    store: LogStore, partition: TopicPartition, root: Callable[[], RootCheckpoints]
) -> Checkpoints:
    """Return the checkpoints that hold for a partition, but for a broker's recovery point.

    Args:
        store: The partition.
        partition: Its name.
        root: Returns what the files of its root say; not called for a managed one, which has none.

    Raises:
        ManifestError: What is there is no manifest.
        StorageError: The store failed.
    """
    if isinstance(store, ManagedStore):
        return store.manifest.checkpoints
    files = root()
    return Checkpoints(
        log_start_offset=files.log_starts.get(partition),
        high_watermark=files.high_watermarks.get(partition),
        cleaner_offset=files.cleaner_points.get(partition),
    )


def clean_request(
    checkpoints: Checkpoints, *, now_ms: int, high_watermark: int | None
) -> CleanRequest:
    """Return what is asked of compaction.

    Args:
        checkpoints: Of the partition.
        now_ms: The run's clock, epoch milliseconds.
        high_watermark: That which counts; None for the log's end.
    """
    return CleanRequest(
        now_ms=now_ms,
        high_watermark=high_watermark,
        log_start_offset=checkpoints.log_start_offset,
        cleaner_checkpoint=checkpoints.cleaner_offset,
    )


def recovery_checkpoints(
    store: LogStore, partition: TopicPartition, root: Callable[[], RecoveryCheckpoints]
) -> Checkpoints:
    """Return what a loader is told of a partition, as `partition_checkpoints`.

    The recovery point of a managed root says how far it was filled, not what was ever verified:
    it is left out, so that every segment is read.
    """
    if isinstance(store, ManagedStore):
        return replace(store.manifest.checkpoints, recovery_point=None)
    files = root()
    return Checkpoints(
        log_start_offset=files.log_starts.get(partition),
        recovery_point=files.recovery_points.get(partition),
        high_watermark=files.high_watermarks.get(partition),
    )


def commits_checkpoints(store: LogStore) -> bool:
    """Whether a commit writes the partition's checkpoints along with its files."""
    return isinstance(store, ManagedStore)


def manifest_recovery_point(store: LogStore) -> int | None:
    """Return an offset that the log is known to reach, None where nothing says so."""
    return store.manifest.checkpoints.recovery_point if isinstance(store, ManagedStore) else None


def manifest_timestamps(store: LogStore) -> Mapping[int, int] | None:
    """Return the largest timestamps of segments by base offset, None where nothing tells them."""
    return store.largest_timestamps() if isinstance(store, ManagedStore) else None


def manifest_state(store: LogStore, request: CleanRequest) -> PartitionState | None:
    """Return a partition as its manifest describes it; None where there is no manifest.

    Args:
        store: The partition.
        request: What its checkpoints say.
    """
    timestamps = manifest_timestamps(store)
    if timestamps is None:
        return None
    return PartitionState.of_listing(
        store.location,
        store.list_files(),
        log_start_checkpoint=request.log_start_offset,
        high_watermark=request.high_watermark,
        max_timestamps=timestamps,
    )


def has_expected_topic_id(store: LogStore, expected: str | None) -> bool:
    """Whether a partition is that of the topic which the catalogue knows by this name.

    A partition without an id, or a catalogue without one, contradicts nothing.

    Raises:
        CheckpointError: Its ``partition.metadata`` is malformed.
        StorageError: The store failed.
    """
    if expected is None:
        return True
    if isinstance(store, ManagedStore) and store.manifest.topic_id is not None:
        return store.manifest.topic_id == expected
    if isinstance(store, LocalStore):
        is_there = store.has(PARTITION_METADATA_FILE)
    else:
        is_there = any(file.name == PARTITION_METADATA_FILE for file in store.list_files())
    if not is_there:
        return True
    content = store.read_file(PARTITION_METADATA_FILE, limit_bytes=MAX_PARTITION_METADATA_BYTES)
    file = f"{store.location}/{PARTITION_METADATA_FILE}"
    return parse_partition_metadata(content, file=file).topic_id == expected
