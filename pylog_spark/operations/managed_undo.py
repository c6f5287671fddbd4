"""Undo a run on managed roots.

Tasks look at the partitions, and undo those that it changed.
"""

import json
import re
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any, Final

import pyarrow as pa

from pylog_spark.run.planning import are_looked_at_here, count_look_tasks
from pylog_spark.run.run import Run
from pylog_spark.schemas import STEPS, UNDONE
from pylog_spark.tasks.managed_undo import ManagedUndo, location_of, undo_managed_partitions
from storage_core.filenames import TopicPartition
from storage_core.roots.managed import HeldManagedRoot
from storage_core.store import open_object_store
from storage_core.store.managed_root import list_partitions

# What was done is on record after so many partitions at the latest.
_AT_ONCE: Final = 10_000
_RUN_TIME: Final = re.compile(r"(\d{8}T\d{6}Z)-")
# Clocks of two machines may differ by so much.
_TOLERANCE_MS: Final = 3_600_000


def undo_managed(run: Run, location: str, run_id: str) -> Iterator[dict[str, Any]]:
    """Undo what a run did to the partitions of one managed root.

    Args:
        run: The undo; unless it is a dry one it holds the root.
        location: Path or URL of the root.
        run_id: The run that is undone.

    Yields:
        Columns of ``schemas.RESULT`` of each partition that the run changed, with the operation
        behind it.

    Raises:
        StorageError: The root cannot be listed.
    """
    engine = run.engine
    held = run.roots.get(location)
    undo = ManagedUndo(
        root=location,
        run_id=run_id,
        began_ms=_began_ms(run_id),
        access=held.access if isinstance(held, HeldManagedRoot) else None,
    )

    def work(partitions: list[TopicPartition]) -> Iterator[pa.RecordBatch]:
        return undo_managed_partitions(partitions, undo)

    listed = list_partitions(open_object_store(location))
    chosen = sorted(partition for partition in listed if run.job.topics.admits(partition.topic))
    # Each commit asks for the lease first, so that tasks may do it wherever they look.
    is_look = are_looked_at_here(len(chosen))
    for first in range(0, len(chosen), _AT_ONCE):
        some = chosen[first : first + _AT_ONCE]
        tasks = count_look_tasks(len(some), slots=engine.slots)
        undone = engine.collect(
            engine.spread([some[number::tasks] for number in range(tasks)], work, UNDONE),
            UNDONE,
            f"{run.job.title}: undo {run_id} in {location}",
            is_look=is_look,
        )
        rows = {row["directory"]: row for row in undone.to_pylist()}
        for each in some:
            row = rows.get(location_of(location, each))
            if row is not None:
                name = {"root": location, "topic": each.topic, "partition": each.partition}
                yield name | row | {STEPS: json.loads(row[STEPS] or "[]")}


def _began_ms(run_id: str) -> int:
    """Return before when a run cannot have committed anything, epoch milliseconds."""
    began = _RUN_TIME.match(run_id)
    if began is None:
        return 0
    at = datetime.strptime(began[1], "%Y%m%dT%H%M%SZ").replace(tzinfo=UTC)
    return round(at.timestamp() * 1000) - _TOLERANCE_MS
