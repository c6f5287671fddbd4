"""A process to hold or query a log directory's lock.

A POSIX record lock belongs to a process and is lost when that process closes *any* descriptor of
the file. So the lock lives in a process that does nothing else::

    python -m storage_core.lock_holder LOCK_FILE

``checkpoint.lock`` starts it, once for every directory of a run. It stands outside of that package
and imports little: to start has to take it no longer than it takes Python.

A broker locks the whole file. This process locks it in two parts, so that no broker gets it:

- the first byte by a lock of the process. It says who holds the file: the kernel names the process
  to whoever asks;
- all bytes behind it by a lock of the open file (``F_OFD_SETLK``). It says how long: the kernel
  lets go when the last process has closed that open file. Whoever changes the log directory gets a
  copy of its descriptor from this process, a *share*, and keeps it as long as it may write. So a
  share cannot outlive the lock, whatever dies in between, this process among it.

It prints one line of JSON: ``{"state": "held", "pid", "address"}``, or
``{"state": "refused", "holder_pid"}`` (null if unknown), or ``{"state": "failed", "reason"}``.
While it holds the lock it gives out shares at that address, an abstract Unix socket; a connection
stays open as long as its share is kept. At the end of standard input, which comes also when the
parent dies, it gives out no more of them, waits until the last is given back, removes the file, as
a broker does, and ends. No signal that can be ignored ends it earlier: what stops a service is sent
to each of its processes.

With ``--query`` behind the file it takes nothing and prints ``{"holder_pid": N}``: null where
nobody holds the lock, 0 for a process that it cannot see.
"""

import fcntl
import json
import os
import select
import signal
import socket
import struct
import sys
from pathlib import Path
from typing import Final

from storage_core.local_files import open_file, open_folder, open_in

# Attempts: between another process's unlink and our open, the file can be replaced. Each
# replacement needs another process that took and released the lock, so it ends.
_ATTEMPTS: Final = 100
# A fork of the parent may keep the pipe's other end open, so that no end of input comes; a changed
# parent tells the same.
_PARENT_CHECK_MS: Final = 1000
_FILE_MODE: Final = 0o644
# Two parts of the file are locked; 0 bytes mean up to the end.
_HOLDERS_PART: Final = (0, 1)
_SHARED_PART: Final = (1, 0)
_WHOLE: Final = (0, 0)
_IGNORED: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGPIPE)

# struct flock of Linux: type, whence, start, length, pid of the holder.
_FLOCK: Final = struct.Struct("@hhqqi")
# What asks for the shared part, and the type in the answer where nobody has it.
SHARED_QUERY: Final = _FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, *_SHARED_PART, 0)
NOBODYS: Final = struct.pack("@h", fcntl.F_UNLCK)
# struct ucred of Linux: process, user, group.
_PEER: Final = struct.Struct("@iII")
_ROOT_USER: Final = 0


class LockRefusedError(Exception):
    """Another process holds the lock."""

    def __init__(self, holder_pid: int | None) -> None:
        super().__init__(holder_pid)
        self.holder_pid = holder_pid


def acquire(path: Path) -> int:
    """Take the exclusive lock on a file, creating it if need be.

    Returns:
        The descriptor that holds the lock; the file at path is the locked one.
    """
    for _ in range(_ATTEMPTS):
        descriptor = _open(path)
        try:
            _lock(descriptor, fcntl.F_SETLK, _HOLDERS_PART)
            _lock(descriptor, fcntl.F_OFD_SETLK, _SHARED_PART)
        except (BlockingIOError, PermissionError):
            holder_pid = find_holder(descriptor)
            os.close(descriptor)
            raise LockRefusedError(holder_pid or None) from None
        if _is_the_file(descriptor, path):
            return descriptor
        os.close(descriptor)
    raise LockRefusedError(None)


def release(descriptor: int, path: Path) -> None:
    """Remove the file, then let the lock go. The other order could remove a file that another
    process has just locked."""
    if _is_the_file(descriptor, path):
        path.unlink()
    os.close(descriptor)


def main(arguments: list[str]) -> int:
    """Hold the lock on the first argument's file until standard input ends."""
    if arguments[1:] == ["--query"]:
        return query(Path(arguments[0]))
    parent_pid = os.getppid()
    # The parent decides about the release; a Ctrl-C at the terminal reaches this process as well.
    for number in _IGNORED:
        signal.signal(number, signal.SIG_IGN)
    path = Path(arguments[0])
    try:
        descriptor = acquire(path)
        listener = listen()
    except LockRefusedError as refusal:
        _report({"state": "refused", "holder_pid": refusal.holder_pid})
        return 1
    except OSError as error:
        _report({"state": "failed", "reason": error.strerror})
        return 1
    _report({"state": "held", "pid": os.getpid(), "address": address_of(listener)})
    share_out(descriptor, listener, parent_pid)
    release(descriptor, path)
    return 0


