"""Kafka's loader and ours on copies of one log directory after a crash, in turns.

    python -m tests.bench.bench_recover [--rounds 6] [--megabytes 1000] [--partitions 4]

Nothing of the directory is known to be on disk, so every segment is read, its checksums checked and
its indexes built. Each side runs on one core and on two, with the page cache warm, and cold: every
file is dropped from it first. A child process for each side and number of cores stays, so that its
JIT warms up from round to round; the first round counts as warm-up. ``load`` is the loader itself,
``whole`` goes on to a clean close or to the end of our commit, both synced. Beside ours stands what
it takes to read the same files and check nothing but checksums, and what memory alone gives a core.
``pylog recover`` is the whole job, the start of Spark included, on two cores. All sides must end at
the same offsets.
"""

import os
import shutil
import statistics
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import yaml

from tests.bench.figures import Figure
from tests.bench.generated_partition import CONFIG, NOW_MS, Size, generated_partition
from tests.bench.orders import helper
from tests.bench.shared import CACHE, MEMORY, memory_way, run_with_options, time_program

TOPIC: Final = "bench"
# Of generated_partition: about this many bytes a record, batch headers included.
RECORD_BYTES: Final = 136
CORES: Final = (1, 2)
SIDES: Final = ("kafka", "ours")
CHECKSUMS: Final = "checksums alone"
# Cores, and whether the cache is cold.
Setting = tuple[int, bool]


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """Seconds of all rounds but the first."""

    log_bytes: int  # of all segments
    # By side, setting and part (``load``, ``whole``), one a round
    seconds: dict[tuple[str, Setting, str], list[float]]
    checksum_seconds: list[float]  # of checksums alone, one core, warm, one a round
    memory_rates: list[float]  # MB/s of memory alone, a core, one a round
    job_seconds: list[float]  # of ``pylog recover``, warm

    def ratio(self, setting: Setting, part: str) -> float:
        """Return how many times faster ours is: the median of the rounds' own ratios."""
        pairs = zip(
            self.seconds["kafka", setting, part], self.seconds["ours", setting, part], strict=True
        )
        return statistics.median(theirs / ours for theirs, ours in pairs)

    def figure(self) -> Figure:
        """Return the loader on one core with warm caches, beside Kafka's."""
        theirs, ours = (
            [self.log_bytes / 1e6 / each for each in self.seconds[side, (1, False), "load"]]
            for side in SIDES
        )
        return Figure(
            work="recovery: validate, rebuild indexes and producers, a core",
            unit="MB/s",
            ours=ours,
            theirs={
                "Kafka": theirs,
                CHECKSUMS: [self.log_bytes / 1e6 / each for each in self.checksum_seconds],
                MEMORY: self.memory_rates,
            },
            targets={"Kafka": 5, CHECKSUMS: 0.9},
        )

    def lines(self) -> Iterator[str]:
        """Yield the report as text."""
        megabytes = self.log_bytes / 1e6
        yield f"{megabytes:.0f} MB after a crash, {len(self.job_seconds)} rounds in turns"
        yield f"{'':26}{'part':>7}{'Kafka MB/s':>12}{'ours MB/s':>11}{'ratio':>8}"
        for cores in CORES:
            for is_cold in (False, True):
                setting = cores, is_cold
                name = f"{cores} core{'s' if cores > 1 else ''}, {'cold' if is_cold else 'warm'}"
                for part in ("load", "whole"):
                    theirs, ours = (
                        megabytes / statistics.median(self.seconds[side, setting, part])
                        for side in SIDES
                    )
                    ratio = self.ratio(setting, part)
                    yield f"{name:26}{part:>7}{theirs:12.0f}{ours:11.0f}{ratio:7.1f}x"
        checksums = megabytes / statistics.median(self.checksum_seconds)
        memory = statistics.median(self.memory_rates)
        yield f"1 core, warm: {CHECKSUMS} {checksums:.0f} MB/s, {MEMORY} {memory:.0f} MB/s"
        job = statistics.median(self.job_seconds)
        yield f"pylog recover, 2 cores, warm, the start of Spark included: {job:.1f} s"


