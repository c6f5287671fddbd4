"""What the two ways into and out of a managed root share: their report, and its rows."""

import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import pyarrow as pa
import pyarrow.compute as pc

from pylog_spark.engines.spark_engine import SparkEngine
from pylog_spark.run.job import Job
from pylog_spark.run.recording import Recorder
from pylog_spark.run.run_report import RunSummary, exit_code_of, summarise
from pylog_spark.schemas import RESULT, Reason, Status

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# A single partition that was refused so has to be decided about by a person.
REFUSALS: Final = frozenset(
    {
        Reason.OVERLAPPING_SEGMENTS,
        Reason.MIXED_REPLICAS,
        Reason.MISSING_SEGMENTS,
        Reason.UNFINISHED_SWAP,
        Reason.INCONSISTENT_TOPIC_ID,
        Reason.TARGET_NOT_EMPTY,
        Reason.TARGET_IS_OLDER,
    }
)


@dataclass(frozen=True, slots=True, kw_only=True)
class TransferReport:
    """The outcome of an ingest, or of writing plain directories.

    Attributes:
        run_id: Its name.
        action: What was asked for.
        dry_run: Whether nothing was to be written.
        notes: What a reader should know of the run as a whole, line by line.
        results: Rows of ``schemas.RESULT``: first what was done.
        details: In the same order, rows of ``schemas.INGEST`` or ``schemas.MATERIALIZED``.
        summary: The numbers.
        exit_code: Exit status for the process that asked for the run.
    """

    run_id: str
    action: str
    dry_run: bool
    notes: tuple[str, ...]
    results: pa.Table
    details: pa.Table
    summary: RunSummary
    exit_code: int


def transfer_results(
    details: pa.Table,
    *,
    run_id: str,
    action: str,
    bytes_after: pa.ChunkedArray,
    segments_after: pa.ChunkedArray,
) -> pa.Table:
    """Return the result rows of a table of details, column by column.

    Args:
        details: With root, topic, partition, status, reason, duration and error; ``bytes_before``
            and ``segments_before`` count where there are such columns.
        run_id: The run.
        action: What it did.
        bytes_after: Of each row.
        segments_after: Of each row.
    """
    count = details.num_rows
    columns = {name: details[name] for name in RESULT.names if name in details.column_names}
    columns |= {
        "run_id": pa.repeat(run_id, count),
        "action": pa.repeat(action, count),
        "bytes_after": bytes_after,
        "segments_after": segments_after,
    }
    return pa.table(
        [columns.get(name, pa.nulls(count, RESULT.field(name).type)) for name in RESULT.names],
        schema=RESULT,
    )


def sort_details(details: pa.Table, weight: str) -> pa.Table:
    """Return the rows in the order of a report: what was done by weight, then the others by name.

    Args:
        details: With status, topic, partition and the weight.
        weight: Column of bytes.
    """
    rank = {Status.FAILED: 1, Status.SKIPPED: 2}
    order = [rank.get(Status(status), 0) for status in details["status"].to_pylist()]
    keyed = details.select(["topic", "partition"]).append_column(
        "order", pa.array(order, pa.int8())
    )
    keyed = keyed.append_column("weight", pc.fill_null(details[weight], 0))
    keys = [("order", "ascending"), ("weight", "descending")]
    keys += [("topic", "ascending"), ("partition", "ascending")]
    return details.take(pc.sort_indices(keyed, sort_keys=keys))


@contextmanager
def open_transfer(
    spark: "SparkSession", job: Job, recorder: Recorder
) -> Iterator[tuple[ExitStack, SparkEngine]]:
    """Record that a transfer begins, and how an error ends it.

    Yields:
        (stack, dispatcher): what is held until the transfer has ended, and what starts its stages.
    """
    with recorder.whole_run(), ExitStack() as stack:
        yield stack, stack.enter_context(SparkEngine(spark, tag=f"pylog-{job.run_id}"))


def end_transfer(
    job: Job,
    recorder: Recorder,
    *,
    started: float,
    notes: tuple[str, ...],
    results: pa.Table,
    details: pa.Table,
) -> TransferReport:
    """Return the report of a transfer, and write it into the record.

    Args:
        job: The run.
        recorder: Keeps its record.
        started: When it began, by ``time.perf_counter``.
        notes: As ``TransferReport``, and so are the others.
        results: See there.
        details: See there.
    """
    summary = summarise(results, duration_ms=round((time.perf_counter() - started) * 1000))
    report = TransferReport(
        run_id=job.run_id,
        action=job.action,
        dry_run=job.options.dry_run,
        notes=notes,
        results=results,
        details=details,
        summary=summary,
        exit_code=exit_code_of(results, refused_alone=REFUSALS),
    )
    recorder.results(results)
    recorder.end(summary, exit_code=report.exit_code)
    return report
