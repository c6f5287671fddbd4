"""``pylog differences``: replicas; ``pylog copies``: topics and their copies elsewhere."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

from pylog_spark.cli.runner import Call, Tasks, Work, load_options, topic_notes
from pylog_spark.cluster.copies import CopyReport, list_copy_differences
from pylog_spark.cluster.differences import (
    DIFFERENCE_KEYS,
    ComparisonReport,
    DifferenceReport,
    list_differences,
)
from pylog_spark.cluster.differences_task import FINDING, UNREADABLE
from pylog_spark.discovery import resolve_roots
from pylog_spark.exit_code import ExitCode
from pylog_spark.options.declared import COPY, COPY_PREFIX, LEVEL, OFFSET_MAP, ROOTS, STATE
from pylog_spark.options.option import CommandLine
from pylog_spark.report import PARTITION, error_text, number_column, size_text, text_column
from pylog_spark.view import (
    NOTHING,
    Block,
    Column,
    OutputLine,
    Row,
    Sentence,
    Table,
    TableKind,
    View,
)
from storage_core.cluster.differences import DifferenceKind
from storage_core.wording import count_text, time_text

_NOTHING_TO_COMPARE: Final = Sentence("No partition is there to be compared.", "bold yellow")


def _offsets(row: Row, prefix: str = "") -> str:
    """Return a row's range of offsets as text for a person."""
    first, last = row[f"{prefix}first_offset"], row[f"{prefix}last_offset"]
    if first is None:
        return NOTHING
    return str(first) if last in {None, first} else f"{first}-{last}"


def _places_of_replicas(row: Row) -> str:
    """Return the places on both sides, and the row's message."""
    places = []
    for prefix in ("", "other_"):
        file, position = row[f"{prefix}file"], row[f"{prefix}position"]
        if file is not None:
            at = "" if position is None else f" at {position:,}"
            epoch, broker = row[f"{prefix}epoch"], row[f"{prefix}broker"]
            since = "" if epoch is None else f", epoch {epoch}"
            places.append(f"{'' if broker is None else f'broker {broker}: '}{file}{at}{since}")
    return "; ".join(text for text in (*places, row["message"]) if text)


def _brokers(row: Row) -> str:
    numbers = [row["broker"]]
    if row["kind"] not in {FINDING, UNREADABLE}:
        numbers.append(row["other_broker"])
    return ", ".join("?" if number is None else str(number) for number in numbers)


def _places_of_copies(row: Row) -> str:
    """Return the places on both sides, and the row's message."""
    places = []
    if row["copy_first_offset"] is not None:
        places.append(f"offsets {_offsets(row, 'copy_')} of the copy")
    for who, prefix in (("the original", "other_"), ("the copy", "")):
        file, position = row[f"{prefix}file"], row[f"{prefix}position"]
        if file is not None:
            places.append(f"{who}: {file}" + ("" if position is None else f" at {position:,}"))
    if row["kind"] == UNREADABLE:
        places.append(row["directory"])
    return "; ".join(text for text in (*places, row["message"]) if text)


_REPLICA_TABLE: Final = TableKind(
    columns=(
        PARTITION,
        Column(
            heading="what",
            cell=lambda row: str(row["code"] if row["kind"] == FINDING else row["kind"]),
        ),
        Column(heading="offsets", cell=_offsets),
        Column(heading="brokers", cell=_brokers),
    ),
    note=_places_of_replicas,
    note_heading="where",
)
_COPY_TABLE: Final = TableKind(
    columns=(
        PARTITION,
        text_column("what", "kind"),
        number_column("records", "records", rank=1),
        Column(heading="offsets", cell=_offsets),
        Column(
            heading="since",
            cell=lambda row: (
                NOTHING if row["timestamp_ms"] is None else time_text(row["timestamp_ms"])
            ),
            rank=2,
        ),
    ),
    note=_places_of_copies,
    note_heading="where",
)
_FAILED_COPIES: Final = TableKind(columns=(PARTITION,), note=error_text)
_FAILED_REPLICAS: Final = TableKind(
    columns=(PARTITION, number_column("read", "read_bytes", rank=1)), note=error_text
)


def prepare_brokers(line: CommandLine) -> Call:
    """Return the call of a look at log directories of several brokers; some may be unreadable."""
    options = load_options(line)
    roots = resolve_roots(line[ROOTS], role=options.role, must_open=False)
    return Call(line=line, options=options, roots=roots, notes=topic_notes(options, roots))


def _list_differences(call: Call, place: Any) -> DifferenceReport:
    level, state = call.line[LEVEL], call.line[STATE]
    return list_differences(place, call.locations, call.options, level=level, state=state)


def _list_copy_differences(call: Call, place: Any) -> CopyReport:
    return list_copy_differences(
        place,
        call.locations,
        call.line[COPY],
        call.options,
        prefix=call.line[COPY_PREFIX],
        offset_map=call.line[OFFSET_MAP],
        state=call.line[STATE],
    )


