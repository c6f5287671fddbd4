"""``pylog ingest``, ``materialize`` and ``survey``: managed roots and due work.

Ingest goes into managed roots, materialize out of them. A survey says what is due by listings.
"""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from pylog_spark.cli.runner import (
    Call,
    ProgressLine,
    Tasks,
    Work,
    engine_text,
    load_options,
    prepare_roots,
    topic_notes,
)
from pylog_spark.cli.tiers import locate_tiers
from pylog_spark.cli.view_parts import figures, picture_notes, table_section
from pylog_spark.operations.ingest import check_places, ingest
from pylog_spark.operations.materialize import check_target, materialize
from pylog_spark.operations.survey import survey
from pylog_spark.operations.transfer import TransferReport
from pylog_spark.options.choices import OutputFormat
from pylog_spark.options.declared import (
    ALLOW_DATA_LOSS,
    CONFIG_FILES,
    DRY_RUN,
    IN_PLACE,
    MANAGED,
    MIRROR,
    ROOTS,
    SETTLE,
    SYNC_STOPPED,
    TARGET,
)
from pylog_spark.options.option import CommandLine
from pylog_spark.outcomes import Action, Reason, Status
from pylog_spark.pictures import bytes_by_state, dirty_ratios
from pylog_spark.refusals import ways_out
from pylog_spark.report import (
    PARTITION,
    REASON,
    STATUS,
    number_column,
    size_column,
    summary_line,
)
from pylog_spark.text_table import SHOWN_ROWS
from pylog_spark.view import (
    Block,
    Column,
    OutputLine,
    Page,
    Row,
    Section,
    Table,
    TableKind,
    View,
    lines_of,
)
from storage_core.maintenance.ingest.partition import IngestRules

_ROWS_AT_ONCE: Final = 1000


def _why(row: Row) -> str:
    parts = [row["error"] or ""]
    if row["status"] != Status.SKIPPED and row.get("left_because"):
        parts.append(f"the next segment stays: {row['left_because']}")
    return "; ".join(part for part in parts if part)


def _table(*columns: Column) -> TableKind:
    return TableKind(columns=(PARTITION, STATUS, *columns, REASON), note=_why)


# By action: what a person is shown of each partition.
_TABLES: Final[Mapping[str, TableKind]] = {
    Action.INGEST: _table(
        size_column("bytes", "bytes_before", rank=2),
        number_column("segments", "segments_before", rank=4),
        size_column("new bytes", "taken_bytes", rank=1),
        number_column("new", "taken_segments", rank=3),
        number_column("left", "left_segments", rank=5),
    ),
    Action.MATERIALIZE: _table(
        number_column("generation", "generation", rank=4),
        size_column("bytes", "bytes", rank=1),
        number_column("segments", "segments", rank=3),
        size_column("all files", "all_bytes", rank=2),
    ),
    Action.SURVEY: _table(
        size_column("bytes", "bytes", rank=1),
        number_column("segments", "segments", rank=4),
        size_column("removable", "removable_bytes", rank=2),
        number_column("of them", "removable_segments", rank=5),
        size_column("dirty", "cleanable_bytes", rank=3),
    ),
}


def _prepare_ingest(line: CommandLine) -> Call:
    rules = IngestRules(
        sync_has_stopped=line[SYNC_STOPPED],
        in_place=line[IN_PLACE],
        settle_ms=line[SETTLE],
        allows_data_loss=line[ALLOW_DATA_LOSS],
    )
    options = load_options(line)
    (mirror,) = locate_tiers(line, [line[MIRROR]])
    line = line.with_written({MIRROR: mirror})
    roots = check_places(mirror, line[MANAGED], rules, dry_run=options.dry_run)
    notes = topic_notes(options, roots[:1])
    return Call(line=line, options=options, roots=roots, subject=rules, notes=notes)


def _ingest(call: Call, place: Any) -> TransferReport:
    mirror = call.line[MIRROR]
    rules: IngestRules = call.subject
    with ProgressLine(is_shown=call.has_progress) as progress:
        report = ingest(
            place,
            mirror,
            call.line[MANAGED],
            call.options,
            rules=rules,
            on_progress=progress.on_progress,
        )
    return _with_notes(report, call, mirror)


def _prepare_materialize(line: CommandLine) -> Call:
    options = load_options(line)
    root = check_target(line[MANAGED], line[TARGET])
    return Call(line=line, options=options, roots=[root], notes=topic_notes(options, [root]))


def _materialize(call: Call, place: Any) -> TransferReport:
    managed = call.line[MANAGED]
    report = materialize(place, managed, call.line[TARGET], call.options)
    return _with_notes(report, call, managed)


