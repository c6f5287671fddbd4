"""Undo partitions of a broker's log directory, or foretell the undo.

Small partitions are undone beside each other.

A task may be done twice: what another attempt has undone is found to be undone, and what it left
in the middle is finished. Two attempts never work on a partition at the same time.
"""

import json
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa

from pylog_spark.rows import rows_to_batches
from pylog_spark.schemas import STEPS, UNDONE, Reason, Status
from pylog_spark.tasks.ahead import map_in_turns
from storage_core.catalog.off_switch import OFF_SWITCH_FILE, is_switched_off
from storage_core.commit.undo import UndonePartition, check_partition, is_undone, undo_partition
from storage_core.errors import (
    ChangedWhileReadError,
    GuardRefusedError,
    PartitionNotFoundError,
    describe_failure,
)
from storage_core.filenames import LOG_START_FILE, TopicPartition
from storage_core.log.leftovers import plan_settling
from storage_core.roots.broker import BrokerAccess
from storage_core.store import LocalStore


@dataclass(frozen=True, slots=True, kw_only=True)
class RaisedStart:
    """A log start possibly left raised by a killed run.

    The run raised it before its commit began.

    Attributes:
        raised: To what the run raised it.
        before: What it was, None without an entry in the checkpoint.
        now: What it is, None without an entry.
    """

    raised: int
    before: int | None
    now: int | None

    @property
    def is_left(self) -> bool:
        """Whether records below it are hidden that the run has not removed."""
        return self.now == self.raised != self.before

    def verify(self) -> None:
        """Check that the log start is as raised, or as before.

        Raises:
            ChangedWhileReadError: Somebody else has moved it.
        """
        if self.now not in {self.raised, self.before}:
            raise ChangedWhileReadError(
                LOG_START_FILE, f"the entry {self.raised} or {self.before}", str(self.now)
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionUndo:
    """One partition of a run that is to be undone.

    Attributes:
        root: Its log directory.
        directory: Its own.
        partition: Its name.
        commits: The trash of the run's commits on it, oldest first; none where the run was killed
            before it began with one.
        actions: What these commits did.
        start: Its log start, where the run may have raised it for a commit that did not end.
    """

    root: str
    directory: Path
    partition: TopicPartition
    commits: tuple[Path, ...]
    actions: frozenset[str] = frozenset()
    start: RaisedStart | None = None

    @property
    def has_raised_start(self) -> bool:
        """Whether its log start is as the run raised it."""
        return self.start is not None and self.start.is_left

    def is_undone(self) -> bool:
        """Return whether the partition is exactly as before the run.

        It is not if it is gone.
        """
        if self.has_raised_start:
            return False
        try:
            return not self.commits or is_undone(LocalStore(self.directory), self.commits)
        except PartitionNotFoundError:
            return False


def check_undos(undos: Sequence[PartitionUndo]) -> Iterator[pa.RecordBatch]:
    """Foretell the undo of partitions; write nothing; yield a row each.

    The rows are of ``schemas.UNDONE``.
    """
    rows = (_row(undo, partial(_check, undo), Status.PLANNED) for undo in undos)
    yield from rows_to_batches(UNDONE, rows)


def undo_partitions(
    undos: Sequence[PartitionUndo], access: BrokerAccess
) -> Iterator[pa.RecordBatch]:
    """Undo partitions: a row of ``schemas.UNDONE`` each.

    Args:
        undos: The partitions, each of which the run may commit.
        access: Their log directory.
    """

    def undo_one(undo: PartitionUndo) -> dict[str, Any]:
        return _row(undo, partial(_undo, undo, access), Status.DONE)

    yield from rows_to_batches(UNDONE, map_in_turns(undo_one, undos))


def _check(undo: PartitionUndo) -> UndonePartition:
    _verify(undo)
    return check_partition(LocalStore(undo.directory), undo.commits)


def _undo(undo: PartitionUndo, access: BrokerAccess) -> UndonePartition:
    with access.alone(str(undo.directory)) as store:
        _verify(undo)
        return undo_partition(store, undo.commits, settling=plan_settling)


def _verify(undo: PartitionUndo) -> None:
    """Refuse a switched-off directory or a log start moved since.

    The owner has switched it off; somebody has moved the log start.
    """
    if is_switched_off(str(undo.directory)):
        why = f"{undo.directory}: {OFF_SWITCH_FILE}"
        raise GuardRefusedError(Reason.SWITCHED_OFF.value, why)
    if undo.start is not None and not undo.commits:
        undo.start.verify()


def _row(
    undo: PartitionUndo, work: Callable[[], UndonePartition], status: Status
) -> dict[str, Any]:
    """Return the row of a partition; what is wrong is in it."""
    started = time.perf_counter()
    row: dict[str, Any] = {"directory": str(undo.directory)}
    try:
        done = work()
    except ChangedWhileReadError as error:
        row |= {"status": Status.SKIPPED.value, "reason": Reason.CHANGED_SINCE_RUN.value}
        row |= {"error": str(error)}
    except GuardRefusedError as error:
        row |= {"status": Status.SKIPPED.value, "reason": error.code, "error": error.reason}
    except Exception as error:  # noqa: BLE001  # the row carries it; the other partitions go on
        row |= {"status": Status.FAILED.value, **describe_failure(error)}
    else:
        if not done.steps and not undo.has_raised_start:
            row |= {"status": Status.SKIPPED.value, "reason": Reason.ALREADY_UNDONE.value}
        else:
            row["status"] = status.value
        if status is Status.DONE:
            row[STEPS] = json.dumps([step for plan in done.plans for step in plan.describe()])
        row |= {
            "bytes_before": done.bytes_before,
            "bytes_after": done.bytes_after,
            "segments_before": done.segments_before,
            "segments_after": done.segments_after,
        }
    return row | {"duration_ms": round((time.perf_counter() - started) * 1000)}
