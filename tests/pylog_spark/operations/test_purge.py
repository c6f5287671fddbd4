"""Purge of whole directories, the trash and managed roots, without Spark."""

import os
import shutil
import threading
from pathlib import Path

import pytest

from pylog_spark.engines.choice import Local
from pylog_spark.operations.nightly import run_nightly
from pylog_spark.operations.purge import purge
from pylog_spark.operations.undo import undo
from pylog_spark.options import JobOptions
from storage_core.catalog.roles import Role
from storage_core.catalog.topic_catalog import TopicCatalog
from storage_core.checkpoint.checkpoints import encode_offset_checkpoint
from storage_core.checkpoint.lock import LogDirectoryLock
from storage_core.clock import SystemClock
from storage_core.commit import purge as purge_commit
from storage_core.commit.trash import (
    KEPT_FOLDER,
    RUN_FILE,
    TrashedRun,
    hold_run,
    list_commits,
)
from storage_core.errors import ConfigError, GuardRefusedError, StorageError
from storage_core.filenames import (
    CLEANER_FILE,
    LOG_START_FILE,
    RECOVERY_POINT_FILE,
    REPLICATION_FILE,
    SEGMENT_SUFFIXES,
    TopicPartition,
)
from storage_core.roots import broker
from storage_core.roots.killed_runs import Resumed
from storage_core.store import LocalStore
from tests.kit.compare import read_tree
from tests.kit.golden_data import Golden
from tests.pylog_spark.broker_roots import FIRST_ROUNDS_MS, broker_directory, read_points

UNIQUE = "0123456789abcdef0123456789abcdef"
MINUTE = 60_000
CHECKPOINTS = (RECOVERY_POINT_FILE, LOG_START_FILE, CLEANER_FILE, REPLICATION_FILE)


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


@pytest.mark.thorough
@pytest.mark.item("DIR-13")
@pytest.mark.parametrize("is_here_again", [False, True], ids=["gone", "created again"])
def test_a_deleted_partition_leaves_all_four_checkpoints_before_its_files_go(
    root, monkeypatch, is_here_again
):
    if is_here_again:
        (root / "events-1").mkdir()
    gone, kept = TopicPartition("events", 1), TopicPartition("events", 0)
    for number, name in enumerate(CHECKPOINTS):
        entries = {gone: number + 1, kept: number + 7}
        (root / name).write_bytes(encode_offset_checkpoint(entries))
    before = {name: (root / name).read_bytes() for name in CHECKPOINTS}
    purge([root], options(dry_run=True))
    assert {name: (root / name).read_bytes() for name in CHECKPOINTS} == before

    removed: list[str] = []
    delete = LocalStore.delete

    def note(self, name):
        if self.directory.name.endswith("-delete"):
            removed.append(name)
            known = [read_points(root, checkpoint) for checkpoint in CHECKPOINTS]
            assert all((gone in entries) == is_here_again for entries in known)
        delete(self, name)

    monkeypatch.setattr(LocalStore, "delete", note)
    purge([root], options())
    kinds = [Path(name).suffix for name in removed]
    assert kinds[0] == ".log"
    assert ".snapshot" in kinds
    last_of_segments = max(n for n, kind in enumerate(kinds) if kind in SEGMENT_SUFFIXES)
    assert last_of_segments < kinds.index(".snapshot")
    assert not list(root.glob("events-1.*-delete"))
    for number, name in enumerate(CHECKPOINTS):
        left = {kept: number + 7} | ({gone: number + 1} if is_here_again else {})
        assert read_points(root, name) == left


def deleted(root: Path, name: str) -> Path:
    """A directory of a deleted partition, with a file in it."""
    path = root / f"{name}.{UNIQUE}-delete"
    path.mkdir()
    (path / "00000000000000000000.log").write_bytes(b"123")
    return path


@pytest.mark.thorough
@pytest.mark.item("DIR-13")
def test_checkpoints_are_read_once_for_all_deleted_partitions_and_only_those_that_go_leave_them(
    root, monkeypatch
):
    for number in range(2, 6):
        deleted(root, f"events-{number}")
    (deleted(root, "events-6") / "pylog-off").write_text("mine")
    tomorrow = (options().now_ms + 1) * 1_000_000
    os.utime(deleted(root, "events-7"), ns=(tomorrow, tomorrow))
    entries = {TopicPartition("events", number): number for number in range(10)}
    for name in CHECKPOINTS:
        (root / name).write_bytes(encode_offset_checkpoint(entries))
    asked: list[str] = []

    def note(call, told):
        def noted(*args, **options):
            asked.append(told(*args))
            return call(*args, **options)

        return noted

    read, names = broker.read_checkpoints, broker.folder_names
    monkeypatch.setattr(broker, "read_checkpoints", note(read, lambda _, files: files[0]))
    monkeypatch.setattr(broker, "folder_names", note(names, str))
    rows = rows_of(purge([root], options()))

    gone = [f"events-{number}" for number in range(1, 6)]
    assert sorted(name for name, row in rows.items() if row["status"] == "done") == [
        "events-0",
        *gone,
    ]
    assert rows["events-6"]["reason"] == "SWITCHED_OFF"
    # Listed by the root, by the purge, and by what says who has the partitions that were set aside.
    assert sorted(asked) == sorted([*CHECKPOINTS, *[str(root)] * 3])
    left = {partition: at for partition, at in entries.items() if str(partition) not in gone}
    assert [read_points(root, name) for name in CHECKPOINTS] == [left] * 4


