"""What a ledger costs a small run: ``pylog run`` with and without ``--ledger``, in turns, warm.

    python -m tests.bench.bench_ledger [--rounds 5]

The golden directory is what ``make run`` works on: a few dozen rows. Each run is a process as a
user starts it, on a fresh copy; a ledger that is new, and one that goes on.
"""

import shutil
import statistics
import tarfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tests.bench.figures import table_row
from tests.bench.process_watch import run_program
from tests.bench.shared import CACHE, ROOT, run_with_options

GOLDEN: Final = ROOT / "tests" / "golden" / "broker-uncleaned" / "before.tar.gz"
NONE, NEW, OLD = "no ledger", "a new ledger", "a ledger that goes on"
SIDES: Final = (NONE, NEW, OLD)
TARGET_SECONDS: Final = 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """One side: seconds by the clock and of processors, one a round; without a ledger, too."""

    what: str
    seconds: Sequence[float]  # by the clock
    processor_seconds: Sequence[float]  # of all processes
    without: Sequence[float]  # ``seconds`` of the runs without a ledger, in the same rounds

    @property
    def more(self) -> float:
        """Seconds more than without a ledger, the median of the rounds' own differences."""
        pairs = zip(self.seconds, self.without, strict=True)
        return statistics.median(ours - without for ours, without in pairs)

    def line(self) -> str:
        """Return the row of the table."""
        is_with = self.what != NONE
        return table_row(
            f"run of a small directory, {self.what}",
            f"{statistics.median(self.seconds):.1f}",
            f"{statistics.median(self.processor_seconds):.1f}",
            f"{self.more:+.1f}" if is_with else "",
            f"{TARGET_SECONDS:g} s more" if is_with else "",
        )


def measure(*, rounds: int = 5, engine: str = "spark") -> list[Cost]:
    """Return what each side takes; one round before them is not counted."""
    found: dict[str, list[tuple[float, float]]] = {side: [] for side in SIDES}
    scratch = CACHE / "scratch" / "ledger"
    for number in range(rounds + 1):
        for side, taken in _round(scratch, engine):
            if number:
                found[side].append(taken)
    shutil.rmtree(scratch)
    without = [seconds for seconds, _ in found[NONE]]
    return [
        Cost(
            what=side,
            seconds=[seconds for seconds, _ in some],
            processor_seconds=[processor for _, processor in some],
            without=without,
        )
        for side, some in found.items()
    ]


def _round(scratch: Path, engine: str) -> Iterator[tuple[str, tuple[float, float]]]:
    shutil.rmtree(scratch, ignore_errors=True)
    for side in SIDES:
        root = scratch / "log"
        shutil.rmtree(root, ignore_errors=True)
        root.mkdir(parents=True)
        with tarfile.open(GOLDEN) as packed:
            packed.extractall(root, filter="data")
        ledger = [] if side == NONE else ["--ledger", str(scratch / "kept")]
        yield side, _run(root, engine, ledger)


def _run(root: Path, engine: str, ledger: Sequence[str]) -> tuple[float, float]:
    command = ["run", str(root), "--role", "broker", *ledger]
    command += ["--engine", engine]
    status, seconds, seen = run_program(command)
    assert status == 0, command
    return seconds, seen.cpu_seconds


if __name__ == "__main__":
    run_with_options(measure)
