"""What the documents say about the command line is there."""

import re
from pathlib import Path
from typing import Any

import pytest

from pylog_spark.cli.command import Command, CommandGroup
from pylog_spark.cli.commands import COMMANDS as COMMAND_TABLE
from pylog_spark.options.declared import DRY_RUN, EXACT
from pylog_spark.options.option import Option

DOCUMENTS = Path(__file__).parents[1]
# A command at the start of a line of a listing, or in backquotes, up to the end of either.
COMMAND = re.compile(r"(?:^(?:\$ |    )|`)pylog ((?:--debug )?[a-z]+)([^`\n#|]*)", re.MULTILINE)
COMMANDS = {
    *("run", "compact", "recover", "retain", "verify", "scrub", "doctor", "metadata"),
    *("heal", "transplant", "attach"),
    *("cat", "export", "find", "sql", "free"),
    *("inspect", "dump", "groups", "transactions", "partition", "config", "warmup"),
    "salvage",
    *("audit", "differences", "copies", "timeline"),
    *("apply", "runs", "undo", "purge", "explain", "ingest", "materialize", "survey"),
}
# Commands that have commands of their own, and the one that is meant where none is named.
GROUPS = {"partition": "clean", "config": "show", "salvage": "show", "metadata": "show"}


def options_of(command: Command | CommandGroup) -> list[Option[Any]]:
    """Return the options of a command, or of all in a group."""
    if isinstance(command, CommandGroup):
        return [option for inner in command.commands for option in inner.options]
    return list(command.options)


def documented() -> list[tuple[str, str, str]]:
    """Return (command, command inside of it, option) for each that a document shows, once."""
    found = set()
    for path in [
        DOCUMENTS / "README.md",
        *sorted((DOCUMENTS / "docs").glob("*.md")),
        *sorted((DOCUMENTS / "docs" / "howto").glob("*.md")),
    ]:
        for name, rest in COMMAND.findall(path.read_text()):
            options = re.findall(r"(?<![\w-])--[a-z][a-z-]*", rest)
            inner = re.match(r" ([a-z]+)", rest) if name in GROUPS else None
            group = inner[1] if inner else GROUPS.get(name, "")
            found |= {(name, group, option) for option in options or [""]}
    return sorted(found)


def test_every_option_is_documented():
    text = (DOCUMENTS / "docs" / "cli.md").read_text()
    # Half of an option, which nobody writes alone.
    spelled = {EXACT.flag: f"{DRY_RUN.flag}=exact"}
    flags = {
        option.flag
        for command in COMMAND_TABLE
        for option in options_of(command)
        if option is EXACT or not option.is_hidden
    }
    missing = [
        flag
        for flag in sorted(flags - {None})
        if re.search(rf"(?<![\w-]){spelled.get(flag, flag)}(?![\w-])", text) is None
    ]
    assert missing == []


def by_command() -> dict[tuple[str, str], set[str]]:
    """Return the documented options by command, but for the program's own words."""
    options: dict[tuple[str, str], set[str]] = {}
    for command, inner, option in documented():
        if not command.startswith("--debug") and command not in {"help", "version"}:
            options.setdefault((command, inner), set()).add(option)
    return options


@pytest.mark.parametrize(("command", "options"), by_command().items())
def test_a_documented_command_and_its_options_exist(pylog, command, options: set[str]):
    assert command[0] in COMMANDS
    text = pylog.done(*filter(None, command), "--help").stdout
    assert [option for option in sorted(options) if option not in text] == []
