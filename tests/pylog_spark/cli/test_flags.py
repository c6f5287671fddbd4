"""What a command's options say arrives where jobs read it, whatever the option is called."""

import dataclasses
import inspect
from pathlib import Path

import pytest

from pylog_spark.cli import (
    config,
    doctor,
    explain,
    jobs,
    purge,
    recover,
    retain,
    survey,
    transfer,
    undo,
    verify,
)
from pylog_spark.cli.flags import NO_FLAGS, said_flags
from pylog_spark.options.load import Flags

MODULES = (
    *(config, doctor, explain, jobs, purge, recover, retain, survey, transfer, undo, verify),
)
COMMANDS = [
    command.callback
    for module in MODULES
    for command in module.app.registered_commands
    if command.callback is not None
]


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: command.__name__)
def test_every_parameter_of_a_command_is_a_flag_or_said_to_be_none(command):
    names = set(inspect.signature(command).parameters)
    said = dict.fromkeys(names)
    assert said_flags(said) == Flags()
    some = {name: f"<{name}>" for name in names - NO_FLAGS}
    values = dataclasses.asdict(said_flags(some)).values()
    for name in some.keys() - {"no_mark_clean"}:
        assert f"<{name}>" in values


def test_a_parameter_that_nobody_reads_is_an_error():
    with pytest.raises(TypeError, match="surprise"):
        said_flags({"surprise": 1})


def test_a_marker_is_left_to_the_files_unless_somebody_says_no():
    assert said_flags({"no_mark_clean": False}).mark_clean is None
    assert said_flags({"no_mark_clean": True}).mark_clean is False


def test_zero_and_no_are_said_things():
    said = said_flags({"now_ms": 0, "max_truncate_bytes": 0, "dry_run": False, "salvage": Path()})
    assert (said.now_ms, said.max_truncate_bytes, said.salvage) == (0, 0, Path())
    assert said_flags({"topics": ["a"], "override": ["X"], "older_than": "1h"}) == Flags(
        include=["a"], overrides=["X"], purge_after="1h"
    )