def measure(*, megabytes: int = 1000, partitions: int = 4, rounds: int = 6) -> Report:
    """Recover copies of a generated directory by both sides, in turns.

    Args:
        partitions: Of the directory, all of a size.
        rounds: At least two.
    """
    seconds: dict[tuple[str, Setting, str], list[float]] = {}
    checksum_seconds: list[float] = []
    memory_rates: list[float] = []
    job_seconds: list[float] = []
    megabytes_of_memory, add_up = memory_way()
    with ExitStack() as stack:
        logs = {side: _log_directory(side, megabytes, partitions) for side in (*SIDES, "job")}
        stack.callback(lambda: [shutil.rmtree(path, ignore_errors=True) for path in logs.values()])
        asked = {
            (side, cores): stack.enter_context(
                helper("tests.bench.recovery_side", side, str(cores))
            )
            for side in SIDES
            for cores in CORES
        }
        for number in range(rounds):
            ends = set()
            for cores in CORES:
                for is_cold in (False, True):
                    for side in SIDES:
                        places = sorted(logs[side].glob(f"{TOPIC}-*"))
                        _set_cache(places, is_cold=is_cold)
                        answer = asked[side, cores](
                            {"directories": [*map(str, places)], "config": CONFIG, "now_ms": NOW_MS}
                        )
                        ends.add(tuple(answer["log_end_offsets"]))
                        if number and side == "ours" and (cores, is_cold) == (1, False):
                            checksum_seconds.append(answer["checksum_seconds"])
                            begin = time.perf_counter()
                            add_up()
                            took = time.perf_counter() - begin
                            memory_rates.append(megabytes_of_memory / took)
                        for part in ("load", "whole") if number else ():
                            key = side, (cores, is_cold), part
                            seconds.setdefault(key, []).append(answer[f"{part}_seconds"])
            assert len(ends) == 1, ends
            _set_cache(sorted(logs["job"].glob(f"{TOPIC}-*")), is_cold=False)
            took = _run_job(logs["job"])
            if number:
                job_seconds.append(took)
        log_bytes = sum(path.stat().st_size for path in logs["ours"].glob("*/*.log"))
    return Report(
        log_bytes=log_bytes,
        seconds=seconds,
        checksum_seconds=checksum_seconds,
        memory_rates=memory_rates,
        job_seconds=job_seconds,
    )


def _log_directory(name: str, megabytes: int, partitions: int) -> Path:
    """Return a copy of the generated partitions, as a log directory of a topic."""
    target = CACHE / f"recover-{name}"
    shutil.rmtree(target, ignore_errors=True)
    target.mkdir(parents=True)
    records = megabytes * 1_000_000 // RECORD_BYTES // partitions
    for number in range(partitions):
        source = generated_partition(CACHE, Size(records=records, seed=number + 1))
        shutil.copytree(source, target / f"{TOPIC}-{number}")
    os.sync()
    return target


def _set_cache(places: list[Path], *, is_cold: bool) -> None:
    """Have every file in the page cache, or none of them."""
    os.sync()
    for path in (file for place in places for file in place.iterdir()):
        descriptor = os.open(path, os.O_RDONLY)
        try:
            if is_cold:
                os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
            else:
                while os.read(descriptor, 1 << 22):
                    pass
        finally:
            os.close(descriptor)


def _run_job(log_directory: Path) -> float:
    (log_directory / ".kafka_cleanshutdown").unlink(missing_ok=True)
    (log_directory / "recovery-point-offset-checkpoint").unlink(missing_ok=True)
    topics = {TOPIC: {key: str(value) for key, value in CONFIG.items()}}
    config = CACHE / "recover.yaml"
    config.write_text(yaml.safe_dump({"topics": topics}))
    words = ["recover", str(log_directory), "--role", "broker", "--config", str(config)]
    return time_program([*words, "--now-ms", str(NOW_MS), "--master", "local[2]"])


if __name__ == "__main__":
    run_with_options(measure)
