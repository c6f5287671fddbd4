"""The lock of a log directory, among processes of this machine: taken, shared, and asked for."""

import fcntl
import os
import re
import signal
import socket
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from storage_core.checkpoint.lock import (
    LockProof,
    LockState,
    LogDirectoryLock,
    find_sharers,
    kept_shares,
    query_lock,
    read_boot_id,
    share_lock,
)
from storage_core.errors import GuardRefusedError, StorageError

LOCK = ".lock"


def wait_until(holds: Callable[[], bool]) -> None:
    """Return when a condition holds; fail after a while."""
    deadline = time.monotonic() + 20
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def is_locked(directory: Path) -> bool:
    """Whether some other process holds the lock."""
    with (directory / LOCK).open("rb+") as file:
        try:
            fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            return True
    return False


@pytest.mark.item("DIR-02")
def test_the_lock_is_held_by_a_process_of_its_own_and_the_file_goes_with_it(tmp_path: Path):
    with LogDirectoryLock(tmp_path) as lock:
        proof = lock.proof
        assert proof.holder_pid != os.getpid()
        assert proof.boot_id == read_boot_id()
        assert is_locked(tmp_path)
        lock.validate_held()
        share_lock(proof).close()
    assert not (tmp_path / LOCK).exists()
    with pytest.raises(GuardRefusedError, match="not taken"):
        _ = lock.proof


def test_its_process_starts_as_fast_as_python_does():
    """A run starts one for every directory: settings, say, would take it three times as long."""
    script = "import sys, storage_core.lock_holder; print(*sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", script], check=True, capture_output=True, text=True
    )
    slow = {"dataclasses", "javaproperties", "numpy", "storage_core.config"}
    assert slow.isdisjoint(done.stdout.split())


@pytest.mark.item("DIR-02")
def test_a_second_lock_is_refused_and_names_the_holder(tmp_path: Path):
    with LogDirectoryLock(tmp_path) as first:
        with pytest.raises(GuardRefusedError) as raised:
            LogDirectoryLock(tmp_path).acquire()
        assert raised.value.code == "LOG_DIRECTORY_IN_USE"
        assert f"process {first.proof.holder_pid}" in raised.value.reason
        first.validate_held()
    with LogDirectoryLock(tmp_path):
        pass


@pytest.mark.item("DIR-02")
def test_opening_and_closing_the_file_in_the_owning_process_does_not_lose_the_lock(tmp_path: Path):
    with LogDirectoryLock(tmp_path):
        (tmp_path / LOCK).read_bytes()
        assert is_locked(tmp_path)


def test_a_lock_file_that_a_killed_broker_left_does_not_hinder(tmp_path: Path):
    (tmp_path / LOCK).touch()
    with LogDirectoryLock(tmp_path):
        assert is_locked(tmp_path)
    assert not (tmp_path / LOCK).exists()


def test_taking_the_lock_twice_and_releasing_it_twice_is_doing_it_once(tmp_path: Path):
    lock = LogDirectoryLock(tmp_path)
    assert lock.acquire() is lock.acquire()
    lock.release()
    lock.release()
    assert not (tmp_path / LOCK).exists()


@pytest.mark.thorough
def test_the_lock_is_released_when_its_owner_is_killed(tmp_path: Path):
    script = textwrap.dedent(
        """
        import sys, time
        from pathlib import Path
        from storage_core.checkpoint.lock import LogDirectoryLock
        LogDirectoryLock(Path(sys.argv[1])).acquire()
        print("taken", flush=True)
        time.sleep(600)
        """
    )
    owner = subprocess.Popen(
        [sys.executable, "-c", script, str(tmp_path)], stdout=subprocess.PIPE, text=True
    )
    with owner:
        owner.stdout.readline()
        assert is_locked(tmp_path)
        owner.send_signal(signal.SIGKILL)
    # Not until its process is gone: whoever inherits that may reap it late.
    wait_until(lambda: not (tmp_path / LOCK).exists())


def test_the_lock_is_released_when_its_owner_is_killed_but_its_pipe_lives_on(tmp_path: Path):
    # A fork keeps the owner's end of the pipe open, so the holder never sees an end of input.
    script = textwrap.dedent(
        """
        import os, signal, sys, time
        from pathlib import Path
        from storage_core.checkpoint.lock import LogDirectoryLock
        holder_pid = LogDirectoryLock(Path(sys.argv[1])).acquire().holder_pid
        fork_pid = os.fork()
        if fork_pid == 0:
            time.sleep(600)
        print(holder_pid, fork_pid, flush=True)
        time.sleep(600)
        """
    )
    owner = subprocess.Popen(
        [sys.executable, "-c", script, str(tmp_path)], stdout=subprocess.PIPE, text=True
    )
    with owner:
        _, fork_pid = map(int, owner.stdout.readline().split())
        owner.kill()
    try:
        wait_until(lambda: not (tmp_path / LOCK).exists())
    finally:
        os.kill(fork_pid, signal.SIGKILL)


@pytest.mark.thorough
def test_a_holder_that_was_killed_is_noticed_and_nobody_else_gets_the_lock(tmp_path: Path):
    lock = LogDirectoryLock(tmp_path)
    proof = lock.acquire()
    os.kill(proof.holder_pid, signal.SIGKILL)
    lock._holder.wait()
    with pytest.raises(GuardRefusedError, match=r"LOCK_LOST: .* is gone"):
        lock.validate_held()
    # The share of this process holds it.
    assert is_locked(tmp_path)
    assert query_lock(tmp_path) == LockState(is_held=True)
    with pytest.raises(GuardRefusedError, match=f"is locked by process {os.getpid()}"):
        LogDirectoryLock(tmp_path).acquire()
    lock.release()
    assert not is_locked(tmp_path)


