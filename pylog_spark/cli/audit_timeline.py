"""``pylog audit --timeline``: leaders, ISR and ELR of partitions over time."""

from typing import Any, Final

from rich.console import Console

from pylog_spark.cli.chosen_topics import write_notes
from pylog_spark.cli.row_lines import RowLines
from pylog_spark.cli.runner import Call
from pylog_spark.operations.timeline import TIMELINE_KEYS, Timeline
from pylog_spark.report import number_column, partition_name
from pylog_spark.text_table import Column, Row, TextTable, write_paragraphs, write_table
from storage_core.wording import time_text


def _members(name: str) -> Any:
    return lambda row: ", ".join(map(str, row[name])) or "-"


def _time(row: Row) -> str:
    if row["offset"] is None:
        return "before the snapshot"
    return time_text(row["timestamp_ms"])


def _leader(row: Row) -> str:
    return "nobody" if row["leader"] < 0 else str(row["leader"])


_TABLE: Final = TextTable(
    columns=(
        Column(heading="partition", cell=partition_name, folds=True),
        Column(heading="time", cell=_time),
        number_column("offset", "offset", rank=2),
        Column(
            heading="leader",
            cell=_leader,
            style=lambda row: "bold red" if row["leader"] < 0 else "",
        ),
        number_column("epoch", "leader_epoch", rank=1),
        Column(heading="ISR", cell=_members("isr")),
        Column(heading="ELR", cell=_members("elr")),
    ),
)


def show_timeline(call: Call[None], timeline: Timeline) -> None:
    """Write the versions of partitions, for a person or a program."""
    if call.is_for_person:
        console = Console()
        notes = [f"  {note}" for note in (timeline.belief, *timeline.notes)]
        write_paragraphs(console, [*notes, ""], is_wide=call.is_wide)
        write_table(console, _TABLE, list(timeline.rows()), is_wide=call.is_wide)
        return
    lines = RowLines(call.output, "change", TIMELINE_KEYS)
    for row in timeline.rows():
        lines.add("change", row)
    write_notes(timeline.notes, is_for_person=False, is_wide=call.is_wide)
