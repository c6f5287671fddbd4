"""A job: arguments, config, session, operation, exit status."""

import json
import signal
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, Final

import typer
from rich.console import Console

from pylog_spark.cli.output import check_file_place
from pylog_spark.cli.progress_line import ProgressLine
from pylog_spark.discovery import resolve_roots
from pylog_spark.operations.compact import compact
from pylog_spark.operations.guards import check_outside, check_roots
from pylog_spark.operations.nightly import run_nightly
from pylog_spark.operations.plan_table import RowKey, row_key
from pylog_spark.operations.recover import check_recovery, recover
from pylog_spark.operations.retain import retain
from pylog_spark.operations.run_report import RunReport, notes_of_empty_roots
from pylog_spark.options.load import Flags, load_config
from pylog_spark.report import (
    cut_table,
    is_notable_retention,
    json_line,
    plan_table,
    refusal_text,
    refused_deletions,
    result_table,
    retention_table,
    summary_line,
    write_table,
)
from pylog_spark.report_page import write_run_page
from pylog_spark.schemas import ALLOWED_BY
from pylog_spark.session import build_session
from storage_core.clock import SystemClock
from storage_core.maintenance.verification.findings import Severity

_OPERATIONS: Final[dict[str, Callable[..., RunReport]]] = {
    "compact": compact,
    "retain": retain,
}
_RECOVER: Final = "recover"


def run_job(
    job: str,
    roots: Sequence[str],
    flags: Flags,
    *,
    as_json: bool,
    fail_on: Severity | None = None,
    page: Path | None = None,
) -> int:
    """Run a job and print what it did.

    Args:
        job: Name of its command.
        roots: Log directories.
        flags: What the command line says.
        as_json: JSON lines instead of a table: one a partition, then one of the run.
        fail_on: Of recovery: cuts as bad as this make the exit status 1.
        page: Where to write a page to be read or sent.

    Returns:
        The exit status.

    Raises:
        PylogError: The job could not run, or a guard refused it.
    """
    check_file_place("--report", page)
    check_file_place("--plan-out", flags.plan_out)
    options = load_config(flags, now_ms=SystemClock().now_ms()).options
    # The job checks this again. Here it spares a person the start of a Spark session.
    check = check_recovery if job == _RECOVER else check_roots
    log_roots = resolve_roots(roots, said=options.role)
    check_outside("--report", page, log_roots)
    check(log_roots, options)
    session = build_session(
        options.master,
        options.spark_conf,
        app_name=f"pylog {job}",
        # A dry run writes no ledger, but asks it what retention the topics had.
        delta=options.ledger is not None,
    )
    # Spark's own handler asks the JVM to cancel its jobs in the middle of another call to it, and
    # what comes out is not always a KeyboardInterrupt. The operation cancels its jobs itself.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    with ProgressLine(is_shown=not as_json) as line:
        match job:
            case "recover":
                report = recover(
                    session, roots, options, on_progress=line.on_progress, fail_on=fail_on
                )
            case "run":
                report = run_nightly(
                    session, roots, options, on_progress=line.on_progress, fail_on=fail_on
                )
            case _:
                report = _OPERATIONS[job](session, roots, options)
    empty = notes_of_empty_roots(
        report.results,
        [root.location for root in log_roots],
        are_topics_chosen=bool(options.include or options.exclude),
    )
    report = replace(report, notes=(*report.notes, *empty))
    write_report(report, as_json=as_json)
    if page is not None:
        write_run_page(page, report)
    return report.exit_code


def write_report(report: RunReport, *, as_json: bool) -> None:
    """Print what a run did, or would do.

    Args:
        report: Of the run.
        as_json: JSON lines instead of a table: one a partition, then one of the run.
    """
    rows = report.results.to_pylist()
    if as_json:
        _write_json(report, rows)
    else:
        _write_table(report, rows)


def _write_json(report: RunReport, rows: list[dict[str, Any]]) -> None:
    plans = _plans(report) if report.dry_run else {}
    for row in rows:
        plan = plans.get(row_key(row))
        typer.echo(json_line("result", row if plan is None else {**row, "plan": plan}))
    for cut in report.cuts.to_pylist():
        typer.echo(json_line("cut", cut))
    for row in report.retentions.to_pylist():
        row["operations"] = json.loads(row["operations"] or "[]")
        typer.echo(json_line("retention", row))
    run = {
        "run_id": report.run_id,
        "action": report.action,
        "dry_run": report.dry_run,
        **asdict(report.summary),
        "exit_code": report.exit_code,
        "notes": list(report.notes),
        "cleaner": dict(report.cleaner),
        "refused_deletions": [
            {"reason": reason, "partitions": count, "allowed_by": ALLOWED_BY[reason]}
            for reason, count in refused_deletions(rows).items()
        ],
    }
    typer.echo(json_line("run", run))


def _plans(report: RunReport) -> dict[RowKey, dict[str, Any]]:
    """Return what a dry run would do, by partition directory."""
    plans = {row_key(plan): plan for plan in report.planned_rows()}
    for row in report.recoveries.to_pylist():
        plans[row_key(row)] = row | {"operations": json.loads(row["operations"] or "[]")}
    return plans


def _write_table(report: RunReport, rows: list[dict[str, Any]]) -> None:
    seconds = report.summary.duration_ms / 1000
    what = "dry run, nothing was written" if report.dry_run else f"run {report.run_id}"
    line = f"{what}: {summary_line(rows)} in {seconds:.1f} s{refusal_text(rows)}"
    footer = [line, *report.notes]
    console = Console()
    planned = report.planned_rows() if report.dry_run else []
    if planned:
        write_table(console, plan_table(planned), footer=[""])
    if report.cuts.num_rows:
        write_table(console, cut_table(report.cuts.to_pylist()), footer=[""])
    retentions = [row for row in report.retentions.to_pylist() if is_notable_retention(row)]
    if retentions:
        write_table(console, retention_table(retentions), footer=[""])
    write_table(console, result_table(rows), footer=footer)
