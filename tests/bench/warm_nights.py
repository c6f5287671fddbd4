"""Our half of a night where Spark is there already: a session that stays, and no ledger.

A helper process (``orders``): ``{"root": ..., "configs": ...}`` gives ``{"seconds": ...}`` of one
``pylog run``, from the roots to the report.
"""

import sys
import time

from pylog_spark.operations.nightly import run_nightly
from pylog_spark.options import JobOptions
from pylog_spark.session import build_session
from storage_core.catalog.roles import Role
from storage_core.clock import SystemClock
from tests.bench.orders import Order, serve


def main() -> None:
    """Serve orders with a session of such a master."""
    spark = build_session(sys.argv[1], app_name="warm nights", delta=False, is_of_job=True)

    def work(order: Order) -> Order:
        options = JobOptions(
            now_ms=SystemClock().now_ms(), role=Role.BROKER, topic_configs=order["configs"]
        )
        begin = time.perf_counter()
        report = run_nightly(spark, [order["root"]], options)
        return {
            "seconds": time.perf_counter() - begin,
            "status": report.exit_code,
            "done": report.summary.done,
        }

    serve(work)


if __name__ == "__main__":
    main()
