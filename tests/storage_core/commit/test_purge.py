"""What a purge takes from a broker's directory and from the trash: when, and what never."""

import os
from pathlib import Path

import pytest

from storage_core.commit import CommitPlan, DeleteFile, RemoveDirectory, commit
from storage_core.commit.purge import (
    Purge,
    apply_purge,
    find_runs,
    plan_purge_directory,
    plan_purge_partition,
    plan_purge_trash,
)
from storage_core.commit.trash import (
    BEGUN,
    RUN_FILE,
    UNDO_FILE,
    TrashedRun,
    encode_undo,
    list_commits,
)
from storage_core.commit.undo import undo_partition, with_trash
from storage_core.errors import GuardRefusedError, StorageError
from storage_core.log.settled_store import plan_settling
from storage_core.store import LocalStore
from storage_core.store.local import write_record

UNIQUE = "0123456789abcdef0123456789abcdef"
DELAY = 60_000


def changed_ms(path: Path) -> int:
    facts = path.lstat()
    return max(facts.st_ctime_ns, facts.st_mtime_ns) // 1_000_000


@pytest.fixture
def partition(tmp_path: Path) -> Path:
    directory = tmp_path / "t-0"
    directory.mkdir()
    for name in ("0.log", "0.log.deleted", "5.index.deleted", "7.checkpoint.deleted"):
        (directory / name).write_bytes(b"12345")
    # Its bytes are old: it is when it was renamed that counts.
    os.utime(directory / "0.log.deleted", ns=(0, 0))
    return directory


def test_deleted_files_go_when_their_delay_is_over_and_not_a_moment_before(partition):
    last = max(changed_ms(path) for path in partition.glob("*.deleted"))
    purge = plan_purge_partition(partition, now_ms=last + DELAY, delay_ms=DELAY)
    assert (purge.files, purge.size_bytes, purge.wait_ms) == (2, 10, None)
    first = min(changed_ms(path) for path in partition.glob("*.deleted"))
    early = plan_purge_partition(partition, now_ms=first + DELAY - 1, delay_ms=DELAY)
    assert (early.plans, early.files, early.wait_ms) == ((), 0, 1)
    (plan,) = purge.plans
    commit(plan, LocalStore(partition))
    # A KRaft snapshot on its way out is not the log's.
    assert {path.name for path in partition.iterdir()} == {"0.log", "7.checkpoint.deleted"}


@pytest.fixture
def deleted(tmp_path: Path) -> Path:
    directory = tmp_path / f"t-0.{UNIQUE}-delete"
    directory.mkdir()
    for name in ("0.log", "0.index", "leader-epoch-checkpoint"):
        (directory / name).write_bytes(b"12345")
    return directory


def test_the_directory_of_a_deleted_partition_goes_with_its_files(deleted):
    late = changed_ms(deleted) + DELAY
    assert plan_purge_directory(deleted, now_ms=late - 1, delay_ms=DELAY).wait_ms == 1
    purge = plan_purge_directory(deleted, now_ms=late, delay_ms=DELAY)
    assert (purge.files, purge.size_bytes) == (3, 15)
    (plan,) = purge.plans
    commit(plan, LocalStore(deleted))
    assert not deleted.exists()


@pytest.mark.parametrize("name", ["t-0", f"t-0.{UNIQUE}-stray", f"x.{UNIQUE}-delete", "home"])
def test_a_name_that_is_not_kafkas_for_it_is_refused(tmp_path, name):
    (tmp_path / name).mkdir()
    with pytest.raises(GuardRefusedError, match="NOT_KAFKAS"):
        plan_purge_directory(tmp_path / name, now_ms=2**60, delay_ms=DELAY)


def test_a_link_or_anything_that_is_no_regular_file_is_refused(deleted, tmp_path):
    link = tmp_path / f"u-0.{UNIQUE}-delete"
    link.symlink_to(deleted)
    with pytest.raises(GuardRefusedError, match="a link or a file"):
        plan_purge_directory(link, now_ms=2**60, delay_ms=DELAY)
    (deleted / "0.timeindex").symlink_to("/etc/passwd")
    with pytest.raises(GuardRefusedError, match=r"0\.timeindex in it is no regular file"):
        plan_purge_directory(deleted, now_ms=2**60, delay_ms=DELAY)
    (deleted / "0.timeindex").unlink()
    (deleted / "folder").mkdir()
    with pytest.raises(GuardRefusedError, match="folder in it"):
        plan_purge_directory(deleted, now_ms=2**60, delay_ms=DELAY)
    assert len(list(deleted.iterdir())) == 4


RUN = "20260102T030405Z-0a1b2c3d"
HOUR = 3_600_000


