"""Undo and purge of managed roots: another generation, and what no generation needs any more."""

import os
import threading
from dataclasses import replace
from pathlib import Path

import pytest

from pylog_spark.engines.choice import Local
from pylog_spark.engines.local_engine import LocalEngine
from pylog_spark.operations import purge as purge_module
from pylog_spark.operations import undo as undo_module
from pylog_spark.operations.purge import purge
from pylog_spark.operations.undo import check_undo, find_run_id, undo
from pylog_spark.options import JobOptions
from storage_core.catalog.roles import Role
from storage_core.clock import ManualClock, SystemClock
from storage_core.errors import ConfigError, GuardRefusedError, StorageError
from storage_core.filenames import TopicPartition, log_file
from storage_core.roots import managed
from storage_core.roots.managed import HeldManagedRoot, ManagedAccess
from storage_core.store import ManagedStore, ObjectStore, open_object_store
from storage_core.store.generations import create_root
from tests.kit.compare import read_tree
from tests.pylog_spark.broker_roots import broker_directory, rows_of
from tests.pylog_spark.managed_roots import CREATED_MS, ManagedTwin, managed_twin
from tests.pylog_spark.operations.test_undo_failing_disks import TwoDisks, compacted

SMALL = ["clean-headers-none-s101", "clean-hw-none-s161"]
RUN = "20260102T030405Z-0a1b2c3d"
RUN_MS = 1_767_323_045_000
HOUR = 3_600_000


@pytest.fixture
def twin(tmp_path) -> ManagedTwin:
    return managed_twin(broker_directory(tmp_path / "log", SMALL), tmp_path / "managed")


def options(**changes) -> JobOptions:
    now = SystemClock().now_ms()
    return replace(JobOptions(now_ms=now, now_is_said=True, role=Role.MANAGED), **changes)


def publish(twin: ManagedTwin, topic: str, run_id: str, content: bytes) -> ManagedStore:
    """Replace the first segment of a partition, as a run does, and drop the second one."""
    store = twin.store(topic)
    logs = [file.name for file in store.list_files() if file.name.endswith(".log")]
    store.write_file(logs[0], content)
    store.delete(logs[1])
    store.set_checkpoints(replace(store.checkpoints, cleaner_offset=7))
    store.publish(run_id=run_id)
    return twin.store(topic)


def test_an_undo_names_again_what_was_named_before_the_run(twin):
    before = {topic: twin.tree(topic) for topic in SMALL}
    checkpoints = twin.store(SMALL[0]).checkpoints
    publish(twin, SMALL[0], RUN, b"first")
    publish(twin, SMALL[0], RUN, b"second")
    dry = undo(RUN, options(dry_run=True), roots=[twin.location])
    assert [row["status"] for row in rows_of(dry).values()] == ["planned"]
    objects = [info.key for info in twin.objects.list("") if "/data/" in info.key]
    report = undo(RUN, options(), roots=[twin.location])

    row = rows_of(report)[SMALL[0]]
    assert (report.exit_code, row["status"]) == (0, "done")
    assert row["segments_after"] == row["segments_before"] + 2
    assert {topic: twin.tree(topic) for topic in SMALL} == before
    assert twin.store(SMALL[0]).checkpoints == checkpoints
    assert twin.store(SMALL[0]).manifest.generation == 4
    # Not a byte was copied.
    assert [info.key for info in twin.objects.list("") if "/data/" in info.key] == objects
    again = undo(RUN, options(), roots=[twin.location])
    assert rows_of(again)[SMALL[0]]["reason"] == "ALREADY_UNDONE"


@pytest.mark.thorough
def test_the_beginning_of_a_name_is_enough_as_in_a_trash(twin):
    publish(twin, SMALL[0], RUN, b"older")
    newer = RUN.replace("030405", "040506")
    publish(twin, SMALL[1], newer, b"newer")
    roots = [twin.location]
    assert find_run_id(RUN[:13], None, roots) == RUN
    assert find_run_id("latest", None, roots) == newer
    assert find_run_id("20270102T030405Z-0a1b2c3d", None, roots) == "20270102T030405Z-0a1b2c3d"
    with pytest.raises(ConfigError, match=f"2 runs begin so: {RUN}, {newer}"):
        find_run_id(RUN[:8], None, roots)
    with pytest.raises(ConfigError, match=r"no partition of .* is as a run of that name has left"):
        find_run_id("2027", None, roots)

    assert undo(newer[:13], options(), roots=roots).exit_code == 0
    # The newest run is an undo now: it stands for what it has undone, and no older one does.
    assert find_run_id("latest", None, roots) == newer
    assert find_run_id(newer[:13], None, roots) == newer
    again = undo("latest", options(), roots=roots)
    assert rows_of(again)[SMALL[1]]["reason"] == "ALREADY_UNDONE"


