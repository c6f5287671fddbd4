"""Undo of whole runs: the bytes from before, or the name of the file that keeps a partition."""

import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from pylog_spark.operations.compact.driver import compact
from pylog_spark.operations.nightly import run_nightly
from pylog_spark.operations.undo import undo
from pylog_spark.options import JobOptions, RunLimits
from storage_core.catalog.roles import Role
from storage_core.checkpoint.lock import LogDirectoryLock
from storage_core.clock import SystemClock
from storage_core.commit.trash import list_commits
from storage_core.errors import ConfigError, GuardRefusedError
from tests.kit.compare import read_tree
from tests.kit.golden_broker import unpack_broker
from tests.pylog_spark.broker_roots import (
    FIRST_ROUNDS,
    FIRST_ROUNDS_MS,
    broker_directory,
    read_points,
    rows_of,
)

pytestmark = pytest.mark.spark

NAMES = [*FIRST_ROUNDS[:5], "clean-group-all-s211", "clean-txn-open-mixed-s151"]


def partitions(root) -> dict[str, dict[str, bytes]]:
    return {path.name: read_tree(path) for path in sorted(root.path.iterdir()) if path.is_dir()}


def done(report) -> set[str]:
    return {row["topic"] for row in report.results.to_pylist() if row["status"] == "done"}


@pytest.fixture(scope="module")
def cleaned(spark, tmp_path_factory):
    """A directory that was compacted with a trash, and what it was before."""
    folder = tmp_path_factory.mktemp("cleaned")
    root = broker_directory(folder / "log", NAMES)
    before, points = partitions(root), read_points(root.path)
    options = root.options(FIRST_ROUNDS_MS, trash=str(folder / "trash"))
    report = compact(spark, [root.path], options)
    assert report.summary.done > 4
    return root, options, report, before, points


@pytest.fixture
def undoable(cleaned, tmp_path):
    """The same, in place: undoing is done with its files, which are brought back afterwards."""
    root, options, report, before, points = cleaned
    keep = tmp_path / "keep"
    shutil.copytree(root.path, keep / "log")
    shutil.copytree(options.trash, keep / "trash")
    yield root, options, report, before, points
    for place, copy in ((root.path, keep / "log"), (options.trash, keep / "trash")):
        shutil.rmtree(place)
        shutil.copytree(copy, place)


@pytest.mark.thorough
def test_an_undone_run_leaves_the_bytes_from_before_it(undoable):
    root, options, report, before, points = undoable
    assert partitions(root) != before
    dry = undo(report.run_id, replace(options, dry_run=True))
    # One of them was swept after its compaction: two commits, undone as one.
    assert dry.summary.planned == len(done(report)) < report.summary.done
    assert partitions(root) != before
    undone = undo(report.run_id, options)

    assert (undone.exit_code, undone.action, undone.summary.done) == (0, "undo", 6)
    assert partitions(root) == before
    assert read_points(root.path) == points
    # By no broker that the controller knows.
    assert (root.path / ".kafka_cleanshutdown").read_text() == '{"version":0,"brokerEpoch":-1}'
    again = undo(report.run_id, options)
    assert {row["reason"] for row in rows_of(again).values()} == {"ALREADY_UNDONE"}
    assert again.exit_code == 0
    sizes = {topic: row["bytes_after"] for topic, row in rows_of(undone).items()}
    for row in report.results.to_pylist():
        if row["status"] == "done" and row["action"] == "compact":
            assert sizes[row["topic"]] == row["bytes_before"]


def test_a_partition_that_changed_since_is_refused_by_file_and_the_others_are_undone(undoable):
    root, options, report, before, _ = undoable
    changed = NAMES[0]
    log = max((root.path / f"{changed}-0").glob("*.log"))
    with log.open("ab") as file:
        file.write(b"more")
    after = read_tree(root.path / f"{changed}-0")
    undone = undo(report.run_id, options)
    row = rows_of(undone)[changed]
    assert (row["status"], row["reason"]) == ("skipped", "CHANGED_SINCE_RUN")
    assert log.name in row["error"]
    assert undone.exit_code == 3
    found = partitions(root)
    assert found.pop(f"{changed}-0") == after
    assert found == {name: tree for name, tree in before.items() if name != f"{changed}-0"}


