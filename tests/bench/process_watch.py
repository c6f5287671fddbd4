"""What the processes of one run take: memory and processor time, of all descendants of one.

Read from ``/proc`` in short intervals. Memory is Pss_Anon, which the kernel cannot take back by
dropping pages of files; of a page that a worker shares with the process that it was forked from
each has its part.
"""

import os
import re
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, NamedTuple, TypeVar

from tests.bench.shared import ROOT
from tests.jobs.spark_programs import plain_environment

EXECUTOR_CLASS: Final = "CoarseGrainedExecutorBackend"
_KIB: Final = 1024
_PSS_ANON: Final = re.compile(r"^Pss_Anon:\s+(\d+) kB", re.MULTILINE)
_TICKS: Final = os.sysconf("SC_CLK_TCK")


@dataclass(slots=True)
class Watched:
    """What was seen of a run."""

    jvm_bytes: int = 0  # largest anonymous memory of a JVM
    driver_bytes: int = 0  # of the process that was started
    worker_bytes: int = 0  # of any other Python process
    workers_bytes: int = 0  # largest sum of all of these
    all_bytes: int = 0  # largest sum of all processes
    memory: bool = True  # whether it is looked at
    _seconds: dict[int, float] = field(default_factory=dict)

    @property
    def cpu_seconds(self) -> float:
        """Processor time of all processes, as last seen of each."""
        return sum(self._seconds.values())

    def sample(self, root: int) -> None:
        """Look at a process and its descendants."""
        memory, workers = 0, 0
        for process in _below(root, _processes()):
            own = process.memory_bytes if self.memory else 0
            memory += own
            before = self._seconds.get(process.pid, 0.0)
            self._seconds[process.pid] = max(before, process.cpu_seconds)
            if process.is_java:
                self.jvm_bytes = max(self.jvm_bytes, own)
            elif process.pid == root:
                self.driver_bytes = max(self.driver_bytes, own)
            else:
                workers += own
                self.worker_bytes = max(self.worker_bytes, own)
        self.workers_bytes = max(self.workers_bytes, workers)
        self.all_bytes = max(self.all_bytes, memory)


@dataclass(slots=True)
class Peaks:
    """What was seen of Spark's executors: each JVM with the Python workers that it started."""

    # Largest sum of a JVM and its Python processes, by the JVM's process id
    executor_bytes: dict[int, int] = field(default_factory=dict)
    jvm_bytes: int = 0  # largest of any executor's JVM
    python_bytes: int = 0  # largest of any single Python process of an executor
    samples: int = 0  # how often it was looked

    @property
    def worst_bytes(self) -> int:
        """The largest executor's."""
        return max(self.executor_bytes.values(), default=0)

    def sample(self, root: int) -> None:
        """Look at the executors among the descendants of a process."""
        self.samples += 1
        processes = _processes()
        for executor in _below(root, processes):
            if EXECUTOR_CLASS not in _command(executor.pid) or not executor.is_java:
                continue
            own = [each for each in _below(executor.pid, processes) if each != executor]
            of_jvm, sizes = executor.memory_bytes, [each.memory_bytes for each in own]
            known = self.executor_bytes.get(executor.pid, 0)
            self.executor_bytes[executor.pid] = max(known, of_jvm + sum(sizes))
            self.jvm_bytes = max(self.jvm_bytes, of_jvm)
            self.python_bytes = max([self.python_bytes, *sizes])


Seen = TypeVar("Seen", Watched, Peaks)


@contextmanager
def watched(root: int, seen: Seen, *, every_seconds: float) -> Iterator[Seen]:
    """Watch a process and its descendants, for the time of a block."""
    ended = threading.Event()

    def watch() -> None:
        while not ended.is_set():
            seen.sample(root)
            time.sleep(every_seconds)

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    try:
        yield seen
    finally:
        ended.set()
        thread.join()


def run_program(
    words: Sequence[str],
    *,
    output: str = os.devnull,
    errors: str | None = None,
    every_seconds: float = 0.25,
    build: Path = ROOT,
    memory: bool = True,
    **environment: str,
) -> tuple[int, float, Watched]:
    """Run ``pylog`` as a user starts it.

    Args:
        every_seconds: How often to look at its processes: what they do after the last look is not
            seen.
        build: The checkout whose program it is.
        memory: Whether to look at their memory, which takes their time.
        errors: File for its standard error; None for ours.
        environment: What its environment has besides.

    Returns:
        Its exit status, how many seconds it took, and what it and its descendants took.
    """
    begin = time.perf_counter()
    with (
        Path(output).open("w") as out,
        nullcontext() if errors is None else Path(errors).open("w") as err,
        subprocess.Popen(
            [sys.executable, "-m", "pylog_spark", *words],
            cwd=build,
            env=plain_environment() | {"PYTHONPATH": str(build)} | environment,
            stdout=out,
            stderr=err,
        ) as process,
        watched(process.pid, Watched(memory=memory), every_seconds=every_seconds) as seen,
    ):
        status = process.wait()
        seconds = time.perf_counter() - begin
    return status, seconds, seen


class _Process(NamedTuple):
    pid: int
    parent: int
    cpu_seconds: float
    is_java: bool

    @property
    def memory_bytes(self) -> int:
        """Its Pss_Anon now, 0 if it has ended."""
        try:
            facts = Path(f"/proc/{self.pid}/smaps_rollup").read_text()
        except OSError:
            return 0
        found = _PSS_ANON.search(facts)
        return int(found[1]) * _KIB if found else 0


def _processes() -> dict[int, _Process]:
    found = {}
    for folder in Path("/proc").iterdir():
        if not folder.name.isdigit():
            continue
        try:
            name, _, rest = (folder / "stat").read_text().rpartition(")")
        except OSError:
            continue  # it has ended meanwhile
        numbers = rest.split()
        seconds = (int(numbers[11]) + int(numbers[12])) / _TICKS
        pid = int(folder.name)
        found[pid] = _Process(pid, int(numbers[1]), seconds, "(java" in name)
    return found


def _command(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace")
    except OSError:
        return ""  # it has ended meanwhile


def _below(root: int, processes: Mapping[int, _Process]) -> Iterator[_Process]:
    """Yield a process and its descendants."""
    for pid, process in processes.items():
        above = pid
        while above in processes and above != root:
            above = processes[above].parent
        if above == root:
            yield process
