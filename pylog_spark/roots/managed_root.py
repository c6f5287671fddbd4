"""A managed root, for the time that a run works on it.

Its lease is held from before anything is looked at until after the last commit: renewed by a
thread while the run lives, gone by itself some time after it died. Who comes meanwhile is refused
with the holder's name. What tasks commit is fenced: right before its one conditional PUT each of
them asks whether the lease is still this run's, and the manifest that it replaces has to be the
one that was planned from. So a run that lost its lease, or a task that was taken for dead, changes
nothing any more.

There is no marker of a clean shutdown here and there are no checkpoint files: where the next round
begins, and where a log starts, stand in the manifest that a commit writes.
"""

import logging
import os
import socket
import sys
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from pylog_spark.tasks.managed_access import ManagedAccess
from storage_core.clock import Clock, SystemClock
from storage_core.errors import GuardRefusedError, StorageError
from storage_core.filenames import MANAGED_ROOT_FILE, TopicPartition
from storage_core.store import ManagedStore, ObjectStore, open_object_store
from storage_core.store.lease import DEFAULT_TTL_MS, Lease, acquire_lease, read_lease
from storage_core.store.managed_root import find_root
from storage_core.store.object_store import require_conditional_writes

_log: Final = logging.getLogger(__name__)


class ManagedRoot:
    """One managed root under its lease; a context manager.

    Args:
        location: Path or URL of the root.
        run_id: The run; its name, with host and process, is what others are told.
        ttl_ms: How long the lease outlives a run that died, milliseconds.
        clock: For the lease.
    """

    def __init__(
        self,
        location: str,
        *,
        run_id: str,
        ttl_ms: int = DEFAULT_TTL_MS,
        clock: Clock | None = None,
    ) -> None:
        self._location = location
        self._run_id = run_id
        self._ttl_ms = ttl_ms
        self._clock = clock or SystemClock()
        self._objects: ObjectStore = open_object_store(location)
        self._held: Lease | None = None

    def __enter__(self) -> Self:
        if find_root(self._objects) is None:
            raise GuardRefusedError(
                "NOT_A_MANAGED_ROOT",
                f"{self._location}: there is no {MANAGED_ROOT_FILE}; `pylog ingest` makes one",
            )
        require_conditional_writes(self._objects)
        self._held = acquire_lease(
            self._objects, holder=holder_name(self._run_id), ttl_ms=self._ttl_ms, clock=self._clock
        )
        self._held.keep_renewing()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._held is None:
            return
        try:
            self._held.release()
        except StorageError as problem:
            # What was committed is committed, and what went wrong before is what has to be heard.
            _log.warning(
                "%s: the lease was not given back, it ends by itself: %s", self._location, problem
            )

    @property
    def location(self) -> str:
        """Path or URL of the root."""
        return self._location

    @property
    def was_clean(self) -> bool:
        """Whether nothing has to be recovered: a commit is done as a whole, or not at all."""
        return True

    @property
    def failure(self) -> StorageError | None:
        """What it failed with: never anything, as no disk is taken out of a run here."""
        return None

    @property
    def access(self) -> ManagedAccess:
        """How tasks read and change its partitions."""
        return ManagedAccess(run_id=self._run_id, root=self._location, lease=self._lease.proof)

    def begin_writing(self) -> None:
        """Check that the lease is still held.

        Raises:
            LeaseLostError: It ran out, or another run has it.
        """
        self._lease.require_current()

    def free_bytes(self) -> int:
        """Return how much is free: an object store has no limit that could be asked for."""
        return sys.maxsize

    def allow_commits(self, directories: Iterable[str | Path]) -> None:
        """Check that the lease is still held; each commit will check it again."""
        del directories
        self._lease.require_current()

    def settle_commits(self, points: Mapping[TopicPartition, int], *, is_whole: bool) -> None:
        """Do nothing: each commit wrote where the next round begins, or did not happen."""
        del points, is_whole

    def write_cleaner_points(self, points: Mapping[TopicPartition, int]) -> None:
        """Say where the next round of compaction begins in some partitions, one commit each.

        Raises:
            LeaseLostError: The lease ran out, or another run has it.
            ConditionFailedError: Somebody else commits there, who has no lease.
            StorageError: The store failed.
        """
        for partition, point in points.items():
            store = ManagedStore(self._objects, partition, clock=self._clock)
            if store.checkpoints.cleaner_offset == point:
                continue
            store.set_checkpoints(replace(store.checkpoints, cleaner_offset=point))
            store.publish(
                run_id=self._run_id,
                fencing_token=self._lease.token,
                fence=self._lease.require_current,
            )

    def raise_cleaner_points(self, log_starts: Mapping[TopicPartition, int]) -> None:
        """Raise the cleaner points that lie below where logs start now, one commit each.

        Raises:
            LeaseLostError: The lease ran out, or another run has it.
            StorageError: The store failed.
        """
        points: dict[TopicPartition, int] = {}
        for partition, start in log_starts.items():
            known = ManagedStore(self._objects, partition, clock=self._clock).checkpoints
            if known.cleaner_offset is not None and known.cleaner_offset < start:
                points[partition] = start
        self.write_cleaner_points(points)

    def write_log_starts(self, entries: Mapping[TopicPartition, int | None]) -> None:
        """Do nothing: where a log starts is part of what each commit writes."""
        del entries

    def disown_marker(self) -> None:
        """Do nothing: there is no marker."""

    @property
    def _lease(self) -> Lease:
        if self._held is None:
            raise GuardRefusedError("LEASE_NOT_HELD", f"{self._location}: the lease was not taken")
        return self._held


def newest_write_ms(location: str) -> int:
    """Return when a run last took the lease of a managed root, 0 where none ever did.

    Raises:
        ManifestError: The lease is malformed.
        StorageError: The store failed.
    """
    found = read_lease(open_object_store(location))
    return 0 if found is None else found[0].acquired_ms


def holder_name(run_id: str) -> str:
    """Return what others are told of a run that holds a lease: its name, host and process."""
    return f"run {run_id} on {socket.gethostname()}, process {os.getpid()}"
