"""One partition cleaned, scanned for recovery and verified with one thread and with all processors.

Beside them stands reading alone, which says what a second processor can bring on this machine.

    python -m tests.bench.bench_cores [--rounds 7] [--records 440000] [--keys 60000]
        [--segment-mib 64] [--kafka]

In turns, with a warm cache. The default makes one segment of 60 MB, which no other task could
share; ``make bench`` has one of 1 GiB, and 2 GB in segments of 64 MiB beside Kafka's cleaner with
its one thread. Wall time needs a machine with nothing else to do; the share of the processors that
were busy with other work says whether it was. Without that, processor seconds say what the threads
cost.
"""

import os
import shutil
import statistics
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Final, TypeVar

import numpy as np

from storage_core.catalog.roles import Role
from storage_core.config import CleanerConfig, LogConfig
from storage_core.log.segment_scan import scan_segment
from storage_core.maintenance.compaction.partition import CleanResult
from storage_core.maintenance.compaction.plan import CleanRequest
from storage_core.maintenance.verification.files import sort_files
from storage_core.maintenance.verification.findings import DirectoryContext, VerifyOptions
from storage_core.maintenance.verification.partition import verify_segment
from storage_core.store import LocalStore
from storage_core.store.base import FileReader
from storage_core.threads import count_processors
from tests.bench.bench_compaction import fresh_copy, kafka_process
from tests.bench.figures import Figure
from tests.bench.generated_partition import NOW_MS, Size, generated_partition
from tests.bench.shared import CACHE, run_with_options
from tests.kit.one_partition import clean_partition

ONE_SEGMENT: Final = Size(records=440_000, keys=60_000)
# Wanted of so many processors: all but what 15 % more time come to.
NEAR_ALL_CORES: Final = 1 / 1.15
READING: Final = "reading alone"
# Stays in a processor's own cache.
PIECE_BYTES: Final = 1 << 20
# 1.07 GB in one segment, 2.04 GB in 31.
ONE_GIB: Final = Size(records=7_860_000, keys=1_000_000, segment_bytes=2**30)
TWO_GB: Final = Size(records=15_000_000, keys=2_000_000)
Result = TypeVar("Result")


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """One round with some threads."""

    wall_secs: float  # from opening the log to the end of the commit, or of the look
    cpu_secs: float  # of this process
    others: float  # processors that others kept busy meanwhile, on average


@dataclass(frozen=True, slots=True, kw_only=True)
class Cores:
    """Rounds over one partition, all but the first one."""

    work: str
    log_bytes: int  # of its segments
    turns: dict[int, list[Turn]]  # by number of threads
    kafka_secs: list[float]  # of Kafka's Cleaner in the same rounds, none where it was not asked

    def beside_one_thread(self, work: str) -> Figure:
        """Return what all threads do beside one."""
        one, several = self.turns.values()
        return Figure(
            work=work,
            unit="MB/s",
            ours=self._rates(turn.wall_secs for turn in several),
            theirs={"one thread": self._rates(turn.wall_secs for turn in one)},
            targets={}
            if self.work == READING
            else {"one thread": NEAR_ALL_CORES * len(os.sched_getaffinity(0))},
        )

    def beside_kafka(self, work: str) -> Figure:
        """Return what all threads do beside Kafka's one."""
        *_, several = self.turns.values()
        return Figure(
            work=work,
            unit="MB/s",
            ours=self._rates(turn.wall_secs for turn in several),
            theirs={"Kafka": self._rates(self.kafka_secs)},
            targets={"Kafka": 8},
        )

    def lines(self) -> Iterator[str]:
        """Yield the report as text."""
        yield self.work
        walls = []
        for count, some in self.turns.items():
            walls.append(statistics.median(turn.wall_secs for turn in some))
            cpu = statistics.median(turn.cpu_secs for turn in some)
            others = statistics.median(turn.others for turn in some)
            best = min(turn.wall_secs for turn in some)
            yield (
                f"{count} threads: median {walls[-1]:.3f} s, least {best:.3f} s, "
                f"{cpu:.3f} processor seconds, {others:.1f} processors busy with other work"
            )
        yield f"one thread takes {walls[0] / walls[-1]:.2f} times as long as all"
        if self.kafka_secs:
            kafka = statistics.median(self.kafka_secs)
            yield f"Kafka takes {kafka:.3f} s, {kafka / walls[-1]:.2f} times as long as all"

    def _rates(self, seconds: Iterable[float]) -> list[float]:
        return [self.log_bytes / 1e6 / each for each in seconds]


