"""Verify log directories: every batch, every index, every small file; nothing is written to them.

One job: a task a unit of segments, then one a partition that was cut into several units. Findings
stay where Spark keeps its rows; the driver gets their counts, the worst of them, and a row a
partition.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812  # its usual name

from pylog_spark.discovery import resolve_roots
from pylog_spark.engines.spark_engine import require_spark
from pylog_spark.operations.verify_report import (
    FindingCount,
    VerifyReport,
    VerifyRequest,
    recorded_findings,
)
from pylog_spark.operations.verify_stages import verify_targets
from pylog_spark.options import JobOptions
from pylog_spark.rows import rows_to_batch
from pylog_spark.run.exit_rule import is_as_bad
from pylog_spark.run.guards import check_ledger
from pylog_spark.run.job import Job, new_job
from pylog_spark.run.run import Run
from pylog_spark.schemas import FINDING, RESULT, VERIFIED, Action, Status
from pylog_spark.tasks.verification import FINDING_ROW, PARTITION_ROW
from pylog_spark.tasks.verified_roots import observe_roots
from storage_core.clock import Clock
from storage_core.maintenance.verification.findings import Severity


def verify(
    spark: SparkSession,
    roots: Sequence[str | Path],
    options: JobOptions,
    request: VerifyRequest | None = None,
    *,
    clock: Clock | None = None,
) -> VerifyReport:
    """Verify every partition of log directories.

    Args:
        spark: The session.
        roots: Paths of log directories.
        options: Which topics, which role, where the ledger is.
        request: How deep to look, and what makes the run fail.
        clock: For the times in the ledger.

    Raises:
        ConfigError: A root is no directory, is there twice, or would hold the ledger.
        StorageError: A root cannot be listed.
        pyspark.errors.PySparkException: Spark failed.
    """
    log_roots = resolve_roots(roots, said=options.role)
    check_ledger(log_roots, options.ledger)
    request = request or VerifyRequest()
    job = new_job(Action.VERIFY.value, log_roots, options, clock=clock, request=asdict(request))
    with Run(spark, job) as run:
        return verify_step(run, request)


def verify_step(run: Run, request: VerifyRequest) -> VerifyReport:
    """Verify every partition of the roots of a run that is open, and report it.

    Args:
        run: The run; what was found is in its record when this returns.
        request: How deep to look, and what makes the run fail.

    Raises:
        StorageError: A root cannot be listed.
        pyspark.errors.PySparkException: Spark failed.
    """
    job, engine = run.job, require_spark(run.engine)
    roots = observe_roots(
        [(root.location, root.role) for root in job.roots], job.topics, is_live=request.is_live
    )
    of_roots = engine.frame_of(rows_to_batch(VERIFIED, roots.rows))
    frame = of_roots
    kept: list[DataFrame] = []
    if roots.targets:
        frame = frame.unionByName(verify_targets(run, request, roots.targets, kept))
    # Everything below asks for some of these rows: they are computed once. Memory first, then disk.
    frame = frame.persist()
    kept.append(frame)
    counts, findings, verified = _collect(run, request, frame)
    results = _results(job, verified)
    run.recorder.results(results)
    run.recorder.findings(recorded_findings(frame, job.run_id))
    worst = Severity(counts[0].severity) if counts else None
    return run.report(
        VerifyReport,
        results,
        has_findings=is_as_bad(worst, request.fail_on),
        verified=tuple(verified),
        counts=tuple(counts),
        findings=tuple(findings),
        roots=roots,
        read_bytes=sum(row["read_bytes"] or 0 for row in verified),
        read_ms=sum(row["read_ms"] or 0 for row in verified),
        _frame=frame,
        _free=_freeing(kept, engine.hand_over()),
    )


def _freeing(kept: Sequence[DataFrame], free_published: Callable[[], None]) -> Callable[[], None]:
    def free() -> None:
        for frame in kept:
            frame.unpersist()
        free_published()

    return free


def _collect(
    run: Run, request: VerifyRequest, frame: DataFrame
) -> tuple[list[FindingCount], list[dict[str, Any]], list[dict[str, Any]]]:
    """Return counts of the findings, the worst of them, and the rows of the partitions."""
    job, engine = run.job, require_spark(run.engine)
    is_finding = F.col("row") == FINDING_ROW
    engine.describe(f"{job.title} {job.places}: verify")
    names = ["ordinal", "root", "topic", "partition", "segments", "bytes", "records"]
    names += ["log_start_offset", "log_end_offset", "read_bytes", "read_ms"]
    verified = frame.where(F.col("row") == PARTITION_ROW).select(*names, "error_class", "error")
    rows: list[dict[str, Any]] = verified.toArrow().to_pylist()
    engine.describe(f"{job.title} {job.places}: count findings")
    counted = frame.where(is_finding).groupBy("severity", "code").count().toArrow().to_pylist()
    rank = F.create_map(*[F.lit(value) for s in Severity for value in (s.value, s.rank)])
    worst = (
        frame.where(is_finding)
        .orderBy(
            rank[F.col("severity")].desc(), "root", "topic", "partition", "file", "position", "code"
        )
        .limit(request.shown)
        .select("root", *FINDING.names)
    )
    found = [{"run_id": job.run_id, **row} for row in worst.toArrow().to_pylist()]
    counts = [FindingCount(**row) for row in counted]
    counts.sort(key=lambda count: (-Severity(count.severity).rank, -count.count, count.code))
    rows.sort(key=lambda row: (row["root"], row["topic"] or "", row["partition"] or 0))
    return counts, found, rows


def _results(job: Job, verified: Sequence[Mapping[str, Any]]) -> pa.Table:
    rows = [
        {
            "run_id": job.run_id,
            "root": row["root"],
            "topic": row["topic"],
            "partition": row["partition"],
            "action": Action.VERIFY.value,
            "status": (Status.DONE if row["error"] is None else Status.FAILED).value,
            "bytes_before": row["bytes"],
            "bytes_after": row["bytes"],
            "records_before": row["records"],
            "records_after": row["records"],
            "segments_before": row["segments"],
            "segments_after": row["segments"],
            "duration_ms": row["read_ms"],
            "error_class": row["error_class"],
            "error": row["error"],
        }
        for row in verified
    ]
    return pa.Table.from_batches([rows_to_batch(RESULT, rows)], schema=RESULT)