@pytest.mark.thorough
def test_a_trash_that_lost_a_file_is_noticed_before_anything_is_touched(undoable):
    root, options, report, _, _ = undoable
    commit = min(list_commits(Path(options.trash, report.run_id)))
    victim = next(path for path in sorted((commit / "kept").iterdir()) if path.suffix == ".log")
    victim.unlink()
    after = partitions(root)
    undone = undo(report.run_id, options)
    refused = [row for row in undone.results.to_pylist() if row["status"] == "skipped"]
    assert len(refused) == 1
    assert str(victim) in refused[0]["error"]
    name = f"{refused[0]['topic']}-{refused[0]['partition']}"
    assert read_tree(root.path / name) == after[name]


@pytest.mark.thorough
def test_an_undo_takes_only_the_topics_that_are_asked_for(undoable):
    root, options, report, before, _ = undoable
    undo(report.run_id, replace(options, include=("clean-group-*",)))
    found = partitions(root)
    assert found["clean-group-all-s211-0"] == before["clean-group-all-s211-0"]
    assert found["clean-active-none-s161-0"] != before["clean-active-none-s161-0"]


@pytest.mark.thorough
def test_a_directory_in_use_is_not_touched(undoable):
    root, options, report, _, _ = undoable
    after = partitions(root)
    with (
        LogDirectoryLock(root.path),
        pytest.raises(GuardRefusedError, match="LOG_DIRECTORY_IN_USE"),
    ):
        undo(report.run_id, options)
    assert partitions(root) == after


@pytest.mark.thorough
def test_a_run_that_the_trash_does_not_know_is_a_wrong_argument(undoable):
    _, options, _, _, _ = undoable
    with pytest.raises(ConfigError, match="no run of that name"):
        undo("20260101T000000Z-00000000", options)
    with pytest.raises(ConfigError, match="no run of that name"):
        undo("../trash", options)
    with pytest.raises(ConfigError, match="--trash"):
        undo("x", replace(options, trash=None))


@pytest.mark.thorough
def test_a_whole_night_over_a_real_brokers_directory_is_undone(spark, tmp_path):
    """Swept and compacted: topics of both policies, checkpoints of three kinds."""
    path = unpack_broker(tmp_path / "log")
    before = {p.name: read_tree(p) for p in path.iterdir() if p.is_dir()}
    checkpoints = {
        name: read_points(path, name)
        for name in (
            "log-start-offset-checkpoint",
            "recovery-point-offset-checkpoint",
            "replication-offset-checkpoint",
        )
    }
    anything = RunLimits(max_delete_ratio=1.0, overrides=frozenset({"CLOCK_PAST_RETENTION"}))
    options = JobOptions(
        now_ms=SystemClock().now_ms(),
        now_is_said=True,
        role=Role.BROKER,
        trash=str(tmp_path / "trash"),
        limits=anything,
    )
    report = run_nightly(spark, [path], options)
    actions = {row["action"] for row in report.results.to_pylist() if row["status"] == "done"}
    assert actions >= {"retain", "compact"}
    assert {p.name: read_tree(p) for p in path.iterdir() if p.is_dir()} != before
    undone = undo(report.run_id, options)
    assert undone.exit_code == 0
    assert {p.name: read_tree(p) for p in path.iterdir() if p.is_dir()} == before
    assert {name: read_points(path, name) for name in checkpoints} == checkpoints
    assert read_points(path) == {}
    assert '"brokerEpoch":-1' in (path / ".kafka_cleanshutdown").read_text()
