"""A replay of a salvage that is stopped anywhere, and repeated: each record is there once."""

from pathlib import Path
from typing import Any

import pytest

from pylog_spark.engines.choice import Local
from pylog_spark.operations.recover.driver import recover
from pylog_spark.operations.salvage import replay_salvage
from pylog_spark.options import JobOptions
from pylog_spark.outcomes import Status
from storage_core.catalog.roles import Role
from storage_core.errors import GuardRefusedError
from storage_core.filenames import CLEAN_SHUTDOWN_FILE
from storage_core.kafka_log import open_logs
from tests.crash.interruptions import ALL
from tests.crash.test_writes import copy_tree, remove_tree
from tests.kit.builders import encode_batch
from tests.kit.power_loss import Disk, Loss
from tests.storage_core.maintenance.verification.log_root import NOW_MS, batch, log_root

pytestmark = pytest.mark.crash

STRIDE = 1 if ALL else 9
OPTIONS = JobOptions(now_ms=NOW_MS, now_is_said=True, role=Role.BROKER)


def offsets_of(directory: Path) -> list[int]:
    records = open_logs(directory).read(columns=["offset"])
    return [row["offset"] for batch in records for row in batch.to_pylist()]


@pytest.mark.thorough
@pytest.mark.parametrize("loss", [None, *Loss], ids=lambda loss: loss.value if loss else "killed")
def test_a_replay_that_is_stopped_anywhere_is_repeated_after_a_recovery(tmp_path: Path, loss: Any):
    original, place, salvage = tmp_path / "original", tmp_path / "disk", tmp_path / "salvage"
    original.mkdir()
    made = log_root(original / "log")
    before = offsets_of(made.path)
    made.change(made.file(20), len(encode_batch(batch(20, leader_epoch=3))) - 1, b"\x55")
    cut = JobOptions(
        now_ms=NOW_MS,
        now_is_said=True,
        role=Role.BROKER,
        from_start=True,
        allow_truncate=True,
        salvage=str(salvage),
    )
    recover(Local(1), [made.path], cut)
    expected = [offset for offset in before if offset not in range(20, 25)]
    seen: set[str] = set()
    stop_at, was_stopped = 0, True
    directory = place / "log"
    while was_stopped:
        copy_tree(original, place)
        disk = Disk(place)
        was_stopped = disk.run(
            lambda: replay_salvage(salvage, [directory], OPTIONS), stop_at=stop_at
        )
        if loss is not None:
            disk.leave(loss, seed=stop_at)
        if not was_stopped:
            assert offsets_of(directory) == expected
        if not (directory / CLEAN_SHUTDOWN_FILE).exists():
            with pytest.raises(GuardRefusedError, match=r"UNCLEAN_SHUTDOWN.*pylog recover"):
                replay_salvage(salvage, [directory], OPTIONS)
            seen.add("recovered first")
            report = recover(Local(1), [directory], OPTIONS)
            assert report.exit_code == 0, (stop_at, report.results.to_pylist())
        (row,) = replay_salvage(salvage, [directory], OPTIONS)
        seen.add(row.status.value)
        assert row.error is None
        assert offsets_of(directory) == expected, stop_at
        assert (directory / CLEAN_SHUTDOWN_FILE).exists()
        remove_tree(place)
        stop_at += STRIDE
    assert seen == {"recovered first", Status.DONE.value, Status.SKIPPED.value}
