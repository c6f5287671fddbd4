"""``pylog groups`` and ``pylog transactions``: what coordinators left in log directories."""

from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from pylog_spark.cli.runner import Call, Work, load_options
from pylog_spark.exit_code import ExitCode
from pylog_spark.options.arguments import said_as
from pylog_spark.options.broker import broker_config
from pylog_spark.options.declared import ROOTS
from pylog_spark.options.option import CommandLine
from pylog_spark.report import json_line, number_text, root_column, write_table
from pylog_spark.tasks.coordinators import (
    CoordinatorSettings,
    Told,
    observe_groups,
    observe_transactions,
)
from pylog_spark.tasks.listing import TopicFilter
from pylog_spark.text import printable, time_text
from storage_core.maintenance.inspection import RootView, inspect_root

_NOTHING: Final = "-"
_BAD: Final = "bold red"
Row = dict[str, Any]
_Observe = Callable[..., Iterator[Told]]


def _prepare(line: CommandLine) -> Call[None]:
    return Call(line=line, options=load_options(line), subject=None)


def _observe(call: Call[None], observe: _Observe) -> Iterator[Told]:
    options = call.options
    settings = CoordinatorSettings(
        now_ms=options.now_ms,
        broker=broker_config(options),
        said=frozenset({*options.broker_settings, *options.broker_overrides}),
    )
    topics = TopicFilter(topics=options.include, exclude=options.exclude)
    for root in call.line[ROOTS]:
        with said_as("ROOT", root):
            view: RootView = inspect_root(root)
        for error in view.row["errors"]:
            yield "log_directory", {"root": view.row["root"], "error": error}
        yield from observe(view, settings, is_asked_for=topics.admits)


def _show(
    call: Call[None], told: Iterable[Told], write: Callable[[Console, dict[str, list[Row]]], None]
) -> int:
    """Print the rows, and return the exit status."""
    rows: dict[str, list[Row]] = {}
    is_whole = True
    for kind, row in told:
        is_whole &= row.get("error") is None
        if call.as_json:
            typer.echo(json_line(kind, row))
        else:
            rows.setdefault(kind, []).append(row)
    if not call.as_json:
        console = Console()
        write(console, rows)
        for row in rows.get("undecoded", []):
            console.print(Text(_undecoded(row), style="yellow"), soft_wrap=True)
        for row in (*rows.get("log_directory", []), *rows.get("partition", [])):
            place = row.get("directory") or row["root"]
            console.print(Text(printable(f"{place}: {row['error']}"), style=_BAD), soft_wrap=True)
    return ExitCode.DONE if is_whole else ExitCode.PARTLY_FAILED


def _write_groups(console: Console, rows: dict[str, list[Row]]) -> None:
    groups, commits = rows.get("group", []), rows.get("commit", [])
    if not groups:
        console.print("no groups")
        return
    table = Table(box=None, pad_edge=False, header_style="bold")
    root = root_column(table, groups)
    for name in ("group", "type", "state"):
        table.add_column(name, overflow="fold")
    for name in ("members", "commits", "lag"):
        table.add_column(name, justify="right")
    for row in groups:
        table.add_row(
            *root(row),
            printable(row["group"]),
            row["group_type"],
            row["state"] or _NOTHING,
            number_text(len(row["members"])),
            number_text(row["commits"]),
            number_text(row["lag"]),
        )
    write_table(console, table, footer=[f"{len(groups)} groups"])
    if commits:
        console.print()
        _write_commits(console, commits)
    pending = rows.get("pending_commit", [])
    for row in pending:
        text = (
            f"{row['group']}: offset {row['offset']} of {row['topic']}-{row['partition']} is part "
            f"of a transaction of producer {row['producer_id']} that has not ended"
        )
        console.print(Text(printable(text)), soft_wrap=True)


