"""Kafka's lock on a log directory, against brokers and other jobs. Only the holder of the lock
writes to the log directory.

A broker takes a POSIX record lock on ``.lock`` in each of its log directories and keeps it as long
as it runs. ``LogDirectoryLock`` takes the same lock, in a process of its own (``lock_holder``
says why). ``query_lock`` asks who holds it, by such a process too, and takes nothing.

Whoever changes something in the log directory has a *share* in the lock for that time, a copy of
the locked file: the run's driver from beginning to end, a task at least for the length of its
commit. The kernel lets no broker have the lock before the last share is gone. Right before each
change a share is asked whether it is still one: only another lock file in place of this one can
make it worthless.
"""

import errno
import json
import logging
import os
import select
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, NamedTuple, Self

from storage_core.errors import GuardRefusedError, StorageError
from storage_core.filenames import LOCK_FILE
from storage_core.import_path import safe_import_path
from storage_core.local_files import is_there, open_file
from storage_core.lock_holder import is_shared_part_taken

_log: Final = logging.getLogger(__name__)
_HOLDER_MODULE: Final = "storage_core.lock_holder"
# The holder answers in a fraction of a second; on a swapping machine it may take longer.
_ANSWER_SECONDS: Final = 60.0
_RELEASE_SECONDS: Final = 60.0
_COMMAND_CHARACTERS: Final = 120
# The lock file as seen from a partition directory, which is no link.
BESIDE: Final = f"../{LOCK_FILE}"
# Containers of one machine may share a host name with others; the boot id is the kernel's own.
_BOOT_ID_FILE: Final = Path("/proc/sys/kernel/random/boot_id")


@dataclass(frozen=True, slots=True, kw_only=True)
class LockProof:
    """Lets an executor check that it writes where the lock is held."""

    log_directory: str
    holder_pid: int  # process id of the holder
    host_name: str  # name of the holder's host
    boot_id: str  # id of the holder's kernel since its last start; empty where it has none
    address: str  # where the holder gives out shares: an abstract Unix socket


class LockedFile(NamedTuple):
    """An open lock file. While it is open, no other file gets its inode number."""

    descriptor: int
    inode: int
    device: int

    @classmethod
    def of(cls, descriptor: int) -> Self:
        """Return what an open file is."""
        facts = os.fstat(descriptor)
        return cls(descriptor, facts.st_ino, facts.st_dev)


class LockShare:
    """A share in the lock on a log directory; a context manager. Made by ``share_lock``. As long as
    it is open nobody else gets the lock, whatever becomes of the holder.

    Args:
        connection: To the holder, who waits for its end.

    Attributes:
        file: What is locked.
    """

    def __init__(self, proof: LockProof, connection: socket.socket, descriptor: int) -> None:
        self.users = 0
        self._proof = proof
        self._path = str(Path(proof.log_directory, LOCK_FILE))
        self._connection = connection
        self.file = LockedFile.of(descriptor)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()

    def close(self) -> None:
        """Give it back, once all who use it in this process have."""
        with _sharing:
            self.users -= 1
            if not self.users:
                del _shares[self._proof.address]
                self.leave()

    def leave(self) -> None:
        """Close what it has open."""
        # First: for the holder, the end of the connection is the end of the share.
        os.close(self.file.descriptor)
        self._connection.close()

    def validate(self, partition: int | None = None) -> None:
        """Check that this lock is on the lock file, and nobody else's.

        A commit of many small files asks hundreds of times: this takes two calls of the operating
        system and little else.

        Args:
            partition: An open partition directory: its own log directory has to have this lock,
                wherever the directory was moved. None for the log directory by its path.
        """
        try:
            if partition is None:
                facts = os.lstat(self._path)  # a ``Path`` takes as long as the call
            else:
                facts = os.stat(BESIDE, dir_fd=partition, follow_symlinks=False)
        except OSError as error:
            raise _lost(self._proof, f"{self._path}: {error.strerror}") from error
        if facts.st_ino != self.file.inode or facts.st_dev != self.file.device:
            raise _lost(self._proof, f"{self._path} is another file")
        if is_shared_part_taken(self.file.descriptor):
            raise _lost(self._proof, f"{self._path} is locked by another process")

    def validate_is_locked(self) -> None:
        """Check that it is this open file that the kernel has locked."""
        self.validate()
        try:
            other = open_file(Path(self._path), may_be_link=True)
        except OSError as error:
            raise _lost(self._proof, f"{self._path}: {error.strerror}") from error
        try:
            if not is_shared_part_taken(other):
                raise _lost(self._proof, f"{self._path} is not locked")
        finally:
            os.close(other)


# The shares of this process, by the holder's address; those kept until the task has ended.
_shares: Final[dict[str, LockShare]] = {}
_retained_shares: Final[list[LockShare]] = []
_keepers = 0
_sharing = threading.Lock()