def listen() -> socket.socket:
    """Return a socket listening at a new abstract address. Such an address has no file, and ends
    with its process."""
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    listener.bind(f"\0pylog-lock-{os.urandom(16).hex()}")
    listener.listen(socket.SOMAXCONN)
    return listener


def address_of(listener: socket.socket) -> str:
    """Return where others find a socket, without the zero byte in front."""
    name: bytes = listener.getsockname()
    return name[1:].decode("ascii")


def share_out(descriptor: int, listener: socket.socket, parent_pid: int) -> None:
    """Give out shares until standard input ends; wait for their return."""
    poll = select.poll()
    parent = sys.stdin.fileno()
    shares: dict[int, socket.socket] = {}
    poll.register(parent, select.POLLIN)
    poll.register(listener, select.POLLIN)
    is_ending = False
    while not is_ending or shares:
        ready = [number for number, _ in poll.poll(None if is_ending else _PARENT_CHECK_MS)]
        for number in ready:
            if number in shares:
                # The owner sends nothing: this is the end of its connection.
                poll.unregister(number)
                shares.pop(number).close()
            elif number == listener.fileno():
                share = _give_share(listener, descriptor)
                if share is not None:
                    shares[share.fileno()] = share
                    poll.register(share, select.POLLIN)
        if not is_ending and (parent in ready or os.getppid() != parent_pid):
            is_ending = True
            poll.unregister(parent)
            poll.unregister(listener)
            listener.close()


def _give_share(listener: socket.socket, descriptor: int) -> socket.socket | None:
    """Send the locked file to the next peer: this user's or root's."""
    try:
        connection, _ = listener.accept()
    except OSError:  # it is already gone
        return None
    try:
        peer = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _PEER.size)
        if _PEER.unpack(peer)[1] in {os.geteuid(), _ROOT_USER}:
            socket.send_fds(connection, [b"."], [descriptor])
            return connection
    except OSError:  # as above
        pass
    connection.close()
    return None


def query(path: Path) -> int:
    """Print the holder of a file's lock, without taking the lock."""
    try:
        descriptor = open_file(path, may_be_link=True)
    except FileNotFoundError:
        holder_pid = None
    except OSError as error:
        sys.stderr.write(f"{error.strerror}\n")
        return 1
    else:
        holder_pid = find_holder(descriptor)
    _report({"holder_pid": holder_pid})
    return 0


def _open(path: Path) -> int:
    """Open the lock file itself, never a link. Otherwise we would give a link's target to the
    directory's owner.

    One of another user's that has other names is refused by ``open_in``; one of another user's
    that has none was left by a run, or a broker, of theirs.
    """
    with open_folder(path.parent, may_be_link=True) as folder:
        descriptor = open_in(folder, path.name, os.O_RDWR | os.O_CREAT, mode=_FILE_MODE)
        owner = os.fstat(folder)
    if os.geteuid() == 0 and os.fstat(descriptor).st_uid != owner.st_uid:
        # If this machine dies now, the broker's user must be able to open the file.
        os.fchown(descriptor, owner.st_uid, owner.st_gid)
    return descriptor


def _is_the_file(descriptor: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(descriptor), path.lstat())
    except FileNotFoundError:
        return False


def find_holder(descriptor: int) -> int | None:
    """Return the lock holder's process id, None if nobody holds it. The kernel answers; 0 is a
    process invisible to this one."""
    # The first byte belongs to a process; the others may belong to an open file, without a process.
    for part in (_HOLDERS_PART, _WHOLE):
        lock_type, holder_pid = _lock(descriptor, fcntl.F_GETLK, part)
        if lock_type != fcntl.F_UNLCK:
            return max(holder_pid, 0)
    return None


def is_shared_part_taken(descriptor: int) -> bool:
    """Ask the kernel whether another open file locks the shared part."""
    return not fcntl.fcntl(descriptor, fcntl.F_OFD_GETLK, SHARED_QUERY).startswith(NOBODYS)


def _lock(descriptor: int, command: int, part: tuple[int, int]) -> tuple[int, int]:
    """Take or query an exclusive lock on a part of a file.

    Returns:
        (type, pid) of the lock that is in the way, where it was asked for.
    """
    start, length = part
    request = _FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, start, length, 0)
    answer = _FLOCK.unpack(fcntl.fcntl(descriptor, command, request))
    return int(answer[0]), int(answer[-1])


def _report(answer: dict[str, object]) -> None:
    sys.stdout.write(json.dumps(answer) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
