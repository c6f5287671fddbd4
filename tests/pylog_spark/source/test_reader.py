"""What Spark's Python workers load before their first task of a query."""

import sys

import pytest

from tests.kit.program import run_to_end

# What plans a query, and what writes: of the process that plans, and of the driver.
NOT_OF_A_TASK = (
    "pylog_spark.source.data_source",
    "pylog_spark.source.stream",
    "pylog_spark.source.data_source",
    "storage_core.log.append",
    "storage_core.writing",
)


@pytest.mark.thorough
def test_a_worker_imports_nothing_that_plans_or_writes():
    code = "import sys, pylog_spark.source.reader; print(*sys.modules)"
    done = run_to_end([sys.executable, "-c", code], check=True)
    modules = done.stdout.split()
    assert "storage_core.reading.ranges" in modules
    assert [name for name in modules if name.startswith(NOT_OF_A_TASK)] == []
