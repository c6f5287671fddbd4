"""Purge of a managed root: generations and objects that no reader and no undo needs any more."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Final

from pylog_spark.tasks.listing import TopicFilter
from storage_core.filenames import TopicPartition
from storage_core.roots.managed import HeldManagedRoot
from storage_core.store import open_object_store
from storage_core.store.garbage import delete_garbage, delete_leftovers, find_garbage
from storage_core.store.managed_root import list_partitions
from storage_core.store.object_store import ObjectStore

_WORKERS: Final = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class PurgedPartition:
    """What was purged of one partition, or would be.

    Attributes:
        partition: Which one.
        objects: Keys and URLs of the objects.
        size_bytes: Their bytes.
        error: What went wrong; None where nothing did.
    """

    partition: TopicPartition
    objects: tuple[str, ...] = ()
    size_bytes: int = 0
    error: Exception | None = None


def purge_managed(
    location: str, topics: TopicFilter, *, grace_start_ms: int, root: HeldManagedRoot | None
) -> Iterator[PurgedPartition]:
    """Purge the partitions of a managed root.

    Args:
        location: Path or URL of the root.
        topics: Which topics.
        grace_start_ms: What is needed since then is kept, epoch milliseconds.
        root: The root under its lease; None for a dry run.

    Raises:
        StorageError: The root cannot be listed, or what was left in it cannot be deleted.
    """
    objects = open_object_store(location)
    chosen = sorted(p for p in list_partitions(objects) if topics.admits(p.topic))
    work = partial(_purge, objects, grace_start_ms=grace_start_ms, root=root)
    with ThreadPoolExecutor(_WORKERS) as pool:
        yield from pool.map(work, chosen)
    if root is not None:
        root.begin_writing()
        delete_leftovers(objects, grace_start_ms=grace_start_ms)


def _purge(
    objects: ObjectStore,
    partition: TopicPartition,
    *,
    grace_start_ms: int,
    root: HeldManagedRoot | None,
) -> PurgedPartition:
    try:
        garbage = find_garbage(objects, partition, grace_start_ms=grace_start_ms)
        keys = garbage.keys()
        if root is not None:
            token = root.fencing_token
            delete_garbage(objects, garbage, fencing_token=token, fence=root.begin_writing)
    except Exception as error:  # noqa: BLE001  # the row carries it; the others go on
        return PurgedPartition(partition=partition, error=error)
    return PurgedPartition(partition=partition, objects=tuple(keys), size_bytes=garbage.size_bytes)
