"""Nights over very many partitions of tiny segments: what a partition costs, and what a file.

    python -m tests.bench.bench_many [--partitions 2000 20000] [--segments 50] [--keep]

Whole nights, ``pylog run`` as a user starts it: in one directory nothing is due, in the other one
everything is: half of the partitions are compacted from 50 segments into two, of half ten segments
expire. Directories are made of hard links (``linked_root``); files are a few bytes, so that only
their number counts. A start is in all of them: what a partition costs is the slope of the straight
line from the smallest size to the largest.

`measure_looks` measures what looks at directories that were closed cleanly take, beside `find`.
"""

import resource
import shutil
import statistics
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from pylog_spark.exit_code import ExitCode
from storage_core.clock import SystemClock
from tests.bench.figures import keep, table_row
from tests.bench.linked_root import ALL_DUE, NOTHING_DUE, write_linked_root
from tests.bench.process_watch import run_program
from tests.bench.shared import CACHE, run_with_options

PARTITIONS: Final = (2_000, 20_000)
SEGMENTS: Final = 50
KINDS: Final = {"nothing is due": NOTHING_DUE, "everything is due": ALL_DUE}
LOOKED_AT: Final = (2_000, 10_000)
# Those of a broker; this machine looks at up to 10,000 partitions.
LOOKS: Final = {"inspect": ("inspect",), "doctor": ("doctor", "--role", "broker")}
_MIB: Final = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Night:
    """One night."""

    partitions: int  # how many there are
    files: int  # in all of their directories
    seconds: float  # by the clock
    processor_seconds: float  # of all processes
    memory_bytes: int  # largest sum of all processes' anonymous memory
    jvm_bytes: int  # largest anonymous memory of a JVM
    driver_bytes: int  # of the program itself
    worker_bytes: int  # of one of its workers


@dataclass(frozen=True, slots=True, kw_only=True)
class Many:
    """Nights of one kind."""

    what: str
    segments: int  # of each partition
    nights: Sequence[Night]  # from the fewest partitions on, at least two

    def line(self) -> str:
        """Return the row of the table."""
        first, last = self.nights[0], self.nights[-1]
        partitions, files = last.partitions - first.partitions, last.files - first.files
        more = last.seconds - first.seconds
        more_work = last.processor_seconds - first.processor_seconds
        return table_row(
            f"{self.what}, {self.segments} segments each",
            ", ".join(f"{night.partitions:,}" for night in self.nights),
            ", ".join(f"{night.seconds:.1f}" for night in self.nights),
            ", ".join(f"{night.processor_seconds:.1f}" for night in self.nights),
            f"{1e3 * more / partitions:.2f} ms, {1e3 * more_work / partitions:.2f} ms",
            f"{1e6 * more / files:.1f} us, {1e6 * more_work / files:.1f} us",
            ", ".join(f"{night.memory_bytes / _MIB:.0f}" for night in self.nights),
        )


def measure(
    *,
    partitions: tuple[int, ...] = PARTITIONS,
    segments: int = SEGMENTS,
    engine: str = "spark",
) -> Iterator[Many]:
    """Yield what nights of each kind take.

    Args:
        partitions: How many, rising, at least two sizes.
    """
    for what, kinds in KINDS.items():
        nights = []
        for count in partitions:
            folder = CACHE / "scratch" / "many"
            shutil.rmtree(folder, ignore_errors=True)
            now_ms = SystemClock().now_ms()
            root = write_linked_root(
                folder / "log", count, segments=segments, now_ms=now_ms, kinds=kinds
            )
            nights.append(_night(root, count, "--engine", engine))
            print(what, nights[-1], flush=True)  # noqa: T201 - how far it is
            shutil.rmtree(folder)
        yield Many(what=what, segments=segments, nights=nights)


