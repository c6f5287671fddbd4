"""``pylog verify``: is what lies in log directories whole?"""

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any, Final

from rich.console import Console
from rich.text import Text

from pylog_spark.cli.chosen_topics import topic_notes
from pylog_spark.cli.finding_tables import FINDING_TABLE, write_counts
from pylog_spark.cli.page_parts import (
    finding_sections,
    history_section,
    picture_notes,
    table_section,
)
from pylog_spark.cli.row_lines import RowLines
from pylog_spark.cli.runner import Call, Tasks, Work, engine_text, load_options
from pylog_spark.discovery import resolve_roots
from pylog_spark.operations.verify import verify
from pylog_spark.operations.verify_report import (
    ORDERED_FINDINGS,
    VerifyReport,
    VerifyRequest,
)
from pylog_spark.options.choices import OutputFormat
from pylog_spark.options.declared import (
    DEEP,
    FAIL_ON,
    LIVE,
    METRICS_FILE,
    OUTPUT,
    REPORT,
    ROOTS,
    SHOW,
)
from pylog_spark.options.option import CommandLine
from pylog_spark.report import RESULT_TABLE, partition_name, size_text
from pylog_spark.report_page import Page, write_page
from pylog_spark.run.guards import check_ledger, check_outside
from pylog_spark.schemas import RECORDED_FINDING
from pylog_spark.text import printable
from pylog_spark.text_table import Row, has_several_roots, write_paragraphs, write_table
from storage_core.maintenance.verification.findings import Severity
from storage_core.wording import count_text

# In tables, where nobody says how many.
_SHOWN_FINDINGS: Final = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class _Subject:
    """What is verified, and how its findings are written.

    Attributes:
        locations: The roots.
        lines: What writes rows for a program, from the first finding on; None for tables.
    """

    locations: list[str]
    lines: RowLines | None


def _prepare(line: CommandLine) -> Call[_Subject]:
    options = load_options(line)
    roots = resolve_roots(line[ROOTS], said=options.role)
    check_outside(REPORT.label, line[REPORT], roots)
    check_ledger(roots, options.ledger)
    check_outside(METRICS_FILE.label, options.metrics_file, roots)
    notes = topic_notes(options, roots)
    lines = None
    if line[OUTPUT] is not OutputFormat.TABLE:
        lines = RowLines(line[OUTPUT], "finding", RECORDED_FINDING.names)
    subject = _Subject(locations=[root.location for root in roots], lines=lines)
    return Call(line=line, options=options, subject=subject, roots=roots, notes=notes)


def _verify(call: Call[_Subject], place: Any) -> VerifyReport:
    request = VerifyRequest(
        is_deep=call.line[DEEP],
        is_live=call.line[LIVE],
        fail_on=call.line[FAIL_ON].severity,
        shown=_shown(call),
    )
    lines = call.subject.lines
    tell = None if lines is None or SHOW in call.line else partial(_write_findings, lines)
    report = verify(place, call.line[ROOTS], call.options, request, on_findings=tell)
    if lines is not None and tell is None:
        _write_findings(lines, report.findings)
    locations = call.subject.locations
    report = report.with_empty_roots(locations, are_topics_chosen=call.are_topics_chosen)
    return report.with_notes(call.notes)


def _shown(call: Call[_Subject]) -> int:
    shown = call.line[SHOW]
    if shown is None:
        shown = _SHOWN_FINDINGS if call.is_for_person else ORDERED_FINDINGS
    return shown


def _write_findings(lines: RowLines, rows: Iterable[Row]) -> None:
    for row in rows:
        lines.add("finding", row)


def _show(call: Call[_Subject], report: VerifyReport) -> int:
    lines = call.subject.lines
    if lines is None:
        _write_tables(call, report)
    else:
        _write_rows(report, lines)
    page = call.line[REPORT]
    if page is not None:
        write_page(page, verify_page(report, ledger=call.options.ledger))
    report.release()
    return report.exit_code


def verify_page(report: VerifyReport, *, ledger: str | None) -> Page:
    """Return the page of a verification.

    Args:
        report: What was found.
        ledger: Where runs are written down; None for nowhere.
    """
    counts = [(count.severity, count.code, count.count) for count in report.counts]
    total = sum(count for _, _, count in counts)
    return Page(
        title="pylog verify",
        lead=(
            f"Run {report.run_id}: {count_text(report.summary.done, 'partition')}, "
            f"{size_text(report.read_bytes)} were read, "
            f"{count_text(total, 'finding') if total else 'nothing found'}."
        ),
        notes=[*report.notes, *picture_notes()],
        sections=[
            *finding_sections(counts, report.findings),
            table_section("Partitions", RESULT_TABLE, report.results.to_pylist()),
            history_section(ledger),
        ],
    )


def _write_rows(report: VerifyReport, lines: RowLines) -> None:
    for result in report.results.to_pylist():
        lines.add("result", result)
    run = {
        **report.run_row(),
        "read_bytes": report.read_bytes,
        "findings": [asdict(count) for count in report.counts],
    }
    lines.add("run", run)


def _write_tables(call: Call[_Subject], report: VerifyReport) -> None:
    is_wide = call.is_wide
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
        way = "--show N prints more, --output json all, --ledger keeps all"
        more = [f"{left:,} more; {way}"] if left else []
        write_table(console, FINDING_TABLE, bad, is_wide=is_wide, footer=[*more, ""])
    if counts:
        write_counts(console, counts, report.findings)
        console.print()
    seconds = report.summary.duration_ms / 1000
    rate = f", {size_text(round(report.read_bytes / seconds))}/s" if seconds else ""
    hint = "`pylog explain CODE` says more of each" if report.counts else "nothing found"
    line = (
        f"run {report.run_id}: {count_text(report.summary.done, 'partition')}, "
        f"{size_text(report.read_bytes)} in {seconds:.1f} s{rate}, "
        f"{engine_text(report.engine, call)}: {hint}"
    )
    write_paragraphs(console, [line, *report.notes], is_wide=is_wide)


VERIFY: Final = Work(
    name="verify",
    prepare=_prepare,
    operate=_verify,
    show=_show,
    tasks=Tasks.HERE_IF_FEW,
    asks_ledger=True,
)
