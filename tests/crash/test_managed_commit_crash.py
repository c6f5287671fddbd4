"""A commit to a managed root, stopped at every single request that changes something.

On a local disk also by a loss of power, at every change of a name and every sync.

Whoever reads then sees the old generation or the new one, whole. The commit made again, by another
attempt, ends with the same bytes. The attempt that was stopped, were it to come back to life, does
not get through. And a purge deletes what was left, and nothing else.
"""

import shutil
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from storage_core.checkpoint.checkpoints import PartitionCheckpoints
from storage_core.clock import ManualClock
from storage_core.commit import (
    CopyRange,
    DeleteFile,
    Plan,
    PromoteFile,
    RenameFile,
    WriteFile,
    commit,
)
from storage_core.errors import ConditionFailedError, LeaseLostError, PartitionNotFoundError
from storage_core.store import ManagedStore, ObjectStore
from storage_core.store.garbage import find_garbage
from storage_core.store.lease import acquire_lease, require_lease
from storage_core.store.local_objects import LocalObjectStore
from storage_core.store.memory_objects import MemoryObjectStore, forget_memory
from storage_core.store.uploads import upload_file
from tests.crash.interruptions import ALL, POWER, Interruption, is_end, power_losses
from tests.kit.faulty_store import NEVER, Moment, SimulatedCrash
from tests.kit.wrapped_objects import FaultyObjects
from tests.storage_core.store.managed_homes import FILES, NOW_MS, PARTITION, contents

pytestmark = pytest.mark.crash

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
# The log by its task; companions, epochs; history, manifest.
CHANGES = 5
# Of how many points one is tried at which the power may fail.
STRIDE = 1 if ALL else 4


@pytest.fixture(params=["memory", "local"])
def new_root(request, tmp_path: Path):
    """Makes an empty root at every call."""
    if request.param == "memory":
        numbers = iter(range(10_000))
        yield lambda clock: MemoryObjectStore(f"memory://crash/{next(numbers)}", clock)
        forget_memory("memory://crash")
    else:
        numbers = iter(range(10_000))
        yield lambda clock: LocalObjectStore(tmp_path / f"root-{next(numbers)}", clock)


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
    commit(Plan(location=store.location, operations=tuple(operations)), store)
    store.set_checkpoints(PartitionCheckpoints(log_start_offset=0, cleaner_offset=100))
    return store


def publish(store: ManagedStore, token: int, fence: Callable[[], None] | None = None) -> None:
    store.publish(run_id=f"run-{token}", fencing_token=token, fence=fence)


def read(objects: ObjectStore) -> dict[str, bytes]:
    return contents(ManagedStore(objects, PARTITION))


def changes_of_a_commit(new_root, folder: Path) -> list[tuple[str, str]]:
    clock = ManualClock(NOW_MS)
    objects = new_root(clock)
    create(objects, clock)
    counting = FaultyObjects(objects, stop_at=NEVER)
    publish(attempt(counting, folder, "counted", clock), 2)
    assert read(objects) == AFTER
    return counting.changes


@pytest.mark.item("DIR-15", "FLT-08")
def test_a_commit_that_is_stopped_at_any_change_is_whole_or_has_not_happened(new_root, tmp_path):
    changes = changes_of_a_commit(new_root, tmp_path)
    methods = ["put_file", "put", "put", "put_if_absent", "put_if_match"]
    assert [method for method, _ in changes] == methods
    assert len(methods) == CHANGES
    for number in range(len(changes)):
        for moment in Moment:
            check_point(new_root, tmp_path, number, moment)


def check_point(new_root, folder: Path, number: int, moment: Moment) -> None:
    """Stop a commit at one point; read, try again, wake the stopped one, purge."""
    clock = ManualClock(NOW_MS)
    objects = new_root(clock)
    create(objects, clock)
    faulty = FaultyObjects(objects, stop_at=number, moment=moment)
    attempts = []

    def stopped() -> None:
        attempts.append(attempt(faulty, folder, f"stopped-{number}-{moment.name}", clock))
        publish(attempts[0], 2)

    with pytest.raises(SimulatedCrash):
        stopped()
    is_done = (number, moment) == (CHANGES - 1, Moment.AFTER)
    assert read(objects) == (AFTER if is_done else FILES)
    if not is_done:
        publish(attempt(objects, folder, f"again-{number}-{moment.name}", clock), 3)
    assert read(objects) == AFTER
    head = ManagedStore(objects, PARTITION).manifest
    assert head.generation == 2
    for zombie in attempts:
        # The same attempt, alive after all, on a connection that works.
        zombie.objects = objects
        if is_done:
            publish(zombie, 2)  # and so told that it had succeeded
            continue
        with pytest.raises((ConditionFailedError, LeaseLostError)):
            publish(zombie, 2)
        with pytest.raises(ConditionFailedError):
            publish(zombie, 9)
    assert ManagedStore(objects, PARTITION).manifest == head
    check_purge(objects, clock)
    assert read(objects) == AFTER


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


@pytest.mark.item("FLT-08")
def test_a_first_commit_that_is_stopped_leaves_no_partition_or_a_whole_one(new_root):
    clock = ManualClock(NOW_MS)
    counting = FaultyObjects(new_root(clock))
    create(counting, clock)
    for number in range(len(counting.changes)):
        for moment in Moment:
            objects = new_root(clock)
            with pytest.raises(SimulatedCrash):
                create(FaultyObjects(objects, stop_at=number, moment=moment), clock)
            if number == len(counting.changes) - 1 and moment is Moment.AFTER:
                assert read(objects) == FILES
                continue
            with pytest.raises(PartitionNotFoundError):
                read(objects)
            create(objects, clock)
            assert read(objects) == FILES


