"""Ingest, materialize and survey: into and out of managed roots, and what is due by listings."""

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

import pyarrow as pa
import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from pylog_spark.cli.runner import Call, Tasks, Work, load_options
from pylog_spark.discovery import resolve_roots
from pylog_spark.operations.ingest import check_places, ingest
from pylog_spark.operations.materialize import check_target, materialize
from pylog_spark.operations.survey import survey
from pylog_spark.operations.transfer import TransferReport
from pylog_spark.options.declared import (
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
from pylog_spark.report import (
    SHOWN_ROWS,
    json_line,
    number_text,
    partition_name,
    root_column,
    size_text,
    summary_line,
    write_table,
)
from pylog_spark.schemas import Action, Status
from pylog_spark.text import printable
from storage_core.maintenance.ingest.partition import IngestRules

_ROWS_AT_ONCE: Final = 1000
# By action: what a person is shown of each partition, heading by heading.
_COLUMNS: Final[Mapping[str, Mapping[str, tuple[str, Callable[[Any], str]]]]] = {
    Action.INGEST: {
        "bytes": ("bytes_before", size_text),
        "segments": ("segments_before", number_text),
        "new bytes": ("taken_bytes", size_text),
        "new": ("taken_segments", number_text),
        "left": ("left_segments", number_text),
    },
    Action.MATERIALIZE: {
        "generation": ("generation", number_text),
        "bytes": ("bytes", size_text),
        "segments": ("segments", number_text),
        "all files": ("all_bytes", size_text),
    },
    Action.SURVEY: {
        "bytes": ("bytes", size_text),
        "segments": ("segments", number_text),
        "removable": ("removable_bytes", size_text),
        "of them": ("removable_segments", number_text),
        "dirty": ("cleanable_bytes", size_text),
    },
}


def _prepare_ingest(line: CommandLine) -> Call[IngestRules]:
    rules = IngestRules(
        sync_has_stopped=line[SYNC_STOPPED], in_place=line[IN_PLACE], settle_ms=line[SETTLE]
    )
    options = load_options(line)
    roots = check_places(line[MIRROR], line[MANAGED], rules, dry_run=options.dry_run)
    return Call(line=line, options=options, subject=rules, roots=roots)


def _ingest(call: Call[IngestRules], place: Any) -> TransferReport:
    mirror = call.line[MIRROR]
    report = ingest(place, mirror, call.line[MANAGED], call.options, rules=call.subject)
    if report.results.num_rows:
        return report
    return report.with_empty_roots([mirror], are_topics_chosen=call.are_topics_chosen)


def _prepare_materialize(line: CommandLine) -> Call[None]:
    options = load_options(line)
    root = check_target(line[MANAGED], line[TARGET])
    return Call(line=line, options=options, subject=None, roots=[root])


def _materialize(call: Call[None], place: Any) -> TransferReport:
    managed = call.line[MANAGED]
    report = materialize(place, managed, call.line[TARGET], call.options)
    if report.results.num_rows:
        return report
    return report.with_empty_roots([managed], are_topics_chosen=call.are_topics_chosen)


def _prepare_survey(line: CommandLine) -> Call[list[str]]:
    options = load_options(line.with_switch(DRY_RUN))
    roots = resolve_roots(line[ROOTS], said=options.role)
    locations = [root.location for root in roots]
    return Call(line=line, options=options, subject=locations, roots=roots)


def _survey(call: Call[list[str]], place: Any) -> TransferReport:
    report = survey(place, call.line[ROOTS], call.options)
    return report.with_empty_roots(call.subject, are_topics_chosen=call.are_topics_chosen)


def _show(call: Call[Any], report: TransferReport) -> int:
    write_report(report, as_json=call.as_json)
    return report.exit_code


def write_report(
    report: TransferReport, *, as_json: bool, write: Callable[[str], object] = typer.echo
) -> None:
    """Print a report.

    Args:
        report: What was done.
        as_json: One JSON object a line in place of a table.
        write: Takes a line of JSON.
    """
    if not as_json:
        _write_table(report)
        return
    for row in _rows(report.results):
        write(json_line("result", row))
    for row in _rows(report.details):
        write(json_line(report.action, row))
    write(json_line("run", report.run_row()))


def _write_table(report: TransferReport) -> None:
    details = report.details.slice(0, SHOWN_ROWS).to_pylist()
    columns = _COLUMNS[report.action]
    table = Table(box=None, pad_edge=False, header_style="bold")
    root_cells = root_column(table, details)
    table.add_column("partition", overflow="fold")
    table.add_column("status")
    for name in columns:
        table.add_column(name, justify="right")
    table.add_column("why", overflow="fold")
    for row in details:
        cells = [text(row[column]) for column, text in columns.values()]
        place = (*root_cells(row), Text(partition_name(row)))
        table.add_row(*place, Text(row["status"]), *cells, Text(_why(row)))
    more = report.details.num_rows - len(details)
    what = "dry run, nothing was written" if report.dry_run else f"run {report.run_id}"
    seconds = report.summary.duration_ms / 1000
    counts = summary_line(
        report.results.select(["status", "bytes_before", "bytes_after"]).to_pylist()
    )
    footer = [f"and {more:,} more; --output json shows all"] if more else []
    footer += [f"{what}: {counts} in {seconds:.1f} s, engine {report.engine}", *report.notes]
    write_table(Console(), table, footer=footer)


def _why(row: Mapping[str, Any]) -> str:
    parts = [row["reason"], row["error"]]
    if row["status"] != Status.SKIPPED and row.get("left_because"):
        parts.append(f"the next segment stays: {row['left_because']}")
    return printable(": ".join(str(part) for part in parts if part))


def _rows(table: pa.Table) -> Iterator[dict[str, Any]]:
    """Yield rows without ever holding all of them as objects."""
    for batch in table.to_batches(max_chunksize=_ROWS_AT_ONCE):
        yield from batch.to_pylist()


INGEST: Final = Work(
    name="ingest",
    prepare=_prepare_ingest,
    operate=_ingest,
    show=_show,
    tasks=Tasks.HERE_IF_DRY,
)
MATERIALIZE: Final = Work(
    name="materialize",
    prepare=_prepare_materialize,
    operate=_materialize,
    show=_show,
    tasks=Tasks.HERE_IF_DRY,
)
SURVEY: Final = Work(
    name="survey",
    prepare=_prepare_survey,
    operate=_survey,
    show=_show,
    tasks=Tasks.HERE_IF_FEW,
)
