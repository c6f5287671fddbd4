"""A managed root on which several work at once: who comes too late changes nothing.

A zombie is a run that stood still while another one took its lease. Readers and whoever fills a
mirror have no lease at all.
"""

import threading
from collections.abc import Callable
from dataclasses import replace

import pytest

from storage_core.checkpoint.checkpoints import PartitionCheckpoints
from storage_core.clock import ManualClock
from storage_core.errors import ConditionFailedError, LeaseLostError
from storage_core.maintenance.ingest.partition import Commitment, commit_ingest, observe_and_plan
from storage_core.store import ManagedStore, ObjectStore
from storage_core.store.garbage import find_garbage
from storage_core.store.lease import acquire_lease, require_lease
from storage_core.store.local_objects import LocalObjectStore
from tests.crash.work.ingest import PLAIN, Mirrored, state_of, take
from tests.crash.work.managed_commit import AFTER, CHANGES, TTL_MS, attempt, create, publish
from tests.kit.faulty_store import Moment, SimulatedCrash
from tests.kit.golden_data import Golden
from tests.kit.memory_objects import MemoryObjectStore
from tests.kit.wrapped_objects import FaultyObjects
from tests.pylog_spark.broker_roots import broker_directory
from tests.pylog_spark.managed_roots import managed_twin
from tests.pylog_spark.tasks.managed_pipeline import ManagedPipeline, work_once
from tests.storage_core.maintenance.ingest.mirrors import (
    mirror_of,
    segment,
    sync,
    target_of,
    write_files,
)
from tests.storage_core.store.managed_homes import NOW_MS, PARTITION, contents

pytestmark = pytest.mark.crash


@pytest.fixture(params=["first", "later"])
def mirrored(request, tmp_path) -> Mirrored:
    return Mirrored("memory://crash/mirrored", tmp_path, is_first=request.param == "first")


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


@pytest.mark.parametrize("stop", range(len(CHANGES)))
@pytest.mark.parametrize("is_on_disk", [False, True], ids=["memory", "local"])
@pytest.mark.item("FLT-10")
def test_a_zombie_whose_lease_ended_gets_through_at_no_point(tmp_path, stop, is_on_disk):
    clock = ManualClock(NOW_MS)
    objects: ObjectStore = (
        LocalObjectStore(tmp_path / "root", clock)
        if is_on_disk
        else MemoryObjectStore(f"memory://crash/zombie-{stop}", clock)
    )
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


@pytest.mark.item("FLT-14")
def test_a_zombie_whose_lease_was_taken_over_cannot_commit(tmp_path):
    name = "retain-both-s501"
    now_ms = Golden(name).case["clock_ms"]
    origin = broker_directory(tmp_path / "log", [name])
    twin = managed_twin(origin, "memory://crash/sweep-zombie")
    zombie = ManagedPipeline(twin, now_ms, run_id="zombie")
    with zombie.held() as stale:
        pass  # its lease has gone back; its task does not know
    other = ManagedPipeline(twin, now_ms, run_id="other")
    with other.held() as write:
        before = twin.tree(name)
        (error,) = work_once(zombie, replace(stale, run=zombie.run))
        assert error is not None
        assert twin.tree(name) == before
        assert work_once(other, write) == [None]


def test_what_a_killed_ingest_uploaded_is_found_by_a_purge(mirrored):
    mirror, objects = mirrored.mirror, mirrored.new_root()
    kept = {info.key for info in objects.list()}
    crashing = FaultyObjects(objects, stop_at=2, moment=Moment.AFTER)
    with pytest.raises(SimulatedCrash):
        take(mirror, crashing, PLAIN)
    orphans = {info.key for info in objects.list()} - kept
    take(mirror, objects, PLAIN)
    found = find_garbage(objects, target_of(objects).partition, grace_start_ms=2**62)
    assert orphans
    assert orphans <= set(found.keys())


def test_of_two_ingests_at_once_one_commits(mirrored):
    """A zombie that planned from the same generation changes nothing any more."""
    mirror, objects = mirrored.mirror, mirrored.new_root()
    directory, zombie = mirror_of(mirror), target_of(objects)
    planned = observe_and_plan(directory, zombie, PLAIN, PartitionCheckpoints())
    take(mirror, objects, PLAIN)
    after = state_of(objects)
    with pytest.raises(ConditionFailedError):
        commit_ingest(
            planned, directory, zombie, PLAIN, commitment=Commitment(run_id="zombie", result={})
        )
    assert state_of(objects) == after


def test_a_reader_that_began_before_an_ingest_reads_on_undisturbed(mirrored):
    mirror, objects = mirrored.mirror, mirrored.new_root()
    reader = ManagedStore(objects, target_of(objects).partition, is_new=True)
    before = {file.name for file in reader.list_files()}
    take(mirror, objects, PLAIN)
    assert {file.name for file in reader.list_files()} == before
    for name in before:
        reader.read_file(name, limit_bytes=1 << 20)


def test_a_sync_that_goes_on_changes_nothing_in_the_managed_root(mirrored, tmp_path):
    mirror, objects = mirrored.mirror, mirrored.new_root()
    take(mirror, objects, PLAIN)
    state = state_of(objects)
    sync(write_files(tmp_path / "other", segment(0, batches=9)), mirror, delete=True)
    assert state_of(objects) == state
