"""Whose root a partition is; and whether an attempt that failed may have changed its files."""

import errno
import fcntl
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from storage_core.commit import CommitPlan, DeleteFile, scratch
from storage_core.commit import claim as commit_claim
from storage_core.commit.claim import create_claim, hold_claim, revoke_claim
from storage_core.commit.trash import list_commits, read_commit
from storage_core.errors import GuardRefusedError
from storage_core.roots import broker
from storage_core.roots.broker import BrokerAccess
from storage_core.roots.root import Prepare, Prepared, root_of
from tests.pylog_spark.tasks.pipeline import proof_of

RESULT = {"next_offset": 7}


@pytest.mark.parametrize(
    ("location", "root"),
    [
        ("/var/lib/kafka/t-0", "/var/lib/kafka"),
        ("/disks/#1/kafka/t-0", "/disks/#1/kafka"),
        ("managed+/disks/#1/m/t-0#generation=12", "/disks/#1/m"),
        ("managed+s3://bucket/m/t-0#generation=12", "s3://bucket/m"),
        ("managed+s3://bucket/m/t-0", "s3://bucket/m"),
    ],
)
def test_the_root_of_a_partition_is_what_lies_above_it(location, root):
    assert root_of(location) == root


@pytest.fixture
def access(tmp_path: Path) -> BrokerAccess:
    """The log directory of a partition whose commit is allowed."""
    (tmp_path / "t-0").mkdir()
    access = BrokerAccess(run_id="run", lock=proof_of(tmp_path), shared=str(tmp_path))
    create_claim(claim_of(access))
    return access


@pytest.fixture
def claim_path(access: BrokerAccess) -> Path:
    return claim_of(access)


def claim_of(access: BrokerAccess) -> Path:
    return scratch.claim_path(access.shared, Path(access.shared or "", "t-0"), access.run_id)


def plan_for(path: Path) -> CommitPlan:
    steps = (DeleteFile(name="a", reason="r"), DeleteFile(name="b", reason="r"))
    return CommitPlan(location=str(path.parent / "t-0"), operations=steps)


def begin(path: Path) -> None:
    """Leave what an attempt leaves that is killed when it has written down what it will do."""
    with hold_claim(path) as claim:
        claim.begin(plan_for(path), RESULT)


def commit(access: BrokerAccess, prepare: Prepare | None = None) -> dict[str, Any]:
    plan = plan_for(claim_of(access))
    ready = Prepared(plan=plan, result=RESULT)
    return access.commit(plan.location, "compact", prepare or (lambda _: ready))


def lose_lock(_: object) -> None:
    raise GuardRefusedError("LOCK_LOST", "the lock file cannot be looked at")


def fail(*_: object) -> None:
    raise OSError(errno.EIO, "Input/output error")


@pytest.mark.item("FLT-10")
def test_a_commit_that_fails_may_have_touched_files(access, claim_path):
    (claim_path.parent / "t-0" / "b").mkdir()
    row = commit(access)
    assert (row["error_class"], row["touched"]) == ("StorageError", True)


@pytest.mark.item("FLT-10", "FLT-14")
@pytest.mark.parametrize("call", ["open", "fstat", "pread"])
def test_a_claim_that_the_disk_does_not_give_back_may_have_been_begun(
    access, claim_path, monkeypatch, call
):
    begin(claim_path)
    monkeypatch.setattr(commit_claim.os, call, fail)
    row = commit(access)
    monkeypatch.undo()
    assert (row["error_class"], row["touched"]) == ("StorageError", True)
    assert row["error"] == f"{claim_path}: Input/output error"


@pytest.mark.item("FLT-10", "FLT-14")
def test_a_claim_that_cannot_be_locked_may_have_been_begun(access, claim_path, monkeypatch):
    begin(claim_path)
    monkeypatch.setattr(commit_claim.fcntl, "flock", fail)
    row = commit(access)
    assert (row["error_class"], row["touched"]) == ("StorageError", True)