def _write_commits(console: Console, commits: list[Row]) -> None:
    table = Table(box=None, pad_edge=False, header_style="bold")
    root = root_column(table, commits)
    for name in ("group", "partition"):
        table.add_column(name, overflow="fold")
    for name in ("offset", "start", "end", "lag"):
        table.add_column(name, justify="right")
    for name in ("committed", "expires"):
        table.add_column(name)
    table.add_column("findings", overflow="fold")
    for row in commits:
        table.add_row(
            *root(row),
            printable(row["group"]),
            printable(f"{row['topic']}-{row['partition']}"),
            number_text(None if row["commit_ms"] is None else row["offset"]),
            number_text(row["log_start_offset"]),
            number_text(row["log_end_offset"]),
            number_text(row["lag"]),
            _time(row["commit_ms"]),
            _time(row["expires_ms"]),
            Text(", ".join(row["findings"]), style=_BAD),
        )
    write_table(console, table, footer=[f"{len(commits)} places"])


def _write_transactions(console: Console, rows: dict[str, list[Row]]) -> None:
    holding, known = rows.get("open_transaction", []), rows.get("transaction", [])
    if holding:
        _write_holding(console, holding)
    else:
        console.print("no transaction is open in a log")
    if known:
        console.print()
        _write_known(console, known)


def _write_holding(console: Console, rows: list[Row]) -> None:
    table = Table(box=None, pad_edge=False, header_style="bold")
    root = root_column(table, rows)
    table.add_column("partition", overflow="fold")
    table.add_column("verdict")
    for name in ("from offset", "end", "producer", "epoch"):
        table.add_column(name, justify="right")
    table.add_column("last write")
    table.add_column("transactional id", overflow="fold")
    table.add_column("state")
    for row in rows:
        table.add_row(
            *root(row),
            printable(f"{row['topic']}-{row['partition']}"),
            Text(row["verdict"], style=_BAD if row["verdict"] == "hanging" else ""),
            number_text(row["first_offset"]),
            number_text(row["log_end_offset"]),
            str(row["producer_id"]),
            str(row["producer_epoch"]),
            _time(row["last_timestamp"]),
            printable(row["transactional_id"] or _NOTHING),
            row["state"] or _NOTHING,
        )
    commands = [row["command"] for row in rows if row["command"]]
    write_table(console, table, footer=[f"{len(rows)} open transactions"])
    for command in commands:
        console.print(Text(f"  {printable(command)}"), soft_wrap=True)


def _write_known(console: Console, rows: list[Row]) -> None:
    table = Table(box=None, pad_edge=False, header_style="bold")
    root = root_column(table, rows)
    table.add_column("transactional id", overflow="fold")
    table.add_column("state")
    for name in ("producer", "epoch"):
        table.add_column(name, justify="right")
    for name in ("since", "changed"):
        table.add_column(name)
    table.add_column("partitions", overflow="fold")
    for row in rows:
        table.add_row(
            *root(row),
            printable(row["transactional_id"]),
            row["state"] + (", overdue" if row["is_overdue"] else ""),
            str(row["producer_id"]),
            str(row["producer_epoch"]),
            _time(row["start_ms"]),
            _time(row["update_ms"]),
            printable(", ".join(row["partitions"]) or _NOTHING),
        )
    write_table(console, table, footer=[f"{len(rows)} transactional ids"])


def _undecoded(row: Row) -> str:
    kind = row["record_type"] or f"type {row['type_id']}"
    version = "" if row["version"] is None else f" version {row['version']}"
    return printable(
        f"{row['directory']}: {row['count']} records of {kind}{version} are not understood "
        f"({row['problem']}), the first at offset {row['first_offset']}: {row['reason']}"
    )


def _time(epoch_ms: int | None) -> str:
    return _NOTHING if epoch_ms is None else time_text(epoch_ms)[:19]


def _observe_groups(call: Call[None], _session: None) -> Iterator[Told]:
    return _observe(call, observe_groups)


def _show_groups(call: Call[None], told: Iterator[Told]) -> int:
    return _show(call, told, _write_groups)


def _observe_transactions(call: Call[None], _session: None) -> Iterator[Told]:
    return _observe(call, observe_transactions)


def _show_transactions(call: Call[None], told: Iterator[Told]) -> int:
    return _show(call, told, _write_transactions)


GROUPS: Final = Work(name="groups", prepare=_prepare, operate=_observe_groups, show=_show_groups)
TRANSACTIONS: Final = Work(
    name="transactions",
    prepare=_prepare,
    operate=_observe_transactions,
    show=_show_transactions,
)
