"""The commit of a round in a job, stopped at every change: the next run ends with the same bytes.

Unlike a partition that is worked on alone, a job writes its commit down before it begins with it;
so the run that follows a killed one finishes it, whatever was done of it.
"""

import os
from pathlib import Path

import pytest

from storage_core.commit.claim import create_claim, hold_claim, resume_claim
from storage_core.store.local import LocalStore
from tests.crash.test_compaction_crash import ALL, CASES, Case, keep, restore
from tests.kit.compare import read_tree
from tests.kit.faulty_store import FaultyStore, Moment, SimulatedCrash
from tests.kit.golden_cleaning import prepare

pytestmark = [pytest.mark.crash, pytest.mark.timeout(3600 if ALL else 300)]

RESULT = {"next_offset": 7}


@pytest.fixture(autouse=True)
def _no_waiting_for_disks(monkeypatch):
    """A killed process, unlike a power cut, loses nothing that it did not sync."""
    monkeypatch.setattr(os, "fsync", lambda _: None)


def begin(claim_file: Path, steps) -> None:
    claim_file.unlink(missing_ok=True)
    create_claim(claim_file)
    with hold_claim(claim_file) as claim:
        claim.begin(steps, RESULT)


def crash(claim_file: Path, directory: Path, number: int, moment: Moment) -> bool:
    """Die at a change; return whether there are that many."""
    with hold_claim(claim_file) as claim:
        try:
            claim.finish(FaultyStore(LocalStore(directory), stop_at=number, moment=moment))
        except SimulatedCrash:
            return True
    return False


@pytest.mark.item("CMP-37", "FLT-08", "FLT-14")
@pytest.mark.parametrize("moment", list(Moment), ids=lambda moment: moment.name.lower())
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_the_next_run_finishes_a_commit_with_the_same_bytes(case: Case, moment, tmp_path: Path):
    directory, round_ = case.make(tmp_path)
    prepared = prepare(directory, round_)
    claim_file = tmp_path / "claim"
    start = keep(directory)
    begin(claim_file, prepared.commit_of())
    assert not crash(claim_file, directory, -1, moment)
    expected = read_tree(directory)
    number = 0
    while True:
        restore(directory, start)
        begin(claim_file, prepared.commit_of())
        if not crash(claim_file, directory, number, moment):
            break
        if number % 2:
            # Killed once more, while it finishes.
            crash(claim_file, directory, number // 2, Moment.AFTER)
        found = resume_claim(claim_file, log_directory=directory.parent)
        assert found == (str(directory), RESULT)
        assert read_tree(directory) == expected, f"{moment.value} change {number}"
        number += 1
    assert number == len(prepared.commit_of().operations)
