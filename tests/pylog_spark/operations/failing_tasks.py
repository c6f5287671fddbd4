"""Runs whose tasks fail after their work was done, or dawdle, and are made again by Spark.

Started as a program by test_retries.py: only a session of its own can have retries. On this machine
the first attempt of each unit fails. Only a cluster speculates: there every third one fails, and
every third one does its work and then waits, so that Spark starts a copy of it on the other host
and both run; the attempt that reports first wins, the other is killed wherever it is.
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

HERE = "local[2,4]"
SPECULATION = {
    "spark.speculation": "true",
    "spark.speculation.interval": "50ms",
    "spark.speculation.multiplier": "1.1",
    "spark.speculation.quantile": "0.1",
    "spark.speculation.minTaskRuntime": "100ms",
    "spark.task.maxFailures": "8",
    "spark.executorEnv.PYTHONPATH": str(REPOSITORY),
}
SMALL_UNITS = Tuning(unit_min_bytes=1, unit_max_bytes=16384, shuffle_bucket_bytes=256)
DAWDLE_SECONDS = 1.5


class FailingEngine(spark_engine.SparkEngine):
    """Lets first attempts of units do all of their work, and then fail or dawdle."""

    attempts = Path()
    speculates = False

    def spread(
        self,
        units: Sequence[object],
        work: Callable[[object], Iterable[object]],
        kind: type[object],
    ) -> spark_engine.SparkRows:
        folder, speculates = str(self.attempts), self.speculates

        def in_vain_at_first(numbered: tuple[int, str, object]) -> Iterator[object]:
            number, name, unit = numbered
            messages = list(work(unit))
            attempt = Path(folder, f"{name}-{uuid.uuid4().hex}")
            is_first = not list(Path(folder).glob(f"{name}-*"))
            attempt.touch()
            if is_first and (not speculates or number % 3 == 2):
                raise RuntimeError("killed after its work was done")
            if is_first and number % 3 == 1:
                time.sleep(DAWDLE_SECONDS)
            yield from messages

        named = [(number, uuid.uuid4().hex, unit) for number, unit in enumerate(units)]
        return super().spread(named, in_vain_at_first, kind)


def main(folder: Path, master: str, names: list[str]) -> None:
    """Clean a directory in each way, and print what the runs said."""
    spark_engine.SparkEngine = FailingEngine
    FailingEngine.speculates = master != HERE
    conf, ways, tuning = FEW_ROWS, [Strategy.BROADCAST, Strategy.SHUFFLE], SMALL_UNITS
    if FailingEngine.speculates:
        conf = conf | executor_settings() | SPECULATION
    else:
        ways, tuning = [*ways, Strategy.WHOLE], Tuning()
    spark = build_session(master, conf, delta=False)
    for strategy in ways:
        FailingEngine.attempts = folder / f"attempts-{strategy}"
        FailingEngine.attempts.mkdir()
        root = broker_directory(folder / strategy, names)
        options = root.options(FIRST_ROUNDS_MS, tuning=tuning)
        report = compact(spark, [root.path], options, strategy=strategy)
        attempts = [p.name.partition("-")[0] for p in FailingEngine.attempts.iterdir()]
        said = {
            "way": strategy.value,
            "units": len(set(attempts)),
            "attempts": len(attempts),
            "exit": report.exit_code,
            "rows": report.results["status"].to_pylist(),
        }
        sys.stdout.write(json.dumps(said) + "\n")
    spark.stop()


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], sys.argv[3:])