def _leave_shares() -> None:
    """Leave the parent's shares after a fork. The forked process changes nothing, and may
    outlive its parent."""
    global _keepers, _sharing  # of this process, as descriptors are
    _sharing, _keepers = threading.Lock(), 0
    for share in _shares.values():
        share.leave()
    _shares.clear()
    _retained_shares.clear()


os.register_at_fork(after_in_child=_leave_shares)


def share_lock(proof: LockProof) -> LockShare:
    """Return this process's share in a lock, from the holder if new. Asking the holder takes
    some tenths of a millisecond."""
    with _sharing:
        share = _shares.get(proof.address)
        if share is None:
            share = _shares[proof.address] = _ask_holder(proof)
            if _keepers:
                _retained_shares.append(share)
                share.users += 1
        else:
            share.validate()
        share.users += 1
        return share


@contextmanager
def kept_shares() -> Iterator[None]:
    """Keep all new shares of the lock until the block ends. The block is one task with its commits.
    A task that is done leaves none behind: its process may live on for long."""
    global _keepers  # noqa: PLW0603  # as above
    with _sharing:
        _keepers += 1
    try:
        yield
    finally:
        with _sharing:
            _keepers -= 1
            done = [] if _keepers else _retained_shares.copy()
            del _retained_shares[: len(done)]
        for share in done:
            share.close()


def _ask_holder(proof: LockProof) -> LockShare:
    if (proof.host_name, proof.boot_id) != (socket.gethostname(), read_boot_id()):
        raise GuardRefusedError(
            "LOCK_LOST",
            f"the lock on {proof.log_directory} is held on {proof.host_name}, "
            f"not on {socket.gethostname()}",
        )
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        connection.settimeout(_ANSWER_SECONDS)
        connection.connect(f"\0{proof.address}")
        _, descriptors, _, _ = socket.recv_fds(connection, 1, 1, socket.MSG_CMSG_CLOEXEC)
        if not descriptors:
            raise ConnectionResetError(errno.ECONNRESET, "it gives out no more shares")
    except OSError as error:
        connection.close()
        raise _lost(
            proof, f"its holder, process {proof.holder_pid}, is gone: {error.strerror or error}"
        ) from error
    share = LockShare(proof, connection, descriptors[0])
    try:
        share.validate_is_locked()
    except BaseException:
        share.leave()
        raise
    return share


def _lost(proof: LockProof, reason: str) -> GuardRefusedError:
    return GuardRefusedError(
        "LOCK_LOST",
        f"the lock on {proof.log_directory} is lost: {reason}. Nothing more is changed there; the "
        "next run finishes what was begun",
    )


class LogDirectoryLock:
    """The exclusive lock on one log directory, held while the context lasts."""

    def __init__(self, log_directory: Path) -> None:
        self.log_directory = log_directory.absolute()
        self._holder: subprocess.Popen[bytes] | None = None
        self._proof: LockProof | None = None
        self._share: LockShare | None = None

    def __enter__(self) -> Self:
        self.acquire()
        return self

    def __exit__(self, *_error: object) -> None:
        self.release()

    @property
    def proof(self) -> LockProof:
        """The proof to hand to executors."""
        if self._proof is None:
            raise GuardRefusedError("LOCK_LOST", f"the lock on {self.log_directory} was not taken")
        return self._proof

    def acquire(self) -> LockProof:
        """Take the lock; taking it twice is taking it once."""
        if self._proof is not None:
            return self._proof
        holder = self._start_holder()
        answer = self._read_answer(holder)
        if answer["state"] != "held":
            self._stop(holder)
            raise self._refusal(answer)
        self._holder = holder
        self._proof = LockProof(
            log_directory=str(self.log_directory),
            holder_pid=int(answer["pid"]),
            host_name=socket.gethostname(),
            boot_id=read_boot_id(),
            address=str(answer["address"]),
        )
        try:
            self._share = share_lock(self._proof)
        except BaseException:
            self.release()
            raise
        return self._proof

    def validate_held(self) -> None:
        """Check that the lock is still held, right before something is changed."""
        if self._share is None or self._holder is None:
            raise GuardRefusedError(
                "LOCK_LOST", f"the lock on {self.log_directory} is not held by this process"
            )
        if self._holder.poll() is not None:
            # While this share lives, nobody else has the lock; but no task gets another share.
            raise _lost(self.proof, f"its holder, process {self._holder.pid}, is gone")
        self._share.validate()

    def release(self) -> None:
        """Release the lock and remove its file; do nothing without a lock.

        Tasks that still have a share are waited for, as long as that may take on a busy machine.
        """
        holder, share = self._holder, self._share
        self._holder = self._share = self._proof = None
        if share is not None:
            share.close()
        if holder is not None:
            self._stop(holder)

    def _start_holder(self) -> subprocess.Popen[bytes]:
        if not self.log_directory.is_dir():
            raise StorageError(str(self.log_directory), "is not a directory")
        return subprocess.Popen(  # noqa: S603 - this interpreter, a module of ours, no shell
            _holder_command(self.log_directory),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=_holder_environment(),
            start_new_session=True,
        )

    def _read_answer(self, holder: subprocess.Popen[bytes]) -> dict[str, Any]:
        output = holder.stdout
        if output is None:
            raise StorageError(str(self.log_directory), "the lock holder has no output")
        ready, _, _ = select.select([output], [], [], _ANSWER_SECONDS)
        line = output.readline() if ready else b""
        if not line:
            errors = self._stop(holder)
            raise StorageError(str(self.log_directory), f"the lock holder gave no answer: {errors}")
        answer: dict[str, Any] = json.loads(line)
        return answer

    def _refusal(self, answer: dict[str, Any]) -> GuardRefusedError | StorageError:
        if answer["state"] == "failed":
            return StorageError(str(self.log_directory / LOCK_FILE), str(answer["reason"]))
        # A task of a killed run may be left, with nothing but an open file to find it by.
        pid = answer["holder_pid"] or next(iter(find_sharers(self.log_directory)), None)
        who = "another process" if pid is None else f"process {pid}"
        return GuardRefusedError(
            "LOG_DIRECTORY_IN_USE",
            f"{self.log_directory / LOCK_FILE} is locked by {who}: a broker or another job is "
            "using this directory",
        )

    def _stop(self, holder: subprocess.Popen[bytes]) -> str:
        """End the holder's input, await its end, return its error output."""
        try:
            _, errors = holder.communicate(timeout=_RELEASE_SECONDS)
        except subprocess.TimeoutExpired:
            # Its end would not free the lock: a task has a share that it does not return.
            _log.warning(
                "%s stays locked as long as one of these processes lives: %s",
                self.log_directory,
                ", ".join(map(str, find_sharers(self.log_directory))) or "unknown",
            )
            holder.kill()
            _, errors = holder.communicate()
        return errors.decode("utf-8", "replace").strip()


