"""Compare partitions with their copies in another cluster: rows of ``schemas.DIFFERENCE``."""

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from pylog_spark.rows import rows_to_batches
from pylog_spark.schemas import DIFFERENCE
from pylog_spark.tasks.ahead import map_where_remote
from pylog_spark.tasks.differences import COMPARED, Row, name_of, side_columns, unreadable_rows
from storage_core.errors import describe_failure
from storage_core.maintenance.replication.copied_log import compare_copy
from storage_core.maintenance.replication.copy_report import CopyDifference
from storage_core.maintenance.replication.difference import DifferenceKind, Side
from storage_core.maintenance.replication.places import PartitionPlaces
from storage_core.maintenance.replication.resting_log import RestingLog, observe_log

NO_TIMES = "the copy's broker has set the timestamps: they were not compared"


@dataclass(frozen=True, slots=True, kw_only=True)
class CopyTarget:
    """A partition and its copy.

    Attributes:
        topic: Name of the original's topic.
        original: Where the replicas of the original lie; None where there is no such partition.
        copy: Where those of the copy lie; None where there is no such partition.
        syncs: int64[n, 2], offsets in the original and in the copy by a map; None without one.
    """

    topic: str
    original: PartitionPlaces | None
    copy: PartitionPlaces | None
    syncs: NDArray[np.int64] | None

    @property
    def name(self) -> PartitionPlaces:
        """The original, or the copy of none."""
        places = self.original or self.copy
        assert places is not None  # noqa: S101  # one of them is there
        return places


def compare_copies(targets: Sequence[CopyTarget]) -> Iterator[pa.RecordBatch]:
    """Compare partitions with their copies.

    Args:
        targets: The partitions.
    """
    compared = map_where_remote(_compare, targets, directory_of=_directory)
    yield from rows_to_batches(DIFFERENCE, (row for rows in compared for row in rows))


def _directory(target: CopyTarget) -> str:
    return next((place.directory for place in target.name.replicas), "")


def _compare(target: CopyTarget) -> list[Row]:
    """Return the rows of a partition, whatever is wrong with it."""
    started = time.perf_counter()
    name = name_of(target.name) | {"topic": target.topic}
    rows: list[Row] = []
    compared: Row = {**name, "kind": COMPARED, "crossed_bytes": 0, "undecided": 0, "untold": 0}
    try:
        logs = []
        for places in (target.original, target.copy):
            replicas = [] if places is None else list(map(observe_log, places.replicas))
            if places is not None:
                rows += [row | name for row in unreadable_rows(places, replicas)]
            logs.append(_choose(places, replicas))
        original, copy = logs
        if original is not None and copy is not None:
            answer = compare_copy(
                original,
                copy,
                target.syncs,
                is_compacted=(_is_compacted(target.original), _is_compacted(target.copy)),
            )
            rows += [name | _difference_row(each) for each in answer.differences]
            compared |= {
                "records": answer.records,
                "untold": answer.untold,
                "read_bytes": answer.read_bytes,
                "message": None if answer.has_times else NO_TIMES,
            }
        elif not rows:
            rows += [name | row for row in map(_absence_row, logs, (0, 1)) if row]
    except Exception as error:  # noqa: BLE001  # the row carries it; other partitions go on
        compared |= describe_failure(error)
    compared["duration_ms"] = round((time.perf_counter() - started) * 1000)
    return [*rows, compared]


def _choose(places: PartitionPlaces | None, logs: Sequence[RestingLog]) -> RestingLog | None:
    """Return the leader's log, else the longest; None without readable logs."""
    readable = [log for log in logs if log.view is not None]
    leader = None if places is None or places.state is None else places.state.leader
    readable.sort(key=lambda log: (log.place.broker != leader, -log.log_end_offset))
    return readable[0] if readable else None


def _is_compacted(places: PartitionPlaces | None) -> bool:
    return places is not None and places.state is not None and places.state.is_compacted


def _absence_row(log: RestingLog | None, number: int) -> Row | None:
    """Return the row of a partition in only one cluster.

    None where its log there has no record.

    Args:
        log: Its log there.
        number: 0 where it is the original, 1 where it is the copy.
    """
    if log is None or log.log_start_offset == log.log_end_offset:
        return None
    prefix, of_side = ("copy_", "") if number else ("", "other_")
    return {
        "kind": (DifferenceKind.EXTRA if number else DifferenceKind.MISSING).value,
        f"{prefix}first_offset": log.log_start_offset,
        f"{prefix}last_offset": log.log_end_offset - 1,
        "message": f"the {'original' if number else 'copy'} has no such partition",
        **{f"{of_side}{key}": value for key, value in side_columns(Side(log=log)).items()},
    }


def _difference_row(difference: CopyDifference) -> Row:
    return {
        "kind": difference.kind.value,
        "records": difference.records,
        "first_offset": difference.first_offset,
        "last_offset": difference.last_offset,
        "copy_first_offset": difference.copy_first_offset,
        "copy_last_offset": difference.copy_last_offset,
        "timestamp_ms": difference.timestamp_ms,
        "message": difference.message or None,
        **side_columns(difference.side),
        **{f"other_{name}": value for name, value in side_columns(difference.other).items()},
    }
