"""Purge a managed root of unneeded generations and objects.

No reader and no undo needs them any more.
"""

import json
from collections.abc import Iterable, Iterator
from itertools import groupby
from typing import Final

import pyarrow as pa

from pylog_spark.run.planning import are_looked_at_here, count_look_tasks
from pylog_spark.run.run import Run
from pylog_spark.schemas import PURGED, STEPS, Status
from pylog_spark.tasks.managed_purge import ManagedPurge, purge_partitions
from pylog_spark.tasks.purge_rows import Row
from storage_core.filenames import TopicPartition
from storage_core.roots.managed import HeldManagedRoot
from storage_core.store import open_object_store
from storage_core.store.garbage import delete_leftovers
from storage_core.store.listing import key_order
from storage_core.store.managed_root import list_partitions
from storage_core.store.purged import forget_purged, read_purged, record_purged

# Neighbours that one listing is asked for: so few that a task has several listings on their way,
# so many that partitions of a few segments fill its pages of 1,000 objects.
_IN_A_STRETCH: Final = 50
# What was done is on record after so many stretches at the latest.
_AT_ONCE: Final = 200


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
        seen_ms=read_purged(objects),
        access=None if root is None else root.access,
    )

    def work(stretches: list[list[TopicPartition]]) -> Iterator[pa.RecordBatch]:
        return purge_partitions(stretches, purge)

    if root is not None:
        root.begin_writing()
        forget_purged(objects)
    listed = list(list_partitions(objects))
    chosen = {partition for partition in listed if run.job.topics.admits(partition.topic)}
    stretches = list(_stretches(listed, chosen))
    is_all_seen = len(chosen) == len(listed)
    # Each delete asks for the lease first, so that tasks may do it wherever they look.
    is_look = are_looked_at_here(len(chosen))
    for first in range(0, len(stretches), _AT_ONCE):
        some = stretches[first : first + _AT_ONCE]
        tasks = count_look_tasks(len(some) * _IN_A_STRETCH, slots=engine.slots)
        units = [some[number::tasks] for number in range(min(tasks, len(some)))]
        purged = engine.collect(
            engine.spread(units, work, PURGED),
            PURGED,
            f"{run.job.title}: purge {location}",
            is_look=is_look,
        )
        for row in purged.sort_by([("topic", "ascending"), ("partition", "ascending")]).to_pylist():
            is_all_seen = is_all_seen and row["status"] == Status.DONE.value
            yield {"root": location, **row, STEPS: json.loads(row[STEPS])}
    if root is not None:
        root.begin_writing()
        delete_leftovers(objects, grace_start_ms=purge.grace_start_ms)
        if is_all_seen:
            now_ms = run.job.clock.now_ms()
            record_purged(objects, grace_start_ms=purge.grace_start_ms, now_ms=now_ms)


def _stretches(
    listed: Iterable[TopicPartition], chosen: set[TopicPartition]
) -> Iterator[list[TopicPartition]]:
    """Yield the chosen partitions in stretches of neighbours.

    Between those of one stretch the root has no other partition.
    """
    in_order = sorted(listed, key=lambda partition: key_order(str(partition)))
    for is_chosen, some in groupby(in_order, key=chosen.__contains__):
        neighbours = list(some) if is_chosen else []
        for first in range(0, len(neighbours), _IN_A_STRETCH):
            yield neighbours[first : first + _IN_A_STRETCH]
