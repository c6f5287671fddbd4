"""What a purge need not look into, since a former one has seen it."""

import random
from contextlib import suppress

import pytest

from storage_core.clock import ManualClock
from storage_core.errors import ManifestError, ObjectNotFoundError, PartitionNotFoundError
from storage_core.filenames import PURGED_FILE, TopicPartition
from storage_core.store.garbage import (
    CLOCKS_APART_MS,
    delete_garbage,
    find_due,
    find_garbage,
    forget_purged,
    read_purged,
    record_purged,
)
from storage_core.store.generations import history_key, read_history
from storage_core.store.local_objects import LocalObjectStore
from storage_core.store.managed_store import ManagedStore
from storage_core.store.object_store import ObjectStore
from tests.kit.faulty_store import SimulatedCrash
from tests.kit.memory_objects import MemoryObjectStore, forget_memory
from tests.kit.wrapped_objects import CountingObjects, FaultyObjects
from tests.storage_core.store.managed_homes import NOW_MS

HOUR_MS = 3_600_000
GRACE_MS = 72 * HOUR_MS
LOG = "00000000000000000000.log"
# In the order of keys: "a-1/" comes after "a-0/", "a-10/" before "a-2/".
PARTITIONS = [TopicPartition("a", number) for number in (0, 1, 10, 2)]


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(NOW_MS)


@pytest.fixture(params=["memory", "local disk"])
def objects(request, clock, tmp_path):
    """A store whose listing begins in the middle, and one that is asked once a partition."""
    if request.param == "memory":
        yield MemoryObjectStore("memory://purged/root", clock)
        forget_memory("memory://purged")
    else:
        yield LocalObjectStore(tmp_path / "root", clock)


def commit(objects, clock, partition, content: bytes, token: int = 0) -> None:
    store = ManagedStore(objects, partition, is_new=True, clock=clock)
    store.write_file(LOG, content)
    store.publish(run_id="run", fencing_token=token)


def held() -> None:
    """Stand for the question whether the lease is held, answered with yes."""


def night(
    objects: ObjectStore, clock: ManualClock, token: int, grace_ms: int = GRACE_MS
) -> list[TopicPartition]:
    """Purge what is due, and return the partitions that were looked into."""
    times = {"grace_start_ms": clock.now_ms() - grace_ms}
    due = list(find_due(objects, PARTITIONS, seen_ms=read_purged(objects), **times))
    forget_purged(objects)
    for partition in due:
        garbage = find_garbage(objects, partition, **times)
        delete_garbage(objects, garbage, fencing_token=token, fence=held)
    record_purged(objects, now_ms=clock.now_ms(), **times)
    return due


def garbage_of(objects, clock, grace_ms: int = GRACE_MS) -> list[str]:
    start = clock.now_ms() - grace_ms
    return [
        key
        for partition in PARTITIONS
        for key in find_garbage(objects, partition, grace_start_ms=start).keys()  # noqa: SIM118
    ]


def test_a_commit_is_looked_at_when_it_leaves_the_grace_period_and_not_again(objects, clock):
    for partition in PARTITIONS:
        commit(objects, clock, partition, b"first")
    commit(objects, clock, PARTITIONS[1], b"second")
    looked_into = []
    for day in range(1, 9):
        clock.advance(24 * HOUR_MS)
        looked_into.append(night(objects, clock, token=day))
    # After three days nothing is older than the grace period, but just as old.
    assert looked_into[:3] == [[], [], []]
    assert looked_into[3] == PARTITIONS
    # The purge of the one wrote its manifest under its own token: that is looked at in its turn.
    assert looked_into[4:] == [[], [], [], PARTITIONS[1:2]]
    assert garbage_of(objects, clock) == []
    with pytest.raises(ObjectNotFoundError):
        objects.get(history_key(PARTITIONS[1], 1))


def test_an_idle_root_is_listed_and_no_manifest_is_asked_for(objects, clock):
    for partition in PARTITIONS:
        commit(objects, clock, partition, b"first")
    clock.advance(10 * GRACE_MS)
    night(objects, clock, token=1)
    clock.advance(10 * GRACE_MS)
    counting = CountingObjects(objects)
    assert night(counting, clock, token=2) == []
    assert counting.requests == {
        ("get", "purged"): 1,
        ("delete", "purged"): 1,
        ("list", "other"): len(PARTITIONS),
        ("put", "purged"): 1,
    }


