"""The short help of ``-h``: a command's purpose and option names. It fits one screen."""

import shutil
import textwrap
from collections.abc import Iterable
from typing import Any

from pylog_spark.cli.command import Command, CommandGroup
from pylog_spark.options.option import Option


def program_text(commands: Iterable[Command | CommandGroup]) -> str:
    """Return the program's short help: command names under their headings."""
    panels: dict[str | None, list[str]] = {}
    for command in commands:
        panels.setdefault(command.panel, []).append(command.name)
    rows = [(panel or "", " ".join(names)) for panel, names in panels.items()]
    return _page("Usage: pylog COMMAND ...", "", rows, "pylog")


def group_text(group: CommandGroup) -> str:
    """Return a group's short help: its commands and their purposes."""
    rows = [(command.name, _summary(command)) for command in group.commands]
    path = f"pylog {group.name}"
    return _page(f"Usage: {path} COMMAND ...", group.help, rows, path)


def command_text(command: Command, path: str) -> str:
    """Return the short help of a command.

    Args:
        path: As it is typed, with the program's name.
    """
    arguments = [option for option in command.options if option.flag is None]
    options = [option for option in command.options if option.flag and not option.is_hidden]
    usage = " ".join(["Usage:", path, *map(_argument_text, arguments), "[OPTIONS]"])
    # Options without a heading say what is done; of the others the names are enough here.
    rows = [(_names(option), option.help) for option in options if option.panel is None]
    others = " ".join(str(option.flag) for option in options if option.panel is not None)
    if others:
        rows.append(("and", others))
    return _page(usage, _summary(command), rows, path)


def _summary(command: Command) -> str:
    return command.help.strip().partition("\n\n")[0]


def _argument_text(option: Option[Any]) -> str:
    name = f"{option.metavar}..." if option.kind.written == list[str] else str(option.metavar)
    return name if option.is_required else f"[{name}]"


def _names(option: Option[Any]) -> str:
    names = ", ".join(name for name in (option.short, option.flag) if name is not None)
    return f"{names} {option.metavar}" if option.metavar else names


def _page(usage: str, summary: str, rows: list[tuple[str, str]], path: str) -> str:
    """Return a page: usage, summary, two-column rows, pointer to long help."""
    columns = min(shutil.get_terminal_size().columns, 100)
    width = max((len(name) for name, _ in rows), default=0) + 4
    lines = textwrap.wrap(usage, columns, subsequent_indent="    ")
    lines += textwrap.wrap(summary, columns)
    for name, text in rows:
        first = f"  {name}".ljust(width)
        lines += textwrap.wrap(
            text,
            columns,
            initial_indent=first,
            subsequent_indent=" " * width,
            break_long_words=False,
            break_on_hyphens=False,
        )
    return "\n".join([*lines, f"All of it: {path} --help"])
