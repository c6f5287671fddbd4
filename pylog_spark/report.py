"""Rows as a person reads them, and as a program does.

Tables of runs are declared here; ``text_table`` fits them to a terminal. JSON is one object a line,
with every column.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from datetime import timedelta
from functools import lru_cache
from typing import Any, Final

import humanize

from pylog_spark.outcomes import ALLOWED_BY, Action, Status
from pylog_spark.text import printable, to_json
from pylog_spark.view import NOTHING, Column, Row, TableKind
from storage_core.errors import kafka_code_of
from storage_core.filenames import directory_state
from storage_core.formats.error_codes import kafka_error_name
from storage_core.store.generations import unpinned
from storage_core.store.open_store import split_location
from storage_core.wording import time_text

_STATUS_STYLES: Final = {
    Status.DONE.value: "green",
    Status.PLANNED.value: "cyan",
    Status.SKIPPED.value: "dim",
    Status.FAILED.value: "bold red",
}
# What keeps segments that are too old, or too many, from going.
_HELD_BACK: Final = frozenset({"FUTURE_TIMESTAMP", "HIGH_WATERMARK"})


def is_notable_retention(row: Row) -> bool:
    """Whether retention deletes something, or a deletion is held back. Such a row matters to a
    person."""
    return bool(row["deleted_segments"]) or row["blocked_by"] in _HELD_BACK


def _why_cut(row: Row) -> str:
    what = "whole segment: " if row["is_whole_segment"] else ""
    saved = f"; salvaged to {row['salvaged_to']}" if row["salvaged_to"] else ""
    return f"{what}{row['reason']}{saved}"


def _kept_for(row: Row) -> str:
    wait_ms = row["wait_ms"]
    if wait_ms is None:
        return NOTHING
    # A limit that stands for none, 2**63 - 1 ms, is longer than what Python counts.
    return humanize.naturaldelta(min(wait_ms / 1000, timedelta.max.total_seconds() // 2))


def summary_line(rows: Sequence[Row]) -> str:
    """Return a run's one-line summary: counts by status, bytes before and after."""
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


def growth_note(planned: Iterable[Row]) -> list[str]:
    """Return a line about compaction's growth, where its plans bound it. Growth means bytes that
    compaction may add."""
    growth = sum(max(0, row["bytes_after"] - row["bytes"]) for row in planned)
    if not growth:
        return []
    line = (
        f"at most the size before, and what rewritten batches may add: up to {size_text(growth)}; "
        "--dry-run=exact says what comes out"
    )
    return [line]


def refusal_text(rows: Iterable[Row]) -> str:
    """Return the count of refused deletions and their permissions, or nothing. The text ends a
    line."""
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
    """Return a row as one line of JSON, its kind first. An error that Kafka has, too, gets
    Kafka's number and name."""
    line = {"type": kind, **row}
    code = kafka_code_of(str(row.get("error_class")))
    if code is not None:
        line |= {"kafka_code": code, "kafka_error": kafka_error_name(code)}
    return to_json(line, separators=(",", ":"), default=str)


def error_text(row: Row) -> str:
    """Return a row's error with Kafka's name and number, if any."""
    text = row["error"] or ""
    code = kafka_code_of(str(row.get("error_class")))
    return text if code is None else f"{text} ({kafka_error_name(code)}, {code})"


def partition_name(row: Row) -> str:
    """Return a row's topic and partition, or its directory without a name. A transient directory
    beside a partition has its own name."""
    if row.get("topic") is None:
        return printable(str(row.get("directory") or row.get("root") or "?"))
    name = split_location(unpinned(row.get("directory") or ""))[1]
    if directory_state(name) is not None:
        return printable(name)
    return printable(f"{row['topic']}-{row['partition']}")


@lru_cache(maxsize=1024)  # a table has the same sizes again and again
def size_text(size_bytes: int | None) -> str:
    """Return a count of bytes in binary units, ``-`` for none."""
    if size_bytes is None:
        return NOTHING
    return (
        humanize.naturalsize(size_bytes, binary=True).replace(" Bytes", " B").replace(" Byte", " B")
    )


def number_text(number: int | None) -> str:
    """Return a count with its thousands apart, ``-`` for none."""
    return NOTHING if number is None else f"{number:,}"


def _change(before: int | None, after: int | None) -> str:
    if after is None or before == after:
        return number_text(before)
    return f"{number_text(before)} to {number_text(after)}"


# The name of a row's value, or what makes it of the row.
_Of = str | Callable[[Row], float | None]


def _value_of(of: _Of) -> Callable[[Row], Any]:
    return of if callable(of) else lambda row: row.get(of)


def text_column(
    heading: str, name: str, *, rank: int = 0, folds: bool = False, empty: str = ""
) -> Column:
    """Return a column of texts."""
    return Column(
        heading=heading, cell=lambda row: str(row.get(name) or empty), rank=rank, folds=folds
    )


