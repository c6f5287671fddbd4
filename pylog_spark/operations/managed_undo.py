"""Undo a run on managed roots: the next generation names the files of the one before the run.

Nothing is copied or read but manifests. A partition is only undone if its current generation is
the run's: what somebody committed since is not lost.
"""

import re
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from typing import Any, Final

from pylog_spark.options import JobOptions
from pylog_spark.schemas import STEPS, Reason, Status
from pylog_spark.tasks.listing import TopicFilter
from storage_core.errors import PartitionNotFoundError, describe_failure
from storage_core.filenames import LOG_SUFFIX, TopicPartition, kind_of
from storage_core.roots.managed import HeldManagedRoot
from storage_core.store import open_object_store
from storage_core.store.generations import read_head, read_history
from storage_core.store.managed_root import list_partitions
from storage_core.store.managed_store import ManagedStore
from storage_core.store.manifest import Manifest
from storage_core.store.object_store import ObjectStore

# Each is mostly waiting for the store.
_WORKERS: Final = 16
_RUN_TIME: Final = re.compile(r"(\d{8}T\d{6}Z)-")
# Clocks of two machines may differ by so much.
_TOLERANCE_MS: Final = 3_600_000
_UNDOES: Final = "undoes"


def undo_managed(root: HeldManagedRoot, run_id: str, options: JobOptions) -> list[dict[str, Any]]:
    """Undo what a run did to the partitions of one managed root.

    Args:
        root: The root, under its lease unless this is a dry run.
        run_id: The run.
        options: Which topics, and whether this is a dry run.

    Returns:
        Columns of ``schemas.RESULT`` of each partition that the run changed, with the operation
        behind it.

    Raises:
        StorageError: The store failed.
    """
    topics = TopicFilter(topics=options.include, exclude=options.exclude)
    objects = open_object_store(root.location)
    chosen = [p for p in list_partitions(objects) if topics.admits(p.topic)]
    undo = _ManagedUndo(objects, root, run_id, dry_run=options.dry_run)
    with ThreadPoolExecutor(_WORKERS) as pool:
        found = list(pool.map(undo.row, sorted(chosen)))
    return [{"root": root.location, **row} for row in found if row is not None]


class _ManagedUndo:
    """The undo of one run in one root."""

    def __init__(
        self,
        objects: ObjectStore,
        root: HeldManagedRoot,
        run_id: str,
        *,
        dry_run: bool,
    ) -> None:
        self._objects = objects
        self._root = root
        self._run_id = run_id
        self._dry_run = dry_run
        began = _RUN_TIME.match(run_id)
        self._began_ms = 0
        if began is not None:
            at = datetime.strptime(began[1], "%Y%m%dT%H%M%SZ").replace(tzinfo=UTC)
            self._began_ms = round(at.timestamp() * 1000) - _TOLERANCE_MS

    def row(self, partition: TopicPartition) -> dict[str, Any] | None:
        """Undo one partition; None where the run changed nothing in it."""
        started = time.perf_counter()
        row: dict[str, Any] = {"topic": partition.topic, "partition": partition.partition}
        try:
            done = self._undo(partition)
        except PartitionNotFoundError:
            return None
        except Exception as error:  # noqa: BLE001  # the row carries it; the others go on
            done = {"status": Status.FAILED.value, **describe_failure(error)}
        if done is None:
            return None
        return row | done | {"duration_ms": round((time.perf_counter() - started) * 1000)}

    def _undo(self, partition: TopicPartition) -> dict[str, Any] | None:
        head = read_head(self._objects, partition).manifest
        if head.result.get(_UNDOES) == self._run_id:
            return {"status": Status.SKIPPED.value, "reason": Reason.ALREADY_UNDONE.value}
        if head.run_id != self._run_id:
            return self._later(head)
        before = head
        try:
            while before.run_id == self._run_id and before.generation > 1:
                before = read_history(self._objects, partition, before.generation - 1)
        except PartitionNotFoundError as error:
            return _skipped(Reason.PURGED, f"the generation before the run is gone: {error}")
        if before.run_id == self._run_id:
            why = "the run made the partition's first generation: there is none before it"
            return _skipped(Reason.CHANGED_SINCE_RUN, why)
        if not self._dry_run:
            store = ManagedStore(self._objects, partition, generation=head.generation)
            store.restore(before.generation)
            self._root.publish(store, {_UNDOES: self._run_id})
        status = Status.PLANNED if self._dry_run else Status.DONE
        sizes = {**_sizes("before", head), **_sizes("after", before)}
        restored = {
            "operation": "RestoreGeneration",
            "name": str(before.generation),
            "reason": f"as it was before run {self._run_id}",
        }
        return {"status": status.value, STEPS: [restored], **sizes}

    def _later(self, head: Manifest) -> dict[str, Any] | None:
        """Return why a partition that the run changed is not undone, None if it did not change."""
        manifest = head
        while manifest.generation > 1 and manifest.committed_ms >= self._began_ms:
            try:
                manifest = read_history(self._objects, head.partition, manifest.generation - 1)
            except PartitionNotFoundError:
                return None
            if manifest.run_id == self._run_id:
                why = (
                    f"generation {head.generation} was committed by run {head.run_id} since: "
                    f"expected generation {manifest.generation} of run {self._run_id}"
                )
                return _skipped(Reason.CHANGED_SINCE_RUN, why)
        return None


def _skipped(reason: Reason, why: str) -> dict[str, Any]:
    return {"status": Status.SKIPPED.value, "reason": reason.value, "error": why}


def _sizes(when: str, manifest: Manifest) -> dict[str, int]:
    sizes = [f.size_bytes for name, f in manifest.files.items() if kind_of(name) == LOG_SUFFIX]
    return {f"bytes_{when}": sum(sizes), f"segments_{when}": len(sizes)}
