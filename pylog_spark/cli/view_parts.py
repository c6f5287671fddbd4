"""Common parts of views: findings, pictures, earlier runs."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

from pylog_spark.cli.runner import Looked, PageLook
from pylog_spark.ledger.tables import local_folder
from pylog_spark.pictures import (
    Picture,
    can_draw,
    draw,
    finding_counts,
    past_runs,
    segments_by_age,
    segments_by_size,
)
from pylog_spark.report import number_column, partition_name, text_column
from pylog_spark.view import (
    NOTHING,
    Block,
    Column,
    Figure,
    Row,
    Section,
    Sentence,
    Table,
    TableKind,
    Verbatim,
)
from storage_core.errors import PylogError
from storage_core.maintenance.verification.finding_kinds import KINDS

_NO_PICTURES: Final = (
    "There are no pictures on this page: what draws them is not installed. "
    "`pip install 'pylog-spark[report]'` brings it."
)
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
        text_column("code", "code"),
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
        text_column("code", "code"),
        number_column("count", "count", rank=0),
    )
)
# A terminal says once of each kind what to do.
_PAGE_FINDING_TABLE: Final = replace(
    FINDING_TABLE,
    note=lambda row: f"{row['message']}; what to do: {row['fix']}",
)
_CODE_TABLE: Final = TableKind(
    columns=(
        text_column("code", "code"),
        Column(heading="means", cell=lambda row: KINDS[row["code"]].meaning, folds=True),
        Column(heading="severity", cell=lambda row: KINDS[row["code"]].severity.value),
        Column(heading="unless", cell=lambda row: KINDS[row["code"]].elsewhere, rank=1, folds=True),
    )
)


def count_blocks(
    counts: Iterable[tuple[str, str, int]],
    findings: Iterable[Row],
    *,
    all_by: str = "",
    are_all: bool = False,
) -> Iterator[Block]:
    """Yield counts of findings, and commands for the first of each. With ``are_all`` there are
    commands for all findings.

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


def picture_notes() -> list[str]:
    """Return a note if a page has no pictures."""
    return [] if can_draw() else [_NO_PICTURES]


def figures(*pictures: Picture | None) -> list[Block]:
    """Return the pictures of those for which there is something to show.

    One that cannot be drawn leaves a sentence: no page is lost for it, nor what a run has done.
    """
    blocks: list[Block] = []
    for picture in pictures:
        if picture is None or not can_draw():
            continue
        try:
            blocks.append(Figure(svg=draw(picture), caption=picture.caption))
        except ValueError as error:
            blocks.append(f"A picture could not be drawn: {error}")
    return blocks


def finding_sections(
    counts: Sequence[tuple[str, str, int]], findings: Sequence[Row]
) -> list[Section]:
    """Return findings by kind and one by one, with their codes' meanings.

    Args:
        counts: Severity, code, how many; worst first.
        findings: Rows of ``schemas.FINDING``, worst first; not all of them, perhaps.
    """
    kinds = [
        {"code": code} for code in dict.fromkeys(code for _, code, _ in counts if code in KINDS)
    ]
    links = {"code": lambda row: row["code"] if row["code"] in KINDS else None}
    counted = replace(count_table(counts), links=links)
    worst = Table(kind=_PAGE_FINDING_TABLE, rows=findings, links=links)
    total = sum(count for _, _, count in counts)
    some = f"The worst {len(findings):,} of {total:,} findings"
    heading = some if len(findings) < total else "Findings"
    meanings = Table(kind=_CODE_TABLE, rows=kinds, anchor=lambda row: row["code"])
    return [
        Section(
            heading="Findings by kind",
            blocks=[*figures(finding_counts(counts)), counted],
        ),
        Section(heading=heading, blocks=[worst]),
        Section(heading="What the codes mean", blocks=[meanings]),
    ]


def segment_section(segments: Looked, *, now_ms: int) -> Section:
    """Return the pictures of the biggest partitions' segments.

    Args:
        segments: Rows of ``survey.observe_segments``.
    """
    blocks: list[Block]
    if isinstance(segments, PylogError):
        blocks = [f"They cannot be looked at: {segments}"]
    else:
        blocks = figures(segments_by_size(segments), segments_by_age(segments, now_ms=now_ms))
    return Section(heading="Segments of the biggest partitions", blocks=blocks)


def history_section(look: PageLook) -> Section:
    """Return a section of a ledger's last runs; empty without any."""
    from pylog_spark.cli.runs import RUN_TABLE  # noqa: PLC0415  # deltalake

    blocks: list[Block]
    if look.ledger is not None and local_folder(look.ledger) is None:
        blocks = [f"`pylog runs --ledger {look.ledger}` lists the runs before this one."]
    elif isinstance(look.past_runs, PylogError):
        blocks = [f"They cannot be read: {look.past_runs}"]
    else:
        blocks = [*figures(past_runs(look.past_runs)), Table(kind=RUN_TABLE, rows=look.past_runs)]
    return Section(heading="The last runs", blocks=blocks)


def table_section(heading: str, kind: TableKind, rows: Iterable[Row]) -> Section:
    """Return a table below its heading."""
    return Section(heading=heading, blocks=[Table(kind=kind, rows=list(rows))])
