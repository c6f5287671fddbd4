"""What ingest, materialize, survey, transplant and attach share: their report, and its rows."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from pylog_spark.outcomes import Status
from pylog_spark.rows import spark_frame
from pylog_spark.run.job import Job
from pylog_spark.run.plan_table import sort_rows
from pylog_spark.run.run_report import Report
from pylog_spark.schemas import RESULT

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


@dataclass(frozen=True, slots=True, kw_only=True)
class TransferReport(Report):
    """The report of an ingest, a materialization, a survey, a transplant or an attachment."""

    # Rows of ``schemas.INGEST``, ``schemas.MATERIALIZED``, ``schemas.SURVEY``,
    # ``schemas.TRANSPLANT`` or ``schemas.ATTACH``.
    details: pa.Table

    def frame(self, spark: "SparkSession") -> "DataFrame":
        return spark_frame(spark, self.details)


def transfer_results(
    job: Job,
    details: pa.Table,
    *,
    bytes_after: pa.ChunkedArray,
    segments_after: pa.ChunkedArray,
) -> pa.Table:
    """Return the result rows of a table of details, column by column.

    Args:
        details: With root, topic, partition, status, reason, duration and error; ``bytes_before``
            and ``segments_before`` count where there are such columns.
    """
    count = details.num_rows
    columns = {name: details[name] for name in RESULT.names if name in details.column_names}
    columns |= {
        "run_id": pa.repeat(job.run_id, count),
        "action": pa.repeat(job.action, count),
        "bytes_after": bytes_after,
        "segments_after": segments_after,
    }
    return pa.table(
        [columns.get(name, pa.nulls(count, RESULT.field(name).type)) for name in RESULT.names],
        schema=RESULT,
    )


def sort_details(details: pa.Table, weight: str) -> pa.Table:
    """Return the rows in a report's order. What was done comes first, by weight, then the others by
    name.

    Args:
        details: With status, topic, partition and the weight.
    """
    rank = {Status.FAILED: 1, Status.SKIPPED: 2}
    ranks = [rank.get(Status(status), 0) for status in details["status"].to_pylist()]
    order = (
        (pa.array(ranks, pa.int8()), "ascending"),
        (pc.fill_null(details[weight], 0), "descending"),
    )
    return sort_rows(details, *order, names=("topic", "partition"))
