"""Verify every batch, index and small file of log directories. Nothing is written to them.

One stage: a task a unit of segments; then one a partition that was cut into several units. Findings
stay where tasks are; the driver gets their counts, the worst of them, and a row a partition.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa

from pylog_spark.discovery import resolve_roots
from pylog_spark.engines.choice import Place
from pylog_spark.operations.verify.findings import (
    FINDING_COUNT,
    RANKED_FINDING,
    VERIFIED_PARTITION,
    WORST_FIRST,
    count_findings,
    findings_of,
    first_rows,
    rank_findings,
    recorded_findings,
    verified_partitions,
)
from pylog_spark.operations.verify.report import FindingCount, VerifyReport, VerifyRequest
from pylog_spark.operations.verify.stages import verify_targets
from pylog_spark.operations.verify.verified_roots import VerifiedRoots, observe_roots
from pylog_spark.options import JobOptions
from pylog_spark.options.declared import METRICS_FILE
from pylog_spark.rows import rows_to_batch
from pylog_spark.run.exit_rule import is_as_bad
from pylog_spark.run.guards import check_ledger, check_outside
from pylog_spark.run.job import Job, new_job
from pylog_spark.run.run import Run
from pylog_spark.schemas import RECORDED_FINDING, RESULT, Action, Status
from pylog_spark.structured_logs import log_fields
from storage_core.clock import Clock
from storage_core.maintenance.verification.findings import Severity

# Takes rows of findings, some at a time.
OnFindings = Callable[[Sequence[Mapping[str, Any]]], None]


def verify(
    place: Place,
    roots: Sequence[str | Path],
    options: JobOptions,
    request: VerifyRequest | None = None,
    *,
    clock: Clock | None = None,
    on_findings: OnFindings | None = None,
) -> VerifyReport:
    """Verify all partitions of log directories; record and report the findings.

    Args:
        place: Where it runs: a Spark session, or this machine (``Local``).
        options: Which topics, which role, where the ledger is.
        request: How deep to look, and what makes the run fail.
        clock: For the times in the ledger.
        on_findings: Takes all findings, some at a time, however many there are.
    """
    log_roots = resolve_roots(roots, role=options.role)
    check_ledger(log_roots, options.ledger)
    check_outside(METRICS_FILE.label, options.metrics_file, log_roots)
    request = request or VerifyRequest()
    job = new_job(
        Action.VERIFY.value, log_roots, options, clock=clock, request=asdict(request), outputs=()
    )
    with Run(place, job) as run:
        observed = observe_targets(run, request)
        verification = verify_step(run, request, observed)
        results = _results(job, verification.partitions)
        run.recorder.results(results)
        recorded = verification.rows.map(
            partial(recorded_findings, run_id=job.run_id), RECORDED_FINDING
        )
        run.recorder.findings(run.engine, recorded)
        if on_findings is not None:
            tell = partial(_tell_recorded, job, on_findings)
            tell_findings(run, verification, tell)
        worst = Severity(verification.counts[0].severity) if verification.counts else None
        return run.report(
            VerifyReport,
            results,
            has_findings=is_as_bad(worst, request.fail_on),
            verified=verification.partitions,
            counts=verification.counts,
            gauges=verification.gauges,
            findings=tuple(_recorded(job, row) for row in verification.worst),
            roots=observed,
            read_bytes=sum(row["read_bytes"] or 0 for row in verification.partitions),
            read_ms=sum(row["read_ms"] or 0 for row in verification.partitions),
            _findings=run.engine.hand_over(recorded),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Verification:
    """What a verification found, while its run is open."""

    rows: Any  # of ``VerifiedRow``, in pieces, where tasks have them
    partitions: tuple[dict[str, Any], ...]
    counts: tuple[FindingCount, ...]  # findings by severity and code, worst first
    # Findings of each root by severity, under the names that metrics have.
    gauges: Mapping[str, Mapping[str, int]]
    # The worst findings, of ``findings.RANKED_FINDING``; as many as were asked for.
    worst: tuple[dict[str, Any], ...]


def observe_targets(run: Run, request: VerifyRequest) -> VerifiedRoots:
    """Return a run's log directories and the partitions to verify."""
    roots = [(root.location, root.role) for root in run.job.roots]
    return observe_roots(roots, run.job.topics, is_live=request.is_live, release=request.release)


