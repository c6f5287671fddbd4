"""Rows as a person reads them, and as a program does.

A table is cut to the terminal it is shown in; JSON is one object a line, with every column. Text
that came from file names or error messages cannot steer the terminal: control characters are
escaped.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final

import humanize
from rich.console import Console
from rich.table import Table
from rich.text import Text

from pylog_spark.schemas import ALLOWED_BY, Status
from pylog_spark.text import printable, to_json
from storage_core.errors import kafka_code_of
from storage_core.filenames import directory_state
from storage_core.formats.error_codes import kafka_error_name
from storage_core.store.generations import unpinned
from storage_core.store.open_store import split_location

Row = Mapping[str, Any]

_STATUS_STYLES: Final = {
    Status.DONE.value: "green",
    Status.PLANNED.value: "cyan",
    Status.SKIPPED.value: "dim",
    Status.FAILED.value: "bold red",
}
_NOTHING: Final = "-"
# What keeps segments that are too old, or too many, from going.
_HELD_BACK: Final = frozenset({"FUTURE_TIMESTAMP", "HIGH_WATERMARK"})
# What a person is shown. A table of a hundred thousand rows takes minutes to lay out, and nobody
# reads it; as JSON every row is there.
SHOWN_ROWS: Final = 1000


def result_table(rows: Sequence[Row]) -> Table:
    """Return result rows as a table: what happened to each partition, before and after.

    Args:
        rows: Of ``schemas.RESULT``.
    """
    table = Table(box=None, pad_edge=False, header_style="bold")
    root_cells = root_column(table, rows)
    table.add_column("partition", overflow="fold")
    table.add_column("action")
    table.add_column("status")
    for name in ("bytes before", "after", "records before", "after", "segments", "ms"):
        table.add_column(name, justify="right")
    table.add_column("why", overflow="fold")
    for row in shown_rows(rows, table):
        table.add_row(
            *root_cells(row),
            Text(partition_name(row)),
            Text(printable(row["action"])),
            Text(row["status"], style=_STATUS_STYLES.get(row["status"], "")),
            size_text(row["bytes_before"]),
            size_text(row["bytes_after"]),
            number_text(row["records_before"]),
            number_text(row["records_after"]),
            _change(row["segments_before"], row["segments_after"]),
            number_text(row["duration_ms"]),
            Text(_why(row)),
        )
    return table


def plan_table(rows: Sequence[Row]) -> Table:
    """Return the plans of a dry run as a table: what would be read, and what it may become at most.

    Args:
        rows: Of ``RunReport.planned_rows``.
    """
    table = Table(box=None, pad_edge=False, header_style="bold")
    root_cells = root_column(table, rows)
    table.add_column("partition", overflow="fold")
    names = ("dirty from", "up to", "clean bytes", "dirty bytes", "ratio", "groups")
    for name in (*names, "after, at most", "disk meanwhile"):
        table.add_column(name, justify="right")
    for row in shown_rows(rows, table):
        table.add_row(
            *root_cells(row),
            Text(partition_name(row)),
            number_text(row["first_dirty_offset"]),
            number_text(row["first_uncleanable_offset"]),
            size_text(row["clean_bytes"]),
            size_text(row["cleanable_bytes"]),
            f"{row['cleanable_ratio']:.2f}",
            number_text(row["groups"]),
            size_text(row["bytes_after"]),
            size_text(row["peak_extra_bytes"]),
        )
    return table


def cut_table(rows: Sequence[Row]) -> Table:
    """Return what recovery cuts as a table: where, how much, what of it could still be read.

    Args:
        rows: Of ``schemas.CUT``.
    """
    table = Table(box=None, pad_edge=False, header_style="bold", title="cut", title_justify="left")
    root_cells = root_column(table, rows)
    table.add_column("partition", overflow="fold")
    table.add_column("status")
    table.add_column("file", overflow="fold")
    for name in ("from position", "bytes", "readable records", "from offset"):
        table.add_column(name, justify="right")
    table.add_column("why", overflow="fold")
    table.add_column("salvaged to", overflow="fold")
    for row in shown_rows(rows, table):
        what = "whole segment: " if row["is_whole_segment"] else ""
        table.add_row(
            *root_cells(row),
            Text(partition_name(row)),
            Text(row["status"]),
            Text(printable(row["file"])),
            number_text(row["position"]),
            number_text(row["size_bytes"]),
            number_text(row["records"]),
            number_text(row["first_offset"]),
            Text(printable(what + row["reason"])),
            Text(printable(row["salvaged_to"] or _NOTHING)),
        )
    return table


def is_notable_retention(row: Row) -> bool:
    """Whether a person wants to hear of it: something goes, or what should go is held back."""
    return bool(row["deleted_segments"]) or row["blocked_by"] in _HELD_BACK


def retention_table(rows: Sequence[Row]) -> Table:
    """Return what retention removes as a table: how much for which reason, and what stays why.

    Args:
        rows: Of ``schemas.RETENTION``.
    """
    table = Table(
        box=None, pad_edge=False, header_style="bold", title="retention", title_justify="left"
    )
    root_cells = root_column(table, rows)
    table.add_column("partition", overflow="fold")
    table.add_column("status")
    for name in ("segments", "bytes", "by start", "by size", "by age", "log start", "percent"):
        table.add_column(name, justify="right")
    table.add_column("kept by", overflow="fold")
    for row in shown_rows(rows, table):
        table.add_row(
            *root_cells(row),
            Text(partition_name(row)),
            Text(row["status"]),
            number_text(row["deleted_segments"]),
            size_text(row["deleted_bytes"]),
            number_text(row["by_log_start_segments"]),
            number_text(row["by_size_segments"]),
            number_text(row["by_time_segments"]),
            _change(row["old_log_start_offset"], row["log_start_offset"]),
            number_text(row["percent"]),
            Text(printable(_kept_by(row))),
        )
    return table


def shown_rows(rows: Sequence[Row], table: Table) -> Sequence[Row]:
    """Return the rows that a table shows; of the others, which stand last, it says how many."""
    more = len(rows) - SHOWN_ROWS
    if more > 0:
        table.caption = f"and {more:,} more; --output json shows all of them"
        table.caption_justify = "left"
    return rows[:SHOWN_ROWS]


def _kept_by(row: Row) -> str:
    wait_ms = row["wait_ms"]
    wait = "" if wait_ms is None else f", for {humanize.naturaldelta(wait_ms / 1000)} more"
    return f"{row['blocked_by']}{wait}"


def summary_line(rows: Sequence[Row]) -> str:
    """Return in one line what a run did: counts by status, and bytes of the partitions done."""
    counts = Counter(str(row["status"]) for row in rows)
    parts = [f"{counts[status]} {status}" for status in Status if counts[status]]
    text = ", ".join(parts) if parts else "no partitions"
    done = [
        row
        for row in rows
        if row["status"] == Status.DONE
        and row["bytes_before"] is not None
        and row["bytes_after"] is not None
    ]
    before = sum(row["bytes_before"] for row in done)
    after = sum(row["bytes_after"] for row in done)
    if not before:
        return text
    return f"{text}; {size_text(before)} became {size_text(after)} ({after / before - 1:+.1%})"


def refusal_text(rows: Iterable[Row]) -> str:
    """Return how many deletions were refused and what allows them, to end a line; empty if none."""
    parts = [
        f"; {count} refused to delete: {reason}, {ALLOWED_BY[reason]} allows it"
        for reason, count in refused_deletions(rows).items()
    ]
    return "".join(parts)


def refused_deletions(rows: Iterable[Row]) -> dict[str, int]:
    """Return how many deletions guards refused, by reason."""
    reasons = Counter(row.get("reason") for row in rows)
    return {reason: reasons[reason] for reason in ALLOWED_BY if reasons[reason]}


def json_line(kind: str, row: Row) -> str:
    """Return a row as one JSON object on one line, its kind first.

    To an error that Kafka has, too, Kafka's number and name of it are added.
    """
    told = {"type": kind, **row}
    code = kafka_code_of(str(row.get("error_class")))
    if code is not None:
        told |= {"kafka_code": code, "kafka_error": kafka_error_name(code)}
    return to_json(told, separators=(",", ":"), default=str)


def error_text(row: Row) -> str:
    """Return what went wrong in a row, with Kafka's name and number of it if it has them."""
    text = row["error"] or ""
    code = kafka_code_of(str(row.get("error_class")))
    return text if code is None else f"{text} ({kafka_error_name(code)}, {code})"


