"""A managed root: read, held under its lease, changed by tasks.

Its lease is held from before anything is looked at until after the last commit: renewed by a
thread while the run lives, gone by itself some time after it died. Who comes meanwhile is refused
with the holder's name. What tasks commit is fenced: right before its one conditional PUT each of
them asks whether the lease is still this run's, and the manifest that it replaces has to be the
one that was planned from. So a run that lost its lease, or a task that was taken for dead, changes
nothing any more.

There is no marker of a clean shutdown here and there are no checkpoint files: where the next round
begins, and where a log starts, stand in the manifest that a commit writes.

What a task makes it uploads as new objects under the name of its attempt, which no manifest names
yet: an attempt that is repeated, or comes back from the dead, leaves objects that purge finds, and
nothing else. A commit that was done says so in its manifest, with its result. So a second attempt
of the same task, be it that the first one's answer was lost, finds it there and returns the same
row.
"""

import logging
import os
import shutil
import socket
import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any, Final, Self

from storage_core.clock import Clock, SystemClock
from storage_core.commit import commit
from storage_core.errors import (
    ChangedWhileReadError,
    ConditionFailedError,
    GuardRefusedError,
    StorageError,
    describe_failure,
)
from storage_core.filenames import (
    COMPANIONS_SUFFIX,
    LOG_SUFFIX,
    MANAGED_ROOT_FILE,
    TIME_INDEX_SUFFIX,
    TopicPartition,
    segment_file,
)
from storage_core.local_files import open_file
from storage_core.roots.managed_purge import ManagedPurge
from storage_core.roots.managed_undo import ManagedUndo
from storage_core.roots.root import (
    TOUCHED,
    HeldRoot,
    Prepare,
    Prepared,
    PurgeRequest,
)
from storage_core.store import LogStore, ManagedStore, ObjectStore, open_object_store
from storage_core.store.gaps import CopiedRange
from storage_core.store.generations import (
    GENERATION_MARK,
    Manifest,
    data_key,
    find_root,
    read_head,
    read_history,
)
from storage_core.store.lease import (
    DEFAULT_TTL_MS,
    Lease,
    LeaseProof,
    acquire_lease,
    read_lease,
    require_lease,
)
from storage_core.store.managed_store import (
    encode_location,
    last_timestamp,
    upload_companions,
    upload_file,
)
from storage_core.store.object_store import require_conditional_writes
from storage_core.store.open_objects import MANAGED_PREFIX
from storage_core.store.open_store import join_location, open_managed
from storage_core.temporary_folder import temporary_folder

_log: Final = logging.getLogger(__name__)


_WORK: Final = "work"
_ROW: Final = "row"
_OPERATIONS: Final = "operations"
# A manifest is read as a whole each time that its partition is opened.
_MOST_OPERATIONS: Final = 256 * 1024
# Set by Spark in each of its Python workers; what lies there goes when the executor ends.
_SPARK_LOCAL_DIRECTORIES: Final = "SPARK_LOCAL_DIRS"
# Of those that the holder makes itself.
_COMMITS_AT_ONCE: Final = 16
# A task does the segments of one partition after the other.
_PINNED_STORES: Final = 4


@dataclass(frozen=True, slots=True)
class ManagedRoot:
    """A managed root, on a local disk or an object store."""

    store: ObjectStore

    @property
    def location(self) -> str:
        """Its path or URL."""
        return self.store.url

    @property
    def has_manifests(self) -> bool:
        """Whether its partitions have manifests: they do."""
        return True

    @property
    def has_requests(self) -> bool:
        """Whether looks are requests to a store: they are."""
        return True

    def directories(self) -> list[str]:
        """Return the names of its folders that are not its own, sorted."""
        return sorted(name for name in self.store.list_folders() if not name.startswith("."))

    def read(self, name: str, *, limit_bytes: int) -> bytes | None:
        """Return None: a managed root has no file of a broker."""
        del name, limit_bytes
        return None

    def locate(self, directory: str) -> str:
        """Return the location of a partition."""
        return MANAGED_PREFIX + join_location(self.location, directory)

    def newest_write_ms(self) -> int:
        """Return when a run last took the lease; 0 if never."""
        lease = read_lease(self.store)
        return 0 if lease is None else lease[0].acquired_ms

    def purge_of(self, request: PurgeRequest, held: HeldRoot | None) -> ManagedPurge:
        """Return the purge of former generations, and of what attempts have left."""
        lease = held if isinstance(held, HeldManagedRoot) else None
        return ManagedPurge(self.location, request, lease)

    def hold(
        self, *, run_id: str, mark_clean: bool, is_alone: bool = True, trash: Path | None = None
    ) -> "HeldManagedRoot":
        """Return the root as a run holds it, under a lease. Nothing else concerns it."""
        del mark_clean, is_alone, trash
        return HeldManagedRoot(self.location, run_id=run_id)


