"""A run whose every task fails after its work was done, and is made again by Spark.

Started as a program by test_retries.py: only a session of its own can have retries.
"""

import json
import sys
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

from pylog_spark.engines import spark_engine
from pylog_spark.operations.compact.driver import compact
from pylog_spark.options import Strategy
from pylog_spark.session import build_session
from tests.kit.spark_classes import FEW_ROWS
from tests.pylog_spark.broker_roots import FIRST_ROUNDS_MS, broker_directory

WAYS = (Strategy.BROADCAST, Strategy.SHUFFLE, Strategy.WHOLE)


class FailingEngine(spark_engine.SparkEngine):
    """Lets the first attempt of each unit do all of its work, and then fail."""

    failures = Path()

    def spread(
        self,
        units: Sequence[object],
        work: Callable[[object], Iterable[object]],
        kind: type[object],
    ) -> spark_engine.SparkRows:
        folder = str(self.failures)

        def fail_once(numbered: tuple[str, object]) -> Iterator[object]:
            name, unit = numbered
            messages = list(work(unit))
            marker = Path(folder, name)
            if not marker.exists():
                marker.touch()
                raise RuntimeError("killed after its work was done")
            yield from messages

        return super().spread([(uuid.uuid4().hex, unit) for unit in units], fail_once, kind)


def main(folder: Path, names: list[str]) -> None:
    """Clean a directory in each way, and print what the runs said."""
    spark_engine.SparkEngine = FailingEngine
    spark = build_session("local[2,4]", FEW_ROWS, delta=False)
    for strategy in WAYS:
        FailingEngine.failures = folder / f"failures-{strategy}"
        FailingEngine.failures.mkdir()
        root = broker_directory(folder / strategy, names)
        report = compact(spark, [root.path], root.options(FIRST_ROUNDS_MS), strategy=strategy)
        said = {
            "failed": len(list(FailingEngine.failures.iterdir())),
            "exit": report.exit_code,
            "rows": report.results["status"].to_pylist(),
        }
        sys.stdout.write(json.dumps(said) + "\n")
    spark.stop()


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
