"""Plan and write plain directories of managed partitions.

The plan pins a generation: the one that a former, killed run had begun with, else the current one.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Final

import pyarrow as pa

from pylog_spark.outcomes import Reason, Status
from pylog_spark.schemas import Failure, MaterializedRow, PartitionName
from pylog_spark.tasks.ahead import map_ahead
from pylog_spark.tasks.listing import rows_of
from pylog_spark.tasks.message import attempt
from storage_core.errors import GuardRefusedError, PartitionNotFoundError
from storage_core.filenames import LOG_SUFFIX, TopicPartition, kind_of
from storage_core.maintenance.materialize import materialize_partition, read_pin
from storage_core.store import ManagedStore, open_object_store
from storage_core.store.generations import require_no_remains

_WINDOW_BYTES: Final = 16 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class MaterializeContext:
    """What every task is told: values only."""

    root: str  # path or URL of the managed root
    directory: str
    present: Mapping[str, int]  # generations that a finished run has left there, by partition


def plan_materialize(
    batches: Iterator[pa.RecordBatch], context: MaterializeContext
) -> Iterator[MaterializedRow]:
    """Plan the partitions to write; yield plans or reasons for none.

    Args:
        batches: Rows of ``schemas.PARTITION``.
        context: What every task is told.
    """

    def plan(row: dict[str, Any]) -> MaterializedRow:
        name = PartitionName(root=context.root, topic=row["topic"], partition=row["partition"])
        return _attempt(name, partial(_plan, row, context))

    return map_ahead(plan, rows_of(batches))


def write_partitions(
    items: Iterable[tuple[TopicPartition, int]], context: MaterializeContext
) -> Iterator[MaterializedRow]:
    """Write the directories of partitions.

    Args:
        context: What every task is told.
    """
    for partition, generation in items:
        name = PartitionName(root=context.root, **asdict(partition))
        yield _attempt(name, partial(_write, partition, generation, context))


def _attempt(
    name: PartitionName, work: Callable[[MaterializedRow], MaterializedRow]
) -> MaterializedRow:
    head = MaterializedRow(name=name, status=Status.FAILED.value)
    return attempt(head, work, name, refusal_of=_refusal_of)


def _refusal_of(error: Exception) -> str | None:
    return error.code if isinstance(error, GuardRefusedError) else None


def _write(
    partition: TopicPartition,
    generation: int,
    context: MaterializeContext,
    head: MaterializedRow,
) -> MaterializedRow:
    store = ManagedStore(open_object_store(context.root), partition, generation=generation)
    done = materialize_partition(store, Path(context.directory) / str(partition))
    row = _describe(store, head)
    return replace(row, status=Status.DONE.value, generation=done.generation)


def _plan(
    row: Mapping[str, Any], context: MaterializeContext, head: MaterializedRow
) -> MaterializedRow:
    if row["error_class"] is not None:
        failure = Failure(error_class=row["error_class"], error=row["error"])
        return replace(head, failure=failure)
    name = TopicPartition(row["topic"], row["partition"])
    pinned = read_pin(Path(context.directory) / str(name))
    store = ManagedStore(open_object_store(context.root), name, generation=pinned)
    skipped = Status.SKIPPED.value
    try:
        plan = _describe(store, head)
    except PartitionNotFoundError:
        if pinned is not None:
            raise
        require_no_remains(store.objects, name)
        return replace(head, status=skipped, reason=Reason.NOTHING_TO_MATERIALIZE.value)
    present = context.present.get(str(name))
    if present is None:
        return replace(plan, status=Status.PLANNED.value)
    if present == plan.generation:
        return replace(plan, status=skipped, reason=Reason.NOTHING_TO_MATERIALIZE.value)
    older = (
        f"the directory has generation {present}, the partition is at {plan.generation}; choose "
        "another directory"
    )
    reason = Reason.TARGET_IS_OLDER.value
    return replace(plan, status=skipped, reason=reason, failure=Failure(error=older))


def _describe(store: ManagedStore, head: MaterializedRow) -> MaterializedRow:
    manifest = store.manifest
    logs = [e.size_bytes for name, e in manifest.files.items() if kind_of(name) == LOG_SUFFIX]
    sizes = {e.key: max(e.start + e.size_bytes, 0) for e in manifest.files.values() if e.key}
    return replace(
        head,
        generation=manifest.generation,
        bytes=sum(logs),
        segments=len(logs),
        all_bytes=sum(entry.size_bytes for entry in manifest.files.values()),
        get_requests=sum(-(-size // _WINDOW_BYTES) for size in sizes.values()),
        checkpoints=manifest.checkpoints,
    )
