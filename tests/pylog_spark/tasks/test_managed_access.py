"""Commits on managed roots: one attempt counts, a zombie changes nothing, readers read on."""

import pickle
import threading
from dataclasses import replace

import pytest

from storage_core.checkpoint.checkpoints import PartitionCheckpoints
from storage_core.clock import ManualClock
from storage_core.config import CleanerConfig
from storage_core.errors import GuardRefusedError, StorageError
from storage_core.filenames import TopicPartition, log_file, offset_of, sorted_logs
from storage_core.roots import managed
from storage_core.roots.managed import HeldManagedRoot
from storage_core.roots.root import Prepared
from storage_core.store import ManagedStore
from storage_core.store.generations import GENERATION_MARK
from storage_core.store.object_files import ObjectFileReader
from tests.kit.compare import read_tree
from tests.kit.one_partition import clean_partition
from tests.pylog_spark.broker_roots import FIRST_ROUNDS_MS, broker_directory, cleaner
from tests.pylog_spark.managed_roots import managed_twin, read_store
from tests.pylog_spark.tasks.managed_pipeline import ManagedPipeline, clean

NAMES = ["clean-headers-none-s101", "clean-hw-none-s161", "clean-epochs-mixed-s151"]
NAME = NAMES[0]


@pytest.fixture
def origin(tmp_path):
    return broker_directory(tmp_path / "log", NAMES)


@pytest.fixture(params=["local", "memory"])
def twin(request, tmp_path, origin):
    local = tmp_path / "managed"
    return managed_twin(
        origin, local if request.param == "local" else f"memory://access-{tmp_path.name}"
    )


def expected_tree(origin, name, tmp_path):
    copy = origin.copy(tmp_path / f"expected-{name}")
    clean_partition(
        copy.path / f"{name}-0",
        config=copy.config(name),
        cleaner=cleaner(),
        request=copy.request(name, FIRST_ROUNDS_MS),
    )
    return read_tree(copy.path / f"{name}-0")


def bases_in(store):
    return [offset_of(name) for name in sorted_logs(file.name for file in store.list_files())]


@pytest.mark.sampled(1)
def test_every_partition_ends_as_in_a_brokers_directory(twin, origin, tmp_path):
    pipeline = ManagedPipeline(twin, FIRST_ROUNDS_MS)
    with pipeline.held() as context:
        rows = clean(pipeline.works(), context)
    assert [row["error"] for row in rows] == [None] * len(NAMES)
    for name in NAMES:
        assert twin.tree(name) == expected_tree(origin, name, tmp_path), name
    assert {row["reason"] for row in pipeline.observe()} == {"NOTHING_TO_CLEAN"}


@pytest.mark.thorough
def test_a_commit_is_one_generation_and_its_manifest_says_whose(twin):
    pipeline = ManagedPipeline(twin, FIRST_ROUNDS_MS)
    with pipeline.held() as context:
        rows = clean(pipeline.works(), context)
    manifest = twin.store(NAME).manifest
    assert (manifest.generation, manifest.run_id, manifest.fencing_token) == (2, "run", 1)
    row = next(r for r in rows if r["next_offset"] == manifest.checkpoints.cleaner_offset)
    assert manifest.result["row"]["next_offset"] == row["next_offset"]


@pytest.mark.thorough
def test_a_second_attempt_of_a_task_finds_the_commit_of_the_first(twin):
    pipeline = ManagedPipeline(twin, FIRST_ROUNDS_MS)
    with pipeline.held() as context:
        works = pipeline.works()
        first = clean(works, context)
        before = {name: twin.store(name).manifest for name in NAMES}
        objects = sorted(info.key for info in twin.objects.list())
        second = clean(works, context)
    timeless = [{k: v for k, v in row.items() if k != "duration_ms"} for row in second]
    assert timeless == [{k: v for k, v in row.items() if k != "duration_ms"} for row in first]
    assert {name: twin.store(name).manifest for name in NAMES} == before
    assert sorted(info.key for info in twin.objects.list()) == objects


