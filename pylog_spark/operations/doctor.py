"""The doctor on Spark: a verification, then a forecast of a broker's start for every partition."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pyarrow as pa

from pylog_spark.discovery import resolve_roots
from pylog_spark.engines.engine import AnyEngine
from pylog_spark.operations.verify import verify_step
from pylog_spark.operations.verify_report import VerifyReport, VerifyRequest
from pylog_spark.options import JobOptions
from pylog_spark.run.job import new_job
from pylog_spark.run.planning import WorkItem, choose_unit_bytes, pack_units
from pylog_spark.run.run import Run
from pylog_spark.schemas import FORECAST, Action
from pylog_spark.tasks.diagnosis import Diagnosis, Threads, put_together, to_foretell
from pylog_spark.tasks.forecast import forecast_partitions
from pylog_spark.tasks.verification import Target

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_TITLE: Final = "pylog doctor"


def diagnose(
    spark: "SparkSession",
    roots: Sequence[str | Path],
    options: JobOptions,
    request: VerifyRequest,
    *,
    broker_threads: int,
) -> Diagnosis:
    """Verify log directories and say what to do about them; nothing is written to them.

    Args:
        spark: The session.
        roots: Paths of log directories.
        options: Which topics, which role.
        request: How to look.
        broker_threads: ``num.recovery.threads.per.data.dir``.

    Raises:
        ConfigError: A root is no directory, or is there twice.
        StorageError: A root cannot be listed.
        pyspark.errors.PySparkException: Spark failed.
    """
    log_roots = resolve_roots(roots, said=options.role)
    job = new_job(Action.VERIFY.value, log_roots, replace(options, ledger=None))
    with Run(spark, job) as run:
        report = verify_step(run, request)
        report.release()
        forecasts = _foretell(run.engine, report, options)
        slots = run.engine.slots
    return put_together(
        report.roots,
        findings=report.findings,
        counts=[(count.severity, count.code, count.count) for count in report.counts],
        verified=report.verified,
        forecasts=forecasts.to_pylist(),
        threads=Threads(of_broker=broker_threads, ours=slots),
    )


def _foretell(engine: AnyEngine, report: VerifyReport, options: JobOptions) -> pa.Table:
    targets = to_foretell(report.roots.targets)
    if not targets:
        return FORECAST.empty_table()
    sizes = {row["ordinal"]: row["bytes"] or 0 for row in report.verified}
    units = _units(engine, targets, sizes, options)
    now_ms = options.now_ms

    def work(unit: tuple[Target, ...]) -> Iterator[pa.RecordBatch]:
        return forecast_partitions(unit, now_ms)

    foretold = engine.spread(units, work, FORECAST)
    return engine.collect(foretold, FORECAST, f"{_TITLE}: what a broker's start would do")


def _units(
    engine: AnyEngine,
    targets: Sequence[Target],
    sizes: Mapping[int, int],
    options: JobOptions,
) -> list[tuple[Target, ...]]:
    items = [WorkItem(value=target, size_bytes=sizes.get(target.ordinal, 0)) for target in targets]
    unit_bytes = choose_unit_bytes(
        sum(item.size_bytes for item in items),
        slots=engine.slots,
        least_bytes=options.tuning.unit_min_bytes,
        most_bytes=options.tuning.unit_max_bytes,
    )
    units = pack_units(items, unit_bytes=unit_bytes)
    return [tuple(unit.values) for unit in units]
