"""Commands that are interrupted at a moment that chance chooses, and what is left of them."""

import fcntl
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from storage_core.filenames import LOCK_FILE
from tests.jobs.spark_programs import REPOSITORY, environment

# Whoever started a process says so here, and what that starts says it too.
_MARK = "PYLOG_TEST_INTERRUPTION"
# A service manager waits longer, and so does a person who has pressed Ctrl-C.
LONGEST_SECONDS = 90.0
# What a process leaves to others ends a moment after it: a JVM has to notice.
_SETTLE_SECONDS = 30.0
_EARLY_SECONDS = 0.3
# As the script `pylog`, and as python -m: Python itself does different things before our code.
_PROGRAMS = (
    ["-P", "-c", "import sys; from pylog_spark.cli import main; sys.exit(main())"],
    ["-m", "pylog_spark"],
)
_OURS = re.compile(r'File ".*/(pylog_spark|storage_core)/')
# What Spark's own daemon prints where a task that was cancelled still has rows for its JVM.
_OF_DAEMON = re.compile(
    r"Traceback .*\n(  File \".*/pyspark/daemon\.py\".*\n(    .*\n)*)+BrokenPipeError: .*\n"
)

Arguments = Callable[[Path], list[str]]


@dataclass(frozen=True, slots=True)
class Subject:
    """A command, and where it works."""

    name: str  # of the command, as the test shows it
    arguments: Arguments  # of ``pylog``, given the folder with the directories
    folder: Path  # with the log directory ``broker``, and more
    # The folders in it that are made anew for each run; other ones go. Empty for a command that
    # only looks.
    changes: frozenset[str]
    originals: Path  # what they are made of

    def renew(self) -> None:
        """Make the folder as it was before any run."""
        if self.changes:
            shutil.rmtree(self.folder)
            self.folder.mkdir()
        for name in self.changes:
            shutil.copytree(self.originals / name, self.folder / name, symlinks=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class Interruption:
    """When a run is interrupted, and how."""

    number: int  # the signal; 0 for none
    after_seconds: float  # after the start of the process
    is_for_all: bool  # whether all processes of its group get it, as from a terminal
    program: int  # how it is started


@dataclass(slots=True, kw_only=True)
class Ended:
    """A run that is over."""

    status: int  # exit status; negative where a signal ended the process
    seconds: float  # from its start to its end
    waited_seconds: float  # from the signal to its end; 0 where it ended before
    errors: str  # what it said on standard error
    faults: list[str] = field(default_factory=list)  # what is not as it should be


def interruptions(count: int, longest_seconds: float, seed: str) -> Iterator[Interruption]:
    """Choose moments over the whole life of a process; one of four in its first moments."""
    chance = random.Random(seed)
    for _ in range(count):
        is_early = chance.random() < 1 / 4
        yield Interruption(
            number=chance.choice((signal.SIGTERM, signal.SIGINT)),
            after_seconds=chance.uniform(0, _EARLY_SECONDS if is_early else longest_seconds),
            is_for_all=chance.random() < 1 / 2,
            program=chance.randrange(len(_PROGRAMS)),
        )


def run_interrupted(
    subject: Subject, interruption: Interruption, scratch: Path, usual_status: int | None = None
) -> Ended:
    """Run a command, interrupt it, and say what is not as it should be.

    Args:
        usual_status: What it ends with where nobody interrupts it; None if this is not known yet.
    """
    subject.renew()
    folder = subject.folder
    temporary = scratch / "tmp"
    temporary.mkdir()
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        # So a shell starts its jobs in the background, and these what they start.
        signal.signal(signal.SIGINT, signal.default_int_handler)
    mark = uuid.uuid4().hex
    with (scratch / "err").open("wb") as errors, (scratch / "out").open("wb") as out:
        began = time.monotonic()
        process = subprocess.Popen(
            [sys.executable, *_PROGRAMS[interruption.program], *subject.arguments(folder)],
            cwd=REPOSITORY,
            env=environment(TMPDIR=str(temporary), **{_MARK: mark}),
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=errors,
            start_new_session=True,
        )
        try:
            ended = _interrupt(process, began, interruption)
        finally:
            is_hanging = process.poll() is None
            if is_hanging:
                process.kill()
                process.wait()
    ended.errors = (scratch / "err").read_text("utf-8", "replace")
    if is_hanging:
        ended.faults.append(f"hung for {LONGEST_SECONDS:.0f} s")
    ended.faults += _left_processes(mark)
    ended.faults += [f"locked: {file}" for file in folder.rglob(LOCK_FILE) if _is_locked(file)]
    ended.faults += [f"left {path.name}" for path in temporary.iterdir()]
    if usual_status is not None:
        ended.faults += _faults_of_status(ended, interruption, usual_status)
    return ended


def _interrupt(process: subprocess.Popen[bytes], began: float, interruption: Interruption) -> Ended:
    at = began + interruption.after_seconds
    sent = None
    try:
        process.wait(max(0.0, at - time.monotonic()) if interruption.number else LONGEST_SECONDS)
    except subprocess.TimeoutExpired:
        sent = time.monotonic()
        with suppress(ProcessLookupError):
            if interruption.is_for_all:
                os.killpg(process.pid, interruption.number)
            else:
                os.kill(process.pid, interruption.number)
        with suppress(subprocess.TimeoutExpired):
            process.wait(LONGEST_SECONDS)
    now = time.monotonic()
    status = process.poll()
    return Ended(
        status=0 if status is None else status,
        seconds=now - began,
        waited_seconds=0.0 if sent is None else now - sent,
        errors="",
    )


def _faults_of_status(ended: Ended, interruption: Interruption, usual_status: int) -> list[str]:
    """Judge what was said, and the exit status: that of the signal, or the usual one."""
    number = interruption.number
    errors = _OF_DAEMON.sub("", ended.errors)
    if "Traceback" in errors or "Exception ignored" in errors:
        # What Ctrl-C meets while Python itself starts, before a line of ours, is Python's answer.
        if number == signal.SIGINT and not _OURS.search(errors):
            return []
        return ["said a traceback"]
    if ended.status not in {128 + number, -number, usual_status}:
        return [f"exit status {ended.status}"]
    return []


def _left_processes(mark: str) -> list[str]:
    """Return the processes that still run a while later; they are ended."""
    limit = time.monotonic() + _SETTLE_SECONDS
    while (left := _marked(mark)) and time.monotonic() < limit:
        time.sleep(0.02)
    for pid in left:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    return [f"process {command} is left" for command in left.values()]


def _marked(mark: str) -> Mapping[int, str]:
    wanted = f"{_MARK}={mark}".encode()
    found = {}
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            with suppress(OSError):
                if wanted in (folder / "environ").read_bytes():
                    words = (folder / "cmdline").read_bytes().split(b"\0")
                    found[int(folder.name)] = b" ".join(words).decode("utf-8", "replace")[:200]
    return found


def _is_locked(file: Path) -> bool:
    with file.open("r+b") as stream:
        try:
            fcntl.lockf(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            return True
    return False