def partition_name(row: Row) -> str:
    """Return topic and partition of a row, or the directory where the name gives none.

    Of what is on its way in or out beside a partition it is the directory's own name.
    """
    if row.get("topic") is None:
        return printable(str(row.get("directory") or row.get("root") or "?"))
    name = split_location(unpinned(row.get("directory") or ""))[1]
    if directory_state(name) is not None:
        return printable(name)
    return printable(f"{row['topic']}-{row['partition']}")


def root_column(table: Table, rows: Iterable[Row]) -> Callable[[Row], tuple[Text, ...]]:
    """Add a column of roots to a table, if its rows are of several; return what fills it.

    Args:
        table: As yet without the columns that stand behind it.
        rows: All that the table is made of, with their root.
    """
    if not has_several_roots(rows):
        return lambda _: ()
    table.add_column("root", overflow="fold")
    return lambda row: (Text(printable(str(row["root"]))),)


def has_several_roots(rows: Iterable[Row]) -> bool:
    """Whether rows are of several roots, so that each has to say which is its own."""
    return len({row.get("root") for row in rows}) > 1


def size_text(size_bytes: int | None) -> str:
    """Return a count of bytes in binary units, ``-`` for none."""
    return _NOTHING if size_bytes is None else humanize.naturalsize(size_bytes, binary=True)


def number_text(number: int | None) -> str:
    """Return a count with its thousands apart, ``-`` for none."""
    return _NOTHING if number is None else f"{number:,}"


def write_table(console: Console, table: Table, *, footer: Iterable[str] = ()) -> None:
    """Write a table and lines below it; where no terminal is, as wide as the table needs."""
    if not console.is_terminal:
        console.width = 10_000
    console.print(table)
    for line in footer:
        console.print(Text(printable(line)))


def _change(before: int | None, after: int | None) -> str:
    if after is None or before == after:
        return number_text(before)
    return f"{number_text(before)} to {number_text(after)}"


def _why(row: Row) -> str:
    parts = [row.get("reason"), row.get("error")]
    return printable(": ".join(str(part) for part in parts if part))
