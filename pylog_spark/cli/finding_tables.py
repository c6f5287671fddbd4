"""Findings as tables for a person."""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from rich.console import Console
from rich.table import Table
from rich.text import Text

from pylog_spark.report import number_text, partition_name, root_column, write_table
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


def write_counts(
    console: Console,
    counts: Iterable[tuple[str, str, int]],
    findings: Iterable[Mapping[str, Any]],
) -> None:
    """Write counts of findings, and what to do about the first of each kind.

    That stands on lines of its own, none of them broken: commands are to be copied from there.

    Args:
        console: Where to.
        counts: Severity, code, how many.
        findings: Those that are known; not all of them, perhaps.
    """
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("severity")
    table.add_column("code")
    table.add_column("count", justify="right")
    for severity, code, count in counts:
        table.add_row(
            Text(severity, style=_SEVERITY_STYLES[severity]),
            Text(printable(code)),
            number_text(count),
        )
    write_table(console, table)
    fixes: dict[str, str] = {}
    for row in findings:
        fixes.setdefault(row["code"], row["fix"])
    if fixes:
        console.print("what to do (about the first of each kind):")
    for code, fix in fixes.items():
        console.print(Text(printable(f"  {code}: {fix}")), soft_wrap=True)
