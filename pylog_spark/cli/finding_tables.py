"""Findings as tables for a person."""

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final

from pylog_spark.report import number_column, partition_name
from pylog_spark.view import NOTHING, Block, Column, Row, Sentence, Table, TableKind, Verbatim

_SEVERITY_STYLES: Final = {
    "fatal": "bold red",
    "error": "red",
    "warn": "yellow",
    "harmless": "dim",
    "info": "",
}


_SEVERITY: Final = Column(
    heading="severity",
    cell=lambda row: row["severity"],
    style=lambda row: _SEVERITY_STYLES[row["severity"]],
)
# What, where, and what was found: rows of ``schemas.FINDING``, with their root.
FINDING_TABLE: Final = TableKind(
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
COUNT_TABLE: Final = TableKind(
    columns=(
        _SEVERITY,
        Column(heading="code", cell=lambda row: row["code"]),
        number_column("count", "count", rank=0),
    )
)


def count_blocks(
    counts: Iterable[tuple[str, str, int]],
    findings: Iterable[Row],
    *,
    all_by: str = "",
    are_all: bool = False,
) -> Iterator[Block]:
    """Yield counts of findings, and commands for the first of each.

    With ``are_all`` there are commands for all findings.

    Args:
        counts: Severity, code, how many.
        findings: Those that are known; not all of them, perhaps.
        all_by: Option that shows what to do about all of each kind; empty for none.
        are_all: Whether it is shown.
    """
    yield count_table(counts)
    fixes: dict[str, dict[str, None]] = {}
    for row in findings:
        fixes.setdefault(row["code"], {})[row["fix"]] = None
    if fixes:
        which = "" if are_all else " (about the first of each kind)"
        yield Sentence(f"what to do{which}:", has_marks=True)
    for code, of_kind in fixes.items():
        shown = list(of_kind) if are_all else list(of_kind)[:1]
        yield from (Verbatim(f"  {code}: {fix}") for fix in shown)
        if all_by and len(of_kind) > len(shown):
            yield Verbatim(f"    and {len(of_kind) - len(shown):,} more; {all_by} shows them")


def count_table(counts: Iterable[tuple[str, str, int]]) -> Table:
    """Return a table of findings by kind: severity, code, how many."""
    names = ("severity", "code", "count")
    return Table(kind=COUNT_TABLE, rows=[dict(zip(names, of, strict=True)) for of in counts])
