"""Choose how each partition is compacted, and run the stages of both passes over many tasks.

Of a partition whose keys one task merges, a job makes pass one and the merge, another one pass two.
Of a partition whose keys are exchanged by hash, one job makes both passes.
"""

import sys
from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import groupby
from operator import attrgetter
from typing import Final, TypeVar

import pyarrow as pa
import pyarrow.compute as pc

from pylog_spark.engines.engine import AnyEngine, Published
from pylog_spark.operations.compact.pass_task import (
    ExchangeMessage,
    Item,
    PartitionKeyIndex,
    PassWork,
    RewrittenGroup,
    Route,
    SegmentKeyIndex,
    answer_keys,
    index_segments,
    merge_partitions,
    rewrite_exchanged,
    rewrite_groups,
    send_keys,
)
from pylog_spark.operations.compact.task import CompactionWork
from pylog_spark.options import Strategy, Tuning
from pylog_spark.outcomes import Status
from pylog_spark.run.plan_table import read_planned
from pylog_spark.run.planning import (
    MANY_SLOTS,
    MAP_ENTRY_BYTES,
    Demand,
    Disks,
    MapBudgets,
    WorkItem,
    broadcast_budget,
    choose_buckets,
    choose_strategy,
    choose_unit_bytes,
    count_records_at_most,
    estimate_map_bytes,
    level_units,
    pack_units,
)
from pylog_spark.run.run import Run
from pylog_spark.run.waves import Outcomes
from pylog_spark.tasks.message import MOST_CELL_BYTES, PART
from pylog_spark.tasks.observe import decode_plan
from pylog_spark.tasks.run_context import PartitionRef, WriteContext
from storage_core.errors import OffsetOverflowError
from storage_core.json_values import from_json
from storage_core.maintenance.compaction.index import IndexStats
from storage_core.maintenance.compaction.partition import CleanedPartition
from storage_core.maintenance.compaction.plan import group_segments, map_capacity
from storage_core.maintenance.compaction.rewrite import CleanedGroup

_NAMED_PARTITIONS: Final = 3
# Partitions are dealt out to the tasks that merge; with some for each slot a long one is no tail.
MERGE_TASKS_PER_SLOT: Final = 4

