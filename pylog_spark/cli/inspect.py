"""``pylog inspect``: log directories at a glance."""

import shutil
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import Any, Final

from pylog_spark.cli.runner import Looked, check_file_place, check_topics, show, topics_of
from pylog_spark.cli.tiers import tell_requests, with_tiers
from pylog_spark.exit_code import ExitCode, is_failed_look
from pylog_spark.options.arguments import said_as
from pylog_spark.options.choices import InspectOrder, OutputFormat
from pylog_spark.options.declared import (
    BY,
    EXCLUDE,
    OUTPUT,
    PER_TOPIC,
    REPORT,
    ROOTS,
    SEGMENTS,
    TOPICS,
    WIDE,
)
from pylog_spark.options.option import CommandLine
from pylog_spark.report import (
    number_column,
    number_text,
    partition_name,
    size_column,
    size_text,
    text_column,
    time_column,
)
from pylog_spark.view import (
    NOTHING,
    Block,
    Column,
    OutputLine,
    Page,
    Row,
    Section,
    Table,
    TableKind,
    Verbatim,
    View,
    lines_of,
)
from storage_core.catalog.log_directories import DirectoryKind, SubDirectory
from storage_core.catalog.roles import Role, local_path
from storage_core.catalog.topic_filter import TopicFilter
from storage_core.clock import SystemClock
from storage_core.errors import PylogError
from storage_core.maintenance.plain_inspection import inspect_partitions
from storage_core.reading.inspection import (
    PARTITION_COLUMNS,
    SEGMENT_COLUMNS,
    RootView,
    group_by_broker,
    inspect_root,
    inspect_segments,
)
from storage_core.redaction import plain_places
from storage_core.roots.open_root import map_over_root
from storage_core.store.open_objects import MANAGED_PREFIX
from storage_core.store.tier_archive import names_archive
from storage_core.wording import count_text


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """One root as it was looked at."""

    view: RootView
    rows: list[Row]  # of its partitions, in the order that was asked for
    segments: list[list[Row]]  # of each partition; none where nobody asked


def inspect_roots(line: CommandLine) -> int:
    """Print every partition of the roots, and return the exit status."""
    line = with_tiers(line)
    now_ms = SystemClock().now_ms()
    page = line[REPORT]
    if page is not None:
        _check_page(page, line[ROOTS])
    # What was looked at so far, what is said besides, and what only the page shows.
    looks: list[Look] = []
    notes: list[str] = []
    segments: Looked = ()

    def look_at_roots() -> Iterator[Look]:
        nonlocal segments
        views = []
        for root in line[ROOTS]:
            with said_as("ROOT", root):
                views.append(inspect_root(root))
        topics = TopicFilter(topics=line[TOPICS], exclude=line[EXCLUDE])
        names = topics_of(entry.name for view in views for entry in view.entries)
        notes.extend(check_topics(topics.topics, topics.exclude, names, line[ROOTS]))
        for view in chain.from_iterable(group_by_broker(views)):
            looks.append(_look(line, view, topics, now_ms))
            yield looks[-1]
        if page is not None:
            segments = _biggest_segments(looks, now_ms)

    def status() -> int:
        is_whole = not any(look.view.row["errors"] for look in looks)
        is_whole &= not any(is_failed_look(row["error_class"]) for row in _rows(looks))
        return ExitCode.DONE if is_whole else ExitCode.PARTLY_FAILED

    # As CSV it has the rows that were asked for most closely.
    csv: tuple[str, Sequence[str]] = ("partition", PARTITION_COLUMNS)
    if line[PER_TOPIC]:
        csv = ("topic", ("topic", *_total([])))
    elif line[SEGMENTS]:
        csv = ("segment", (*_PLACE, *SEGMENT_COLUMNS))
    view = View(
        lines=_lines(line, look_at_roots()),
        csv=csv,
        blocks=_blocks(line, look_at_roots()),
        notes=notes,
        page=lambda: _page(looks, segments, now_ms=now_ms),
        status=status,
    )
    ended = show(view, line)
    tell_requests(line[ROOTS])
    return ended


def _check_page(page: Path, roots: Sequence[str]) -> None:
    """Refuse a page in an unwritable place, or among somebody's files."""
    from pylog_spark.run.guards import check_outside  # noqa: PLC0415  # whoever wants no page

    check_file_place(REPORT.label, page)
    places = (local_path(root.removeprefix(MANAGED_PREFIX)) for root in roots)
    check_outside(REPORT.label, page, log_directories=filter(None, places))


