"""One partition cleaned with one thread and with all processors, in turns, warm cache.

    python -m tests.bench.bench_cores [--rounds 7] [--records 440000] [--keys 60000]

The default makes one segment of 60 MB, which no other task could share. Wall time needs a machine
with nothing else to do; the share of the processors that were idle says whether it was. Without
that, processor seconds say what the threads cost.
"""

import argparse
import os
import shutil
import statistics
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from storage_core.config import CleanerConfig, LogConfig
from storage_core.maintenance.compaction.candidates import CleanRequest
from storage_core.maintenance.compaction.partition import CleanResult, clean_partition
from storage_core.threads import count_processors
from tests.bench.generated_partition import CONFIG, NOW_MS, Size, generated_partition

CACHE: Final = Path(__file__).resolve().parents[2] / "build" / "bench"
ONE_SEGMENT: Final = Size(records=440_000, keys=60_000)


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """One round with some threads.

    Attributes:
        wall_secs: From opening the log to the end of the commit.
        cpu_secs: Of this process.
        others: Processors that others kept busy meanwhile, on average.
    """

    wall_secs: float
    cpu_secs: float
    others: float


def measure(size: Size, rounds: int) -> dict[int, list[Turn]]:
    """Clean copies of a partition with one thread, then with all, then again.

    Returns:
        The turns by number of threads; the first round is left out.

    Raises:
        AssertionError: The number of threads changes the result.
    """
    source = generated_partition(CACHE, size)
    counts = (1, max(2, count_processors()))
    turns: dict[int, list[Turn]] = {count: [] for count in counts}
    for number in range(rounds + 1):
        results = set()
        for count in counts:
            turn, result = _clean(source, count)
            results.add(result)
            if number:
                turns[count].append(turn)
        assert len(results) == 1, results
    return turns


def lines(turns: dict[int, list[Turn]]) -> Iterator[str]:
    """Yield the report as text."""
    walls = {}
    for count, some in turns.items():
        walls[count] = statistics.median(turn.wall_secs for turn in some)
        cpu = statistics.median(turn.cpu_secs for turn in some)
        others = statistics.median(turn.others for turn in some)
        best = min(turn.wall_secs for turn in some)
        yield (
            f"{count} threads: median {walls[count]:.3f} s, least {best:.3f} s, "
            f"{cpu:.3f} processor seconds, {others:.1f} processors busy with other work"
        )
    one, all_of_them = walls.values()
    yield f"one thread takes {one / all_of_them:.2f} times as long as all"


def _clean(source: Path, threads: int) -> tuple[Turn, CleanResult]:
    directory = CACHE / "cores" / source.name
    shutil.rmtree(directory.parent, ignore_errors=True)
    shutil.copytree(source, directory)
    os.sync()
    busy, cpu, begin = _busy_secs(), time.process_time(), time.perf_counter()
    result = clean_partition(
        directory,
        config=LogConfig.from_topic_overrides({key: str(value) for key, value in CONFIG.items()}),
        cleaner=CleanerConfig(),
        request=CleanRequest(now_ms=NOW_MS, first_dirty_offset=0),
        threads=threads,
    )
    wall = time.perf_counter() - begin
    cpu = time.process_time() - cpu
    others = max(0.0, _busy_secs() - busy - cpu) / wall
    shutil.rmtree(directory.parent)
    return Turn(wall_secs=wall, cpu_secs=cpu, others=others), result


def _busy_secs() -> float:
    """Return how long the machine's processors have worked so far."""
    user, nice, system = Path("/proc/stat").read_text("ascii").split()[1:4]
    return (int(user) + int(nice) + int(system)) / os.sysconf("SC_CLK_TCK")


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description="One thread and all processors, in turns.")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--records", type=int, default=ONE_SEGMENT.records)
    parser.add_argument("--keys", type=int, default=ONE_SEGMENT.keys)
    arguments = parser.parse_args()
    size = Size(records=arguments.records, keys=arguments.keys)
    print("\n".join(lines(measure(size, arguments.rounds))))  # noqa: T201 - the report


if __name__ == "__main__":
    main()
