import json
import threading
from pathlib import Path

import pytest

from storage_core import commit
from storage_core.commit.claim import create_claim, hold_claim, revoke_claim
from storage_core.errors import GuardRefusedError, StorageError
from storage_core.store import LocalStore
from tests.kit.faulty_store import FaultyStore, Moment, SimulatedCrash


@pytest.fixture
def partition(tmp_path: Path) -> Path:
    directory = tmp_path / "t-0"
    directory.mkdir()
    (directory / "0.log").write_bytes(b"old")
    for name in ("1.log", "2.log"):
        (directory / name).write_bytes(b"gone")
    (tmp_path / "scratch").write_bytes(b"new")
    create_claim(tmp_path / "claim")
    return directory


def plan_for(directory: Path) -> commit.CommitPlan:
    scratch = directory.parent / "scratch"
    return commit.CommitPlan(
        location=str(directory),
        operations=(
            commit.PromoteFile(
                scratch_path=str(scratch), name="0.log.swap", size_bytes=3, reason="r"
            ),
            commit.CreateEmptyFile(name="0.index", reason="r"),
            commit.SyncDirectory(reason="r"),
            commit.DeleteFiles(names=("1.log", "2.log"), reason="r"),
            commit.RenameFile(source="0.log.swap", target="0.log", reason="r"),
            commit.WriteFile(name="epochs", content=b"\x00\xff", reason="r"),
            commit.TruncateFile(name="epochs", size_bytes=1, reason="r"),
        ),
    )


def tree(directory: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in directory.iterdir()}


FINAL = {"0.log": b"new", "0.index": b"", "epochs": b"\x00"}


@pytest.mark.item("FLT-14")
@pytest.mark.parametrize("moment", [Moment.BEFORE, Moment.AFTER], ids=lambda moment: moment.value)
@pytest.mark.parametrize("at", range(8))
def test_a_second_attempt_finishes_what_a_killed_one_began(partition, at, moment):
    claim_path = partition.parent / "claim"
    kill(claim_path, partition, at=at, moment=moment)
    with hold_claim(claim_path) as claim:
        assert claim.is_begun
        assert claim.finish(LocalStore(partition)) == {"next_offset": 7}
    assert tree(partition) == FINAL


def kill(claim_path: Path, partition: Path, *, at: int, moment: Moment) -> None:
    """Begin a commit, and die at one of its changes."""
    store = FaultyStore(LocalStore(partition), stop_at=at, moment=moment)
    with hold_claim(claim_path) as claim:
        claim.begin(plan_for(partition), {"next_offset": 7})
        with pytest.raises(SimulatedCrash):
            claim.finish(store)


def test_a_finished_commit_is_not_done_again(partition):
    claim_path = partition.parent / "claim"
    with hold_claim(claim_path) as claim:
        claim.begin(plan_for(partition), {"next_offset": 7})
        claim.finish(LocalStore(partition))
    with hold_claim(claim_path) as claim:
        store = FaultyStore(LocalStore(partition), stop_at=0, moment=Moment.BEFORE)
        assert claim.finish(store) == {"next_offset": 7}


def test_a_line_is_written_for_steps_that_can_be_told_from_each_other_by_their_files(partition):
    claim_path = partition.parent / "claim"
    with hold_claim(claim_path) as claim:
        claim.begin(plan_for(partition), {})
        claim.finish(LocalStore(partition))
    begun, *lines = map(json.loads, claim_path.read_text().splitlines())
    assert len(begun["operations"]) == 7
    assert [line["done"] for line in lines] == [4, 6, 7]
    assert [sorted(line["files"]) for line in lines] == [
        ["0.index", "0.log.swap"],
        ["0.log", "epochs"],
        ["epochs"],
    ]
    assert [line["gone"] for line in lines] == [["1.log", "2.log"], ["0.log.swap"], []]
    with hold_claim(claim_path) as claim:
        claim.verify_fit()


def test_a_line_that_was_cut_off_is_ignored(partition):
    claim_path = partition.parent / "claim"
    kill(claim_path, partition, at=4, moment=Moment.AFTER)
    with claim_path.open("ab") as file:
        file.write(b'{"done":')
    with hold_claim(claim_path) as claim:
        claim.finish(LocalStore(partition))
    assert tree(partition) == FINAL


def test_a_rename_of_a_first_attempt_whose_source_is_missing_is_an_error(partition):
    plan = commit.CommitPlan(
        location=str(partition),
        operations=(commit.RenameFile(source="no such file", target="0.log", reason="r"),),
    )
    with hold_claim(partition.parent / "claim") as claim:
        claim.begin(plan, {})
        with pytest.raises(StorageError, match="No such file"):
            claim.finish(LocalStore(partition))


@pytest.mark.item("CMP-40")
def test_a_late_attempt_of_a_run_that_ended_is_refused(partition):
    claim_path = partition.parent / "claim"
    revoke_claim(claim_path)
    with pytest.raises(GuardRefusedError, match="RUN_IS_OVER"), hold_claim(claim_path):
        pass
    revoke_claim(claim_path)


@pytest.mark.item("CMP-40")
def test_an_attempt_that_waited_while_the_run_ended_is_refused(partition):
    claim_path = partition.parent / "claim"
    outcomes: list[str] = []

    def attempt() -> None:
        try:
            with hold_claim(claim_path):
                outcomes.append("held")
        except GuardRefusedError:
            outcomes.append("refused")

    with hold_claim(claim_path):
        waiting = threading.Thread(target=attempt)
        waiting.start()
        claim_path.unlink()
    waiting.join(timeout=10)
    assert outcomes == ["refused"]


@pytest.mark.item("CMP-40")
def test_the_end_of_a_run_waits_for_a_commit_that_is_under_way(partition):
    claim_path = partition.parent / "claim"
    order: list[str] = []

    def end_run() -> None:
        revoke_claim(claim_path)
        order.append("revoked")

    with hold_claim(claim_path) as claim:
        ending = threading.Thread(target=end_run)
        ending.start()
        claim.begin(plan_for(partition), {})
        claim.finish(LocalStore(partition))
        order.append("committed")
    ending.join(timeout=10)
    assert order == ["committed", "revoked"]
    assert tree(partition) == FINAL


@pytest.mark.item("CMP-40")
def test_two_attempts_at_once_make_one_commit(partition):
    claim_path = partition.parent / "claim"
    results = []

    def attempt(number: int) -> None:
        with hold_claim(claim_path) as claim:
            if not claim.is_begun:
                claim.begin(plan_for(partition), {"attempt": number})
            results.append(claim.finish(LocalStore(partition)))

    attempts = [threading.Thread(target=attempt, args=(n,)) for n in range(4)]
    for thread in attempts:
        thread.start()
    for thread in attempts:
        thread.join(timeout=10)
    assert len(results) == 4
    assert len({result["attempt"] for result in results}) == 1
    assert tree(partition) == FINAL
