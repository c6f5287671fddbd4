"""A broker's log directory: its marker, checkpoints, lock and the commits of its tasks."""

import errno
import fcntl
import os
import signal
import subprocess
import sys
from collections.abc import Iterable
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from storage_core.checkpoint.checkpoints import encode_offset_checkpoint
from storage_core.commit import CommitPlan, DeleteFile, WriteFile, scratch
from storage_core.commit import claim as commit_claim
from storage_core.commit.claim import create_claim, hold_claim, revoke_claim, set_aside_claim
from storage_core.commit.scratch import claim_path, scratch_folder, scratch_home, sweep_scratch
from storage_core.commit.trash import list_commits, read_commit, read_raised
from storage_core.errors import CheckpointError, GuardRefusedError, StorageError
from storage_core.filenames import (
    CLEAN_SHUTDOWN_FILE,
    CLEANER_FILE,
    LOCK_FILE,
    LOG_START_FILE,
    REPLICATION_FILE,
    TopicPartition,
    log_file,
)
from storage_core.roots import broker, killed_runs
from storage_core.roots.broker import BrokerAccess, BrokerRoot, HeldBrokerRoot
from storage_core.roots.killed_runs import changed_partitions, observe_partitions
from storage_core.roots.root import Prepare, Prepared, root_of
from storage_core.store import LocalStore
from tests.kit.compare import read_tree
from tests.kit.faulty_store import SimulatedCrash
from tests.pylog_spark.broker_roots import read_points
from tests.pylog_spark.crashed_roots import MARKER_OF_OURS
from tests.pylog_spark.tasks.pipeline import proof_of

MARKER = b'{"version":0,"brokerEpoch":11}'
OURS, FOREIGN = TopicPartition("ours", 0), TopicPartition("foreign", 3)


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    log = tmp_path / "log"
    for name in ("ours-0", "foreign-3"):
        (log / name).mkdir(parents=True)
    (log / CLEAN_SHUTDOWN_FILE).write_bytes(MARKER)
    (log / CLEANER_FILE).write_bytes(encode_offset_checkpoint({FOREIGN: 5, OURS: 1}))
    return log


def open_root(directory: Path, *, mark_clean: bool = True) -> HeldBrokerRoot:
    return HeldBrokerRoot(str(directory), run_id="run", mark_clean=mark_clean)


def marker(directory: Path) -> bytes | None:
    path = directory / CLEAN_SHUTDOWN_FILE
    return path.read_bytes() if path.exists() else None


class CrashError(Exception):
    pass


def crash_in(opened: HeldBrokerRoot, *, after: str) -> None:
    with opened as root:
        root.begin_writing()
        root.allow_commits([Path(root.location) / "ours-0"])
        if after == "the commits ended":
            root.settle_commits({}, is_whole=True)
        raise CrashError


@pytest.mark.item("DIR-03")
def test_the_marker_is_away_while_files_change_and_back_with_its_epoch_at_the_end(directory):
    with open_root(directory) as root:
        assert root.was_clean
        assert marker(directory) == MARKER
        root.begin_writing()
        assert marker(directory) is None
        root.allow_commits([directory / "ours-0"])
        root.settle_commits({OURS: 9}, is_whole=True)
        assert marker(directory) is None
    assert marker(directory) == MARKER
    assert read_points(directory) == {FOREIGN: 5, OURS: 9}


@pytest.mark.item("DIR-03")
def test_a_directory_without_marker_gets_none(directory):
    (directory / CLEAN_SHUTDOWN_FILE).unlink()
    with open_root(directory) as root:
        assert not root.was_clean
        root.begin_writing()
    assert marker(directory) is None


@pytest.mark.item("DIR-03")
def test_an_error_amid_commits_that_had_not_begun_leaves_the_directory_clean(directory):
    with pytest.raises(CrashError):
        crash_in(open_root(directory), after="the commits began")
    assert marker(directory) == MARKER


@pytest.mark.item("DIR-03")
def test_an_error_amid_a_commit_that_nobody_can_finish_leaves_the_directory_unclean(directory):
    def crash() -> None:
        with open_root(directory) as root:
            root.begin_writing()
            root.allow_commits([directory / "ours-0"])
            claim_path(root.scratch, directory / "ours-0", "run").write_bytes(b"no claim\n")
            raise CrashError

    with pytest.raises(CrashError):
        crash()
    assert marker(directory) is None
    assert not list(directory.parent.glob("pylog-scratch-*"))


