"""What the doctor prints to be run, taken from its answer and run as a shell would run it."""

import json
import re
import shlex
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from pylog_spark.exit_code import ExitCode
from storage_core.maintenance.verification.findings import Code

_CLOCK = re.compile(r"\$\(date \+%s000\)")
# How a command begins that stands behind the prose of a fix.
_COMMAND = re.compile(r"(?:^|: )((?:rm|mv|pylog) .*)$")
# Findings whose commands only look.
ONLY_LOOKS = {Code.SEGMENTS_OVERLAP, Code.CHANGED_WHILE_READ, Code.DISK_FULL}


class NoAnswerError(Exception):
    """The doctor refuses to judge the directories."""


class Shell:
    """Runs what was printed.

    Args:
        pylog: Calls the program in this process.
        now_ms: What ``date`` says.
        engine: Where recoveries have their tasks done; None for what they choose.
        words: What the doctor is told besides.
    """

    def __init__(
        self, pylog: Any, now_ms: int, *, engine: str | None = None, words: Sequence[str] = ()
    ) -> None:
        self._pylog = pylog
        self._now_ms = now_ms
        self._engine = engine
        self._words = words

    def ask(self, *arguments: object) -> tuple[int, dict[str, Any]]:
        """Ask the doctor."""
        words = ("doctor", *arguments, "--engine", "local", "--now-ms", self._now_ms)
        words += (*self._words, "--output", "json")
        result = self._pylog(*words)
        if not result.stdout:
            assert result.exit_code in {ExitCode.USAGE, ExitCode.REFUSED}, result.stderr
            raise NoAnswerError(result.stderr)
        return result.exit_code, json.loads(result.stdout)

    def run(self, command: str, *, may_be_short: bool = False, may_refuse: bool = False) -> Any:
        """Run a line; return the result of the program's own last call in it.

        Args:
            command: The line.
            may_be_short: Whether a log may have lost its tail before: a recovery ends with a
                finding then, and says so.
            may_refuse: Whether a log may be left alone, with a row that says why; the directory
                may not.
        """
        result = None
        for part in _CLOCK.sub(str(self._now_ms), command).split(" && "):
            name, *words = shlex.split(part)
            if name == "rm":
                [option, path] = words
                assert option == "-f"
                Path(path).unlink(missing_ok=True)
            elif name == "mv":
                old, new = words
                Path(old).rename(new)
            else:
                assert name == "pylog", command
                if words[0] == "recover" and self._engine is not None:
                    words += ["--engine", self._engine]
                result = self._pylog(*words)
                accepted = {ExitCode.DONE}
                if may_refuse or (may_be_short and "lowered to the end" in result.output):
                    accepted |= {ExitCode.FINDINGS}
                if may_refuse:
                    accepted |= {ExitCode.REFUSED, ExitCode.PARTLY_FAILED}
                assert result.exit_code in accepted, f"{command}: {result.output}"
                assert result.stdout, f"{command}: {result.output}"
        return result


def commands_in(findings: Iterable[dict[str, Any]]) -> list[str]:
    """Return the commands that fixes of findings end with, each once, in order."""
    found = (_COMMAND.search(finding["fix"]) for finding in findings)
    return list(dict.fromkeys(match[1] for match in found if match is not None))


def is_for_people(finding: dict[str, Any]) -> bool:
    """Whether no command that is printed mends it."""
    return not commands_in([finding]) or finding["code"] in ONLY_LOOKS
