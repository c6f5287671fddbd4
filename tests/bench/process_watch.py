"""What the processes of one run take: memory and processor time, of all descendants of one.

Read from ``/proc`` in short intervals. RssAnon is what the kernel cannot take back by dropping
pages of files; pages that a worker shares with the daemon that it was forked from count in both.
"""

import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from tests.bench.orders import ROOT
from tests.jobs.spark_programs import plain_environment

_INTERVAL_SECONDS: Final = 0.25
_KIB: Final = 1024
_TICKS: Final = os.sysconf("SC_CLK_TCK")


@dataclass(slots=True)
class Watched:
    """What was seen of a run."""

    jvm_bytes: int = 0  # largest anonymous memory of a JVM
    driver_bytes: int = 0  # of the process that was started
    worker_bytes: int = 0  # of any other Python process
    workers_bytes: int = 0  # largest sum of all of these
    all_bytes: int = 0  # largest sum of all processes
    _seconds: dict[int, float] = field(default_factory=dict)

    @property
    def cpu_seconds(self) -> float:
        """Processor time of all processes, as last seen of each."""
        return sum(self._seconds.values())

    def sample(self, root: int) -> None:
        """Look at a process and its descendants."""
        memory, workers = 0, 0
        for pid, own, seconds, is_java in _descendants(root):
            memory += own
            self._seconds[pid] = max(self._seconds.get(pid, 0.0), seconds)
            if is_java:
                self.jvm_bytes = max(self.jvm_bytes, own)
            elif pid == root:
                self.driver_bytes = max(self.driver_bytes, own)
            else:
                workers += own
                self.worker_bytes = max(self.worker_bytes, own)
        self.workers_bytes = max(self.workers_bytes, workers)
        self.all_bytes = max(self.all_bytes, memory)


@contextmanager
def watched(root: int) -> Iterator[Watched]:
    """Watch a process and its descendants, for the time of a block."""
    seen = Watched()
    ended = threading.Event()

    def watch() -> None:
        while not ended.is_set():
            seen.sample(root)
            time.sleep(_INTERVAL_SECONDS)

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    try:
        yield seen
    finally:
        ended.set()
        thread.join()


def run_program(words: Sequence[str]) -> tuple[int, float, Watched]:
    """Run ``pylog`` as a user starts it.

    Returns:
        Its exit status, how many seconds it took, and what it and its descendants took.
    """
    begin = time.perf_counter()
    with (
        subprocess.Popen(
            [sys.executable, "-m", "pylog_spark", *words],
            cwd=ROOT,
            env=plain_environment(),
            stdout=subprocess.DEVNULL,
        ) as process,
        watched(process.pid) as seen,
    ):
        status = process.wait()
        seconds = time.perf_counter() - begin
    return status, seconds, seen


def _descendants(root: int) -> Iterator[tuple[int, int, float, bool]]:
    """Yield (pid, bytes, seconds, whether it is a JVM) of a process and its descendants."""
    found = {}
    for folder in Path("/proc").iterdir():
        if not folder.name.isdigit():
            continue
        try:
            status = (folder / "status").read_text()
            name, _, rest = (folder / "stat").read_text().rpartition(")")
        except OSError:
            continue  # it has ended meanwhile
        facts = dict(line.split(":", 1) for line in status.splitlines() if ":" in line)
        numbers = rest.split()
        size = int(facts.get("RssAnon", "0 kB").split()[0]) * _KIB
        seconds = (int(numbers[11]) + int(numbers[12])) / _TICKS
        found[int(folder.name)] = (int(numbers[1]), size, seconds, "(java" in name)
    for pid, (_, size, seconds, is_java) in found.items():
        above = pid
        while above in found and above != root:
            above = found[above][0]
        if above == root:
            yield pid, size, seconds, is_java