def _page(looks: Sequence[Look], segments: Looked, *, now_ms: int) -> Page:
    """Return the page of some roots."""
    # Whoever wants no page needs none of these.
    from pylog_spark.cli.view_parts import (  # noqa: PLC0415
        figures,
        picture_notes,
        segment_section,
        table_section,
    )
    from pylog_spark.pictures import dirty_ratios  # noqa: PLC0415

    rows = _rows(looks)
    total, *others = footer(looks, rows)
    errors = [error for look in looks for error in look.view.row["errors"]]
    return Page(
        title="pylog inspect",
        lead=total,
        notes=[*(headline(look.view) for look in looks), *others, *errors, *picture_notes()],
        sections=[
            segment_section(segments, now_ms=now_ms),
            Section(
                heading="Dirty ratios",
                blocks=figures(dirty_ratios(rows, lambda row: row["dirty_ratio"])),
            ),
            table_section("Topics", TOPIC_TABLE, totals_by_topic(rows, InspectOrder.SIZE)),
            table_section("Partitions", PARTITION_TABLE, rows),
        ],
    )


def _biggest_segments(looks: Sequence[Look], now_ms: int) -> Looked:
    from pylog_spark.operations.free_space.biggest_segments import segments_of  # noqa: PLC0415  # for a page
    from pylog_spark.pictures import MOST_ROWS  # noqa: PLC0415  # for a page

    sized = [
        (row["size_bytes"] or 0, number, row["directory"])
        for number, look in enumerate(looks)
        for row in look.rows
    ]
    biggest = sorted(sized, key=lambda one: -one[0])[:MOST_ROWS]
    segments: list[Row] = []
    for number, look in enumerate(looks):
        names = [name for _, of, name in biggest if of == number]
        config_of = look.view.catalog.config_for
        try:
            segments += segments_of(look.view, names, config_of, now_ms=now_ms)
        except PylogError as error:
            return error
    return segments


def _look(line: CommandLine, view: RootView, topics: TopicFilter, now_ms: int) -> Look:
    entries = [
        entry
        for entry in view.entries
        if entry.kind is not DirectoryKind.CACHE
        and topics.admits(None if entry.topic_partition is None else entry.topic_partition.topic)
    ]
    rows = inspect_partitions(view, entries, now_ms=now_ms)
    segments: list[list[Row]] = [[] for _ in rows]
    if line[SEGMENTS]:
        segments = map_over_root(view.files, _segments, entries)
    order = _order(rows, line[BY])
    return Look(view=view, rows=[rows[n] for n in order], segments=[segments[n] for n in order])


def _rows(looks: Iterable[Look]) -> list[Row]:
    return [row for look in looks for row in look.rows]


def _order(rows: Sequence[Row], by: InspectOrder | None) -> list[int]:
    """Return the row numbers in an order; rows without value last."""
    if by is None:
        return list(range(len(rows)))
    keys = _SORTED_BY[by]

    def key(number: int) -> tuple[tuple[bool, float], ...]:
        values = [rows[number][name] for name in keys]
        sign = 1 if by is InspectOrder.AGE else -1
        return tuple((value is None, sign * (value or 0)) for value in values)

    return sorted(range(len(rows)), key=key)


def totals_by_topic(rows: Sequence[Row], by: InspectOrder | None) -> list[Row]:
    """Return a row a topic: its partitions added up, over all roots."""
    of_topic: dict[str, list[Row]] = {}
    for row in rows:
        if row["topic"] is not None:
            of_topic.setdefault(row["topic"], []).append(row)
    totals = [{"topic": topic, **_total(own)} for topic, own in sorted(of_topic.items())]
    return [totals[number] for number in _order(totals, by)]


def _total(rows: Sequence[Row]) -> Row:
    """Return the sums of partitions' rows, and their widest time span. ``dirty_ratio`` is that of
    the dirtiest partition: Kafka cleans by it, partition by partition."""

    def of(name: str) -> list[Any]:
        return [row[name] for row in rows if row[name] is not None]

    return {
        "partitions": len(rows),
        "failed": sum(is_failed_look(row["error_class"]) for row in rows),
        **{name: sum(of(name)) for name in ("segments", "size_bytes", "index_bytes")},
        "oldest_timestamp": min(of("oldest_timestamp"), default=None),
        "newest_timestamp": max(of("newest_timestamp"), default=None),
        "dirty_bytes": sum(of("dirty_bytes")) if of("dirty_bytes") else None,
        "dirty_ratio": max(of("dirty_ratio"), default=None),
        "recovery_bytes": sum(of("recovery_bytes")) if of("recovery_bytes") else None,
    }