def _night(root: Path, partitions: int, *words: str) -> Night:
    some = next(path for path in root.iterdir() if path.is_dir() and path.name.endswith("-0"))
    files = partitions * sum(1 for _ in some.iterdir())
    command = ["run", str(root), "--role", "broker", *words]
    status, seconds, seen = run_program(command)
    assert status == 0, command
    return Night(
        partitions=partitions,
        files=files,
        seconds=seconds,
        processor_seconds=seen.cpu_seconds,
        memory_bytes=seen.all_bytes,
        jvm_bytes=seen.jvm_bytes,
        driver_bytes=seen.driver_bytes,
        worker_bytes=seen.worker_bytes,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Spent:
    """What one call takes."""

    seconds: float  # by the clock
    processor_seconds: float  # of all processes


@dataclass(frozen=True, slots=True, kw_only=True)
class Looks:
    """Looks of one kind, each the median of its rounds."""

    what: str
    segments: int  # of each partition
    partitions: Sequence[int]  # from the fewest on
    looks: Sequence[Spent]
    starts: Sequence[Spent]  # of the program at a directory without a partition
    finds: Sequence[Spent]  # of `find`, which prints each file's size, time and number

    def ratios(self) -> list[tuple[float, float]]:
        """Return the processor time in times of `find`, with and without the program's start."""
        work = [look.processor_seconds for look in self.looks]
        start = [each.processor_seconds for each in self.starts]
        find = [each.processor_seconds for each in self.finds]
        rows = zip(work, start, find, strict=True)
        return [(whole / one, (whole - began) / one) for whole, began, one in rows]

    def line(self) -> str:
        """Return the row of the table."""
        return table_row(
            f"{self.what}, {self.segments} segments each",
            ", ".join(f"{count:,}" for count in self.partitions),
            ", ".join(f"{look.seconds:.1f}" for look in self.looks),
            ", ".join(f"{look.processor_seconds:.2f}" for look in self.looks),
            ", ".join(f"{start.processor_seconds:.2f}" for start in self.starts),
            ", ".join(f"{find.processor_seconds:.2f}" for find in self.finds),
            ", ".join(f"{whole:.1f} ({work:.1f})" for whole, work in self.ratios()),
        )


def measure_looks(
    *, partitions: tuple[int, ...] = LOOKED_AT, segments: int = 6, rounds: int = 3
) -> Iterator[Looks]:
    """Yield what looks at log directories that were closed cleanly take, beside `find`."""
    scratch = CACHE / "scratch"
    scratch.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="looks-", dir=scratch) as folder:
        yield from _looks_in(Path(folder), partitions, segments, rounds)


def _looks_in(
    folder: Path, partitions: tuple[int, ...], segments: int, rounds: int
) -> Iterator[Looks]:
    now_ms = SystemClock().now_ms()
    roots = [
        write_linked_root(
            folder / str(count) / "log", count, segments=segments, now_ms=now_ms, kinds=NOTHING_DUE
        )
        for count in partitions
    ]
    nothing = folder / "nothing"
    nothing.mkdir()
    shutil.copy(roots[0] / "meta.properties", nothing)
    for what, words in LOOKS.items():
        taken = [
            [
                (_look(*words, str(root)), _look(*words, str(nothing)), _find(root))
                for _ in range(rounds)
            ]
            for root in roots
        ]
        looks, starts, finds = (
            [_median([of_round[side] for of_round in of_root]) for of_root in taken]
            for side in range(3)
        )
        yield Looks(
            what=what,
            segments=segments,
            partitions=partitions,
            looks=looks,
            starts=starts,
            finds=finds,
        )


def _look(*words: str) -> Spent:
    status, seconds, seen = run_program(words, every_seconds=0.05, memory=False)
    assert status in {ExitCode.DONE, ExitCode.FINDINGS}, words
    return Spent(seconds=seconds, processor_seconds=seen.cpu_seconds)


def _find(root: Path) -> Spent:
    before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    command = ["find", str(root), "-printf", r"%s %T@ %i %p\n"]
    subprocess.run(command, stdout=subprocess.DEVNULL, check=True)
    seconds, after = time.perf_counter() - began, resource.getrusage(resource.RUSAGE_CHILDREN)
    spent = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return Spent(seconds=seconds, processor_seconds=spent)


def _median(rounds: Sequence[Spent]) -> Spent:
    return Spent(
        seconds=statistics.median(each.seconds for each in rounds),
        processor_seconds=statistics.median(each.processor_seconds for each in rounds),
    )


def plan_night(partitions: int, *, segments: int = SEGMENTS) -> Night:
    """Make a log directory in which a partition in twenty has something due, and plan a night."""
    with tempfile.TemporaryDirectory(prefix="pylog-night-") as folder:
        now_ms = SystemClock().now_ms()
        root = write_linked_root(Path(folder, "root"), partitions, segments=segments, now_ms=now_ms)
        return _night(root, partitions, "--dry-run")


if __name__ == "__main__":
    run_with_options(measure, lambda rows, **_: keep("many", rows, table="many"))
