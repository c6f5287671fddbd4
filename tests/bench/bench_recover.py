"""Kafka's loader and ours on copies of one log directory after a crash, in turns.

    python -m tests.bench.bench_recover [--rounds 6] [--megabytes 1000] [--partitions 4]

Nothing of the directory is known to be on disk, so every segment is read, its checksums checked and
its indexes built. Each side runs on one core and on two, with the page cache warm, and cold: every
file is dropped from it first. A child process for each side and number of cores stays, so that its
JIT warms up from round to round; the first round counts as warm-up. ``load`` is the loader itself,
``whole`` goes on to a clean close or to the end of our commit, both synced. ``pylog recover`` is
the whole job, the start of Spark included, on two cores. All sides must end at the same offsets.
"""

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import yaml

from tests.bench.figures import Figure
from tests.bench.generated_partition import CONFIG, NOW_MS, Size, generated_partition

ROOT: Final = Path(__file__).resolve().parents[2]
CACHE: Final = ROOT / "build" / "bench"
TOPIC: Final = "bench"
# Of generated_partition: about this many bytes a record, batch headers included.
RECORD_BYTES: Final = 136
CORES: Final = (1, 2)
SIDES: Final = ("kafka", "ours")
Ask = Callable[[list[Path]], dict[str, Any]]
# Cores, and whether the cache is cold.
Setting = tuple[int, bool]


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """Seconds of all rounds but the first."""

    log_bytes: int  # of all segments
    # By side, setting and part (``load``, ``whole``), one a round
    seconds: dict[tuple[str, Setting, str], list[float]]
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
            theirs={"Kafka": theirs},
            targets={"Kafka": 5},
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
        job = statistics.median(self.job_seconds)
        yield f"pylog recover, 2 cores, warm, the start of Spark included: {job:.1f} s"


def measure(*, megabytes: int, partitions: int, rounds: int) -> Report:
    """Recover copies of a generated directory by both sides, in turns.

    Args:
        partitions: Of the directory, all of a size.
        rounds: At least two.
    """
    seconds: dict[tuple[str, Setting, str], list[float]] = {}
    job_seconds: list[float] = []
    with ExitStack() as stack:
        logs = {side: _log_directory(side, megabytes, partitions) for side in (*SIDES, "job")}
        stack.callback(lambda: [shutil.rmtree(path, ignore_errors=True) for path in logs.values()])
        asked = {
            (side, cores): stack.enter_context(_child(side, cores))
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
                        answer = asked[side, cores](places)
                        ends.add(tuple(answer["log_end_offsets"]))
                        for part in ("load", "whole") if number else ():
                            key = side, (cores, is_cold), part
                            seconds.setdefault(key, []).append(answer[f"{part}_seconds"])
            assert len(ends) == 1, ends
            _set_cache(sorted(logs["job"].glob(f"{TOPIC}-*")), is_cold=False)
            took = _run_job(logs["job"])
            if number:
                job_seconds.append(took)
        log_bytes = sum(path.stat().st_size for path in logs["ours"].glob("*/*.log"))
    return Report(log_bytes=log_bytes, seconds=seconds, job_seconds=job_seconds)


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


@contextmanager
def _child(side: str, cores: int) -> Iterator[Ask]:
    with subprocess.Popen(
        [sys.executable, "-m", "tests.bench.recovery_side", side, str(cores)],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        orders, answers = process.stdin, process.stdout
        assert orders is not None
        assert answers is not None

        def ask(places: list[Path]) -> dict[str, Any]:
            order = {"directories": [str(p) for p in places], "config": CONFIG, "now_ms": NOW_MS}
            orders.write(json.dumps(order) + "\n")
            orders.flush()
            return dict(json.loads(answers.readline()))

        yield ask
        orders.close()


def _run_job(log_directory: Path) -> float:
    (log_directory / ".kafka_cleanshutdown").unlink(missing_ok=True)
    (log_directory / "recovery-point-offset-checkpoint").unlink(missing_ok=True)
    topics = {TOPIC: {key: str(value) for key, value in CONFIG.items()}}
    config = CACHE / "recover.yaml"
    config.write_text(yaml.safe_dump({"topics": topics}))
    command = [sys.executable, "-m", "pylog_spark", "recover", str(log_directory)]
    command += ["--role", "broker", "--config", str(config), "--now-ms", str(NOW_MS)]
    command += ["--master", "local[2]"]
    begin = time.perf_counter()
    subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.DEVNULL)
    return time.perf_counter() - begin


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description="Kafka's loader and ours, in turns.")
    parser.add_argument("--rounds", type=int, default=6, help="the first one is not counted")
    parser.add_argument("--megabytes", type=int, default=1000)
    parser.add_argument("--partitions", type=int, default=4)
    arguments = parser.parse_args()
    report = measure(
        megabytes=arguments.megabytes, partitions=arguments.partitions, rounds=arguments.rounds
    )
    print("\n".join(report.lines()))  # noqa: T201 - the report


if __name__ == "__main__":
    main()