@pytest.mark.item("DIR-03")
def test_an_error_while_nothing_is_being_committed_leaves_the_directory_clean(directory):
    with pytest.raises(CrashError):
        crash_in(open_root(directory), after="the commits ended")
    assert marker(directory) == MARKER


@pytest.mark.item("DIR-03")
@pytest.mark.parametrize("is_swept", [False, True])
def test_a_run_that_is_killed_at_its_very_end_has_not_lost_the_marker(
    directory, monkeypatch, is_swept
):
    def be_killed(log_directory: Path, *, inside: Iterable[Path]) -> int:
        if is_swept:
            sweep_scratch(log_directory, inside=inside)
        raise SimulatedCrash

    def run() -> None:
        with monkeypatch.context() as patched, open_root(directory) as root:
            patched.setattr(broker, "sweep_scratch", be_killed)
            root.begin_writing()

    with pytest.raises(SimulatedCrash):
        run()
    with open_root(directory) as root:
        assert root.was_clean
    assert marker(directory) == MARKER


def begin_commit(root: HeldBrokerRoot, directory: Path) -> Path:
    """Do as a task does that dies after the first of two changes; return its claim."""
    path = claim_path(root.scratch, directory / "ours-0", "run")
    plan = CommitPlan(
        location=str(directory / "ours-0"),
        operations=(
            WriteFile(name="first", content=b"1", reason="test"),
            WriteFile(name="second", content=b"2", reason="test"),
        ),
    )
    with hold_claim(path) as claim:
        claim.begin(plan, {"next_offset": 9})
        (directory / "ours-0" / "first").write_bytes(b"1")
    return path


@pytest.mark.item("DIR-03", "DIR-12")
def test_what_had_begun_on_a_disk_that_failed_is_finished_by_the_next_run(directory):
    with HeldBrokerRoot(str(directory), run_id="run", mark_clean=True, is_alone=False) as root:
        root.begin_writing()
        root.allow_commits([directory / "ours-0"])
        path = begin_commit(root, directory)
        root.give_up(StorageError(str(directory), "Input/output error"))
        root.settle_commits({}, is_whole=False)
    assert marker(directory) is None
    # A task that comes too late does not go on with it, where nobody holds the lock.
    with pytest.raises(GuardRefusedError, match="RUN_IS_OVER"), hold_claim(path):
        pass
    assert not (directory / "ours-0" / "second").exists()
    with open_root(directory) as root:
        assert root.was_clean
        assert (directory / "ours-0" / "second").read_bytes() == b"2"
    assert read_points(directory) == {FOREIGN: 5, OURS: 9}
    assert not list(directory.parent.glob("pylog-scratch-*"))


@pytest.mark.item("DIR-03")
def test_a_run_that_is_killed_after_it_has_finished_what_had_begun_has_not_lost_the_marker(
    directory, monkeypatch
):
    write = LocalStore.write_file

    def be_killed(store: LocalStore, name: str, *given: object, **options: object) -> None:
        if name == CLEAN_SHUTDOWN_FILE:
            raise SimulatedCrash
        write(store, name, *given, **options)

    def run() -> None:
        with monkeypatch.context() as patched, open_root(directory) as root:
            root.begin_writing()
            root.allow_commits([directory / "ours-0"])
            begin_commit(root, directory)
            patched.setattr(LocalStore, "write_file", be_killed)
            raise CrashError

    with pytest.raises(SimulatedCrash):
        run()
    assert (directory / "ours-0" / "second").read_bytes() == b"2"
    with open_root(directory) as root:
        assert root.was_clean
    assert marker(directory) == MARKER


def kill_amid_a_commit(directory: Path) -> None:
    """Leave a log directory as a run does that is killed after the first of two changes."""
    root = open_root(directory).__enter__()
    root.begin_writing()
    root.allow_commits([directory / "ours-0"])
    begin_commit(root, directory)
    # The holder of the lock sees that its parent is gone.
    root._lock.release()


@pytest.mark.item("DIR-03", "FLT-08")
def test_what_a_killed_run_had_begun_is_finished_though_its_lock_file_is_there(directory):
    kill_amid_a_commit(directory)
    (directory / LOCK_FILE).touch()
    with open_root(directory) as root:
        assert root.was_clean
        assert (directory / "ours-0" / "second").exists()


def shut_down(directory: Path) -> None:
    """Leave what a broker does that worked there and ended in order."""
    (directory / CLEAN_SHUTDOWN_FILE).write_bytes(b'{"version":0,"brokerEpoch":12}')