def number_column(
    heading: str, of: _Of, *, rank: int, text: Callable[[Any], str] = number_text
) -> Column:
    """Return a column of numbers; they are counts or offsets unless said."""
    value = _value_of(of)

    def cell(row: Row) -> str:
        number = value(row)
        return NOTHING if number is None else text(number)

    return Column(heading=heading, cell=cell, value=value, rank=rank, is_number=True)


def size_column(heading: str, of: _Of, *, rank: int) -> Column:
    """Return a column of bytes."""
    return number_column(heading, of, rank=rank, text=size_text)


def time_column(heading: str, name: str, *, rank: int) -> Column:
    """Return a column of times, to the second."""

    def cell(row: Row) -> str:
        at = row.get(name)
        return NOTHING if at is None else time_text(at)[:19]

    return Column(heading=heading, cell=cell, value=_value_of(name), rank=rank)


def _status_style(row: Row) -> str:
    return _STATUS_STYLES.get(row["status"], "")


def _bytes_after(row: Row) -> int | None:
    """Return the size after a run; of planned compactions, the size before."""
    before: int | None = row["bytes_before"]
    after: int | None = row["bytes_after"]
    is_bound = row["status"] == Status.PLANNED and row["action"] == Action.COMPACT
    if is_bound and before is not None and after is not None:
        return min(before, after)
    return after


def _result_note(row: Row) -> str:
    """Return a row's error, else which records went though nothing replaced them."""
    if row["error"] or not row.get("records_without_key"):
        return row["error"] or ""
    verb = "would be dropped" if row["status"] == Status.PLANNED else "were dropped"
    return f"{row['records_without_key']} records without a key {verb}, as Kafka's cleaner does"


PARTITION: Final = Column(heading="partition", cell=partition_name, folds=True)
STATUS: Final = Column(heading="status", cell=lambda row: row["status"], style=_status_style)
REASON: Final = Column(
    heading="reason", cell=lambda row: row["reason"] or row.get("error_class") or "", rank=1
)

# What happened to each partition, before and after: rows of ``schemas.RESULT``.
RESULT_TABLE: Final = TableKind(
    columns=(
        PARTITION,
        text_column("action", "action", rank=6),
        STATUS,
        size_column("bytes", "bytes_before", rank=2),
        size_column("bytes after", _bytes_after, rank=3),
        number_column("records", "records_before", rank=7),
        number_column("records after", "records_after", rank=8),
        Column(
            heading="segments",
            cell=lambda row: _change(row["segments_before"], row["segments_after"]),
            value=_value_of("segments_before"),
            rank=5,
            is_number=True,
        ),
        number_column("ms", "duration_ms", rank=9),
        REASON,
    ),
    note=_result_note,
    note_heading="error",
    note_style=_status_style,
)
# What a dry run would read, and what it may become at most: rows of ``RunReport.planned_rows``.
PLAN_TABLE: Final = TableKind(
    title="would be compacted",
    columns=(
        PARTITION,
        number_column("dirty from", "first_dirty_offset", rank=6),
        number_column("up to", "first_uncleanable_offset", rank=7),
        size_column("clean bytes", "clean_bytes", rank=4),
        size_column("dirty bytes", "cleanable_bytes", rank=1),
        number_column("ratio", "cleanable_ratio", rank=2, text="{:.2f}".format),
        number_column("groups", "groups", rank=8),
        size_column("after, at most", lambda row: min(row["bytes"], row["bytes_after"]), rank=3),
        size_column("disk meanwhile", "peak_extra_bytes", rank=5),
    ),
)
# What recovery cuts: where, how much, what of it could still be read. Rows of ``schemas.CUT``.
CUT_TABLE: Final = TableKind(
    title="cut",
    columns=(
        PARTITION,
        STATUS,
        text_column("file", "file", rank=2),
        number_column("position", "position", rank=5),
        size_column("bytes", "size_bytes", rank=1),
        number_column("readable records", "records", rank=3),
        number_column("from offset", "first_offset", rank=4),
    ),
    note=_why_cut,
)
# What retention removes for which reason, and what stays why: rows of ``schemas.RETENTION``.
RETENTION_TABLE: Final = TableKind(
    title="retention",
    columns=(
        PARTITION,
        STATUS,
        number_column("segments", "deleted_segments", rank=3),
        size_column("bytes", "deleted_bytes", rank=1),
        number_column("by start", "by_log_start_segments", rank=8),
        number_column("by size", "by_size_segments", rank=7),
        number_column("by age", "by_time_segments", rank=6),
        Column(
            heading="log start",
            cell=lambda row: _change(row["old_log_start_offset"], row["log_start_offset"]),
            value=_value_of("log_start_offset"),
            rank=4,
            is_number=True,
        ),
        number_column("percent", "percent", rank=9),
        text_column("kept by", "blocked_by", rank=2),
        Column(heading="for still", cell=_kept_for, value=_value_of("wait_ms"), rank=5),
    ),
)