@pytest.mark.thorough
def test_of_two_attempts_at_once_only_one_attempts_objects_are_named(twin, monkeypatch):
    pipeline = ManagedPipeline(twin, FIRST_ROUNDS_MS)
    with pipeline.held() as context:
        work = [w for w in pipeline.works() if w.ref.partition.topic == NAME]
        publish = managed.ManagedAccess._publish
        other: list[dict] = []

        def overtaken(self, *args):
            monkeypatch.setattr(managed.ManagedAccess, "_publish", publish)
            other.extend(clean(work, context))
            return publish(self, *args)

        monkeypatch.setattr(managed.ManagedAccess, "_publish", overtaken)
        slower = clean(work, context)
    assert slower[0]["error"] is None
    assert slower[0]["next_offset"] == other[0]["next_offset"]
    manifest = twin.store(NAME).manifest
    assert manifest.generation == 2
    cleaned = {file.key.split("/")[2] for file in manifest.files.values() if file.key}
    uploaded = {info.key.split("/")[2] for info in twin.objects.list(f"{NAME}-0/data/") if info.key}
    assert len(uploaded - cleaned) >= 1


@pytest.mark.thorough
@pytest.mark.item("FLT-10")
def test_a_second_run_is_refused_with_the_holders_name(twin):
    with (
        ManagedPipeline(twin, FIRST_ROUNDS_MS, run_id="first").held(),
        pytest.raises(GuardRefusedError, match=r"LEASE_HELD.*run first on .*, process"),
        HeldManagedRoot(twin.location, run_id="second"),
    ):
        pass
    with HeldManagedRoot(twin.location, run_id="third"):
        pass


@pytest.mark.thorough
def test_a_zombie_whose_lease_ended_cannot_commit(twin):
    pipeline = ManagedPipeline(twin, FIRST_ROUNDS_MS, run_id="zombie")
    clock = ManualClock(0)
    root = HeldManagedRoot(twin.location, run_id="zombie", ttl_ms=1, clock=clock)
    with root:
        context = pipeline.context(root)
        works = pipeline.works()
        before = {name: twin.store(name).manifest for name in NAMES}
        # By the clock of the tasks the lease ended decades ago.
        rows = clean(works, context)
    assert {row["error_class"] for row in rows} == {"LeaseLostError"}
    assert {row["touched"] for row in rows} == {False}
    assert {name: twin.store(name).manifest for name in NAMES} == before


@pytest.mark.thorough
def test_a_zombie_whose_lease_another_run_has_cannot_commit(twin, origin, tmp_path):
    zombie = ManagedPipeline(twin, FIRST_ROUNDS_MS, run_id="zombie")
    root = HeldManagedRoot(twin.location, run_id="zombie")
    root.__enter__()
    context = pickle.loads(pickle.dumps(zombie.context(root)))
    works = zombie.works()
    root.__exit__(None, None, None)
    living = zombie.later("living")
    with living.held() as theirs:
        clean(living.works(), theirs)
        rows = clean(works, context)
    assert {row["error_class"] for row in rows} == {"LeaseLostError"}
    assert "run living" in rows[0]["error"]
    for name in NAMES:
        assert twin.tree(name) == expected_tree(origin, name, tmp_path)
        assert twin.store(name).manifest.run_id == "living"


@pytest.mark.thorough
def test_a_lease_that_is_lost_between_the_upload_and_the_commit_stops_the_commit(twin, monkeypatch):
    pipeline = ManagedPipeline(twin, FIRST_ROUNDS_MS)
    with pipeline.held() as context:
        works = pipeline.works()
        publish = managed.ManagedAccess._publish

        def interrupted(self, *args):
            context.roots[twin.location].validate()
            twin.objects.delete(["lease.json"])
            return publish(self, *args)

        monkeypatch.setattr(managed.ManagedAccess, "_publish", interrupted)
        rows = clean(works[:1], context)
    assert rows[0]["error_class"] == "LeaseLostError"
    assert twin.store(works[0].ref.partition.topic).manifest.generation == 1


