"""Ask who holds the lock of a log directory, without taking it or letting go of one.

A POSIX record lock is lost when its own process closes any descriptor of the file. So the question
is asked by a process of its own, which holds nothing::

    python -m storage_core.checkpoint.lock_query LOG_DIRECTORY

It prints one line of JSON: ``{"holder_pid": N}``, null where nobody holds the lock, 0 for a process
that it cannot see.
"""

import fcntl
import json
import os
import struct
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from storage_core.errors import StorageError
from storage_core.filenames import LOCK_FILE
from storage_core.import_path import safe_import_path
from storage_core.local_files import is_there, open_file

_MODULE: Final = "storage_core.checkpoint.lock_query"
_ANSWER_SECONDS: Final = 60.0
_COMMAND_CHARACTERS: Final = 120
# struct flock of Linux: type, whence, start, length, pid of the holder.
_FLOCK: Final = struct.Struct("@hhqqi")


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
        [sys.executable, "-P", "-m", _MODULE, str(log_directory)],
        capture_output=True,
        timeout=_ANSWER_SECONDS,
        check=False,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(safe_import_path())},
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


def main(arguments: list[str]) -> int:
    """Print who holds the lock of the directory named in the one argument."""
    path = Path(arguments[0], LOCK_FILE)
    try:
        descriptor = open_file(path, may_be_link=True)
    except FileNotFoundError:
        holder = None
    except OSError as error:
        sys.stderr.write(f"{error.strerror}\n")
        return 1
    else:
        query = _FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)
        answer = _FLOCK.unpack(fcntl.fcntl(descriptor, fcntl.F_GETLK, query))
        holder = None if answer[0] == fcntl.F_UNLCK else max(int(answer[-1]), 0)
    sys.stdout.write(json.dumps({"holder_pid": holder}) + "\n")
    return 0


def _command_of(pid: int) -> str:
    """Return how a process was started: of a JVM the main class, which is what tells a broker."""
    try:
        words = Path(f"/proc/{pid}/cmdline").read_bytes().decode("utf-8", "replace").split("\0")
    except OSError:
        return ""
    words = [word for word in words if word]
    if not words:
        return ""
    rest = [word for word in words[1:] if not word.startswith("-") and "/" not in word]
    return " ".join([Path(words[0]).name, *rest])[:_COMMAND_CHARACTERS]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