def load_and_die(directory: Path) -> None:
    """Leave what a broker does that is killed before its first checkpoint of high watermarks."""
    (directory / LOCK_FILE).touch()
    (directory / "ours-0" / "00000000000000000000.index").write_bytes(bytes(64))


def recover_by_hand(directory: Path) -> None:
    """Leave what a recovery of the one partition does."""
    (directory / "ours-0" / "00000000000000000007.snapshot").write_bytes(b"producers")


VISITS = [shut_down, load_and_die, recover_by_hand]


@pytest.mark.item("DIR-03", "FLT-08")
@pytest.mark.parametrize("visit", VISITS, ids=lambda visit: visit.__name__)
def test_after_somebody_else_has_worked_there_nothing_of_a_killed_run_is_believed(directory, visit):
    kill_amid_a_commit(directory)
    assert marker(directory) is None
    visit(directory)
    before = read_tree(directory / "ours-0")
    with open_root(directory) as root:
        assert root.was_clean == (visit is shut_down)
        assert read_tree(directory / "ours-0") == before
    assert read_points(directory) == {FOREIGN: 5, OURS: 1}
    assert not list(directory.parent.glob("pylog-scratch-*"))


@pytest.mark.item("DIR-03", "FLT-08")
@pytest.mark.parametrize("name", ["other-0", "other-0.2cbd1f3c2e4d4c1c8d1f2a3b4c5d6e7f-future"])
def test_no_marker_goes_back_where_a_partition_without_a_commit_was_changed(directory, name):
    (directory / name).mkdir()
    log = directory / name / "00000000000000000000.log"
    log.write_bytes(b"records")
    kill_amid_a_commit(directory)
    with log.open("ab") as file:
        file.write(b"torn")
    with open_root(directory) as root:
        assert not root.was_clean
        # Its own commit does not depend on that.
        assert (directory / "ours-0" / "second").exists()


@pytest.mark.item("DIR-03", "FLT-08")
def test_no_marker_goes_back_where_a_partition_is_a_link_that_nobody_looks_through(directory):
    far = directory.parent / "far-0"
    far.mkdir()
    (directory / "linked-0").symlink_to(far)
    kill_amid_a_commit(directory)
    with open_root(directory) as root:
        assert not root.was_clean
        assert (directory / "ours-0" / "second").exists()


@pytest.mark.item("DIR-03", "FLT-08")
def test_the_marker_goes_back_though_what_waited_for_its_end_is_gone(directory):
    for name in ("ours-0/0.log.deleted", "gone-0.2cbd1f3c2e4d4c1c8d1f2a3b4c5d6e7f-delete/0.log"):
        (directory / name).parent.mkdir(exist_ok=True)
        (directory / name).write_bytes(b"old")
    root = open_root(directory).__enter__()
    root.begin_writing()
    for name in ("ours-0/0.log.deleted", "gone-0.2cbd1f3c2e4d4c1c8d1f2a3b4c5d6e7f-delete/0.log"):
        (directory / name).unlink()
    root._lock.release()
    with open_root(directory) as again:
        assert again.was_clean


@pytest.mark.item("DIR-03", "FLT-08")
@pytest.mark.parametrize("is_first", [True, False], ids=["then by its path", "then by the link"])
def test_what_a_run_by_a_link_left_is_found_by_one_by_the_real_path(directory, is_first):
    (directory.parent / "elsewhere").mkdir()
    link = directory.parent / "elsewhere" / "linked"
    link.symlink_to(directory)
    first, then = (link, directory) if is_first else (directory, link)
    kill_amid_a_commit(first)
    assert not list(link.parent.glob("pylog-scratch-*"))
    with open_root(then) as root:
        assert root.was_clean
        assert (directory / "ours-0" / "second").exists()
    assert not list(directory.parent.glob("pylog-scratch-*"))


@pytest.mark.item("DIR-03", "DIR-12")
def test_what_had_not_begun_on_a_disk_that_failed_never_will(directory):
    with HeldBrokerRoot(str(directory), run_id="run", mark_clean=True, is_alone=False) as root:
        root.begin_writing()
        root.allow_commits([directory / "ours-0"])
        path = claim_path(root.scratch, directory / "ours-0", "run")
        root.give_up(StorageError(str(directory), "Input/output error"))
    with pytest.raises(GuardRefusedError, match="RUN_IS_OVER"), hold_claim(path):
        pass
    with open_root(directory) as root:
        assert root.was_clean