@log_fields(step=Action.VERIFY.value)
def verify_step(run: Run, request: VerifyRequest, roots: VerifiedRoots) -> Verification:
    """Verify every partition of the roots of a run that is open.

    Args:
        request: How deep to look.
        roots: Of ``observe_targets``.
    """
    title = f"{run.job.title} {run.job.places}"
    rows = verify_targets(run, request, roots)
    partitions = run.engine.collect(
        rows.map(verified_partitions, VERIFIED_PARTITION),
        VERIFIED_PARTITION,
        f"{title}: verify",
        is_look=True,
    )
    counts = run.engine.collect(
        rows.map(count_findings, FINDING_COUNT),
        FINDING_COUNT,
        f"{title}: count findings",
        is_look=True,
    )
    # Each task chooses among its own findings, and one among these.
    first = partial(first_rows, most=request.shown)
    ranked = rows.map(rank_findings, RANKED_FINDING)
    worst_rows = ranked.sort_within(*WORST_FIRST).map(first, RANKED_FINDING)
    worst_rows = worst_rows.deal_out(1).sort_within(*WORST_FIRST).map(first, RANKED_FINDING)
    worst = run.engine.collect(
        worst_rows, RANKED_FINDING, f"{title}: choose the worst findings", is_look=True
    )
    by_name = sorted(
        partitions.to_pylist(),
        key=lambda row: (row["root"], row["topic"] or "", row["partition"] or 0),
    )
    return Verification(
        rows=rows,
        partitions=tuple(by_name),
        counts=_sum_counts(counts),
        gauges=_gauges(counts, [root.location for root in run.job.roots]),
        worst=tuple(worst.drop_columns(["badness"]).to_pylist()),
    )


def tell_findings(run: Run, verification: Verification, on_findings: OnFindings) -> None:
    """Hand over all findings of an open run, worst severity first.

    Args:
        on_findings: Takes them, some at a time.
    """
    if sum(count.count for count in verification.counts) <= len(verification.worst):
        on_findings(verification.worst)
        return
    severities = dict.fromkeys(count.severity for count in verification.counts)
    for severity in severities:
        findings = verification.rows.map(partial(findings_of, severity=severity), RANKED_FINDING)
        ordered = findings.sort_within(*WORST_FIRST)
        title = f"{run.job.title}: findings of severity {severity}"
        for batch in run.engine.stream(ordered, RANKED_FINDING, title):
            on_findings(batch.drop_columns(["badness"]).to_pylist())


def _tell_recorded(job: Job, on_findings: OnFindings, rows: Sequence[Mapping[str, Any]]) -> None:
    on_findings([_recorded(job, row) for row in rows])


def _recorded(job: Job, row: Mapping[str, Any]) -> dict[str, Any]:
    return {"run_id": job.run_id, **{name: row[name] for name in RECORDED_FINDING.names[1:]}}


def _sum_counts(counts: pa.Table) -> tuple[FindingCount, ...]:
    """Return the number of findings per severity and code, worst first."""
    sums = counts.group_by(["severity", "code"]).aggregate([("count", "sum")])
    summed = [
        FindingCount(severity=row["severity"], code=row["code"], count=row["count_sum"])
        for row in sums.to_pylist()
    ]
    summed.sort(key=lambda count: (-Severity(count.severity).rank, -count.count, count.code))
    return tuple(summed)


def _gauges(counts: pa.Table, roots: Sequence[str]) -> dict[str, dict[str, int]]:
    """Return how many findings each root has of each severity."""
    gauges = {root: {f"findings-{each.value}": 0 for each in Severity} for root in roots}
    for row in counts.to_pylist():
        gauges[row["root"]][f"findings-{row['severity']}"] += row["count"]
    return gauges


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