@pytest.mark.thorough
@pytest.mark.item("DIR-13")
@pytest.mark.parametrize("is_alone", [True, False])
def test_a_deleted_partition_whose_entries_cannot_be_taken_out_keeps_its_files(
    root, other, monkeypatch, is_alone
):
    names = [f"events-{number}" for number in range(1, 9)]
    paths = [root / f"events-1.{UNIQUE}-delete", *(deleted(root, name) for name in names[1:])]
    before = [read_tree(path) for path in paths]
    listed: list[Path] = []
    plan = broker.plan_purge_directory

    def fail(place, names, *, strict):
        raise StorageError(f"{place.location}/{names[0]}", "Input/output error")

    def note(path, **times):
        listed.append(path)
        return plan(path, **times)

    monkeypatch.setattr(broker, "read_checkpoints", fail)
    monkeypatch.setattr(broker, "plan_purge_directory", note)
    rows = rows_of(purge([root] if is_alone else [root, other], options()))
    assert {rows[name]["status"] for name in names} == {"failed"}
    assert rows["events-0"]["status"] == "done"
    assert [read_tree(path) for path in paths] == before
    # Each in its turn, and once more for all entries that go together.
    assert [listed.count(path) for path in paths] == [2] * len(paths)


@pytest.mark.thorough
def test_what_is_not_old_enough_waits(root):
    report = purge([root], options(now_ms=SystemClock().now_ms()))
    assert {row["status"] for row in report.results.to_pylist()} == {"skipped"}


@pytest.mark.thorough
def test_a_topic_whose_config_is_wrong_fails_and_the_others_are_purged(root, monkeypatch):
    def refuse(self, topic):
        raise ConfigError("file.delete.delay.ms", "soon", "expected a whole number")

    monkeypatch.setattr(TopicCatalog, "config_for", refuse)
    rows = rows_of(purge([root], options()))
    assert (rows["events-0"]["status"], rows["events-0"]["error_class"]) == (
        "failed",
        "ConfigError",
    )
    assert rows["events-1"]["status"] == "done"


@pytest.mark.thorough
def test_an_owner_who_said_no_is_heard(root):
    (root / "events-0" / "pylog-off").write_text("mine")
    rows = rows_of(purge([root], options()))
    assert rows["events-0"]["reason"] == "SWITCHED_OFF"
    assert (root / "events-0" / "00000000000000000007.log.deleted").exists()


@pytest.mark.thorough
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
    (folder / RUN_FILE).write_bytes(run.encode())
    chosen = options(trash=str(folder.parent))
    with hold_run(folder):
        (row,) = purge([], chosen).results.to_pylist()
    assert (row["status"], row["reason"]) == ("skipped", "TRASH_IN_USE")
    assert (folder / RUN_FILE).exists()
    (row,) = purge([], chosen).results.to_pylist()
    assert row["status"] == "done"
    assert not folder.exists()


@pytest.mark.thorough
def test_what_a_run_keeps_itself_is_not_purged_by_it_however_soon_all_others_go(tmp_path):
    root = broker_directory(tmp_path / "log", ["retain-size-s501"])
    former = tmp_path / "trash" / "20260102T030405Z-0a1b2c3d"
    former.mkdir(parents=True)
    run = TrashedRun(run_id=former.name, action="retain", started_ms=0, roots=())
    (former / RUN_FILE).write_bytes(run.encode())
    chosen = root.options(
        FIRST_ROUNDS_MS, trash=str(former.parent), purge_after_ms=0, now_is_said=True
    )
    report = run_nightly(Local(), [root.path], chosen)
    assert report.exit_code == 0
    rows = report.results.to_pylist()
    assert [Path(row["root"]).name for row in rows if row["action"] == "purge"] == [former.name]
    (own,) = former.parent.iterdir()
    (commit,) = list_commits(own)
    assert list((commit / KEPT_FOLDER).glob("*.log"))
    # Its trash is as good as it was: it is all that the undo needs.
    before = read_tree(Golden("retain-size-s501").unpack(tmp_path / "before"))
    assert undo(own.name, chosen).exit_code == 0
    assert read_tree(root.path / "retain-size-s501-0") == before