def _with_notes(report: TransferReport, call: Call, source: str) -> TransferReport:
    report = report.with_notes(call.notes)
    if report.results.num_rows:
        return report
    return report.with_empty_roots([source], are_topics_chosen=call.are_topics_chosen)


def _survey(call: Call, place: Any) -> TransferReport:
    report = survey(place, call.line[ROOTS], call.options)
    report = report.with_empty_roots(call.locations, are_topics_chosen=call.are_topics_chosen)
    return report.with_unknown_configs(call.line[CONFIG_FILES]).with_notes(call.notes)


def survey_page(report: TransferReport) -> Page:
    """Return the page of a survey."""
    rows = report.details.to_pylist()
    counts = summary_line(
        report.results.select(["status", "bytes_before", "bytes_after"]).to_pylist()
    )
    return Page(
        title="pylog survey",
        lead=f"By listings alone, nothing was written: {counts}",
        notes=[*report.notes, *picture_notes()],
        sections=[
            Section(heading="What is due", blocks=figures(bytes_by_state(rows, _bytes_by_state))),
            Section(
                heading="Dirty ratios",
                blocks=figures(dirty_ratios(rows, lambda row: row["cleanable_ratio"])),
            ),
            table_section("Partitions", _TABLES[report.action], rows),
        ],
    )


def _bytes_by_state(row: Row) -> dict[str, int]:
    expired = row["removable_bytes"] or 0
    # What is clean or dirty may expire, too: that counts once.
    rest = (row["bytes"] or 0) - expired
    dirty = min(row["cleanable_bytes"] or 0, rest)
    clean = min(row["clean_bytes"] or 0, rest - dirty)
    return {"expired": expired, "dirty": dirty, "clean": clean, "kept": rest - dirty - clean}


def _view(call: Call, report: TransferReport) -> View:
    return View(
        lines=transfer_lines(report, is_csv=call.output is OutputFormat.CSV),
        csv=(report.action, report.details.schema.names),
        blocks=_blocks(call, report),
        status=report.exit_code,
    )


def _survey_view(call: Call, report: TransferReport) -> View:
    return replace(_view(call, report), page=lambda: survey_page(report))


def transfer_lines(report: TransferReport, *, is_csv: bool) -> Iterator[OutputLine]:
    """Yield results for a program: partitions' rows, then the run's.

    Args:
        is_csv: Whether they are for CSV, whose rows have all of a result.
    """
    if not is_csv:
        yield from lines_of("result", _rows(report.results))
    yield from lines_of(report.action, _rows(report.details))
    yield OutputLine("run", report.run_row())


def _blocks(call: Call, report: TransferReport) -> Iterator[Block]:
    details = report.details
    if not call.is_wide:
        is_unknown = pc.equal(details["reason"], Reason.CONFIG_UNKNOWN.value)
        details = details.filter(pc.invert(pc.fill_null(is_unknown, fill_value=False)))
    shown = details if call.is_wide else details.slice(0, SHOWN_ROWS)
    yield Table(kind=_TABLES[report.action], rows=shown.to_pylist(), total=details.num_rows)
    yield from closing_lines(call, report)


def closing_lines(call: Call, report: TransferReport) -> Iterator[Block]:
    """Yield the lines below the table: counts, ways out, notes."""
    what = "dry run, nothing was written" if report.dry_run else f"run {report.run_id}"
    seconds = report.summary.duration_ms / 1000
    counts = summary_line(
        report.results.select(["status", "bytes_before", "bytes_after"]).to_pylist()
    )
    yield f"{what}: {counts} in {seconds:.1f} s, {engine_text(report.engine, call)}"
    yield from ways_out(report.details["reason"].to_pylist())
    yield from report.notes


def _rows(table: pa.Table) -> Iterator[dict[str, Any]]:
    """Yield rows without ever holding all of them as objects."""
    for batch in table.to_batches(max_chunksize=_ROWS_AT_ONCE):
        yield from batch.to_pylist()


INGEST: Final = Work(
    name="ingest",
    prepare=_prepare_ingest,
    operate=_ingest,
    view=_view,
    tasks=Tasks.HERE_IF_FEW,
)
MATERIALIZE: Final = Work(
    name="materialize",
    prepare=_prepare_materialize,
    operate=_materialize,
    view=_view,
    tasks=Tasks.HERE_IF_FEW,
)
SURVEY: Final = Work(
    name="survey",
    prepare=lambda line: prepare_roots(line.with_switch(DRY_RUN)),
    operate=_survey,
    view=_survey_view,
    tasks=Tasks.HERE_IF_FEW,
)