@pytest.mark.item("FLT-10", "FLT-14")
def test_a_claim_that_cannot_be_shortened_is_begun(access, claim_path, monkeypatch):
    begin(claim_path)
    with claim_path.open("ab") as file:
        file.write(b'{"done":')
    monkeypatch.setattr(commit_claim.os, "ftruncate", fail)
    row = commit(access)
    assert (row["error_class"], row["touched"]) == ("StorageError", True)


@pytest.mark.item("FLT-10", "FLT-14")
def test_a_claim_that_cannot_be_understood_may_have_been_begun(access, claim_path):
    claim_path.write_bytes(b"nonsense\n")
    row = commit(access)
    assert (row["error_class"], row["touched"]) == ("ManifestError", True)


@pytest.mark.item("FLT-14")
def test_what_one_attempt_began_the_next_one_finishes_and_does_not_plan_again(access, claim_path):
    begin(claim_path)
    (claim_path.parent / "t-0" / "a").touch()
    assert commit(access, fail) == RESULT
    assert not (claim_path.parent / "t-0" / "a").exists()


def test_what_a_commit_takes_away_is_in_the_trash_of_its_run(access, tmp_path):
    directory = tmp_path / "t-0"
    (directory / "a").write_bytes(b"kept")
    run_folder = tmp_path / "trash" / "run"
    assert commit(replace(access, trash=run_folder)) == RESULT
    (folder,) = list_commits(run_folder)
    trashed = read_commit(folder)
    assert (trashed.run_id, trashed.action, trashed.directory) == ("run", "compact", directory)
    assert trashed.kept_path("a").read_bytes() == b"kept"
    assert not (directory / "a").exists()


@pytest.mark.item("FLT-10", "CMP-40")
def test_an_attempt_that_comes_when_the_run_is_over_has_touched_nothing(access, claim_path):
    revoke_claim(claim_path)
    row = commit(access)
    assert (row["error_class"], row["touched"]) == ("GuardRefusedError", False)
    assert "RUN_IS_OVER" in row["error"]


@pytest.mark.item("FLT-10", "CMP-40")
@pytest.mark.parametrize("is_begun", [False, True])
def test_an_attempt_without_the_lock_says_whether_another_one_may_have_begun(
    access, claim_path, monkeypatch, is_begun
):
    if is_begun:
        begin(claim_path)
    monkeypatch.setattr(broker, "share_lock", lose_lock)
    row = commit(access)
    assert (row["error_class"], row["touched"]) == ("GuardRefusedError", is_begun)
    assert "LOCK_LOST" in row["error"]


def test_who_only_looks_at_a_claim_leaves_the_line_that_was_cut_off(access, claim_path):
    begin(claim_path)
    with claim_path.open("ab") as file:
        file.write(b'{"done":')
    content = claim_path.read_bytes()
    with hold_claim(claim_path) as claim:
        assert claim.is_begun
    assert claim_path.read_bytes() == content


@pytest.mark.item("FLT-14")
def test_attempts_that_write_nothing_down_work_one_after_the_other(access, claim_path):
    location = str(claim_path.parent / "t-0")
    with access.alone(location) as store:
        assert store.location == location
        with claim_path.open() as other, pytest.raises(BlockingIOError):
            fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
    with access.alone(location):
        pass
    assert claim_path.read_bytes() == b""


@pytest.mark.item("FLT-10", "FLT-14")
def test_an_attempt_that_comes_when_the_run_is_over_does_not_begin(access, claim_path, monkeypatch):
    location = str(claim_path.parent / "t-0")
    revoke_claim(claim_path)
    with pytest.raises(GuardRefusedError, match="RUN_IS_OVER"), access.alone(location):
        raise AssertionError
    monkeypatch.setattr(broker, "share_lock", lose_lock)
    with pytest.raises(GuardRefusedError, match="LOCK_LOST"), access.alone(location):
        raise AssertionError
