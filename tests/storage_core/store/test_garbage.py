"""What a purge of a managed root may delete, and what it must not."""

from dataclasses import replace
from pathlib import Path

import pytest

from storage_core import errors
from storage_core.clock import ManualClock
from storage_core.filenames import MANAGED_ROOT_FILE, TopicPartition
from storage_core.store import generations
from storage_core.store.garbage import (
    delete_garbage,
    delete_leftovers,
    find_garbage,
    find_leftovers,
    kept_generations,
)
from storage_core.store.local_objects import LocalObjectStore
from storage_core.store.managed_store import ManagedStore
from tests.kit.memory_objects import MemoryObjectStore, forget_memory
from tests.kit.wrapped_objects import CountingObjects
from tests.storage_core.store.managed_homes import NOW_MS, PARTITION

HOUR_MS = 3_600_000


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(NOW_MS)


@pytest.fixture
def objects(clock):
    yield MemoryObjectStore("memory://garbage/root", clock)
    forget_memory("memory://garbage")


def commit(objects, clock, number: int) -> None:
    """Replace the one file of the partition; one generation an hour."""
    store = ManagedStore(objects, PARTITION, attempt_id=f"a{number}", is_new=True, clock=clock)
    store.write_file("00000000000000000000.log", b"x" * number)
    store.publish(run_id=f"run-{number}")
    clock.advance(HOUR_MS)


@pytest.fixture
def committed(objects, clock):
    """A root of whose partition there are three generations."""
    for number in range(1, 4):
        commit(objects, clock, number)
    return objects


def garbage_now(objects, clock):
    """Find what may go if nothing is kept longer than until now."""
    return find_garbage(objects, PARTITION, grace_start_ms=clock.now_ms())


class Adopting:
    """A root that adopts objects of a mirror beside it."""

    def __init__(self, clock, mirror: Path, root: Path) -> None:
        self.mirror, self.root = LocalObjectStore(mirror), LocalObjectStore(root, clock)
        generations.create_root(self.root, now_ms=NOW_MS)
        generations.record_adopted(self.root, self.mirror.url)
        self.clock = clock
        self.store = ManagedStore(self.root, PARTITION, is_new=True, clock=clock)

    def adopt(self, name: str, *, of: LocalObjectStore | None = None, key: str = "") -> None:
        """Adopt a file of the mirror's partition, or an object of another store."""
        key, of = key or f"topic-0/{name}", of or self.mirror
        etag = of.put(key, b"of the mirror")
        url = f"file://{of.url}/{key}"
        entry = generations.FileEntry(key=url, start=0, size_bytes=13, etag=etag, modified_ms=1)
        self.store.adopt(name, entry)

    def delete(self, name: str) -> None:
        """Let a file go of the generation after the one that adopted it."""
        self.store.publish(run_id="ingest")
        self.store.delete(name)
        self.store.publish(run_id="retain")
        self.clock.advance(HOUR_MS)


@pytest.fixture
def adopting(clock, tmp_path) -> Adopting:
    return Adopting(clock, tmp_path / "mirror", tmp_path / "root")


def held() -> None:
    """Stand for the question whether the lease is held, answered with yes."""


def test_what_the_grace_period_needs_is_kept(objects, clock):
    for number in range(1, 7):
        commit(objects, clock, number)
    # Generation 4 was superseded by 5 at hour 4, 3 by 4 at hour 3; it is hour 6 now.
    garbage = find_garbage(objects, PARTITION, grace_start_ms=NOW_MS + 4 * HOUR_MS)
    assert (garbage.generation, garbage.oldest_generation) == (6, 4)
    assert [info.key for info in garbage.histories] == [
        generations.history_key(PARTITION, number) for number in (1, 2, 3)
    ]
    assert [info.key.split("/")[2] for info in garbage.data] == ["a1", "a2", "a3"]
    assert garbage.keys() == [info.key for info in (*garbage.histories, *garbage.data)]
    assert garbage.kept_bytes == 4 + 5 + 6
    assert garbage.size_bytes == 1 + 2 + 3 + sum(info.size_bytes for info in garbage.histories)
    objects.delete(garbage.keys())
    kept = list(kept_generations(objects, PARTITION, grace_start_ms=0))
    assert [manifest.generation for manifest in kept] == [6, 5, 4]
    for generation in (4, 5, 6):
        store = ManagedStore(objects, PARTITION, generation=generation)
        assert store.read_file("00000000000000000000.log", limit_bytes=9) == b"x" * generation
    assert find_garbage(objects, PARTITION, grace_start_ms=NOW_MS + 4 * HOUR_MS).keys() == []


