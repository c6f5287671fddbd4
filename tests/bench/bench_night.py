"""The nightly's dry run over very many partitions: time and memory of all its processes.

The log directory is made of hard links (``linked_root``). A partition in twenty has something due.
"""

import subprocess
import sys
import tempfile
import time
from pathlib import Path

from storage_core.clock import SystemClock
from tests.bench.linked_root import write_linked_root
from tests.bench.process_watch import watched

PARTITIONS = 20_000
SEGMENTS = 50
_MIB = 1 << 20


def measure(partitions: int, *, segments: int = SEGMENTS) -> dict[str, float]:
    """Make a log directory, plan a night of it, and return seconds and mebibytes."""
    with tempfile.TemporaryDirectory(prefix="pylog-night-") as folder:
        now_ms = SystemClock().now_ms()
        root = write_linked_root(
            Path(folder) / "root", partitions, segments=segments, now_ms=now_ms
        )
        words = ["run", str(root), "--role", "broker", "--dry-run"]
        started = time.perf_counter()
        with subprocess.Popen(
            [sys.executable, "-m", "pylog_spark", *words], stdout=subprocess.DEVNULL
        ) as process:
            with watched(process.pid) as seen:
                process.wait()
            assert process.returncode == 0
        return {
            "partitions": partitions,
            "wall_s": time.perf_counter() - started,
            "cpu_s": seen.cpu_seconds,
            "all_mib": seen.all_bytes / _MIB,
            "driver_mib": seen.driver_bytes / _MIB,
            "workers_mib": seen.workers_bytes / _MIB,
        }
