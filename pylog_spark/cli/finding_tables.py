"""Findings as tables for a person."""

from collections.abc import Iterable
from pathlib import Path
from typing import Final

from rich.console import Console

from pylog_spark.report import number_column, partition_name
from pylog_spark.text_table import NOTHING, Column, Row, TextTable, write_lines, write_table

_SEVERITY_STYLES: Final = {
    "fatal": "bold red",
    "error": "red",
    "warn": "yellow",
    "harmless": "dim",
    "info": "",
}


def _severity_style(row: Row) -> str:
    return _SEVERITY_STYLES[row["severity"]]


_SEVERITY: Final = Column(
    heading="severity", cell=lambda row: row["severity"], style=_severity_style
)
# What, where, and what was found: rows of ``schemas.FINDING``, with their root.
FINDING_TABLE: Final = TextTable(
    columns=(
        _SEVERITY,
        Column(heading="code", cell=lambda row: row["code"]),
        Column(
            heading="partition",
            cell=lambda row: NOTHING if row["topic"] is None else partition_name(row),
            folds=True,
        ),
        Column(heading="file", cell=lambda row: Path(row["file"]).name, rank=1),
        number_column("position", "position", rank=3),
        number_column("offset", "offset", rank=2),
    ),
    note=lambda row: row["message"],
    note_heading="found",
)
COUNT_TABLE: Final = TextTable(
    columns=(
        _SEVERITY,
        Column(heading="code", cell=lambda row: row["code"]),
        number_column("count", "count", rank=0),
    )
)


def write_counts(
    console: Console,
    counts: Iterable[tuple[str, str, int]],
    findings: Iterable[Row],
    *,
    all_by: str = "",
    are_all: bool = False,
) -> None:
    """Write counts of findings, and commands for the first of each.

    With ``are_all`` there are commands for all findings.

    That stands on lines of its own, none of them broken: commands are to be copied from there.

    Args:
        console: Where to.
        counts: Severity, code, how many.
        findings: Those that are known; not all of them, perhaps.
        all_by: Option that shows what to do about all of each kind; empty for none.
        are_all: Whether it is shown.
    """
    names = ("severity", "code", "count")
    write_table(console, COUNT_TABLE, [dict(zip(names, of, strict=True)) for of in counts])
    fixes: dict[str, dict[str, None]] = {}
    for row in findings:
        fixes.setdefault(row["code"], {})[row["fix"]] = None
    if fixes:
        which = "" if are_all else " (about the first of each kind)"
        console.print(f"what to do{which}:")
    for code, of_kind in fixes.items():
        shown = list(of_kind) if are_all else list(of_kind)[:1]
        write_lines(console, (f"  {code}: {fix}" for fix in shown))
        if all_by and len(of_kind) > len(shown):
            write_lines(
                console, [f"    and {len(of_kind) - len(shown):,} more; {all_by} shows them"]
            )
