"""Undo and purge of managed roots: another generation, and what no generation needs any more."""

from dataclasses import replace

import pytest

from pylog_spark.engines.local_engine import LocalEngine
from pylog_spark.operations import managed_purge
from pylog_spark.operations.purge import purge
from pylog_spark.operations.undo import undo
from pylog_spark.options import JobOptions
from storage_core.catalog.roles import Role
from storage_core.clock import SystemClock
from storage_core.errors import GuardRefusedError
from storage_core.filenames import TopicPartition
from storage_core.roots.managed import HeldManagedRoot
from storage_core.store import ManagedStore
from tests.pylog_spark.broker_roots import broker_directory
from tests.pylog_spark.managed_roots import ManagedTwin, managed_twin

SMALL = ["clean-headers-none-s101", "clean-hw-none-s161"]
RUN = "20260102T030405Z-0a1b2c3d"
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


def rows_of(report) -> dict[str, dict]:
    return {row["topic"]: row for row in report.results.to_pylist()}


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


def test_a_lease_of_somebody_else_refuses_an_undo_with_the_holders_name(twin):
    publish(twin, SMALL[0], RUN, b"of the run")
    with (
        HeldManagedRoot(twin.location, run_id="nightly"),
        pytest.raises(GuardRefusedError, match="nightly"),
    ):
        undo(RUN, options(), roots=[twin.location])


@pytest.mark.parametrize("are_few", [True, False], ids=["few partitions", "very many partitions"])
def test_purge_takes_what_no_generation_within_the_grace_period_needs(twin, monkeypatch, are_few):
    places = set()
    do = LocalEngine._do

    def noted(engine, stage, given, *, is_look):
        places.add("here" if is_look else "in other processes")
        return do(engine, stage, given, is_look=is_look)

    monkeypatch.setattr(LocalEngine, "_do", noted)
    monkeypatch.setattr(managed_purge, "are_looked_at_here", lambda _: are_few)
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
    assert places == {"here" if are_few else "in other processes"}
    # The generation before is gone: there is no way back any more.
    refused = undo(RUN, options(), roots=[twin.location])
    assert (refused.exit_code, rows_of(refused)[SMALL[0]]["reason"]) == (3, "PURGED")
