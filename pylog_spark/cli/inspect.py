"""``pylog inspect``: log directories at a glance."""

from fnmatch import fnmatchcase
from functools import partial
from typing import Any, Final

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from pylog_spark.exit_code import ExitCode
from pylog_spark.options.arguments import said_as
from pylog_spark.options.choices import OutputFormat
from pylog_spark.options.declared import EXCLUDE, OUTPUT, ROOTS, SEGMENTS, TOPICS
from pylog_spark.options.option import CommandLine
from pylog_spark.report import json_line, number_text, partition_name, size_text, write_table
from pylog_spark.text import printable, time_text
from storage_core.catalog.log_directories import DirectoryKind, SubDirectory
from storage_core.clock import SystemClock
from storage_core.errors import PylogError
from storage_core.maintenance.inspection import (
    RootView,
    inspect_partition,
    inspect_root,
    inspect_segments,
)
from storage_core.roots.open_root import map_over_root

_NOTHING: Final = "-"
Row = dict[str, Any]


def inspect_roots(line: CommandLine) -> int:
    """Print every partition of the roots, and return the exit status.

    Raises:
        StorageError: A root cannot be listed.
    """
    now_ms = SystemClock().now_ms()
    include, exclude = line[TOPICS], line[EXCLUDE]
    is_whole = True
    for root in line[ROOTS]:
        with said_as("ROOT", root):
            view = inspect_root(root)
        entries = [entry for entry in view.entries if _is_asked_for(entry, include, exclude)]
        inspect = partial(inspect_partition, view, now_ms=now_ms)
        rows = map_over_root(view.files, inspect, entries)
        segments: list[list[Row]] = [[] for _ in rows]
        if line[SEGMENTS]:
            segments = map_over_root(view.files, _segments, entries)
        if line[OUTPUT] is OutputFormat.JSON:
            _write_json(view, rows, segments)
        else:
            _write_tables(view, rows, segments, are_topics_chosen=bool(include or exclude))
        is_whole &= not view.row["errors"] and all(row["error"] is None for row in rows)
    return ExitCode.DONE if is_whole else ExitCode.PARTLY_FAILED


def _is_asked_for(entry: SubDirectory, include: tuple[str, ...], exclude: tuple[str, ...]) -> bool:
    if entry.kind is DirectoryKind.CACHE:
        return False
    if entry.topic_partition is None:
        return not include
    topic = entry.topic_partition.topic
    asked = not include or any(fnmatchcase(topic, glob) for glob in include)
    return asked and not any(fnmatchcase(topic, glob) for glob in exclude)


def _segments(entry: SubDirectory) -> list[Row]:
    try:
        return list(inspect_segments(entry))
    except PylogError:
        return []  # the partition's own row carries the error


def _write_json(view: RootView, rows: list[Row], segments: list[list[Row]]) -> None:
    typer.echo(json_line("log_directory", view.row))
    for row, of_partition in zip(rows, segments, strict=True):
        typer.echo(json_line("partition", row))
        for segment in of_partition:
            typer.echo(json_line("segment", segment))


def _write_tables(
    view: RootView, rows: list[Row], segments: list[list[Row]], *, are_topics_chosen: bool
) -> None:
    console = Console()
    console.print(Text(_headline(view)), soft_wrap=True)
    for error in view.row["errors"]:
        console.print(Text(f"  {printable(error)}", style="bold red"), soft_wrap=True)
    if not rows:
        console.print("  no partition of these topics" if are_topics_chosen else "  no partitions")
        return
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("partition", overflow="fold")
    table.add_column("policy")
    for name in ("segments", "size", "indexes"):
        table.add_column(name, justify="right")
    for name in ("oldest", "newest"):
        table.add_column(name)
    for name in ("start", "end", "stable", "cleaned to", "dirty"):
        table.add_column(name, justify="right")
    table.add_column("remarks", overflow="fold")
    for row, of_partition in zip(rows, segments, strict=True):
        table.add_row(*_cells(row))
        for segment in of_partition:
            table.add_row(*_segment_cells(segment))
    total = sum(row["size_bytes"] or 0 for row in rows)
    write_table(console, table, footer=[f"{len(rows)} directories, {size_text(total)}"])


def _headline(view: RootView) -> str:
    row = view.row
    facts = [
        f"looks like {row['guessed_role']}",
        "cleanly shut down" if row["is_cleanly_shut_down"] else "no clean-shutdown marker",
    ]
    if row["cluster_id"] is not None:
        facts.append(f"cluster {row['cluster_id']}")
    if row["node_id"] is not None:
        facts.append(f"node {row['node_id']}")
    return printable(f"{row['root']}: {', '.join(facts)}")


def _cells(row: Row) -> list[Text]:
    ratio = row["dirty_ratio"]
    cells = [
        partition_name(row),
        row["cleanup_policy"] or _NOTHING,
        number_text(row["segments"]),
        size_text(row["size_bytes"]),
        size_text(row["index_bytes"]),
        _time(row["oldest_timestamp"]),
        _time(row["newest_timestamp"]),
        number_text(row["log_start_offset"]),
        number_text(row["log_end_offset"]),
        number_text(row["last_stable_offset"]),
        number_text(row["cleaner_checkpoint"]),
        _NOTHING if ratio is None else f"{ratio:.0%}",
    ]
    remarks = Text(printable(_remarks(row)), style="bold red" if row["error"] else "")
    return [*map(Text, cells), remarks]


def _segment_cells(segment: Row) -> list[Text]:
    indexes = [segment[name] for name in ("index_bytes", "time_index_bytes", "txn_index_bytes")]
    return [
        Text(f"  {segment['file']}", style="dim"),
        Text("active" if segment["is_active"] else ""),
        Text(""),
        Text(size_text(segment["size_bytes"])),
        Text(size_text(sum(size for size in indexes if size is not None))),
        Text(""),
        Text(_time(segment["newest_timestamp"])),
        *(Text("") for _ in range(6)),
    ]


def _remarks(row: Row) -> str:
    remarks = []
    if row["kind"] not in {DirectoryKind.PARTITION, DirectoryKind.METADATA}:
        remarks.append(f"{row['kind']} directory {row['directory']}")
    if row["leftover_files"]:
        remarks.append(f"{len(row['leftover_files'])} leftover files")
    if row["unknown_files"]:
        remarks.append("not Kafka's: " + ", ".join(row["unknown_files"]))
    if row["error"]:
        remarks.append(row["error"])
    return "; ".join(remarks)


def _time(epoch_ms: int | None) -> str:
    return _NOTHING if epoch_ms is None else time_text(epoch_ms)[:19]
