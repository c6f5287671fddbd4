"""What the shell is told at Tab, and how it learns to ask."""

import os
import sys

import pytest
import shellingham

from tests.kit.program import run_to_end


def answer(words: str, number: int) -> list[str]:
    asked = {"_PYLOG_COMPLETE": "complete_bash", "COMP_WORDS": words, "COMP_CWORD": str(number)}
    code = "from pylog_spark.cli import main; main()"
    result = run_to_end([sys.executable, "-c", code], env=os.environ | asked, check=True)
    assert result.stderr == ""
    return result.stdout.split()


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    ("words", "number", "expected"),
    [
        ("pylog ins", 1, ["inspect"]),
        ("pylog config ", 2, ["show", "init"]),
        ("pylog inspect --per", 2, ["--per-topic"]),
        ("pylog inspect /data --by ", 4, ["size", "dirty", "age"]),
        ("pylog run --role m", 3, ["mirror", "managed"]),
    ],
)
def test_commands_options_and_their_values_are_completed(words, number, expected):
    assert answer(words, number) == expected


def test_the_script_for_the_shell_is_printed(pylog, monkeypatch):
    # It is for the shell that has started the program; here that may be none, or make's own.
    monkeypatch.setattr(shellingham, "detect_shell", lambda: ("bash", "/bin/bash"))
    result = pylog.done("--show-completion", "bash")
    assert "_PYLOG_COMPLETE=complete_bash" in result.stdout
