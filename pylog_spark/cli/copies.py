"""Differences between topics and their copies, for people or programs."""

from typing import Any, Final

from rich.console import Console

from pylog_spark.cli.differences import failures_of, is_incomplete, offsets_text, write_lines
from pylog_spark.cli.runner import Call
from pylog_spark.exit_code import ExitCode
from pylog_spark.operations.copies import CopyReport
from pylog_spark.report import error_text, number_column, partition_name, size_text
from pylog_spark.tasks.differences import UNREADABLE
from pylog_spark.text_table import Column, Row, TextTable, write_paragraphs, write_table
from storage_core.maintenance.replication.difference import DifferenceKind
from storage_core.wording import count_text, time_text


def _since(row: Row) -> str:
    return "-" if row["timestamp_ms"] is None else time_text(row["timestamp_ms"])


def _places(row: Row) -> str:
    """Return the places on both sides, and the row's message."""
    said = []
    if row["copy_first_offset"] is not None:
        said.append(f"offsets {offsets_text(row, 'copy_')} of the copy")
    for who, prefix in (("the original", "other_"), ("the copy", "")):
        file, position = row[f"{prefix}file"], row[f"{prefix}position"]
        if file is not None:
            said.append(f"{who}: {file}" + ("" if position is None else f" at {position:,}"))
    if row["kind"] == UNREADABLE:
        said.append(row["directory"])
    if row["message"]:
        said.append(row["message"])
    return "; ".join(said)


_TABLE: Final = TextTable(
    columns=(
        Column(heading="partition", cell=partition_name, folds=True),
        Column(heading="what", cell=lambda row: str(row["kind"])),
        number_column("records", "records", rank=1),
        Column(heading="offsets", cell=offsets_text),
        Column(heading="since", cell=_since, rank=2),
    ),
    note=_places,
    note_heading="where",
)
_FAILURES: Final = TextTable(
    columns=(Column(heading="partition", cell=partition_name, folds=True),),
    note=error_text,
    note_heading="why",
)


def show_copies(call: Call[None], report: CopyReport) -> int:
    """Print a report, and return the exit status.

    Args:
        call: The call of the command.
        report: What was found.
    """
    rows = report.rows.to_pylist()
    if call.is_for_person:
        _write(report, rows, is_wide=call.is_wide)
    else:
        write_lines(call, report, rows, _summary(report))
    if is_incomplete(report, rows):
        return ExitCode.PARTLY_FAILED
    is_alike = not report.count_differences() and not report.total("untold")
    return ExitCode.DONE if is_alike else ExitCode.FINDINGS


def _summary(report: CopyReport) -> dict[str, Any]:
    behind = report.of_kind(DifferenceKind.BEHIND)
    return {
        "partitions": len(report.compared),
        "failed": report.failed,
        "differences": report.count_differences(),
        "untold": report.total("untold"),
        "records": report.total("records"),
        "behind_partitions": len(behind),
        "behind_records": sum(behind["records"].to_pylist()),
        "untimed": _count_untimed(report),
        "read_bytes": report.total("read_bytes"),
        "offset_map": report.offset_map,
        "engine": report.engine,
    }


def _count_untimed(report: CopyReport) -> int:
    """Return of how many partitions no timestamps were compared."""
    return int(len(report.compared) - report.compared["message"].null_count)


def _write(report: CopyReport, rows: list[Row], *, is_wide: bool) -> None:
    console = Console()
    verdict, style = _verdict(report)
    write_paragraphs(console, [verdict], is_wide=is_wide, style=style)
    notes = [f"  {note}" for note in (report.offset_map, *report.notes)]
    behind = report.of_kind(DifferenceKind.BEHIND)
    if len(behind):
        records = count_text(sum(behind["records"].to_pylist()), "record")
        where = count_text(len(behind), "partition")
        notes.append(f"  not copied yet: the last {records} of {where}")
    untimed = _count_untimed(report)
    if untimed:
        where = count_text(untimed, "partition")
        notes.append(f"  the copy's broker sets the timestamps of {where}: they were not compared")
    write_paragraphs(console, [*notes, ""], is_wide=is_wide)
    read = size_text(report.total("read_bytes"))
    footer = [f"{count_text(report.total('records'), 'record')} alike, {read} of batches read"]
    untold = report.total("untold")
    if untold:
        footer.append(f"{count_text(untold, 'more range')} differ, and are not listed")
    write_table(console, _TABLE, rows, is_wide=is_wide, footer=footer)
    failed = failures_of(report)
    if failed:
        write_paragraphs(console, ["", "could not be compared"], is_wide=is_wide, style="bold red")
        write_table(console, _FAILURES, failed, is_wide=is_wide)


def _verdict(report: CopyReport) -> tuple[str, str]:
    """Return what a person has to know, and its style."""
    partitions = count_text(len(report.compared), "partition")
    differences = report.count_differences()
    if not len(report.compared):
        return "No partition is there to be compared.", "bold yellow"
    if differences or report.total("untold"):
        text = count_text(differences, "difference")
        return f"{text} between {partitions} and the copies.", "bold yellow"
    if report.failed:
        return "Not all partitions could be compared.", "bold yellow"
    if len(report.of_kind(DifferenceKind.BEHIND)):
        return f"As far as they go, the copies of {partitions} are complete.", "bold green"
    return f"The copies of {partitions} are complete.", "bold green"