@dataclass(frozen=True, slots=True, kw_only=True)
class ManagedAccess:
    """A managed root, under its lease."""

    run_id: str
    root: str
    lease: LeaseProof  # what tells the run's lease from another's

    def validate(self) -> None:
        """Check that the lease is still this run's."""
        now_ms = SystemClock().now_ms()
        require_lease(open_object_store(self.root), self.lease, now_ms=now_ms)

    def open(self, location: str) -> LogStore:
        """Open a generation of a partition for reading. A plan names its generation, which never
        changes: the tasks of one process share it."""
        return _open_pinned(location) if GENERATION_MARK in location else open_managed(location)

    def scratch(self, location: str) -> AbstractContextManager[Path]:
        """Return a folder on this executor's disks for the block."""
        del location
        return _local_scratch()

    def shared_folder(self, location: str) -> None:
        """Return None: each executor has its own disks."""
        del location

    def keep(
        self,
        location: str,
        attempt: str,
        base_offset: int,
        files: Mapping[str, str],
        gaps: Sequence[CopiedRange] = (),
    ) -> Mapping[str, str]:
        """Upload a segment's files: its log, and the others as one object. There may be none."""
        if not files:
            return files
        store = open_managed(location)
        names = {suffix: segment_file(base_offset, suffix) for suffix in files}
        small = {
            names[suffix]: _read_with_time(Path(path))
            for suffix, path in files.items()
            if suffix != LOG_SUFFIX
        }
        places = {
            LOG_SUFFIX: upload_file(
                store.objects,
                store.partition,
                attempt,
                Path(files[LOG_SUFFIX]),
                names[LOG_SUFFIX],
                largest_timestamp=last_timestamp(small[names[TIME_INDEX_SUFFIX]][0]),
                put=_with_gaps(store.objects, gaps) if gaps else None,
            )
        }
        key = data_key(store.partition, attempt, segment_file(base_offset, COMPANIONS_SUFFIX))
        entries = upload_companions(store.objects, key, small)
        for path in files.values():
            Path(path).unlink()
        return places | {
            suffix: encode_location(entries[name])
            for suffix, name in names.items()
            if suffix != LOG_SUFFIX
        }

    def commit(self, location: str, work: str, prepare: Prepare) -> dict[str, Any]:
        """Publish a partition's next generation, or return a former attempt's result."""
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

    def publish(self, store: ManagedStore, result: Mapping[str, Any]) -> None:
        """Commit the next generation of a partition, fenced by the lease.

        Args:
            result: What the commit came to, for whoever asks later.
        """
        store.publish(
            run_id=self.run_id,
            fencing_token=self.lease.token,
            fence=self.validate,
            result=result,
        )

    def _publish(
        self, store: ManagedStore, location: str, work: str, prepared: Prepared
    ) -> dict[str, Any]:
        if prepared.plan is not None:
            commit(prepared.plan, store)
        store.set_checkpoints(store.checkpoints.moved(prepared.checkpoints))
        try:
            self.publish(store, {_WORK: work, _ROW: _shortened(prepared.result)})
        except ConditionFailedError:
            # Another attempt of this task may have been a little faster.
            done = self._find_done(open_managed(location), location, work)
            if done is None:
                raise
            return done
        return prepared.result

    def _find_done(self, store: ManagedStore, location: str, work: str) -> dict[str, Any] | None:
        """Return the row of this work if its commit happened, else None. Then the store goes on
        with the generation that was found here."""
        current = read_head(store.objects, store.partition)
        head = current.manifest
        _, is_pinned, generation = location.partition(GENERATION_MARK)
        if not is_pinned:
            store.go_on_with(current)
            return self._row_of(head, work)
        planned = int(generation)
        if head.generation == planned:
            store.go_on_with(current)
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


