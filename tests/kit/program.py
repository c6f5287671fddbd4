"""The program in this process, other programs beside it, and what they have answered."""

import json
import subprocess
from collections.abc import Sequence
from typing import Any

import pytest
from typer.testing import CliRunner

from pylog_spark.cli.program import app


class Program:
    """Calls the program in this process; a result has exit_code, stdout and stderr.

    It takes no session that another test has started: a person's process has none.
    """

    def __init__(self) -> None:
        self._runner = CliRunner()

    def __call__(self, *arguments: object) -> Any:
        words = [str(argument) for argument in arguments]
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("pylog_spark.session.has_session", lambda: False)
            return self._runner.invoke(app, words, prog_name="pylog")

    def done(self, *arguments: object) -> Any:
        """Call it and expect exit status 0."""
        result = self(*arguments)
        assert result.exit_code == 0, result.output
        return result

    def rows(self, *arguments: object, kind: str | None = None) -> list[dict[str, Any]]:
        """Return its answer as JSON, with exit status 0: all rows, or those of one kind."""
        return lines_of(self.done(*arguments, "--output", "json"), kind)

    def row(self, *arguments: object, kind: str | None = None) -> dict[str, Any]:
        """Return the only row of such an answer."""
        (row,) = self.rows(*arguments, kind=kind)
        return row


def lines_of(result: Any, kind: str | None = None) -> list[dict[str, Any]]:
    """Return the lines of JSON that a program has printed: all of them, or those of one kind."""
    rows = [json.loads(line) for line in result.stdout.splitlines()]
    return rows if kind is None else [row for row in rows if row["type"] == kind]


def run_to_end(
    command: Sequence[object], *, timeout: float = 600, check: bool = False, **options: Any
) -> subprocess.CompletedProcess[str]:
    """Run a program to its end, and return what it has said."""
    words = [str(word) for word in command]
    return subprocess.run(
        words, capture_output=True, text=True, check=check, timeout=timeout, **options
    )
