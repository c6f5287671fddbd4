"""Differences between topics and their copies, for people or programs."""

from collections.abc import Iterator
from typing import Final

from pylog_spark.cli.differences import (
    difference_lines,
    failure_blocks,
    is_incomplete,
    offsets_text,
)
from pylog_spark.cli.runner import Call
from pylog_spark.exit_code import ExitCode
from pylog_spark.operations.copies import CopyReport
from pylog_spark.operations.differences import DIFFERENCE_KEYS
from pylog_spark.report import error_text, number_column, partition_name, size_text
from pylog_spark.tasks.differences import UNREADABLE
from pylog_spark.view import NOTHING, Block, Column, Row, Sentence, Table, TableKind, View
from storage_core.maintenance.replication.difference import DifferenceKind
from storage_core.wording import count_text, time_text


def _places(row: Row) -> str:
    """Return the places on both sides, and the row's message."""
    parts = []
    if row["copy_first_offset"] is not None:
        parts.append(f"offsets {offsets_text(row, 'copy_')} of the copy")
    for who, prefix in (("the original", "other_"), ("the copy", "")):
        file, position = row[f"{prefix}file"], row[f"{prefix}position"]
        if file is not None:
            parts.append(f"{who}: {file}" + ("" if position is None else f" at {position:,}"))
    if row["kind"] == UNREADABLE:
        parts.append(row["directory"])
    if row["message"]:
        parts.append(row["message"])
    return "; ".join(parts)


_TABLE: Final = TableKind(
    columns=(
        Column(heading="partition", cell=partition_name, folds=True),
        Column(heading="what", cell=lambda row: str(row["kind"])),
        number_column("records", "records", rank=1),
        Column(heading="offsets", cell=offsets_text),
        Column(
            heading="since",
            cell=lambda row: (
                NOTHING if row["timestamp_ms"] is None else time_text(row["timestamp_ms"])
            ),
            rank=2,
        ),
    ),
    note=_places,
    note_heading="where",
)
_FAILURES: Final = TableKind(
    columns=(Column(heading="partition", cell=partition_name, folds=True),),
    note=error_text,
    note_heading="why",
)


def view_copies(call: Call[None], report: CopyReport) -> View:
    """Return the view of a comparison with copies.

    Args:
        call: The call of the command.
        report: What was found.
    """
    rows = report.rows.to_pylist()
    behind = report.of_kind(DifferenceKind.BEHIND)
    summary = {
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
    is_alike = not report.count_differences() and not report.total("untold")
    status = ExitCode.DONE if is_alike else ExitCode.FINDINGS
    return View(
        lines=difference_lines(report, rows, summary),
        csv=("difference", DIFFERENCE_KEYS),
        blocks=_blocks(report, rows),
        notes=call.notes,
        status=ExitCode.PARTLY_FAILED if is_incomplete(report, rows) else status,
    )


def _count_untimed(report: CopyReport) -> int:
    """Return of how many partitions no timestamps were compared."""
    return int(len(report.compared) - report.compared["message"].null_count)


def _blocks(report: CopyReport, rows: list[Row]) -> Iterator[Block]:
    yield _verdict(report)
    yield from (f"  {note}" for note in (report.offset_map, *report.notes))
    behind = report.of_kind(DifferenceKind.BEHIND)
    if len(behind):
        records = count_text(sum(behind["records"].to_pylist()), "record")
        where = count_text(len(behind), "partition")
        yield f"  not copied yet: the last {records} of {where}"
    untimed = _count_untimed(report)
    if untimed:
        where = count_text(untimed, "partition")
        yield f"  the copy's broker sets the timestamps of {where}: they were not compared"
    yield ""
    yield Table(kind=_TABLE, rows=rows)
    read = size_text(report.total("read_bytes"))
    yield f"{count_text(report.total('records'), 'record')} alike, {read} of batches read"
    untold = report.total("untold")
    if untold:
        yield f"{count_text(untold, 'more range')} differ, and are not listed"
    yield from failure_blocks(report, _FAILURES)


def _verdict(report: CopyReport) -> Sentence:
    """Return what a person has to know."""
    partitions = count_text(len(report.compared), "partition")
    differences = report.count_differences()
    if not len(report.compared):
        return Sentence("No partition is there to be compared.", "bold yellow")
    if differences or report.total("untold"):
        text = f"{count_text(differences, 'difference')} between {partitions} and the copies."
        return Sentence(text, "bold yellow")
    if report.failed:
        return Sentence("Not all partitions could be compared.", "bold yellow")
    if len(report.of_kind(DifferenceKind.BEHIND)):
        text = f"As far as they go, the copies of {partitions} are complete."
        return Sentence(text, "bold green")
    return Sentence(f"The copies of {partitions} are complete.", "bold green")
