"""The process that holds the lock of one log directory, or asks who does.

A POSIX record lock belongs to a process and is lost when that process closes *any* descriptor of
the file. So the lock lives in a process that does nothing else::

    python -m storage_core.lock_holder LOCK_FILE

``checkpoint.lock`` starts it, once for every directory of a run. It stands outside of that package
and imports little: to start has to take it no longer than it takes Python.

It prints one line of JSON: ``{"state": "held", "pid", "device", "inode"}``, or
``{"state": "refused", "holder_pid"}`` (null if unknown), or ``{"state": "failed", "reason"}``.
While it holds the lock it waits on standard input. At the end of that, which comes also when the
parent dies, it removes the file, as a broker does, and ends.

With ``--query`` behind the file it takes nothing and prints ``{"holder_pid": N}``: null where
nobody holds the lock, 0 for a process that it cannot see.
"""

import fcntl
import json
import os
import select
import signal
import struct
import sys
from pathlib import Path
from typing import Final

from storage_core.local_files import open_file, open_folder, open_in

# Between another process's last unlink and our open, the file can be replaced under us. Each
# replacement is the work of another process that took and released the lock: it does not go on.
_ATTEMPTS: Final = 100
# A copy of the pipe's other end may outlive the parent in one of its forks, so that no end of
# input comes; a changed parent says the same.
_PARENT_CHECK_SECONDS: Final = 1.0
_FILE_MODE: Final = 0o644

# struct flock of Linux: type, whence, start, length, pid of the holder.
_FLOCK: Final = struct.Struct("@hhqqi")


class LockRefusedError(Exception):
    """Another process holds the lock."""

    def __init__(self, holder_pid: int | None) -> None:
        super().__init__(holder_pid)
        self.holder_pid = holder_pid


def acquire(path: Path) -> int:
    """Take the exclusive lock on a file, creating it if need be.

    Returns:
        The descriptor that holds the lock; the file at path is the locked one.

    Raises:
        LockRefusedError: Another process holds it.
        OSError: The file cannot be opened or locked.
    """
    for _ in range(_ATTEMPTS):
        descriptor = _open(path)
        try:
            fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except (BlockingIOError, PermissionError):
            holder_pid = _find_holder(descriptor) if sys.platform == "linux" else None
            os.close(descriptor)
            raise LockRefusedError(holder_pid or None) from None
        if _is_the_file(descriptor, path):
            return descriptor
        os.close(descriptor)
    raise LockRefusedError(None)


def release(descriptor: int, path: Path) -> None:
    """Remove the file and let the lock go.

    In this order: a process that opens the file once the lock is gone would else have its own
    lock's file removed.
    """
    if _is_the_file(descriptor, path):
        path.unlink()
    os.close(descriptor)


def main(arguments: list[str]) -> int:
    """Hold the lock on the file named in the first argument until standard input ends."""
    if arguments[1:] == ["--query"]:
        return query(Path(arguments[0]))
    parent_pid = os.getppid()
    # The parent decides when to let go; a Ctrl-C at the terminal reaches this process as well.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    path = Path(arguments[0])
    try:
        descriptor = acquire(path)
    except LockRefusedError as refusal:
        _report({"state": "refused", "holder_pid": refusal.holder_pid})
        return 1
    except OSError as error:
        _report({"state": "failed", "reason": error.strerror})
        return 1
    facts = os.fstat(descriptor)
    _report({"state": "held", "pid": os.getpid(), "device": facts.st_dev, "inode": facts.st_ino})
    _wait_for_parent(parent_pid)
    release(descriptor, path)
    return 0


def query(path: Path) -> int:
    """Print who holds the lock on a file; the lock stays whose it is."""
    try:
        descriptor = open_file(path, may_be_link=True)
    except FileNotFoundError:
        holder_pid = None
    except OSError as error:
        sys.stderr.write(f"{error.strerror}\n")
        return 1
    else:
        holder_pid = _find_holder(descriptor)
    _report({"holder_pid": holder_pid})
    return 0


def _open(path: Path) -> int:
    """Open the file, itself and no other: to a link we would give its directory's owner.

    One of another user's that has other names is refused by ``open_in``; one of another user's
    that has none was left by a run, or a broker, of theirs.
    """
    with open_folder(path.parent, may_be_link=True) as folder:
        descriptor = open_in(folder, path.name, os.O_RDWR | os.O_CREAT, mode=_FILE_MODE)
        owner = os.fstat(folder)
    if os.geteuid() == 0 and os.fstat(descriptor).st_uid != owner.st_uid:
        # If this machine dies now, the broker's own user has to be able to open the file.
        os.fchown(descriptor, owner.st_uid, owner.st_gid)
    return descriptor


def _is_the_file(descriptor: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(descriptor), path.lstat())
    except FileNotFoundError:
        return False


def _find_holder(descriptor: int) -> int | None:
    """Ask the kernel who holds the lock: None is nobody, 0 a process that this one cannot see."""
    query = _FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)
    answer = _FLOCK.unpack(fcntl.fcntl(descriptor, fcntl.F_GETLK, query))
    lock_type, holder_pid = int(answer[0]), int(answer[-1])
    return None if lock_type == fcntl.F_UNLCK else max(holder_pid, 0)


def _wait_for_parent(parent_pid: int) -> None:
    """Return when standard input ends or has anything to say, or when the parent is gone."""
    while os.getppid() == parent_pid:
        if select.select([sys.stdin], [], [], _PARENT_CHECK_SECONDS)[0]:
            return


def _report(answer: dict[str, object]) -> None:
    sys.stdout.write(json.dumps(answer) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
