"""Run the waves of a recovery: spread partitions, write checkpoints."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa

from pylog_spark.engines.engine import Rows
from pylog_spark.operations.recover.task import (
    RecoveredLog,
    RecoveryContext,
    RecoveryWork,
    ScannedSegment,
    fold_partitions,
    recover_whole,
    scan_segments,
)
from pylog_spark.outcomes import Status
from pylog_spark.report import size_text
from pylog_spark.rows import row_writer
from pylog_spark.run.plan_table import Outcome, read_planned
from pylog_spark.run.planning import (
    LOOK_TASKS_PER_SLOT,
    Demand,
    WorkItem,
    WorkUnit,
    pack_units,
)
from pylog_spark.run.progress import ProgressMeter, progress_text
from pylog_spark.run.run import Run
from pylog_spark.run.waves import Outcomes
from pylog_spark.tasks.message import PART
from pylog_spark.tasks.run_context import PartitionRef, RunContext
from storage_core.checkpoint.checkpoints import log_start_entry
from storage_core.filenames import LOG_START_FILE, RECOVERY_POINT_FILE, REPLICATION_FILE
from storage_core.roots.root import HeldRoot

# A recovery that finds nothing to do still lists, reads small files and syncs: about this much.
_PARTITION_BYTES: Final = 4 * 1024 * 1024
# The task that folds a log holds what scans found: the indexes of all segments, 1/200 of a log.
_MOST_SPREAD_BYTES: Final = 200 << 30


@dataclass(frozen=True, slots=True, kw_only=True)
class DueRecovery:
    """A partition due for recovery, with the segments to read."""

    work: RecoveryWork  # what its tasks are told; of many segments they need no list
    scan_offsets: tuple[int, ...]
    scan_bytes: tuple[int, ...]

    @property
    def ref(self) -> PartitionRef:
        """Which one it is."""
        return self.work.ref

    @property
    def loaded_files(self) -> str | None:
        """None: it was not loaded yet."""
        return None

    @property
    def size_bytes(self) -> int:
        """Bytes that are to be read."""
        return sum(self.scan_bytes)


class RecoveryStages:
    """Recovers the partitions of a wave side by side.

    Args:
        run: The run; it holds the roots.
        may_write: Whether logs are put in order, or only looked at.
        meter: Told how far the reading has come; None for nobody.
    """

    def __init__(
        self,
        run: Run,
        context: RunContext,
        *,
        may_write: bool,
        meter: ProgressMeter | None = None,
    ) -> None:
        self._run = run
        self._context = context
        self._may_write = may_write
        self._meter = meter
        self._changed: set[str] = set()

    def demand(self, each: DueRecovery) -> Demand:
        """Return what a recovery needs: its segments are read."""
        return Demand(read_bytes=each.size_bytes)

    def title(self, due: Sequence[DueRecovery]) -> str:
        """Return the wave's title with the progress of earlier waves."""
        job = self._run.job
        size = size_text(sum(each.size_bytes for each in due))
        come = "" if self._meter is None else f" ({progress_text(self._meter.between_stages)})"
        return f"{job.title} {job.places}: recover {len(due)} partitions, {size}{come}"

    def prepare(self, root: HeldRoot, _due: Sequence[DueRecovery]) -> None:
        """Let the root's marker come back without a broker epoch. Records may be cut. Before they
        are: whoever finishes the wave after a kill knows only this."""
        root.disown_marker()

    def work(self, due: Sequence[DueRecovery], title: str) -> Outcomes:
        """Read segments, and put each log in order."""
        write = self._run.write_context(self._context) if self._may_write else None
        unit_bytes = self._run.unit_bytes(sum(each.size_bytes + _PARTITION_BYTES for each in due))
        spread = [
            each
            for each in due
            if unit_bytes < each.size_bytes <= _MOST_SPREAD_BYTES and len(each.scan_offsets) > 1
        ]
        ordinals = {each.ref.ordinal for each in spread}
        whole = [each for each in due if each.ref.ordinal not in ordinals]
        scan_units = self._scan_units(spread, unit_bytes)
        whole_units = self._whole_units(whole, unit_bytes)
        context = RecoveryContext(
            run=self._context,
            write=write,
            threads=self._run.readers_of([*scan_units, *whole_units]),
        )
        stages = []
        if spread:
            stages.append(self._spread_scans(spread, scan_units, context))
        if whole:
            stages.append(self._whole(whole_units, context))
        if len(stages) > 1 and self._run.disks.per_disk is None:
            # Beside each other; with a limit of tasks at a disk, each has to have it for itself.
            (scans, scan_sizes), (others, other_sizes) = stages
            stages = [(scans.union(others), scan_sizes + other_sizes)]
        outcomes: Outcomes = {}
        to_row = row_writer(RecoveredLog)
        for recovered, sizes in stages:
            watch: Any = nullcontext()
            if self._meter is not None:
                watch = self._meter.stage(sizes)
            with watch:
                logs = self._run.engine.receive(recovered, RecoveredLog, title)
            outcomes |= {
                log.ordinal: Outcome(
                    columns=to_row(log), duration_ms=log.duration_ms, was_touched=log.touched
                )
                for log in logs
            }
        return outcomes

    def _scan_units(
        self, due: Sequence[DueRecovery], unit_bytes: int
    ) -> list[WorkUnit[tuple[RecoveryWork, int]]]:
        """Return which task reads which segments of partitions that several tasks read."""
        return pack_units(
            (
                WorkItem(
                    value=(each.work, base),
                    size_bytes=size,
                    disk=self._run.disks.of(each.ref.root),
                )
                for each in due
                for base, size in zip(each.scan_offsets, each.scan_bytes, strict=True)
            ),
            unit_bytes=unit_bytes,
            per_disk=self._run.disks.per_disk,
        )

    def _spread_scans(
        self,
        due: Sequence[DueRecovery],
        units: Sequence[WorkUnit[tuple[RecoveryWork, int]]],
        context: RecoveryContext,
    ) -> tuple[Rows, list[tuple[int, int]]]:
        """Return the recovery of partitions whose segments are read by several tasks."""
        works = {each.ref.ordinal: each.work for each in due}
        folded_by, folds = self._lanes(due)

        def scan(items: Sequence[tuple[RecoveryWork, int]]) -> Iterator[ScannedSegment]:
            return scan_segments(items, folded_by, context)

        def fold(scans: Iterator[ScannedSegment]) -> Iterator[RecoveredLog]:
            return fold_partitions(scans, works, context)

        engine = self._run.engine
        scans = engine.spread([unit.values for unit in units], scan, ScannedSegment)
        ordered = scans.to_units(folds).sort_within("ordinal", "base_offset", PART)
        folded = engine.map_messages(ordered, ScannedSegment, fold, RecoveredLog)
        return folded, [(unit.size_bytes, len(unit.items)) for unit in units]

    def _lanes(self, due: Sequence[DueRecovery]) -> tuple[dict[int, int], int]:
        """Return each log's task, and the number of tasks. That task puts the log in order. What is
        at one disk has so many as tasks may be there at once."""
        disks = self._run.disks
        if disks.per_disk is None:
            tasks = min(len(due), LOOK_TASKS_PER_SLOT * self._run.engine.slots)
            return {each.ref.ordinal: number % tasks for number, each in enumerate(due)}, tasks
        items = (
            WorkItem(value=each.ref.ordinal, size_bytes=0, disk=disks.of(each.ref.root))
            for each in due
        )
        units = pack_units(items, unit_bytes=0, per_disk=disks.per_disk)
        return {n: lane for lane, unit in enumerate(units) for n in unit.values}, len(units)

    def _whole_units(
        self, due: Sequence[DueRecovery], unit_bytes: int
    ) -> list[WorkUnit[DueRecovery]]:
        """Return which task reads and puts in order which partitions, each whole."""
        return pack_units(
            (
                WorkItem(
                    value=each,
                    size_bytes=each.size_bytes + _PARTITION_BYTES,
                    disk=self._run.disks.of(each.ref.root),
                )
                for each in due
            ),
            unit_bytes=unit_bytes,
            per_disk=self._run.disks.per_disk,
        )

    def _whole(
        self, units: Sequence[WorkUnit[DueRecovery]], context: RecoveryContext
    ) -> tuple[Rows, list[tuple[int, int]]]:
        """Return the recovery of partitions handled by one task each. The task reads the
        partition and puts it in order."""
        listed = [[(each.work, each.size_bytes) for each in unit.values] for unit in units]

        def whole(items: Sequence[tuple[RecoveryWork, int]]) -> Iterator[RecoveredLog]:
            return recover_whole(items, context)

        recovered = self._run.engine.spread(listed, whole, RecoveredLog)
        sizes = [
            (sum(p.size_bytes for p in unit.values), sum(len(p.scan_offsets) for p in unit.values))
            for unit in units
        ]
        return recovered, sizes

    def settle(
        self, root: HeldRoot, due: Sequence[DueRecovery], outcomes: Mapping[int, Outcome]
    ) -> None:
        """Write the checkpoints of the wave's partitions in one log directory."""
        done = [
            (each.work, columns)
            for each in due
            if (columns := outcomes[each.ref.ordinal].columns)["status"] == Status.DONE
        ]
        root.write_checkpoints(
            {
                LOG_START_FILE: {
                    work.ref.partition: log_start_entry(
                        row["log_start_offset"], row["first_base_offset"]
                    )
                    for work, row in done
                },
                # Of those only that have one.
                REPLICATION_FILE: {
                    work.ref.partition: min(
                        max(mark, row["log_start_offset"]), row["log_end_offset"]
                    )
                    for work, row in done
                    if (mark := work.checkpoints.high_watermark) is not None
                },
                RECOVERY_POINT_FILE: {
                    work.ref.partition: row["log_end_offset"] for work, row in done
                },
            }
        )
        touched = any(outcomes[each.ref.ordinal].was_touched for each in due)
        if touched or any(row["steps"] for _, row in done):
            self._changed.add(root.location)
        if root.location not in self._changed:
            root.own_marker()
        points = {
            work.ref.partition: row["next_offset"]
            for work, row in done
            if row["next_offset"] is not None
        }
        root.settle_commits(points, is_whole=not touched)


def find_due_logs(partitions: pa.Table) -> list[DueRecovery]:
    """Return the partitions to recover, the most bytes to read first.

    Args:
        partitions: Rows of ``schemas.RECOVERY_WORK``; their numbers are the ordinals.
    """
    return sorted(read_planned(DueRecovery, partitions), key=lambda each: -each.size_bytes)
