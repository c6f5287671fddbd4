"""A truncation, and a filesystem that keeps names in no order."""

import shutil
from pathlib import Path

import pytest

from storage_core.config import CleanerConfig, LogConfig
from storage_core.maintenance.truncation import truncate_partition
from tests.crash.interruptions import ALL, unsynced
from tests.crash.rounds import without_temporary
from tests.kit.power_loss import Disk, Loss
from tests.storage_core.maintenance.compaction.hand_made import NOW, batch, record, write_log

pytestmark = [pytest.mark.crash, pytest.mark.timeout(600)]

UNORDERED_SEEDS = 40 if ALL else 6


@pytest.mark.item("FLT-08")
@pytest.mark.parametrize("to", [5, 103] if ALL else [5])
def test_a_truncation_whose_names_are_kept_in_no_order_is_made_again(to: int, tmp_path: Path):
    """On a filesystem that keeps of some files the newest names, and of others the former ones."""
    directory = tmp_path / "work" / "t-0"

    def reset() -> None:
        shutil.rmtree(directory, ignore_errors=True)
        write_log(
            directory,
            [batch(100, record(b"a")), batch(103, record(b"b"))],
        )

    def work() -> None:
        truncate_partition(
            directory, config=LogConfig(), cleaner=CleanerConfig(), now_ms=NOW, to=to
        )

    reset()
    work()
    ends = [without_temporary(directory)]
    work()
    ends.append(without_temporary(directory))
    number, is_over = 0, False
    while not is_over:
        reset()
        disk = Disk(directory)
        is_over = not disk.run(work, stop_at=number)
        for seed in range(UNORDERED_SEEDS):
            disk.leave(Loss.SOME_NAMES, seed=seed + UNORDERED_SEEDS * number)
            with unsynced():
                work()
            assert without_temporary(directory) in ends, f"before change {number}, seed {seed}"
        number += 1
