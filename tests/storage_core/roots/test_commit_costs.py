"""What a commit of many small files asks the operating system for, counted."""

import fcntl
import json
import os
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from storage_core.checkpoint.lock import LockedFile, share_lock
from storage_core.commit import CommitPlan, DeleteFile, DeleteFiles, SyncDirectory
from storage_core.errors import GuardRefusedError
from storage_core.filenames import LOCK_FILE
from storage_core.kernels._intrinsics import CAN_CALL
from storage_core.local_files import open_folder
from storage_core.roots.broker import HeldBrokerRoot
from storage_core.roots.root import Prepared
from storage_core.store import LogStore, one_look
from storage_core.store.folder_entries import delete_names

FILES = 60


@pytest.fixture
def partition(tmp_path: Path) -> Path:
    directory = tmp_path / "log" / "t-0"
    directory.mkdir(parents=True)
    for number in range(FILES):
        (directory / f"{number:020d}.log").write_bytes(b"records")
    return directory


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """Counts calls by name."""
    counted: Counter[str] = Counter()

    def count(module: Any, name: str) -> None:
        call: Callable[..., Any] = getattr(module, name)

        def counting(*arguments: Any, **options: Any) -> Any:
            counted[name] += 1
            return call(*arguments, **options)

        monkeypatch.setattr(module, name, counting)

    for name in ("fsync", "lseek", "lstat", "open", "scandir", "stat", "unlink"):
        count(os, name)
    count(fcntl, "fcntl")
    count(json, "dumps")
    return counted


def deletion_of(directory: Path) -> CommitPlan:
    names = sorted(path.name for path in directory.iterdir())
    return CommitPlan(
        location=str(directory),
        operations=(
            *(DeleteFile(name=name, reason="r") for name in names),
            SyncDirectory(reason="r"),
        ),
    )


def test_a_commit_lists_its_directory_once_and_asks_for_the_lock_once_a_change(partition, calls):
    plan = deletion_of(partition)

    def prepare(store: LogStore) -> Prepared:
        with one_look(store):
            assert len(store.list_files()) == FILES
            assert len(store.list_files()) == FILES
        return Prepared(plan=plan, result={"done": True})

    with HeldBrokerRoot(str(partition.parent), run_id="run", mark_clean=True) as root:
        root.begin_writing()
        root.allow_commits([partition])
        access = root.access
        calls.clear()
        assert access.commit(str(partition), "compact", prepare) == {"done": True}
        counted = calls.copy()
    assert not list(partition.iterdir())
    assert counted["lseek"] + counted["scandir"] == 1  # by machine code, or without it
    assert counted["unlink"] == FILES
    # The lock file's name, and who has locked it.
    assert FILES <= counted["stat"] <= FILES + 2
    assert FILES <= counted["fcntl"] <= FILES + 2
    # What it will do, and what is done.
    assert counted["dumps"] == 2
    few = 6
    assert counted["lstat"] <= few
    assert counted["open"] <= few
    assert counted["fsync"] <= 1


def commit_together(
    partition: Path, meanwhile: Callable[[], object], calls: Counter[str]
) -> dict[str, Any]:
    """Delete all files of a partition at once, after something else has happened."""
    names = tuple(sorted(path.name for path in partition.iterdir()))
    steps = (DeleteFiles(names=names, reason="r"),)

    def prepare(store: LogStore) -> Prepared:
        with one_look(store):
            store.list_files()
        meanwhile()
        calls.clear()
        return Prepared(plan=CommitPlan(location=str(partition), operations=steps), result={})

    with HeldBrokerRoot(str(partition.parent), run_id="run", mark_clean=True) as root:
        root.begin_writing()
        root.allow_commits([partition])
        row = root.access.commit(str(partition), "compact", prepare)
        counted = calls.copy()
    calls.clear()
    calls.update(counted)
    return row


@pytest.mark.skipif(not CAN_CALL, reason="machine code calls no functions here")
def test_files_that_go_together_are_deleted_by_machine_code_but_for_one_that_is_gone(
    partition, calls
):
    gone = sorted(partition.iterdir())[FILES // 2]
    assert commit_together(partition, gone.unlink, calls) == {}
    assert not list(partition.iterdir())
    assert calls["unlink"] < FILES // 2  # a kernel that is compiled takes some


@pytest.mark.item("DIR-02")
def test_of_a_partition_that_was_moved_no_file_goes(partition, calls):
    elsewhere = partition.parent.parent / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / LOCK_FILE).touch()
    row = commit_together(partition, lambda: partition.rename(elsewhere / "t-0"), calls)
    assert "LOCK_LOST" in row["error"]
    assert len(list((elsewhere / "t-0").iterdir())) == FILES


@pytest.mark.item("DIR-02")
@pytest.mark.skipif(not CAN_CALL, reason="machine code calls no functions here")
def test_machine_code_deletes_nothing_where_another_open_file_has_the_lock(partition):
    lock, names = partition.parent / LOCK_FILE, [path.name for path in partition.iterdir()]
    with (
        HeldBrokerRoot(str(partition.parent), run_id="run", mark_clean=True) as root,
        open_folder(partition) as folder,
        lock.open("rb+") as other,
    ):
        assert delete_names(folder, names, LockedFile.of(other.fileno())) == 0
        with share_lock(root.access.lock) as share:
            assert delete_names(folder, names, share.file) == FILES
    assert not list(partition.iterdir())


def test_a_listing_before_a_change_says_nothing_after_it(partition):
    with HeldBrokerRoot(str(partition.parent), run_id="run", mark_clean=True) as root:
        root.begin_writing()
        root.allow_commits([partition])
        with root.access.alone(str(partition)) as store, one_look(store):
            first, *others = store.list_files()
            store.delete(first.name)
            assert store.list_files() == others


@pytest.mark.item("DIR-02")
def test_a_partition_that_was_moved_is_not_changed_under_the_lock_of_its_former_place(partition):
    elsewhere = partition.parent.parent / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / LOCK_FILE).touch()
    with HeldBrokerRoot(str(partition.parent), run_id="run", mark_clean=True) as root:
        root.begin_writing()
        root.allow_commits([partition])
        with root.access.alone(str(partition)) as store:
            partition.rename(elsewhere / "t-0")
            (name,) = {file.name for file in store.list_files()[:1]}
            with pytest.raises(GuardRefusedError, match="LOCK_LOST"):
                store.delete(name)
    assert (elsewhere / "t-0" / name).exists()
