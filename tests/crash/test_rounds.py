"""The rounds of the crash matrix, when nothing stops them."""

from pathlib import Path

import pytest

from storage_core.commit import commit
from storage_core.errors import ChangedWhileReadError, GuardRefusedError
from storage_core.store.local import LocalStore
from tests.crash.interruptions import ALL, POWER
from tests.crash.rounds import CASES, Case, one_group
from tests.crash.work.trashed_round import clean
from tests.kit.compare import read_tree
from tests.kit.golden_cleaning import prepare
from tests.kit.power_loss import Disk
from tests.storage_core.maintenance.compaction.hand_made import cleaning

pytestmark = [pytest.mark.crash, pytest.mark.timeout(3600 if ALL else 300)]


def test_the_case_by_hand_has_groups_and_work_for_the_loader(tmp_path: Path):
    directory, round_ = Case(None).make(tmp_path)
    prepared = prepare(directory, round_)
    assert [len(group.base_offsets) for group in prepared.groups] == [2, 2, 2]
    kinds = {type(operation).__name__ for operation in prepared.log.operations}
    # The foreign files are synced away before anything else.
    assert kinds == {
        "DeleteFile",
        "SyncDirectory",
        "CreateEmptyFile",
        "TruncateFile",
        "WriteFile",
    }
    assert [group.stats.messages_written for group in prepared.groups][1] == 0


@pytest.mark.parametrize("way", POWER, ids=lambda way: way.name)
def test_mode_of_a_cleaned_log_survives_a_loss_of_power_as_its_bytes_do(way, tmp_path):
    """A broker that may not open a file takes its log directory offline."""
    directory, round_ = one_group(tmp_path / "t-0"), cleaning(overrides=Case(None).overrides)
    for path in directory.glob("*.log"):
        path.chmod(0o640)
    disk = Disk(directory)
    disk.run(lambda: commit(prepare(directory, round_).commit_of(), LocalStore(directory)))
    # Each file of the cleaned segment once, and the directory after each step of the swap.
    assert disk.changes.count("fsync") == 3 + 4
    disk.leave(way.way)
    found = {path.name: path.stat().st_mode & 0o777 for path in directory.glob("*.log")}
    assert len(found) == 2
    assert set(found.values()) == {0o640}


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_a_commit_that_keeps_leaves_the_same_and_is_undone_to_the_byte(case, tmp_path):
    cleaned = clean(case, tmp_path)
    assert cleaned.after != cleaned.before
    undone = cleaned.undo()
    assert cleaned.tree() == cleaned.before
    assert sum(plan.peak_extra_bytes for plan in undone.plans) == 0
    assert cleaned.undo().steps == 0
    assert cleaned.round_.load(LocalStore(cleaned.directory)).operations == ()


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
