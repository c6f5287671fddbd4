"""Runs of ``pylog run`` on a standalone cluster, and the processes of theirs that can be killed."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from storage_core.filenames import CLEAN_SHUTDOWN_FILE
from tests.jobs.spark_programs import REPOSITORY, environment

_EXECUTOR = "CoarseGrainedExecutorBackend"
_PYTHON_WORKER = "pyspark.daemon"
LONGEST_SECONDS = 240


@dataclass(frozen=True, slots=True)
class Ended:
    """A run that is over."""

    status: int  # its exit status; negative where a signal ended it
    output: str  # what it said
    errors: str  # what it complained about
    seconds: float  # from its first change of the directory to its end
    was_killed: bool  # whether something was there to be killed when the time came


def run_nightly(
    arguments: Sequence[str | Path],
    directory: Path,
    folder: Path,
    *,
    kill: Callable[[int], bool] | None = None,
    after_seconds: float = 0.0,
    until: Callable[[], bool] | None = None,
) -> Ended:
    """Run a nightly in a process of its own, and kill something of it on the way.

    Args:
        directory: The log directory: the time runs from its first change on.
        kill: Given the process id of the driver; says whether it killed something.
        until: Or when this is so, which is asked all the time.
    """
    with (folder / "out").open("wb") as out, (folder / "err").open("wb") as err:
        process = subprocess.Popen(
            [sys.executable, "-m", "pylog_spark", *map(str, arguments)],
            cwd=REPOSITORY,
            env=environment(),
            stdout=out,
            stderr=err,
            start_new_session=True,
        )
        try:
            began = _wait_for_changes(process, directory)
            was_killed = False
            if kill is not None:
                _wait(process, after_seconds, until)
                was_killed = kill(process.pid)
            process.wait(LONGEST_SECONDS)
        finally:
            _end_group(process)
    return Ended(
        status=process.returncode,
        output=(folder / "out").read_text(),
        errors=(folder / "err").read_text(),
        seconds=time.monotonic() - began,
        was_killed=was_killed,
    )


def kill_driver(pid: int) -> bool:
    """Kill the program, with the JVM that it started."""
    for child in _descendants(pid):
        _kill(child)
    return _kill(pid)


def kill_executor(_: int) -> bool:
    """Kill the newest executor of the clusters that this process has started."""
    return _kill_newest(_EXECUTOR)


def kill_worker(_: int) -> bool:
    """Kill the Python processes of one executor."""
    return _kill_newest(_PYTHON_WORKER)


def _wait_for_changes(process: subprocess.Popen[bytes], directory: Path) -> float:
    """Wait until the run has taken the marker away, or has ended without."""
    deadline = time.monotonic() + LONGEST_SECONDS
    marker = directory / CLEAN_SHUTDOWN_FILE
    while marker.exists() and process.poll() is None:
        if time.monotonic() > deadline:
            raise TimeoutError(f"{directory}: the run did not begin")
        time.sleep(0.02)
    return time.monotonic()


def _wait(
    process: subprocess.Popen[bytes], seconds: float, until: Callable[[], bool] | None
) -> None:
    deadline = time.monotonic() + (seconds if until is None else LONGEST_SECONDS)
    while process.poll() is None and time.monotonic() < deadline and not (until and until()):
        time.sleep(0.01)


def _end_group(process: subprocess.Popen[bytes]) -> None:
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def _kill(pid: int) -> bool:
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        return False
    return True


def _kill_newest(name: str) -> bool:
    ours = set(_descendants(os.getpid()))  # another Spark of this machine is not ours to kill
    found = [pid for pid, command in _commands() if pid in ours and name in command]
    return bool(found) and _kill(max(found, key=_started))


def _commands() -> Iterator[tuple[int, str]]:
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            try:
                command = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode()
            except OSError:
                continue
            yield int(folder.name), command


def _descendants(pid: int) -> list[int]:
    parents = {child: _stat(child, 1) for child, _ in _commands()}
    found, level = [], [pid]
    while level:
        level = [child for child, parent in parents.items() if parent in level]
        found += level
    return found


def _started(pid: int) -> int:
    return _stat(pid, 19)


def _stat(pid: int, field: int) -> int:
    """Return a field of a process by its place after the program's name; -1 if it is gone."""
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[field])
    except OSError:
        return -1