@pytest.mark.thorough
@pytest.mark.item("FLT-10")
def test_the_lock_lasts_until_the_last_share_is_given_back(tmp_path: Path):
    script = """
        import sys
        from storage_core.checkpoint.lock import LockProof, share_lock
        with share_lock(eval(sys.argv[1])):
            print("shared", flush=True)
            sys.stdin.read()
        """
    lock = LogDirectoryLock(tmp_path)
    task = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(script), repr(lock.acquire())],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    with task, ThreadPoolExecutor() as threads:
        assert task.stdout.readline() == "shared\n"
        proof, holder = lock.proof, lock._holder
        releasing = threads.submit(lock.release)
        wait_until(lambda: is_refused(proof))
        assert is_locked(tmp_path)
        assert (tmp_path / LOCK).exists()
        task.send_signal(signal.SIGSTOP)
        holder.kill()
        releasing.result()
        # Frozen, without the holder and without the run: it may go on to write.
        assert is_locked(tmp_path)
        task.kill()
    wait_until(lambda: not is_locked(tmp_path))


def is_refused(proof: LockProof) -> bool:
    """Whether the holder gives out no more shares."""
    try:
        share_lock(proof).close()
    except GuardRefusedError as error:
        return error.code == "LOCK_LOST"
    return False


def test_a_process_asks_the_holder_once_for_the_shares_of_a_task(tmp_path: Path):
    with LogDirectoryLock(tmp_path) as lock:
        proof = lock.proof
        lock._share.close()  # as in another process
        with kept_shares():
            with share_lock(proof) as first, share_lock(proof) as second:
                assert first is second
            with share_lock(proof) as third:
                assert third is first
        with share_lock(proof) as fourth:
            assert fourth is not first
        lock._share = share_lock(proof)


def test_a_descriptor_that_is_closed_meanwhile_hides_no_other(tmp_path: Path):
    low = os.open(os.devnull, os.O_RDONLY)
    with LogDirectoryLock(tmp_path):
        os.close(low)  # the listing of descriptors takes the number, and is closed when it is read
        assert os.getpid() in find_sharers(tmp_path)


@pytest.mark.thorough
def test_a_fork_has_no_share(tmp_path: Path):
    with LogDirectoryLock(tmp_path):
        pid = os.fork()
        if not pid:
            os._exit(os.getpid() in find_sharers(tmp_path))
        assert os.getpid() in find_sharers(tmp_path)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


@pytest.mark.skipif(os.geteuid() != 0, reason="only root becomes another user")
def test_another_user_gets_no_share(tmp_path: Path):
    with LogDirectoryLock(tmp_path) as lock:
        pid = os.fork()
        if not pid:
            os.setuid(65534)
            with socket.socket(socket.AF_UNIX) as stranger:
                stranger.connect(f"\0{lock.proof.address}")
                os._exit(len(socket.recv_fds(stranger, 1, 1)[1]))
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


@pytest.mark.parametrize("number", ["SIGTERM", "SIGINT", "SIGHUP", "SIGQUIT"])
def test_what_stops_a_service_does_not_end_the_holder(tmp_path: Path, number: str):
    with LogDirectoryLock(tmp_path) as lock:
        os.kill(lock.proof.holder_pid, getattr(signal, number))
        share_lock(lock.proof).close()
        status = Path(f"/proc/{lock.proof.holder_pid}/status").read_text()
        ignored = int(re.search(r"SigIgn:\t(\w+)", status)[1], 16)
        assert ignored >> getattr(signal, number) - 1 & 1
        lock.validate_held()


def test_a_lock_file_that_was_removed_or_replaced_is_noticed(tmp_path: Path):
    with LogDirectoryLock(tmp_path) as lock:
        (tmp_path / LOCK).unlink()
        with pytest.raises(GuardRefusedError, match="LOCK_LOST"):
            lock.validate_held()
        (tmp_path / LOCK).touch()
        with pytest.raises(GuardRefusedError, match="is another file"):
            lock.validate_held()
    # It is somebody else's now.
    assert (tmp_path / LOCK).exists()


def test_an_executor_on_another_host_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    with LogDirectoryLock(tmp_path) as lock:
        monkeypatch.setattr("socket.gethostname", lambda: "elsewhere")
        lock._share.close()  # as in another process
        with pytest.raises(GuardRefusedError, match="not on elsewhere"):
            share_lock(lock.proof)
        monkeypatch.undo()
        lock._share = share_lock(lock.proof)


def test_a_directory_that_is_not_there_is_an_error_of_storage(tmp_path: Path):
    with pytest.raises(StorageError, match="not a directory"):
        LogDirectoryLock(tmp_path / "none").acquire()


def test_a_lock_file_that_cannot_be_opened_is_an_error_of_storage(tmp_path: Path):
    (tmp_path / LOCK).mkdir()
    with pytest.raises(StorageError, match="Is a directory"):
        LogDirectoryLock(tmp_path).acquire()


def test_a_holder_that_cannot_start_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("storage_core.checkpoint.lock._HOLDER_MODULE", "storage_core.no_such")
    with pytest.raises(StorageError, match="No module named"):
        LogDirectoryLock(tmp_path).acquire()


NOBODY = LockState(is_held=False)


def test_where_there_is_no_file_nobody_holds_it_and_none_is_made(tmp_path: Path):
    assert query_lock(tmp_path) == NOBODY
    assert list(tmp_path.iterdir()) == []


def test_a_file_that_a_crash_left_is_held_by_nobody(tmp_path: Path):
    (tmp_path / ".lock").touch()
    assert query_lock(tmp_path) == NOBODY
    assert (tmp_path / ".lock").exists()


@pytest.mark.thorough
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