def delete_with(trash: Path, directory: Path) -> None:
    """Be a run, of an hour ago by its own clock, that deletes one file of a directory."""
    directory.mkdir(parents=True)
    (directory / "0.log").write_bytes(b"12345")
    store = LocalStore(directory)
    place = trash / RUN
    plan = CommitPlan(
        location=str(directory), operations=(DeleteFile(name="0.log", reason="a test"),)
    )
    commit(with_trash(plan, store, place, action="retain"), store)
    run = TrashedRun(run_id=RUN, action="retain", started_ms=0, roots=())
    write_record(trash / RUN / RUN_FILE, run.encode())


@pytest.fixture
def trash(tmp_path: Path) -> Path:
    """A trash with one run that deleted one file."""
    delete_with(tmp_path / "trash", tmp_path / "log" / "t-0")
    return tmp_path / "trash"


@pytest.mark.parametrize(
    "way", ["tools/..", "tools/../../{name}", "none/..", "link/.."], ids=lambda way: way
)
def test_directories_and_a_trash_that_are_named_by_a_way_up_are_undone_and_purged(tmp_path, way):
    (tmp_path / "tools").mkdir()
    (tmp_path / "far" / "tools").mkdir(parents=True)
    (tmp_path / "link").symlink_to("far/tools")
    place = tmp_path / way.format(name=tmp_path.name)
    trash, directory = place / "trash", place / "log" / "t-0"
    delete_with(trash, directory)
    # Nothing but the run is in the trash, and nothing but the commit in the run's folder.
    assert [path.name for path in trash.iterdir()] == [RUN]
    (folder,) = list_commits(trash / RUN)
    assert undo_partition(LocalStore(directory), [folder], settling=plan_settling).steps > 0
    assert (directory / "0.log").read_bytes() == b"12345"
    apply(trash, 2**60)
    assert list(trash.iterdir()) == []


def newest_ms(trash: Path) -> int:
    return max(path.stat().st_mtime_ns // 1_000_000 for path in trash.rglob("left.json"))


def apply(trash: Path, now_ms: int) -> None:
    for plan in plan_purge_trash(trash / RUN, now_ms=now_ms, older_than_ms=HOUR).plans:
        commit(plan, LocalStore(Path(plan.location)))


def test_the_trash_of_a_run_is_kept_for_its_time_after_its_last_commit(trash):
    now = newest_ms(trash) + HOUR
    early = plan_purge_trash(trash / RUN, now_ms=now - 1, older_than_ms=HOUR)
    assert (early.plans, early.wait_ms) == ((), 1)
    due = plan_purge_trash(trash / RUN, now_ms=now, older_than_ms=HOUR)
    assert (due.location, due.wait_ms) == (trash / RUN, None)
    assert due.size_bytes > 5
    apply(trash, now)
    assert list(trash.iterdir()) == []


def test_what_says_that_it_is_a_runs_trash_goes_last(trash):
    plans = plan_purge_trash(trash / RUN, now_ms=2**60, older_than_ms=HOUR).plans
    for plan in plans[:-1]:
        commit(plan, LocalStore(Path(plan.location)))
        assert find_runs(trash) == [trash / RUN]
    commit(plans[-1], LocalStore(Path(plans[-1].location)))
    assert find_runs(trash) == []


def test_an_undo_that_was_begun_keeps_it(trash):
    (folder,) = list_commits(trash / RUN)
    write_record(folder / UNDO_FILE, encode_undo(BEGUN))
    with pytest.raises(GuardRefusedError, match="UNDO_BEGUN"):
        plan_purge_trash(trash / RUN, now_ms=2**60, older_than_ms=HOUR)


def test_what_no_run_puts_there_is_not_removed(trash):
    (trash / RUN / "link").symlink_to("/etc")
    with pytest.raises(GuardRefusedError, match="NOT_OURS"):
        plan_purge_trash(trash / RUN, now_ms=2**60, older_than_ms=HOUR)
    (trash / "somebody's folder").mkdir()
    assert find_runs(trash) == [trash / RUN]
    assert find_runs(trash / "none") == []


def test_after_an_error_no_more_folders_of_a_level_go_than_were_at_it(tmp_path, monkeypatch):
    names = [f"{number:02}" for number in range(40)]
    plans = []
    for name in names:
        (tmp_path / name).mkdir()
        step = RemoveDirectory(reason="test")
        plans.append(CommitPlan(location=str(tmp_path / name), operations=(step,)))
    remove = LocalStore.remove_directory

    def fail_first(self):
        if self.directory.name == names[0]:
            raise StorageError(str(self.directory), "Input/output error")
        remove(self)

    monkeypatch.setattr(LocalStore, "remove_directory", fail_first)
    purge = Purge(location=tmp_path, plans=tuple(plans), files=0, size_bytes=0, wait_ms=None)
    with pytest.raises(StorageError, match="Input/output error"):
        apply_purge(purge, dry_run=False)
    assert len(list(tmp_path.iterdir())) > len(names) - 10