def _view_differences(call: Call, report: DifferenceReport) -> View:
    """Return the view of a comparison of replicas."""
    partitions = count_text(len(report.compared), "partition")
    differences = report.count_differences()
    if not len(report.compared):
        verdict = _NOTHING_TO_COMPARE
    elif differences:
        text = f"{count_text(differences, 'difference')} between the replicas of {partitions}."
        verdict = Sentence(text, "bold yellow")
    else:
        text = f"The replicas of {partitions} are alike, as far as their {report.level} tell."
        verdict = Sentence(text, "bold green")
    read_bytes, crossed_bytes = report.total("read_bytes"), report.total("crossed_bytes")
    undecided = report.total("undecided")
    crossed = size_text(crossed_bytes)
    sums = [f"{size_text(read_bytes)} of batches read, {crossed} of digests from task to task"]
    if undecided:
        sums.append(
            f"{count_text(undecided, 'batch', 'batches')} of compacted logs differ as a cleaner "
            "may have left them: --level bytes compares their records"
        )
    rows = report.rows.to_pylist()
    return _view(
        call,
        report,
        rows,
        {
            "level": report.level.value,
            "partitions": len(report.compared),
            "failed": report.failed,
            "differences": differences,
            "undecided": undecided,
            "untold": report.total("untold"),
            "read_bytes": read_bytes,
            "crossed_bytes": crossed_bytes,
            "belief": report.belief,
            "engine": report.engine,
        },
        above=[verdict, *(f"  {note}" for note in (report.belief, *report.notes))],
        kinds=(_REPLICA_TABLE, _FAILED_REPLICAS),
        sums=sums,
        is_alike=not rows,
    )


def _view_copies(call: Call, report: CopyReport) -> View:
    """Return the view of a comparison of topics with their copies."""
    partitions = count_text(len(report.compared), "partition")
    differences, untold = report.count_differences(), report.total("untold")
    behind = report.of_kind(DifferenceKind.BEHIND)
    behind_records = sum(behind["records"].to_pylist())
    if not len(report.compared):
        verdict = _NOTHING_TO_COMPARE
    elif differences or untold:
        text = f"{count_text(differences, 'difference')} between {partitions} and the copies."
        verdict = Sentence(text, "bold yellow")
    elif report.failed:
        verdict = Sentence("Not all partitions could be compared.", "bold yellow")
    elif len(behind):
        text = f"As far as they go, the copies of {partitions} are complete."
        verdict = Sentence(text, "bold green")
    else:
        verdict = Sentence(f"The copies of {partitions} are complete.", "bold green")
    above: list[Block] = [verdict]
    above += [f"  {note}" for note in (report.offset_map, *report.notes)]
    if len(behind):
        missing = count_text(behind_records, "record")
        where = count_text(len(behind), "partition")
        above.append(f"  not copied yet: the last {missing} of {where}")
    # Of these partitions no timestamps were compared.
    untimed = int(len(report.compared) - report.compared["message"].null_count)
    if untimed:
        where = count_text(untimed, "partition")
        above.append(f"  the copy's broker sets the timestamps of {where}: they were not compared")
    records, read_bytes = report.total("records"), report.total("read_bytes")
    return _view(
        call,
        report,
        report.rows.to_pylist(),
        {
            "partitions": len(report.compared),
            "failed": report.failed,
            "differences": differences,
            "untold": untold,
            "records": records,
            "behind_partitions": len(behind),
            "behind_records": behind_records,
            "untimed": untimed,
            "read_bytes": read_bytes,
            "offset_map": report.offset_map,
            "engine": report.engine,
        },
        above=above,
        kinds=(_COPY_TABLE, _FAILED_COPIES),
        sums=[f"{count_text(records, 'record')} alike, {size_text(read_bytes)} of batches read"],
        is_alike=not differences and not untold,
    )


def _view(
    call: Call,
    report: ComparisonReport,
    rows: Sequence[Row],
    summary: Mapping[str, Any],
    *,
    above: Iterable[Block],
    kinds: tuple[TableKind, TableKind],
    sums: Iterable[str],
    is_alike: bool,
) -> View:
    """Return the view of a comparison.

    Args:
        summary: What a program is told of all partitions together.
        above: What stands above the tables.
        kinds: Tables of rows, and of partitions that could not be compared.
        sums: What stands below the rows.
        is_alike: Whether nothing differs.
    """
    of_rows, of_failures = kinds
    failed = [row for row in report.compared.to_pylist() if row["error"] is not None]

    def lines() -> Iterator[OutputLine | str]:
        for row in (*rows, *failed):
            yield OutputLine("difference", {name: row[name] for name in DIFFERENCE_KEYS})
        yield OutputLine("compared", summary)
        yield from report.notes

    def blocks() -> Iterator[Block]:
        yield from above
        yield ""
        yield Table(kind=of_rows, rows=rows)
        yield from sums
        if summary["untold"]:
            yield f"{count_text(summary['untold'], 'more range')} differ, and are not listed"
        if failed:
            yield ""
            yield Sentence("could not be compared", "bold red")
            yield Table(kind=of_failures, rows=failed)

    is_unreadable = any(row["kind"] == UNREADABLE for row in rows)
    status = ExitCode.DONE if is_alike else ExitCode.FINDINGS
    if report.unread or report.failed or is_unreadable:
        status = ExitCode.PARTLY_FAILED
    return View(
        lines=lines(),
        csv=("difference", DIFFERENCE_KEYS),
        blocks=blocks(),
        notes=call.notes,
        status=status,
    )


DIFFERENCES: Final = Work(
    name="differences",
    prepare=prepare_brokers,
    operate=_list_differences,
    view=_view_differences,
    tasks=Tasks.HERE_IF_FEW,
)
COPIES: Final = Work(
    name="copies",
    prepare=prepare_brokers,
    operate=_list_copy_differences,
    view=_view_copies,
    tasks=Tasks.HERE_IF_FEW,
)
