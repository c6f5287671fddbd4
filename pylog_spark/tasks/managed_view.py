"""Describe a managed partition by its manifest, without reading files.

For every other kind of partition these functions say that nothing is known that way, so that what
asks them need not care where a partition is.
"""

from collections.abc import Mapping

from storage_core.checkpoint.checkpoint_files import (
    MAX_PARTITION_METADATA_BYTES,
    parse_partition_metadata,
)
from storage_core.checkpoint.checkpoints import PartitionCheckpoints
from storage_core.filenames import PARTITION_METADATA_FILE
from storage_core.maintenance.compaction.candidates import CleanRequest
from storage_core.maintenance.partition_state import PartitionState
from storage_core.store import LocalStore, LogStore, ManagedStore


def clean_request(
    checkpoints: PartitionCheckpoints, *, now_ms: int, high_watermark: int | None
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


def commits_checkpoints(store: LogStore) -> bool:
    """Whether a commit writes the partition's checkpoints along with its files."""
    return isinstance(store, ManagedStore)


def manifest_recovery_point(store: LogStore) -> int | None:
    """Return an offset surely reached by the log, or None.

    None where nothing says so.
    """
    return store.manifest.checkpoints.recovery_point if isinstance(store, ManagedStore) else None


def manifest_timestamps(store: LogStore) -> Mapping[int, int] | None:
    """Return segments' largest timestamps by base offset, or None if unknown."""
    return store.largest_timestamps() if isinstance(store, ManagedStore) else None


def manifest_state(store: LogStore, request: CleanRequest) -> PartitionState | None:
    """Return a partition's state by its manifest; None without a manifest.

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
    """Return whether a partition's topic id is the catalogue's.

    The catalogue's id is that of the topic that it knows by this name.

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
