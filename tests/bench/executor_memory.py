"""Anonymous memory of Spark's executors: each JVM with the Python workers that it started.

Read from ``/proc`` in short intervals. RssAnon is what the kernel cannot take back by dropping
pages of files: heap, stacks, arrays. Pages that a worker shares with the daemon that it was
forked from count in both, so the sums are upper bounds.
"""

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

EXECUTOR_CLASS: Final = "CoarseGrainedExecutorBackend"
_INTERVAL_SECONDS: Final = 0.1
_KIB: Final = 1024


@dataclass(slots=True)
class Peaks:
    """What was seen."""

    # Largest sum of a JVM and its Python processes, by the JVM's process id
    executor_bytes: dict[int, int] = field(default_factory=dict)
    jvm_bytes: int = 0  # largest of any executor's JVM
    python_bytes: int = 0  # largest of any single Python process of an executor
    samples: int = 0  # how often it was looked

    @property
    def worst_bytes(self) -> int:
        """The largest executor's."""
        return max(self.executor_bytes.values(), default=0)


@contextmanager
def watched_executors(root_pid: int) -> Iterator[Peaks]:
    """Watch the executors among the descendants of a process, for the time of a block."""
    peaks = Peaks()
    ended = threading.Event()

    def watch() -> None:
        while not ended.is_set():
            _sample(root_pid, peaks)
            time.sleep(_INTERVAL_SECONDS)

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    try:
        yield peaks
    finally:
        ended.set()
        thread.join()


def _sample(root_pid: int, peaks: Peaks) -> None:
    parents, memory, names = {}, {}, {}
    for folder in Path("/proc").iterdir():
        if not folder.name.isdigit():
            continue
        try:
            status = (folder / "status").read_text()
            command = (folder / "cmdline").read_bytes()
        except OSError:
            continue  # it has ended meanwhile
        facts = dict(line.split(":", 1) for line in status.splitlines() if ":" in line)
        pid = int(folder.name)
        parents[pid] = int(facts["PPid"])
        memory[pid] = int(facts.get("RssAnon", "0 kB").split()[0]) * _KIB
        names[pid] = command.decode(errors="replace")
    executors = {
        pid
        for pid, name in names.items()
        if EXECUTOR_CLASS in name and "java" in name and _descends(pid, root_pid, parents)
    }
    peaks.samples += 1
    for executor in executors:
        own = [pid for pid in parents if pid != executor and _descends(pid, executor, parents)]
        total = memory[executor] + sum(memory[pid] for pid in own)
        peaks.executor_bytes[executor] = max(peaks.executor_bytes.get(executor, 0), total)
        peaks.jvm_bytes = max(peaks.jvm_bytes, memory[executor])
        peaks.python_bytes = max([peaks.python_bytes, *(memory[pid] for pid in own)])


def _descends(pid: int, ancestor: int, parents: dict[int, int]) -> bool:
    while pid in parents:
        if pid == ancestor:
            return True
        pid = parents[pid]
    return False
