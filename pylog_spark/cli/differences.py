"""The differences between replicas, for a person or a program."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from pylog_spark.cli.runner import Call
from pylog_spark.exit_code import ExitCode
from pylog_spark.operations.differences import (
    DIFFERENCE_KEYS,
    ComparisonReport,
    DifferenceReport,
)
from pylog_spark.report import error_text, number_column, partition_name, size_text
from pylog_spark.tasks.differences import FINDING, UNREADABLE
from pylog_spark.view import (
    Block,
    Column,
    Line,
    Row,
    Sentence,
    Table,
    TableKind,
    View,
)
from storage_core.wording import count_text


def offsets_text(row: Row, prefix: str = "") -> str:
    """Return a row's range of offsets as text for a person."""
    first, last = row[f"{prefix}first_offset"], row[f"{prefix}last_offset"]
    if first is None:
        return "-"
    return str(first) if last in {None, first} else f"{first}-{last}"


def _places(row: Row) -> str:
    """Return the places on both sides, and the row's message."""
    sides = [
        _place(row, f"{prefix}broker", f"{prefix}file", f"{prefix}position", f"{prefix}epoch")
        for prefix in ("", "other_")
    ]
    return "; ".join(text for text in (*sides, row["message"]) if text)


def _place(row: Row, broker: str, file: str, position: str, epoch: str) -> str:
    if row[file] is None:
        return ""
    text = row[file]
    if row[position] is not None:
        text += f" at {row[position]:,}"
    if row[epoch] is not None:
        text += f", epoch {row[epoch]}"
    return text if row[broker] is None else f"broker {row[broker]}: {text}"


def _brokers(row: Row) -> str:
    numbers = [row["broker"]]
    if row["kind"] not in {FINDING, UNREADABLE}:
        numbers.append(row["other_broker"])
    return ", ".join("?" if number is None else str(number) for number in numbers)


_TABLE: Final = TableKind(
    columns=(
        Column(heading="partition", cell=partition_name, folds=True),
        Column(
            heading="what",
            cell=lambda row: str(row["code"] if row["kind"] == FINDING else row["kind"]),
        ),
        Column(heading="offsets", cell=offsets_text),
        Column(heading="brokers", cell=_brokers),
    ),
    note=_places,
    note_heading="where",
)
_FAILURES: Final = TableKind(
    columns=(
        Column(heading="partition", cell=partition_name, folds=True),
        number_column("read", "read_bytes", rank=1),
    ),
    note=error_text,
    note_heading="why",
)


def view_differences(call: Call[None], report: DifferenceReport) -> View:
    """Return the view of a comparison of replicas.

    Args:
        call: The call of the command.
        report: What was found.
    """
    rows = report.rows.to_pylist()
    summary = {
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
    status = ExitCode.FINDINGS if rows else ExitCode.DONE
    return View(
        lines=difference_lines(report, rows, summary),
        csv=("difference", DIFFERENCE_KEYS),
        blocks=_blocks(report, rows),
        notes=call.notes,
        status=ExitCode.PARTLY_FAILED if is_incomplete(report, rows) else status,
    )


def difference_lines(
    report: ComparisonReport, rows: Sequence[Row], summary: Mapping[str, Any]
) -> Iterator[Line | str]:
    """Yield a comparison for a program.

    Args:
        report: What was found.
        rows: Its rows.
        summary: What is to be said of all partitions together.
    """
    for row in [*rows, *failures_of(report)]:
        yield Line("difference", {name: row[name] for name in DIFFERENCE_KEYS})
    yield Line("compared", summary)
    yield from report.notes


def failure_blocks(report: ComparisonReport, kind: TableKind) -> Iterator[Block]:
    """Yield the partitions that could not be compared; nothing without any."""
    failed = failures_of(report)
    if failed:
        yield ""
        yield Sentence("could not be compared", "bold red")
        yield Table(kind=kind, rows=failed)


def failures_of(report: ComparisonReport) -> list[Row]:
    """Return the rows of partitions that could not be compared."""
    return [row for row in report.compared.to_pylist() if row["error"] is not None]


def is_incomplete(report: ComparisonReport, rows: Sequence[Row]) -> bool:
    """Whether something could not be read or compared."""
    is_unreadable = any(row["kind"] == UNREADABLE for row in rows)
    return bool(report.unread or report.failed or is_unreadable)


def _blocks(report: DifferenceReport, rows: list[Row]) -> Iterator[Block]:
    yield _verdict(report)
    yield from (f"  {note}" for note in (report.belief, *report.notes))
    yield ""
    yield Table(kind=_TABLE, rows=rows)
    read = size_text(report.total("read_bytes"))
    crossed = size_text(report.total("crossed_bytes"))
    yield f"{read} of batches read, {crossed} of digests from task to task"
    undecided, untold = report.total("undecided"), report.total("untold")
    if undecided:
        yield (
            f"{count_text(undecided, 'batch', 'batches')} of compacted logs differ as a cleaner "
            "may have left them: --level bytes compares their records"
        )
    if untold:
        yield f"{count_text(untold, 'more range')} differ, and are not listed"
    yield from failure_blocks(report, _FAILURES)


def _verdict(report: DifferenceReport) -> Sentence:
    """Return what a person has to know."""
    partitions = count_text(len(report.compared), "partition")
    differences = report.count_differences()
    if not len(report.compared):
        return Sentence("No partition is there to be compared.", "bold yellow")
    if differences:
        text = f"{count_text(differences, 'difference')} between the replicas of {partitions}."
        return Sentence(text, "bold yellow")
    basis = {"offsets": "offsets tell", "headers": "headers tell", "bytes": "bytes tell"}
    text = f"The replicas of {partitions} are alike, as far as their {basis[report.level]}."
    return Sentence(text, "bold green")
