"""Purge of a managed root: generations and objects that no reader and no undo needs any more."""

import json
from collections.abc import Iterator
from typing import Final

import pyarrow as pa

from pylog_spark.run.planning import are_looked_at_here, count_look_tasks
from pylog_spark.run.run import Run
from pylog_spark.schemas import PURGED, STEPS
from pylog_spark.tasks.managed_purge import ManagedPurge, purge_partitions
from pylog_spark.tasks.purge_rows import Row
from storage_core.filenames import TopicPartition
from storage_core.roots.managed import HeldManagedRoot
from storage_core.store import open_object_store
from storage_core.store.garbage import delete_leftovers
from storage_core.store.managed_root import list_partitions

# What was done is on record after so many at the latest.
_AT_ONCE: Final = 10_000


def purge_managed(run: Run, location: str) -> Iterator[Row]:
    """Purge the partitions of a managed root.

    Args:
        run: The run; unless it is a dry one it holds the root.
        location: Path or URL of the root.

    Yields:
        Columns of ``schemas.RESULT`` of each partition in which something was to be purged.

    Raises:
        StorageError: The root cannot be listed, or what was left in it cannot be deleted.
    """
    options, engine = run.job.options, run.engine
    objects = open_object_store(location)
    held = run.roots.get(location)
    root = held if isinstance(held, HeldManagedRoot) else None
    purge = ManagedPurge(
        root=location,
        grace_start_ms=options.now_ms - options.purge_after_ms,
        access=None if root is None else root.access,
    )

    def work(partitions: list[TopicPartition]) -> Iterator[pa.RecordBatch]:
        return purge_partitions(partitions, purge)

    chosen = sorted(p for p in list_partitions(objects) if run.job.topics.admits(p.topic))
    # Each delete asks for the lease first, so that tasks may do it wherever they look.
    is_look = are_looked_at_here(len(chosen))
    for first in range(0, len(chosen), _AT_ONCE):
        some = chosen[first : first + _AT_ONCE]
        tasks = count_look_tasks(len(some), slots=engine.slots)
        units = [some[number::tasks] for number in range(tasks)]
        purged = engine.collect(
            engine.spread(units, work, PURGED),
            PURGED,
            f"{run.job.title}: purge {location}",
            is_look=is_look,
        )
        for row in purged.sort_by([("topic", "ascending"), ("partition", "ascending")]).to_pylist():
            yield {"root": location, **row, STEPS: json.loads(row[STEPS])}
    if root is not None:
        root.begin_writing()
        delete_leftovers(objects, grace_start_ms=purge.grace_start_ms)
