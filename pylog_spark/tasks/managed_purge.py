"""Purge partitions of a managed root; yield a row for each.

A partition in which nothing was to be purged has none.
"""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain
from typing import Any, Final

import pyarrow as pa

from pylog_spark.rows import rows_to_batches
from pylog_spark.schemas import PURGED, STEPS
from pylog_spark.tasks.ahead import map_ahead
from pylog_spark.tasks.listing import directory_location
from pylog_spark.tasks.purge_rows import Gone, purge_row
from storage_core.catalog.roles import Role
from storage_core.errors import StorageError
from storage_core.filenames import TopicPartition
from storage_core.roots.managed import ManagedAccess
from storage_core.store import ObjectStore, open_object_store
from storage_core.store.garbage import delete_garbage, find_garbage
from storage_core.store.purged import find_due

_SUPERSEDED: Final = "no generation that is kept names it"


@dataclass(frozen=True, slots=True, kw_only=True)
class ManagedPurge:
    """What the tasks of a purge are told.

    Attributes:
        root: Path or URL of the managed root.
        grace_start_ms: What is needed since then is kept, epoch milliseconds.
        seen_ms: What was written before has been looked at by a former purge, epoch milliseconds.
        access: The root under the run's lease; None in a dry run.
    """

    root: str
    grace_start_ms: int
    seen_ms: int
    access: ManagedAccess | None


def purge_partitions(
    stretches: Sequence[Sequence[TopicPartition]], purge: ManagedPurge
) -> Iterator[pa.RecordBatch]:
    """Purge partitions, several at once: a row of ``schemas.PURGED`` where something goes.

    Args:
        stretches: Partitions that one listing is asked for, as ``purged.find_due`` takes them.
        purge: What to keep.
    """
    objects = open_object_store(purge.root)
    due = chain.from_iterable(map_ahead(partial(_due, objects, purge), stretches))
    rows = map_ahead(partial(_row, objects, purge), due)
    yield from rows_to_batches(PURGED, (row for row in rows if row is not None))


def _due(
    objects: ObjectStore, purge: ManagedPurge, stretch: Sequence[TopicPartition]
) -> Sequence[TopicPartition]:
    times = {"seen_ms": purge.seen_ms, "grace_start_ms": purge.grace_start_ms}
    try:
        return list(find_due(objects, stretch, **times))
    except StorageError:
        return stretch  # each is asked for by itself, and its own row says what is wrong


def _row(
    objects: ObjectStore, purge: ManagedPurge, partition: TopicPartition
) -> dict[str, Any] | None:
    name = {
        "topic": partition.topic,
        "partition": partition.partition,
        "directory": directory_location(purge.root, Role.MANAGED, str(partition)),
    }
    row = purge_row(name, partial(_purge, objects, purge, partition), dry_run=purge.access is None)
    return row and row | {STEPS: json.dumps(row.get(STEPS, ()))}


def _purge(objects: ObjectStore, purge: ManagedPurge, partition: TopicPartition) -> Gone:
    garbage = find_garbage(objects, partition, grace_start_ms=purge.grace_start_ms)
    keys = garbage.keys()
    access = purge.access
    if access is not None:
        delete_garbage(objects, garbage, fencing_token=access.lease.token, fence=access.validate)
    steps = [{"operation": "DeleteObject", "name": key, "reason": _SUPERSEDED} for key in keys]
    return Gone(files=len(steps), size_bytes=garbage.size_bytes, steps=steps)