@pytest.mark.item("DIR-12")
def test_no_late_task_commits_where_the_run_could_not_be_ended(directory, monkeypatch):
    def fail(_: Path, **_inside: object) -> None:
        raise StorageError(str(directory), "Input/output error")

    def run() -> None:
        with open_root(directory) as root:
            root.begin_writing()
            root.allow_commits([directory / "ours-0"])
            paths.append(begin_commit(root, directory))
            monkeypatch.setattr(broker, "resume_killed_runs", fail)
            raise CrashError

    paths: list[Path] = []
    with pytest.raises(StorageError):
        run()
    with pytest.raises(GuardRefusedError, match="RUN_IS_OVER"), hold_claim(paths[0]):
        pass
    monkeypatch.undo()
    with open_root(directory) as root:
        assert root.was_clean
    assert read_points(directory) == {FOREIGN: 5, OURS: 9}


@pytest.mark.item("DIR-03")
def test_the_brokers_epoch_goes_back_only_if_nothing_was_cut(directory):
    with open_root(directory) as root:
        root.begin_writing()
        root.disown_marker()
        root.own_marker()
    assert marker(directory) == MARKER
    with open_root(directory) as root:
        root.begin_writing()
        root.disown_marker()
    assert marker(directory) == MARKER_OF_OURS


def test_one_partition_in_an_unknown_state_makes_the_directory_unclean(directory):
    with open_root(directory) as root:
        root.begin_writing()
        for is_whole in (False, True):
            root.allow_commits([directory / "ours-0"])
            root.settle_commits({}, is_whole=is_whole)
    assert marker(directory) is None


def test_nobody_has_to_mark_a_directory_clean(directory):
    with open_root(directory, mark_clean=False) as root:
        root.begin_writing()
    assert marker(directory) is None


def test_a_run_that_writes_nothing_leaves_everything_as_it_was(directory):
    before = read_tree(directory.parent)
    with open_root(directory):
        pass
    assert read_tree(directory.parent) == before


@pytest.mark.item("CMP-39", "CKP-08")
def test_a_rewrite_of_the_cleaner_checkpoint_drops_partitions_that_are_gone(directory):
    gone, renamed = TopicPartition("gone", 1), TopicPartition("renamed", 0)
    (directory / f"renamed-0.{'0' * 32}-delete").mkdir()
    points = {FOREIGN: 5, OURS: 1, gone: 3, renamed: 4}
    (directory / CLEANER_FILE).write_bytes(encode_offset_checkpoint(points))
    with open_root(directory) as root:
        root.begin_writing()
        written = (directory / CLEANER_FILE).stat().st_ino
        root.write_cleaner_points({OURS: 1})
        root.write_cleaner_points({})
        assert (directory / CLEANER_FILE).stat().st_ino == written
        assert read_points(directory) == points
        root.write_cleaner_points({OURS: 7})
        assert read_points(directory) == {FOREIGN: 5, OURS: 7}


@pytest.mark.item("DIR-13")
@pytest.mark.parametrize(
    ("coming", "is_kept"),
    [
        pytest.param(None, False, id="gone"),
        pytest.param(f"moved-0.{'1' * 32}-future", True, id="a copy is on its way here"),
        pytest.param(f"moved-0.x-1.{'1' * 32}-future", False, id="of a topic of a longer name"),
    ],
)
def test_a_deleted_partition_keeps_the_entries_that_a_copy_on_its_way_here_has(
    directory, coming, is_kept
):
    moved = TopicPartition("moved", 0)
    (directory / f"moved-0.{'0' * 32}-delete").mkdir()
    if coming is not None:
        (directory / coming).mkdir()
    path = directory / LOG_START_FILE
    path.write_bytes(encode_offset_checkpoint({moved: 3, OURS: 2}))
    with open_root(directory) as root:
        root.begin_writing()
        root.drop_entries([moved])
    left = {moved: 3, OURS: 2} if is_kept else {OURS: 2}
    assert path.read_bytes() == encode_offset_checkpoint(left)


@pytest.mark.item("CKP-08")
def test_a_log_that_was_moved_has_its_entry_where_it_is(directory, tmp_path):
    there = tmp_path / "there"
    (there / "moved-0").mkdir(parents=True)
    moved = TopicPartition("moved", 0)
    points = {moved: 5, OURS: 1}
    (directory / CLEANER_FILE).write_bytes(encode_offset_checkpoint(points))
    with open_root(directory) as left, open_root(there) as right:
        left.write_cleaner_points({OURS: 7})
        right.write_cleaner_points({moved: 9})
    assert (read_points(directory), read_points(there)) == ({OURS: 7}, {moved: 9})


