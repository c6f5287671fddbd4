"""The page of ``pylog inspect``."""

from collections.abc import Sequence
from pathlib import Path

from pylog_spark.cli.inspect import (
    PARTITION_TABLE,
    TOPIC_TABLE,
    Look,
    footer,
    headline,
    totals_by_topic,
)
from pylog_spark.cli.page_parts import figures, picture_notes, segment_section, table_section
from pylog_spark.operations.biggest_segments import segments_of
from pylog_spark.options.choices import InspectOrder
from pylog_spark.pictures import MOST_ROWS, dirty_ratios
from pylog_spark.report_page import Page, Section, write_page
from pylog_spark.text_table import Row


def write_inspect_page(path: Path, looks: Sequence[Look], *, now_ms: int) -> None:
    """Write the page of some roots; one that is there is replaced.

    Args:
        path: Of the page.
        looks: The roots.
        now_ms: The command's clock, epoch milliseconds.

    Raises:
        OSError: The file cannot be written.
    """
    rows = [row for look in looks for row in look.rows]
    total, *others = footer(looks, rows)
    errors = [error for look in looks for error in look.view.row["errors"]]
    page = Page(
        title="pylog inspect",
        lead=total,
        notes=[*(headline(look.view) for look in looks), *others, *errors, *picture_notes()],
        sections=[
            segment_section(lambda: _biggest_segments(looks, now_ms), now_ms=now_ms),
            Section(
                heading="Dirty ratios",
                blocks=figures(dirty_ratios(rows, lambda row: row["dirty_ratio"])),
            ),
            table_section("Topics", TOPIC_TABLE, totals_by_topic(rows, InspectOrder.SIZE)),
            table_section("Partitions", PARTITION_TABLE, rows),
        ],
    )
    write_page(path, page)


def _biggest_segments(looks: Sequence[Look], now_ms: int) -> list[Row]:
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
        segments += segments_of(look.view, names, config_of, now_ms=now_ms)
    return segments