T = TypeVar("T")


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
    task_map_bytes: int = Tuning().files_max_bytes  # bytes of an offset map that one task may build
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
            task_map_bytes=tuning.files_max_bytes,
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

    @property
    def of_maps(self) -> MapBudgets:
        """How large offset maps may be."""
        return MapBudgets(
            broadcast_bytes=self.budget_bytes,
            task_bytes=self.task_map_bytes,
            can_broadcast=self.can_broadcast,
            slots=self.slots,
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
    loaded_files: str | None  # as ``changes_since_plan`` takes it
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
            loaded_files=self.loaded_files,
            load_writes=self.plans["load_writes"][self.ref.ordinal].as_py(),
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
    loaded_files: str | None


def find_due_compactions(plans: pa.Table, limits: CompactionLimits) -> list[DueCompaction]:
    """Return the planned rows in table order, each with its strategy.

    Args:
        plans: Rows of ``schemas.PLAN``.
    """
    # Of all that is due: where many partitions fill the slots, to cut each of them up gains
    # nothing, and costs two more stages, and what a task that does both passes keeps.
    planned = plans.filter(pc.equal(plans["status"], Status.PLANNED.value))
    total_bytes = pc.sum(pc.list_flatten(planned["segment_bytes"])).as_py() or 0
    whole_bytes = limits.whole_bytes(planned.num_rows, total_bytes)
    rounds = read_planned(_PlannedRound, plans)
    return [_due_compaction(each, plans, limits, whole_bytes) for each in rounds]


def _due_compaction(
    planned: _PlannedRound, plans: pa.Table, limits: CompactionLimits, whole_bytes: int
) -> DueCompaction:
    plan = plans["plan"][planned.ref.ordinal]
    size_bytes = sum(planned.segment_bytes)
    map_bytes = estimate_map_bytes(
        offset_span=planned.first_uncleanable_offset - planned.first_dirty_offset,
        dirty_bytes=planned.cleanable_bytes,
        capacity=limits.max_keys,
    )
    strategy = choose_strategy(
        asked=limits.strategy,
        is_one_unit=len(planned.segment_bytes) == 1 or size_bytes <= whole_bytes,
        map_bytes=map_bytes,
        budgets=limits.of_maps,
        is_bounded=limits.max_keys is not None,
    )
    buckets = 1
    if strategy is Strategy.SHUFFLE:
        first_base = decode_plan(plan.as_py()).segments[0].base_offset
        entries = count_records_at_most(
            offset_span=planned.first_uncleanable_offset - first_base, size_bytes=size_bytes
        )
        buckets = choose_buckets(
            entry_bytes=entries * MAP_ENTRY_BYTES,
            bucket_bytes=limits.bucket_bytes,
            slots=limits.slots,
        )
    return DueCompaction(
        ref=planned.ref,
        plans=plans,
        loaded_files=planned.loaded_files,
        size_bytes=size_bytes,
        segment_bytes=() if strategy is Strategy.WHOLE else planned.segment_bytes,
        extra_bytes=planned.peak_extra_bytes,
        map_bytes=map_bytes,
        plan_bytes=0 if limits.can_broadcast else plan.as_buffer().size,
        strategy=strategy,
        buckets=buckets,
    )


def name_partitions(partitions: Sequence[DueCompaction]) -> str:
    """Name partitions for a title; of many, only the first few."""
    names = [str(partition.ref.partition) for partition in partitions[:_NAMED_PARTITIONS]]
    more = len(partitions) - len(names)
    return ", ".join(names) + (f" and {more} more" if more else "")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Begun:
    """A partition before pass two."""

    due: DueCompaction
    group_bytes: tuple[int, ...]
    end_offset: int  # its cleaner point after the round
    index: IndexStats  # what pass one read and found, as long as no group tells
    index_ms: int | None = None  # time that tasks spent on pass one, None where it is not apart

    @classmethod
    def of_exchange(cls, due: DueCompaction) -> "_Begun":
        """Return a partition whose keys are exchanged. Its plan says its groups."""
        plan = decode_plan(due.work.plan)
        groups = group_segments(plan, plan.end_offset)
        return cls(
            due=due,
            group_bytes=tuple(sum(segment.size_bytes for segment in group) for group in groups),
            end_offset=plan.end_offset,
            index=IndexStats(bytes_read=0, messages_read=0, keys=0),
        )

    def cleaned(self, groups: Sequence[RewrittenGroup]) -> CleanedPartition:
        """Return the partition as both passes left it."""
        told = next((group.numbers for group in groups if group.numbers is not None), None)
        spent_ms = sum(group.duration_ms for group in groups) + (self.index_ms or 0)
        return CleanedPartition(
            end_offset=self.end_offset,
            groups=tuple(from_json(CleanedGroup, group.manifest) for group in groups),
            index=self.index if told is None else from_json(IndexStats, told),
            spent_secs=spent_ms / 1000,
            index_secs=None if self.index_ms is None else self.index_ms / 1000,
        )


class PassStages:
    """The stages of both passes, for the partitions of one wave.

    Args:
        title: Names the wave where stages are shown.
    """

    def __init__(
        self, engine: AnyEngine, limits: CompactionLimits, context: WriteContext, title: str
    ) -> None:
        self._engine = engine
        self._limits = limits
        self._context = context
        self._title = title

    def clean(
        self, due: Sequence[DueCompaction], outcomes: Outcomes
    ) -> dict[int, CleanedPartition]:
        """Run both passes.

        Args:
            due: Partitions of any strategy but WHOLE.
            outcomes: Of all of them; gets errors and the time that was spent.

        Returns:
            What can be committed, by ordinal. A partition that is neither here nor ended has a
            merged index above its bound, or a segment to be split: it is to be cleaned otherwise.
        """
        merged = [each for each in due if each.strategy is not Strategy.SHUFFLE]
        exchanged = [each for each in due if each.strategy is Strategy.SHUFFLE]
        cleaned = self._merge(merged, outcomes) if merged else {}
        return cleaned | (self._exchange(exchanged, outcomes) if exchanged else {})

    def pack(self, items: Iterable[WorkItem[T]]) -> list[list[T]]:
        """Return what each task does, the longest first."""
        listed = list(items)
        unit_bytes = self._limits.unit_bytes(sum(item.size_bytes for item in listed))
        per_disk = self._limits.disks.per_disk
        units = pack_units(listed, unit_bytes=unit_bytes, per_disk=per_disk)
        if per_disk is None:
            units = level_units(units, slots=self._limits.slots)
        return [unit.values for unit in units]

    def _merge(
        self, due: Sequence[DueCompaction], outcomes: Outcomes
    ) -> dict[int, CleanedPartition]:
        """Run pass one and the merge, then pass two of what fits into the budget."""
        engine, work = self._engine, self._work(due)
        by_ordinal = {each.ref.ordinal: each for each in due}
        tasks = min(len(due), MERGE_TASKS_PER_SLOT * engine.slots)
        merged_by = {ordinal: number % tasks for number, ordinal in enumerate(by_ordinal)}
        # Below this an index is not worth a limit; a partition's own bound is a few per cent off.
        limits = {n: each.map_bytes + each.map_bytes // 4 + 65536 for n, each in by_ordinal.items()}
        segments = self._pack_parts((each, each.segment_bytes) for each in due)
        indexed = engine.spread(segments, partial(index_segments, work, merged_by), SegmentKeyIndex)
        ordered = indexed.to_units(tasks).sort_within("ordinal", "segment", PART)
        merge = partial(merge_partitions, work, limits)
        merged = engine.map_messages(ordered, SegmentKeyIndex, merge, PartitionKeyIndex)
        begun: list[_Begun] = []
        indexes: dict[int, Published[bytes]] = {}
        title = f"{self._title}: pass one and merge"
        for row in engine.receive(merged, PartitionKeyIndex, title):
            outcome = outcomes[row.ordinal]
            outcome.duration_ms += row.duration_ms
            if row.failure:
                outcome.fail(row.failure)
            elif row.index is not None:
                indexes[row.ordinal] = engine.publish(row.index)
                begun.append(
                    _Begun(
                        due=by_ordinal[row.ordinal],
                        group_bytes=row.group_bytes,
                        end_offset=row.end_offset,
                        index=from_json(IndexStats, row.numbers),
                        index_ms=row.duration_ms,
                    )
                )
        groups = self._pack_parts((each.due, each.group_bytes) for each in begun)
        rewrite = partial(rewrite_groups, work, indexes)
        title = f"{self._title}: pass two"
        rewritten = engine.ask(groups, rewrite, RewrittenGroup, title) if groups else ()
        return _complete(begun, rewritten, outcomes)

    def _exchange(
        self, due: Sequence[DueCompaction], outcomes: Outcomes
    ) -> dict[int, CleanedPartition]:
        """Run both passes of partitions whose keys are exchanged."""
        engine, work = self._engine, self._work(due)
        begun = [_Begun.of_exchange(each) for each in due]
        segments = self._pack_parts((each, each.segment_bytes) for each in due)
        groups = self._pack_parts((each.due, each.group_bytes) for each in begun)
        routes = _routes(due, groups)
        buckets = sum(len(route.units) for route in routes.values())
        published = engine.publish(routes)
        sent = engine.spread(segments, partial(send_keys, work, published), ExchangeMessage)
        heard = sent.to_units(buckets).sort_within("unit", "kind", "segment", PART)
        answer = partial(answer_keys, work, published)
        answered = engine.map_messages(heard, ExchangeMessage, answer, ExchangeMessage)
        told = answered.to_units(len(groups)).sort_within(
            "ordinal", "group", "kind", "segment", PART
        )
        rewrite = partial(rewrite_exchanged, work)
        rewritten = engine.map_messages(told, ExchangeMessage, rewrite, RewrittenGroup)
        title = f"{self._title}: both passes, {buckets} buckets"
        return _complete(begun, engine.receive(rewritten, RewrittenGroup, title), outcomes)

    def _work(self, due: Sequence[DueCompaction]) -> PassWork:
        plans = self._engine.publish({each.ref.ordinal: each.work.plan for each in due})
        return PassWork(plans=plans, context=self._context)

    def _pack_parts(
        self, partitions: Iterable[tuple[DueCompaction, Sequence[int]]]
    ) -> list[list[Item]]:
        """Return the segments or groups of each task, by the sizes of those of each partition."""
        return self.pack(
            WorkItem(
                value=(due.ref.ordinal, number),
                size_bytes=size,
                disk=self._limits.disks.of(due.ref.root),
            )
            for due, sizes in partitions
            for number, size in enumerate(sizes)
        )


def _routes(due: Sequence[DueCompaction], units: Sequence[Sequence[Item]]) -> dict[int, Route]:
    """Return which tasks work for each partition.

    Args:
        units: The groups that each task of pass two gets.
    """
    unit_of = {item: number for number, unit in enumerate(units) for item in unit}
    counts = Counter(ordinal for ordinal, _ in unit_of)
    routes: dict[int, Route] = {}
    first_unit = 0
    for each in due:
        ordinal = each.ref.ordinal
        routes[ordinal] = Route(
            first_unit=first_unit,
            buckets=each.buckets,
            group_units=tuple(unit_of[ordinal, group] for group in range(counts[ordinal])),
        )
        first_unit = routes[ordinal].units.stop
    return routes


def _complete(
    begun: Collection[_Begun], rewritten: Iterable[RewrittenGroup], outcomes: Outcomes
) -> dict[int, CleanedPartition]:
    """Join the groups of pass two; leave out partitions with errors."""
    ordered = sorted(rewritten, key=attrgetter("ordinal", "group"))
    groups_of = {n: list(groups) for n, groups in groupby(ordered, key=attrgetter("ordinal"))}
    cleaned = {}
    for each in begun:
        ordinal = each.due.ref.ordinal
        groups, outcome = groups_of.get(ordinal, []), outcomes[ordinal]
        outcome.duration_ms += sum(group.duration_ms for group in groups)
        failures = [group.failure for group in groups if group.failure]
        # A segment whose offsets overflow is no failure: one task alone may split it.
        overflow = OffsetOverflowError.__name__
        final = next((each for each in failures if each.error_class != overflow), None)
        if final is not None:
            outcome.fail(final)
        elif not failures:
            cleaned[ordinal] = each.cleaned(groups)
    return cleaned
