"""Undo a run in partitions, or foretell it. Several partitions are undone beside each other."""

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, replace
from functools import partial

from pylog_spark.outcomes import Reason, Status
from pylog_spark.schemas import Failure, PartitionName
from pylog_spark.tasks.ahead import map_ahead, map_in_turns
from pylog_spark.tasks.message import DirectoryResult, attempt
from storage_core.errors import GuardRefusedError, StoreRefusedError
from storage_core.roots.root import UndoT, UndoWork


def undo_partitions(
    undos: Sequence[UndoT], work: UndoWork[UndoT], status: Status, *, in_turns: bool
) -> Iterator[DirectoryResult]:
    """Undo partitions; yield the results of those that the run changed.

    Args:
        in_turns: Whether the work moves files, which computes more than it waits.
    """

    def undo_one(undo: UndoT) -> DirectoryResult:
        head = DirectoryResult(directory=undo.location, status=Status.FAILED.value)
        name = PartitionName(**asdict(undo.partition))
        return attempt(head, partial(_undo, undo, work, status), name)

    map_each = map_in_turns if in_turns else map_ahead
    return (each for each in map_each(undo_one, undos) if each.status is not None)


def _undo(
    undo: UndoT, work: UndoWork[UndoT], status: Status, head: DirectoryResult
) -> DirectoryResult:
    """Undo a partition; its status is None where the run changed nothing."""
    skipped = replace(head, status=Status.SKIPPED.value)
    try:
        undone = work(undo)
    except StoreRefusedError:
        raise  # it keeps nobody's way back, and a second try may do it
    except GuardRefusedError as error:
        return replace(skipped, reason=error.code, failure=Failure(error=error.reason))
    if undone is None:
        return replace(head, status=None)
    return replace(
        head,
        status=(status if undone.is_needed else Status.SKIPPED).value,
        reason=None if undone.is_needed else Reason.ALREADY_UNDONE.value,
        steps=json.dumps(undone.steps) if undone.steps else None,
        bytes_before=undone.bytes_before,
        bytes_after=undone.bytes_after,
        segments_before=undone.segments_before,
        segments_after=undone.segments_after,
    )
