"""What a command needs is imported before its threads begin: none waits for another's import."""

import os
import sys
from pathlib import Path

import pytest

from tests.jobs.spark_programs import REPOSITORY, environment
from tests.kit.program import run_to_end

# Looked for before anything else, and so asked first by each import.
TOLD = """
import sys, threading
class Finder:
    def find_spec(self, name, path=None, target=None):
        thread = threading.current_thread()
        if thread is not threading.main_thread():
            print(thread.name, name, file=sys.stderr)
sys.meta_path.insert(0, Finder())
"""


@pytest.mark.thorough
@pytest.mark.parametrize("command", ["doctor {}", "verify {} --engine local", "inspect {}"])
def test_the_programs_own_threads_import_nothing(command: str, broker_dir: Path, tmp_path: Path):
    (tmp_path / "sitecustomize.py").write_text(TOLD)
    done = run_to_end(
        [sys.executable, "-m", "pylog_spark", *command.replace("{}", str(broker_dir)).split()],
        cwd=REPOSITORY,
        env=environment(PYTHONPATH=f"{tmp_path}{os.pathsep}{REPOSITORY}"),
    )
    assert done.returncode in {0, 1}
    assert done.stderr == ""
