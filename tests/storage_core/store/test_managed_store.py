"""A partition of a managed root: the contract of all stores, generations, commits and races."""

import json
import os
import pickle
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from storage_core import errors
from storage_core.checkpoint.checkpoints import PartitionCheckpoints
from storage_core.clock import ManualClock
from storage_core.filenames import TopicPartition
from storage_core.store import LocalStore, ManagedStore, ObjectDirectory, generations, open_store
from storage_core.store.local_objects import LocalObjectStore
from storage_core.store.managed_store import encode_location, upload_companions, upload_file
from tests.kit.memory_objects import MemoryObjectStore, forget_memory
from tests.kit.store_contract import NAME, OTHER, StoreContract
from tests.kit.wrapped_objects import CountingObjects
from tests.storage_core.store.managed_homes import (
    FILES,
    NOW_MS,
    PARTITION,
    ManagedHome,
    contents,
    create_partition,
    open_partition,
)


@pytest.fixture
def objects():
    yield MemoryObjectStore("memory://managed/root", ManualClock(NOW_MS))
    forget_memory("memory://managed")


class ManagedContract(StoreContract):
    @pytest.fixture(params=["not committed", "each test on a committed partition"])
    def home(self, request, objects, tmp_path):
        attempt = open_partition(objects, is_new=True)
        if request.param != "not committed":
            attempt.publish(run_id="run-1", result={"empty": True})
        return ManagedHome(objects, attempt, tmp_path)


class TestManagedStoreInMemory(ManagedContract):
    @pytest.fixture
    def objects(self):
        yield MemoryObjectStore("memory://contract/root")
        forget_memory("memory://contract")


class TestManagedStoreOnDisk(ManagedContract):
    @pytest.fixture
    def objects(self, tmp_path):
        return LocalObjectStore(tmp_path / "root")


def test_locations_say_which_store_it_is(tmp_path: Path):
    assert isinstance(open_store(str(tmp_path / "t-0")), LocalStore)
    assert isinstance(open_store(f"file://{tmp_path}/t-0"), LocalStore)
    assert open_store(f"file://{tmp_path}/t-0").location == str(tmp_path / "t-0")
    assert isinstance(open_store("memory://a/b/t-0"), ObjectDirectory)
    assert open_store("memory://a/t-0").location == "memory://a/t-0"
    managed = open_store(f"managed+{tmp_path}/t-0")
    assert isinstance(managed, ManagedStore)
    assert (managed.objects.url, managed.partition) == (str(tmp_path), TopicPartition("t", 0))
    assert managed.location == f"managed+{tmp_path}/t-0"
    assert open_store("managed+memory://a/t-0#generation=7").location.endswith("#generation=7")
    for location in ("managed+/root/no-number-", "managed+/t-0#generation=x", "managed+/t-0#"):
        with pytest.raises(errors.InvalidNameError):
            open_store(location)


def test_what_was_published_is_what_others_read(objects):
    create_partition(objects)
    store = open_store(f"managed+{objects.url}/topic-0")
    assert contents(store) == FILES
    assert {info.modified_ms for info in store.list_files()} == {1_700_000_000_000}
    assert store.manifest.generation == 1
    assert store.checkpoints == PartitionCheckpoints(log_start_offset=0, recovery_point=50)
    assert store.location == f"managed+{objects.url}/topic-0#generation=1"


@pytest.mark.item("SEG-10")
def test_times_and_largest_timestamps_come_from_the_manifest(objects, tmp_path: Path):
    create_partition(objects)
    store = open_partition(objects)
    # From the time index of the first segment; the second has none.
    assert store.largest_timestamps() == {0: 1_700_000_000_000}
    scratch = tmp_path / "scratch"
    scratch.write_bytes(b"cleaned")
    os.utime(scratch, ns=(0, 1_600_000_000_000_000_000))
    store.promote(str(scratch), OTHER)
    store.set_largest_timestamps({42: 1_650_000_000_000})
    store.rename(OTHER, OTHER + ".swap")
    store.rename(OTHER + ".swap", OTHER)
    store.publish(run_id="run-2", fencing_token=1)
    again = open_partition(objects)
    assert again.largest_timestamps() == {0: 1_700_000_000_000, 42: 1_650_000_000_000}
    assert {info.modified_ms for info in again.list_files() if info.name == OTHER} == {
        1_600_000_000_000
    }
    assert not scratch.exists()