def measure_cleaning(size: Size, rounds: int, *, has_kafka: bool = False) -> Cores:
    """Clean copies of a partition with one thread, then with all, then again.

    Args:
        has_kafka: Whether Kafka cleans one in each round, too.
    """
    source = generated_partition(CACHE, size)
    kafka_secs: list[float] = []
    with kafka_process() if has_kafka else nullcontext() as kafka:

        def ask_kafka() -> None:
            if kafka is not None:
                answer = kafka(fresh_copy(source, CACHE / "cores"), size.config)
                kafka_secs.append(answer["clean_seconds"])

        turns = _in_turns(partial(_clean, source, size), rounds, ask_kafka)
    log_bytes = sum(file.stat().st_size for file in source.glob("*.log"))
    return Cores(work="compaction", log_bytes=log_bytes, turns=turns, kafka_secs=kafka_secs[1:])


def measure_reading(size: Size, rounds: int) -> Iterator[Cores]:
    """Scan the largest segment as recovery does, verify it, and only read it, with one thread, then
    with all."""
    directory = generated_partition(CACHE, size)
    store = LocalStore(directory)
    segment = max(sort_files(store.list_files()).segments, key=lambda each: each.log.size_bytes)

    def scan(threads: int) -> bytes:
        with closing(store.open_file(segment.log.name)) as reader:
            return scan_segment(
                reader,
                segment.base_offset,
                index_interval_bytes=4096,
                max_index_bytes=size.segment_bytes,
                threads=threads,
            ).to_bytes()

    def verify(threads: int) -> str:
        options = VerifyOptions(now_ms=NOW_MS, threads=threads)
        context = DirectoryContext(role=Role.BROKER, is_clean=True)
        facts, findings = verify_segment(store, segment, context, options)
        return repr((replace(facts, read_seconds=0), findings))

    def read_share(reader: FileReader, start: int, end: int) -> None:
        piece = np.empty(PIECE_BYTES, np.uint8)
        for position in range(start, end, PIECE_BYTES):
            reader.read_into(position, piece[: end - position])

    def read(threads: int) -> None:
        with (
            closing(store.open_file(segment.log.name)) as reader,
            ThreadPoolExecutor(threads) as pool,
        ):
            ends = [segment.log.size_bytes * share // threads for share in range(threads + 1)]
            list(pool.map(partial(read_share, reader), ends, ends[1:]))

    works: dict[str, Callable[[int], object]] = {
        "recovery's scan": scan,
        "verification": verify,
        READING: read,
    }
    for name, work in works.items():

        def turn(count: int, work: Callable[[int], object] = work) -> tuple[Turn, object]:
            return _timed(partial(work, count))

        turns = _in_turns(turn, rounds)
        yield Cores(work=name, log_bytes=segment.log.size_bytes, turns=turns, kafka_secs=[])


def measure(
    *,
    rounds: int = 7,
    records: int = ONE_SEGMENT.records,
    keys: int = ONE_SEGMENT.keys,
    segment_mib: int = 64,
    kafka: bool = False,
) -> Iterator[Cores]:
    """Yield what reading and what cleaning take, by Kafka's cleaner, too, if asked for."""
    size = Size(records=records, keys=keys, segment_bytes=segment_mib * 2**20)
    yield from measure_reading(size, rounds)
    yield measure_cleaning(size, rounds, has_kafka=kafka)


def _in_turns(
    work: Callable[[int], tuple[Turn, object]],
    rounds: int,
    beside: Callable[[], None] = lambda: None,
) -> dict[int, list[Turn]]:
    """Work with one thread, then with all, some rounds and one more that does not count.

    Args:
        beside: What else to do in each round, before.
    """
    turns: dict[int, list[Turn]] = {count: [] for count in (1, max(2, count_processors()))}
    for number in range(rounds + 1):
        beside()
        results = set()
        for count, some in turns.items():
            turn, result = work(count)
            results.add(result)
            some.extend([turn] * (number > 0))
        assert len(results) == 1, results
    return turns


def _clean(source: Path, size: Size, threads: int) -> tuple[Turn, CleanResult]:
    directory = fresh_copy(source, CACHE / "cores")
    config = {key: str(value) for key, value in size.config.items()}
    turn, result = _timed(
        lambda: clean_partition(
            directory,
            config=LogConfig.from_topic_overrides(config),
            cleaner=CleanerConfig(),
            request=CleanRequest(now_ms=NOW_MS, first_dirty_offset=0),
            threads=threads,
        )
    )
    shutil.rmtree(directory.parent)
    return turn, result


def _timed(work: Callable[[], Result]) -> tuple[Turn, Result]:
    busy, cpu, begin = _busy_secs(), time.process_time(), time.perf_counter()
    result = work()
    wall = time.perf_counter() - begin
    cpu = time.process_time() - cpu
    others = max(0.0, _busy_secs() - busy - cpu) / wall
    return Turn(wall_secs=wall, cpu_secs=cpu, others=others), result


def _busy_secs() -> float:
    """Return how long the machine's processors have worked so far."""
    user, nice, system = Path("/proc/stat").read_text("ascii").split()[1:4]
    return (int(user) + int(nice) + int(system)) / os.sysconf("SC_CLK_TCK")


if __name__ == "__main__":
    run_with_options(measure)
