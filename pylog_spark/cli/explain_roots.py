"""What ``pylog explain`` prints."""

from collections.abc import Sequence
from typing import Any, Final

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from pylog_spark.operations.catalogs import dump_notes
from pylog_spark.operations.explain import explain
from pylog_spark.options.load import Flags, load_config
from pylog_spark.report import json_line, partition_name, write_table
from pylog_spark.text import printable, time_text
from storage_core.clock import SystemClock

_STYLES: Final = {"blocks": "yellow", "passes": "green", "tells": "dim"}

Row = dict[str, Any]


def explain_roots(roots: Sequence[str], flags: Flags, *, as_json: bool) -> bool:
    """Print the explanation of every partition that is asked for.

    Args:
        roots: Paths or URLs.
        flags: What the command line says.
        as_json: One JSON object a partition instead of tables.

    Returns:
        Whether every partition could be read.

    Raises:
        PylogError: A root cannot be read.
    """
    options = load_config(flags, now_ms=SystemClock().now_ms()).options
    console = Console()
    for note in dump_notes(options):
        typer.echo(printable(note), err=True)
    is_whole, is_empty = True, True
    for row in explain(roots, options):
        is_whole &= row["error"] is None
        is_empty = False
        if as_json:
            typer.echo(json_line("explanation", row))
        else:
            _write(console, row, with_root=len(roots) > 1)
    if is_empty and not as_json:
        are_chosen = options.include or options.exclude
        console.print("no partition of these topics" if are_chosen else "no partitions")
    return is_whole


def _write(console: Console, row: Row, *, with_root: bool) -> None:
    place = f" in {printable(row['root'])}" if with_root else ""
    console.print(Text(f"{partition_name(row)}{place}", style="bold"), soft_wrap=True)
    if row["error"] is not None:
        console.print(Text(f"  {printable(row['error'])}", style="bold red"), soft_wrap=True)
        return
    for answer in row["answers"]:
        console.print(Text(f"  {answer['about']}: {_answer(answer)}"), soft_wrap=True)
    table = Table(box=None, pad_edge=False, padding=(0, 1, 0, 3), header_style="bold")
    for name in ("about", "predicate", "says"):
        table.add_column(name)
    table.add_column("why", overflow="fold")
    table.add_column("until", overflow="fold")
    for statement in row["statements"]:
        style = _STYLES[statement["verdict"]]
        table.add_row(
            statement["about"],
            statement["code"],
            Text(statement["verdict"], style=style),
            Text(printable(statement["text"])),
            Text(printable(_until(statement["until_ms"], statement["until"]))),
        )
    write_table(console, table, footer=[""])


def _answer(answer: Row) -> str:
    if answer["is_due"]:
        return printable(answer["text"])
    until = _until(answer["from_ms"], answer["condition"])
    when = f"; will be: {until}" if until else ""
    return printable(f"not now ({answer['held_by']}): {answer['text']}{when}")


def _until(at_ms: int | None, condition: str) -> str:
    parts = ["" if at_ms is None else f"at {time_text(at_ms)}"]
    parts.append(f"when {condition}" if condition else "")
    return ", or ".join(part for part in parts if part)
