"""A commit to a managed root, of a first generation and of a later one; and a lease.

Whoever reads sees the old generation or the new one, whole. The commit made again, by another
attempt, ends with the same bytes. The attempt that was stopped, were it to come back to life, does
not get through. And a purge deletes what was left, and nothing else.
"""

import shutil
from abc import abstractmethod
from collections.abc import Callable
from functools import partial
from itertools import count
from pathlib import Path

import pytest

from storage_core.checkpoint.checkpoints import PartitionCheckpoints
from storage_core.clock import ManualClock
from storage_core.commit import (
    CommitPlan,
    CopyRange,
    DeleteFile,
    PromoteFile,
    RenameFile,
    WriteFile,
    commit,
)
from storage_core.errors import ConditionFailedError, LeaseLostError, PartitionNotFoundError
from storage_core.store import ManagedStore, ObjectStore
from storage_core.store.garbage import find_garbage
from storage_core.store.lease import Lease, acquire_lease
from storage_core.store.local_objects import LocalObjectStore
from storage_core.store.managed_store import upload_file
from tests.crash.cells import Cell, WorkOnObjects
from tests.crash.interruptions import ALL, KILLS, POWER, Interruption, is_end
from tests.kit.faulty_store import Moment, SimulatedCrash
from tests.kit.memory_objects import MemoryObjectStore
from tests.kit.wrapped_objects import FaultyObjects, kind_of_key
from tests.storage_core.store.managed_homes import FILES, NOW_MS, PARTITION, contents

FIRST, SECOND = "00000000000000000000.log", "00000000000000000042.log"
CLEANED = b"both segments, cleaned" * 1000
AFTER = {
    FIRST: CLEANED,
    "00000000000000000000.index": b"index of both",
    "00000000000000000000.timeindex": (1_700_000_000_005).to_bytes(8, "big") + bytes(4),
    "00000000000000000000.txnindex": b"",
    "00000000000000000100.log": b"second segment" * 5,
    "leader-epoch-checkpoint": b"0\n1\n0 100\n",
}
TTL_MS = 10_000
GRACE_MS = 1000
# What a commit changes: the log by its task; companions, epochs; history, manifest.
CHANGES = ("put_file", "put", "put", "put_if_absent", "put_if_match")


def create(objects: ObjectStore, clock: ManualClock) -> None:
    """Commit generation 1, of which the segments are."""
    store = ManagedStore(objects, PARTITION, attempt_id="first", is_new=True, clock=clock)
    for name, content in FILES.items():
        store.write_file(name, content, modified_ms=NOW_MS)
    store.publish(run_id="run-1", fencing_token=1)


def attempt(
    objects: ObjectStore,
    folder: Path,
    attempt_id: str,
    clock: ManualClock,
    *,
    generation: int | None = None,
) -> ManagedStore:
    """Do what a run does to the partition: upload, plan, change; all but the commit."""
    scratch = folder / attempt_id
    scratch.mkdir()
    (scratch / "cleaned").write_bytes(CLEANED)
    (scratch / "index").write_bytes(AFTER["00000000000000000000.index"])
    (scratch / "time").write_bytes(AFTER["00000000000000000000.timeindex"])
    (scratch / "txn").write_bytes(b"")
    uploaded = upload_file(objects, PARTITION, f"task-{attempt_id}", scratch / "cleaned", FIRST)
    store = ManagedStore(
        objects, PARTITION, generation=generation, attempt_id=attempt_id, clock=clock
    )
    names = [
        FIRST,
        *(f"00000000000000000000.{kind}" for kind in ("index", "timeindex", "txnindex")),
    ]
    paths = [uploaded, *(str(scratch / name) for name in ("index", "time", "txn"))]
    operations = [
        *(
            PromoteFile(scratch_path=path, name=f"{name}.cleaned", size_bytes=0, reason="test")
            for name, path in zip(names, paths, strict=True)
        ),
        *(
            RenameFile(source=f"{name}.cleaned", target=f"{name}.swap", reason="test")
            for name in names
        ),
        CopyRange(
            source=SECOND,
            start=0,
            size_bytes=len(AFTER["00000000000000000100.log"]),
            target="00000000000000000100.log",
            modified_ms=5,
            reason="test",
        ),
        *(DeleteFile(name=name, reason="test") for name in FILES),
        *(RenameFile(source=f"{name}.swap", target=name, reason="test") for name in names),
        WriteFile(
            name="leader-epoch-checkpoint",
            content=AFTER["leader-epoch-checkpoint"],
            reason="test",
        ),
    ]
    commit(CommitPlan(location=store.location, operations=tuple(operations)), store)
    store.set_checkpoints(PartitionCheckpoints(log_start_offset=0, cleaner_offset=100))
    return store


def publish(store: ManagedStore, token: int, fence: Callable[[], None] | None = None) -> None:
    store.publish(run_id=f"run-{token}", fencing_token=token, fence=fence)


def read(objects: ObjectStore) -> dict[str, bytes]:
    return contents(ManagedStore(objects, PARTITION))


