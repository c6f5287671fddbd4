"""Plan and write plain directories of managed partitions.

Each has one row of ``schemas.MATERIALIZED``.

The plan pins a generation: the one that a former, killed run had begun with, else the current one.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final

import pyarrow as pa

from pylog_spark.rows import rows_to_batches
from pylog_spark.schemas import MATERIALIZED, Reason, Status
from pylog_spark.tasks.ahead import map_ahead
from pylog_spark.tasks.failures import attempt_row, error_of
from pylog_spark.tasks.listing import rows_of
from storage_core.checkpoint.checkpoints import PartitionCheckpoints
from storage_core.errors import GuardRefusedError, PartitionNotFoundError
from storage_core.filenames import LOG_SUFFIX, TopicPartition, kind_of
from storage_core.maintenance.materialize import materialize_partition, read_pin
from storage_core.store import ManagedStore, open_object_store
from storage_core.store.generations import require_no_remains

_WINDOW_BYTES: Final = 16 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class MaterializeContext:
    """What every task is told: values only.

    Attributes:
        root: Path or URL of the managed root.
        directory: Path of the directory that receives the partitions.
        present: Generations that a finished run has left there, by partition.
    """

    root: str
    directory: str
    present: Mapping[str, int]


def plan_materialize(
    batches: Iterator[pa.RecordBatch], context: MaterializeContext
) -> Iterator[pa.RecordBatch]:
    """Plan the partitions to write; yield plans or reasons for none.

    Rows of ``schemas.PARTITION`` become planned rows.
    """
    planned = map_ahead(
        lambda row: _attempt(row, context, lambda row: _plan(row, context)), rows_of(batches)
    )
    yield from rows_to_batches(MATERIALIZED, planned)


def write_partition(
    topic: str, partition: int, generation: int, context: MaterializeContext
) -> dict[str, Any]:
    """Return the row of a partition whose directory has been written."""
    row = {"topic": topic, "partition": partition, "error_class": None}

    def write(_: Mapping[str, Any]) -> dict[str, Any]:
        name = TopicPartition(topic, partition)
        store = ManagedStore(open_object_store(context.root), name, generation=generation)
        done = materialize_partition(store, Path(context.directory) / str(name))
        return _describe(store) | {"status": Status.DONE.value, "generation": done.generation}

    return _attempt(row, context, write)


def _attempt(
    row: Mapping[str, Any],
    context: MaterializeContext,
    work: Callable[[Mapping[str, Any]], dict[str, Any]],
) -> dict[str, Any]:
    found = {"root": context.root, "topic": row["topic"], "partition": row["partition"]}
    return found | attempt_row(partial(work, row), _refusal_of)


def _refusal_of(error: Exception) -> str | None:
    return error.code if isinstance(error, GuardRefusedError) else None


def _plan(row: Mapping[str, Any], context: MaterializeContext) -> dict[str, Any]:
    failed = error_of(row)
    if failed is not None:
        return failed
    name = TopicPartition(row["topic"], row["partition"])
    pinned = read_pin(Path(context.directory) / str(name))
    store = ManagedStore(open_object_store(context.root), name, generation=pinned)
    try:
        found = _describe(store)
    except PartitionNotFoundError:
        if pinned is not None:
            raise
        require_no_remains(store.objects, name)
        return {"status": Status.SKIPPED, "reason": Reason.NOTHING_TO_MATERIALIZE}
    present = context.present.get(str(name))
    if present is None:
        return found | {"status": Status.PLANNED}
    if present == found["generation"]:
        return found | {"status": Status.SKIPPED, "reason": Reason.NOTHING_TO_MATERIALIZE}
    return found | {
        "status": Status.SKIPPED,
        "reason": Reason.TARGET_IS_OLDER,
        "error": f"the directory has generation {present}, the partition is at "
        f"{found['generation']}; choose another directory",
    }


def _describe(store: ManagedStore) -> dict[str, Any]:
    manifest = store.manifest
    logs = [e.size_bytes for name, e in manifest.files.items() if kind_of(name) == LOG_SUFFIX]
    sizes = {e.key: max(e.start + e.size_bytes, 0) for e in manifest.files.values() if e.key}
    return {
        "generation": manifest.generation,
        "bytes": sum(logs),
        "segments": len(logs),
        "all_bytes": sum(entry.size_bytes for entry in manifest.files.values()),
        "get_requests": sum(-(-size // _WINDOW_BYTES) for size in sizes.values()),
        **_offsets(manifest.checkpoints),
    }


def _offsets(checkpoints: PartitionCheckpoints) -> dict[str, int | None]:
    return {
        "log_start_offset": checkpoints.log_start_offset,
        "recovery_point": checkpoints.recovery_point,
        "high_watermark": checkpoints.high_watermark,
        "cleaner_offset": checkpoints.cleaner_offset,
    }
