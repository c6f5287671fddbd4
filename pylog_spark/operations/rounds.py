"""Clean the partitions that are due, round by round.

A round takes as many partitions, most urgent first, as its budgets of published maps and of disk
space allow, and brings them all to their end: pass one, merge, pass two, commit, cleaner points.
A partition that fits in one task, or whose map fits into no round, is cleaned whole in one task;
the bytes are the same.
"""

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, TypeVar

import pyarrow as pa

from pylog_spark.operations.broker_root import BrokerRoot
from pylog_spark.operations.dispatch import Dispatcher, Published
from pylog_spark.operations.due_partitions import (
    DuePartition,
    Outcome,
    RoundLimits,
    find_due,
    name_partitions,
    usable_bytes,
)
from pylog_spark.planning import Demand, Strategy, WorkItem, pack_units, plan_rounds
from pylog_spark.schemas import (
    COMMIT,
    GROUP_MANIFEST,
    MERGED_INDEX,
    PARTIAL_INDEX,
    Reason,
    spark_ddl,
)
from pylog_spark.tasks.commit import (
    CleanedPartition,
    PartitionWork,
    clean_partitions,
    commit_partitions,
)
from pylog_spark.tasks.compaction import Item, index_segments, merge_partition, rewrite_groups
from pylog_spark.tasks.run_context import RunContext, WriteContext
from storage_core.maintenance.compaction.rewrite import CleanedGroup

_log: Final = logging.getLogger(__name__)

# With more partitions than this, the rows of one round weigh on the driver.
MOST_PARTITIONS: Final = 5000
# A commit is renames and syncs: about as long as reading this much.
_COMMIT_BYTES: Final = 8 * 1024 * 1024

T = TypeVar("T")
Outcomes = dict[int, Outcome]


@dataclass(frozen=True, slots=True, kw_only=True)
class Merged:
    """A partition between the passes.

    Attributes:
        group_bytes: Source bytes of each group.
        end_offset: Its cleaner point after the round.
        index: The merged index.
    """

    group_bytes: tuple[int, ...]
    end_offset: int
    index: Published[bytes]


