"""Whether the row of an attempt that failed says that files may have been changed."""

import errno
from pathlib import Path
from typing import Any

import pytest

from pylog_spark.tasks.claimed_work import work_claimed
from storage_core.commit import DeleteFile, Plan
from storage_core.commit import claim as commit_claim
from storage_core.commit.claim import CommitClaim, create_claim, hold_claim, revoke_claim
from storage_core.errors import GuardRefusedError
from storage_core.store import LocalStore

RESULT = {"next_offset": 7}


@pytest.fixture
def claim_path(tmp_path: Path) -> Path:
    (tmp_path / "t-0").mkdir()
    path = tmp_path / "claim"
    create_claim(path)
    return path


def plan_for(path: Path) -> Plan:
    steps = (DeleteFile(name="a", reason="r"), DeleteFile(name="b", reason="r"))
    return Plan(location=str(path.parent / "t-0"), operations=steps)


def begin(path: Path) -> None:
    """Leave what an attempt leaves that is killed when it has written down what it will do."""
    with hold_claim(path) as claim:
        claim.begin(plan_for(path), RESULT)


def commit(path: Path, validate=lambda: None) -> dict[str, Any]:
    def work(claim: CommitClaim) -> dict[str, Any]:
        if not claim.is_begun:
            claim.begin(plan_for(path), RESULT)
        return claim.finish(LocalStore(path.parent / "t-0"))

    return work_claimed(path, work, validate=validate)


def lose_lock() -> None:
    raise GuardRefusedError("LOCK_LOST", "the lock file cannot be looked at")


def fail(*_: object) -> None:
    raise OSError(errno.EIO, "Input/output error")


@pytest.mark.item("FLT-10")
def test_work_that_fails_before_its_commit_has_touched_nothing(claim_path):
    row = work_claimed(claim_path, fail, validate=lambda: None)
    assert (row["error_class"], row["touched"]) == ("OSError", False)


@pytest.mark.item("FLT-10")
def test_a_commit_that_fails_may_have_touched_files(claim_path):
    (claim_path.parent / "t-0" / "b").mkdir()
    row = commit(claim_path)
    assert (row["error_class"], row["touched"]) == ("StorageError", True)


@pytest.mark.item("FLT-10", "FLT-14")
@pytest.mark.parametrize("call", ["open", "fstat", "pread"])
def test_a_claim_that_the_disk_does_not_give_back_may_have_been_begun(
    claim_path, monkeypatch, call
):
    begin(claim_path)
    monkeypatch.setattr(commit_claim.os, call, fail)
    row = commit(claim_path)
    monkeypatch.undo()
    assert (row["error_class"], row["touched"]) == ("StorageError", True)
    assert row["error"] == f"{claim_path}: Input/output error"


@pytest.mark.item("FLT-10", "FLT-14")
def test_a_claim_that_cannot_be_locked_may_have_been_begun(claim_path, monkeypatch):
    begin(claim_path)
    monkeypatch.setattr(commit_claim.fcntl, "flock", fail)
    row = commit(claim_path)
    assert (row["error_class"], row["touched"]) == ("StorageError", True)


@pytest.mark.item("FLT-10", "FLT-14")
def test_a_claim_that_cannot_be_shortened_is_begun(claim_path, monkeypatch):
    begin(claim_path)
    with claim_path.open("ab") as file:
        file.write(b'{"done":')
    monkeypatch.setattr(commit_claim.os, "ftruncate", fail)
    row = commit(claim_path)
    assert (row["error_class"], row["touched"]) == ("StorageError", True)


@pytest.mark.item("FLT-10", "FLT-14")
def test_a_claim_that_cannot_be_understood_may_have_been_begun(claim_path):
    claim_path.write_bytes(b"nonsense\n")
    row = commit(claim_path)
    assert (row["error_class"], row["touched"]) == ("ManifestError", True)


@pytest.mark.item("FLT-10", "CMP-40")
def test_an_attempt_that_comes_when_the_run_is_over_has_touched_nothing(claim_path):
    revoke_claim(claim_path)
    row = commit(claim_path)
    assert (row["error_class"], row["touched"]) == ("GuardRefusedError", False)
    assert "RUN_IS_OVER" in row["error"]


@pytest.mark.item("FLT-10", "CMP-40")
@pytest.mark.parametrize("is_begun", [False, True])
def test_an_attempt_without_the_lock_says_whether_another_one_may_have_begun(claim_path, is_begun):
    if is_begun:
        begin(claim_path)
    row = commit(claim_path, validate=lose_lock)
    assert (row["error_class"], row["touched"]) == ("GuardRefusedError", is_begun)
    assert "LOCK_LOST" in row["error"]


def test_who_only_looks_at_a_claim_leaves_the_line_that_was_cut_off(claim_path):
    begin(claim_path)
    with claim_path.open("ab") as file:
        file.write(b'{"done":')
    content = claim_path.read_bytes()
    with hold_claim(claim_path) as claim:
        assert claim.is_begun
    assert claim_path.read_bytes() == content
