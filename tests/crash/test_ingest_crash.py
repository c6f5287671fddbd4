"""An ingest, killed at every change of the managed root: the old generation, or the new one.

Then another run ends in the state of one that was never killed. Both the first ingest of a
partition and a later one, copied and adopted in place; and copied to a local disk that loses its
power.
"""

import shutil

import pytest

from storage_core.errors import ConditionFailedError
from storage_core.maintenance.ingest.commit import Commitment, commit_ingest
from storage_core.maintenance.ingest.partition import IngestRules, observe_and_plan
from storage_core.store import ManagedStore
from storage_core.store.garbage import find_garbage
from storage_core.store.local_objects import LocalObjectStore
from storage_core.store.memory_objects import MemoryObjectStore, forget_memory
from tests.crash.interruptions import ALL, POWER, is_end, power_losses
from tests.kit.faulty_store import NEVER, Moment, SimulatedCrash
from tests.kit.wrapped_objects import FaultyObjects
from tests.storage_core.maintenance.ingest.mirrors import (
    ingest,
    mirror_of,
    segment,
    sync,
    target_of,
    write_files,
)

pytestmark = pytest.mark.crash

PLAIN = IngestRules()
IN_PLACE = IngestRules(sync_has_stopped=True, in_place=True)
NOBODY = {"high_watermark": None, "log_start_offset": None, "cleaner_offset": None}


@pytest.fixture(params=["first", "later"])
def prepared(request, tmp_path):
    """A mirror with something new, and a function that makes the managed root as it is before."""
    mirror = MemoryObjectStore("memory://test-crash/mirror")
    grown = write_files(
        tmp_path, segment(0), segment(6), segment(12, leader_epoch=2), segment(18, leader_epoch=2)
    )
    sync(grown, mirror)
    first = mirror_of(mirror).first

    def managed():
        forget_memory("memory://test-crash/managed")
        objects = MemoryObjectStore("memory://test-crash/managed")
        if request.param == "later":
            early = write_files(tmp_path / "early", segment(0), segment(6))
            older = MemoryObjectStore("memory://test-crash/older")
            sync(early, older)
            ingest(older, objects)
        return objects

    yield mirror, first, managed
    forget_memory("memory://test-crash")


def state_of(objects):
    """What a reader sees of the partition: names, bytes, checkpoints; None where there is none."""
    store = target_of(objects)
    if not store.manifest.generation:
        return None
    files = {
        file.name: store.read_file(file.name, limit_bytes=1 << 20) for file in store.list_files()
    }
    return files, store.checkpoints, store.manifest.topic_id, store.largest_timestamps()


def run(mirror, objects, rules, *, threads=1):
    directory, target = mirror_of(mirror), target_of(objects)
    planned = observe_and_plan(directory, target, rules, **NOBODY)
    if planned.has_work:
        commitment = Commitment(run_id="run", result={})
        commit_ingest(planned, directory, target, rules, commitment=commitment, threads=threads)


@pytest.mark.parametrize("rules", [PLAIN, IN_PLACE], ids=["copied", "adopted"])
@pytest.mark.parametrize("moment", list(Moment), ids=lambda moment: moment.name.lower())
@pytest.mark.item("FLT-08")
def test_a_killed_ingest_leaves_the_old_or_the_new_generation_and_is_finished_by_the_next(
    prepared, rules, moment
):
    mirror, _, managed = prepared
    objects = managed()
    before = state_of(objects)
    counting = FaultyObjects(objects, stop_at=NEVER)
    run(mirror, counting, rules)
    after = state_of(objects)
    assert after != before
    assert len(counting.changes) >= 2

    for number in range(len(counting.changes)):
        objects = managed()
        with pytest.raises(SimulatedCrash):
            run(mirror, FaultyObjects(objects, stop_at=number, moment=moment), rules)
        assert state_of(objects) in (before, after)
        run(mirror, objects, rules)
        assert state_of(objects) == after, f"stopped {moment.value} change {number}"


@pytest.mark.parametrize("way", POWER, ids=lambda way: way.name)
@pytest.mark.parametrize("is_first", [True, False], ids=["first", "later"])
@pytest.mark.item("FLT-08")
def test_what_a_loss_of_power_leaves_of_an_ingest_to_a_local_disk_is_finished_by_the_next(
    way, is_first, tmp_path
):
    forget_memory("memory://test-crash")
    mirror = MemoryObjectStore("memory://test-crash/power")
    objects = LocalObjectStore(tmp_path / "disk" / "managed")
    sync(write_files(tmp_path / "early", segment(0), segment(6)), mirror)
    (tmp_path / "disk").mkdir()
    if not is_first:
        ingest(mirror, objects)
    sync(write_files(tmp_path, segment(0), segment(6), segment(12), segment(18)), mirror)
    shutil.copytree(tmp_path / "disk", tmp_path / "saved")

    def reset():
        shutil.rmtree(tmp_path / "disk")
        shutil.copytree(tmp_path / "saved", tmp_path / "disk")

    def work():
        run(mirror, objects, PLAIN)

    before = state_of(objects)
    work()
    after = state_of(objects)
    assert after != before
    stride = 1 if ALL else 7
    for where in power_losses(work, tmp_path / "disk", way.way, reset=reset, stride=stride):
        assert state_of(objects) in ((after,) if is_end(where) else (before, after)), where
        work()
        assert state_of(objects) == after, where
    forget_memory("memory://test-crash")


def test_what_a_killed_ingest_uploaded_is_found_by_a_purge(prepared):
    mirror, _, managed = prepared
    objects = managed()
    kept = {info.key for info in objects.list()}
    crashing = FaultyObjects(objects, stop_at=2, moment=Moment.AFTER)
    with pytest.raises(SimulatedCrash):
        run(mirror, crashing, PLAIN)
    orphans = {info.key for info in objects.list()} - kept
    run(mirror, objects, PLAIN)
    found = find_garbage(objects, target_of(objects).partition, grace_start_ms=2**62)
    assert orphans
    assert orphans <= set(found.keys())


def test_of_two_ingests_at_once_one_commits(prepared):
    """A zombie that planned from the same generation changes nothing any more."""
    mirror, _, managed = prepared
    objects = managed()
    directory, zombie = mirror_of(mirror), target_of(objects)
    planned = observe_and_plan(directory, zombie, PLAIN, **NOBODY)
    run(mirror, objects, PLAIN)
    after = state_of(objects)
    with pytest.raises(ConditionFailedError):
        commit_ingest(
            planned, directory, zombie, PLAIN, commitment=Commitment(run_id="zombie", result={})
        )
    assert state_of(objects) == after


def test_a_reader_that_began_before_an_ingest_reads_on_undisturbed(prepared):
    mirror, _, managed = prepared
    objects = managed()
    reader = ManagedStore(objects, target_of(objects).partition, is_new=True)
    before = {file.name for file in reader.list_files()}
    run(mirror, objects, PLAIN)
    assert {file.name for file in reader.list_files()} == before
    for name in before:
        reader.read_file(name, limit_bytes=1 << 20)


def test_a_sync_that_goes_on_changes_nothing_in_the_managed_root(prepared, tmp_path):
    mirror, _, managed = prepared
    objects = managed()
    run(mirror, objects, PLAIN)
    state = state_of(objects)
    sync(write_files(tmp_path / "other", segment(0, batches=9)), mirror, delete=True)
    assert state_of(objects) == state
