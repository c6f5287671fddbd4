"""The executor: each operation does what it says, in order, and nothing else."""

from pathlib import Path

import pytest

from storage_core.commit import (
    CommitPlan,
    CreateEmptyFile,
    DeleteFile,
    Operation,
    PromoteFile,
    RenameFile,
    SyncDirectory,
    TruncateFile,
    WriteFile,
    commit,
)
from storage_core.errors import StorageError
from storage_core.store.local import LocalStore
from tests.kit.faulty_store import FaultyStore

NAME, OTHER = "name", "other"
WHY = "a test"


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    directory = tmp_path / "topic-0"
    directory.mkdir()
    (directory / NAME).write_bytes(b"0123456789")
    (tmp_path / "scratch").write_bytes(b"cleaned")
    return directory


def applied(directory: Path, *operations: Operation) -> dict[str, bytes]:
    commit(CommitPlan(location=str(directory), operations=operations), LocalStore(directory))
    return {path.name: path.read_bytes() for path in directory.iterdir()}


def test_a_file_is_written(directory):
    found = applied(directory, WriteFile(name=OTHER, content=b"content", reason=WHY))
    assert found == {NAME: b"0123456789", OTHER: b"content"}


def test_an_empty_file_is_created(directory):
    operations = (CreateEmptyFile(name=name, reason=WHY) for name in (NAME, OTHER))
    assert applied(directory, *operations) == {NAME: b"0123456789", OTHER: b""}


def test_a_scratch_file_is_promoted(directory):
    scratch = directory.with_name("scratch")
    operation = PromoteFile(scratch_path=str(scratch), name=OTHER, size_bytes=7, reason=WHY)
    assert applied(directory, operation) == {NAME: b"0123456789", OTHER: b"cleaned"}
    assert not scratch.exists()


def test_a_file_is_renamed(directory):
    found = applied(directory, RenameFile(source=NAME, target=OTHER, reason=WHY))
    assert found == {OTHER: b"0123456789"}


def test_a_file_is_deleted(directory):
    operations = (DeleteFile(name=name, reason=WHY) for name in (NAME, OTHER))
    assert applied(directory, *operations) == {}


def test_a_file_is_truncated(directory):
    found = applied(directory, TruncateFile(name=NAME, size_bytes=4, reason=WHY))
    assert found == {NAME: b"0123"}


def test_an_empty_plan_does_nothing(directory):
    assert applied(directory) == {NAME: b"0123456789"}


def test_operations_are_applied_in_their_order(directory):
    store = FaultyStore(LocalStore(directory))
    scratch = str(directory.with_name("scratch"))
    operations = (
        RenameFile(source=NAME, target=OTHER, reason=WHY),
        WriteFile(name=NAME, content=b"new", reason=WHY),
        SyncDirectory(reason=WHY),
        TruncateFile(name=NAME, size_bytes=1, reason=WHY),
        DeleteFile(name=OTHER, reason=WHY),
        PromoteFile(scratch_path=scratch, name=OTHER, size_bytes=7, reason=WHY),
        CreateEmptyFile(name="empty", reason=WHY),
    )
    commit(CommitPlan(location=store.location, operations=operations), store)
    assert store.changes == [
        "rename",
        "write_file",
        "sync_directory",
        "truncate",
        "delete",
        "promote",
        "create_empty",
    ]
    left = {path.name: path.read_bytes() for path in directory.iterdir()}
    assert left == {NAME: b"n", OTHER: b"cleaned", "empty": b""}


def test_the_first_failure_ends_the_commit(directory):
    operations = (
        WriteFile(name=OTHER, content=b"done", reason=WHY),
        RenameFile(source="missing", target=NAME, reason=WHY),
        DeleteFile(name=NAME, reason=WHY),
    )
    with pytest.raises(StorageError, match="missing"):
        applied(directory, *operations)
    left = {path.name: path.read_bytes() for path in directory.iterdir()}
    assert left == {NAME: b"0123456789", OTHER: b"done"}
