"""Facts about a partition from its manifest, or else from files.

A caller need not care which kind of root a partition is in. Without a manifest the functions named
``manifest_...`` return None: nothing is known that way. The others ask the files then.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace

from storage_core.checkpoint.checkpoints import Checkpoints, PartitionCheckpoints
from storage_core.filenames import TopicPartition
from storage_core.store import LogStore, ManagedStore
from storage_core.store.log_identity import topic_id_of


def manifest_checkpoints(store: LogStore) -> PartitionCheckpoints | None:
    """Return the offsets in a partition's manifest; None without one.

    A commit writes them along with its files. Their recovery point says how far the partition was
    taken, not how much of it was ever verified: it is left out.
    """
    if isinstance(store, ManagedStore):
        return replace(store.manifest.checkpoints, recovery_point=None)
    return None


def partition_checkpoints(
    store: LogStore, partition: TopicPartition, root: Callable[[], Checkpoints]
) -> PartitionCheckpoints:
    """Return the checkpointed offsets of a partition.

    Args:
        root: Returns what the files of its root say; not called where a manifest says it.
    """
    checkpoints = manifest_checkpoints(store)
    return root().of(partition) if checkpoints is None else checkpoints


def manifest_recovery_point(store: LogStore) -> int | None:
    """Return the recovery point of a partition's manifest, or None. The log has surely reached
    that offset. None says that no such offset is known."""
    return store.manifest.checkpoints.recovery_point if isinstance(store, ManagedStore) else None


def manifest_timestamps(store: LogStore) -> Mapping[int, int] | None:
    """Return segments' largest timestamps by base offset, or None if unknown."""
    return store.largest_timestamps() if isinstance(store, ManagedStore) else None


def has_expected_topic_id(store: LogStore, expected: str | None) -> bool:
    """Return whether a partition's topic id is the catalogue's.

    The catalogue's id is that of the topic that it knows by this name. A partition without an id,
    or a catalogue without one, contradicts nothing.
    """
    if expected is None:
        return True
    topic_id = store.manifest.topic_id if isinstance(store, ManagedStore) else None
    topic_id = topic_id_of(store) if topic_id is None else topic_id
    return topic_id is None or topic_id == expected
