"""Export of one segment of five million records to Parquet: the program as people start it.

    python -m tests.bench.bench_export [--rounds 3] [--spark]

The segment is written once for each codec by our own append path: keys of 8 bytes, values that are
JSON of 101 bytes, in batches of 16 KB. A round is a process of its own, ``pylog export``, from its
start to its end; with ``--spark`` also a Spark program that reads ``kafka-log`` and writes Parquet,
timed from the read on, once its session has begun. Wall time depends on who else uses the machine;
processor seconds, of all processes, do so less.
"""

import ctypes
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pyarrow.parquet as pq

from tests.bench.generated_columns import TEXT_BYTES, Topic, generated_root
from tests.bench.shared import CACHE, ROOT, run_with_options

RECORDS: Final = 5_000_000
CODECS: Final = ("uncompressed", "lz4", "zstd")
_GIB: Final = 1 << 30
_PR_SET_CHILD_SUBREAPER: Final = 36

_SPARK: Final = """
import json, sys, time
from pylog_spark.session import build_session
from pylog_spark.source import register
spark = build_session("local[2]", {"spark.ui.enabled": "false"}, app_name="bench")
register(spark)
spark.range(2).count()
begun = time.perf_counter()
frame = spark.read.format("kafka-log").option("subscribe", sys.argv[2]).load(sys.argv[1])
frame.write.parquet(sys.argv[3])
print(json.dumps(time.perf_counter() - begun))
spark.stop()
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Round:
    """One export."""

    name: str  # of what, by what
    records: int
    seconds: float  # from its start to its end
    cpu_seconds: float  # of all processes

    def line(self) -> str:
        """Return it as text."""
        rate = self.records / self.seconds / 1e6
        return (
            f"{self.name:<24} {self.seconds:6.2f} s  {rate:5.2f} M records/s  "
            f"{self.cpu_seconds:6.2f} s of processors"
        )


def measure(*, rounds: int = 3, spark: bool = False, records: int = RECORDS) -> Iterator[Round]:
    """Yield the rounds, codec by codec; in each folder are all records.

    Args:
        spark: Whether Spark writes them, too, once of each codec.
    """
    # Whoever is left behind by its parent is ours: what it has used counts when it has ended.
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    out = CACHE / "exported"
    shutil.rmtree(out, ignore_errors=True)  # of measurements that were ended
    for codec in CODECS:
        topic = f"orders-{codec}"
        root = generated_root(CACHE, [_topic(topic, codec, records)])
        command = [sys.executable, "-m", "pylog_spark", "export", topic, str(out)]
        for _ in range(rounds):
            yield _run(
                f"pylog export, {codec}",
                [*command, "--root", str(root), "--to", "parquet"],
                records,
            )
            _check(out, records)
        if spark:
            program = [sys.executable, "-c", _SPARK, str(root), topic, str(out)]
            yield _run(f"Spark, {codec}", program, records)
            _check(out, records)


def _topic(name: str, codec: str, records: int) -> Topic:
    return Topic(
        name=name,
        partitions=1,
        records=records,
        keys=records,
        value_bytes=TEXT_BYTES,
        segment_bytes=_GIB,
        compression=codec,
        has_texts=True,
    )


def _run(name: str, command: Sequence[str], records: int) -> Round:
    """Run a program; where it prints a JSON number, that is its time."""
    already = _children()
    before = os.times()
    begun = time.perf_counter()
    done = subprocess.run(command, cwd=ROOT, check=False, capture_output=True, text=True)
    seconds = time.perf_counter() - begun
    if done.returncode:
        raise AssertionError(done.stderr)
    while left := _children() - already:
        os.waitpid(left.pop(), 0)
    after = os.times()
    used = after.children_user + after.children_system
    used -= before.children_user + before.children_system
    said = done.stdout.strip().splitlines()[-1]
    timed = json.loads(said) if said.replace(".", "").isdigit() else seconds
    return Round(name=name, records=records, seconds=timed, cpu_seconds=used)


def _children() -> set[int]:
    """Return the ids of this process's children, of any of its threads."""
    lists = Path("/proc/self/task").glob("*/children")
    return {int(number) for each in lists for number in each.read_text().split()}


def _check(out: Path, records: int) -> None:
    """Count the records of a folder, and remove it."""
    count = sum(pq.read_metadata(path).num_rows for path in out.glob("*.parquet"))
    if count != records:
        raise AssertionError(f"{out} has {count} records")
    shutil.rmtree(out)


if __name__ == "__main__":
    run_with_options(measure)