def test_a_cleaner_checkpoint_is_made_where_there_is_none(directory):
    (directory / CLEANER_FILE).unlink()
    with open_root(directory) as root:
        root.begin_writing()
        root.write_cleaner_points({OURS: 7})
    assert read_points(directory) == {OURS: 7}


@pytest.mark.item("CKP-08")
def test_offsets_move_file_by_file_and_the_lines_of_others_stay(directory):
    (directory / LOG_START_FILE).write_bytes(encode_offset_checkpoint({FOREIGN: 5, OURS: 1}))
    with open_root(directory) as root:
        root.write_checkpoints({LOG_START_FILE: {OURS: None}, REPLICATION_FILE: {OURS: 9}})
    assert read_points(directory, LOG_START_FILE) == {FOREIGN: 5}
    assert read_points(directory, REPLICATION_FILE) == {OURS: 9}


def test_a_malformed_checkpoint_stays_as_it_is_and_the_next_one_is_written(directory):
    (directory / LOG_START_FILE).write_bytes(b"nonsense")
    with open_root(directory) as root:
        root.write_checkpoints({LOG_START_FILE: {OURS: 3}, REPLICATION_FILE: {OURS: 9}})
    assert (directory / LOG_START_FILE).read_bytes() == b"nonsense"
    assert read_points(directory, REPLICATION_FILE) == {OURS: 9}


def test_a_malformed_cleaner_checkpoint_is_not_replaced_by_points_of_ours(directory):
    (directory / CLEANER_FILE).write_bytes(b"nonsense")
    with open_root(directory) as root:
        root.raise_cleaner_points({OURS: 7})
        with pytest.raises(CheckpointError):
            root.write_cleaner_points({OURS: 7})
    assert (directory / CLEANER_FILE).read_bytes() == b"nonsense"


def test_without_the_lock_nothing_is_written(directory):
    root = open_root(directory).__enter__()
    (directory / LOCK_FILE).unlink()
    for write in (
        root.begin_writing,
        lambda: root.allow_commits([directory / "ours-0"]),
        lambda: root.write_checkpoints({LOG_START_FILE: {OURS: 3}}),
        lambda: root.drop_entries([FOREIGN]),
    ):
        with pytest.raises(GuardRefusedError, match="LOCK_LOST"):
            write()
    # Somebody else's, whatever number the filesystem gives it.
    (directory / LOCK_FILE).touch()
    with pytest.raises(GuardRefusedError, match="LOCK_LOST"):
        root.__exit__(None, None, None)
    assert marker(directory) == MARKER
    assert not (directory / LOG_START_FILE).exists()


@pytest.mark.parametrize("loss", ["holder dead", "another lock file"])
def test_a_run_that_loses_its_lock_writes_neither_checkpoint_nor_marker(directory, loss):
    root = open_root(directory).__enter__()
    root.begin_writing()
    root.allow_commits([directory / "ours-0"])
    if loss == "holder dead":
        os.kill(root.proof.holder_pid, signal.SIGKILL)
        root._lock._holder.wait()
    else:
        (directory / LOCK_FILE).rename(directory / "moved")
        (directory / LOCK_FILE).touch()
    before = read_points(directory)
    for write in (
        lambda: root.settle_commits({OURS: 7}, is_whole=True),
        lambda: root.write_cleaner_points({OURS: 7}),
        lambda: root.raise_log_starts({OURS: 3}),
        root.claim_clean,
    ):
        with pytest.raises(GuardRefusedError, match="LOCK_LOST"):
            write()
    with pytest.raises(GuardRefusedError, match="LOCK_LOST"):
        root.__exit__(None, None, None)
    assert read_points(directory) == before
    assert not (directory / LOG_START_FILE).exists()
    assert not (directory / CLEAN_SHUTDOWN_FILE).exists()
    # Whoever has the lock next finds what was begun, and which marker there was.
    with open_root(directory) as root:
        assert root.was_clean
    assert marker(directory) == MARKER


def test_log_starts_that_rise_are_in_the_trash_until_their_segments_are_gone(directory, tmp_path):
    trash = tmp_path / "trash" / "run"
    held = BrokerRoot(directory).hold(run_id="run", mark_clean=True, trash=trash)
    with held as root:
        root.begin_writing()
        root.raise_log_starts({OURS: 7})
        assert read_raised(trash, str(directory)) == {"ours-0": 7}
        assert read_points(directory, LOG_START_FILE) == {OURS: 7}
        root.settle_log_starts({OURS: None})
        assert not read_raised(trash, str(directory))
        assert read_points(directory, LOG_START_FILE) == {}


