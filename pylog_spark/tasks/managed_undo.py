"""Undo a run in partitions of a managed root.

The next generation names the files of an old one.

Nothing is copied or read but manifests. A partition is only undone if its current generation is
the run's: what somebody committed since is not lost.

A task may be done twice: a generation that another attempt of this undo has made says so, and the
history still has what that attempt found. So the row is the same.
"""

import json
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

import pyarrow as pa

from pylog_spark.rows import rows_to_batches
from pylog_spark.schemas import STEPS, UNDONE, Reason, Status
from pylog_spark.tasks.ahead import map_ahead
from pylog_spark.tasks.listing import directory_location
from storage_core.catalog.roles import Role
from storage_core.errors import (
    ConditionFailedError,
    PartitionNotFoundError,
    describe_failure,
)
from storage_core.filenames import LOG_SUFFIX, TopicPartition, kind_of
from storage_core.roots.managed import ManagedAccess
from storage_core.store import ManagedStore, ObjectStore, open_object_store
from storage_core.store.generations import Head, read_head, read_history
from storage_core.store.manifest import Manifest

_UNDOES: Final = "undoes"


@dataclass(frozen=True, slots=True, kw_only=True)
class ManagedUndo:
    """What the tasks of an undo are told.

    Attributes:
        root: Path or URL of the managed root.
        run_id: The run that is undone.
        began_ms: It had committed nothing before, by whatever clock, epoch milliseconds.
        access: The root under the lease of the run that undoes; None in a dry run.
    """

    root: str
    run_id: str
    began_ms: int
    access: ManagedAccess | None

    def is_of(self, manifest: Manifest) -> bool:
        """Return whether an attempt of this undo made a generation."""
        access = self.access
        return access is not None and manifest.run_id == access.run_id and self.is_in(manifest)

    def is_in(self, manifest: Manifest) -> bool:
        """Return whether this or a former undo made a generation.

        It is an undo of the same run.
        """
        return manifest.result.get(_UNDOES) == self.run_id


def location_of(root: str, partition: TopicPartition) -> str:
    """Return what the rows of a partition call it."""
    return directory_location(root, Role.MANAGED, str(partition))


def undo_managed_partitions(
    partitions: Sequence[TopicPartition], undo: ManagedUndo
) -> Iterator[pa.RecordBatch]:
    """Undo a run in partitions, several at once; yield their rows.

    A partition that the run changed has a row of ``schemas.UNDONE``.

    Args:
        partitions: Any of the root.
        undo: The undo.
    """
    objects = open_object_store(undo.root)
    rows = map_ahead(partial(_row, objects, undo), partitions)
    yield from rows_to_batches(UNDONE, (row for row in rows if row is not None))


def _row(
    objects: ObjectStore, undo: ManagedUndo, partition: TopicPartition
) -> dict[str, Any] | None:
    """Undo one partition; None where the run changed nothing in it."""
    started = time.perf_counter()
    try:
        done = _undo(objects, undo, partition)
    except PartitionNotFoundError:
        return None
    except Exception as error:  # noqa: BLE001  # the row carries it; the others go on
        done = {"status": Status.FAILED.value, **describe_failure(error)}
    if done is None:
        return None
    took_ms = round((time.perf_counter() - started) * 1000)
    return {"directory": location_of(undo.root, partition), **done, "duration_ms": took_ms}


def _undo(
    objects: ObjectStore, undo: ManagedUndo, partition: TopicPartition
) -> dict[str, Any] | None:
    head = read_head(objects, partition)
    left = head.manifest
    is_done = undo.is_of(left)
    if is_done:
        # By an attempt that could not say so any more: this is what it found.
        left = read_history(objects, partition, left.generation - 1)
    elif undo.is_in(left):
        return {"status": Status.SKIPPED.value, "reason": Reason.ALREADY_UNDONE.value}
    if left.run_id != undo.run_id:
        return _later(objects, undo, left)
    before = left
    try:
        while before.run_id == undo.run_id and before.generation > 1:
            before = read_history(objects, partition, before.generation - 1)
    except PartitionNotFoundError as error:
        return _skipped(Reason.PURGED, f"the generation before the run is gone: {error}")
    if before.run_id == undo.run_id:
        why = "the run made the partition's first generation: there is none before it"
        return _skipped(Reason.CHANGED_SINCE_RUN, why)
    if undo.access is not None and not is_done:
        _publish(objects, head, before, undo, undo.access)
    status = Status.PLANNED if undo.access is None else Status.DONE
    restored = {
        "operation": "RestoreGeneration",
        "name": str(before.generation),
        "reason": f"as it was before run {undo.run_id}",
    }
    sizes = {**_sizes("before", left), **_sizes("after", before)}
    return {"status": status.value, STEPS: json.dumps([restored]), **sizes}


def _publish(
    objects: ObjectStore, head: Head, before: Manifest, undo: ManagedUndo, access: ManagedAccess
) -> None:
    """Publish the generation before the run as the next one.

    It is published once, whoever else is about it.
    """
    partition = head.manifest.partition
    store = ManagedStore(objects, partition)
    store.go_on_with(head)
    store.restore(before)
    try:
        access.publish(store, {_UNDOES: undo.run_id})
    except ConditionFailedError:
        # Another attempt of this task may have been a little faster.
        if not undo.is_of(read_head(objects, partition).manifest):
            raise


def _later(objects: ObjectStore, undo: ManagedUndo, head: Manifest) -> dict[str, Any] | None:
    """Return why a partition with later changes is not undone.

    None if the run did not change it.
    """
    manifest = head
    while manifest.generation > 1 and manifest.committed_ms >= undo.began_ms:
        try:
            manifest = read_history(objects, head.partition, manifest.generation - 1)
        except PartitionNotFoundError:
            return None
        if manifest.run_id == undo.run_id:
            why = (
                f"generation {head.generation} was committed by run {head.run_id} since: "
                f"expected generation {manifest.generation} of run {undo.run_id}"
            )
            return _skipped(Reason.CHANGED_SINCE_RUN, why)
    return None


def _skipped(reason: Reason, why: str) -> dict[str, Any]:
    return {"status": Status.SKIPPED.value, "reason": reason.value, "error": why}


def _sizes(when: str, manifest: Manifest) -> dict[str, int]:
    sizes = [f.size_bytes for name, f in manifest.files.items() if kind_of(name) == LOG_SUFFIX]
    return {f"bytes_{when}": sum(sizes), f"segments_{when}": len(sizes)}
