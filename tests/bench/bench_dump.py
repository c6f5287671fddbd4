"""``pylog dump`` with records as JSON lines, beside ``kafka-dump-log.sh --print-data-log``.

    python -m tests.bench.bench_dump [--rounds 5] [--records 1500000]

Both are whole programs, from their start to their end, on the same segments in the page cache, in
turns; each writes to a file. Kafka's is its class ``DumpLogSegments`` of the newest version whose
tools are published with all that they need. JSON has keys and values whole, as base64.
"""

import os
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from pylog_spark.java import Library, fetch_jars, find_java
from tests.bench.figures import Figure
from tests.bench.generated_partition import Size, generated_partition
from tests.bench.shared import CACHE, ROOT, run_with_options
from tests.oracle.jars import jars_of

OURS: Final = "ours"
KAFKA: Final = "Kafka"
# Of later versions the tools' own interfaces are not published.
VERSION: Final = "4.1.1"
_TOOLS_API: Final = Library(group="org.apache.kafka", artifact="kafka-tools-api", version=VERSION)


def measure(*, records: int = Size().records, rounds: int = 5) -> list[Figure]:
    """Dump the segments of a generated partition by both, in turns."""
    directory = generated_partition(CACHE, Size(records=records))
    seconds = dump_by_both(directory, rounds=rounds)

    def rates(side: str, number: int) -> list[float]:
        return [records / 1e3 / each[number] for each in seconds[side]]

    return [
        Figure(
            work=f"dump with records, the whole program, by {what}",
            unit="thousand records/s",
            ours=rates(OURS, number),
            theirs={KAFKA: rates(KAFKA, number)},
            targets={KAFKA: 3},
        )
        for number, what in enumerate(("the clock", "processor seconds"))
    ]


def dump_by_both(directory: Path, *, rounds: int) -> dict[str, list[tuple[float, float]]]:
    """Dump a partition in turns; return seconds by the clock and of processors, by side."""
    logs = sorted(path for path in directory.glob("*.log") if path.stat().st_size)
    jars = [*jars_of(VERSION), *fetch_jars([_TOOLS_API], CACHE / f"kafka-tools-api-{VERSION}")]
    java = [str(find_java().home / "bin" / "java"), "-Xmx256M", "-cp", ":".join(map(str, jars))]
    files = ["--print-data-log", "--files", ",".join(map(str, logs))]
    sides = {
        OURS: [sys.executable, "-m", "pylog_spark", "dump", str(directory), "--output", "json"],
        KAFKA: [*java, "kafka.tools.DumpLogSegments", *files],
    }
    scratch = CACHE / "dumped"
    seconds: dict[str, list[tuple[float, float]]] = {name: [] for name in sides}
    for _ in range(rounds):
        for name, command in sides.items():
            seconds[name].append(_run(command, scratch))
    scratch.unlink()
    return seconds


def _run(command: Sequence[str], output: Path) -> tuple[float, float]:
    """Run a program, and return seconds by the clock and of processors."""
    before, began = os.times(), time.perf_counter()
    with output.open("wb") as file:
        subprocess.run(command, cwd=ROOT, check=True, stdout=file, stderr=subprocess.DEVNULL)
    seconds, after = time.perf_counter() - began, os.times()
    spent = after.children_user + after.children_system
    return seconds, spent - before.children_user - before.children_system


if __name__ == "__main__":
    run_with_options(measure)