def test_a_root_that_is_held_keeps_what_its_tasks_take_out_in_the_runs_trash(directory, tmp_path):
    trash = tmp_path / "trash" / "run"
    with BrokerRoot(directory).hold(run_id="run", mark_clean=True, trash=trash) as root:
        assert root.access.trash == trash


def test_what_was_written_last_is_the_newest_checkpoint(directory):
    assert BrokerRoot(directory / "nothing").newest_write_ms() == 0
    os.utime(directory / CLEANER_FILE, ns=(0, 5_000_000))
    assert BrokerRoot(directory).newest_write_ms() == 5


def test_claims_end_with_the_run(directory):
    with open_root(directory) as root:
        root.begin_writing()
        root.allow_commits([directory / "ours-0"])
        path = claim_path(root.scratch, directory / "ours-0", "run")
        with hold_claim(path):
            pass
        root.settle_commits({}, is_whole=True)
        with pytest.raises(GuardRefusedError, match="RUN_IS_OVER"), hold_claim(path):
            pass


def test_partitions_of_the_longest_names_are_claimed_each_for_itself(directory):
    names = [f"{'t' * 249}-{number}" for number in (10000, 10001)]
    for name in names:
        (directory / name).mkdir()
    with open_root(directory) as root:
        root.begin_writing()
        root.allow_commits(directory / name for name in names)
        paths = {claim_path(root.scratch, directory / name, "run") for name in names}
        assert len(paths) == len(names)
        for path in paths:
            with hold_claim(path) as claim:
                assert not claim.is_begun
            set_aside_claim(path)
        root.settle_commits({}, is_whole=True)
    assert marker(directory) == MARKER


def test_scratch_files_lie_beside_the_log_directory_and_are_gone_at_the_end(directory):
    with open_root(directory) as root:
        assert not list(directory.parent.glob("pylog-scratch*"))
        root.begin_writing()
        assert Path(root.scratch).parent.parent == directory.parent
        (Path(root.scratch) / "half").write_bytes(b"x")
    assert [path.name for path in directory.parent.iterdir()] == ["log"]


def test_scratch_files_of_killed_runs_are_swept(directory):
    home = scratch_home(directory)
    (home / "killed-run").mkdir(parents=True)
    (home / "killed-run" / "half").write_bytes(b"x")
    inside = directory / "ours-0" / "pylog-scratch-killed-half"
    inside.write_bytes(b"x")
    with open_root(directory):
        assert not home.exists()
        assert not inside.exists()


def test_no_scratch_folder_is_made_in_a_directory_that_is_itself_a_log_directory(tmp_path):
    outer = tmp_path / "outer"
    (outer / "inner").mkdir(parents=True)
    (outer / "meta.properties").write_text("version=1\n")
    assert scratch_home(outer / "inner") is None


def test_entries_of_a_deleted_partition_go_unless_it_is_here_again_or_being_moved_here(directory):
    moved, gone = TopicPartition("moved", 0), TopicPartition("gone", 0)
    (directory / "moved-0.0123456789abcdef0123456789abcdef-future").mkdir()
    (directory / "gone-0.0123456789abcdef0123456789abcdef-stray").mkdir()
    entries = {moved: 7, gone: 8, OURS: 9}
    (directory / LOG_START_FILE).write_bytes(encode_offset_checkpoint(entries))
    with open_root(directory) as root:
        root.drop_entries(entries)
    assert read_points(directory, LOG_START_FILE) == {moved: 7, OURS: 9}


@pytest.mark.parametrize("problem", [PermissionError, FileNotFoundError])
def test_a_partition_that_is_not_ours_to_open_does_not_stop_the_others(
    directory, problem, monkeypatch
):
    refuse_folder(monkeypatch, "foreign-3", problem)
    with open_root(directory) as root:
        root.begin_writing()
        root.allow_commits([directory / "ours-0"])
        root.settle_commits({OURS: 9}, is_whole=True)
    assert marker(directory) == MARKER


def test_a_partition_that_nobody_could_look_at_may_have_been_changed(directory, monkeypatch):
    refuse_folder(monkeypatch, "foreign-3", PermissionError)
    known = observe_partitions(directory)
    assert changed_partitions(known, directory, verified=()) == ["foreign-3"]