@pytest.fixture
def other(root: Path, tmp_path: Path) -> Path:
    """A second directory of the same broker, with a file that the broker would remove."""
    other = tmp_path / "other disk" / "log"
    (other / "more-0").mkdir(parents=True)
    lines = (root / "meta.properties").read_text().splitlines(keepends=True)
    own = [line for line in lines if not line.startswith("directory.id")]
    (other / "meta.properties").write_text("".join(own))
    (other / "more-0" / "00000000000000000007.log.deleted").write_bytes(b"123")
    return other


def fail_in(place: Path, monkeypatch) -> None:
    """Let a directory's disk fail when the commit of a killed run is brought to its end there."""
    write_file = LocalStore.write_file

    def write(self, name, *args, **kwargs):
        if (self.directory, name) == (place, CLEANER_FILE):
            raise StorageError(str(place / name), "Input/output error")
        return write_file(self, name, *args, **kwargs)

    def resume(path, **_):
        return Resumed(points={TopicPartition("more", 0): 7} if path == place else {})

    monkeypatch.setattr(LocalStore, "write_file", write)
    monkeypatch.setattr(broker, "resume_killed_runs", resume)


@pytest.mark.thorough
@pytest.mark.item("DIR-12")
def test_a_directory_whose_disk_failed_is_left_alone_and_the_others_are_purged(
    root, other, monkeypatch
):
    fail_in(other, monkeypatch)
    before = read_tree(other)
    report = purge([other, root], options())
    assert read_tree(other) == before
    assert rows_of(report)["events-0"]["status"] == "done"
    assert {row["root"] for row in report.results.to_pylist()} == {str(root)}
    assert report.exit_code == 4
    (note,) = [note for note in report.notes if "the disk failed" in note]
    assert note.startswith(f"{other}: the disk failed")
    assert "Input/output error" in note


@pytest.mark.thorough
def test_where_the_only_disk_fails_the_purge_does(other, monkeypatch):
    fail_in(other, monkeypatch)
    before = read_tree(other)
    with pytest.raises(StorageError, match="Input/output error"):
        purge([other], options())
    assert read_tree(other) == before


@pytest.mark.thorough
@pytest.mark.parametrize("dry_run", [True, False])
def test_a_directory_that_cannot_be_listed_has_failed(root, other, monkeypatch, dry_run):
    folder_names = broker.folder_names

    def names(path):
        if str(path) == str(other):
            raise OSError(5, "Input/output error", str(path))
        return folder_names(path)

    monkeypatch.setattr(broker, "folder_names", names)
    report = purge([other, root], options(dry_run=dry_run))
    assert report.exit_code == 4
    failed, *rows = report.results.to_pylist()
    assert (failed["root"], failed["status"], failed["error_class"]) == (
        str(other),
        "failed",
        "OSError",
    )
    assert "Input/output error" in failed["error"]
    assert {row["root"] for row in rows} == {str(root)}
    assert report.summary.failed == 1


class TogetherStore(LocalStore):
    """Of those whose directory is removed so many have to be at it at once."""

    meeting = threading.Barrier(1, timeout=60)

    def remove_directory(self) -> None:
        self.meeting.wait()
        super().remove_directory()


@pytest.mark.thorough
def test_directories_of_deleted_partitions_go_at_the_same_time(root, monkeypatch):
    deleted(root, "events-2")
    monkeypatch.setattr(TogetherStore, "meeting", threading.Barrier(2, timeout=20))
    monkeypatch.setattr(purge_commit, "LocalStore", TogetherStore)
    report = purge([root], options())
    rows = rows_of(report)
    assert [rows[name]["status"] for name in ("events-1", "events-2")] == ["done", "done"]
    order = [row["partition"] for row in report.results.to_pylist() if row["topic"] == "events"]
    assert order == sorted(order)


@pytest.mark.thorough
def test_folders_of_the_trash_go_level_by_level_and_what_names_the_run_last(tmp_path, monkeypatch):
    root = broker_directory(tmp_path / "log", ["clean-headers-none-s101", "clean-hw-none-s161"])
    trash = tmp_path / "trash"
    run_nightly(Local(), [root.path], root.options(FIRST_ROUNDS_MS, trash=str(trash)))
    (folder,) = trash.iterdir()
    commits = len(list(list_commits(folder)))
    assert commits > 1
    order = []

    class Noted(LocalStore):
        def remove_directory(self) -> None:
            order.append(len(self.directory.parts))
            super().remove_directory()

    monkeypatch.setattr(purge_commit, "LocalStore", Noted)
    report = purge([], options(trash=str(trash), purge_after_ms=0))
    assert report.results["status"].to_pylist() == ["done"]
    assert list(trash.iterdir()) == []
    assert order == sorted(order, reverse=True)
    assert order[-1] == len(folder.parts)
    assert order.count(max(order)) == commits
