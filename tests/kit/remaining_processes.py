"""End the processes that a run of tests leaves behind, however it ends: killed, too.

A run marks the environment of all that it starts, and starts this module, which waits for its end.
Java, Spark's workers and processes in sessions of their own all inherit the mark.
"""

import os
import select
import signal
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Final
from uuid import uuid4

_MARK: Final = "PYLOG_TEST_RUN"
_REPOSITORY: Final = Path(__file__).resolve().parents[2]
_GRACE_SECONDS: Final = 5.0
_POLL_SECONDS: Final = 0.1


def end_with_this_process() -> None:
    """Mark all that this process starts from now on, and have it ended once this process is gone.

    A run within a run belongs to the outer one, which ends both. Only Linux has what it takes.
    """
    if _MARK in os.environ or sys.platform != "linux":
        return
    environment = dict(os.environ)
    os.environ[_MARK] = uuid4().hex
    arguments = [sys.executable, "-m", __name__, os.environ[_MARK], str(os.getpid())]
    path = os.pathsep.join([str(_REPOSITORY), environment.get("PYTHONPATH", "")]).rstrip(os.pathsep)
    os.posix_spawn(sys.executable, arguments, environment | {"PYTHONPATH": path}, setsid=True)


def marked_processes(mark: str) -> list[int]:
    """Return the ids of the processes with a mark; those that are over are left out."""
    wanted = f"{_MARK}={mark}".encode()
    numbers = []
    for folder in Path("/proc").iterdir():
        if not folder.name.isdigit():
            continue
        try:
            environment = (folder / "environ").read_bytes()
        except OSError:  # it has just ended, or is another user's
            continue
        if wanted in environment.split(b"\0"):
            numbers.append(int(folder.name))
    return numbers


def end_marked(mark: str) -> None:
    """Ask the processes with a mark to end, and kill those that have not after a while."""
    deadline = time.monotonic() + _GRACE_SECONDS
    asked: set[int] = set()
    while numbers := marked_processes(mark):
        is_late = time.monotonic() > deadline
        for number in numbers:
            if is_late or number not in asked:
                with suppress(ProcessLookupError):
                    os.kill(number, signal.SIGKILL if is_late else signal.SIGTERM)
        asked.update(numbers)
        time.sleep(_POLL_SECONDS)


def main() -> None:
    """Wait until a process is gone, then end what it marked: arguments are the mark and its id."""
    mark, number = sys.argv[1], int(sys.argv[2])
    with suppress(ProcessLookupError):  # it has ended already
        select.select([os.pidfd_open(number)], [], [])
    end_marked(mark)


if __name__ == "__main__":
    main()