def refuse_folder(monkeypatch, name: str, problem: type[OSError]) -> None:
    """Let a folder be one that this process may not open, or that is gone."""
    original = killed_runs.open_folder

    def refusing(path: str) -> AbstractContextManager[int]:
        if Path(path).name == name:
            raise problem(errno.EACCES, "refused")
        return original(path)

    monkeypatch.setattr(killed_runs, "open_folder", refusing)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may mount")
def test_scratch_files_lie_inside_where_a_folder_of_the_same_filesystem_is_mounted(
    directory, tmp_path
):
    place = tmp_path / "host" / "log"
    place.mkdir(parents=True)
    if subprocess.run(["mount", "--bind", directory, place], check=False).returncode:
        pytest.skip("this machine lets nobody mount")
    try:
        assert place.stat().st_dev == place.parent.stat().st_dev
        with open_root(place) as root:
            root.begin_writing()
            path = scratch_folder(root.scratch, place / "ours-0") / "pylog-scratch-run-half"
            path.write_bytes(b"x")
            LocalStore(place / "ours-0").promote(str(path), log_file(0))
        assert marker(place) == MARKER
    finally:
        subprocess.run(["umount", place], check=True)
    assert [path.name for path in place.parent.iterdir()] == ["log"]


@pytest.mark.item("DIR-02", "FLT-10")
def test_a_directory_that_a_broker_holds_is_refused(directory):
    program = (
        "import fcntl, sys; f = open(sys.argv[1], 'w'); fcntl.lockf(f, fcntl.LOCK_EX);"
        "print('held', flush=True); sys.stdin.read()"
    )
    holder = subprocess.Popen(
        [sys.executable, "-c", program, str(directory / ".lock")],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    try:
        assert holder.stdout.readline() == b"held\n"
        before = read_tree(directory)
        with pytest.raises(GuardRefusedError, match="LOG_DIRECTORY_IN_USE"), open_root(directory):
            pass
        assert read_tree(directory) == before
    finally:
        holder.communicate()


RESULT = {"next_offset": 7}


@pytest.mark.parametrize(
    ("location", "root"),
    [
        ("/var/lib/kafka/t-0", "/var/lib/kafka"),
        ("/disks/#1/kafka/t-0", "/disks/#1/kafka"),
        ("managed+/disks/#1/m/t-0#generation=12", "/disks/#1/m"),
        ("managed+s3://bucket/m/t-0#generation=12", "s3://bucket/m"),
        ("managed+s3://bucket/m/t-0", "s3://bucket/m"),
    ],
)
def test_the_root_of_a_partition_is_what_lies_above_it(location, root):
    assert root_of(location) == root


@pytest.fixture
def access(tmp_path: Path) -> BrokerAccess:
    """The log directory of a partition whose commit is allowed."""
    (tmp_path / "t-0").mkdir()
    access = BrokerAccess(run_id="run", lock=proof_of(tmp_path), shared=str(tmp_path))
    create_claim(claim_of(access))
    return access


@pytest.fixture
def claimed(access: BrokerAccess) -> Path:
    return claim_of(access)


def claim_of(access: BrokerAccess) -> Path:
    return scratch.claim_path(access.shared, Path(access.shared or "", "t-0"), access.run_id)


def plan_for(path: Path) -> CommitPlan:
    steps = (DeleteFile(name="a", reason="r"), DeleteFile(name="b", reason="r"))
    return CommitPlan(location=str(path.parent / "t-0"), operations=steps)


def begin(path: Path) -> None:
    """Leave what an attempt leaves that is killed when it has written down what it will do."""
    with hold_claim(path) as claim:
        claim.begin(plan_for(path), RESULT)


def commit(access: BrokerAccess, prepare: Prepare | None = None) -> dict[str, Any]:
    plan = plan_for(claim_of(access))
    ready = Prepared(plan=plan, result=RESULT)
    return access.commit(plan.location, "compact", prepare or (lambda _: ready))


def lose_lock(_: object) -> None:
    raise GuardRefusedError("LOCK_LOST", "the lock file cannot be looked at")


def fail(*_: object) -> None:
    raise OSError(errno.EIO, "Input/output error")


@pytest.mark.item("FLT-10")
def test_a_commit_that_fails_may_have_touched_files(access, claimed):
    (claimed.parent / "t-0" / "b").mkdir()
    row = commit(access)
    assert (row["error_class"], row["touched"]) == ("StorageError", True)


@pytest.mark.item("FLT-10", "FLT-14")
@pytest.mark.parametrize("call", ["open", "fstat", "pread"])
def test_a_claim_that_the_disk_does_not_give_back_may_have_been_begun(
    access, claimed, monkeypatch, call
):
    begin(claimed)
    monkeypatch.setattr(commit_claim.os, call, fail)
    row = commit(access)
    monkeypatch.undo()
    assert (row["error_class"], row["touched"]) == ("StorageError", True)
    assert row["error"] == f"{claimed}: Input/output error"


@pytest.mark.item("FLT-10", "FLT-14")
def test_a_claim_that_cannot_be_locked_may_have_been_begun(access, claimed, monkeypatch):
    begin(claimed)
    monkeypatch.setattr(commit_claim.fcntl, "flock", fail)
    row = commit(access)
    assert (row["error_class"], row["touched"]) == ("StorageError", True)


@pytest.mark.item("FLT-10", "FLT-14")
def test_a_claim_that_cannot_be_shortened_is_begun(access, claimed, monkeypatch):
    begin(claimed)
    with claimed.open("ab") as file:
        file.write(b'{"done":')
    monkeypatch.setattr(commit_claim.os, "ftruncate", fail)
    row = commit(access)
    assert (row["error_class"], row["touched"]) == ("StorageError", True)


@pytest.mark.item("FLT-10", "FLT-14")
def test_a_claim_that_cannot_be_understood_may_have_been_begun(access, claimed):
    claimed.write_bytes(b"nonsense\n")
    row = commit(access)
    assert (row["error_class"], row["touched"]) == ("ManifestError", True)


@pytest.mark.item("FLT-14")
def test_what_one_attempt_began_the_next_one_finishes_and_does_not_plan_again(access, claimed):
    begin(claimed)
    (claimed.parent / "t-0" / "a").touch()
    assert commit(access, fail) == RESULT
    assert not (claimed.parent / "t-0" / "a").exists()


def test_what_a_commit_takes_away_is_in_the_trash_of_its_run(access, tmp_path):
    directory = tmp_path / "t-0"
    (directory / "a").write_bytes(b"kept")
    run_folder = tmp_path / "trash" / "run"
    assert commit(replace(access, trash=run_folder)) == RESULT
    (folder,) = list_commits(run_folder)
    trashed = read_commit(folder)
    assert (trashed.run_id, trashed.action, trashed.directory) == ("run", "compact", directory)
    assert trashed.kept_path("a").read_bytes() == b"kept"
    assert not (directory / "a").exists()


@pytest.mark.item("FLT-10", "CMP-40")
def test_an_attempt_that_comes_when_the_run_is_over_has_touched_nothing(access, claimed):
    revoke_claim(claimed)
    row = commit(access)
    assert (row["error_class"], row["touched"]) == ("GuardRefusedError", False)
    assert "RUN_IS_OVER" in row["error"]


@pytest.mark.item("FLT-10", "CMP-40")
@pytest.mark.parametrize("is_begun", [False, True])
def test_an_attempt_without_the_lock_says_whether_another_one_may_have_begun(
    access, claimed, monkeypatch, is_begun
):
    if is_begun:
        begin(claimed)
    monkeypatch.setattr(broker, "share_lock", lose_lock)
    row = commit(access)
    assert (row["error_class"], row["touched"]) == ("GuardRefusedError", is_begun)
    assert "LOCK_LOST" in row["error"]


def test_who_only_looks_at_a_claim_leaves_the_line_that_was_cut_off(access, claimed):
    begin(claimed)
    with claimed.open("ab") as file:
        file.write(b'{"done":')
    content = claimed.read_bytes()
    with hold_claim(claimed) as claim:
        assert claim.is_begun
    assert claimed.read_bytes() == content


@pytest.mark.item("FLT-14")
def test_attempts_that_write_nothing_down_work_one_after_the_other(access, claimed):
    location = str(claimed.parent / "t-0")
    with access.alone(location) as store:
        assert store.location == location
        with claimed.open() as other, pytest.raises(BlockingIOError):
            fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
    with access.alone(location):
        pass
    assert claimed.read_bytes() == b""


@pytest.mark.item("FLT-10", "FLT-14")
def test_an_attempt_that_comes_when_the_run_is_over_does_not_begin(access, claimed, monkeypatch):
    location = str(claimed.parent / "t-0")
    revoke_claim(claimed)
    with pytest.raises(GuardRefusedError, match="RUN_IS_OVER"), access.alone(location):
        raise AssertionError
    monkeypatch.setattr(broker, "share_lock", lose_lock)
    with pytest.raises(GuardRefusedError, match="LOCK_LOST"), access.alone(location):
        raise AssertionError
