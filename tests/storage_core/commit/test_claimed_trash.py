"""A commit with a trash under a claim: what a killed attempt began, another one finishes."""

import fcntl
import os
import shutil
from contextlib import suppress
from pathlib import Path

import pytest

from storage_core import commit
from storage_core.commit import claim as claims
from storage_core.commit.claim import CommitLostError, create_claim, hold_claim, resume_claim
from storage_core.commit.trash import hold_run, list_commits
from storage_core.commit.undo import undo_partition, with_trash
from storage_core.errors import GuardRefusedError, StorageError
from storage_core.log.settled_store import plan_settling
from storage_core.store import LocalStore
from tests.kit.compare import read_tree
from tests.kit.faulty_store import FaultyStore, Moment, SimulatedCrash

LOG, NEXT = "00000000000000000000.log", "00000000000000000005.log"
STEPS = 15


def partition(folder: Path, *, way: str = ".") -> tuple[Path, commit.CommitPlan]:
    """Return a partition directory and its commit; its root and the trash are named by a way."""
    directory = folder / way / "log" / "t-0"
    directory.mkdir(parents=True)
    for name in (LOG, NEXT, "epochs"):
        (directory / name).write_bytes(f"old {name}".encode())
    scratch = folder / "pylog-scratch-run"
    scratch.write_bytes(b"new")
    steps = commit.CommitPlan(
        location=str(directory),
        operations=(
            commit.PromoteFile(scratch_path=str(scratch), name="x.swap", size_bytes=3, reason="r"),
            commit.RenameFile(source=LOG, target=LOG + ".deleted", reason="r"),
            commit.RenameFile(source="x.swap", target=LOG, reason="r"),
            commit.SyncDirectory(reason="r"),
            commit.DeleteFile(name=LOG + ".deleted", reason="r"),
            commit.DeleteFile(name=NEXT, reason="r"),
            commit.WriteFile(name="epochs", content=b"\x00\xff", reason="r"),
            commit.CreateEmptyFile(name="new", reason="r"),
        ),
    )
    place = folder / way / "trash" / "run"
    create_claim(folder / "claim")
    return directory, with_trash(steps, LocalStore(directory), place, action="compact")


@pytest.mark.parametrize("moment", [Moment.BEFORE, Moment.AFTER], ids=lambda moment: moment.value)
@pytest.mark.parametrize("number", range(STEPS))
def test_another_attempt_finishes_a_commit_that_keeps(tmp_path, number, moment):
    directory, plan = partition(tmp_path)
    before = read_tree(directory)
    assert len(plan.operations) == STEPS - 1 or number < len(plan.operations)
    with hold_claim(tmp_path / "claim") as claim:
        claim.begin(plan, {"next_offset": 7})
        try:
            claim.finish(FaultyStore(LocalStore(directory), stop_at=number, moment=moment))
        except SimulatedCrash:
            pass
        else:
            assert number >= len(plan.operations)
    with hold_claim(tmp_path / "claim") as claim:
        assert claim.finish(LocalStore(directory)) == {"next_offset": 7}
    assert read_tree(directory) == {LOG: b"new", "epochs": b"\x00\xff", "new": b""}
    undo_partition(
        LocalStore(directory),
        list(list_commits(tmp_path / "trash" / "run")),
        settling=plan_settling,
    )
    assert read_tree(directory) == before


def kill(folder: Path, directory: Path, plan: commit.CommitPlan, number: int) -> None:
    """Begin a commit and die at one of its changes."""
    with hold_claim(folder / "claim") as claim:
        claim.begin(plan, {"next_offset": 7})
        store = FaultyStore(LocalStore(directory), stop_at=number, moment=Moment.BEFORE)
        with suppress(SimulatedCrash):
            claim.finish(store)


# Whatever is done first makes the folders of the trash.
KEPT = 2


@pytest.mark.parametrize("way", [".", "x/..", "link/.."])
def test_the_next_run_finishes_it_by_whatever_way_root_and_trash_were_named(tmp_path, way):
    (tmp_path / "x").mkdir()
    (tmp_path / "far" / "y").mkdir(parents=True)
    (tmp_path / "link").symlink_to("far/y")
    directory, plan = partition(tmp_path, way=way)
    before = read_tree(directory)
    kill(tmp_path, directory, plan, KEPT)
    finished = resume_claim(tmp_path / "claim", log_directory=directory.parent)
    assert finished == (str(directory), {"next_offset": 7})
    assert read_tree(directory) == {LOG: b"new", "epochs": b"\x00\xff", "new": b""}
    undo_partition(
        LocalStore(directory),
        list(list_commits(tmp_path / way / "trash" / "run")),
        settling=plan_settling,
    )
    assert read_tree(directory) == before


def test_a_commit_whose_trash_a_purge_works_with_is_lost(tmp_path):
    directory, plan = partition(tmp_path)
    kill(tmp_path, directory, plan, KEPT)
    left, trash = read_tree(directory), tmp_path / "trash" / "run"
    purge = os.open(trash, os.O_RDONLY)
    try:
        fcntl.flock(purge, fcntl.LOCK_EX)
        with pytest.raises(GuardRefusedError, match="TRASH_IN_USE"):
            resume_claim(tmp_path / "claim", log_directory=directory.parent)
    finally:
        os.close(purge)
    assert read_tree(directory) == left


@pytest.mark.parametrize("number", range(STEPS - 1))
def test_a_commit_whose_trash_was_purged_is_lost_and_makes_none_anew(tmp_path, number):
    directory, plan = partition(tmp_path)
    kill(tmp_path, directory, plan, number)
    left = read_tree(directory)
    shutil.rmtree(tmp_path / "trash", ignore_errors=True)
    with pytest.raises(StorageError, match="No such file"):
        resume_claim(tmp_path / "claim", log_directory=directory.parent)
    assert read_tree(directory) == left
    assert not (tmp_path / "trash").exists()


def test_a_commit_that_was_done_asks_for_no_trash(tmp_path):
    directory, plan = partition(tmp_path)
    kill(tmp_path, directory, plan, STEPS)
    shutil.rmtree(tmp_path / "trash")
    finished = resume_claim(tmp_path / "claim", log_directory=directory.parent)
    assert finished == (str(directory), {"next_offset": 7})


def test_a_commit_that_began_before_the_machine_was_started_anew_is_lost(tmp_path, monkeypatch):
    directory, plan = partition(tmp_path)
    kill(tmp_path, directory, plan, KEPT)
    left = read_tree(directory)
    monkeypatch.setattr(claims, "current_boot", lambda: "another")
    with pytest.raises(CommitLostError, match="started anew"):
        resume_claim(tmp_path / "claim", log_directory=directory.parent)
    assert read_tree(directory) == left


def test_the_undo_of_the_very_run_finishes_its_commit_first(tmp_path):
    directory, plan = partition(tmp_path)
    kill(tmp_path, directory, plan, KEPT)
    with hold_run(tmp_path / "trash" / "run"):
        assert resume_claim(tmp_path / "claim", log_directory=directory.parent)
