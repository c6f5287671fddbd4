"""Common parts of commands' pages: findings, pictures, earlier runs."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, replace
from typing import Final

from pylog_spark.cli.finding_tables import FINDING_TABLE, count_table
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
from pylog_spark.view import Block, Column, Figure, Row, Section, Table, TableKind
from storage_core.errors import ConfigError, PylogError
from storage_core.maintenance.verification.finding_kinds import KINDS

# So many runs are shown, the newest.
_LAST_RUNS: Final = 30
_NO_PICTURES: Final = (
    "There are no pictures on this page: what draws them is not installed. "
    "`pip install 'pylog-spark[report]'` brings it."
)
# A terminal says once of each kind what to do.
_PAGE_FINDING_TABLE: Final = replace(
    FINDING_TABLE,
    note=lambda row: f"{row['message']}; what to do: {row['fix']}",
)
_CODE_TABLE: Final = TableKind(
    columns=(
        Column(heading="code", cell=lambda row: row["code"]),
        Column(heading="means", cell=lambda row: KINDS[row["code"]].meaning, folds=True),
        Column(heading="severity", cell=lambda row: KINDS[row["code"]].severity.value),
        Column(heading="unless", cell=lambda row: KINDS[row["code"]].elsewhere, rank=1, folds=True),
    )
)


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
            blocks=[*figures(finding_counts(counts)), *([counted] if counts else [])],
        ),
        Section(heading=heading, blocks=[worst] if findings else []),
        Section(heading="What the codes mean", blocks=[meanings] if kinds else []),
    ]


def segment_section(look: Callable[[], Sequence[Row]], *, now_ms: int) -> Section:
    """Return the pictures of the biggest partitions' segments.

    What a run did stands, whatever became of its directories since: where they cannot be looked at
    any more, a sentence says so.

    Args:
        look: Returns rows of ``survey.observe_segments``.
        now_ms: The run's clock, epoch milliseconds.
    """
    blocks: list[Block]
    try:
        rows = look()
    except PylogError as error:
        blocks = [f"They cannot be looked at: {error}"]
    else:
        blocks = figures(segments_by_size(rows), segments_by_age(rows, now_ms=now_ms))
    return Section(heading="Segments of the biggest partitions", blocks=blocks)


def history_section(ledger: str | None) -> Section:
    """Return a section of a ledger's last runs; empty without any.

    One that lies in an object store is left to ``pylog runs``: how it is reached is a setting of
    Spark's, and a page should not wait for it.
    """
    from pylog_spark.cli.runs import RUN_TABLE  # noqa: PLC0415  # deltalake
    from pylog_spark.operations.past_runs import list_past_runs  # noqa: PLC0415  # deltalake

    blocks: list[Block] = []
    if ledger is not None and local_folder(ledger) is None:
        blocks = [f"`pylog runs --ledger {ledger}` lists the runs before this one."]
    elif ledger is not None:
        try:
            rows = [asdict(run) for run in list_past_runs(ledger, None, last=_LAST_RUNS)]
        except ConfigError:
            rows = []  # a dry run may name one that is not there yet
        except PylogError as error:
            return Section(heading="The last runs", blocks=[f"They cannot be read: {error}"])
        if rows:
            blocks = [*figures(past_runs(rows)), Table(kind=RUN_TABLE, rows=rows)]
    return Section(heading="The last runs", blocks=blocks)


def table_section(heading: str, kind: TableKind, rows: Iterable[Row]) -> Section:
    """Return a table below its heading; nothing without rows."""
    listed = list(rows)
    return Section(heading=heading, blocks=[Table(kind=kind, rows=listed)] if listed else [])
