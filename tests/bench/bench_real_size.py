"""Partitions as large as Kafka makes them, and as many, compacted with every default.

    python -m tests.bench.bench_real_size [--case segment] [--case gigabytes] ...

Each case is a night (``pylog run``) in a process of its own over a log directory of a stopped
broker, with no option but what has to be said: Spark runs locally with its default heap of 1 GiB.
What is told: exit status, wall time, processor seconds, and the largest anonymous memory of the
driver's JVM, of the driver's Python and of the workers.

Records have 119 bytes, a key of 8 and a value of 100, in batches of 16 KB. Partitions are written
once; of several that are alike the segments are hard links, which a run only reads and unlinks.
"""

import argparse
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

import yaml

from tests.bench.generated_columns import Topic, generated_root
from tests.bench.process_watch import Watched, watched
from tests.jobs.spark_programs import plain_environment

ROOT: Final = Path(__file__).resolve().parents[2]
CACHE: Final = ROOT / "build" / "bench"
MIB: Final = 1024 * 1024
GIB: Final = 1024 * MIB
VALUE_BYTES: Final = 100
# Of a record with its share of the batch's header.
RECORD_BYTES: Final = 118
KEYS_OF_SEGMENT: Final = 3_600_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A log directory."""

    name: str  # of the case
    text: str  # what it is
    topic: Topic  # what is in it; a few records more than closed segments hold


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """One night."""

    case: Case
    log_bytes: int  # bytes of all segments before it
    left_bytes: int  # the same afterwards
    status: int  # its exit status
    statuses: dict[str, int]  # how many partitions ended how
    seconds: float
    seen: Watched  # memory and processor time
    errors: str  # what it said on its standard error

    def lines(self) -> Iterator[str]:
        """Yield the report as text."""
        seen = self.seen
        yield (
            f"{self.case.text}, {self.log_bytes / GIB:.2f} GiB: exit {self.status}, "
            f"{self.statuses}, {self.left_bytes / GIB:.2f} GiB left"
        )
        yield (
            f"  {self.seconds:.1f} s, {seen.cpu_seconds:.0f} CPU s; "
            f"JVM {seen.jvm_bytes / MIB:.0f}, Python driver {seen.driver_bytes / MIB:.0f}, "
            f"a worker at most {seen.worker_bytes / MIB:.0f}, "
            f"all workers {seen.workers_bytes / MIB:.0f} MiB"
        )


def _closed(*, name: str, text: str, segments: int, partitions: int, size: int, keys: int) -> Case:
    topic = Topic(
        name=name,
        partitions=partitions,
        # A tenth of a segment more: the last one is active and stays as it is.
        records=(segments * size + size // 10) // RECORD_BYTES,
        keys=keys,
        value_bytes=VALUE_BYTES,
        segment_bytes=size,
    )
    return Case(name=name, text=text, topic=topic)


CASES: Final = {
    case.name: case
    for case in (
        _closed(
            name="segment",
            text="one closed segment of 1 GiB, 9 M records, 3.6 M keys",
            segments=1,
            partitions=1,
            size=GIB,
            keys=KEYS_OF_SEGMENT,
        ),
        _closed(
            name="tiny",
            text="1,000 partitions of 130 KiB",
            segments=4,
            partitions=1000,
            size=32 * 1024,
            keys=100,
        ),
        _closed(
            name="hundred",
            text="100 partitions of 100 MiB",
            segments=1,
            partitions=100,
            size=100 * MIB,
            keys=350_000,
        ),
        _closed(
            name="gigabytes",
            text="8 closed segments of 1 GiB, 72 M records, 29 M keys",
            segments=8,
            partitions=1,
            size=GIB,
            keys=8 * KEYS_OF_SEGMENT,
        ),
    )
}


def measure(case: Case, *, remote: str | None = None) -> Report:
    """Work a night over a directory of its own.

    Args:
        remote: What a Spark Connect server of its own runs on, None for a session without one.
    """
    source = generated_root(CACHE, [case.topic], copy=os.link)
    scratch = CACHE / "scratch" / "real-size"
    shutil.rmtree(scratch, ignore_errors=True)
    scratch.mkdir(parents=True)
    root = scratch / "log"
    shutil.copytree(source, root, copy_function=_linked)
    config = scratch / "config.yaml"
    config.write_text(yaml.safe_dump({"topics": {case.topic.name: case.topic.config}}))
    command = ["run", str(root), "--role", "broker", "--config", str(config), "--output", "json"]
    command += ["--engine", "spark"]
    log_bytes = _log_bytes(root)
    output = scratch / "output"
    began = time.perf_counter()
    with (
        output.open("w") as out,
        (scratch / "errors").open("w") as errors,
        subprocess.Popen(
            [sys.executable, "-m", "pylog_spark", *command],
            cwd=ROOT,
            env=plain_environment() | ({} if remote is None else {"SPARK_REMOTE": remote}),
            stdout=out,
            stderr=errors,
        ) as process,
        watched(process.pid) as seen,
    ):
        status = process.wait()
        seconds = time.perf_counter() - began
    report = Report(
        case=case,
        log_bytes=log_bytes,
        left_bytes=_log_bytes(root),
        status=status,
        statuses=_statuses(output.read_text().splitlines()),
        seconds=seconds,
        seen=seen,
        errors=(scratch / "errors").read_text(),
    )
    shutil.rmtree(scratch)
    return report


def _linked(source: str, target: str) -> None:
    # The files that a run writes into in place are copied.
    (os.link if source.endswith(".log") else shutil.copy2)(source, target)


def _log_bytes(root: Path) -> int:
    return sum(path.stat().st_size for path in root.glob("*/*.log"))


def _statuses(lines: Sequence[str]) -> dict[str, int]:
    counts: dict[str, int] = {}
    for line in lines:
        row = json.loads(line)
        if row["type"] == "result":
            counts[row["status"]] = counts.get(row["status"], 0) + 1
    return counts


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description="Nights over directories of real size.")
    parser.add_argument("--case", action="append", choices=sorted(CASES))
    parser.add_argument("--remote", help="such as local[2]: by a Spark Connect server")
    arguments = parser.parse_args()
    for name in arguments.case or CASES:
        report = measure(CASES[name], remote=arguments.remote)
        print(*report.lines(), report.errors[-2000:], sep="\n", flush=True)  # noqa: T201 - report


if __name__ == "__main__":
    main()
