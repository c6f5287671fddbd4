"""``pylog heal``: what other replicas have in the place of damage."""

from collections.abc import Iterator
from typing import Any, Final

from pylog_spark.cli.jobs import look_for_page, role_notes, view_run
from pylog_spark.cli.runner import Call, Tasks, Work, load_options, topic_notes
from pylog_spark.cluster.heal import HealReport, plan_heal
from pylog_spark.discovery import resolve_roots
from pylog_spark.options.declared import DONORS, QUORUM, ROOTS
from pylog_spark.options.option import CommandLine
from pylog_spark.report import PARTITION, error_text, number_column, size_column, text_column
from pylog_spark.run.guards import check_of_brokers
from pylog_spark.schemas import DAMAGE
from pylog_spark.view import (
    NOTHING,
    Block,
    Column,
    OutputLine,
    Row,
    Sentence,
    Table,
    TableKind,
    View,
    lines_of,
)
from storage_core.cluster.healing import DamageState
from storage_core.wording import count_text


def _offsets(row: Row) -> str:
    """Return the offsets that are missing, as text for a person."""
    first, end = row["first_offset"], row["end_offset"]
    if first is None:
        return NOTHING
    return f"from {first}" if end is None else f"{first}-{end - 1}" if end > first else "none"


def _remark(row: Row) -> str:
    """Return where the bytes come from, or why the damage stays."""
    if row["error"]:
        return error_text(row)
    return row["reason"] or f"from {', '.join(row['donors'])}"


_DAMAGE_TABLE: Final = TableKind(
    title="damage",
    columns=(
        PARTITION,
        text_column("what", "state", empty=NOTHING),
        Column(heading="offsets", cell=_offsets),
        text_column("file", "file", rank=2, empty=NOTHING),
        number_column("position", "position", rank=4),
        size_column("bytes", "size_bytes", rank=3),
        size_column("filled", "filled_bytes", rank=1),
    ),
    note=_remark,
)


def _prepare(line: CommandLine) -> Call:
    options = load_options(line)
    roots = resolve_roots(line[ROOTS], role=options.role)
    check_of_brokers(roots, "copies elsewhere are made anew, not healed")
    return Call(line=line, options=options, roots=roots, notes=topic_notes(options, roots))


def _heal(call: Call, place: Any) -> HealReport:
    report = plan_heal(
        place,
        call.line[ROOTS],
        call.options,
        donors=call.line[DONORS],
        quorum=call.line[QUORUM],
    )
    unsaid = role_notes(call.roots, "`pylog apply` will refuse it")
    return report.with_notes([*call.notes, *unsaid])


def _view(call: Call, report: HealReport) -> View:
    rows = report.damage.to_pylist()
    run = view_run(call, report)

    def lines() -> Iterator[OutputLine | str]:
        yield from lines_of("damage", rows)
        yield from run.lines

    def blocks() -> Iterator[Block]:
        if rows:
            filled = sum(row["state"] == DamageState.FILLED for row in rows)
            text = f"{count_text(len(rows), 'damaged place')}, of which {filled} can be healed."
            yield Sentence(text, "bold yellow")
            yield Table(kind=_DAMAGE_TABLE, rows=rows)
            yield ""
        yield from run.blocks

    return View(
        lines=lines(),
        csv=("damage", DAMAGE.names),
        blocks=blocks(),
        page=run.page,
        status=run.status,
    )


HEAL: Final = Work(
    name="heal",
    prepare=_prepare,
    operate=_heal,
    look_for_page=look_for_page,
    view=_view,
    tasks=Tasks.HERE_IF_FEW,
)
