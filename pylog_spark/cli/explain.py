"""``pylog explain``: why a partition is not cleaned, not deleted, or so big."""

from collections.abc import Iterable
from typing import Any, Final

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from pylog_spark.cli.runner import Call, Work, load_options
from pylog_spark.exit_code import ExitCode
from pylog_spark.operations.explain import explain
from pylog_spark.options.declared import ROOTS
from pylog_spark.options.option import CommandLine
from pylog_spark.report import json_line, partition_name, write_table
from pylog_spark.run.catalogs import dump_notes
from pylog_spark.text import printable, time_text

_STYLES: Final = {"blocks": "yellow", "passes": "green", "tells": "dim"}

Row = dict[str, Any]


def _prepare(line: CommandLine) -> Call[None]:
    return Call(line=line, options=load_options(line), subject=None)


def _explain(call: Call[None], _session: None) -> Iterable[Row]:
    for note in dump_notes(call.options):
        typer.echo(printable(note), err=True)
    return explain(call.line[ROOTS], call.options)


def _show(call: Call[None], rows: Iterable[Row]) -> int:
    """Print the explanation of every partition that is asked for."""
    console = Console()
    is_whole, is_empty = True, True
    for row in rows:
        is_whole &= row["error"] is None
        is_empty = False
        if call.as_json:
            typer.echo(json_line("explanation", row))
        else:
            _write(console, row, with_root=len(call.line[ROOTS]) > 1)
    if is_empty and not call.as_json:
        console.print("no partition of these topics" if call.are_topics_chosen else "no partitions")
    return ExitCode.DONE if is_whole else ExitCode.PARTLY_FAILED


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


EXPLAIN: Final = Work(name="explain", prepare=_prepare, operate=_explain, show=_show)
