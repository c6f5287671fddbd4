"""Kafka's lock on a log directory, so that neither a broker nor a second job writes there.

A broker takes a POSIX record lock on ``.lock`` in each of its log directories and keeps it as long
as it runs. ``LogDirectoryLock`` takes the same lock, in a process of its own (``lock_holder``
says why). ``query_lock`` asks who holds it, by such a process too, and takes nothing. Nothing else
in the project opens that file.
"""

import json
import os
import select
import socket
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Self

from storage_core.errors import GuardRefusedError, StorageError
from storage_core.filenames import LOCK_FILE
from storage_core.import_path import safe_import_path
from storage_core.local_files import is_there

_HOLDER_MODULE: Final = "storage_core.lock_holder"
# The holder answers in a fraction of a second; on a machine that swaps, it may need longer.
_ANSWER_SECONDS: Final = 60.0
_RELEASE_SECONDS: Final = 60.0
_COMMAND_CHARACTERS: Final = 120
# Containers of one machine may share a host name with others; the boot id is the kernel's own.
_BOOT_ID_FILE: Final = Path("/proc/sys/kernel/random/boot_id")


@dataclass(frozen=True, slots=True, kw_only=True)
class LockProof:
    """Lets an executor check that it writes where the lock is held.

    Attributes:
        log_directory: Path of the locked directory.
        holder_pid: Process id of the holder.
        device: Number of the filesystem that the lock file is on.
        inode: Number of the lock file in it.
        host_name: Name of the holder's host.
        boot_id: Id of the holder's kernel since its last start; empty where it has none.
    """

    log_directory: str
    holder_pid: int
    device: int
    inode: int
    host_name: str
    boot_id: str


class LogDirectoryLock:
    """The exclusive lock on one log directory, held while the context lasts.

    Args:
        log_directory: The directory with the partitions' directories in it.
    """

    def __init__(self, log_directory: Path) -> None:
        self.log_directory = log_directory.absolute()
        self._holder: subprocess.Popen[bytes] | None = None
        self._proof: LockProof | None = None

    def __enter__(self) -> Self:
        self.acquire()
        return self

    def __exit__(self, *_error: object) -> None:
        self.release()

    @property
    def proof(self) -> LockProof:
        """The proof to hand to executors.

        Raises:
            GuardRefusedError: The lock is not held.
        """
        if self._proof is None:
            raise self._lost("was not taken")
        return self._proof

    def acquire(self) -> LockProof:
        """Take the lock; taking it twice is taking it once.

        Raises:
            GuardRefusedError: Another process holds it; the error names the process if it can.
            StorageError: The lock file cannot be opened or locked.
        """
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
            device=int(answer["device"]),
            inode=int(answer["inode"]),
            host_name=socket.gethostname(),
            boot_id=read_boot_id(),
        )
        return self._proof

    def validate_held(self) -> None:
        """Check that the lock is still held, before something is committed.

        Raises:
            GuardRefusedError: The holder is gone, or the file is another one.
        """
        if self._holder is None or self._holder.poll() is not None:
            raise self._lost("its holder is gone")
        validate_on_holder_host(self.proof)

    def release(self) -> None:
        """Let the lock go and remove its file; without a lock nothing happens."""
        holder, self._holder, self._proof = self._holder, None, None
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
        pid = answer["holder_pid"]
        who = "another process" if pid is None else f"process {pid}"
        return GuardRefusedError(
            "LOG_DIRECTORY_IN_USE",
            f"{self.log_directory / LOCK_FILE} is locked by {who}: a broker or another job is "
            "using this directory",
        )

    def _lost(self, reason: str) -> GuardRefusedError:
        return GuardRefusedError("LOCK_LOST", f"the lock on {self.log_directory} {reason}")

    def _stop(self, holder: subprocess.Popen[bytes]) -> str:
        """End the holder's input, wait for its end, and return its error output."""
        try:
            _, errors = holder.communicate(timeout=_RELEASE_SECONDS)
        except subprocess.TimeoutExpired:
            holder.kill()
            _, errors = holder.communicate()
        return errors.decode("utf-8", "replace").strip()


def _holder_command(log_directory: Path) -> list[str]:
    return [sys.executable, "-P", "-m", _HOLDER_MODULE, str(log_directory / LOCK_FILE)]


def _holder_environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": os.pathsep.join(safe_import_path())}


def read_boot_id() -> str:
    """Return the id of this machine's kernel since its last start; empty where it has none."""
    try:
        return _BOOT_ID_FILE.read_text("ascii").strip()
    except OSError:
        return ""


def validate_on_holder_host(proof: LockProof) -> None:
    """Check that this process runs where the lock is held and sees the same directory.

    It looks at the file, and does not open it.

    Raises:
        GuardRefusedError: This is another host, or the lock file is gone or another one.
    """
    if (proof.host_name, proof.boot_id) != (socket.gethostname(), read_boot_id()):
        raise GuardRefusedError(
            "LOCK_LOST",
            f"the lock on {proof.log_directory} is held on {proof.host_name}, "
            f"not on {socket.gethostname()}",
        )
    path = Path(proof.log_directory, LOCK_FILE)
    try:
        facts = path.lstat()
    except OSError as error:
        raise GuardRefusedError("LOCK_LOST", f"{path}: {error.strerror}") from error
    if (facts.st_dev, facts.st_ino) != (proof.device, proof.inode):
        raise GuardRefusedError(
            "LOCK_LOST",
            f"{path} is another file: expected inode {proof.inode}, found {facts.st_ino}",
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class LockState:
    """Who holds the lock of a log directory.

    Attributes:
        is_held: Whether anybody does.
        holder_pid: Process id of the holder; None where nobody is, or nobody who can be seen.
        command: How the holder was started, cut; empty where that cannot be seen.
    """

    is_held: bool
    holder_pid: int | None = None
    command: str = ""


def query_lock(log_directory: Path) -> LockState:
    """Return who holds the lock of a log directory.

    Raises:
        StorageError: The lock file is there and cannot be looked at.
    """
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
    """Return the command of a process; of a JVM the main class, by which a broker is recognised."""
    try:
        words = Path(f"/proc/{pid}/cmdline").read_bytes().decode("utf-8", "replace").split("\0")
    except OSError:
        return ""
    words = [word for word in words if word]
    if not words:
        return ""
    rest = [word for word in words[1:] if not word.startswith("-") and "/" not in word]
    return " ".join([Path(words[0]).name, *rest])[:_COMMAND_CHARACTERS]