def test_companions_of_a_segment_share_one_object(objects):
    manifest = create_partition(objects)
    keys = {name: entry.key for name, entry in manifest.files.items() if entry.size_bytes}
    assert keys["00000000000000000042.index"] == keys["00000000000000000042.snapshot"]
    assert keys["00000000000000000042.index"].endswith("/a1/00000000000000000042.companions")
    assert keys["leader-epoch-checkpoint"].endswith("/a1/partition.companions")
    assert keys[NAME].endswith(f"/a1/{NAME}")
    assert manifest.files["00000000000000000000.index"].key == ""


def test_a_small_change_costs_two_puts_and_no_data_is_read(objects):
    create_partition(objects)
    counting = CountingObjects(objects)
    store = open_partition(counting)
    assert len(store.list_files()) == len(FILES)
    assert store.largest_timestamps() == {0: 1_700_000_000_000}
    assert dict(counting.requests) == {("get", "manifest"): 1}
    store.delete(NAME)
    store.publish(run_id="run-2", fencing_token=1)
    assert dict(counting.requests) == {
        ("get", "manifest"): 1,
        ("put_if_absent", "history"): 1,
        ("put_if_match", "manifest"): 1,
    }


def test_companions_are_fetched_together(objects):
    create_partition(objects)
    counting = CountingObjects(objects)
    store = open_partition(counting)
    for name in FILES:
        store.read_file(name, limit_bytes=1 << 20)
        file = store.open_file(name)
        target = np.empty(file.size_bytes, np.uint8)
        assert file.read_into(0, target) == file.size_bytes
        assert target.tobytes() == FILES[name]
    # Three objects of companions; each of the two logs was read twice.
    assert dict(counting.requests) == {
        ("get", "manifest"): 1,
        ("get", "companions"): 3,
        ("get", "data"): 4,
    }


def test_cutting_and_copying_move_no_bytes(objects):
    create_partition(objects)
    counting = CountingObjects(objects)
    store = open_partition(counting)
    store.copy_range(NAME, 5, 20, "00000000000000000017.log", modified_ms=NOW_MS)
    store.truncate(NAME, 5)
    store.publish(run_id="run-2", fencing_token=1)
    assert {kind for _, kind in counting.requests} == {"manifest", "history"}
    found = contents(open_partition(objects))
    assert found[NAME] == FILES[NAME][:5]
    assert found["00000000000000000017.log"] == FILES[NAME][5:25]
    with pytest.raises(errors.StorageError, match="ends after 5 bytes, expected 6"):
        store.copy_range(NAME, 3, 3, OTHER, modified_ms=0)
    with pytest.raises(errors.StorageError, match="fewer than 6"):
        store.truncate(NAME, 6)


@pytest.mark.item("DIR-15")
def test_a_reader_that_began_before_a_commit_reads_on_undisturbed(objects):
    create_partition(objects)
    reader = open_partition(objects)
    reader.list_files()
    file = reader.open_file(OTHER)
    writer = open_partition(objects)
    writer.write_file(OTHER, b"cleaned")
    writer.delete(NAME)
    writer.publish(run_id="run-2", fencing_token=1)
    target = np.empty(len(FILES[OTHER]), np.uint8)
    assert file.read_into(0, target) == target.size
    assert target.tobytes() == FILES[OTHER]
    assert contents(reader) == FILES
    assert contents(open_store(reader.location)) == FILES
    assert set(contents(open_partition(objects))) == FILES.keys() - {NAME}


@pytest.mark.item("FLT-10", "DIR-15")
def test_of_two_writers_one_commits(objects):
    create_partition(objects)
    one, two = open_partition(objects), open_partition(objects)
    one.delete(NAME)
    two.delete(OTHER)
    one.publish(run_id="run-2", fencing_token=1)
    with pytest.raises(errors.ConditionFailedError, match=r"manifest\.json"):
        two.publish(run_id="run-3", fencing_token=1)
    assert contents(open_partition(objects)).keys() == FILES.keys() - {NAME}
    with pytest.raises(errors.ConditionFailedError):
        open_partition(objects, is_new=True).objects.put_if_absent(
            generations.manifest_key(PARTITION), b""
        )


def test_of_two_that_create_a_partition_one_does(objects):
    one, two = (open_partition(objects, is_new=True) for _ in range(2))
    one.write_file(NAME, b"one")
    two.write_file(NAME, b"two")
    one.publish(run_id="run-1")
    with pytest.raises(errors.ConditionFailedError):
        two.publish(run_id="run-2")
    assert contents(open_partition(objects)) == {NAME: b"one"}


