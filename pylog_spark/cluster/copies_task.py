"""Compare partitions with their copies in another cluster."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pylog_spark.cluster.differences_task import (
    COMPARED,
    DifferenceRow,
    difference_columns,
    directory_of,
    log_name,
    name_of,
    side_columns,
    unreadable_rows,
)
from pylog_spark.tasks.ahead import map_where_remote
from pylog_spark.tasks.message import attempt
from storage_core.cluster.copied_log import compare_copy
from storage_core.cluster.copy_report import CopyDifference
from storage_core.cluster.differences import DifferenceKind, Side
from storage_core.cluster.places import PartitionPlaces
from storage_core.cluster.resting_log import RestingLog, observe_log

NO_TIMES = "the copy's broker has set the timestamps: they were not compared"


@dataclass(frozen=True, slots=True, kw_only=True)
class CopyTarget:
    """A partition and its copy."""

    topic: str  # name of the original's topic
    # Where the replicas of the original lie; None where there is no such partition.
    original: PartitionPlaces | None
    # Where those of the copy lie; None where there is no such partition.
    copy: PartitionPlaces | None
    # int64[n, 2], offsets in the original and in the copy by a map; None without one.
    syncs: NDArray[np.int64] | None

    @property
    def name(self) -> PartitionPlaces:
        """The original, or the copy of none."""
        places = self.original or self.copy
        assert places is not None  # noqa: S101  # one of them is there
        return places


def compare_copies(targets: Sequence[CopyTarget]) -> Iterator[DifferenceRow]:
    """Compare partitions with their copies."""
    compared = map_where_remote(
        _compare, targets, directory_of=lambda target: directory_of(target.name)
    )
    for rows in compared:
        yield from rows


def _compare(target: CopyTarget) -> list[DifferenceRow]:
    """Return the rows of a partition, whatever is wrong with it."""
    name = replace(name_of(target.name), topic=target.topic)
    rows: list[DifferenceRow] = []

    def compare(head: DifferenceRow) -> DifferenceRow:
        logs = []
        for places in (target.original, target.copy):
            replicas = [] if places is None else list(map(observe_log, places.replicas))
            if places is not None:
                unreadable = unreadable_rows(places, replicas)
                rows.extend(
                    replace(row, topic=name.topic, topic_id=name.topic_id) for row in unreadable
                )
            logs.append(_choose(places, replicas))
        original, copy = logs
        if original is None or copy is None:
            if not rows:
                absent = map(_absence_columns, logs, (0, 1))
                rows.extend(replace(name, **columns) for columns in absent if columns)
            return head
        answer = compare_copy(
            original,
            copy,
            target.syncs,
            is_compacted=(_is_compacted(target.original), _is_compacted(target.copy)),
        )
        rows.extend(replace(name, **_difference_columns(each)) for each in answer.differences)
        return replace(
            head,
            records=answer.records,
            untold=answer.untold,
            read_bytes=answer.read_bytes,
            message=None if answer.has_times else NO_TIMES,
        )

    compared = attempt(
        replace(name, kind=COMPARED, crossed_bytes=0, undecided=0, untold=0),
        compare,
        log_name(target.name),
    )
    return [*rows, compared]


def _choose(places: PartitionPlaces | None, logs: Sequence[RestingLog]) -> RestingLog | None:
    """Return the leader's log, else the longest; None without readable logs."""
    readable = [log for log in logs if log.view is not None]
    leader = None if places is None or places.state is None else places.state.leader
    readable.sort(key=lambda log: (log.place.broker != leader, -log.log_end_offset))
    return readable[0] if readable else None


def _is_compacted(places: PartitionPlaces | None) -> bool:
    return places is not None and places.state is not None and places.state.is_compacted


def _absence_columns(log: RestingLog | None, number: int) -> dict[str, Any] | None:
    """Return the columns of a partition in only one cluster. None where its log there has no
    record.

    Args:
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
        **side_columns(Side(log=log), of_side),
    }


def _difference_columns(difference: CopyDifference) -> dict[str, Any]:
    names = ("records", "copy_first_offset", "copy_last_offset", "timestamp_ms")
    return difference_columns(difference) | {name: getattr(difference, name) for name in names}
