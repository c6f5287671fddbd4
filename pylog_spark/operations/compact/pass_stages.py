"""Run both compaction passes of a wave, spread over tasks.

Partitions whose offset map is merged by one task go through two collections: pass one and merge,
then pass two. Those whose keys are exchanged by hash go through one.
"""

import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, TypeVar

import pyarrow as pa
import pyarrow.compute as pc

from pylog_spark.engines.engine import AnyEngine, Published
from pylog_spark.operations.compact.pass_task import (
    ExchangeMessage,
    Item,
    PartitionKeyIndex,
    RewrittenGroup,
    Route,
    SegmentKeyIndex,
    answer_keys,
    index_segments,
    merge_partitions,
    require,
    rewrite_exchanged,
    rewrite_groups,
    send_keys,
)
from pylog_spark.operations.compact.task import CompactionWork
from pylog_spark.options import Strategy, Tuning
from pylog_spark.rows import read_rows, schema_of
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
    pack_units,
)
from pylog_spark.run.run import Run
from pylog_spark.run.waves import Outcomes
from pylog_spark.schemas import Status
from pylog_spark.tasks.message import MOST_CELL_BYTES, PART
from pylog_spark.tasks.observe import decode_plan
from pylog_spark.tasks.run_context import PartitionRef, WriteContext
from storage_core.errors import OffsetOverflowError
from storage_core.json_values import from_json
from storage_core.maintenance.compaction.index import IndexStats
from storage_core.maintenance.compaction.merged import MergedIndex
from storage_core.maintenance.compaction.partition import CleanedPartition
from storage_core.maintenance.compaction.plan import group_segments, map_capacity
from storage_core.maintenance.compaction.rewrite import CleanedGroup

# Choose the partitions to clean from a table of plans. Each comes with its strategy.

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


# Partitions are dealt out to the tasks that merge; with some for each slot a long one is no tail.
MERGE_TASKS_PER_SLOT: Final = 4

Plans = Published[dict[int, bytes]]
T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class MapPlace:
    """A partition's merged index, as tasks find it. It is published, or lies in scratch files."""

    published: Published[bytes] | None = None  # the index, None where it is in a file
    path: str | None = None
    table_path: str | None = None  # that of the offset map, None where pass two needs none

    def open(self) -> MergedIndex:
        """Return the index, in a task."""
        if self.published is not None:
            return MergedIndex.from_bytes(self.published.value)
        table = None if self.table_path is None else Path(self.table_path)
        return MergedIndex.from_file(Path(require(self.path)), table)


@dataclass(slots=True, kw_only=True)
class Between:
    """A partition between the passes, with its groups from pass two."""

    group_bytes: tuple[int, ...]
    end_offset: int  # its cleaner point after the round
    index: IndexStats
    index_ms: int | None  # time that tasks spent on it
    disk: int | None  # the disk that it lies on, where only so many tasks may be at one
    place: MapPlace | None  # where its merged index is; None where keys are exchanged
    _groups: list[CleanedGroup] = field(default_factory=list)
    _spent_ms: int = 0

    def add(self, row: RewrittenGroup) -> None:
        """Take a group that was cleaned."""
        self._groups.append(from_json(CleanedGroup, row.manifest))
        self._spent_ms += row.duration_ms
        if row.numbers is not None:
            self.index = from_json(IndexStats, row.numbers)

    def cleaned(self) -> CleanedPartition:
        """Return the partition as both passes left it."""
        return CleanedPartition(
            end_offset=self.end_offset,
            groups=tuple(self._groups),
            index=self.index,
            spent_secs=(self._spent_ms + (self.index_ms or 0)) / 1000,
            index_secs=None if self.index_ms is None else self.index_ms / 1000,
        )