class HeldManagedRoot:
    """One managed root under its lease; a context manager.

    Args:
        run_id: The run; its name, with host and process, is what others are told.
        ttl_ms: How long the lease outlives a run that died, milliseconds.
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

    def __exit__(self, *_error: object) -> None:
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
        """Always true: a commit is whole or absent, so nothing needs recovery."""
        return True

    @property
    def failure(self) -> StorageError | None:
        """Always None: no disk is taken out of a run here."""
        return None

    @property
    def access(self) -> ManagedAccess:
        """How tasks read and change its partitions."""
        return ManagedAccess(run_id=self._run_id, root=self._location, lease=self._lease.proof)

    def validate(self) -> None:
        """Check that the lease is still held."""
        self._lease.require_current()

    def begin_writing(self) -> None:
        """Check that the lease is still held; raises as ``validate`` does."""
        self.validate()

    def free_bytes(self) -> int:
        """Return the largest number: an object store names no limit."""
        return sys.maxsize

    def give_up(self, error: StorageError) -> None:
        """Raise the failure: no disk is taken out of a run here."""
        raise error

    def undo_of(self, run_id: str, folder: Path | None) -> ManagedUndo:
        """Return the undo of a run from former generations."""
        del folder
        return ManagedUndo(root=self, run_id=run_id)

    def allow_commits(self, directories: Iterable[str | Path]) -> None:
        """Check that the lease is still held. Each commit will check it again."""
        del directories
        self.validate()

    def settle_commits(self, points: Mapping[TopicPartition, int], *, is_whole: bool) -> None:
        """Do nothing: each commit wrote its own cleaner point. It did so, or did not happen."""
        del points, is_whole

    def write_cleaner_points(self, points: Mapping[TopicPartition, int]) -> None:
        """Write the cleaner points of some partitions, one commit each. Several are written at
        once: each waits for the store.

        Several at once: each waits for the store.
        """
        self._each(points, self._write_cleaner_point)

    def raise_cleaner_points(self, log_starts: Mapping[TopicPartition, int]) -> None:
        """Raise cleaner points below the log starts up to them. Errors are those of
        write_cleaner_points."""
        self._each(log_starts, self._raise_cleaner_point)

    def _each(
        self,
        offsets: Mapping[TopicPartition, int],
        move: Callable[[ManagedStore, int], None],
    ) -> None:
        def move_in(partition: TopicPartition, offset: int) -> None:
            move(ManagedStore(self._objects, partition, clock=self._clock), offset)

        with ThreadPoolExecutor(_COMMITS_AT_ONCE) as pool:
            for _ in pool.map(move_in, offsets.keys(), offsets.values()):
                pass

    def _write_cleaner_point(self, store: ManagedStore, point: int) -> None:
        if store.checkpoints.cleaner_offset != point:
            store.set_checkpoints(replace(store.checkpoints, cleaner_offset=point))
            self.publish(store)

    def _raise_cleaner_point(self, store: ManagedStore, log_start: int) -> None:
        point = store.checkpoints.cleaner_offset
        if point is not None and point < log_start:
            self._write_cleaner_point(store, log_start)

    def write_checkpoints(self, changes: Mapping[str, Mapping[TopicPartition, int | None]]) -> None:
        """Do nothing: the offsets are part of what each commit writes."""
        del changes

    def raise_log_starts(self, starts: Mapping[TopicPartition, int]) -> None:
        """Do nothing: the commit of a segment's deletion raises the log start."""
        del starts

    def settle_log_starts(self, entries: Mapping[TopicPartition, int | None]) -> None:
        """Do nothing: the commit of a segment's deletion raises the log start."""
        del entries

    def drop_entries(self, partitions: Collection[TopicPartition]) -> None:
        """Do nothing: the offsets of a partition went with its manifest."""
        del partitions

    def disown_marker(self) -> None:
        """Do nothing: there is no marker."""

    def own_marker(self) -> None:
        """Do nothing: there is no marker."""

    def claim_clean(self) -> None:
        """Do nothing: there is no marker."""

    def publish(self, store: ManagedStore) -> None:
        """Commit the next generation of a partition, fenced by the lease."""
        store.publish(run_id=self._run_id, fencing_token=self._lease.token, fence=self.validate)

    @property
    def fencing_token(self) -> int:
        """What tells this run's lease from former ones."""
        return self._lease.token

    @property
    def _lease(self) -> Lease:
        if self._held is None:
            raise GuardRefusedError("LEASE_NOT_HELD", f"{self._location}: the lease was not taken")
        return self._held


def holder_name(run_id: str) -> str:
    """Return a lease holder's name: its run, host and process. Others are told it."""
    return f"run {run_id} on {socket.gethostname()}, process {os.getpid()}"


@lru_cache(maxsize=_PINNED_STORES)
def _open_pinned(location: str) -> ManagedStore:
    return open_managed(location)


def _shortened(row: dict[str, Any]) -> dict[str, Any]:
    """Return a row for a manifest, without a long list of operations. The ledger has that."""
    if len(row.get(_OPERATIONS) or "") <= _MOST_OPERATIONS:
        return row
    return row | {_OPERATIONS: None}


def _with_gaps(objects: ObjectStore, gaps: Sequence[CopiedRange]) -> Callable[[str, str], str]:
    """Return what uploads a log with gaps."""
    from storage_core.store.s3_gaps import put_with_gaps  # noqa: PLC0415  # of an extra

    def put(key: str, path: str) -> str:
        return put_with_gaps(objects, key, path, gaps)

    return put


def _read_with_time(path: Path) -> tuple[bytes, int]:
    """Return a scratch file's content and modification time. The time is in epoch milliseconds."""
    with os.fdopen(open_file(path), "rb") as file:
        return file.read(), os.fstat(file.fileno()).st_mtime_ns // 1_000_000


@contextmanager
def _local_scratch() -> Iterator[Path]:
    """Return a temporary folder on this executor's disks for the block. Of the directories that
    Spark was given it is the one with the most room."""
    named = os.environ.get(_SPARK_LOCAL_DIRECTORIES, "").split(",")
    places = [Path(name) for name in named if name and Path(name).is_dir()]
    parent = max(places, key=lambda place: shutil.disk_usage(place).free, default=None)
    with temporary_folder("pylog-scratch-", parent) as folder:
        yield folder
