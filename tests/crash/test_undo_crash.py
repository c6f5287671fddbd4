"""A commit that keeps what it takes away, and its undo: what the crash matrix does not have.

``PYLOG_CRASH_ALL=1`` (``make crash``) takes every golden round.
"""

import shutil

import pytest

from storage_core.commit import Plan, commit
from storage_core.commit.keep import with_trash
from storage_core.commit.trash import commit_folder
from storage_core.commit.undo import undo_partition
from storage_core.errors import ChangedWhileReadError, GuardRefusedError
from storage_core.filenames import log_file
from storage_core.log.directory_view import DirectoryView
from storage_core.log.leftovers import plan_settling
from storage_core.log.segment_split import split_segment
from storage_core.records.payload import Limits
from storage_core.store.local import LocalStore
from tests.crash.interruptions import ALL
from tests.crash.rounds import CASES, Case, restore
from tests.crash.work.trashed_round import clean
from tests.kit.compare import read_tree
from tests.kit.faulty_store import FaultyStore, Moment, SimulatedCrash
from tests.kit.power_loss import Disk, Loss
from tests.pylog_spark.overflowing_roots import FAR, overflowing_root

# How often it is tried which names are kept.
UNORDERED_SEEDS = 16 if ALL else 4
pytestmark = [pytest.mark.crash, pytest.mark.timeout(3600 if ALL else 300)]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_a_commit_that_keeps_leaves_the_same_and_is_undone_to_the_byte(case, tmp_path):
    cleaned = clean(case, tmp_path)
    assert cleaned.after != cleaned.before
    undone = cleaned.undo()
    assert cleaned.tree() == cleaned.before
    assert sum(plan.peak_extra_bytes for plan in undone.plans) == 0
    assert cleaned.undo().steps == 0
    assert cleaned.round_.load(LocalStore(cleaned.directory)).operations == ()


@pytest.mark.parametrize("moment", list(Moment), ids=lambda moment: moment.value)
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_a_commit_that_keeps_may_stop_anywhere(case, moment, tmp_path):
    """It is finished by another attempt, as a commit's claim does it: from the step it was at."""
    cleaned = clean(case, tmp_path)
    shutil.rmtree(cleaned.place)
    number = 0
    while True:
        restore(cleaned.directory, cleaned.prepared)
        done = 0
        store = FaultyStore(LocalStore(cleaned.directory), stop_at=number, moment=moment)
        try:
            for step in cleaned.plan.operations:
                commit(Plan(location=cleaned.plan.location, operations=(step,)), store)
                done += 1
        except SimulatedCrash:
            kind = type(cleaned.plan.operations[done]).__name__
        else:
            break
        if moment is not Moment.AFTER or kind not in {"RenameFile", "PromoteFile"}:
            left = Plan(location=cleaned.plan.location, operations=cleaned.plan.operations[done:])
            commit(left, LocalStore(cleaned.directory))
            assert cleaned.tree() == cleaned.after, f"{moment.value} {number}: {kind}"
            cleaned.undo()
            assert cleaned.tree() == cleaned.before, f"{moment.value} {number}: {kind}"
        shutil.rmtree(cleaned.place, ignore_errors=True)
        number += 5 if case.golden and not ALL else 1
    assert number >= len(cleaned.plan.operations)


@pytest.mark.item("FLT-08")
def test_names_that_are_kept_in_no_order_put_no_part_of_a_segment_beside_the_whole(tmp_path):
    """As for the commit of a round, on a filesystem that keeps some of the newest names."""
    disk, done = tmp_path / "disk", tmp_path / "split"
    disk.mkdir()
    directory = overflowing_root(disk / "log").path / "t-0"
    store, before = LocalStore(directory), read_tree(directory)
    place = disk / "trash" / "run"
    view = DirectoryView(store)
    limits = Limits(max_record_bytes=1 << 20, max_batch_bytes=1 << 20)
    split_segment(view, 0, index_interval_bytes=4096, max_index_bytes=1 << 20, limits=limits)
    plan = Plan(location=store.location, operations=tuple(view.operations))
    commit(with_trash(plan, store, place, action="compact"), store)
    folders = [commit_folder(place, directory, 0)]
    shutil.copytree(disk, done)
    whole, part = log_file(0), log_file(FAR)
    number, is_over, states = 0, False, set()
    while not is_over:
        shutil.rmtree(disk)
        shutil.copytree(done, disk)
        lossy = Disk(disk)
        is_over = not lossy.run(
            lambda: undo_partition(store, folders, settling=plan_settling), stop_at=number
        )
        for seed in range(UNORDERED_SEEDS):
            lossy.leave(Loss.SOME_NAMES, seed=seed + UNORDERED_SEEDS * number)
            there = read_tree(directory)
            state = (there.get(whole) == before[whole], part in there)
            assert state != (True, True), f"before change {number}, seed {seed}"
            states.add(state)
        number += 1
    assert states == {(False, True), (False, False), (True, False)}
    assert there == before


def test_a_foreign_file_is_named_and_nothing_is_undone(tmp_path):
    cleaned = clean(Case(None), tmp_path)
    foreign = cleaned.directory / "00000000000000000000.log.cleaned"
    foreign.write_bytes(b"somebody else's")
    after = read_tree(cleaned.directory)
    with pytest.raises(ChangedWhileReadError, match=r"0\.log\.cleaned"):
        cleaned.undo()
    assert read_tree(cleaned.directory) == after
    foreign.unlink()
    (cleaned.folders[0] / "left.json").unlink()
    with pytest.raises(GuardRefusedError, match="RUN_NOT_ENDED"):
        cleaned.undo()
