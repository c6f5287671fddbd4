"""Nightlies in a session of their own, each of which may stop as a whole at one of its changes.

Started as a program by test_stopped_nights.py: only a session of its own can have workers of its
own. Each line of its input asks, as JSON, for a nightly over a folder; a line of its output says
then what became of it.
"""

import json
import os
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from pylog_spark.operations.nightly import run_nightly
from pylog_spark.options import JobOptions, RunLimits, Tuning
from pylog_spark.session import build_session
from storage_core.catalog.roles import Role
from storage_core.clock import ManualClock, SystemClock
from storage_core.roots import managed
from tests.crash.stopping import CONTROL, Stopping, crash
from tests.kit.faulty_store import SimulatedCrash
from tests.kit.spark_classes import FEW_ROWS, spark_options
from tests.pylog_spark.broker_roots import FIRST_ROUNDS_MS

# A lease of a dead run has ended then.
AN_HOUR_MS = 3_600_000


class Nights:
    """What all nightlies of the program share."""

    def __init__(self, spark: SparkSession, stopping: Stopping, options: JobOptions) -> None:
        self._spark = spark
        self._stopping = stopping
        self._options = options
        # Of the leases; workers have the machine's.
        self._clock = ManualClock(SystemClock().now_ms())

    def run(
        self, folder: Path, *, stop_at: int, images: Path | None, is_spread: bool
    ) -> int | None:
        """Run a nightly; return its exit status, None if it was stopped.

        Args:
            folder: ``log`` in it is the root; ``trash``, if it is there, takes what goes.
            stop_at: See ``Stopping.begin``.
            images: See ``Stopping.begin``.
            is_spread: Whether every segment is a task of its own, so that both workers are at a
                partition; else as nightlies are.
        """
        self._stopping.begin(folder, stop_at=stop_at, images=images)
        trash = str(folder / "trash") if (folder / "trash").exists() else None
        options = replace(self._options, trash=trash)
        if is_spread:
            options = replace(options, tuning=Tuning(unit_min_bytes=1, unit_max_bytes=1))
        try:
            with patch.object(managed, "SystemClock", lambda: self._clock):
                status = run_nightly(self._spark, [folder / "log"], options).exit_code
        except (SimulatedCrash, PySparkException):
            if not self._stopping.is_dead:
                raise
        finally:
            self._clock.advance(AN_HOUR_MS)
        return None if self._stopping.is_dead else status


def main(options: dict[str, Any]) -> None:
    """Run what nightlies are asked for.

    Args:
        options: The role of their roots, and the configs of the topics in them.
    """
    stopping = Stopping(Path(os.environ[CONTROL]))
    stopping.begin(stopping.control / "nothing yet")
    settings = FEW_ROWS | {
        "spark.python.daemon.module": "tests.crash.stopping",
        "spark.driver.extraJavaOptions": spark_options(),
    }
    spark = build_session("local[2]", settings, delta=False)
    stopping.watch(crash)
    nights = Nights(
        spark,
        stopping,
        JobOptions(
            now_ms=FIRST_ROUNDS_MS,
            now_is_said=True,
            role=Role(options["role"]),
            topic_configs=options["configs"],
            limits=RunLimits(max_delete_ratio=1.0, overrides=frozenset({"CLOCK_PAST_RETENTION"})),
        ),
    )
    for line in sys.stdin:
        asked = json.loads(line)
        status = nights.run(
            Path(asked["folder"]),
            stop_at=asked["stop_at"],
            images=asked["images"] and Path(asked["images"]),
            is_spread=asked["is_spread"],
        )
        said = {"status": status, "changes": stopping.made, "kept": stopping.kept}
        sys.stdout.write(json.dumps(said) + "\n")
        sys.stdout.flush()
    spark.stop()


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
