"""``pylog`` in processes that are killed at one change of what is below a folder.

One process has imported the program; each command is a fork of it.
"""

import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Self

from pylog_spark.cli.program import app
from tests.crash.stopping import CONTROL, Stopping, kill
from tests.jobs.spark_programs import REPOSITORY, environment
from tests.kit.faulty_store import NEVER
from tests.kit.tasks_here import tasks_done_here


class StoppedCommand:
    """Runs commands and kills them; a context manager.

    Args:
        control: A folder that the processes share, outside of what is watched.
    """

    def __init__(self, control: Path, watched: Path) -> None:
        self._stopping = Stopping(control)
        self._watched = watched

    def __enter__(self) -> Self:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.crash.stopped_command"],
            cwd=REPOSITORY,
            env=environment() | {CONTROL: str(self._stopping.control)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.communicate()

    def run(self, words: Sequence[str | Path], *, stop_at: int = NEVER) -> str:
        """Run a command; return what it said.

        Args:
            stop_at: The point at which it is killed, as for ``Stopping.begin``.
        """
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._stopping.begin(self._watched, stop_at=stop_at)
        self._process.stdin.write(json.dumps([*map(str, words)]) + "\n")
        self._process.stdin.flush()
        status, said = json.loads(self._process.stdout.readline())
        wanted = (False, 0) if stop_at == NEVER else (True, -signal.SIGKILL)
        assert (self._stopping.is_dead, status) == wanted, f"{words} at {stop_at}: {said}"
        return str(said)

    @property
    def changes(self) -> list[str]:
        """What the last command changed, in order."""
        return self._stopping.made


def _serve() -> None:
    for line in sys.stdin:
        with tempfile.TemporaryFile("w+") as output:
            child = os.fork()
            if not child:
                os.dup2(output.fileno(), sys.stdout.fileno())
                os.dup2(output.fileno(), sys.stderr.fileno())
                Stopping(Path(os.environ[CONTROL])).watch(kill)
                # Its tasks are watched, too.
                with tasks_done_here():
                    app(json.loads(line), prog_name="pylog")
            _, status = os.waitpid(child, 0)
            output.seek(0)
            answer = os.waitstatus_to_exitcode(status), output.read()
        sys.stdout.write(json.dumps(answer) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    _serve()