def test_a_purge_whose_lease_went_to_another_run_deletes_nothing_more(committed, clock):
    garbage = garbage_now(committed, clock)
    asked = []

    def fence() -> None:
        asked.append(len(list(committed.list())))
        if len(asked) > 2:
            raise errors.LeaseLostError(committed.url, "the purge", "went to an undo")

    with pytest.raises(errors.LeaseLostError):
        delete_garbage(committed, garbage, fencing_token=0, fence=fence)
    assert len(asked) == 3
    # The manifests were gone, the data was not.
    assert all(committed.head(info.key) for info in garbage.data)


def test_an_undo_that_lost_its_lease_cannot_bring_back_what_was_purged(committed, clock):
    undo = ManagedStore(committed, PARTITION, generation=3, clock=clock)
    undo.restore(generations.read_history(committed, PARTITION, 1))

    def lose_the_lease() -> None:
        """The last question was answered with yes; then the undo's process stood still."""
        garbage = garbage_now(committed, clock)
        delete_garbage(committed, garbage, fencing_token=2, fence=held)

    with pytest.raises(errors.ConditionFailedError):
        undo.publish(run_id="undo", fencing_token=1, fence=lose_the_lease)
    current = ManagedStore(committed, PARTITION)
    assert (current.manifest.generation, current.manifest.run_id) == (3, "run-3")
    assert current.read_file("00000000000000000000.log", limit_bytes=9) == b"xxx"
    # Nobody else is kept from going on, be it after a commit that was stopped in the middle.
    current.write_file("00000000000000000000.log", b"next")
    with pytest.raises(errors.LeaseLostError):
        current.publish(run_id="zombie", fencing_token=1)
    assert current.publish(run_id="next", fencing_token=2).generation == 4


def test_a_purge_gives_way_to_a_commit_that_was_a_little_faster(committed, clock):
    garbage = garbage_now(committed, clock)
    commit(committed, clock, 4)
    before = [info.key for info in committed.list()]
    with pytest.raises(errors.ChangedWhileReadError):
        delete_garbage(committed, garbage, fencing_token=2, fence=held)
    assert [info.key for info in committed.list()] == before


def test_a_purge_that_lost_its_lease_gives_way_to_whoever_has_it_now(committed, clock):
    garbage = garbage_now(committed, clock)
    before = [info.key for info in committed.list()]
    # The next holder of the lease, between the last question and this; it may bring back any.
    generations.raise_fence(
        committed, PARTITION, generations.read_head(committed, PARTITION).manifest, token=3
    )
    with pytest.raises(errors.LeaseLostError, match="token 3"):
        delete_garbage(committed, garbage, fencing_token=2, fence=held)
    assert [info.key for info in committed.list()] == before
    assert generations.read_head(committed, PARTITION).manifest.fencing_token == 3
    delete_garbage(committed, garbage, fencing_token=3, fence=held)
    assert garbage_now(committed, clock).keys() == []


def test_everything_but_the_current_generation_goes_when_the_grace_is_over(committed, clock):
    garbage = garbage_now(committed, clock)
    committed.delete(garbage.keys())
    assert [info.key.rpartition("/")[2] for info in committed.list()] == [
        "00000000000000000000.log",
        "manifest.json",
    ]


