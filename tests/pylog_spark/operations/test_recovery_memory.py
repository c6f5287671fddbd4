"""What the driver holds of a recovery: segments of the logs that are due, and of no others."""

import tracemalloc
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest

from pylog_spark.operations.recover.recovered_logs import RecoveredLogs
from pylog_spark.operations.recover.waves import find_due_logs
from pylog_spark.options import JobOptions
from pylog_spark.run import plan_table
from pylog_spark.run.job import Job
from pylog_spark.run.plan_table import Outcome
from pylog_spark.schemas import RECOVERY_WORK

LOGS, SEGMENTS = 400, 250
# Of each segment an offset and a size, as objects of Python in lists.
BYTES_OF_SEGMENTS = LOGS * SEGMENTS * 2 * 40


def logs(count: int = LOGS, segments: int = SEGMENTS) -> pa.Table:
    """Return logs that are due, but for each third of them."""
    rows = [
        {
            "root": f"/logs-{number % 2}",
            "topic": "orders",
            "partition": number,
            "directory": f"/logs-{number % 2}/orders-{number}",
            "status": "planned" if number % 3 else "skipped",
            "reason": None if number % 3 else "INTERNAL_METADATA",
            "bytes": number,
            "segments": segments,
            "is_clean": False,
            "recovery_point": number,
            "log_start_offset": 5,
            "high_watermark": None if number % 2 else 9,
            "scan_offsets": list(range(1000, 1000 + segments)),
            "scan_bytes": list(range(2000 + number, 2000 + number + segments)),
            "duration_ms": 1,
        }
        for number in range(count)
    ]
    return pa.Table.from_pylist(rows, schema=RECOVERY_WORK)


def recovered(partitions: pa.Table) -> RecoveredLogs:
    job = Job(run_id="r", action="recover", roots=(), options=JobOptions(now_ms=1))
    return RecoveredLogs(SimpleNamespace(job=job), partitions)


def peak_beside_the_result(work: Callable[[], Any]) -> tuple[Any, int]:
    """Return a result, and how many bytes more than it held were in use on the way to it."""
    tracemalloc.start()
    try:
        result = work()
        held, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    return result, peak - held


@pytest.mark.parametrize(
    ("look", "expected"),
    [
        (lambda logs: len(recovered(logs).unrecovered()), LOGS - -(-LOGS // 3)),
        (lambda logs: recovered(logs).results().num_rows, LOGS),
    ],
    ids=["what was not recovered", "results"],
)
def test_what_became_of_logs_is_looked_up_without_their_segments(look, expected):
    partitions = logs()
    found, peak = peak_beside_the_result(lambda: look(partitions))
    assert found == expected
    assert peak < BYTES_OF_SEGMENTS / 4


@pytest.mark.thorough
def test_what_is_due_is_taken_some_rows_at_a_time(monkeypatch):
    partitions = logs()
    monkeypatch.setattr(plan_table, "_ROWS_AT_ONCE", LOGS // 20)
    due, peak = peak_beside_the_result(lambda: find_due_logs(partitions))
    assert len(due) == LOGS - -(-LOGS // 3)
    # Of rows that are no more than looked at, and of lists that become tuples.
    assert peak < BYTES_OF_SEGMENTS / 8


def test_what_is_due_has_the_number_of_its_row_wherever_the_rows_are_parted(monkeypatch):
    partitions = logs(8, 2)
    whole = find_due_logs(partitions)
    monkeypatch.setattr(plan_table, "_ROWS_AT_ONCE", 3)
    assert find_due_logs(partitions) == whole
    assert [one.ref.ordinal for one in whole] == [7, 5, 4, 2, 1]
    first = whole[0]
    assert (first.ref.root, first.ref.directory) == ("/logs-1", "/logs-1/orders-7")
    assert (str(first.ref.partition), first.work.checkpoints.recovery_point) == ("orders-7", 7)
    checkpoints = first.work.checkpoints
    assert (checkpoints.log_start_offset, checkpoints.high_watermark) == (5, None)
    assert (first.scan_offsets, first.scan_bytes) == ((1000, 1001), (2007, 2008))


def test_logs_that_are_not_in_order_are_told_with_their_directory_whatever_was_planned():
    listed = recovered(logs(6, 1))
    well = Outcome(columns={"status": "done", "reason": None})
    failed = Outcome(columns={"status": "failed", "reason": None})
    listed.outcomes = {1: well, 2: failed, 5: well}
    assert listed.unrecovered() == {"/logs-0/orders-2", "/logs-0/orders-4"}
    assert listed.count_unrecovered() == {"/logs-0": 2}
