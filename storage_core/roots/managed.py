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
import re
import shutil
import socket
import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import lru_cache, partial
from itertools import groupby
from pathlib import Path
from typing import Any, ClassVar, Final, Self

from storage_core.catalog.topic_filter import TopicFilter
from storage_core.clock import Clock, SystemClock
from storage_core.commit import commit
from storage_core.commit.purge import Purged
from storage_core.errors import (
    ChangedWhileReadError,
    ConditionFailedError,
    GuardRefusedError,
    PartitionNotFoundError,
    StorageError,
    describe_failure,
)
from storage_core.filenames import (
    COMPANIONS_SUFFIX,
    LOG_SUFFIX,
    MANAGED_ROOT_FILE,
    TIME_INDEX_SUFFIX,
    TopicPartition,
    kind_of,
    segment_file,
)
from storage_core.local_files import open_file
from storage_core.roots.root import (
    TOUCHED,
    HeldRoot,
    LeasedAccess,
    LeasedRoot,
    PartitionPurge,
    PartitionUndo,
    Prepare,
    Prepared,
    PurgeRequest,
    Stretch,
    Undone,
)
from storage_core.store import LogStore, ManagedStore, ObjectStore, open_object_store
from storage_core.store.copying import CopiedRange
from storage_core.store.garbage import (
    delete_garbage,
    delete_leftovers,
    find_due,
    find_garbage,
    forget_purged,
    read_purged,
    record_purged,
)
from storage_core.store.generations import (
    GENERATION_MARK,
    Head,
    Manifest,
    data_key,
    find_root,
    list_partitions,
    partition_location,
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
from storage_core.store.listing import key_order
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

# Undo a run in a managed root: publish former generations again.
#
# Nothing is copied or read but manifests. A partition is only undone if its current generation is
# the run's: what somebody committed since is not lost.
#
# A partition may be undone twice: a generation that another attempt of this undo has made says so,
# and the history still has what that attempt found. So the answer is the same.

# What was done is on record after so many partitions at the latest.
_UNDONE_AT_ONCE: Final = 10_000
_RUN_TIME: Final = re.compile(r"(\d{8}T\d{6}Z)-")
# Clocks of two machines may differ by so much.
_TOLERANCE_MS: Final = 3_600_000
_UNDOES: Final = "undoes"
_HEADS_AT_ONCE: Final = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class ManagedPartitionUndo(PartitionUndo):
    """The undo of a run in one partition of a managed root."""

    root: str
    run_id: str
    began_ms: int  # it had committed nothing before, by whatever clock, epoch milliseconds

    def is_in(self, manifest: Manifest) -> bool:
        """Return whether an undo of the run made a generation."""
        return manifest.result.get(_UNDOES) == self.run_id


@dataclass(frozen=True, slots=True, kw_only=True)
class ManagedUndo:
    """The undo of a run in one managed root."""

    root: LeasedRoot
    run_id: str

    @property
    def moves_files(self) -> bool:
        """Whether files are put back: they are only named again."""
        return False

    @property
    def check(self) -> Callable[[ManagedPartitionUndo], Undone | None]:
        """What tasks do to foretell the undo of a partition."""
        return _undo

    @property
    def apply(self) -> Callable[[ManagedPartitionUndo], Undone | None]:
        """What tasks do to undo a partition; each commit is fenced."""
        return partial(_undo, access=self.root.access)

    def parts(self, topics: TopicFilter) -> Iterator[Sequence[ManagedPartitionUndo]]:
        """Yield all partitions of the topics, by thousands."""
        location, began_ms = self.root.location, _began_ms(self.run_id)
        objects = open_object_store(location)
        listed = list_partitions(objects)
        partitions = sorted(partition for partition in listed if topics.admits(partition.topic))
        for first in range(0, len(partitions), _UNDONE_AT_ONCE):
            yield [
                ManagedPartitionUndo(
                    location=partition_location(objects, partition),
                    partition=partition,
                    root=location,
                    run_id=self.run_id,
                    began_ms=began_ms,
                )
                for partition in partitions[first : first + _UNDONE_AT_ONCE]
            ]

    def begin(
        self, part: Sequence[ManagedPartitionUndo], due: Sequence[ManagedPartitionUndo]
    ) -> None:
        """Do nothing: no commit depends on another."""
        del part, due

    def settle(
        self, due: Sequence[ManagedPartitionUndo], done: Sequence[ManagedPartitionUndo]
    ) -> None:
        """Do nothing: each commit was whole, or did not happen."""
        del due, done

    def end(self) -> Sequence[str]:
        """Return nothing: there is no marker of which to tell."""
        return ()


def newest_runs(location: str) -> dict[str, str]:
    """Return the runs that made the newest generations of a root's partitions, by their names.

    Returns:
        For each the run that an undo is about: itself, or the one that it undid.
    """
    objects = open_object_store(location)

    def read(partition: TopicPartition) -> tuple[str, str] | None:
        try:
            newest = read_head(objects, partition).manifest
        except PartitionNotFoundError:
            return None
        return newest.run_id, str(newest.result.get(_UNDOES, newest.run_id))

    with ThreadPoolExecutor(_HEADS_AT_ONCE) as pool:
        return dict(each for each in pool.map(read, list_partitions(objects)) if each is not None)


def _began_ms(run_id: str) -> int:
    """Return before when a run cannot have committed anything, epoch milliseconds."""
    began = _RUN_TIME.match(run_id)
    if began is None:
        return 0
    at = datetime.strptime(began[1], "%Y%m%dT%H%M%SZ").replace(tzinfo=UTC)
    return round(at.timestamp() * 1000) - _TOLERANCE_MS


def _undo(undo: ManagedPartitionUndo, access: LeasedAccess | None = None) -> Undone | None:
    """Undo one partition, or foretell it; None where the run changed nothing.

    Args:
        access: The root under the lease of the run that undoes; None to foretell.
    """
    objects = open_object_store(undo.root)
    try:
        head = read_head(objects, undo.partition)
        newest = head.manifest
        is_done = access is not None and newest.run_id == access.run_id and undo.is_in(newest)
        if is_done:
            # By an attempt that could not say so any more: this is what it found.
            newest = read_history(objects, undo.partition, newest.generation - 1)
    except PartitionNotFoundError:
        return None
    if undo.is_in(newest) and not is_done:
        return Undone(is_needed=False)
    if newest.run_id != undo.run_id:
        _check_unchanged(objects, undo, newest)
        return None
    before = newest
    try:
        while before.run_id == undo.run_id and before.generation > 1:
            before = read_history(objects, undo.partition, before.generation - 1)
    except PartitionNotFoundError as error:
        why = f"the generation before the run is gone: {error}"
        raise GuardRefusedError("PURGED", why) from error
    if before.run_id == undo.run_id:
        why = "the run made the partition's first generation: there is none before it"
        raise GuardRefusedError("CHANGED_SINCE_RUN", why)
    steps = []
    if access is not None:
        why = f"as it was before run {undo.run_id}"
        name = str(before.generation)
        steps.append({"operation": "RestoreGeneration", "name": name, "reason": why})
        if not is_done:
            _publish(objects, head, before, undo, access)
    sizes_before, sizes_after = _log_sizes(newest), _log_sizes(before)
    return Undone(
        is_needed=True,
        steps=steps,
        bytes_before=sum(sizes_before),
        bytes_after=sum(sizes_after),
        segments_before=len(sizes_before),
        segments_after=len(sizes_after),
    )


def _publish(
    objects: ObjectStore,
    head: Head,
    before: Manifest,
    undo: ManagedPartitionUndo,
    access: LeasedAccess,
) -> None:
    """Publish the generation before the run as the next one. It is published once, whoever else
    is about it."""
    store = ManagedStore(objects, undo.partition)
    store.go_on_with(head)
    store.restore(before)
    try:
        access.publish(store, {_UNDOES: undo.run_id})
    except ConditionFailedError:
        # Another attempt of this task may have been a little faster.
        now = read_head(objects, undo.partition).manifest
        if now.run_id != access.run_id or not undo.is_in(now):
            raise


def _check_unchanged(objects: ObjectStore, undo: ManagedPartitionUndo, head: Manifest) -> None:
    """Refuse a partition with changes later than the run's."""
    manifest = head
    while manifest.generation > 1 and manifest.committed_ms >= undo.began_ms:
        try:
            manifest = read_history(objects, undo.partition, manifest.generation - 1)
        except PartitionNotFoundError:
            return
        if manifest.run_id == undo.run_id:
            why = (
                f"generation {head.generation} was committed by run {head.run_id} since: "
                f"expected generation {manifest.generation} of run {undo.run_id}"
            )
            raise GuardRefusedError("CHANGED_SINCE_RUN", why)


def _log_sizes(manifest: Manifest) -> list[int]:
    return [f.size_bytes for name, f in manifest.files.items() if kind_of(name) == LOG_SUFFIX]


# Purge a managed root of unneeded generations and objects. No reader and no undo needs them any
# more.

# Neighbours that one listing is asked for: so few that a task has several listings on their way,
# so many that partitions of a few segments fill its pages of 1,000 objects.
_IN_A_STRETCH: Final = 50
# What was done is on record after so many stretches at the latest.
_AT_ONCE: Final = 200
_SUPERSEDED: Final = "no generation that is kept names it"


@dataclass(frozen=True, slots=True, kw_only=True)
class ManagedPartitionPurge(PartitionPurge):
    """A partition of a managed root in which objects may go."""

    partition: TopicPartition


@dataclass(frozen=True, slots=True, kw_only=True)
class _TaskFacts:
    """The facts that tasks need."""

    root: str
    grace_start_ms: int  # what is needed since then is kept, epoch milliseconds
    seen_ms: int  # what was written before has been looked at by a former purge, epoch milliseconds
    access: LeasedAccess | None  # the root under the run's lease; None to look only


class ManagedPurge:
    """The purge of one managed root.

    Args:
        held: The root under its lease; None to look only.
    """

    def __init__(self, location: str, request: PurgeRequest, held: LeasedRoot | None) -> None:
        self._location = location
        self._request = request
        self._held = held
        self._objects = open_object_store(location)
        self._are_all_asked = False
        self._facts = _TaskFacts(
            root=location,
            grace_start_ms=request.now_ms - request.grace_ms,
            seen_ms=read_purged(self._objects),
            access=None if held is None else held.access,
        )

    @property
    def is_here(self) -> bool:
        """Whether the files to purge lie on this host's disks. They do not: tasks reach them
        from anywhere."""
        return False

    @property
    def find_due(
        self,
    ) -> Callable[[Stretch[ManagedPartitionPurge]], Stretch[ManagedPartitionPurge]]:
        """Returns those of a stretch with objects that may go."""
        return partial(_find_due, facts=self._facts)

    @property
    def apply(self) -> Callable[[ManagedPartitionPurge], Purged]:
        """Deletes objects of a partition; each delete asks for the lease first."""
        return partial(_purge, facts=self._facts)

    def begin(self) -> None:
        """Forget the results of the last purge. This purge may not come to its end."""
        if self._held is not None:
            self._held.begin_writing()
            forget_purged(self._objects)

    def parts(self) -> Iterator[Sequence[Stretch[ManagedPartitionPurge]]]:
        """Yield runs of partitions that follow each other in the root's listing."""
        listed = list(list_partitions(self._objects))
        partitions = {each for each in listed if self._request.topics.admits(each.topic)}
        self._are_all_asked = len(partitions) == len(listed)
        in_order = sorted(listed, key=lambda partition: key_order(str(partition)))
        stretches = []
        for is_meant, some in groupby(in_order, key=partitions.__contains__):
            neighbours = [
                ManagedPartitionPurge(
                    location=partition_location(self._objects, partition),
                    partition=partition,
                )
                for partition in some
                if is_meant
            ]
            stretches += [
                neighbours[first : first + _IN_A_STRETCH]
                for first in range(0, len(neighbours), _IN_A_STRETCH)
            ]
        for first in range(0, len(stretches), _AT_ONCE):
            yield stretches[first : first + _AT_ONCE]

    def end(self, *, is_whole: bool, now_ms: int) -> Sequence[str]:
        """Delete what attempts have left; remember what was seen; return remarks."""
        if self._held is None:
            return ()
        self._held.begin_writing()
        grace_start_ms = self._facts.grace_start_ms
        remarks = [
            f"{self._location}: {remark}"
            for remark in delete_leftovers(self._objects, grace_start_ms=grace_start_ms)
        ]
        if is_whole and self._are_all_asked:
            record_purged(self._objects, grace_start_ms=grace_start_ms, now_ms=now_ms)
        return remarks


def _find_due(
    stretch: Stretch[ManagedPartitionPurge], facts: _TaskFacts
) -> Stretch[ManagedPartitionPurge]:
    by_partition = {each.partition: each for each in stretch}
    times = {"seen_ms": facts.seen_ms, "grace_start_ms": facts.grace_start_ms}
    try:
        due = find_due(open_object_store(facts.root), list(by_partition), **times)
        return [by_partition[partition] for partition in due]
    except StorageError:
        return stretch  # each is asked for by itself, and its own row says what is wrong


def _purge(purge: ManagedPartitionPurge, facts: _TaskFacts) -> Purged:
    objects, access = open_object_store(facts.root), facts.access
    garbage = find_garbage(objects, purge.partition, grace_start_ms=facts.grace_start_ms)
    keys = garbage.keys()
    if access is not None:
        delete_garbage(objects, garbage, fencing_token=access.lease.token, fence=access.validate)
    steps = [{"operation": "DeleteObject", "name": key, "reason": _SUPERSEDED} for key in keys]
    return Purged(files=len(steps), size_bytes=garbage.size_bytes, steps=steps)


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
    has_manifests: ClassVar = True
    has_requests: ClassVar = True

    @property
    def location(self) -> str:
        """Its path or URL."""
        return self.store.url

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

    def begin_writing(self, seen: Mapping[str, str] | None = None) -> None:
        """Check that the lease is still held; raises as ``validate`` does."""
        del seen
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
        once: each waits for the store."""
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