def test_a_plan_made_from_a_generation_is_committed_against_it_only(objects):
    create_partition(objects)
    location = f"managed+{objects.url}/topic-0#generation=1"
    planned = open_store(location)
    assert isinstance(planned, ManagedStore)
    planned.delete(NAME)
    planned.publish(run_id="run-2", fencing_token=1)
    late = open_store(location)
    assert isinstance(late, ManagedStore)
    assert contents(late) == FILES
    late.delete(OTHER)
    with pytest.raises(errors.ConditionFailedError, match="of generation 1"):
        late.publish(run_id="run-3", fencing_token=1)
    with pytest.raises(errors.PartitionNotFoundError, match="generation=9"):
        open_store(f"managed+{objects.url}/topic-0#generation=9").list_files()


@pytest.mark.item("FLT-10")
def test_a_lower_fencing_token_cannot_commit(objects):
    create_partition(objects)
    newer = open_partition(objects)
    newer.delete(NAME)
    newer.publish(run_id="run-2", fencing_token=5)
    zombie = open_partition(objects)
    zombie.delete(OTHER)
    with pytest.raises(errors.LeaseLostError, match="token 4"):
        zombie.publish(run_id="run-1", fencing_token=4)
    assert zombie.publish(run_id="run-3", fencing_token=5).generation == 3


def test_a_fence_stops_the_one_put_that_counts(objects):
    create_partition(objects)
    store = open_partition(objects)
    store.write_file(NAME, b"cleaned")

    def lost() -> None:
        raise errors.LeaseLostError("root", "run-2", "ended")

    with pytest.raises(errors.LeaseLostError):
        store.publish(run_id="run-2", fencing_token=1, fence=lost)
    assert contents(open_partition(objects)) == FILES
    assert store.publish(run_id="run-2", fencing_token=1, fence=lambda: None).generation == 2


def test_nothing_to_do_writes_nothing(objects):
    create_partition(objects)
    counting = CountingObjects(objects)
    store = open_partition(counting)
    assert store.publish(run_id="run-2", fencing_token=2).run_id == "run-1"
    assert dict(counting.requests) == {("get", "manifest"): 1}
    kept = store.publish(run_id="run-2", fencing_token=2, result={"status": "skipped"})
    assert (kept.generation, kept.result) == (2, {"status": "skipped"})


@pytest.mark.parametrize(
    "change",
    [
        pytest.param(
            lambda store: store.set_checkpoints(PartitionCheckpoints(log_start_offset=99)),
            id="checkpoints",
        ),
        pytest.param(lambda store: store.set_topic_id("A" * 22), id="topic id"),
        pytest.param(lambda store: store.delete(NAME), id="files"),
    ],
)
def test_a_change_of_anything_is_a_generation_of_its_own(objects, change):
    create_partition(objects)
    store = open_partition(objects)
    change(store)
    assert store.publish(run_id="run-2", fencing_token=1).generation == 2


def test_a_generation_is_restored_by_another_commit(objects):
    first = create_partition(objects)
    store = open_partition(objects)
    for name in list(FILES):
        store.delete(name)
    store.set_checkpoints(PartitionCheckpoints(log_start_offset=99))
    store.publish(run_id="run-2", fencing_token=1)
    undo = open_partition(objects)
    undo.restore(generations.read_history(objects, PARTITION, 1))
    manifest = undo.publish(run_id="run-3", fencing_token=1)
    assert (manifest.generation, manifest.files) == (3, first.files)
    assert manifest.checkpoints == first.checkpoints
    assert contents(open_partition(objects)) == FILES
    assert generations.read_history(objects, PARTITION, 2).files == {}
    assert objects.get(generations.history_key(PARTITION, 1))


def test_what_a_task_uploaded_is_promoted_by_the_commit(objects, tmp_path: Path):
    create_partition(objects)
    path = tmp_path / "cleaned.log"
    path.write_bytes(b"cleaned by a task")
    os.utime(path, ns=(0, 1_650_000_000_000_000_000))
    log = upload_file(objects, PARTITION, "task-1", path, NAME, largest_timestamp=7)
    companions = upload_companions(
        objects,
        generations.data_key(PARTITION, "task-1", "00000000000000000000.companions"),
        {"00000000000000000000.index": (b"index", 1), "00000000000000000000.timeindex": (b"", 2)},
    )
    store = open_partition(objects)
    store.promote(log, NAME)
    for name, entry in companions.items():
        store.promote(encode_location(entry), name)
    assert path.exists()
    manifest = store.publish(run_id="run-2", fencing_token=1)
    found = contents(open_partition(objects))
    assert found[NAME] == b"cleaned by a task"
    assert found["00000000000000000000.index"] == b"index"
    assert found["00000000000000000000.timeindex"] == b""
    assert manifest.files[NAME].largest_timestamp == 7
    assert manifest.files[NAME].modified_ms == 1_650_000_000_000