def test_an_upload_on_its_way_into_a_manifest_is_kept(objects, clock):
    commit(objects, clock, 1)
    objects.put("topic-0/data/under-way/00000000000000000000.log", b"new")
    assert garbage_now(objects, clock).data == ()
    clock.advance(1)
    (orphan,) = garbage_now(objects, clock).data
    assert orphan.key == "topic-0/data/under-way/00000000000000000000.log"


def test_a_partition_without_a_manifest_is_left_alone(objects, clock):
    commit(objects, clock, 1)
    commit(objects, clock, 2)
    objects.delete([generations.manifest_key(PARTITION)])
    clock.advance(1000 * HOUR_MS)
    garbage = garbage_now(objects, clock)
    assert (garbage.generation, garbage.keys()) == (0, [])


def test_what_was_restored_is_kept_however_old(committed, clock):
    undo = ManagedStore(committed, PARTITION, clock=clock)
    undo.restore(generations.read_history(committed, PARTITION, 1))
    undo.publish(run_id="undo")
    clock.advance(1000 * HOUR_MS)
    garbage = garbage_now(committed, clock)
    assert [info.key.split("/")[2] for info in garbage.data] == ["a2", "a3"]


def test_a_file_that_was_cut_needs_its_object(objects, clock):
    commit(objects, clock, 5)
    store = ManagedStore(objects, PARTITION, clock=clock)
    store.truncate("00000000000000000000.log", 2)
    store.publish(run_id="cut")
    clock.advance(1000 * HOUR_MS)
    assert garbage_now(objects, clock).data == ()


def test_neighbours_are_not_looked_at(objects, clock):
    commit(objects, clock, 1)
    objects.put("topic-01/data/x/y", b"")
    objects.put("topic-0/notes.txt", b"somebody else's")
    clock.advance(1000 * HOUR_MS)
    assert garbage_now(objects, clock).keys() == []


def test_a_purge_of_a_partition_asks_for_manifests_and_one_listing(committed, clock):
    counting = CountingObjects(committed)
    find_garbage(counting, PARTITION, grace_start_ms=NOW_MS)
    assert counting.count("get", "manifest") == 1
    assert counting.count("get", "history") == 2
    assert counting.count("list") == 1
    assert sum(counting.requests.values()) == 4


def test_leftovers_of_probes_and_writes_go_when_they_are_old(objects, clock):
    objects.put(".pylog-probe/1", b"")
    objects.put(".pylog-tmp/2", b"")
    assert find_leftovers(objects, grace_start_ms=clock.now_ms()) == []
    clock.advance(1)
    found = [info.key for info in find_leftovers(objects, grace_start_ms=clock.now_ms())]
    assert found == [".pylog-probe/1", ".pylog-tmp/2"]
    objects.put(".pylog-tmp/3", b"")
    assert delete_leftovers(objects, grace_start_ms=clock.now_ms()) == []
    assert [info.key for info in objects.list()] == [".pylog-tmp/3"]


def test_a_root_is_made_once_and_lists_its_partitions(objects, clock):
    assert generations.find_root(objects) is None
    made = generations.create_root(objects, now_ms=NOW_MS)
    assert (
        generations.create_root(objects, now_ms=NOW_MS + 1)
        == made
        == generations.find_root(objects)
    )
    commit(objects, clock, 1)
    objects.put("other-12/data/x/y", b"")
    objects.put("no partition/x", b"")
    objects.put(".pylog-tmp/x", b"")
    assert list(generations.list_partitions(objects)) == [TopicPartition("other", 12), PARTITION]


def test_an_adopted_object_goes_with_the_last_manifest_that_names_it(adopting, clock):
    gone, kept = "00000000000000000000.log", "00000000000000000042.log"
    for name in (gone, kept):
        adopting.adopt(name)
    adopting.store.publish(run_id="ingest")
    clock.advance(HOUR_MS)
    adopting.store.delete(gone)
    adopting.store.publish(run_id="retain")
    early = find_garbage(adopting.root, PARTITION, grace_start_ms=NOW_MS)
    assert (early.adopted, early.keys()) == ({}, [])
    clock.advance(HOUR_MS)
    garbage = garbage_now(adopting.root, clock)
    assert [url.rpartition("/")[2] for url in garbage.adopted] == [gone]
    assert garbage.size_bytes >= 13
    delete_garbage(adopting.root, garbage, fencing_token=0, fence=held)
    assert [info.key for info in adopting.mirror.list()] == [f"topic-0/{kept}"]
    current = ManagedStore(adopting.root, PARTITION)
    assert current.read_file(kept, limit_bytes=99) == b"of the mirror"


