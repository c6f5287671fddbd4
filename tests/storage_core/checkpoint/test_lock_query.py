"""Who holds the lock: asked without taking it, and without losing it."""

import os
from pathlib import Path

import pytest

from storage_core.checkpoint.lock import LockState, LogDirectoryLock, query_lock
from storage_core.errors import StorageError

NOBODY = LockState(is_held=False)


def test_where_there_is_no_file_nobody_holds_it_and_none_is_made(tmp_path: Path):
    assert query_lock(tmp_path) == NOBODY
    assert list(tmp_path.iterdir()) == []


def test_a_file_that_a_crash_left_is_held_by_nobody(tmp_path: Path):
    (tmp_path / ".lock").touch()
    assert query_lock(tmp_path) == NOBODY
    assert (tmp_path / ".lock").exists()


def test_the_holder_is_named_and_keeps_its_lock(tmp_path: Path):
    with LogDirectoryLock(tmp_path) as lock:
        for _ in range(2):
            state = query_lock(tmp_path)
            assert (state.is_held, state.holder_pid) == (True, lock.proof.holder_pid)
            assert "python" in state.command
        lock.validate_held()
    assert query_lock(tmp_path) == NOBODY


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_a_lock_that_cannot_be_looked_at_is_an_error(tmp_path: Path):
    (tmp_path / ".lock").touch(mode=0)
    with pytest.raises(StorageError, match=r"\.lock"):
        query_lock(tmp_path)