def _segments(entry: SubDirectory) -> list[Row]:
    try:
        return list(inspect_segments(entry))
    except PylogError:
        return []  # the partition's own row carries the error


def _lines(line: CommandLine, looks: Iterable[Look]) -> Iterator[OutputLine]:
    rows: list[Row] = []
    for look in looks:
        rows += look.rows
        yield OutputLine("log_directory", look.view.row)
        for row, segments in zip(look.rows, look.segments, strict=True):
            yield OutputLine("partition", row)
            # In JSON a segment follows its partition.
            is_alone = line[OUTPUT] is OutputFormat.CSV
            place = {name: row[name] for name in _PLACE} if is_alone else {}
            nothing = dict.fromkeys(SEGMENT_COLUMNS) if is_alone else {}
            whole = ({**nothing, **place, **segment} for segment in segments)
            yield from lines_of("segment", whole)
    if line[PER_TOPIC]:
        yield from lines_of("topic", totals_by_topic(rows, line[BY]))


def _blocks(line: CommandLine, looks: Iterable[Look]) -> Iterator[Block]:
    looks = list(looks)
    for look in looks:
        yield headline(look.view)
        yield from (Verbatim(f"  {error}", "bold red") for error in look.view.row["errors"])
        if not look.rows:
            are_topics_chosen = bool(line[TOPICS] or line[EXCLUDE])
            yield "  no partition of these topics" if are_topics_chosen else "  no partitions"
    rows = _rows(looks)
    if not rows:
        return
    by = line[BY]
    is_summed = _is_summed(line, rows)
    totals = totals_by_topic(rows, by) if line[PER_TOPIC] or is_summed else []
    if totals:
        yield _table(TOPIC_TABLE, totals, by)
    if is_summed:
        # What no total has, and what failed.
        rest = [row for row in rows if row["topic"] is None or row["error"]]
        yield _table(PARTITION_TABLE, rest, by)
        yield f"{len(rows):,} rows are summed by topic; --wide shows each"
    elif not totals:
        order = _order(rows, by) if len(looks) > 1 else range(len(rows))
        segments = [of_partition for look in looks for of_partition in look.segments]
        shown = [one for n in order for one in (rows[n], *_segment_rows(rows[n], segments[n]))]
        yield _table(PARTITION_TABLE, shown, by)
    yield from footer(looks, rows)


def _is_summed(line: CommandLine, rows: Sequence[Row]) -> bool:
    """Whether rows are summed because a terminal has less lines, and nobody wants each."""
    if line[WIDE] or line[SEGMENTS] or line[PER_TOPIC] or not _is_terminal():
        return False
    return len(rows) > shutil.get_terminal_size().lines


def _is_terminal() -> bool:
    with suppress(ValueError):  # it is closed
        return sys.stdout.isatty()
    return False


def _table(kind: TableKind, rows: Sequence[Row], by: InspectOrder | None) -> Table:
    """Return a table; the column by which rows are sorted always stays."""
    columns = (
        replace(one, rank=0) if by is not None and one.heading == _HEADING_OF[by] else one
        for one in kind.columns
    )
    return Table(kind=replace(kind, columns=tuple(columns)), rows=rows)


def _segment_rows(row: Row, segments: Iterable[Row]) -> Iterator[Row]:
    """Yield the segments of a partition as rows of its table."""
    nothing = dict.fromkeys(row)
    for segment in segments:
        indexes = [segment[name] for name in ("index_bytes", "time_index_bytes", "txn_index_bytes")]
        index_bytes = sum(size for size in indexes if size is not None)
        yield {**nothing, **segment, "root": row["root"], "index_bytes": index_bytes}


def footer(looks: Sequence[Look], rows: Sequence[Row]) -> list[str]:
    """Return all partitions' sums as a sentence, and notes on roots."""
    total = _total(rows)
    text = f"{count_text(len(rows), 'directory', 'directories')}, {size_text(total['size_bytes'])}"
    text += f" and {size_text(total['index_bytes'])} of indexes"
    if total["dirty_bytes"]:
        text += f", {size_text(total['dirty_bytes'])} dirty"
    lines = [text]
    for look in looks:
        lines += filter(None, [look.view.metadata_note])
        recovery = [row for row in look.rows if row["recovery_bytes"] is not None]
        if look.view.recovery_points is not None and recovery:
            size = size_text(sum(row["recovery_bytes"] for row in recovery))
            segments = sum(row["recovery_segments"] for row in recovery)
            root = look.view.row["root"]
            lines.append(
                f"{root if len(looks) > 1 else 'it'} was not cleanly shut down: the numbers are "
                "those of the files as they lie; a recovery, which a broker's start makes, would "
                f"read {size} in {count_text(segments, 'segment')} and may cut what is torn there: "
                "`pylog doctor` says where the logs would end"
            )
    return lines