def test_the_folders_of_what_was_adopted_stay(clock, tmp_path):
    adopting = Adopting(clock, tmp_path / "100%41" / "mirror", tmp_path / "root")
    adopting.adopt("a.log")
    adopting.delete("a.log")
    garbage = garbage_now(adopting.root, clock)
    delete_garbage(adopting.root, garbage, fencing_token=0, fence=held)
    # The mirror's own folder may be a mount point, or in one of somebody else's.
    assert [path.name for path in (tmp_path / "100%41" / "mirror").rglob("*")] == ["topic-0"]


def test_an_adopted_object_that_somebody_wrote_again_stays(adopting, clock):
    adopting.adopt("a.log")
    adopting.delete("a.log")
    adopting.mirror.put("topic-0/a.log", b"somebody's now")
    garbage = garbage_now(adopting.root, clock)
    delete_garbage(adopting.root, garbage, fencing_token=0, fence=held)
    assert adopting.mirror.get("topic-0/a.log") == b"somebody's now"


@pytest.mark.parametrize(
    "place",
    ["{tmp}/other/topic-0", "{tmp}/mirror/more/topic-0", "{tmp}/mirrors/topic-0", "{tmp}/topic-0"],
)
def test_a_crafted_manifest_deletes_nothing_elsewhere(adopting, clock, tmp_path, place):
    """Whoever can write one superseded manifest names in it what a purge then deletes."""
    generations.record_adopted(adopting.root, adopting.mirror.url)
    other = LocalObjectStore(Path(place.format(tmp=tmp_path)))
    adopting.adopt("a.log", of=other, key="a.log")
    adopting.delete("a.log")
    before = [info.key for info in adopting.root.list()]
    with pytest.raises(
        errors.ManifestError, match=r"does not say that anything was adopted from there"
    ):
        garbage_now(adopting.root, clock)
    assert other.get("a.log") == b"of the mirror"
    assert [info.key for info in adopting.root.list()] == before


def test_a_root_without_adopted_mirrors_reads_as_before(clock, tmp_path):
    root = LocalObjectStore(tmp_path / "root", clock)
    made = generations.create_root(root, now_ms=NOW_MS)
    assert b"adopted" not in root.get(MANAGED_ROOT_FILE)
    generations.record_adopted(root, root.url)
    assert generations.find_root(root) == made
    generations.record_adopted(root, "s3://bucket/mirror")
    assert generations.find_root(root) == replace(made, adopted=("s3://bucket/mirror",))


def test_an_undo_to_objects_that_are_gone_is_refused(objects, clock):
    commit(objects, clock, 1)
    commit(objects, clock, 2)
    undo = ManagedStore(objects, PARTITION, clock=clock)
    objects.delete([info.key for info in objects.list("topic-0/data/a1/")])
    with pytest.raises(errors.StorageError, match=r"a1/00000000000000000000\.log"):
        undo.restore(generations.read_history(objects, PARTITION, 1))
    assert undo.publish(run_id="nothing").generation == 2


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{}",
        b'{"format": "pylog-root", "version": 2, "root_id": "0", "created_ms": 1}',
        b'{"format": "pylog-root", "version": 1, "root_id": "../x", "created_ms": 1}',
    ],
)
def test_what_is_no_root_is_not_taken_for_one(objects, content):
    objects.put("pylog-root.json", content)
    with pytest.raises(errors.ManifestError, match=r"pylog-root\.json"):
        generations.create_root(objects, now_ms=NOW_MS)
    assert objects.get("pylog-root.json") == content
