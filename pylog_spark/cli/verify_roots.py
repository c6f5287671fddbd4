"""What ``pylog verify`` runs and prints."""

import signal
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

import typer
from rich.console import Console
from rich.text import Text

from pylog_spark.cli.finding_tables import finding_table, write_counts
from pylog_spark.cli.output import check_file_place
from pylog_spark.discovery import resolve_roots
from pylog_spark.operations.guards import check_ledger, check_outside
from pylog_spark.operations.run_report import notes_of_empty_roots
from pylog_spark.operations.verify import verify
from pylog_spark.operations.verify_report import VerifyReport, VerifyRequest
from pylog_spark.options.load import Flags, load_config
from pylog_spark.report import (
    has_several_roots,
    json_line,
    partition_name,
    size_text,
    write_table,
)
from pylog_spark.report_page import write_page
from pylog_spark.session import build_session
from pylog_spark.text import printable
from storage_core.clock import SystemClock
from storage_core.maintenance.verification.findings import Severity


def run_verify(
    roots: Sequence[str],
    flags: Flags,
    request: VerifyRequest,
    *,
    as_json: bool,
    page: Path | None,
) -> int:
    """Verify log directories and print what was found.

    Args:
        roots: Paths or URLs of log directories.
        flags: What the command line says.
        request: How to look.
        as_json: JSON lines instead of tables.
        page: Where to write an HTML page; None for nowhere.

    Returns:
        The exit status.

    Raises:
        PylogError: The roots cannot be listed, or the options are wrong.
    """
    check_file_place("--report", page)
    options = load_config(flags, now_ms=SystemClock().now_ms()).options
    # The job checks this again. Here it spares a person the start of a Spark session.
    log_roots = resolve_roots(roots, said=options.role)
    check_outside("--report", page, log_roots)
    check_ledger(log_roots, options.ledger)
    session = build_session(
        options.master,
        options.spark_conf,
        app_name="pylog verify",
        delta=options.ledger is not None,
    )
    # As for the other jobs: the operation cancels its Spark jobs itself.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    report = verify(session, roots, options, request)
    notes = notes_of_empty_roots(
        report.results,
        [root.location for root in log_roots],
        are_topics_chosen=bool(options.include or options.exclude),
    )
    if as_json:
        _write_json(report, notes)
    else:
        _write_tables(report, notes)
    if page is not None:
        write_page(page, title="pylog verify", report=report)
    report.release()
    return report.exit_code


def _write_json(report: VerifyReport, notes: Sequence[str]) -> None:
    for row in report.findings:
        typer.echo(json_line("finding", row))
    for result in report.results.to_pylist():
        typer.echo(json_line("result", result))
    run = {
        "run_id": report.run_id,
        "action": "verify",
        **asdict(report.summary),
        "read_bytes": report.read_bytes,
        "findings": [asdict(count) for count in report.counts],
        "exit_code": report.exit_code,
        "notes": list(notes),
    }
    typer.echo(json_line("run", run))


def _write_tables(report: VerifyReport, notes: Sequence[str]) -> None:
    console = Console()
    rows = report.results.to_pylist()
    are_several = has_several_roots(rows)
    for row in (row for row in rows if row["error"] is not None):
        place = f" in {row['root']}" if are_several else ""
        text = f"{partition_name(row)}{place} could not be verified: {row['error']}"
        console.print(Text(printable(text), style="bold red"), soft_wrap=True)
    counts = [(count.severity, count.code, count.count) for count in report.counts]
    # What is harmless or only worth knowing is counted; a list of it would hide the rest.
    least = Severity.WARN.rank
    bad = [row for row in report.findings if Severity(row["severity"]).rank >= least]
    left = sum(n for severity, _, n in counts if Severity(severity).rank >= least) - len(bad)
    if bad:
        more = [f"{left:,} more; --show N prints more, --ledger keeps all"] if left else []
        write_table(console, finding_table(bad), footer=[*more, ""])
    if counts:
        write_counts(console, counts, report.findings)
        console.print()
    seconds = report.summary.duration_ms / 1000
    rate = f", {size_text(round(report.read_bytes / seconds))}/s" if seconds else ""
    found = "nothing found" if not report.counts else "see docs/findings.md for the codes"
    console.print(
        Text(
            f"run {report.run_id}: {report.summary.done} partitions, "
            f"{size_text(report.read_bytes)} in {seconds:.1f} s{rate}: {found}"
        ),
        soft_wrap=True,
    )
    for note in notes:
        console.print(Text(printable(note)), soft_wrap=True)