def test_what_somebody_committed_since_is_not_lost(twin):
    publish(twin, SMALL[0], RUN, b"of the run")
    publish(twin, SMALL[1], RUN, b"of the run")
    store = twin.store(SMALL[0])
    store.write_file("leader-epoch-checkpoint", b"0\n0\n")
    store.publish(run_id="another")
    after = twin.tree(SMALL[0])
    report = undo(RUN, options(), roots=[twin.location])
    rows = rows_of(report)
    assert (rows[SMALL[0]]["status"], rows[SMALL[0]]["reason"]) == ("skipped", "CHANGED_SINCE_RUN")
    assert "generation 3 was committed by run another" in rows[SMALL[0]]["error"]
    assert rows[SMALL[1]]["status"] == "done"
    assert report.exit_code == 3
    assert twin.tree(SMALL[0]) == after


@pytest.mark.thorough
def test_what_was_committed_since_by_a_clock_an_hour_behind_is_not_lost(twin):
    publish(twin, SMALL[0], RUN, b"of the run")
    clock = ManualClock(RUN_MS - HOUR)
    store = ManagedStore(twin.objects, TopicPartition(SMALL[0], 0), clock=clock)
    store.write_file("leader-epoch-checkpoint", b"0\n0\n")
    store.publish(run_id="another")
    report = undo(RUN, options(), roots=[twin.location])
    assert [row["reason"] for row in rows_of(report).values()] == ["CHANGED_SINCE_RUN"]
    assert report.exit_code == 3


@pytest.mark.thorough
def test_a_lease_of_somebody_else_refuses_an_undo_with_the_holders_name(twin):
    publish(twin, SMALL[0], RUN, b"of the run")
    with (
        HeldManagedRoot(twin.location, run_id="nightly"),
        pytest.raises(GuardRefusedError, match="nightly"),
    ):
        undo(RUN, options(), roots=[twin.location])


@pytest.fixture
def of_both(twin, tmp_path) -> TwoDisks:
    """A run that compacted a log directory and changed a managed root."""
    disks = compacted(tmp_path, SMALL[:1])
    publish(twin, SMALL[1], RUN, b"of the run")
    return disks


@pytest.mark.thorough
def test_who_is_refused_a_lease_leaves_a_log_directory_as_a_killed_run_left_it(twin, of_both):
    path = of_both.roots[SMALL[0]].path
    (path / f"{SMALL[0]}-0" / "pylog-scratch-of-a-killed-run").write_bytes(b"1")
    before = read_tree(path)
    told = replace(of_both.options, role=None)
    assert [root.location for root in check_undo(RUN, told, [twin.location])] == [
        twin.location,
        str(path),
    ]
    with (
        HeldManagedRoot(twin.location, run_id="nightly"),
        pytest.raises(GuardRefusedError, match="nightly"),
    ):
        undo(RUN, told, roots=[twin.location])
    assert read_tree(path) == before
    report = undo(RUN, told, roots=[twin.location])
    assert {row["status"] for row in rows_of(report).values()} == {"done"}
    of_both.check_undone(SMALL[0])


@pytest.mark.thorough
def test_log_directories_are_undone_before_a_store_that_fails_ends_the_undo(
    twin, of_both, monkeypatch
):
    def fail(objects):
        raise StorageError(objects.url, "Input/output error")

    monkeypatch.setattr(managed, "list_partitions", fail)
    with pytest.raises(StorageError, match="Input/output error"):
        undo(RUN, replace(of_both.options, role=None), roots=[twin.location])
    of_both.check_undone(SMALL[0])


@pytest.mark.thorough
def test_partitions_of_a_root_on_a_disk_are_undone_at_the_same_time(twin, monkeypatch):
    for topic in SMALL:
        publish(twin, topic, RUN, b"of the run")
    meeting = threading.Barrier(len(SMALL), timeout=20)
    commit = ManagedAccess.publish

    def together(access, store, result):
        meeting.wait()
        commit(access, store, result)

    monkeypatch.setattr(ManagedAccess, "publish", together)
    report = undo(RUN, options(), roots=[twin.location], place=Local(1))
    assert [row["status"] for row in rows_of(report).values()] == ["done"] * len(SMALL)


@pytest.fixture
def stages(monkeypatch) -> list[tuple[str, int]]:
    """Take note where the stages of a run are done, and in how many tasks."""
    done = []
    do = LocalEngine._do

    def noted(engine, stage, given, *, is_look):
        done.append(("here" if is_look else "in other processes", len(given)))
        return do(engine, stage, given, is_look=is_look)

    monkeypatch.setattr(LocalEngine, "_do", noted)
    return done


