"""One compaction on Spark, in a process of its own: started by the benchmarks of spreading.

One line of JSON in, one out: ``{"root", "master", "conf", "topics", "strategy", "tuning"}`` gives
``{"seconds", "statuses", "strategy", "bytes_after"}``.
"""

import json
import sys
import time
from pathlib import Path

from pylog_spark.operations.compact.driver import compact
from pylog_spark.options import JobOptions, Strategy, Tuning
from pylog_spark.session import build_session
from storage_core.catalog.roles import Role
from tests.bench.generated_columns import NOW_MS


def main() -> None:
    """Read the order, carry it out, say how it went."""
    order = json.loads(sys.stdin.readline())
    spark = build_session(order["master"], order["conf"], delta=False)
    spark.range(0, 64, 1, 16).mapInArrow(lambda batches: batches, "id BIGINT").collect()
    options = JobOptions(
        now_ms=NOW_MS,
        now_is_said=True,
        role=Role.BROKER,
        topic_configs=order["topics"],
        tuning=Tuning(**order["tuning"]),
    )
    began = time.perf_counter()
    report = compact(spark, [Path(order["root"])], options, strategy=Strategy(order["strategy"]))
    seconds = time.perf_counter() - began
    rows = report.results.to_pylist()
    said = {
        "seconds": seconds,
        "statuses": sorted({row["status"] for row in rows}),
        "errors": sorted({row["error"] for row in rows if row["error"]})[:3],
        "bytes_after": sum(row["bytes_after"] for row in rows),
    }
    spark.stop()
    sys.stdout.write(json.dumps(said) + "\n")


if __name__ == "__main__":
    main()
