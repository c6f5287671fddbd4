"""Choose the partitions to clean from a table of plans. Each comes with its strategy."""

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from pylog_spark.operations.compact.task import CompactionWork
from pylog_spark.options import Strategy, Tuning
from pylog_spark.run.disks import Disks
from pylog_spark.run.plan_table import read_planned
from pylog_spark.run.planning import (
    MANY_SLOTS,
    MAP_ENTRY_BYTES,
    Demand,
    MapBudgets,
    broadcast_budget,
    choose_buckets,
    choose_strategy,
    choose_unit_bytes,
    count_records_at_most,
    estimate_map_bytes,
)
from pylog_spark.run.run import Run
from pylog_spark.schemas import Status
from pylog_spark.tasks.cells import MOST_CELL_BYTES
from pylog_spark.tasks.observe import decode_plan
from pylog_spark.tasks.partition_ref import PartitionRef
from storage_core.maintenance.compaction.plan import map_capacity

_NAMED_PARTITIONS: Final = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class CompactionLimits:
    """How much one task and one wave are given."""

    least_unit_bytes: int
    most_unit_bytes: int
    budget_bytes: int  # bytes of offset maps published together
    slots: int  # tasks that run at the same time
    can_broadcast: bool  # whether the session has broadcast variables
    max_keys: int | None  # keys that an offset map may hold, None without a limit
    strategy: Strategy = Strategy.AUTO  # what the caller asks for
    # Bytes of an offset map that one task may merge in scratch files.
    files_bytes: int = Tuning().files_max_bytes
    # Bytes of key entries that one task gets where keys are exchanged.
    bucket_bytes: int = Tuning().shuffle_bucket_bytes
    wave_bytes: int = Tuning().wave_max_bytes  # bytes of segments that a wave may hold
    wave_tasks: int = Tuning().wave_max_tasks  # segments that a wave may hold
    disks: Disks = field(default_factory=Disks)  # how many tasks may be at one local disk
    lone_threads: int = 1  # how many threads a task may use that runs alone

    @classmethod
    def of(cls, run: Run, strategy: Strategy) -> "CompactionLimits":
        """Return what a run gives.

        Args:
            strategy: What a caller asks for wins over the run's option; AUTO asks for nothing.
        """
        options, engine, tuning = run.job.options, run.engine, run.job.options.tuning
        return cls(
            least_unit_bytes=tuning.unit_min_bytes,
            most_unit_bytes=tuning.unit_max_bytes,
            # Without broadcasts the plans of a wave are values in Spark's own plan.
            budget_bytes=broadcast_budget(tuning.broadcast_max_bytes, heap_bytes=engine.heap_bytes)
            if engine.can_broadcast
            else MOST_CELL_BYTES,
            slots=engine.slots,
            can_broadcast=engine.can_broadcast,
            max_keys=map_capacity(options.cleaner),
            strategy=Strategy(options.strategy) if strategy is Strategy.AUTO else strategy,
            files_bytes=tuning.files_max_bytes,
            bucket_bytes=tuning.shuffle_bucket_bytes,
            wave_bytes=tuning.wave_max_bytes,
            wave_tasks=tuning.wave_max_tasks,
            disks=run.disks,
            lone_threads=engine.threads_of(1),
        )

    @property
    def of_wave(self) -> Demand:
        """What one wave may need."""
        return Demand(
            map_bytes=self.budget_bytes,
            disk_bytes=sys.maxsize,
            read_bytes=self.wave_bytes,
            tasks=self.wave_tasks,
        )

    def unit_bytes(self, total_bytes: int) -> int:
        """Return one task's share of the bytes to read."""
        return choose_unit_bytes(
            total_bytes,
            slots=self.slots,
            least_bytes=self.least_unit_bytes,
            most_bytes=self.most_unit_bytes,
        )

    def whole_bytes(self, partitions: int, total_bytes: int) -> int:
        """Return up to which size a partition gains nothing from several tasks.

        To put together what they have found costs more than half of what they have done. So one
        task cleans what is a slot's share of all work, or all of it by threads on all slots.
        """
        if partitions == 1 and self.lone_threads >= self.slots and self.slots < MANY_SLOTS:
            return sys.maxsize
        share = min(self.most_unit_bytes, total_bytes // max(1, self.slots))
        return max(self.unit_bytes(total_bytes), share)


@dataclass(frozen=True, slots=True, kw_only=True)
class DueCompaction:
    """A partition that is to be cleaned."""

    ref: PartitionRef
    plans: pa.Table = field(repr=False, compare=False)
    size_bytes: int
    segment_bytes: tuple[int, ...]  # the size of each of them; none where one task cleans all
    extra_bytes: int  # upper bound of the disk space that it needs meanwhile
    map_bytes: int  # upper bound of its merged index
    plan_bytes: int  # bytes of its plan where that travels inside of closures, 0 where it does not
    strategy: Strategy
    buckets: int = 1  # into how many its keys are dealt out, where they are

    @property
    def work(self) -> CompactionWork:
        """The partition's work, as tasks are told of it. It is read from the table, which many
        partitions make large."""
        return CompactionWork(
            ref=self.ref,
            log_start_checkpoint=self.plans["log_start_checkpoint"][self.ref.ordinal].as_py(),
            plan=self.plans["plan"][self.ref.ordinal].as_py(),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class _PlannedRound:
    """What of a planned row of ``schemas.PLAN`` its strategy follows from."""

    ref: PartitionRef
    first_dirty_offset: int
    first_uncleanable_offset: int
    cleanable_bytes: int
    peak_extra_bytes: int
    segment_bytes: tuple[int, ...]


def find_due_compactions(
    plans: pa.Table, limits: CompactionLimits, *, shares_files: Callable[[str], bool]
) -> list[DueCompaction]:
    """Return the planned rows in table order, each with its strategy.

    Args:
        plans: Rows of ``schemas.PLAN``.
        limits: How much one task and one wave are given.
        shares_files: Whether the tasks on a root share a scratch folder.
    """
    due = []
    # Of all that is due: where many partitions fill the slots, to cut each of them up gains
    # nothing, and costs two more stages, and what a task that does both passes keeps.
    planned = plans.filter(pc.equal(plans["status"], Status.PLANNED.value))
    total_bytes = pc.sum(pc.list_flatten(planned["segment_bytes"])).as_py() or 0
    whole_bytes = limits.whole_bytes(planned.num_rows, total_bytes)
    for each in read_planned(_PlannedRound, plans):
        plan = plans["plan"][each.ref.ordinal]
        map_bytes = estimate_map_bytes(
            offset_span=each.first_uncleanable_offset - each.first_dirty_offset,
            dirty_bytes=each.cleanable_bytes,
            capacity=limits.max_keys,
        )
        size_bytes = sum(each.segment_bytes)
        strategy = choose_strategy(
            asked=limits.strategy,
            is_one_unit=len(each.segment_bytes) == 1 or size_bytes <= whole_bytes,
            map_bytes=map_bytes,
            budgets=MapBudgets(
                broadcast_bytes=limits.budget_bytes,
                files_bytes=limits.files_bytes,
                can_broadcast=limits.can_broadcast,
                # Of what tasks share in files nobody could say how many read them at once.
                can_share_files=shares_files(each.ref.root) and limits.disks.per_disk is None,
                slots=limits.slots,
            ),
            is_bounded=limits.max_keys is not None,
        )
        buckets = 1
        if strategy is Strategy.SHUFFLE:
            first_base = decode_plan(plan.as_py()).segments[0].base_offset
            entries = count_records_at_most(
                offset_span=each.first_uncleanable_offset - first_base, size_bytes=size_bytes
            )
            buckets = choose_buckets(
                entry_bytes=entries * MAP_ENTRY_BYTES,
                bucket_bytes=limits.bucket_bytes,
                slots=limits.slots,
            )
        due.append(
            DueCompaction(
                ref=each.ref,
                plans=plans,
                size_bytes=size_bytes,
                segment_bytes=() if strategy is Strategy.WHOLE else each.segment_bytes,
                extra_bytes=each.peak_extra_bytes,
                map_bytes=map_bytes,
                plan_bytes=0 if limits.can_broadcast else plan.as_buffer().size,
                strategy=strategy,
                buckets=buckets,
            )
        )
    return due


def name_partitions(partitions: Sequence[DueCompaction]) -> str:
    """Name partitions for a title; of many, only the first few."""
    names = [str(partition.ref.partition) for partition in partitions[:_NAMED_PARTITIONS]]
    more = len(partitions) - len(names)
    return ", ".join(names) + (f" and {more} more" if more else "")
