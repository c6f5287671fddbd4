"""One partition of many distinct keys, compacted by shuffle on two executors: how much memory.

    python -m tests.bench.bench_many_keys [--keys 50000000] [--strategy shuffle]

Every record has a key of its own, so nothing can be dropped and no map can be smaller. The two
executors of ``local-cluster`` have one slot each. What is printed is the largest anonymous memory
(RssAnon) of an executor's JVM together with its Python workers.
"""

import json
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

from tests.bench.generated_columns import Topic, copy_root, generated_root
from tests.bench.process_watch import Peaks, watched
from tests.bench.shared import CACHE, ROOT, run_with_options
from tests.jobs.spark_programs import plain_environment

SCRATCH: Final = CACHE / "scratch" / "many-keys"
SEGMENT_BYTES: Final = 64 * 1024 * 1024
# About what a record of these takes: so that the segments that are closed hold all keys asked for.
RECORD_BYTES: Final = 24
EXECUTORS: Final = 2
EXECUTOR_MB: Final = 768
MIB: Final = 1024 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """One compaction."""

    keys: int  # distinct keys asked for
    log_bytes: int  # bytes of the partition
    strategy: str  # how it was spread
    seconds: float
    peaks: Peaks

    def lines(self) -> Iterator[str]:
        """Yield the report as text."""
        yield (
            f"{self.keys / 1e6:.0f} million keys, {self.log_bytes / 1e6:.0f} MB, {self.strategy}, "
            f"{EXECUTORS} executors of one slot: {self.seconds:.0f} s"
        )
        yield f"peak anonymous memory of an executor: {self.peaks.worst_bytes / MIB:.0f} MiB"
        yield (
            f"  its JVM at most {self.peaks.jvm_bytes / MIB:.0f} MiB, a Python process at most "
            f"{self.peaks.python_bytes / MIB:.0f} MiB ({self.peaks.samples} samples)"
        )


def topic_of(keys: int, segment_bytes: int = SEGMENT_BYTES) -> Topic:
    """Return a topic whose closed segments hold at least so many keys."""
    return Topic(
        name=f"keys{keys}",
        partitions=1,
        records=keys + 2 * segment_bytes // RECORD_BYTES,
        keys=1 << 62,
        value_bytes=8,
        segment_bytes=segment_bytes,
    )


def measure(
    *,
    keys: int = 50_000_000,
    strategy: str = "shuffle",
    segment_bytes: int = SEGMENT_BYTES,
) -> Report:
    """Compact a copy of the partition."""
    topic = topic_of(keys, segment_bytes)
    source = generated_root(CACHE, [topic])
    root = copy_root(source, SCRATCH)
    log_bytes = sum(path.stat().st_size for path in source.glob("*/*.log"))
    order = {
        "root": str(root),
        "master": f"local-cluster[{EXECUTORS},1,{EXECUTOR_MB}]",
        "conf": {
            "spark.executor.memory": f"{EXECUTOR_MB}m",
            # Gives memory back, and needs the least beside the heap.
            "spark.executor.extraJavaOptions": "-XX:+UseSerialGC",
            "spark.sql.shuffle.partitions": str(EXECUTORS),
        },
        "topics": {topic.name: topic.config},
        "strategy": strategy,
        "tuning": {},
    }
    said, peaks = run_watched(order)
    return Report(
        keys=keys, log_bytes=log_bytes, strategy=strategy, seconds=said["seconds"], peaks=peaks
    )


def run_watched(order: dict[str, Any]) -> tuple[dict[str, Any], Peaks]:
    """Have another process carry out an order, and watch its executors."""
    with (
        subprocess.Popen(
            [sys.executable, "-m", "tests.bench.spread_side"],
            cwd=ROOT,
            env=plain_environment()
            | {"PYTHONPATH": str(ROOT), "SPARK_WORKER_DIR": str(CACHE / "scratch" / "work")},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        ) as process,
        watched(process.pid, Peaks(), every_seconds=0.1) as peaks,
    ):
        answer, _ = process.communicate(json.dumps(order) + "\n")
    if process.returncode:
        raise RuntimeError(f"the run ended with {process.returncode}")
    said = json.loads(answer.splitlines()[-1])
    if said["statuses"] != ["done"]:
        raise RuntimeError(f"{said['statuses']}: {said['errors']}")
    return said, peaks


if __name__ == "__main__":
    run_with_options(measure)
