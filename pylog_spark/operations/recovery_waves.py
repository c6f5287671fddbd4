"""The stages of a wave of recovery: how its partitions are spread over tasks."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa
from pyspark.sql import DataFrame

from pylog_spark.operations.disks import Disks
from pylog_spark.operations.dispatch import Dispatcher
from pylog_spark.operations.due_partitions import planned_rows
from pylog_spark.operations.progress import ProgressMeter
from pylog_spark.options import Tuning
from pylog_spark.planning import LOOK_TASKS_PER_SLOT, WorkItem, choose_unit_bytes, pack_units
from pylog_spark.schemas import RECOVERED, SEGMENT_SCAN, Reason, Status
from pylog_spark.tasks.cells import PART
from pylog_spark.tasks.failures import describe_failure
from pylog_spark.tasks.recovery import (
    RecoveryContext,
    RecoveryWork,
    fold_partitions,
    recover_whole,
    scan_segments,
)
from storage_core.errors import StorageError
from storage_core.filenames import TopicPartition

# A recovery that finds nothing to do still lists, reads small files and syncs: about this much.
_PARTITION_BYTES: Final = 4 * 1024 * 1024
_MOST_PARTITIONS: Final = 5000
# The task that folds a log holds what scans found: the indexes of all segments, 1/200 of a log.
_MOST_SPREAD_BYTES: Final = 200 << 30


@dataclass(frozen=True, slots=True, kw_only=True)
class Due:
    """A partition that is to be recovered.

    Attributes:
        work: What its tasks are told.
        scan_offsets: Base offsets of the segments that are to be read.
        scan_bytes: Their sizes.
    """

    work: RecoveryWork
    scan_offsets: tuple[int, ...]
    scan_bytes: tuple[int, ...]

    @property
    def size_bytes(self) -> int:
        """Bytes that are to be read."""
        return sum(self.scan_bytes)


def find_due_logs(partitions: pa.Table) -> list[Due]:
    """Return the partitions that are to be recovered, those with most to be read first.

    Args:
        partitions: Rows of ``schemas.RECOVERY_WORK``; their numbers are the ordinals.
    """
    due = [
        Due(
            work=RecoveryWork(
                ordinal=ordinal,
                root=row["root"],
                directory=row["directory"],
                partition=TopicPartition(row["topic"], row["partition"]),
                is_clean=row["is_clean"],
                recovery_point=row["recovery_point"],
                log_start_offset=row["log_start_offset"],
                high_watermark=row["high_watermark"],
            ),
            scan_offsets=tuple(row["scan_offsets"]),
            scan_bytes=tuple(row["scan_bytes"]),
        )
        for ordinal, row in planned_rows(partitions)
    ]
    due.sort(key=lambda partition: -partition.size_bytes)
    return due


class WaveRunner:
    """Recovers the partitions of a wave side by side.

    Args:
        dispatcher: Starts the stages.
        tuning: How work is spread over tasks.
        disks: How many tasks may be at one local disk.
    """

    def __init__(self, dispatcher: Dispatcher, tuning: Tuning, disks: Disks) -> None:
        self._dispatcher = dispatcher
        self._tuning = tuning
        self._disks = disks

    def run(
        self,
        due: Sequence[Due],
        context: RecoveryContext,
        title: str,
        meter: ProgressMeter | None = None,
        *,
        failures: Mapping[str, StorageError] | None = None,
    ) -> list[dict[str, Any]]:
        """Recover partitions side by side; return a row of ``schemas.RECOVERED`` for each.

        Args:
            due: The partitions, at least one.
            context: What their tasks share.
            title: Shown as the name of the Spark job.
            meter: Told how far it has come, None for nobody.
            failures: What disks have failed with, by log directory: what lies there fails with it
                and gets no tasks. None for nothing.
        """
        failures = failures or {}
        rows = [_failed(p, failures[p.work.root]) for p in due if p.work.root in failures]
        due = [partition for partition in due if partition.work.root not in failures]
        if not due:
            return rows
        tuning = self._tuning
        total_bytes = sum(partition.size_bytes + _PARTITION_BYTES for partition in due)
        unit_bytes = choose_unit_bytes(
            total_bytes,
            slots=self._dispatcher.slots,
            least_bytes=tuning.unit_min_bytes,
            most_bytes=tuning.unit_max_bytes,
        )
        spread = [
            p
            for p in due
            if unit_bytes < p.size_bytes <= _MOST_SPREAD_BYTES and len(p.scan_offsets) > 1
        ]
        chosen = {partition.work.ordinal for partition in spread}
        whole = [p for p in due if p.work.ordinal not in chosen]
        stages = []
        if spread:
            stages.append(self._spread_scans(spread, context, unit_bytes))
        if whole:
            stages.append(self._whole(whole, context, unit_bytes))
        if len(stages) > 1 and self._disks.per_disk is None:
            # Beside each other; with a limit of tasks at a disk, each has to have it for itself.
            (scans, scan_sizes), (others, other_sizes) = stages
            stages = [(scans.unionByName(others), scan_sizes + other_sizes)]
        for frame, sizes in stages:
            watch: Any = nullcontext()
            if meter is not None:
                watch = meter.stage([size for size, _ in sizes], [count for _, count in sizes])
            with watch:
                rows += self._dispatcher.collect(frame, RECOVERED, title).to_pylist()
        return rows

    def _spread_scans(
        self, due: Sequence[Due], context: RecoveryContext, unit_bytes: int
    ) -> tuple[DataFrame, list[tuple[int, int]]]:
        """Return the recovery of partitions whose segments are read by several tasks."""
        works = {partition.work.ordinal: partition.work for partition in due}
        folded_by, folds = self._lanes(works)
        units = pack_units(
            (
                WorkItem(
                    ordinal=partition.work.ordinal,
                    number=base,
                    size_bytes=size,
                    disk=self._disks.of(partition.work.root),
                )
                for partition in due
                for base, size in zip(partition.scan_offsets, partition.scan_bytes, strict=True)
            ),
            unit_bytes=unit_bytes,
            per_disk=self._disks.per_disk,
        )
        listed = [[(works[item.ordinal], item.number) for item in unit.items] for unit in units]

        def scan(items: Sequence[tuple[RecoveryWork, int]]) -> Iterator[pa.RecordBatch]:
            return scan_segments(items, folded_by, context)

        def fold(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            return fold_partitions(batches, works, context)

        scans = self._dispatcher.spread(listed, scan, SEGMENT_SCAN)
        ordered = self._dispatcher.to_units(scans, folds).sortWithinPartitions(
            "ordinal", "base_offset", PART
        )
        frame = self._dispatcher.map_rows(ordered, fold, RECOVERED)
        return frame, [
            (sum(item.size_bytes for item in unit.items), len(unit.items)) for unit in units
        ]

    def _lanes(self, works: Mapping[int, RecoveryWork]) -> tuple[dict[int, int], int]:
        """Return which task puts each log in order, and how many tasks there are.

        What is at one disk has so many as tasks may be there at once.
        """
        if self._disks.per_disk is None:
            tasks = min(len(works), LOOK_TASKS_PER_SLOT * self._dispatcher.slots)
            return {ordinal: number % tasks for number, ordinal in enumerate(works)}, tasks
        items = (
            WorkItem(ordinal=n, number=0, size_bytes=0, disk=self._disks.of(work.root))
            for n, work in works.items()
        )
        units = pack_units(items, unit_bytes=0, per_disk=self._disks.per_disk)
        lane_of = {item.ordinal: lane for lane, unit in enumerate(units) for item in unit.items}
        return lane_of, len(units)

    def _whole(
        self, due: Sequence[Due], context: RecoveryContext, unit_bytes: int
    ) -> tuple[DataFrame, list[tuple[int, int]]]:
        """Return the recovery of partitions that one task each reads and puts in order."""
        by_ordinal = {partition.work.ordinal: partition for partition in due}
        units = pack_units(
            (
                WorkItem(
                    ordinal=partition.work.ordinal,
                    number=0,
                    size_bytes=partition.size_bytes + _PARTITION_BYTES,
                    disk=self._disks.of(partition.work.root),
                )
                for partition in due
            ),
            unit_bytes=unit_bytes,
            per_disk=self._disks.per_disk,
        )
        members = [[by_ordinal[item.ordinal] for item in unit.items] for unit in units]
        listed = [[partition.work for partition in unit] for unit in members]

        def whole(items: Sequence[RecoveryWork]) -> Iterator[pa.RecordBatch]:
            return recover_whole(items, context)

        frame = self._dispatcher.spread(listed, whole, RECOVERED)
        sizes = [
            (sum(p.size_bytes for p in unit), sum(len(p.scan_offsets) for p in unit))
            for unit in members
        ]
        return frame, sizes


def leave_out(partition: Due, reason: Reason, why: str) -> dict[str, Any]:
    """Return the row of ``schemas.RECOVERED`` of a partition that is not begun any more."""
    return _unbegun(partition, Status.SKIPPED) | {"reason": reason.value, "error": why}


def _failed(partition: Due, error: StorageError) -> dict[str, Any]:
    """Return the row of a partition whose log directory is out of the run."""
    return _unbegun(partition, Status.FAILED) | describe_failure(error)


def _unbegun(partition: Due, status: Status) -> dict[str, Any]:
    row: dict[str, Any] = dict.fromkeys(RECOVERED.names)
    return row | {"ordinal": partition.work.ordinal, "status": status.value, "touched": False}


def cut_into_waves(due: Sequence[Due], most_bytes: int) -> list[list[Due]]:
    """Put partitions together that are recovered together.

    Args:
        due: The partitions, in the order in which they are to be recovered.
        most_bytes: A wave reads at most so much, unless one partition alone has more.
    """
    waves: list[list[Due]] = []
    used = 0
    for partition in due:
        if (
            waves
            and used + partition.size_bytes <= most_bytes
            and len(waves[-1]) < _MOST_PARTITIONS
        ):
            waves[-1].append(partition)
            used += partition.size_bytes
        else:
            waves.append([partition])
            used = partition.size_bytes
    return waves
