import sys
from pathlib import Path

import pytest

import pylog_spark
from tests.kit.program import run_to_end

ROOT = Path(pylog_spark.__file__).parents[1]
CODE = """
import sys
from tests.kit.spark_workers import import_tasks
import_tasks()
print(*sys.modules, sep="\\n")
"""


@pytest.mark.thorough
def test_workers_are_forked_from_a_process_that_has_imported_every_task():
    run = [sys.executable, "-c", CODE]
    imported = run_to_end(run, cwd=ROOT, check=True).stdout
    files = [
        *ROOT.glob("pylog_spark/tasks/[!_]*.py"),
        *ROOT.glob("pylog_spark/operations/*/*task.py"),
    ]
    names = {".".join(file.relative_to(ROOT).with_suffix("").parts) for file in files}
    assert names <= set(imported.splitlines())
    assert "pylog_spark.operations.compact.pass_task" in names
