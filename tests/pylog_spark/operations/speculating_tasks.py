"""Runs on two hosts with speculation on: first attempts dawdle, and some fail after their work.

Started as a program by test_retries.py: only a cluster speculates. The first attempt of each unit
does its work and then waits, so that Spark starts a copy of it on the other host and both run; the
attempt that reports first wins, the other is killed wherever it is. Every third unit's first
attempt fails at the end instead.
"""

import json
import sys
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

from pylog_spark.engines import spark_engine
from pylog_spark.operations.compact.driver import compact
from pylog_spark.options import Strategy, Tuning
from pylog_spark.session import build_session
from tests.jobs.spark_programs import REPOSITORY, executor_settings
from tests.kit.spark_classes import FEW_ROWS
from tests.pylog_spark.broker_roots import FIRST_ROUNDS_MS, broker_directory

SPECULATION = {
    "spark.speculation": "true",
    "spark.speculation.interval": "50ms",
    "spark.speculation.multiplier": "1.1",
    "spark.speculation.quantile": "0.1",
    "spark.speculation.minTaskRuntime": "100ms",
    "spark.task.maxFailures": "8",
}
DAWDLE_SECONDS = 1.5
WAYS = (Strategy.BROADCAST, Strategy.SHUFFLE)


class SpeculatingEngine(spark_engine.SparkEngine):
    """Makes first attempts of units dawdle or fail, after all of their work."""

    attempts = Path()

    def spread(
        self,
        units: Sequence[object],
        work: Callable[[object], Iterable[object]],
        kind: type[object],
    ) -> spark_engine.SparkRows:
        folder = str(self.attempts)

        def dawdle_once(numbered: tuple[int, str, object]) -> Iterator[object]:
            number, name, unit = numbered
            messages = list(work(unit))
            attempt = Path(folder, f"{name}-{uuid.uuid4().hex}")
            is_first = not list(Path(folder).glob(f"{name}-*"))
            attempt.touch()
            if is_first and number % 3 == 2:
                raise RuntimeError("killed after its work was done")
            if is_first and number % 3 == 1:
                time.sleep(DAWDLE_SECONDS)
            yield from messages

        named = [(number, uuid.uuid4().hex, unit) for number, unit in enumerate(units)]
        return super().spread(named, dawdle_once, kind)


def main(folder: Path, master: str, names: list[str]) -> None:
    """Clean a directory in each way, and print what the runs said."""
    spark_engine.SparkEngine = SpeculatingEngine
    conf = FEW_ROWS | {"spark.executorEnv.PYTHONPATH": str(REPOSITORY)}
    spark = build_session(master, conf | executor_settings() | SPECULATION, delta=False)
    tuning = Tuning(unit_min_bytes=1, unit_max_bytes=16384, shuffle_bucket_bytes=256)
    for strategy in WAYS:
        SpeculatingEngine.attempts = folder / f"attempts-{strategy}"
        SpeculatingEngine.attempts.mkdir()
        root = broker_directory(folder / strategy, names)
        options = root.options(FIRST_ROUNDS_MS, tuning=tuning)
        report = compact(spark, [root.path], options, strategy=strategy)
        attempts = [p.name.partition("-")[0] for p in SpeculatingEngine.attempts.iterdir()]
        said = {
            "units": len(set(attempts)),
            "attempts": len(attempts),
            "exit": report.exit_code,
            "rows": report.results["status"].to_pylist(),
        }
        sys.stdout.write(json.dumps(said) + "\n")
    spark.stop()


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], sys.argv[3:])
