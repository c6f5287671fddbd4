"""Undoing the commits of a run on one partition: in which order, by which steps, and when not."""

import os
import shutil
from pathlib import Path

import pytest

from storage_core import commit
from storage_core.commit.trash import commit_folders
from storage_core.commit.undo import check_partition, is_undone, undo_partition, with_trash
from storage_core.errors import ChangedWhileReadError, GuardRefusedError
from storage_core.filenames import CLEANED_SUFFIX, log_file
from storage_core.log.settled_store import plan_settling
from storage_core.store import LocalStore
from tests.kit.builders import segment_bytes, some_batches
from tests.kit.compare import read_tree
from tests.kit.power_loss import Disk, Loss

LOG, INDEX = "00000000000000000000.log", "00000000000000000000.index"
EPOCHS = "leader-epoch-checkpoint"
BEFORE = {LOG: b"records", INDEX: b"entries", EPOCHS: b"0\n0\n"}
WHY = "a test"


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    directory = tmp_path / "log" / "t-0"
    directory.mkdir(parents=True)
    for name, content in BEFORE.items():
        (directory / name).write_bytes(content)
    return directory


@pytest.fixture
def run_folder(tmp_path: Path) -> Path:
    return tmp_path / "trash" / "run"


def change(
    directory: Path, run_folder: Path, *steps: commit.Operation, action: str = "retain"
) -> None:
    store = LocalStore(directory)
    plan = commit.CommitPlan(location=str(directory), operations=steps)
    commit.commit(with_trash(plan, store, run_folder, action=action), store)


def write(content: bytes) -> commit.WriteFile:
    return commit.WriteFile(name=EPOCHS, content=content, reason=WHY)


def test_the_commits_of_a_run_are_undone_the_newest_first(directory, run_folder):
    store = LocalStore(directory)
    change(directory, run_folder, write(b"1"), action="compact")
    change(directory, run_folder, write(b"22"))
    folders = commit_folders(run_folder, directory)
    assert len(folders) == 2
    after = read_tree(directory)
    planned = check_partition(store, folders)
    assert (read_tree(directory), is_undone(store, folders)) == (after, False)
    undone = undo_partition(store, folders, settling=plan_settling)
    assert (read_tree(directory), is_undone(store, folders)) == (BEFORE, True)
    assert undone == planned
    assert undo_partition(store, folders, settling=plan_settling).steps == 0


@pytest.mark.parametrize("damage", ["changed", "gone"])
def test_a_kept_file_that_is_not_what_was_kept_is_named_before_anything_is_touched(
    directory, run_folder, damage
):
    change(directory, run_folder, write(b"1"))
    (folder,) = commit_folders(run_folder, directory)
    kept = folder / "kept" / EPOCHS
    if damage == "gone":
        kept.unlink()
    else:
        kept.write_bytes(b"9\n9\n")
    after = read_tree(directory)
    store = LocalStore(directory)
    with pytest.raises(ChangedWhileReadError, match=str(kept)):
        check_partition(store, [folder])
    with pytest.raises(ChangedWhileReadError, match=str(kept)):
        undo_partition(store, [folder], settling=plan_settling)
    assert read_tree(directory) == after
    assert not (folder / "undo.json").exists()


def test_a_commit_of_which_nobody_knows_what_it_left_is_not_undone(directory, run_folder):
    change(directory, run_folder, write(b"1"))
    (folder,) = commit_folders(run_folder, directory)
    (folder / "left.json").unlink()
    for undo in (check_partition, undo_partition):
        settling = {"settling": plan_settling} if undo is undo_partition else {}
        with pytest.raises(GuardRefusedError, match="RUN_NOT_ENDED"):
            undo(LocalStore(directory), [folder], **settling)
    assert read_tree(directory)[EPOCHS] == b"1"


@pytest.mark.parametrize("action", ["recover", "retain"])
def test_what_a_recovery_cut_comes_back_in_place_and_other_segments_by_a_swap(
    directory, run_folder, action
):
    cut = commit.TruncateFile(name=LOG, size_bytes=3, reason=WHY)
    change(directory, run_folder, cut, commit.DeleteFile(name=INDEX, reason=WHY), action=action)
    folders = commit_folders(run_folder, directory)
    (plan,) = undo_partition(LocalStore(directory), folders, settling=plan_settling).plans
    restored = {step.name for step in plan.operations if isinstance(step, commit.RestoreFile)}
    suffix = "" if action == "recover" else CLEANED_SUFFIX
    assert restored == {LOG + suffix, INDEX + suffix}
    assert read_tree(directory) == BEFORE


@pytest.mark.thorough
def test_all_former_segments_count_or_none_when_the_power_fails(tmp_path):
    """Names that were not synced are kept in no order."""
    disk, directory = tmp_path / "disk", tmp_path / "disk" / "t-0"
    directory.mkdir(parents=True)
    logs = [log_file(base) for base in (0, 1, 2, 3)]
    for base, name in enumerate(logs):
        content = segment_bytes(some_batches(count=1, base_offset=base))
        (directory / name).write_bytes(content)
    before, store = read_tree(directory), LocalStore(directory)
    deletions = [commit.DeleteFile(name=name, reason=WHY) for name in logs[:-1]]
    change(directory, disk / "run", *deletions)
    folders = commit_folders(disk / "run", directory)
    copy = shutil.copytree(disk, tmp_path / "copy")

    def undo() -> None:
        undo_partition(store, folders, settling=plan_settling)

    watched, was_stopped, number = Disk(disk), True, 0
    while was_stopped:
        for seed in range(4):
            shutil.rmtree(disk)
            shutil.copytree(copy, disk)
            was_stopped = watched.run(undo, stop_at=number)
            watched.leave(Loss.SOME_NAMES, seed=4 * number + seed)
            commit.commit(plan_settling(store), store)
            assert list(read_tree(directory)) in (logs[-1:], logs), f"{number}, {seed}"
            undo()
            assert read_tree(directory) == before, f"{number}, {seed}"
        number += 1


def test_a_large_file_comes_back_that_was_replaced_by_one_of_its_size_and_time(
    directory, run_folder, tmp_path
):
    """As a healed segment is."""
    (directory / INDEX).unlink()
    (directory / LOG).write_bytes(b"a" * 70_000)
    (tmp_path / "new").write_bytes(b"b" * 70_000)
    for path in (directory / LOG, tmp_path / "new"):
        os.utime(path, ns=(10**18, 10**18))
    before = read_tree(directory)
    promotion = commit.PromoteFile(
        scratch_path=str(tmp_path / "new"), name=LOG, size_bytes=70_000, reason=WHY
    )
    change(directory, run_folder, promotion, action="heal")
    assert read_tree(directory) != before
    undo_partition(
        LocalStore(directory), commit_folders(run_folder, directory), settling=plan_settling
    )
    assert read_tree(directory) == before