def headline(view: RootView) -> str:
    """Return in a sentence what a root is."""
    row = view.row
    is_tier = names_archive(row["root"])
    facts = ["a tier" if is_tier else f"looks like {row['guessed_role']}"]
    # No broker opens and closes a managed root or a tier: it has no marker, and misses none.
    if Role(row["guessed_role"]).facts.has_marker and not is_tier:
        is_closed = row["is_cleanly_shut_down"]
        facts.append("cleanly shut down" if is_closed else "no clean-shutdown marker")
    if row["cluster_id"] is not None:
        facts.append(f"cluster {row['cluster_id']}")
    if row["node_id"] is not None:
        facts.append(f"node {row['node_id']}")
    return f"{plain_places(row['root'])}: {', '.join(facts)}"


def _remarks(row: Row) -> str:
    if row.get("file") is not None:
        return row.get("error") or ""  # of a tier, why it does not count
    remarks = []
    if row["kind"] not in {DirectoryKind.PARTITION, DirectoryKind.METADATA}:
        remarks.append(f"{row['kind']} directory {row['directory']}")
    if row["local_log_start_offset"] is not None:
        remarks.append(f"local from {number_text(row['local_log_start_offset'])}, else in the tier")
        remarks += filter(None, [row["tier_problem"]])
    if row["tier_end_offset"] not in {None, row["local_log_start_offset"]}:
        remarks.append(f"uploaded below {number_text(row['tier_end_offset'])}")
    if row["leftover_files"]:
        remarks.append(f"{len(row['leftover_files'])} leftover files")
    if row["unknown_files"]:
        remarks.append("not Kafka's: " + ", ".join(row["unknown_files"]))
    if row["error"]:
        remarks.append(row["error"])
    return "; ".join(remarks)


def _policy(row: Row) -> str:
    if row.get("file") is not None:
        return "active" if row["is_active"] else ""
    return row["cleanup_policy"] or NOTHING


# What names the partition of a segment that stands alone.
_PLACE: Final = ("root", "topic", "partition")
_SORTED_BY: Final = {
    InspectOrder.SIZE: ("size_bytes",),
    InspectOrder.DIRTY: ("dirty_ratio", "dirty_bytes"),
    InspectOrder.AGE: ("oldest_timestamp",),
}
_HEADING_OF: Final = {
    InspectOrder.SIZE: "size",
    InspectOrder.DIRTY: "dirty",
    InspectOrder.AGE: "oldest",
}
# Of a partition and of a topic.
_COMMON_COLUMNS: Final = (
    number_column("segments", "segments", rank=4),
    size_column("size", "size_bytes", rank=1),
    number_column("dirty", "dirty_ratio", rank=2, text="{:.0%}".format),
    time_column("oldest", "oldest_timestamp", rank=6),
    time_column("newest", "newest_timestamp", rank=5),
    size_column("indexes", "index_bytes", rank=9),
    size_column("dirty bytes", "dirty_bytes", rank=12),
    size_column("to recover", "recovery_bytes", rank=13),
)
PARTITION_TABLE: Final = TableKind(
    columns=(
        Column(
            heading="partition",
            cell=lambda row: partition_name(row) if row.get("file") is None else f"  {row['file']}",
            folds=True,
        ),
        Column(heading="policy", cell=_policy, rank=3),
        *_COMMON_COLUMNS,
        number_column("start", "log_start_offset", rank=8),
        number_column("end", "log_end_offset", rank=7),
        number_column("stable", "last_stable_offset", rank=10),
        number_column("cleaned to", "cleaner_checkpoint", rank=11),
    ),
    note=_remarks,
    note_heading="remarks",
    note_style=lambda row: "bold red" if is_failed_look(row.get("error_class")) else "",
)
TOPIC_TABLE: Final = TableKind(
    columns=(
        text_column("topic", "topic", folds=True),
        number_column("partitions", "partitions", rank=3),
        *_COMMON_COLUMNS,
        number_column("failed", "failed", rank=7),
    )
)
