"""The stages of a wave of recovery: how its partitions are spread over tasks."""

from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa
from pyspark.sql import DataFrame

from pylog_spark.config import Tuning
from pylog_spark.operations.dispatch import Dispatcher
from pylog_spark.operations.job import OBSERVE_TASKS_PER_SLOT
from pylog_spark.operations.progress import ProgressMeter
from pylog_spark.planning import WorkItem, choose_unit_bytes, pack_units
from pylog_spark.schemas import RECOVERED, SEGMENT_SCAN, spark_ddl
from pylog_spark.tasks.recovery import (
    RecoveryContext,
    RecoveryWork,
    fold_partition,
    recover_whole,
    scan_segments,
)

# A recovery that finds nothing to do still lists, reads small files and syncs: about this much.
_PARTITION_BYTES: Final = 4 * 1024 * 1024
_MOST_PARTITIONS: Final = 5000
# What scans found goes to the task that folds a log in one Arrow batch, of 2 GiB at most; indexes
# take about 1/200 of a log.
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


class WaveRunner:
    """Recovers the partitions of a wave side by side.

    Args:
        dispatcher: Starts the stages.
        tuning: How work is spread over tasks.
    """

    def __init__(self, dispatcher: Dispatcher, tuning: Tuning) -> None:
        self._dispatcher = dispatcher
        self._tuning = tuning

    def run(
        self,
        due: Sequence[Due],
        context: RecoveryContext,
        title: str,
        meter: ProgressMeter | None = None,
    ) -> list[dict[str, Any]]:
        """Recover partitions side by side; return a row of ``schemas.RECOVERED`` for each.

        Args:
            due: The partitions, at least one.
            context: What their tasks share.
            title: Shown as the name of the Spark job.
            meter: Told how far it has come, None for nobody.
        """
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
        frames = []
        sizes: list[tuple[int, int]] = []
        if spread:
            frame, units = self._spread_scans(spread, context, unit_bytes)
            frames.append(frame)
            sizes += units
        if whole:
            frame, units = self._whole(whole, context, unit_bytes)
            frames.append(frame)
            sizes += units
        frame = frames[0] if len(frames) == 1 else frames[0].unionByName(frames[1])
        watch: Any = nullcontext()
        if meter is not None:
            watch = meter.stage([size for size, _ in sizes], [count for _, count in sizes])
        with watch:
            rows: list[dict[str, Any]] = self._dispatcher.collect(
                frame, RECOVERED, title
            ).to_pylist()
            return rows

    def _spread_scans(
        self, due: Sequence[Due], context: RecoveryContext, unit_bytes: int
    ) -> tuple[DataFrame, list[tuple[int, int]]]:
        """Return the recovery of partitions whose segments are read by several tasks."""
        works = {partition.work.ordinal: partition.work for partition in due}
        units = pack_units(
            (
                WorkItem(ordinal=partition.work.ordinal, number=base, size_bytes=size)
                for partition in due
                for base, size in zip(partition.scan_offsets, partition.scan_bytes, strict=True)
            ),
            unit_bytes=unit_bytes,
        )
        listed = [[(works[item.ordinal], item.number) for item in unit.items] for unit in units]

        def scan(items: Sequence[tuple[RecoveryWork, int]]) -> Iterator[pa.RecordBatch]:
            return scan_segments(items, context)

        def fold(rows: pa.Table) -> pa.Table:
            return fold_partition(rows, works, context)

        scans = self._dispatcher.spread(listed, scan, SEGMENT_SCAN)
        tasks = min(len(due), OBSERVE_TASKS_PER_SLOT * self._dispatcher.slots)
        frame = (
            scans.repartition(tasks, "ordinal")
            .groupBy("ordinal")
            .applyInArrow(fold, spark_ddl(RECOVERED))
        )
        return frame, [
            (sum(item.size_bytes for item in unit.items), len(unit.items)) for unit in units
        ]

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
                )
                for partition in due
            ),
            unit_bytes=unit_bytes,
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