def test_what_a_stopped_commit_left_is_found(objects, clock):
    for partition in PARTITIONS:
        commit(objects, clock, partition, b"first")
    clock.advance(10 * GRACE_MS)
    night(objects, clock, token=1)
    key = f"{PARTITIONS[2]}/data/of-a-killed-task/{LOG}"
    objects.put(key, b"named by nothing")
    clock.advance(GRACE_MS)
    assert night(objects, clock, token=2) == []
    clock.advance(1)
    assert night(objects, clock, token=3) == [PARTITIONS[2]]
    assert key not in [info.key for info in objects.list()]


def test_a_superseded_manifest_is_looked_at_until_it_goes(objects, clock):
    """Its grace period is counted by the run's clock, which may be hours before the store's."""
    for content in (b"first", b"second", b"third"):
        commit(objects, ManualClock(clock.now_ms() + 9 * HOUR_MS), PARTITIONS[0], content)
    clock.advance(GRACE_MS + 4 * HOUR_MS)
    assert night(objects, clock, token=1) == PARTITIONS[:1]
    clock.advance(4 * HOUR_MS)
    assert night(objects, clock, token=2) == PARTITIONS[:1]
    clock.advance(4 * HOUR_MS)
    assert night(objects, clock, token=3) == PARTITIONS[:1]
    assert garbage_of(objects, clock) == []


def test_what_lay_there_before_the_first_commit_goes_with_what_came_later(objects, clock):
    """Without a manifest nothing is purged, however old: it is a person's to say what it is."""
    key = f"{PARTITIONS[0]}/data/of-a-stopped-ingest/{LOG}"
    objects.put(key, b"named by nothing")
    clock.advance(2 * GRACE_MS)
    assert night(objects, clock, token=1) == PARTITIONS[:1]
    commit(objects, clock, PARTITIONS[0], b"first")
    clock.advance(GRACE_MS + 1)
    assert night(objects, clock, token=2) == PARTITIONS[:1]
    assert key not in [info.key for info in objects.list()]


@pytest.mark.thorough
@pytest.mark.parametrize("seed", range(6))
def test_nights_that_remember_leave_what_nights_that_do_not_would(objects, clock, seed):
    """Commits, undos, killed tasks and killed purges: after a whole purge nothing is left to go."""
    chance = random.Random(seed)
    for partition in PARTITIONS:
        commit(objects, clock, partition, b"first")
    for token in range(1, 40):
        clock.advance(chance.randrange(1, 40) * HOUR_MS)
        for partition in PARTITIONS:
            deed = chance.randrange(8)
            if deed == 0:
                commit(objects, clock, partition, chance.randbytes(4), token)
            elif deed == 1:
                objects.put(f"{partition}/data/killed-{token}/{LOG}", b"orphan")
            elif deed == 2:
                store = ManagedStore(objects, partition, is_new=True, clock=clock)
                generation = store.manifest.generation
                if generation > 1 and garbage_of(objects, clock) == []:
                    with suppress(PartitionNotFoundError):  # it may have been purged
                        store.restore(read_history(objects, partition, generation - 1))
                        store.publish(run_id="undo", fencing_token=token)
        grace_ms = chance.choice([GRACE_MS, GRACE_MS, HOUR_MS, 0])
        killed = FaultyObjects(objects, stop_at=chance.randrange(12))
        try:
            night(killed, clock, token, grace_ms)
        except SimulatedCrash:
            night(objects, clock, token, grace_ms)
        assert garbage_of(objects, clock, grace_ms) == []


def test_a_record_of_a_clock_that_ran_ahead_hides_nothing_that_comes_after(objects, clock):
    commit(objects, clock, PARTITIONS[0], b"first")
    record_purged(objects, grace_start_ms=clock.now_ms() + GRACE_MS, now_ms=clock.now_ms())
    assert read_purged(objects) == clock.now_ms() - CLOCKS_APART_MS
    record_purged(objects, grace_start_ms=-1, now_ms=clock.now_ms())
    assert read_purged(objects) == 0


@pytest.mark.parametrize(
    "content",
    [b"", b"{}", b'{"format": "pylog-purged", "version": 2, "seen_ms": 1}',
     b'{"format": "pylog-purged", "version": 1, "seen_ms": -1}'],
    ids=["empty", "nothing", "another version", "before all time"],
)  # fmt: skip
def test_a_malformed_record_is_told_with_its_file(objects, content):
    objects.put(PURGED_FILE, content)
    with pytest.raises(ManifestError, match=PURGED_FILE):
        read_purged(objects)