class PassStages:
    """The stages of both passes, for partitions spread over tasks. The partitions are those of one
    wave.

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
        merged = [p for p in due if p.strategy is not Strategy.SHUFFLE]
        exchanged = [p for p in due if p.strategy is Strategy.SHUFFLE]
        cleaned: dict[int, CleanedPartition] = {}
        if merged:
            plans = self._engine.publish({p.ref.ordinal: p.work.plan for p in merged})
            between = self._index(merged, plans, outcomes)
            cleaned |= self._rewrite(between, plans, outcomes)
        if exchanged:
            plans = self._engine.publish({p.ref.ordinal: p.work.plan for p in exchanged})
            cleaned |= self._exchange(exchanged, plans, outcomes)
        return cleaned

    def pack(self, items: Iterable[WorkItem[T]]) -> list[list[T]]:
        """Return what each task does, the longest first."""
        listed = list(items)
        unit_bytes = self._limits.unit_bytes(sum(item.size_bytes for item in listed))
        units = pack_units(listed, unit_bytes=unit_bytes, per_disk=self._limits.disks.per_disk)
        return [unit.values for unit in units]

    def _disk(self, partition: DueCompaction) -> int | None:
        return self._limits.disks.of(partition.ref.root)

    def _segments(self, due: Sequence[DueCompaction]) -> list[list[Item]]:
        return self.pack(
            WorkItem(value=(p.ref.ordinal, number), size_bytes=size, disk=self._disk(p))
            for p in due
            for number, size in enumerate(p.segment_bytes)
        )

    def _index(
        self, due: Sequence[DueCompaction], plans: Plans, outcomes: Outcomes
    ) -> dict[int, Between]:
        """Run pass one and the merge; return what fits into the budget."""
        context = self._context
        filed = frozenset(p.ref.ordinal for p in due if p.strategy is Strategy.FILES)
        # Below this an index is not worth a limit; a partition's own bound is a few per cent off.
        limits = {
            p.ref.ordinal: None
            if p.ref.ordinal in filed
            else p.map_bytes + p.map_bytes // 4 + 65536
            for p in due
        }

        engine = self._engine
        tasks = min(len(due), MERGE_TASKS_PER_SLOT * engine.slots)
        merged_by = {p.ref.ordinal: number % tasks for number, p in enumerate(due)}

        def index(items: Sequence[Item]) -> Iterator[SegmentKeyIndex]:
            return index_segments(items, plans.value, merged_by, context, filed=filed)

        def merge(indexes: Iterator[SegmentKeyIndex]) -> Iterator[PartitionKeyIndex]:
            return merge_partitions(indexes, plans.value, limits, context)

        partials = engine.spread(self._segments(due), index, SegmentKeyIndex)
        ordered = partials.to_units(tasks).sort_within("ordinal", "segment", PART)
        merged = engine.map_messages(ordered, SegmentKeyIndex, merge, PartitionKeyIndex)
        title = f"{self._title}: pass one and merge"
        between = {}
        disks = {p.ref.ordinal: self._disk(p) for p in due}
        for row in engine.receive(merged, PartitionKeyIndex, title):
            outcome = outcomes[row.ordinal]
            outcome.duration_ms += row.duration_ms
            if row.failure:
                outcome.fail(row.failure)
            elif row.index is not None or row.path is not None:
                between[row.ordinal] = Between(
                    group_bytes=row.group_bytes,
                    end_offset=row.end_offset,
                    index=from_json(IndexStats, row.numbers),
                    index_ms=row.duration_ms,
                    disk=disks[row.ordinal],
                    place=self._place(row),
                )
        return between

    def _place(self, row: PartitionKeyIndex) -> MapPlace:
        if row.index is None:
            return MapPlace(path=row.path, table_path=row.table_path)
        return MapPlace(published=self._engine.publish(row.index))

    def _rewrite(
        self, between: Mapping[int, Between], plans: Plans, outcomes: Outcomes
    ) -> dict[int, CleanedPartition]:
        """Run pass two; return the partitions whose groups are all there."""
        units = self._groups(between)
        if not units:
            return _complete(between, schema_of(RewrittenGroup).empty_table(), outcomes)
        context = self._context
        places = {
            ordinal: partition.place for ordinal, partition in between.items() if partition.place
        }

        def rewrite(items: Sequence[Item]) -> Iterator[RewrittenGroup]:
            return rewrite_groups(
                items, plans.value, lambda ordinal: places[ordinal].open(), context
            )

        groups = self._engine.spread(units, rewrite, RewrittenGroup)
        columns = schema_of(RewrittenGroup)
        table = self._engine.collect(groups, columns, f"{self._title}: pass two")
        return _complete(between, table, outcomes)

    def _groups(self, between: Mapping[int, Between]) -> list[list[Item]]:
        return self.pack(
            WorkItem(value=(ordinal, number), size_bytes=size, disk=partition.disk)
            for ordinal, partition in between.items()
            for number, size in enumerate(partition.group_bytes)
        )

    def _exchange(
        self, due: Sequence[DueCompaction], plans: Plans, outcomes: Outcomes
    ) -> dict[int, CleanedPartition]:
        """Run both passes of partitions whose keys are exchanged, in one collection."""
        between = {p.ref.ordinal: _before_exchange(p, self._disk(p)) for p in due}
        units = self._groups(between)
        routes = _routes(due, units)
        published = self._engine.publish(routes)
        context = self._context

        def send(items: Sequence[Item]) -> Iterator[ExchangeMessage]:
            return send_keys(items, plans.value, published.value, context)

        def answer(messages: Iterator[ExchangeMessage]) -> Iterator[ExchangeMessage]:
            return answer_keys(messages, plans.value, published.value)

        def rewrite(messages: Iterator[ExchangeMessage]) -> Iterator[RewrittenGroup]:
            return rewrite_exchanged(messages, plans.value, context)

        engine = self._engine
        sent = engine.spread(self._segments(due), send, ExchangeMessage)
        buckets = sum(route.buckets + 1 for route in routes.values())
        heard = sent.to_units(buckets).sort_within("unit", "kind", "segment", PART)
        answered = engine.map_messages(heard, ExchangeMessage, answer, ExchangeMessage)
        answers = answered.to_units(len(units)).sort_within(
            "ordinal", "group", "kind", "segment", PART
        )
        groups = engine.map_messages(answers, ExchangeMessage, rewrite, RewrittenGroup)
        title = f"{self._title}: both passes, {buckets} buckets"
        table = engine.collect(groups, schema_of(RewrittenGroup), title)
        return _complete(between, table, outcomes)


def _before_exchange(partition: DueCompaction, disk: int | None) -> Between:
    plan = decode_plan(partition.work.plan)
    end_offset = plan.end_offset
    groups = group_segments(plan, end_offset)
    return Between(
        group_bytes=tuple(sum(segment.size_bytes for segment in group) for group in groups),
        end_offset=end_offset,
        index=IndexStats(bytes_read=0, messages_read=0, keys=0),
        index_ms=None,
        disk=disk,
        place=None,
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
    for partition in due:
        groups = counts[partition.ref.ordinal]
        routes[partition.ref.ordinal] = Route(
            first_unit=first_unit,
            buckets=partition.buckets,
            group_units=tuple(unit_of[partition.ref.ordinal, group] for group in range(groups)),
        )
        first_unit += partition.buckets + 1
    return routes


def _complete(
    between: Mapping[int, Between], groups: pa.Table, outcomes: Outcomes
) -> dict[int, CleanedPartition]:
    """Join the groups of pass two; leave out partitions with errors."""
    overflowing = set()
    ordered = groups.sort_by([("ordinal", "ascending"), ("group", "ascending")])
    for row in read_rows(RewrittenGroup, ordered):
        outcome = outcomes[row.ordinal]
        outcome.duration_ms += row.duration_ms
        if not row.failure:
            between[row.ordinal].add(row)
        elif row.failure.error_class == OffsetOverflowError.__name__:
            # One task alone may split the segment.
            overflowing.add(row.ordinal)
        elif not outcome.has_ended:
            outcome.fail(row.failure)
    return {
        ordinal: partition.cleaned()
        for ordinal, partition in between.items()
        if not outcomes[ordinal].has_ended and ordinal not in overflowing
    }