def check_purge(objects: ObjectStore, clock: ManualClock) -> None:
    clock.advance(GRACE_MS)
    garbage = find_garbage(objects, PARTITION, grace_start_ms=clock.now_ms())
    stops = FaultyObjects(objects, stop_at=0, moment=Moment.TORN)
    with pytest.raises(SimulatedCrash):
        stops.delete(garbage.keys())
    assert read(objects) == AFTER
    objects.delete(find_garbage(objects, PARTITION, grace_start_ms=clock.now_ms()).keys())
    assert read(objects) == AFTER
    head = ManagedStore(objects, PARTITION).manifest
    needed = {entry.key for entry in head.files.values() if entry.key}
    left = {info.key for info in objects.list(f"{PARTITION}/data/")}
    assert left == needed


class WorkOnNewRoot(WorkOnObjects):
    """Work on a root that is made anew for each stop, in memory or on a disk."""

    def __init__(self, store: str, folder: Path, way: Interruption) -> None:
        self._folder, self._way, self._is_on_disk = folder, way, store == ON_DISK
        self._numbers = count()
        self.disk = folder / "disk"

    def reset(self) -> None:
        self.clock = ManualClock(NOW_MS)
        if self._is_on_disk:
            shutil.rmtree(self.disk, ignore_errors=True)
            self.disk.mkdir()
            self.objects = LocalObjectStore(self.disk / "managed" / "root", self.clock)
        else:
            url = f"memory://crash/{self._folder.name}/{next(self._numbers)}"
            self.objects = MemoryObjectStore(url, self.clock)
        self.prepare()

    @abstractmethod
    def prepare(self) -> None:
        """Make in the root what is there before the work."""


class ManagedCommit(WorkOnNewRoot):
    """The commit of a second generation."""

    def prepare(self) -> None:
        create(self.objects, self.clock)
        self._attempts: list[ManagedStore] = []

    def do(self, objects: ObjectStore) -> None:
        self._attempts.append(self._attempt(objects))
        publish(self._attempts[0], 2)

    def check(self, where: str) -> None:
        seen = read(self.objects)
        if self._way.is_of_power:
            is_done = seen == AFTER
            assert is_done or (seen == FILES and not is_end(where)), where
        else:
            is_done = self.was_committed(self._way)
            assert seen == (AFTER if is_done else FILES), where
        if not is_done:
            publish(self._attempt(self.objects), 3)
        assert read(self.objects) == AFTER, where
        head = ManagedStore(self.objects, PARTITION).manifest
        assert head.generation == 2
        if not self._way.is_of_power:
            self._wake(is_done=is_done)
        assert ManagedStore(self.objects, PARTITION).manifest == head
        check_purge(self.objects, self.clock)

    def check_all(self) -> None:
        assert self._way.is_of_power or tuple(method for method, _ in self.changes) == CHANGES

    def _attempt(self, objects: ObjectStore) -> ManagedStore:
        return attempt(objects, self._folder, f"attempt-{next(self._numbers)}", self.clock)

    def _wake(self, *, is_done: bool) -> None:
        for zombie in self._attempts:
            # The same attempt, alive after all, on a connection that works.
            zombie.objects = self.objects
            if is_done:
                publish(zombie, 2)  # and so told that it had succeeded
                continue
            with pytest.raises((ConditionFailedError, LeaseLostError)):
                publish(zombie, 2)
            with pytest.raises(ConditionFailedError):
                publish(zombie, 9)


class FirstCommit(WorkOnNewRoot):
    """The commit of a first generation: it leaves no partition, or a whole one."""

    def prepare(self) -> None:
        """Nothing is there."""

    def do(self, objects: ObjectStore) -> None:
        create(objects, self.clock)

    def check(self, where: str) -> None:
        try:
            seen = read(self.objects)
        except PartitionNotFoundError:
            assert not is_end(where), where
            assert self._way.is_of_power or not self._is_done(), where
            self.run()
            seen = read(self.objects)
        else:
            assert self._way.is_of_power or self._is_done(), where
        assert seen == FILES, where

    def _is_done(self) -> bool:
        _, key = self.changes[-1]
        return self._way.way is Moment.AFTER and kind_of_key(key) == "manifest"


class UseOfLease(WorkOnNewRoot):
    """A lease that is taken, renewed and given back: it has at most one holder."""

    def prepare(self) -> None:
        self._taken: list[Lease] = []

    def do(self, objects: ObjectStore) -> None:
        lease = acquire_lease(objects, holder="stopped", ttl_ms=TTL_MS, clock=self.clock)
        self._taken.append(lease)
        lease.renew()
        lease.release()

    def check(self, where: str) -> None:
        self.clock.advance(TTL_MS)
        after = acquire_lease(self.objects, holder="next", ttl_ms=TTL_MS, clock=self.clock)
        after.require_current()
        # A token that somebody was given is never given again.
        assert after.token > max((lease.token for lease in self._taken), default=0), where
        if not self._way.is_of_power:
            was_taken = len(self.changes) > 1 or self._way.way is Moment.AFTER
            assert after.token == (2 if was_taken else 1), where


IN_MEMORY, ON_DISK = "managed root", "managed root on a disk"
CELLS = [
    Cell(
        operation=operation,
        store=store,
        case="by hand",
        make=partial(make, store),
        ways=[*KILLS, *(POWER if store == ON_DISK else [])],
        power_stride=1 if ALL or make is UseOfLease else 4,
    )
    for operation, make in (
        ("commit", ManagedCommit),
        ("first commit", FirstCommit),
        ("lease", UseOfLease),
    )
    for store in (IN_MEMORY, ON_DISK)
]
