"""Purging the trash of old runs."""

from pathlib import Path

import pytest

from storage_core.commit import DeleteFile, Plan, commit
from storage_core.commit.keep import with_trash
from storage_core.commit.purge import find_runs, plan_purge_trash
from storage_core.commit.trash import (
    BEGUN,
    RUN_FILE,
    UNDO_FILE,
    TrashedRun,
    encode_undo,
    list_commits,
)
from storage_core.commit.undo import undo_partition
from storage_core.errors import GuardRefusedError
from storage_core.log.leftovers import plan_settling
from storage_core.store import LocalStore
from storage_core.store.local import write_record

RUN = "20260102T030405Z-0a1b2c3d"
HOUR = 3_600_000


def delete_with(trash: Path, directory: Path) -> None:
    """Be a run, of an hour ago by its own clock, that deletes one file of a directory."""
    directory.mkdir(parents=True)
    (directory / "0.log").write_bytes(b"12345")
    store = LocalStore(directory)
    place = trash / RUN
    plan = Plan(location=str(directory), operations=(DeleteFile(name="0.log", reason="a test"),))
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
