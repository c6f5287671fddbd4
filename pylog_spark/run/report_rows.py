"""The rows of a run's steps, put together: one story a partition directory."""

from collections.abc import Iterable, Sequence
from typing import Any, Final

import pyarrow as pa

from pylog_spark.run.plan_table import RowKey, row_key
from pylog_spark.run.run_report import RunSummary, summarise
from pylog_spark.schemas import RESULT, Reason, Status, rows_to_batch

# A step's way of saying that a partition is another step's business.
NOT_OF_THIS_STEP: Final = frozenset(
    {Reason.NOT_COMPACTED, Reason.COMPACTED, Reason.NOTHING_TO_RECOVER}
)
_RANK: Final = {Status.FAILED: 0, Status.DONE: 1, Status.PLANNED: 1, Status.SKIPPED: 2}

Row = dict[str, Any]


def merge_steps(tables: Iterable[pa.Table]) -> pa.Table:
    """Return the rows of all steps that say something, what failed first, what was done next.

    A step that left a partition to another one says nothing of it, unless nobody else does; two
    steps that left it alone for one reason say it once.

    Args:
        tables: Rows of ``schemas.RESULT``, step by step.
    """
    by_key: dict[RowKey, list[Row]] = {}
    for table in tables:
        for row in table.to_pylist():
            by_key.setdefault(row_key(row), []).append(row)
    rows = [row for of_one in by_key.values() for row in _telling(of_one)]
    rows.sort(key=lambda row: _RANK[Status(row["status"])])
    return pa.Table.from_batches([rows_to_batch(RESULT, rows)], schema=RESULT)


def summarise_steps(results: pa.Table, *, duration_ms: int) -> RunSummary:
    """Count the rows of a run of several steps; bytes count once a partition.

    Args:
        results: Of ``merge_steps``: the rows of a partition stand in the order of the steps.
        duration_ms: From start to end.
    """
    counted = summarise(results, duration_ms=duration_ms)
    before: dict[RowKey, int] = {}
    after: dict[RowKey, int] = {}
    names = ["root", "topic", "partition", "directory", "status", "bytes_before", "bytes_after"]
    for row in results.select(names).to_pylist():
        if row["status"] in {Status.DONE, Status.PLANNED}:
            key = row_key(row)
            before.setdefault(key, row["bytes_before"] or 0)
            after[key] = row["bytes_after"] or 0
    return RunSummary(
        planned=counted.planned,
        done=counted.done,
        skipped=counted.skipped,
        failed=counted.failed,
        bytes_before=sum(before.values()),
        bytes_after=sum(after.values()),
        duration_ms=duration_ms,
    )


def _telling(rows: Sequence[Row]) -> list[Row]:
    """Return the rows of one partition that are worth a line."""
    own = [row for row in rows if row["reason"] not in NOT_OF_THIS_STEP] or list(rows[:1])
    told: list[Row] = []
    for row in own:
        is_said = any(
            row["status"] == other["status"] == Status.SKIPPED and row["reason"] == other["reason"]
            for other in told
        )
        if not is_said:
            told.append(row)
    return told
