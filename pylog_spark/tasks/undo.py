"""Undo a run in partitions, or foretell it: a row each.

Several partitions are undone beside each other.
"""

import json
import time
from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa

from pylog_spark.rows import rows_to_batches
from pylog_spark.schemas import STEPS, UNDONE, Reason, Status
from pylog_spark.tasks.ahead import is_remote, map_ahead, map_in_turns
from storage_core.errors import (
    ChangedWhileReadError,
    GuardRefusedError,
    LeaseLostError,
    describe_failure,
)
from storage_core.roots.undo import UndoT, UndoWork


def undo_partitions(
    undos: Sequence[UndoT], work: UndoWork[UndoT], status: Status
) -> Iterator[pa.RecordBatch]:
    """Undo partitions: a row of ``schemas.UNDONE`` of each that the run changed.

    Args:
        undos: The partitions, all of one root.
        work: Undoes one, or foretells that.
        status: Of those that were, or would be, undone.
    """

    def undo_one(undo: UndoT) -> dict[str, Any] | None:
        return _row(undo, work, status)

    map_each = map_ahead if any(is_remote(undo.location) for undo in undos) else map_in_turns
    yield from rows_to_batches(UNDONE, (row for row in map_each(undo_one, undos) if row))


def _row(undo: UndoT, work: UndoWork[UndoT], status: Status) -> dict[str, Any] | None:
    """Return the row of a partition; what is wrong is in it.

    None where the run changed nothing.
    """
    started = time.perf_counter()
    row: dict[str, Any] = {"directory": undo.location}
    try:
        undone = work(undo)
    except ChangedWhileReadError as error:
        row |= {"status": Status.SKIPPED.value, "reason": Reason.CHANGED_SINCE_RUN.value}
        row |= {"error": str(error)}
    except Exception as error:  # noqa: BLE001  # the row carries it; the other partitions go on
        if isinstance(error, GuardRefusedError) and not isinstance(error, LeaseLostError):
            row |= {"status": Status.SKIPPED.value, "reason": error.code, "error": error.reason}
        else:
            row |= {"status": Status.FAILED.value, **describe_failure(error)}
    else:
        if undone is None:
            return None
        if undone.is_needed:
            row["status"] = status.value
        else:
            row |= {"status": Status.SKIPPED.value, "reason": Reason.ALREADY_UNDONE.value}
        if status is Status.DONE:
            row[STEPS] = json.dumps(undone.steps)
        row |= {
            "bytes_before": undone.bytes_before,
            "bytes_after": undone.bytes_after,
            "segments_before": undone.segments_before,
            "segments_after": undone.segments_after,
        }
    return row | {"duration_ms": round((time.perf_counter() - started) * 1000)}
