"""Runs over a local Spark Connect server: no broadcast variables, no JVM in this process.

Started as a program by test_connect.py: a process has sessions of one kind.
"""

import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

from pyspark.sql.connect.dataframe import DataFrame

from pylog_spark.operations.compact.driver import compact
from pylog_spark.operations.nightly import run_nightly
from pylog_spark.operations.verify.driver import verify
from pylog_spark.options import JobOptions, RunLimits, Strategy, Tuning
from tests.kit.connect import connect_session
from tests.kit.spark_classes import FEW_ROWS
from tests.pylog_spark.broker_roots import FIRST_ROUNDS_MS, BrokerDirectory, broker_directory
from tests.pylog_spark.session_doubles import RefusingConf, ServerlessSession
from tests.pylog_spark.source.connect_side import read_and_write

# Small enough that golden partitions are worth several tasks.
SMALL_UNITS = Tuning(unit_min_bytes=1, unit_max_bytes=2048, shuffle_bucket_bytes=256)
WAYS = (Strategy.AUTO, Strategy.SHUFFLE)
# A partition of which retention removes some segments.
EXPIRING = "retain-size-s501"


def night_of(folder: Path, names: list[str]) -> tuple[BrokerDirectory, JobOptions]:
    """Return a directory that was not closed, with all that a night does in it."""
    root = broker_directory(folder, [*names, EXPIRING])
    (root.path / ".kafka_cleanshutdown").unlink()
    limits = RunLimits(max_delete_ratio=1.0)
    return root, root.options(FIRST_ROUNDS_MS, tuning=SMALL_UNITS, limits=limits)


def main(folder: Path, names: list[str]) -> None:
    """Compact a directory in each way, work a night over one, verify it; read and write logs.

    What each said is printed as one line of JSON.
    """
    server = connect_session(FEW_ROWS, delta=False)
    # It says "auto" where a number was expected once, and nothing else of itself.
    spark: Any = ServerlessSession(server, RefusingConf({"spark.sql.shuffle.partitions": "auto"}))
    tasks = note_tasks()
    said: dict[str, Any] = {}
    for strategy in WAYS:
        root = broker_directory(folder / strategy, names)
        options = root.options(FIRST_ROUNDS_MS, tuning=SMALL_UNITS)
        report = compact(spark, [root.path], options, strategy=strategy)
        said[strategy.value] = {
            "kind": type(server).__module__,
            "exit": report.exit_code,
            "rows": report.results["status"].to_pylist(),
            "errors": report.results["error"].to_pylist(),
            "notes": list(report.notes),
        }
    crashed, options = night_of(folder / "night", names)
    night = run_nightly(spark, [crashed.path], options)
    steps = night.results.select(["topic", "action", "status"]).to_pylist()
    said["night"] = {"exit": night.exit_code, "steps": sorted(list(row.values()) for row in steps)}
    said["verify"] = {"exit": verify(spark, [crashed.path], options).exit_code}
    said["tasks"] = max(tasks)
    ledger = str(folder / "ledger")
    recorded = replace(options, ledger=ledger)
    said["ledger"] = {"exit": compact(spark, [crashed.path], recorded).exit_code}
    (folder / "source").mkdir()
    said["source"] = read_and_write(server, folder / "source")
    sys.stdout.write(json.dumps(said) + "\n")
    server.stop()


def note_tasks() -> list[int]:
    """Return a list that gets the number of tasks that look at partitions, stage by stage."""
    counts: list[int] = []
    original = DataFrame.repartition

    def counted(self: Any, number: int, *columns: Any) -> Any:
        counts.append(number)
        return original(self, number, *columns)

    DataFrame.repartition = counted  # type: ignore[method-assign]
    return counts


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
