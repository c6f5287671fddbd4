"""A commit with a trash under a claim: what a killed attempt began, another one finishes."""

from pathlib import Path

import pytest

from pylog_spark.tasks.commit_claim import create_claim, hold_claim
from storage_core.maintenance.trash.keep import TrashPlace, observe_trash, with_trash
from storage_core.maintenance.trash.record import list_commits
from storage_core.maintenance.undo.partition import undo_partition
from storage_core.plan import (
    CreateEmptyFile,
    DeleteFile,
    Plan,
    PromoteFile,
    RenameFile,
    SyncDirectory,
    WriteFile,
)
from storage_core.store import LocalStore
from storage_core.testing.compare import read_tree
from storage_core.testing.faulty_store import FaultyStore, Moment, SimulatedCrash

LOG, NEXT = "00000000000000000000.log", "00000000000000000005.log"
STEPS = 15


def partition(folder: Path) -> tuple[Path, Plan]:
    directory = folder / "log" / "t-0"
    directory.mkdir(parents=True)
    for name in (LOG, NEXT, "epochs"):
        (directory / name).write_bytes(f"old {name}".encode())
    scratch = folder / "scratch"
    scratch.write_bytes(b"new")
    steps = Plan(
        location=str(directory),
        operations=(
            PromoteFile(scratch_path=str(scratch), name="x.swap", size_bytes=3, reason="r"),
            RenameFile(source=LOG, target=LOG + ".deleted", reason="r"),
            RenameFile(source="x.swap", target=LOG, reason="r"),
            SyncDirectory(reason="r"),
            DeleteFile(name=LOG + ".deleted", reason="r"),
            DeleteFile(name=NEXT, reason="r"),
            WriteFile(name="epochs", content=b"\x00\xff", reason="r"),
            CreateEmptyFile(name="new", reason="r"),
        ),
    )
    place = TrashPlace(folder=str(folder / "trash" / "run"), run_id="run")
    trash = observe_trash(LocalStore(directory), place, action="compact")
    create_claim(folder / "claim")
    return directory, with_trash(steps, trash)


@pytest.mark.parametrize("moment", [Moment.BEFORE, Moment.AFTER], ids=lambda moment: moment.value)
@pytest.mark.parametrize("number", range(STEPS))
def test_another_attempt_finishes_a_commit_that_keeps(tmp_path, number, moment):
    directory, plan = partition(tmp_path)
    before = read_tree(directory)
    assert len(plan.operations) == STEPS - 1 or number < len(plan.operations)
    with hold_claim(tmp_path / "claim") as claim:
        claim.begin(plan, {"next_offset": 7})
        try:
            claim.finish(FaultyStore(LocalStore(directory), stop_at=number, moment=moment))
        except SimulatedCrash:
            pass
        else:
            assert number >= len(plan.operations)
    with hold_claim(tmp_path / "claim") as claim:
        assert claim.finish(LocalStore(directory)) == {"next_offset": 7}
    assert read_tree(directory) == {LOG: b"new", "epochs": b"\x00\xff", "new": b""}
    undo_partition(LocalStore(directory), list(list_commits(tmp_path / "trash" / "run")))
    assert read_tree(directory) == before
