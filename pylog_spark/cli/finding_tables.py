"""Findings as tables for a person."""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from rich.table import Table
from rich.text import Text

from pylog_spark.report import number_text, partition_name, root_column
from pylog_spark.text import printable

_SEVERITY_STYLES: Final = {
    "fatal": "bold red",
    "error": "red",
    "warn": "yellow",
    "harmless": "dim",
    "info": "",
}


def finding_table(rows: Sequence[Mapping[str, Any]]) -> Table:
    """Return findings as a table: what, where, and what was found.

    Args:
        rows: Of ``schemas.FINDING``, with their root.
    """
    table = Table(box=None, pad_edge=False, header_style="bold")
    root_cells = root_column(table, rows)
    for name in ("severity", "code", "partition", "file"):
        table.add_column(name, overflow="fold")
    for name in ("position", "offset"):
        table.add_column(name, justify="right")
    table.add_column("found", overflow="fold")
    for row in rows:
        table.add_row(
            *root_cells(row),
            Text(row["severity"], style=_SEVERITY_STYLES[row["severity"]]),
            Text(printable(row["code"])),
            Text("-" if row["topic"] is None else partition_name(row)),
            Text(printable(Path(row["file"]).name)),
            number_text(row["position"]),
            number_text(row["offset"]),
            Text(printable(row["message"])),
        )
    return table


def count_table(
    counts: Iterable[tuple[str, str, int]], findings: Iterable[Mapping[str, Any]]
) -> Table:
    """Return counts of findings as a table, with what to do about the first of each kind.

    Args:
        counts: Severity, code, how many.
        findings: Those that are known; not all of them, perhaps.
    """
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("severity")
    table.add_column("code")
    table.add_column("count", justify="right")
    table.add_column("what to do (about the first)", overflow="fold")
    fixes: dict[tuple[str, str], str] = {}
    for row in findings:
        fixes.setdefault((row["severity"], row["code"]), row["fix"])
    for severity, code, count in counts:
        table.add_row(
            Text(severity, style=_SEVERITY_STYLES[severity]),
            Text(printable(code)),
            number_text(count),
            Text(printable(fixes.get((severity, code), ""))),
        )
    return table
