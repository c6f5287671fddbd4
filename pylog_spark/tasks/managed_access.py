"""How a task reads and changes a partition of a managed root.

What a task makes it uploads as new objects under the name of its attempt, which no manifest names
yet: an attempt that is repeated, or comes back from the dead, leaves objects that purge finds, and
nothing else. The commit prepares the next manifest and publishes it by one conditional PUT. It is
fenced twice: the lease is asked for right before the PUT, and the manifest that is replaced has to
be the one that was planned from.

A commit that was done says so in its manifest, with its result. So a second attempt of the same
task, be it that the first one's answer was lost, finds it there and returns the same row.
"""

import os
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any, Final

from pylog_spark.tasks.failures import describe_failure
from pylog_spark.tasks.root_access import (
    TOUCHED,
    CheckpointChanges,
    Prepare,
    Prepared,
    local_scratch,
)
from storage_core.clock import SystemClock
from storage_core.commit import commit
from storage_core.errors import (
    ChangedWhileReadError,
    ConditionFailedError,
)
from storage_core.filenames import COMPANIONS_SUFFIX, LOG_SUFFIX, TIME_INDEX_SUFFIX, segment_file
from storage_core.local_files import open_file
from storage_core.maintenance.compaction.rewrite import CleanedGroup, ScratchFile
from storage_core.store import LogStore, ManagedStore, open_object_store
from storage_core.store.generations import GENERATION_MARK, read_head, read_history
from storage_core.store.lease import LeaseProof, require_lease
from storage_core.store.manifest import Checkpoints, Manifest, data_key
from storage_core.store.open_store import open_managed
from storage_core.store.uploads import (
    encode_location,
    last_timestamp,
    upload_companions,
    upload_file,
)