@pytest.mark.thorough
@pytest.mark.item("FLT-10")
def test_what_changed_since_it_was_planned_is_not_overwritten(twin):
    pipeline = ManagedPipeline(twin, FIRST_ROUNDS_MS)
    with pipeline.held() as context:
        works = [w for w in pipeline.works() if w.ref.partition.topic == NAME]
        store = twin.store(NAME)
        store.set_checkpoints(PartitionCheckpoints(high_watermark=1))
        store.publish(run_id="somebody", fencing_token=1)
        row = clean(works, context)[0]
    assert row["error_class"] == "ChangedWhileReadError"
    assert "generation 2, committed by run somebody" in row["error"]
    assert twin.store(NAME).manifest.generation == 2


@pytest.mark.thorough
@pytest.mark.item("FLT-10", "FLT-14")
def test_another_work_of_the_run_is_not_taken_for_ones_own(twin):
    pipeline = ManagedPipeline(twin, FIRST_ROUNDS_MS)
    with pipeline.held() as context:
        [work] = [w for w in pipeline.works() if w.ref.partition.topic == NAME]
        assert clean([work], context)[0]["error"] is None
        commit = context.roots[twin.location].commit
        row = commit(
            work.ref.directory, "retain", lambda _: Prepared(result={"left": 0}, plan=None)
        )
        planned = f"{work.ref.directory}{GENERATION_MARK}1"
        late = commit(planned, "retain", lambda _: pytest.fail("it is planned from what is gone"))
    assert row == {"left": 0}
    assert (late["error_class"], late["touched"]) == ("ChangedWhileReadError", False)
    assert twin.store(NAME).manifest.generation == 2


@pytest.mark.thorough
def test_a_reader_that_opened_a_partition_before_a_commit_reads_on_undisturbed(twin):
    before = twin.tree(NAME)
    reader = twin.store(NAME)
    assert reader.manifest.generation == 1
    pinned = reader.location
    pipeline = ManagedPipeline(twin, FIRST_ROUNDS_MS)
    with pipeline.held() as context:
        clean(pipeline.works(), context)
    assert read_store(reader) == before
    assert pinned.endswith("#generation=1")
    assert twin.tree(NAME, generation=1) == before
    assert twin.tree(NAME) != before


@pytest.mark.thorough
def test_a_damaged_partition_changes_nothing_and_stops_no_other(twin, origin, tmp_path):
    store = twin.store(NAME)
    log = next(file.name for file in store.list_files() if file.name.endswith(".log"))
    data = bytearray(store.read_file(log, limit_bytes=1 << 30))
    data[-1] ^= 0xFF
    store.write_file(log, bytes(data))
    store.publish(run_id="damage")
    pipeline = ManagedPipeline(twin, FIRST_ROUNDS_MS)
    with pipeline.held() as context:
        works = pipeline.works()
        rows = {works[r["ordinal"]].ref.partition.topic: r for r in clean(works, context)}
    assert rows[NAME]["error_class"] == "CorruptRecordError"
    assert twin.store(NAME).manifest.run_id == "damage"
    for name in NAMES[1:]:
        assert twin.tree(name) == expected_tree(origin, name, tmp_path)


def test_a_place_that_is_no_managed_root_is_refused(tmp_path):
    with pytest.raises(GuardRefusedError, match="NOT_A_MANAGED_ROOT"):
        HeldManagedRoot(str(tmp_path), run_id="run").__enter__()


@pytest.mark.thorough
def test_cleaner_points_that_lay_outside_of_the_log_are_corrected_by_a_commit(twin):
    partition = TopicPartition(NAME, 0)
    with HeldManagedRoot(twin.location, run_id="run") as root:
        root.write_cleaner_points({partition: 7})
        root.write_cleaner_points({partition: 7})
    assert twin.store(NAME).checkpoints.cleaner_offset == 7
    assert twin.store(NAME).manifest.generation == 2


