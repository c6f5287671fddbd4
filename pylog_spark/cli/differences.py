"""The differences between replicas, for a person or a program."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from rich.console import Console

from pylog_spark.cli.chosen_topics import write_notes
from pylog_spark.cli.row_lines import RowLines
from pylog_spark.cli.runner import Call
from pylog_spark.exit_code import ExitCode
from pylog_spark.operations.differences import (
    DIFFERENCE_KEYS,
    ComparisonReport,
    DifferenceReport,
)
from pylog_spark.report import error_text, number_column, partition_name, size_text
from pylog_spark.tasks.differences import FINDING, UNREADABLE
from pylog_spark.text_table import Column, Row, TextTable, write_paragraphs, write_table
from storage_core.wording import count_text


def _what(row: Row) -> str:
    return str(row["code"] if row["kind"] == FINDING else row["kind"])


def offsets_text(row: Row, prefix: str = "") -> str:
    """Return a row's range of offsets as text for a person."""
    first, last = row[f"{prefix}first_offset"], row[f"{prefix}last_offset"]
    if first is None:
        return "-"
    return str(first) if last in {None, first} else f"{first}-{last}"


def _brokers(row: Row) -> str:
    numbers = [row["broker"]]
    if row["kind"] not in {FINDING, UNREADABLE}:
        numbers.append(row["other_broker"])
    return ", ".join("?" if number is None else str(number) for number in numbers)


def _places(row: Row) -> str:
    """Return the places on both sides, and the row's message."""
    sides = [
        _place(row, f"{prefix}broker", f"{prefix}file", f"{prefix}position", f"{prefix}epoch")
        for prefix in ("", "other_")
    ]
    said = [side for side in sides if side]
    if row["message"]:
        said.append(row["message"])
    return "; ".join(said)


def _place(row: Row, broker: str, file: str, position: str, epoch: str) -> str:
    if row[file] is None:
        return ""
    text = row[file]
    if row[position] is not None:
        text += f" at {row[position]:,}"
    if row[epoch] is not None:
        text += f", epoch {row[epoch]}"
    return text if row[broker] is None else f"broker {row[broker]}: {text}"


_TABLE: Final = TextTable(
    columns=(
        Column(heading="partition", cell=partition_name, folds=True),
        Column(heading="what", cell=_what),
        Column(heading="offsets", cell=offsets_text),
        Column(heading="brokers", cell=_brokers),
    ),
    note=_places,
    note_heading="where",
)
_FAILURES: Final = TextTable(
    columns=(
        Column(heading="partition", cell=partition_name, folds=True),
        number_column("read", "read_bytes", rank=1),
    ),
    note=error_text,
    note_heading="why",
)


def show_differences(call: Call[None], report: DifferenceReport) -> int:
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
    return ExitCode.FINDINGS if rows else ExitCode.DONE


def write_lines(
    call: Call[None], report: ComparisonReport, rows: Sequence[Row], summary: Mapping[str, Any]
) -> None:
    """Write a report for a program.

    Args:
        call: The call of the command.
        report: What was found.
        rows: Its rows.
        summary: What is to be said of all partitions together.
    """
    lines = RowLines(call.output, "difference", DIFFERENCE_KEYS)
    for row in [*rows, *failures_of(report)]:
        lines.add("difference", {name: row[name] for name in DIFFERENCE_KEYS})
    lines.add("compared", summary)
    write_notes(report.notes, is_for_person=False, is_wide=call.is_wide)


def failures_of(report: ComparisonReport) -> list[Row]:
    """Return the rows of partitions that could not be compared."""
    return [row for row in report.compared.to_pylist() if row["error"] is not None]


def is_incomplete(report: ComparisonReport, rows: Sequence[Row]) -> bool:
    """Whether something could not be read or compared."""
    is_unreadable = any(row["kind"] == UNREADABLE for row in rows)
    return bool(report.unread or report.failed or is_unreadable)


def _summary(report: DifferenceReport) -> dict[str, Any]:
    return {
        "level": report.level.value,
        "partitions": len(report.compared),
        "failed": report.failed,
        "differences": report.count_differences(),
        "undecided": report.total("undecided"),
        "untold": report.total("untold"),
        "read_bytes": report.total("read_bytes"),
        "crossed_bytes": report.total("crossed_bytes"),
        "belief": report.belief,
        "engine": report.engine,
    }


def _write(report: DifferenceReport, rows: list[Row], *, is_wide: bool) -> None:
    console = Console()
    verdict, style = _verdict(report)
    write_paragraphs(console, [verdict], is_wide=is_wide, style=style)
    notes = [f"  {note}" for note in (report.belief, *report.notes)]
    write_paragraphs(console, [*notes, ""], is_wide=is_wide)
    read = size_text(report.total("read_bytes"))
    crossed = size_text(report.total("crossed_bytes"))
    footer = [f"{read} of batches read, {crossed} of digests from task to task"]
    undecided, untold = report.total("undecided"), report.total("untold")
    if undecided:
        footer.append(
            f"{count_text(undecided, 'batch', 'batches')} of compacted logs differ as a cleaner "
            "may have left them: --level bytes compares their records"
        )
    if untold:
        footer.append(f"{count_text(untold, 'more range')} differ, and are not listed")
    write_table(console, _TABLE, rows, is_wide=is_wide, footer=footer)
    failed = failures_of(report)
    if failed:
        write_paragraphs(console, ["", "could not be compared"], is_wide=is_wide, style="bold red")
        write_table(console, _FAILURES, failed, is_wide=is_wide)


def _verdict(report: DifferenceReport) -> tuple[str, str]:
    """Return what a person has to know, and its style."""
    partitions = count_text(len(report.compared), "partition")
    differences = report.count_differences()
    if not len(report.compared):
        return "No partition is there to be compared.", "bold yellow"
    if differences:
        text = count_text(differences, "difference")
        return f"{text} between the replicas of {partitions}.", "bold yellow"
    return f"The replicas of {partitions} are alike, as far as their {_KNOWN[report.level]}.", (
        "bold green"
    )


_KNOWN: Final = {"offsets": "offsets tell", "headers": "headers tell", "bytes": "bytes tell"}
