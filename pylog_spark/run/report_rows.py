"""The rows of a run's steps, put together: one story a partition directory."""

from collections.abc import Iterable
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from pylog_spark.run.plan_table import RowKey, row_key
from pylog_spark.run.run_report import RunSummary, summarise
from pylog_spark.schemas import RESULT, Reason, Status
from storage_core.store.generations import GENERATION_MARK

# A step's way of saying that a partition is another step's business.
NOT_OF_THIS_STEP: Final = frozenset(
    {Reason.NOT_COMPACTED, Reason.COMPACTED, Reason.NOTHING_TO_RECOVER}
)
_RANK: Final = {Status.FAILED: 0, Status.DONE: 1, Status.PLANNED: 1, Status.SKIPPED: 2}


def merge_steps(tables: Iterable[pa.Table]) -> pa.Table:
    """Return the rows of all steps that say something, what failed first, what was done next.

    A step that left a partition to another one says nothing of it, unless nobody else does; two
    steps that left it alone for one reason say it once. Whole columns are compared: a night has
    several rows of each partition.

    Args:
        tables: Rows of ``schemas.RESULT``, step by step.
    """
    rows = pa.concat_tables([RESULT.empty_table(), *tables])
    keys = _codes(pc.fill_null(_locations(rows), ""), rows["root"])
    nameless = _codes(*(rows[name] for name in ("root", "topic", "partition")))
    is_nameless = rows["directory"].is_null().to_numpy()
    keys = np.where(is_nameless, -1 - nameless, keys)
    _, firsts, keys = np.unique(keys, return_index=True, return_inverse=True)
    # Numbered by their first rows, which come before all others of a key.
    first_rows = firsts[keys]
    elsewhere = pa.array(sorted(NOT_OF_THIS_STEP), pa.string())
    is_own = ~pc.is_in(rows["reason"], elsewhere).to_numpy()
    has_own = np.bincount(keys[is_own], minlength=len(firsts)) > 0
    numbers = np.arange(rows.num_rows)
    is_told = is_own | (~has_own[keys] & (first_rows == numbers))
    is_skipped = pc.equal(rows["status"], Status.SKIPPED.value).to_numpy()
    (left_alone,) = np.nonzero(is_told & is_skipped)
    told_again = _repeated(_codes(pa.array(keys), rows["reason"])[left_alone])
    is_told[left_alone[told_again]] = False
    ranks = np.array([_RANK[Status(s)] for s in rows["status"].to_pylist()], np.int8)
    order = np.lexsort((numbers, first_rows, ranks))
    return rows.take(pa.array(order[is_told[order]]))


def _locations(rows: pa.Table) -> pa.ChunkedArray:
    """Return where partitions are, without generations: these rise from step to step."""
    return pc.replace_substring_regex(rows["directory"], f"(?s){GENERATION_MARK}.*", "")


def _codes(*columns: pa.ChunkedArray | pa.Array) -> NDArray[np.int64]:
    """Return a number for each row, equal where all columns are; null is a value of its own."""
    codes = np.zeros(len(columns[0]), np.int64)
    for column in columns:
        whole = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
        encoded = whole.dictionary_encode(null_encoding="encode")
        codes = codes * max(1, len(encoded.dictionary)) + encoded.indices.to_numpy()
        codes = np.unique(codes, return_inverse=True)[1]
    return codes


def _repeated(codes: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Return which values stood before."""
    is_repeated = np.ones(len(codes), np.bool_)
    is_repeated[np.unique(codes, return_index=True)[1]] = False
    return is_repeated


def summarise_steps(results: pa.Table, *, duration_ms: int) -> RunSummary:
    """Count the rows of a run of several steps; bytes count once a partition.

    Args:
        results: Of ``merge_steps``: the rows of a partition stand in the order of the steps.
        duration_ms: From start to end.
    """
    counted = summarise(results, duration_ms=duration_ms)
    before: dict[RowKey, int] = {}
    after: dict[RowKey, int] = {}
    names = ["root", "topic", "partition", "directory", "bytes_before", "bytes_after"]
    worked_on = pc.is_in(results["status"], pa.array([Status.DONE.value, Status.PLANNED.value]))
    for row in results.filter(worked_on).select(names).to_pylist():
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