_WORK: Final = "work"
_ROW: Final = "row"
_OPERATIONS: Final = "operations"
# A manifest is read as a whole each time that its partition is opened.
_MOST_OPERATIONS: Final = 256 * 1024
# A task does the segments of one partition after the other.
_PINNED_STORES: Final = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class ManagedAccess:
    """A managed root, under its lease.

    Attributes:
        run_id: The run.
        root: Path or URL of the root.
        lease: What tells the run's lease from another's.
    """

    run_id: str
    root: str
    lease: LeaseProof

    def validate(self) -> None:
        """Check that the lease is still this run's.

        Raises:
            LeaseLostError: It ran out, or another run has it.
            StorageError: The store failed.
        """
        now_ms = SystemClock().now_ms()
        require_lease(open_object_store(self.root), self.lease, now_ms=now_ms)

    def open(self, location: str) -> LogStore:
        """Open a generation of a partition for reading.

        A plan names its generation, which never changes: the tasks of one process share it.
        """
        return _open_pinned(location) if GENERATION_MARK in location else open_managed(location)

    def scratch(self, location: str) -> AbstractContextManager[Path]:
        """Return a folder on this executor's disks for the time of a block."""
        del location
        return local_scratch()

    def keep(self, location: str, attempt: str, group: CleanedGroup) -> CleanedGroup:
        """Upload the files of a group: its log, and what goes with it as one object."""
        store = open_managed(location)
        base = group.base_offsets[0]
        sizes = {file.suffix: file.size_bytes for file in group.files}
        paths = {file.suffix: Path(file.path) for file in group.files}
        small = {
            segment_file(base, suffix): _read_with_time(path)
            for suffix, path in paths.items()
            if suffix != LOG_SUFFIX
        }
        newest = last_timestamp(small[segment_file(base, TIME_INDEX_SUFFIX)][0])
        places = {
            LOG_SUFFIX: upload_file(
                store.objects,
                store.partition,
                attempt,
                paths[LOG_SUFFIX],
                segment_file(base, LOG_SUFFIX),
                largest_timestamp=newest,
            )
        }
        key = data_key(store.partition, attempt, segment_file(base, COMPANIONS_SUFFIX))
        entries = upload_companions(store.objects, key, small)
        for suffix in paths:
            if suffix != LOG_SUFFIX:
                places[suffix] = encode_location(entries[segment_file(base, suffix)])
        for path in paths.values():
            path.unlink()
        files = tuple(
            ScratchFile(suffix=suffix, path=places[suffix], size_bytes=sizes[suffix])
            for suffix in paths
        )
        return replace(group, files=files)

    def commit(self, location: str, work: str, prepare: Prepare) -> dict[str, Any]:
        """Publish the next generation of a partition, or find that a former attempt did."""
        try:
            self.validate()
            store = open_managed(location)
            done = self._find_done(store, location, work)
            if done is not None:
                return done
            prepared = prepare(store)
            if prepared.plan is None:
                return prepared.result
            return self._publish(store, location, work, prepared)
        except Exception as error:  # noqa: BLE001  # the row carries it: nothing was touched
            return {TOUCHED: False, **describe_failure(error)}

    def _publish(
        self, store: ManagedStore, location: str, work: str, prepared: Prepared
    ) -> dict[str, Any]:
        if prepared.plan is not None:
            commit(prepared.plan, store)
        store.set_checkpoints(_moved(store.checkpoints, prepared.checkpoints))
        try:
            store.publish(
                run_id=self.run_id,
                fencing_token=self.lease.token,
                fence=self.validate,
                result={_WORK: work, _ROW: _shortened(prepared.result)},
            )
        except ConditionFailedError:
            # Another attempt of this task may have been a little faster.
            done = self._find_done(open_managed(location), location, work)
            if done is None:
                raise
            return done
        return prepared.result

    def _find_done(self, store: ManagedStore, location: str, work: str) -> dict[str, Any] | None:
        """Return the row of this work if its commit happened, None if nothing did.

        Raises:
            ChangedWhileReadError: Another commit replaced what the work was planned from.
        """
        head = read_head(store.objects, store.partition).manifest
        _, is_pinned, generation = location.partition(GENERATION_MARK)
        if not is_pinned:
            return self._row_of(head, work)
        planned = int(generation)
        if head.generation == planned:
            return None
        following = head
        if head.generation > planned + 1:
            following = read_history(store.objects, store.partition, planned + 1)
        row = self._row_of(following, work)
        if row is None:
            raise ChangedWhileReadError(
                location,
                f"generation {planned}",
                f"generation {following.generation}, committed by run {following.run_id}",
            )
        return row

    def _row_of(self, manifest: Manifest, work: str) -> dict[str, Any] | None:
        is_ours = manifest.run_id == self.run_id and manifest.result.get(_WORK) == work
        return dict(manifest.result[_ROW]) if is_ours else None


@lru_cache(maxsize=_PINNED_STORES)
def _open_pinned(location: str) -> ManagedStore:
    return open_managed(location)


def _moved(present: Checkpoints, changes: CheckpointChanges) -> Checkpoints:
    """Return checkpoints with some of them moved; none stays below the log's start."""
    start = changes.log_start_offset
    if start is None:
        start = present.log_start_offset
    point = present.recovery_point
    if point is not None and start is not None:
        point = max(point, start)
    cleaner = changes.cleaner_offset
    return replace(
        present,
        log_start_offset=start,
        recovery_point=point,
        cleaner_offset=present.cleaner_offset if cleaner is None else cleaner,
    )


def _shortened(row: dict[str, Any]) -> dict[str, Any]:
    """Return a row as a manifest keeps it: a long list of operations is left to the ledger."""
    if len(row.get(_OPERATIONS) or "") <= _MOST_OPERATIONS:
        return row
    return row | {_OPERATIONS: None}


def _read_with_time(path: Path) -> tuple[bytes, int]:
    """Return what is in a scratch file, and when it was modified, epoch milliseconds."""
    with os.fdopen(open_file(path), "rb") as file:
        return file.read(), os.fstat(file.fileno()).st_mtime_ns // 1_000_000