class CompactionRounds:
    """Cleans the partitions of one run.

    Args:
        dispatcher: Starts the Spark stages.
        roots: The log directories, under their locks.
        run: What all tasks share.
        limits: How much one task and one round are given.
        title: Name of the job, for Spark's user interface.
    """

    def __init__(
        self,
        dispatcher: Dispatcher,
        roots: Mapping[str, BrokerRoot],
        run: RunContext,
        limits: RoundLimits,
        *,
        title: str,
    ) -> None:
        self._dispatcher = dispatcher
        self._roots = roots
        self._run = run
        self._limits = limits
        self._job = title
        self._title = title

    def clean(self, plans: pa.Table) -> Iterator[Outcomes]:
        """Clean the planned rows of a table of plans.

        Args:
            plans: Rows of ``schemas.PLAN``; a row's number is its ordinal.

        Yields:
            What became of the partitions of each round, by ordinal, once their cleaner points
            are written.
        """
        due = find_due(plans, self._limits)
        if not due:
            return
        for root in sorted({partition.root for partition in due}):
            self._roots[root].begin_writing()
        free = {root: usable_bytes(Path(root)) for root in {p.root for p in due}}
        refused = {p.ordinal: _no_space(p, free[p.root]) for p in due if not _fits(p, free)}
        if refused:
            yield refused
        fitting = [partition for partition in due if partition.ordinal not in refused]
        rounds = plan_rounds(
            [partition.demand for partition in fitting],
            # Two roots may share a disk.
            budget=Demand(map_bytes=self._limits.budget_bytes, disk_bytes=min(free.values())),
            most_partitions=MOST_PARTITIONS,
        )
        for number, members in enumerate(rounds):
            chosen = [fitting[position] for position in members]
            self._title = f"{self._job} {name_partitions(chosen)}"
            if len(rounds) > 1:
                self._title += f" (round {number + 1} of {len(rounds)})"
            yield self._run_round(chosen)
            self._dispatcher.release()

    def _run_round(self, due: Sequence[DuePartition]) -> Outcomes:
        outcomes = {partition.ordinal: Outcome() for partition in due}
        context = WriteContext(
            run=self._run,
            locks={location: root.proof for location, root in self._roots.items()},
            scratch={location: root.scratch for location, root in self._roots.items()},
        )
        spread = [p for p in due if p.strategy is Strategy.BROADCAST]
        whole = [p for p in due if p.strategy is Strategy.WHOLE]
        cleaned: dict[int, CleanedPartition] = {}
        if spread:
            plans = self._dispatcher.publish({p.ordinal: p.work.plan for p in spread})
            merged = self._index(spread, plans, outcomes)
            # The estimate of a map's size holds for all but absurdly compressed data.
            whole += [
                p for p in spread if p.ordinal not in merged and not outcomes[p.ordinal].has_ended
            ]
            cleaned = self._rewrite(merged, plans, context, outcomes)
        self._commit(due, cleaned, whole, context, outcomes)
        return outcomes

    def _index(
        self,
        due: Sequence[DuePartition],
        plans: Published[dict[int, bytes]],
        outcomes: Outcomes,
    ) -> dict[int, Merged]:
        """Run pass one and the merge; return what fits into the budget."""
        units = self._pack(
            WorkItem(ordinal=p.ordinal, number=number, size_bytes=size)
            for p in due
            for number, size in enumerate(p.segment_bytes)
        )
        # Below this an index is not worth a limit; a partition's own bound is a few per cent off.
        limits = {p.ordinal: p.map_bytes + p.map_bytes // 4 + 65536 for p in due}

        def index(items: Sequence[Item]) -> Iterator[pa.RecordBatch]:
            return index_segments(items, plans.value)

        def merge(rows: pa.Table) -> pa.Table:
            return merge_partition(rows, plans.value, limits)

        partials = self._dispatcher.spread(units, index, PARTIAL_INDEX)
        frame = partials.groupBy("ordinal").applyInArrow(merge, spark_ddl(MERGED_INDEX))
        rows = self._dispatcher.collect(frame, MERGED_INDEX, f"{self._title}: pass one and merge")
        merged = {}
        for row in rows.to_pylist():
            ordinal = row["ordinal"]
            outcomes[ordinal].duration_ms += row["duration_ms"]
            if row["error_class"] is not None:
                outcomes[ordinal].fail(row)
            elif row["index"] is not None:
                merged[ordinal] = Merged(
                    group_bytes=tuple(row["group_bytes"]),
                    end_offset=row["end_offset"],
                    index=self._dispatcher.publish(row["index"]),
                )
        return merged

    def _rewrite(
        self,
        merged: Mapping[int, Merged],
        plans: Published[dict[int, bytes]],
        context: WriteContext,
        outcomes: Outcomes,
    ) -> dict[int, CleanedPartition]:
        """Run pass two; return the partitions whose groups are all there."""
        units = self._pack(
            WorkItem(ordinal=ordinal, number=number, size_bytes=size)
            for ordinal, between in merged.items()
            for number, size in enumerate(between.group_bytes)
        )
        rows = []
        if units:
            indexes = {ordinal: between.index for ordinal, between in merged.items()}

            def rewrite(items: Sequence[Item]) -> Iterator[pa.RecordBatch]:
                return rewrite_groups(
                    items, plans.value, lambda ordinal: indexes[ordinal].value, context
                )

            frame = self._dispatcher.spread(units, rewrite, GROUP_MANIFEST)
            table = self._dispatcher.collect(frame, GROUP_MANIFEST, f"{self._title}: pass two")
            rows = table.sort_by([("ordinal", "ascending"), ("group", "ascending")]).to_pylist()
        groups: dict[int, list[CleanedGroup]] = {ordinal: [] for ordinal in merged}
        records = dict.fromkeys(merged, 0)
        for row in rows:
            ordinal = row["ordinal"]
            outcomes[ordinal].duration_ms += row["duration_ms"]
            if row["error_class"] is None:
                groups[ordinal].append(CleanedGroup.from_json(row["manifest"]))
                records[ordinal] += row["records"]
            elif not outcomes[ordinal].has_ended:
                outcomes[ordinal].fail(row)
        return {
            ordinal: CleanedPartition(
                end_offset=between.end_offset,
                groups=tuple(groups[ordinal]),
                records=records[ordinal],
            )
            for ordinal, between in merged.items()
            if not outcomes[ordinal].has_ended
        }

    def _commit(
        self,
        due: Sequence[DuePartition],
        cleaned: Mapping[int, CleanedPartition],
        whole: Sequence[DuePartition],
        context: WriteContext,
        outcomes: Outcomes,
    ) -> None:
        """Put into place what other tasks cleaned, and clean the other partitions whole."""
        ready = [p for p in due if p.ordinal in cleaned]
        by_ordinal = {p.ordinal: p for p in due}
        for location, members in _by_root([*ready, *whole]).items():
            self._roots[location].allow_commits(partition.directory for partition in members)
        if ready:
            pairs = {p.ordinal: (p.work, cleaned[p.ordinal]) for p in ready}

            def commit(
                items: Sequence[tuple[PartitionWork, CleanedPartition]],
            ) -> Iterator[pa.RecordBatch]:
                return commit_partitions(items, context)

            self._end(ready, pairs, commit, "commit", outcomes, size_of=lambda _: _COMMIT_BYTES)
        if whole:
            works = {p.ordinal: p.work for p in whole}

            def clean(items: Sequence[PartitionWork]) -> Iterator[pa.RecordBatch]:
                return clean_partitions(items, context)

            self._end(
                whole,
                works,
                clean,
                "clean",
                outcomes,
                size_of=lambda p: _COMMIT_BYTES + p.size_bytes,
            )
        for location, members in _by_root([*ready, *whole]).items():
            points = {
                by_ordinal[p.ordinal].partition: point
                for p in members
                if (point := outcomes[p.ordinal].next_offset) is not None
            }
            is_whole = not any(outcomes[p.ordinal].was_touched for p in members)
            self._roots[location].settle_commits(points, is_whole=is_whole)

    def _end(
        self,
        partitions: Sequence[DuePartition],
        values: Mapping[int, T],
        work: Callable[[Sequence[T]], Iterator[pa.RecordBatch]],
        what: str,
        outcomes: Outcomes,
        *,
        size_of: Callable[[DuePartition], int],
    ) -> None:
        """Run the stage that ends partitions; its tasks alone change files of the logs."""
        units = self._pack(
            WorkItem(ordinal=p.ordinal, number=0, size_bytes=size_of(p)) for p in partitions
        )
        listed = [[values[ordinal] for ordinal, _ in unit] for unit in units]
        frame = self._dispatcher.spread(listed, work, COMMIT)
        rows = self._dispatcher.collect(frame, COMMIT, f"{self._title}: {what}")
        for row in rows.to_pylist():
            outcomes[row["ordinal"]].duration_ms += row["duration_ms"]
            outcomes[row["ordinal"]].finish(row)

    def _pack(self, items: Iterable[WorkItem]) -> list[list[Item]]:
        listed = list(items)
        unit_bytes = self._limits.unit_bytes(sum(item.size_bytes for item in listed))
        units = pack_units(listed, unit_bytes=unit_bytes)
        return [[(item.ordinal, item.number) for item in unit.items] for unit in units]


def _by_root(partitions: Iterable[DuePartition]) -> dict[str, list[DuePartition]]:
    found: dict[str, list[DuePartition]] = {}
    for partition in partitions:
        found.setdefault(partition.root, []).append(partition)
    return found


def _whole_bytes(partition: DuePartition) -> int:
    return _COMMIT_BYTES + partition.size_bytes


def _fits(partition: DuePartition, free: Mapping[str, int]) -> bool:
    return partition.extra_bytes <= free[partition.root]


def _no_space(partition: DuePartition, free_bytes: int) -> Outcome:
    outcome = Outcome()
    outcome.refuse(
        Reason.NO_SPACE,
        f"{partition.root}: cleaning needs up to {partition.extra_bytes} bytes more, "
        f"{free_bytes} may be used",
    )
    return outcome
