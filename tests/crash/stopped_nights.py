"""Nightlies that stop as a whole, at one change after the other, each followed by another one.

Started as a program by test_stopped_nights.py: only a session of its own can have workers of its
own. Each line of its output says, as JSON, what a nightly left, or what became of the next one;
between the two it waits for a line: whoever reads this may work on the directory meanwhile.
"""

import json
import os
import shutil
import sys
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from pylog_spark.config import JobOptions, RunLimits, Tuning
from pylog_spark.operations import managed_root
from pylog_spark.operations.nightly import run_nightly
from pylog_spark.session import build_session
from storage_core.catalog.roles import Role
from storage_core.clock import ManualClock, SystemClock
from storage_core.testing.faulty_store import NEVER, SimulatedCrash
from tests.crash.stopping import CONTROL, Stopping, crash
from tests.pylog_spark.broker_roots import FIRST_ROUNDS_MS

# A lease of a dead run has ended then.
AN_HOUR_MS = 3_600_000
# Every segment is a task of its own, so that both workers are at a partition.
SPREAD = Tuning(unit_min_bytes=1, unit_max_bytes=1)


class Nights:
    """What all nightlies of the program share.

    Args:
        spark: A session whose workers are watched.
        stopping: When everything stops.
        made: The folder that each copy is made of; ``log`` in it is the root.
        options: Of every nightly.
    """

    def __init__(
        self, spark: SparkSession, stopping: Stopping, made: Path, options: JobOptions
    ) -> None:
        self._spark = spark
        self._stopping = stopping
        self._made = made
        self._options = options
        # Of the leases; workers have the machine's.
        self._clock = ManualClock(SystemClock().now_ms())

    def run(self, folder: Path, *, stop_at: int = NEVER) -> int | None:
        """Run a nightly over a copy; return its exit status, None if it was stopped."""
        self._stopping.begin(folder, stop_at=stop_at)
        trash = str(folder / "trash") if (folder / "trash").exists() else None
        options = replace(self._options, trash=trash)
        try:
            with patch.object(managed_root, "SystemClock", lambda: self._clock):
                status = run_nightly(self._spark, [folder / "log"], options).exit_code
        except (SimulatedCrash, PySparkException):
            if not self._stopping.is_dead:
                raise
        finally:
            self._clock.advance(AN_HOUR_MS)
        return None if self._stopping.is_dead else status

    def pairs(
        self, folder: Path, most: int, visitors: Sequence[str], *, by_each: bool
    ) -> Iterator[dict[str, Any]]:
        """Stop a nightly at one point after the other and let another one follow each time.

        Args:
            folder: For the copies.
            most: How many points are tried at most, evenly spread.
            visitors: Who comes between the two. A nightly is stopped for each of them anew: in a
                copy of what it left no file would be the one that it left.
            by_each: Whether each of them comes at each point; else they take turns.

        Yields:
            First of a nightly that is not stopped its status and its changes; then of each pair
            which point it was, whose turn it is, and where what is left lies: as it is in ``end``,
            a copy of it in ``left``; then, after the visit, the status of the second in ``end``.
        """
        undisturbed = folder / "undisturbed"
        shutil.copytree(self._made, undisturbed)
        status = self.run(undisturbed)
        changes = self._stopping.made
        yield {"status": status, "changes": changes}
        points = 2 * len(changes)
        # Odd, so that changes are stopped before they are made as often as after.
        stride = max(1, (points // most - 1) | 1)
        chosen = range(stride // 2, points, stride)[:most]
        turns = (
            (number, visitor)
            for turn, number in enumerate(chosen)
            for visitor in (visitors if by_each else [visitors[turn % len(visitors)]])
        )
        for number, visitor in turns:
            end, left = (folder / f"{what}-{number}-{visitor}" for what in ("end", "left"))
            shutil.copytree(self._made, end)
            status = self.run(end, stop_at=number)
            where = self._stopping.made
            shutil.copytree(end, left)
            yield {
                "number": number,
                "visitor": visitor,
                "was_stopped": status is None,
                "last": where[-1] if where else None,
                "left": str(left),
                "end": str(end),
            }
            yield {"status": self.run(end)}


def main(made: Path, folder: Path, options: Path, most: int) -> None:
    """Print what becomes of nightlies that stop at that many points."""
    stopping = Stopping(Path(os.environ[CONTROL]))
    stopping.begin(folder)
    spark = build_session(
        "local[2]",
        {
            "spark.python.daemon.module": "tests.crash.stopping",
            "spark.sql.shuffle.partitions": "2",
            "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
        },
        delta=False,
    )
    said = json.loads(options.read_text())
    stopping.watch(crash)
    nights = Nights(
        spark,
        stopping,
        made,
        JobOptions(
            now_ms=FIRST_ROUNDS_MS,
            now_is_said=True,
            role=Role(said["role"]),
            topic_configs=said["configs"],
            tuning=SPREAD,
            limits=RunLimits(max_delete_ratio=1.0, overrides=frozenset({"CLOCK_PAST_RETENTION"})),
        ),
    )
    with suppress(BrokenPipeError):
        for said_now in nights.pairs(folder, most, said["visitors"], by_each=said["by_each"]):
            sys.stdout.write(json.dumps(said_now) + "\n")
            sys.stdout.flush()
            if "left" in said_now:
                sys.stdin.readline()
    spark.stop()


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:4]), int(sys.argv[4]))
