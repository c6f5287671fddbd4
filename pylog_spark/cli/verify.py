"""``pylog verify``: is what lies in log directories whole?"""

from collections.abc import Iterator
from dataclasses import asdict, replace
from typing import Any, Final

from pylog_spark.cli.runner import (
    Call,
    PageLook,
    ProgressLine,
    RowLines,
    Tasks,
    Work,
    engine_text,
    look_at_past_runs,
    prepare_roots,
)
from pylog_spark.cli.tiers import with_tiers
from pylog_spark.cli.view_parts import (
    FINDING_TABLE,
    count_blocks,
    finding_sections,
    history_section,
    picture_notes,
    table_section,
)
from pylog_spark.operations.verify.driver import (
    ORDERED_FINDINGS,
    OnFindings,
    VerifyReport,
    VerifyRequest,
    verify,
)
from pylog_spark.options.declared import (
    DEEP,
    FAIL_ON,
    LIVE,
    METRICS_FILE,
    ROOTS,
    SHOW,
)
from pylog_spark.options.option import CommandLine
from pylog_spark.report import RESULT_TABLE, partition_name, size_text
from pylog_spark.run.guards import check_ledger, check_outside
from pylog_spark.schemas import RECORDED_FINDING
from pylog_spark.view import (
    Block,
    OutputLine,
    Page,
    Table,
    Verbatim,
    View,
    has_several_roots,
    lines_of,
)
from storage_core.maintenance.verification.findings import Severity
from storage_core.wording import count_text

# In tables, where nobody says how many.
_SHOWN_FINDINGS: Final = 100


def _prepare(line: CommandLine) -> Call:
    call = prepare_roots(
        with_tiers(line),
        lambda roots, options: check_ledger(roots, options.ledger),
        lambda roots, options: check_outside(METRICS_FILE.label, options.metrics_file, roots),
        may_be_tiers=True,
    )
    return with_writer(call)


def with_writer(call: Call) -> Call:
    """Return the call with a writer of findings, if a program reads the answer."""
    if call.is_for_person:
        return call
    return replace(call, writer=RowLines(call.output, "finding", RECORDED_FINDING.names))


def shown_findings(call: Call) -> int:
    """Return how many findings the report of a look holds."""
    shown = call.line[SHOW]
    if shown is None:
        shown = _SHOWN_FINDINGS if call.is_for_person else ORDERED_FINDINGS
    return shown


def teller_of(call: Call) -> OnFindings | None:
    """Return what writes findings while they are found; None where the report has those to show.
    Where nobody says how many, a program gets all of them."""
    writer = None if SHOW in call.line else call.writer
    if writer is None:
        return None
    return lambda rows: writer.write(lines_of("finding", rows))


def _verify(call: Call, place: Any) -> VerifyReport:
    request = VerifyRequest(
        is_deep=call.line[DEEP],
        is_live=call.line[LIVE],
        fail_on=call.line[FAIL_ON].severity,
        shown=shown_findings(call),
    )
    with ProgressLine(is_shown=call.has_progress) as progress:
        report = verify(
            place,
            call.line[ROOTS],
            call.options,
            request,
            on_findings=teller_of(call),
            on_progress=progress.on_progress,
        )
    report.release()  # no view has the findings beyond those of the report
    report = report.with_empty_roots(call.locations, are_topics_chosen=call.are_topics_chosen)
    return report.with_notes(call.notes)


def view_findings(call: Call, report: VerifyReport) -> View:
    """Return the answer of a look that has findings."""

    def lines() -> Iterator[OutputLine]:
        if SHOW in call.line:
            yield from lines_of("finding", report.findings)
        yield from lines_of("result", report.results.to_pylist())
        run = {
            **report.run_row(),
            "read_bytes": report.read_bytes,
            "findings": [asdict(count) for count in report.counts],
        }
        yield OutputLine("run", run)

    look = call.page_look
    return View(
        lines=lines(),
        blocks=_blocks(call, report),
        page=None if look is None else lambda: verify_page(report, look),
        status=report.exit_code,
    )


def look_for_page(call: Call, _: VerifyReport) -> PageLook:
    """Return what the page of a look shows besides."""
    ledger = call.options.ledger
    return PageLook(ledger=ledger, past_runs=look_at_past_runs(ledger))


def verify_page(report: VerifyReport, look: PageLook) -> Page:
    """Return the page of a verification, or of a scrub."""
    counts = [(count.severity, count.code, count.count) for count in report.counts]
    total = sum(count for _, _, count in counts)
    return Page(
        title=f"pylog {report.action}",
        lead=(
            f"Run {report.run_id}: {count_text(report.summary.done, 'partition')}, "
            f"{size_text(report.read_bytes)} were read, "
            f"{count_text(total, 'finding') if total else 'nothing found'}."
        ),
        notes=[*report.notes, *picture_notes()],
        sections=[
            *finding_sections(counts, report.findings),
            table_section("Partitions", RESULT_TABLE, report.results.to_pylist()),
            history_section(look),
        ],
    )


def _blocks(call: Call, report: VerifyReport) -> Iterator[Block]:
    rows = report.results.to_pylist()
    are_several = has_several_roots(rows)
    for row in (row for row in rows if row["error"] is not None):
        place = f" in {row['root']}" if are_several else ""
        text = f"{partition_name(row)}{place} could not be verified: {row['error']}"
        yield Verbatim(text, "bold red")
    counts = [(count.severity, count.code, count.count) for count in report.counts]
    # What is harmless or only worth knowing is counted; a list of it would hide the rest.
    least = Severity.WARN.rank
    bad = [row for row in report.findings if Severity(row["severity"]).rank >= least]
    more = sum(n for severity, _, n in counts if Severity(severity).rank >= least) - len(bad)
    if bad:
        yield Table(kind=FINDING_TABLE, rows=bad)
        if more:
            yield f"{more:,} more; --show N prints more, --output json all, --ledger keeps all"
        yield ""
    if counts:
        yield from count_blocks(counts, report.findings)
        yield ""
    seconds = report.summary.duration_ms / 1000
    rate = f", {size_text(round(report.read_bytes / seconds))}/s" if seconds else ""
    hint = "`pylog explain CODE` says more of each" if report.counts else "nothing found"
    yield (
        f"run {report.run_id}: {count_text(report.summary.done, 'partition')}, "
        f"{size_text(report.read_bytes)} in {seconds:.1f} s{rate}, "
        f"{engine_text(report.engine, call)}: {hint}"
    )
    yield from report.notes


VERIFY: Final = Work(
    name="verify",
    prepare=_prepare,
    operate=_verify,
    look_for_page=look_for_page,
    view=view_findings,
    tasks=Tasks.HERE_IF_FEW,
    asks_ledger=True,
    reads=lambda call: call.line[ROOTS],
)
