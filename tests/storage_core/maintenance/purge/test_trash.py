"""Purging the trash of old runs."""

from pathlib import Path

import pytest

from storage_core.errors import GuardRefusedError
from storage_core.maintenance.purge.trash import find_runs, plan_purge_trash
from storage_core.maintenance.trash.keep import TrashPlace, observe_trash, with_trash
from storage_core.maintenance.trash.record import (
    BEGUN,
    RUN_FILE,
    UNDO_FILE,
    TrashedRun,
    encode_undo,
    list_commits,
)
from storage_core.plan import DeleteFile, Plan, commit
from storage_core.store import LocalStore
from storage_core.store.local import write_record

RUN = "20260102T030405Z-0a1b2c3d"
HOUR = 3_600_000


@pytest.fixture
def trash(tmp_path: Path) -> Path:
    """A trash with one run, of an hour ago by its own clock, that deleted one file."""
    directory = tmp_path / "log" / "t-0"
    directory.mkdir(parents=True)
    (directory / "0.log").write_bytes(b"12345")
    store = LocalStore(directory)
    place = TrashPlace(folder=str(tmp_path / "trash" / RUN), run_id=RUN)
    plan = Plan(location=str(directory), operations=(DeleteFile(name="0.log", reason="a test"),))
    commit(with_trash(plan, observe_trash(store, place, action="retain")), store)
    run = TrashedRun(run_id=RUN, action="retain", started_ms=0, roots=())
    write_record(tmp_path / "trash" / RUN / RUN_FILE, run.to_bytes())
    return tmp_path / "trash"


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
    assert (due.run_id, due.wait_ms) == (RUN, None)
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
