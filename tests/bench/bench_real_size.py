"""Partitions as large as Kafka makes them, and as many, compacted with every default.

    python -m tests.bench.bench_real_size [--cases segment gigabytes] [--remote "local[2]"]

Each case is a night (``pylog run``) in a process of its own over a log directory of a stopped
broker, with no option but what has to be said: Spark runs locally with its default heap of 1 GiB.
What is told: exit status, wall time, processor seconds, and the largest anonymous memory of the
driver's JVM, of the driver's Python and of the workers.

Records have 119 bytes, a key of 8 and a value of 100, in batches of 16 KB. Partitions are written
once; of several that are alike the segments are hard links, which a run only reads and unlinks.
"""

import json
import os
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import yaml

from tests.bench.generated_columns import Topic, generated_root
from tests.bench.process_watch import Watched, run_program
from tests.bench.shared import CACHE, run_with_options

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


def case_of(*, name: str, text: str, segments: int, partitions: int, size: int, keys: int) -> Case:
    """Return partitions of closed segments of a size, each with an active one besides."""
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
        case_of(
            name="segment",
            text="one closed segment of 1 GiB, 9 M records, 3.6 M keys",
            segments=1,
            partitions=1,
            size=GIB,
            keys=KEYS_OF_SEGMENT,
        ),
        case_of(
            name="tiny",
            text="1,000 partitions of 130 KiB",
            segments=4,
            partitions=1000,
            size=32 * 1024,
            keys=100,
        ),
        case_of(
            name="hundred",
            text="100 partitions of 100 MiB",
            segments=1,
            partitions=100,
            size=100 * MIB,
            keys=350_000,
        ),
        case_of(
            name="gigabytes",
            text="8 closed segments of 1 GiB, 72 M records, 29 M keys",
            segments=8,
            partitions=1,
            size=GIB,
            keys=8 * KEYS_OF_SEGMENT,
        ),
    )
}


def measure(*, cases: tuple[str, ...] = tuple(CASES), remote: str = "") -> Iterator[Report]:
    """Yield a night of each case.

    Args:
        remote: Such as ``local[2]``: what a Spark Connect server of its own runs on; empty for a
            session without one.
    """
    for name in cases:
        yield work_a_night(CASES[name], remote)


def work_a_night(case: Case, remote: str = "") -> Report:
    """Work a night over a directory of its own."""
    source = generated_root(CACHE, [case.topic], copy=os.link)
    scratch = CACHE / "scratch" / "real-size"
    shutil.rmtree(scratch, ignore_errors=True)
    scratch.mkdir(parents=True)
    root = scratch / "log"
    shutil.copytree(source, root, copy_function=_linked)
    config = scratch / "config.yaml"
    config.write_text(yaml.safe_dump({"topics": {case.topic.name: case.topic.config}}))
    words = ["run", str(root), "--role", "broker", "--config", str(config), "--output", "json"]
    log_bytes = _log_bytes(root)
    output, errors = scratch / "output", scratch / "errors"
    environment = {"SPARK_REMOTE": remote} if remote else {}
    status, seconds, seen = run_program(
        [*words, "--engine", "spark"], output=str(output), errors=str(errors), **environment
    )
    report = Report(
        case=case,
        log_bytes=log_bytes,
        left_bytes=_log_bytes(root),
        status=status,
        statuses=_statuses(output.read_text().splitlines()),
        seconds=seconds,
        seen=seen,
        errors=errors.read_text(),
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


if __name__ == "__main__":
    run_with_options(measure)