def test_an_upload_that_is_gone_or_another_is_not_promoted(objects, tmp_path: Path):
    create_partition(objects)
    path = tmp_path / "cleaned.log"
    path.write_bytes(b"cleaned by a task")
    location = upload_file(objects, PARTITION, "task-1", path, NAME)
    objects.put(generations.data_key(PARTITION, "task-1", NAME), b"by somebody else")
    with pytest.raises(errors.StorageError, match="expected version"):
        open_partition(objects).promote(location, NAME)
    objects.delete([generations.data_key(PARTITION, "task-1", NAME)])
    with pytest.raises(errors.StorageError, match="no such object"):
        open_partition(objects).promote(location, NAME)
    with pytest.raises(errors.InvalidNameError):
        open_partition(objects).promote("pylog-object:{}", NAME)


def test_many_small_files_do_not_wait_in_memory_for_ever(objects):
    store = open_partition(objects, is_new=True)
    for base in range(12):
        store.write_file(f"{base:020d}.index", bytes([base]) * (8 << 20))
    waiting = sum(1 for base in range(12) if store.entry_of(f"{base:020d}.index") is None)
    assert waiting * 8 <= 64
    store.write_file("00000000000000000000.index", b"again")
    store.publish(run_id="run-1")
    again = open_partition(objects)
    assert again.read_file("00000000000000000000.index", limit_bytes=9) == b"again"
    assert again.read_file("00000000000000000003.index", limit_bytes=8 << 20)[:1] == b"\3"


def test_an_adopted_object_is_read_where_it_lies(objects, tmp_path: Path):
    mirror = LocalObjectStore(tmp_path / "mirror")
    etag = mirror.put("topic-0/a.log", b"of the mirror")
    root = LocalObjectStore(tmp_path / "root")
    store = open_partition(root, is_new=True)
    entry = generations.FileEntry(
        key=f"file://{tmp_path}/mirror/topic-0/a.log",
        start=0,
        size_bytes=13,
        etag=etag,
        modified_ms=1,
    )
    store.adopt(NAME, entry)
    store.publish(run_id="run-1")
    assert contents(open_partition(root)) == {NAME: b"of the mirror"}
    mirror.put("topic-0/a.log", b"another fact!")
    with pytest.raises(errors.ChangedWhileReadError):
        contents(open_partition(root))
    with pytest.raises(errors.InvalidNameError):
        open_partition(objects, is_new=True).adopt(NAME, entry)


def test_a_store_travels_with_its_manifest(objects):
    manifest = create_partition(objects)
    assert pickle.loads(pickle.dumps(manifest)) == manifest


@pytest.mark.thorough
def test_threads_share_a_store_that_none_of_them_has_read_before(objects, hasty_threads):
    create_partition(objects)
    with ThreadPoolExecutor(8) as pool:
        for _ in range(100):
            store = open_partition(objects)
            start = threading.Barrier(8, timeout=60)

            def read_all(_number, store=store, start=start):
                start.wait()
                return contents(store), store.checkpoints.recovery_point

            assert list(pool.map(read_all, range(8))) == [(FILES, 50)] * 8


def test_a_root_is_read_without_this_program(tmp_path: Path):
    create_partition(LocalObjectStore(tmp_path))
    store = open_partition(LocalObjectStore(tmp_path))
    store.copy_range(NAME, 5, 20, "00000000000000000017.log", modified_ms=NOW_MS)
    store.publish(run_id="run-2", fencing_token=1)
    manifest = json.loads((tmp_path / "topic-0" / "manifest.json").read_text())
    found = {}
    for name, entry in manifest["files"].items():
        content = (tmp_path / entry["key"]).read_bytes() if entry["size"] else b""
        found[name] = content[entry["start"] : entry["start"] + entry["size"]]
    assert found == {**FILES, "00000000000000000017.log": FILES[NAME][5:25]}
    assert (manifest["format"], manifest["version"]) == ("pylog-manifest", 1)
    before = json.loads((tmp_path / "topic-0" / "history" / f"{1:020d}.json").read_text())
    assert before["files"].keys() == FILES.keys()
