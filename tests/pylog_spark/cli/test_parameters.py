"""From what typer reads of a command line to what a command's work gets."""

import pytest

from pylog_spark.cli import jobs
from pylog_spark.options.declared import (
    DRY_RUN,
    EXACT,
    MARK_CLEAN,
    NOW_MS,
    OUTPUT,
    PER_DISK,
    TOPICS,
)
from pylog_spark.options.option import CommandLine


@pytest.fixture
def line_of(pylog, monkeypatch):
    """Return what the work of ``pylog retain`` gets; it answers with status 7."""

    def call(*arguments: object) -> CommandLine:
        lines: list[CommandLine] = []
        monkeypatch.setattr(jobs, "RETAIN", lambda line: lines.append(line) or 7)
        assert pylog("retain", "/logs", *arguments).exit_code == 7
        (line,) = lines
        return line

    return call


def test_a_switch_that_is_not_there_says_nothing(line_of):
    line = line_of()
    assert MARK_CLEAN not in line
    assert DRY_RUN not in line
    assert TOPICS not in line
    assert NOW_MS not in line
    assert line[OUTPUT] == "table"


def test_a_switch_says_what_is_declared(line_of):
    line = line_of("--no-mark-clean", "--dry-run=exact")
    assert line.written(MARK_CLEAN) is False
    assert (line[DRY_RUN], line[EXACT]) == (True, True)


def test_zero_is_a_clock_and_no_number_of_tasks(line_of, pylog):
    assert line_of("--now-ms", 0)[NOW_MS] == 0
    assert line_of("--per-disk", 1)[PER_DISK] == 1
    wrong = pylog("retain", "/logs", "--per-disk", 0)
    assert wrong.exit_code == 2
    assert "invalid value for '--per-disk': " in wrong.stderr
    wrong = pylog("retain", "/logs", "--now-ms", "soon")
    assert wrong.exit_code == 2
    assert "'--now-ms': expected a whole number between 0 and 9223372036854775807" in wrong.stderr
