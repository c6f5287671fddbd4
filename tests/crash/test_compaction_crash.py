"""The commit of a round and a loss of power: what the crash matrix does not have."""

from pathlib import Path

import pytest

from storage_core.commit import Plan, commit
from storage_core.log.log_loader import LogLoader
from storage_core.store.local import LocalStore
from tests.crash.interruptions import ALL, POWER
from tests.crash.rounds import Case, keep, one_group, restore, settle, three_groups
from tests.crash.work.compaction import expect
from tests.kit.golden_cleaning import prepare
from tests.kit.partition_views import committed_values, data_records
from tests.kit.power_loss import Disk, Loss
from tests.storage_core.maintenance.compaction.hand_made import cleaning

# Where names are kept in no order: of how many points one, and how many ways of it.
UNORDERED_STRIDE = 1 if ALL else 3
UNORDERED_SEEDS = 40 if ALL else 12
pytestmark = [pytest.mark.crash, pytest.mark.timeout(3600 if ALL else 300)]


@pytest.mark.parametrize("way", POWER, ids=lambda way: way.name)
def test_mode_of_a_cleaned_log_survives_a_loss_of_power_as_its_bytes_do(way, tmp_path):
    """A broker that may not open a file takes its log directory offline."""
    directory, round_ = one_group(tmp_path / "t-0"), cleaning(overrides=Case(None).overrides)
    for path in directory.glob("*.log"):
        path.chmod(0o640)
    disk = Disk(directory)
    disk.run(lambda: commit(prepare(directory, round_).commit_of(), LocalStore(directory)))
    assert disk.changes.count("fsync") < 20
    disk.leave(way.way)
    found = {path.name: path.stat().st_mode & 0o777 for path in directory.glob("*.log")}
    assert len(found) == 2
    assert set(found.values()) == {0o640}


@pytest.mark.item("FLT-08")
@pytest.mark.parametrize("make", [one_group, three_groups] if ALL else [one_group])
def test_names_that_are_kept_in_no_order_bring_nothing_back_that_was_superseded(make, tmp_path):
    """On a filesystem that keeps of some files the newest names, and of others the former ones."""
    directory, round_ = make(tmp_path / "t-0"), cleaning(overrides=Case(None).overrides)
    settle(directory, round_)
    before = keep(directory)
    prepared = prepare(directory, round_)
    expected = expect(directory, round_, prepared)
    assert len(prepared.groups[0].base_offsets) >= 2
    number, is_over = 0, False
    while not is_over:
        restore(directory, before)
        disk = Disk(directory)
        is_over = not disk.run(
            lambda: commit(prepare(directory, round_).commit_of(), LocalStore(directory)),
            stop_at=number,
        )
        for seed in range(UNORDERED_SEEDS):
            disk.leave(Loss.SOME_NAMES, seed=seed + UNORDERED_SEEDS * number)
            where = f"before change {number}, seed {seed}"
            # Without a marker: such a directory is recovered.
            loader = LogLoader(
                LocalStore(directory),
                config=round_.config,
                cleaner=round_.cleaner,
                now_ms=round_.request.now_ms,
                clean_shutdown=False,
            )
            log = loader.load().close()
            commit(Plan(location=log.location, operations=log.operations), LocalStore(directory))
            assert log.log_end_offset == expected.log.log_end_offset, where
            values = committed_values(directory, expected.log.last_stable_offset)
            assert values == expected.values, where
            found = set(data_records(directory))
            assert set(expected.after) <= found <= set(expected.before), where
        number += UNORDERED_STRIDE


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