def many(location: str) -> ObjectStore:
    """Make a root of 40 partitions, of which a run has changed all but every fifth."""
    objects = open_object_store(location)
    create_root(objects, now_ms=CREATED_MS)
    for number in range(40):
        store = ManagedStore(objects, TopicPartition("t", number), is_new=True)
        store.write_file(log_file(0), b"before the run")
        store.publish(run_id="ingest")
        store.write_file(log_file(0), b"of the run")
        store.publish(run_id=RUN if number % 5 else "another")
    return objects


@pytest.mark.thorough
@pytest.mark.parametrize("are_few", [True, False], ids=["few partitions", "very many partitions"])
def test_many_partitions_are_undone_by_several_tasks_stage_by_stage(
    tmp_path, monkeypatch, stages, are_few
):
    monkeypatch.setattr(undo_module, "are_looked_at_here", lambda _: are_few)
    monkeypatch.setattr(managed, "_UNDONE_AT_ONCE", 30)
    found = []
    for slots in (1, 2):
        objects = many(str(tmp_path / f"managed-{slots}"))
        report = undo(RUN, options(), roots=[objects.url], place=Local(slots))
        assert report.exit_code == 0
        rows = [row | {"root": "", "run_id": ""} for row in report.results.to_pylist()]
        assert all(row.pop("directory").endswith(f"/t-{row['partition']}") for row in rows)
        found.append([{k: v for k, v in row.items() if k != "duration_ms"} for row in rows])
        for number in range(40):
            store = ManagedStore(objects, TopicPartition("t", number))
            content = store.read_file(log_file(0), limit_bytes=99)
            assert content == (b"before the run" if number % 5 else b"of the run"), number
    assert found[0] == found[1]
    assert [row["partition"] for row in found[0]] == [n for n in range(40) if n % 5]
    assert {row["status"] for row in found[0]} == {"done"}
    place = "here" if are_few else "in other processes"
    assert stages == [(place, 2), (place, 1)] * 2


@pytest.mark.thorough
@pytest.mark.parametrize("are_few", [True, False], ids=["few partitions", "very many partitions"])
def test_purge_takes_what_no_generation_within_the_grace_period_needs(
    twin, monkeypatch, stages, are_few
):
    monkeypatch.setattr(purge_module, "are_looked_at_here", lambda _: are_few)
    publish(twin, SMALL[0], RUN, b"of the run")
    before = {topic: twin.tree(topic) for topic in SMALL}
    young = purge([twin.location], options(purge_after_ms=HOUR))
    assert young.results.num_rows == 0
    late = options(now_ms=SystemClock().now_ms() + 2 * HOUR, purge_after_ms=HOUR)
    listed = purge([twin.location], replace(late, dry_run=True))
    assert [row["status"] for row in rows_of(listed).values()] == ["planned"]
    keys = {info.key for info in twin.objects.list("")}
    report = purge([twin.location], late)

    row = rows_of(report)[SMALL[0]]
    assert (row["status"], row["bytes_after"]) == ("done", 0)
    gone = keys - {info.key for info in twin.objects.list("")} - {"lease.json"}
    assert any("/data/" in key for key in gone)
    assert all(key.startswith(f"{SMALL[0]}-0/") for key in gone)
    assert {topic: twin.tree(topic) for topic in SMALL} == before
    assert ManagedStore(twin.objects, TopicPartition(SMALL[0], 0)).manifest.generation == 2
    assert {place for place, _ in stages} == {"here" if are_few else "in other processes"}
    # The generation before is gone: there is no way back any more.
    refused = undo(RUN, options(), roots=[twin.location])
    assert (refused.exit_code, rows_of(refused)[SMALL[0]]["reason"]) == (3, "PURGED")


@pytest.mark.thorough
def test_what_a_purge_failed_to_take_is_taken_by_the_next_one(twin, monkeypatch):
    orphan = f"{SMALL[0]}-0/data/of-a-killed-task/{log_file(0)}"
    twin.objects.put(orphan, b"named by nothing")
    old_s = SystemClock().now_ms() // 1000 - 10 * 3600
    for path in Path(twin.location).rglob("*"):
        os.utime(path, (old_s, old_s))
    due = options(purge_after_ms=HOUR)

    def fail(objects, *_, **__):
        raise StorageError(objects.url, "Input/output error")

    with monkeypatch.context() as patch:
        patch.setattr(managed, "find_garbage", fail)
        assert purge([twin.location], due).exit_code == 4
    assert rows_of(purge([twin.location], due))[SMALL[0]]["status"] == "done"
    assert orphan not in [info.key for info in twin.objects.list("")]
