"""Purge of whole directories, the trash and managed roots, without Spark."""

import shutil
from pathlib import Path

import pytest

from pylog_spark.config import JobOptions
from pylog_spark.operations.purge import purge
from storage_core.catalog.roles import Role
from storage_core.checkpoint.lock import LogDirectoryLock
from storage_core.clock import SystemClock
from storage_core.errors import ConfigError, GuardRefusedError
from storage_core.maintenance.trash.hold import hold_run
from storage_core.maintenance.trash.record import RUN_FILE, TrashedRun
from storage_core.testing.compare import read_tree
from tests.golden_data import Golden

UNIQUE = "0123456789abcdef0123456789abcdef"
MINUTE = 60_000


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A broker's directory with what it had no time to remove."""
    path = Golden("broker-dir").unpack(tmp_path)
    (path / "events-0" / "00000000000000000007.log.deleted").write_bytes(b"12345")
    gone = path / f"events-1.{UNIQUE}-delete"
    shutil.move(path / "events-1", gone)
    strange = path / f"events-9.{UNIQUE}-delete"
    strange.mkdir()
    (strange / "link").symlink_to("/etc")
    return path


def options(**changes) -> JobOptions:
    now = SystemClock().now_ms() + 2 * MINUTE
    return JobOptions(**{"now_ms": now, "now_is_said": True, "role": Role.BROKER} | changes)


def rows_of(report) -> dict:
    return {f"{row['topic']}-{row['partition']}": row for row in report.results.to_pylist()}


def test_a_broker_root_loses_what_the_broker_would_remove_and_nothing_else(root):
    before = {path.name: read_tree(path) for path in root.iterdir() if path.is_dir()}
    listed = purge([root], options(dry_run=True))
    assert {path.name: read_tree(path) for path in root.iterdir() if path.is_dir()} == before
    assert listed.summary.planned == 2
    report = purge([root], options())

    rows = rows_of(report)
    assert (rows["events-0"]["status"], rows["events-0"]["bytes_before"]) == ("done", 5)
    assert rows["events-1"]["status"] == "done"
    assert (rows["events-9"]["status"], rows["events-9"]["reason"]) == ("skipped", "NOT_KAFKAS")
    after = {path.name: read_tree(path) for path in root.iterdir() if path.is_dir()}
    del before[f"events-1.{UNIQUE}-delete"]
    del before["events-0"]["00000000000000000007.log.deleted"]
    assert after == before
    assert (root / ".kafka_cleanshutdown").exists()
    again = purge([root], options())
    assert [row["status"] for row in again.results.to_pylist()] == ["skipped"]


def test_what_is_not_old_enough_waits(root):
    report = purge([root], options(now_ms=SystemClock().now_ms()))
    assert {row["status"] for row in report.results.to_pylist()} == {"skipped"}


def test_an_owner_who_said_no_is_heard(root):
    (root / "events-0" / "pylog-off").write_text("mine")
    rows = rows_of(purge([root], options()))
    assert rows["events-0"]["reason"] == "SWITCHED_OFF"
    assert (root / "events-0" / "00000000000000000007.log.deleted").exists()


def test_a_directory_in_use_and_a_role_that_nobody_said_are_refused(root):
    with (
        LogDirectoryLock(root),
        pytest.raises(GuardRefusedError, match="LOG_DIRECTORY_IN_USE"),
    ):
        purge([root], options())
    with pytest.raises(GuardRefusedError, match="ROLE_NOT_SAID"):
        purge([root], options(role=None))
    with pytest.raises(ConfigError, match="--trash"):
        purge([], options())


def test_the_trash_that_its_run_or_an_undo_works_with_is_left_alone(tmp_path):
    folder = tmp_path / "trash" / "20260102T030405Z-0a1b2c3d"
    folder.mkdir(parents=True)
    run = TrashedRun(run_id=folder.name, action="retain", started_ms=0, roots=())
    (folder / RUN_FILE).write_bytes(run.to_bytes())
    chosen = options(trash=str(folder.parent))
    with hold_run(folder):
        (row,) = purge([], chosen).results.to_pylist()
    assert (row["status"], row["reason"]) == ("skipped", "TRASH_IN_USE")
    assert (folder / RUN_FILE).exists()
    (row,) = purge([], chosen).results.to_pylist()
    assert row["status"] == "done"
    assert not folder.exists()