def find_sharers(log_directory: Path) -> list[int]:
    """Return the visible processes with an open lock file."""
    path = log_directory.resolve() / LOCK_FILE
    pids = []
    for descriptors in Path("/proc").glob("[0-9]*/fd"):
        with suppress(OSError):  # it has ended, or is another user's
            if any(_leads_to(link, path) for link in descriptors.iterdir()):
                pids.append(int(descriptors.parent.name))
    return pids


def _leads_to(link: Path, path: Path) -> bool:
    with suppress(OSError):  # closed meanwhile, as the listing of our own descriptors is
        return link.readlink() == path
    return False


def _holder_command(log_directory: Path) -> list[str]:
    return [sys.executable, "-P", "-m", _HOLDER_MODULE, str(log_directory / LOCK_FILE)]


def _holder_environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": os.pathsep.join(safe_import_path())}


def read_boot_id() -> str:
    """Return the boot id of this machine's kernel; empty without one."""
    try:
        return _BOOT_ID_FILE.read_text("ascii").strip()
    except OSError:
        return ""


@dataclass(frozen=True, slots=True, kw_only=True)
class LockState:
    """Who holds the lock of a log directory."""

    is_held: bool  # whether anybody does
    # Process id of the holder; None where nobody is, or nobody who can be seen.
    holder_pid: int | None = None
    command: str = ""  # how the holder was started, cut; empty where that cannot be seen


def require_stopped(log_directory: Path, reason: str) -> None:
    """Refuse a log directory whose lock somebody holds."""
    if query_lock(log_directory).is_held:
        raise GuardRefusedError("LOG_DIRECTORY_IN_USE", f"{log_directory}: {reason}")


def query_lock(log_directory: Path) -> LockState:
    """Return who holds the lock of a log directory."""
    path = log_directory / LOCK_FILE
    try:
        has_lock_file = is_there(path, may_be_link=True)
    except OSError as error:
        raise StorageError(str(path), error.strerror or str(error)) from error
    if not has_lock_file:
        return LockState(is_held=False)
    answer = subprocess.run(  # noqa: S603 - this interpreter, a module of ours, no shell
        [*_holder_command(log_directory), "--query"],
        capture_output=True,
        timeout=_ANSWER_SECONDS,
        check=False,
        env=_holder_environment(),
    )
    if answer.returncode:
        lines = answer.stderr.decode("utf-8", "replace").strip().splitlines()
        raise StorageError(str(path), lines[-1] if lines else "the lock cannot be looked at")
    holder = json.loads(answer.stdout)["holder_pid"]
    if holder is None:
        return LockState(is_held=False)
    if not holder:
        return LockState(is_held=True)
    return LockState(is_held=True, holder_pid=holder, command=_command_of(holder))


def _command_of(pid: int) -> str:
    """Return a process's command; a JVM's main class, as a broker's."""
    try:
        words = Path(f"/proc/{pid}/cmdline").read_bytes().decode("utf-8", "replace").split("\0")
    except OSError:
        return ""
    words = [word for word in words if word]
    if not words:
        return ""
    rest = [word for word in words[1:] if not word.startswith("-") and "/" not in word]
    return " ".join([Path(words[0]).name, *rest])[:_COMMAND_CHARACTERS]
