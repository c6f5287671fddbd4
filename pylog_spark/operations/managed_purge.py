"""Purge of a managed root: generations and objects that no reader and no undo needs any more."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Final

from pylog_spark.operations.purge_rows import Gone, Row, purge_row
from pylog_spark.tasks.listing import TopicFilter, directory_location
from storage_core.catalog.roles import Role
from storage_core.filenames import TopicPartition
from storage_core.roots.managed import HeldManagedRoot
from storage_core.store import open_object_store
from storage_core.store.garbage import delete_garbage, delete_leftovers, find_garbage
from storage_core.store.managed_root import list_partitions
from storage_core.store.object_store import ObjectStore

_WORKERS: Final = 16
_SUPERSEDED: Final = "no generation that is kept names it"


def purge_managed(
    location: str, topics: TopicFilter, *, grace_start_ms: int, root: HeldManagedRoot | None
) -> Iterator[Row]:
    """Purge the partitions of a managed root.

    Args:
        location: Path or URL of the root.
        topics: Which topics.
        grace_start_ms: What is needed since then is kept, epoch milliseconds.
        root: The root under its lease; None for a dry run.

    Yields:
        Columns of ``schemas.RESULT`` of each partition in which something was to be purged.

    Raises:
        StorageError: The root cannot be listed, or what was left in it cannot be deleted.
    """
    objects = open_object_store(location)

    def purge(partition: TopicPartition) -> Row | None:
        name = {
            "root": location,
            "topic": partition.topic,
            "partition": partition.partition,
            "directory": directory_location(location, Role.MANAGED, str(partition)),
        }
        work = partial(_purge, objects, partition, grace_start_ms=grace_start_ms, root=root)
        return purge_row(name, work, dry_run=root is None)

    chosen = sorted(p for p in list_partitions(objects) if topics.admits(p.topic))
    with ThreadPoolExecutor(_WORKERS) as pool:
        yield from filter(None, pool.map(purge, chosen))
    if root is not None:
        root.begin_writing()
        delete_leftovers(objects, grace_start_ms=grace_start_ms)


def _purge(
    objects: ObjectStore,
    partition: TopicPartition,
    *,
    grace_start_ms: int,
    root: HeldManagedRoot | None,
) -> Gone:
    garbage = find_garbage(objects, partition, grace_start_ms=grace_start_ms)
    keys = garbage.keys()
    if root is not None:
        token = root.fencing_token
        delete_garbage(objects, garbage, fencing_token=token, fence=root.begin_writing)
    steps = [{"operation": "DeleteObject", "name": key, "reason": _SUPERSEDED} for key in keys]
    return Gone(files=len(steps), size_bytes=garbage.size_bytes, steps=steps)
