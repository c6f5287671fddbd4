"""Commits that stop, and somebody else who works on the partition before the next run does.

A broker that loads the logs and is killed at once leaves no sign of it in the log directory, nor
does a person who recovers a partition by hand. The claim of the commit says what every file was:
what does not fit is left to whoever loads the log.
"""

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from storage_core.commit import Plan
from storage_core.commit.claim import (
    CommitLostError,
    create_claim,
    hold_claim,
    resume_claim,
)
from storage_core.filenames import segment_file
from storage_core.store.local import LocalStore
from tests.crash.interruptions import ALL
from tests.crash.rounds import CASES, Case, keep, restore, settle
from tests.kit.builders import encode_batch
from tests.kit.compare import read_tree
from tests.kit.faulty_store import FaultyStore, Moment, SimulatedCrash
from tests.kit.golden_cleaning import Cleaning, prepare
from tests.kit.partition_views import committed_values
from tests.storage_core.maintenance.compaction.hand_made import batch, record

pytestmark = [pytest.mark.crash, pytest.mark.timeout(3600 if ALL else 300)]

RESULT = {"next_offset": 7}
CHOSEN = CASES if ALL else [Case(None)]
# A broker's own is 10 MiB.
INDEX_BYTES = 64 << 10
NEWEST = record(b"a", b"the newest of all")


@pytest.fixture(autouse=True)
def _no_waiting_for_disks(monkeypatch):
    """A killed process, unlike a power cut, loses nothing that it did not sync."""
    monkeypatch.setattr(os, "fsync", lambda _: None)


def recover_by_hand(directory: Path, round_: Cleaning) -> None:
    """Do what ``pylog partition recover`` does."""
    settle(directory, round_)


def open_its_index(directory: Path) -> None:
    """Make the active segment's index as long as a broker does that loads the log."""
    base = max(directory.glob("*.log")).stem
    index = directory / segment_file(int(base), ".index")
    with index.open("ab") as file:
        file.truncate(INDEX_BYTES)


def load_and_die(directory: Path, round_: Cleaning) -> None:
    """Load the log as a broker does that is killed before its first checkpoint."""
    settle(directory, round_)
    open_its_index(directory)


def take_a_record_and_die(directory: Path, round_: Cleaning) -> None:
    """Load the log and acknowledge a record; the checkpoints know nothing of it."""
    end = settle(directory, round_).log_end_offset
    with max(directory.glob("*.log")).open("ab") as file:
        file.write(encode_batch(batch(end, NEWEST)))
    open_its_index(directory)


VISITORS = [recover_by_hand, load_and_die, take_a_record_and_die]
MOMENTS = [Moment.BEFORE, Moment.AFTER] if ALL else [Moment.AFTER]


def stop(claim_file: Path, directory: Path, steps: Plan, number: int, moment: Moment) -> bool:
    """Begin a commit and die at a change; return whether there are that many."""
    claim_file.unlink(missing_ok=True)
    create_claim(claim_file)
    with hold_claim(claim_file) as claim:
        claim.begin(steps, RESULT)
        try:
            claim.finish(FaultyStore(LocalStore(directory), stop_at=number, moment=moment))
        except SimulatedCrash:
            return True
    return False


@pytest.mark.item("CMP-37", "FLT-08", "DIR-03")
@pytest.mark.parametrize("moment", MOMENTS, ids=lambda moment: moment.value)
@pytest.mark.parametrize("visit", VISITORS, ids=lambda visit: visit.__name__)
@pytest.mark.parametrize("case", CHOSEN, ids=lambda case: case.name)
def test_a_commit_is_not_finished_over_what_somebody_else_has_made_of_the_partition(
    case: Case, visit: Callable[[Path, Cleaning], None], moment: Moment, tmp_path: Path
):
    directory, round_ = case.make(tmp_path)
    prepared = prepare(directory, round_)
    start, steps = keep(directory), prepared.commit_of()
    claim_file = tmp_path / "claim"
    assert not stop(claim_file, directory, steps, -1, moment)
    finished = read_tree(directory)
    lost = number = 0
    while True:
        restore(directory, start)
        if not stop(claim_file, directory, steps, number, moment):
            break
        where = f"{moment.value} change {number}: {steps.operations[number]}"
        visit(directory, round_)
        visited = read_tree(directory)
        values = committed_values(directory, 2**62)
        try:
            resume_claim(claim_file, log_directory=directory.parent)
        except CommitLostError:
            assert read_tree(directory) == visited, where
            lost += 1
        else:
            # Its visitor found nothing to do, and changed nothing.
            assert visit is recover_by_hand, where
            assert read_tree(directory) == finished, where
        settle(directory, round_)
        assert committed_values(directory, 2**62) == values, where
        number += 1
    assert number == len(steps.operations)
    assert lost > number // 2
