"""The nightly job: everything that is due in each partition of some log directories."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

from pyspark.sql import SparkSession

from pylog_spark.config import JobOptions
from pylog_spark.operations.compact import compact
from pylog_spark.operations.run_report import RunReport
from storage_core.clock import Clock

ACTION: Final = "run"
STEPS_NOTE: Final = (
    "steps of this version: compact, record, report; recovery and retention are not among them, "
    "so a directory that was not cleanly shut down is left alone and nothing expires"
)


def run_nightly(
    spark: SparkSession,
    roots: Sequence[str | Path],
    options: JobOptions,
    *,
    clock: Clock | None = None,
) -> RunReport:
    """Do what is due, record it and report it; for arguments and errors see ``compact``."""
    report = compact(spark, roots, options, action=ACTION, clock=clock)
    return replace(report, notes=(STEPS_NOTE, *report.notes))