@pytest.mark.parametrize("way", POWER, ids=lambda way: way.name)
@pytest.mark.item("DIR-15", "FLT-08")
def test_what_a_loss_of_power_leaves_of_a_commit_on_a_local_disk_is_whole(way, tmp_path):
    clock = ManualClock(NOW_MS)
    root, saved = tmp_path / "disk" / "root", tmp_path / "saved"
    objects = LocalObjectStore(root, clock)
    create(objects, clock)
    shutil.copytree(root, saved)
    names = (f"attempt-{number}" for number in range(10_000))

    def reset() -> None:
        shutil.rmtree(root, ignore_errors=True)
        shutil.copytree(saved, root)

    def commit_again() -> None:
        publish(attempt(objects, tmp_path, next(names), clock), 2)

    for where in power_losses(commit_again, root.parent, way.way, reset=reset, stride=STRIDE):
        found = read(objects)
        assert found == AFTER or (found == FILES and not is_end(where)), where
        if found != AFTER:
            commit_again()
        assert read(objects) == AFTER, where
        check_purge(objects, clock)


@pytest.mark.parametrize("way", POWER, ids=lambda way: way.name)
@pytest.mark.item("FLT-08")
def test_what_a_loss_of_power_leaves_of_a_first_commit_is_nothing_or_whole(
    way: Interruption, tmp_path
):
    clock = ManualClock(NOW_MS)
    root = tmp_path / "disk" / "managed" / "root"

    def reset() -> None:
        shutil.rmtree(tmp_path / "disk", ignore_errors=True)
        (tmp_path / "disk").mkdir()

    def create_root() -> None:
        create(LocalObjectStore(root, clock), clock)

    for where in power_losses(create_root, tmp_path / "disk", way.way, reset=reset, stride=STRIDE):
        objects = LocalObjectStore(root, clock)
        try:
            found = read(objects)
        except PartitionNotFoundError:
            assert not is_end(where), where
            create_root()
            found = read(objects)
        assert found == FILES, where


@pytest.mark.parametrize("way", POWER, ids=lambda way: way.name)
def test_a_lease_survives_a_loss_of_power_or_was_never_given(way: Interruption, tmp_path):
    clock = ManualClock(NOW_MS)
    root = tmp_path / "disk" / "root"
    given = []

    def reset() -> None:
        given.clear()
        shutil.rmtree(tmp_path / "disk", ignore_errors=True)
        (tmp_path / "disk").mkdir()

    def take() -> None:
        given.append(
            acquire_lease(LocalObjectStore(root, clock), holder="a", ttl_ms=TTL_MS, clock=clock)
        )

    for where in power_losses(take, tmp_path / "disk", way.way, reset=reset):
        objects = LocalObjectStore(root, clock)
        clock.advance(TTL_MS)
        after = acquire_lease(objects, holder="b", ttl_ms=TTL_MS, clock=clock)
        # A token that somebody was given is never given again.
        assert after.token > max((lease.token for lease in given), default=0), where


class PausedObjects(FaultyObjects):
    """Stands still before one of its changes, while something else happens."""

    def __init__(self, objects: ObjectStore, pause_at: int, meanwhile: Callable[[], None]) -> None:
        super().__init__(objects)
        self._pause_at = pause_at
        self._meanwhile: Callable[[], None] | None = meanwhile
        self._pausing = threading.Lock()

    def _change(self, method, key, action, tear=None):
        with self._pausing:  # uploads go side by side
            if self._meanwhile is not None and len(self.changes) >= self._pause_at:
                self._meanwhile()
                self._meanwhile = None
        return super()._change(method, key, action, tear)


@pytest.mark.parametrize("stop", range(CHANGES))
@pytest.mark.item("FLT-10")
def test_a_zombie_whose_lease_ended_gets_through_at_no_point(new_root, tmp_path, stop):
    clock = ManualClock(NOW_MS)
    objects = new_root(clock)
    create(objects, clock)
    lease = acquire_lease(objects, holder="zombie", ttl_ms=TTL_MS, clock=clock)

    def meanwhile() -> None:
        clock.advance(TTL_MS)
        acquire_lease(objects, holder="next run", ttl_ms=TTL_MS, clock=clock)
        publish(attempt(objects, tmp_path, "next", clock), 2)

    paused = PausedObjects(objects, stop, meanwhile)

    def zombie() -> None:
        # Of the generation that it planned from, as a run's tasks do.
        store = attempt(paused, tmp_path, "zombie", clock, generation=1)
        publish(
            store,
            lease.token,
            lambda: require_lease(objects, lease.proof, now_ms=clock.now_ms()),
        )

    with pytest.raises((LeaseLostError, ConditionFailedError)):
        zombie()
    current = ManagedStore(objects, PARTITION)
    assert (current.manifest.generation, current.manifest.run_id) == (2, "run-2")
    assert contents(current) == AFTER


def use_a_lease(objects: ObjectStore, clock: ManualClock) -> None:
    lease = acquire_lease(objects, holder="stopped", ttl_ms=TTL_MS, clock=clock)
    lease.renew()
    lease.release()


@pytest.mark.parametrize("moment", Moment)
@pytest.mark.parametrize("number", range(3))
def test_a_lease_that_is_stopped_at_any_change_has_at_most_one_holder(new_root, number, moment):
    clock = ManualClock(NOW_MS)
    objects = new_root(clock)
    faulty = FaultyObjects(objects, stop_at=number, moment=moment)
    with pytest.raises(SimulatedCrash):
        use_a_lease(faulty, clock)
    clock.advance(TTL_MS)
    after = acquire_lease(objects, holder="next", ttl_ms=TTL_MS, clock=clock)
    after.require_current()
    expected = 1 if number == 0 and moment is not Moment.AFTER else 2
    assert after.token == expected