@pytest.mark.thorough
def test_cleaner_points_of_several_partitions_are_written_at_the_same_time(twin, monkeypatch):
    meeting = threading.Barrier(len(NAMES), timeout=20)
    publish = ManagedStore.publish

    def together(self, **arguments):
        meeting.wait()
        return publish(self, **arguments)

    monkeypatch.setattr(ManagedStore, "publish", together)
    partitions = [TopicPartition(name, 0) for name in NAMES]
    with HeldManagedRoot(twin.location, run_id="run") as root:
        root.write_cleaner_points(dict.fromkeys(partitions, 7))
        root.raise_cleaner_points(dict.fromkeys(partitions, 9))
        root.raise_cleaner_points(dict.fromkeys(partitions, 8))
    assert [twin.store(name).checkpoints.cleaner_offset for name in NAMES] == [9] * len(NAMES)
    assert [twin.store(name).manifest.generation for name in NAMES] == [3] * len(NAMES)


@pytest.mark.thorough
def test_a_run_that_lost_its_lease_writes_nothing_by_itself_either(twin):
    clock = ManualClock(0)
    root = HeldManagedRoot(twin.location, run_id="late", ttl_ms=60_000, clock=clock)
    with root:
        clock.advance(3_600_000)
        for write in (
            root.begin_writing,
            lambda: root.allow_commits([]),
            lambda: root.write_cleaner_points({TopicPartition(NAME, 0): 7}),
        ):
            with pytest.raises(GuardRefusedError, match="LEASE"):
                write()
    assert twin.store(NAME).manifest.generation == 1


@pytest.mark.thorough
def test_a_segment_of_which_key_sidecars_say_that_it_stays_is_not_read_by_pass_two(
    twin, origin, tmp_path, monkeypatch
):
    """Rounds over what the ones before have made, from its last segment on."""
    name = "clean-hw-none-s161"
    without = managed_twin(origin, tmp_path / "without")
    asked: list[str] = []
    fetch = ObjectFileReader.read_into

    def noted(self, position, target):
        asked.append(self.name)
        return fetch(self, position, target)

    reads, entries = [], []
    for each, folder in ((without, ""), (twin, str(tmp_path / "keys"))):
        settings = CleanerConfig(key_sidecars=folder)
        for number in range(3):
            run = ManagedPipeline(each, FIRST_ROUNDS_MS, run_id=f"run-{number}", cleaner=settings)
            with monkeypatch.context() as patch, run.held() as context:
                works = run.works()
                asked.clear()
                patch.setattr(ObjectFileReader, "read_into", noted)
                assert not any(row["error"] for row in clean(works, context))
            store = each.store(name)
            entries.append(store.entry_of(log_file(0)))
            end = store.checkpoints.cleaner_offset
            last = max(base for base in bases_in(store) if base < end)
            store.set_checkpoints(replace(store.checkpoints, cleaner_offset=last))
            store.publish(run_id="back", fencing_token=number + 1)
        reads.append(asked.count(log_file(0)))
    assert reads == [reads[1] + 1, reads[1]]
    assert entries[1] != entries[2]
    assert entries[4] == entries[5]
    assert twin.tree(name) == without.tree(name)


def test_the_off_switch_of_a_partition_on_this_machine_is_seen(tmp_path, origin):
    twin = managed_twin(origin, tmp_path / "managed")
    (tmp_path / "managed" / f"{NAME}-0" / "pylog-off").write_text("hands off")
    reasons = {row["topic"]: row.get("reason") for row in ManagedPipeline(twin, 1).observe()}
    assert reasons[NAME] == "SWITCHED_OFF"
    assert set(reasons.values()) != {"SWITCHED_OFF"}


def test_a_store_that_is_away_at_the_end_hides_nothing(twin, monkeypatch, caplog):
    root = HeldManagedRoot(twin.location, run_id="run")

    def away():
        raise StorageError("lease.json", "the store is away")

    with root:
        release = root._lease.release
        monkeypatch.setattr(root._lease, "release", away)
    assert "it ends by itself" in caplog.text
    release()  # its thread would renew it beside all tests to come
