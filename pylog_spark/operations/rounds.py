"""Clean the partitions that are due, wave by wave.

A wave takes as many partitions, most urgent first, as its budgets of published maps, disk space,
bytes and tasks allow, and brings them all to their end: pass one, merge, pass two, commit, cleaner
points. A partition that fits in one task is cleaned whole in one, beside the stages of the others;
the bytes are the same. What finished waves have committed stays, whatever becomes of later ones.
"""

import logging
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from queue import Empty, SimpleQueue
from typing import Final, TypeVar

import pyarrow as pa

from pylog_spark.operations.budgets import RunBudget
from pylog_spark.operations.dispatch import Dispatcher
from pylog_spark.operations.due_partitions import (
    DuePartition,
    Outcome,
    RoundLimits,
    find_due,
    name_partitions,
)
from pylog_spark.operations.pass_stages import PassStages
from pylog_spark.operations.writable_root import WritableRoot, write_context
from pylog_spark.options import Strategy
from pylog_spark.planning import Demand, WorkItem, cut_beside, plan_rounds
from pylog_spark.schemas import COMMIT, Reason
from pylog_spark.tasks.commit import (
    CleanedPartition,
    PartitionWork,
    clean_partitions,
    commit_partitions,
)
from pylog_spark.tasks.key_folder import remove_wave, shares_files
from pylog_spark.tasks.run_context import RunContext, WriteContext

_log: Final = logging.getLogger(__name__)

# With more partitions than this, the rows of one wave weigh on the driver.
MOST_PARTITIONS: Final = 5000
# A commit is renames and syncs: about as long as reading this much.
COMMIT_BYTES: Final = 8 * 1024 * 1024
# Two at once: the tail of one is filled by the next.
_JOBS_BESIDE: Final = 2

T = TypeVar("T")
Outcomes = dict[int, Outcome]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Wave:
    """What the stages of one wave share; outcomes gets what becomes of each partition."""

    stages: PassStages
    context: WriteContext
    outcomes: Outcomes


class CompactionRounds:
    """Cleans the partitions of one run.

    Args:
        dispatcher: Starts the Spark stages.
        roots: The log directories, under their locks.
        run: What all tasks share.
        limits: How much one task and one wave are given.
        budget: What the whole run may use.
        title: Name of the job, for Spark's user interface.
    """

    def __init__(
        self,
        dispatcher: Dispatcher,
        roots: Mapping[str, WritableRoot],
        run: RunContext,
        limits: RoundLimits,
        budget: RunBudget,
        *,
        title: str,
    ) -> None:
        self._dispatcher = dispatcher
        self._roots = roots
        self._run = run
        self._limits = limits
        self._budget = budget
        self._job = title
        self._title = title
        self._wave = 0

    def clean(self, plans: pa.Table) -> Iterator[Outcomes]:
        """Clean the planned rows of a table of plans.

        Args:
            plans: Rows of ``schemas.PLAN``; a row's number is its ordinal.

        Yields:
            What became of the partitions of each wave, by ordinal, once their cleaner points
            are written.
        """
        due = find_due(
            plans, self._limits, shares_files=lambda root: shares_files(self._roots[root].access)
        )
        free: dict[str, int] = {}
        for root in sorted({partition.root for partition in due}):
            self._roots[root].begin_writing()
            free[root] = self._budget.usable_of(self._roots[root].free_bytes())
        ended = self._failed(due)
        for p in due:
            if p.ordinal not in ended and p.demand.disk_bytes > free[p.root]:
                ended[p.ordinal] = _no_space(p, free[p.root])
        if ended:
            yield ended
        fitting = [partition for partition in due if partition.ordinal not in ended]
        if not fitting:
            return
        waves = plan_rounds(
            [partition.demand for partition in fitting],
            budget=Demand(
                map_bytes=self._limits.budget_bytes,
                # Two roots may share a disk.
                disk_bytes=min(free[partition.root] for partition in fitting),
                read_bytes=self._limits.wave_bytes,
                tasks=self._limits.wave_tasks,
            ),
            most_partitions=MOST_PARTITIONS,
        )
        for number, members in enumerate(waves):
            chosen = [fitting[position] for position in members]
            ended = self._left_out(chosen)
            if ended:
                yield ended
                chosen = [partition for partition in chosen if partition.ordinal not in ended]
            if not chosen:
                continue
            self._budget.use(sum(partition.size_bytes for partition in chosen))
            self._title = f"{self._job} {name_partitions(chosen)}"
            if len(waves) > 1:
                self._title += f" (wave {number + 1} of {len(waves)})"
            yield self._run_wave(chosen)
            self._dispatcher.release()

    def _failed(self, due: Iterable[DuePartition]) -> Outcomes:
        """Return the partitions whose log directory is out of the run: its disk has failed."""
        return {
            partition.ordinal: Outcome.failed(failure)
            for partition in due
            if (failure := self._roots[partition.root].failure) is not None
        }

    def _left_out(self, due: Sequence[DuePartition]) -> Outcomes:
        """Return what is not begun any more: its disk has failed or is full, or the budget spent.

        Somebody else may write there, and what former waves put into the trash is not free yet.
        """
        room = {
            root: self._budget.usable_of(self._roots[root].free_bytes())
            for root in sorted({partition.root for partition in due})
        }
        ended = self._failed(due)
        left = [partition for partition in due if partition.ordinal not in ended]
        spent = self._budget.refusal()
        if spent is not None:
            return ended | {partition.ordinal: Outcome.refused(*spent) for partition in left}
        for partition in left:
            if partition.demand.disk_bytes > room[partition.root]:
                ended[partition.ordinal] = _no_space(partition, room[partition.root])
            else:
                room[partition.root] -= partition.demand.disk_bytes
        return ended

    def _run_wave(self, due: Sequence[DuePartition]) -> Outcomes:
        """Bring the partitions of a wave to their end."""
        self._wave += 1
        for location, members in _by_root(due).items():
            self._roots[location].allow_commits(partition.directory for partition in members)
        # Where that failed no task could commit what it made.
        outcomes = self._failed(due)
        due = [partition for partition in due if partition.ordinal not in outcomes]
        if not due:
            return outcomes
        outcomes |= {partition.ordinal: Outcome() for partition in due}
        whole = [p for p in due if p.strategy is Strategy.WHOLE]
        spread = [p for p in due if p.strategy is not Strategy.WHOLE]
        context = replace(
            write_context(self._run, self._roots),
            tasks_at_once=min(self._limits.slots, self._most_at_once(due)),
            wave=self._wave,
        )
        wave = _Wave(
            stages=PassStages(self._dispatcher, self._limits, context, self._title),
            context=context,
            outcomes=outcomes,
        )
        if spread and whole and self._limits.disks.per_disk is None:
            # Where the stages of big partitions leave slots idle, at a merge or a last long task,
            # small ones are cleaned.
            jobs = self._cut_beside(whole)
            beside = [
                self._dispatcher.alongside(partial(self._clean_beside, jobs, wave))
                for _ in range(min(_JOBS_BESIDE, jobs.qsize()))
            ]
            try:
                self._clean_spread(spread, wave)
                for each in beside:
                    self._dispatcher.wait_for(each)
            except BaseException:
                _drop(jobs)  # what has not begun does not begin any more
                raise
        else:
            # Stages that run beside each other would have their own tasks at a disk, each.
            if spread:
                self._clean_spread(spread, wave)
            if whole:
                self._clean_whole(whole, wave)
        for partition in due:
            if partition.strategy is Strategy.FILES:
                self._remove_scratch(partition, context)
        self._settle(due, outcomes)
        return outcomes

    def _remove_scratch(self, partition: DuePartition, context: WriteContext) -> None:
        """Remove what tasks shared in files; what cannot go now, goes when the run ends."""
        try:
            remove_wave(self._roots[partition.root].access, partition.directory, context)
        except OSError as error:
            _log.warning("%s: scratch files were not removed: %s", partition.directory, error)

    def _most_at_once(self, due: Sequence[DuePartition]) -> int:
        """Return how many tasks of a wave may share the budget of bytes a second."""
        counts: Counter[str] = Counter()
        for partition in due:
            counts[partition.root] += partition.demand.tasks
        return self._limits.disks.most_at_once(counts)

    def _cut_beside(self, whole: Sequence[DuePartition]) -> "SimpleQueue[list[DuePartition]]":
        """Return the jobs that run beside the stages of big partitions."""
        jobs: SimpleQueue[list[DuePartition]] = SimpleQueue()
        left = list(whole)
        for count in cut_beside([_whole_bytes(p) for p in whole], slots=self._limits.slots):
            jobs.put(left[:count])
            del left[:count]
        return jobs

    def _clean_beside(self, jobs: "SimpleQueue[list[DuePartition]]", wave: _Wave) -> None:
        """Clean small partitions, job by job, until none is left."""
        while True:
            try:
                due = jobs.get_nowait()
            except Empty:
                return
            self._clean_whole(due, wave)

    def _clean_spread(
        self,
        due: Sequence[DuePartition],
        wave: _Wave,
    ) -> None:
        """Run both passes over many tasks, and put into place what they made."""
        context = wave.context
        cleaned = wave.stages.clean(due, wave.outcomes)
        ready = [p for p in due if p.ordinal in cleaned]
        if ready:
            pairs = {p.ordinal: (p.work, cleaned[p.ordinal]) for p in ready}

            def commit(
                items: Sequence[tuple[PartitionWork, CleanedPartition]],
            ) -> Iterator[pa.RecordBatch]:
                return commit_partitions(items, context)

            self._end(ready, pairs, commit, "commit", wave, size_of=lambda _: COMMIT_BYTES)
        # The estimate of a map's size holds for all but absurdly compressed data.
        left = [
            p for p in due if p.ordinal not in cleaned and not wave.outcomes[p.ordinal].has_ended
        ]
        if left:
            self._clean_whole(left, wave)

    def _clean_whole(
        self,
        due: Sequence[DuePartition],
        wave: _Wave,
    ) -> None:
        """Clean partitions in one task each."""
        context = wave.context
        works = {p.ordinal: p.work for p in due}

        def clean(items: Sequence[PartitionWork]) -> Iterator[pa.RecordBatch]:
            return clean_partitions(items, context)

        self._end(
            due,
            works,
            clean,
            "clean",
            wave,
            size_of=_whole_bytes,
        )

    def _end(
        self,
        partitions: Sequence[DuePartition],
        values: Mapping[int, T],
        work: Callable[[Sequence[T]], Iterator[pa.RecordBatch]],
        what: str,
        wave: _Wave,
        *,
        size_of: Callable[[DuePartition], int],
    ) -> None:
        """Run the stage that ends partitions; its tasks alone change files of the logs."""
        units = wave.stages.pack(
            WorkItem(
                ordinal=p.ordinal,
                number=0,
                size_bytes=size_of(p),
                disk=self._limits.disks.of(p.root),
            )
            for p in partitions
        )
        listed = [[values[ordinal] for ordinal, _ in unit] for unit in units]
        frame = self._dispatcher.spread(listed, work, COMMIT)
        rows = self._dispatcher.collect(frame, COMMIT, f"{self._title}: {what}")
        for row in rows.to_pylist():
            outcome = wave.outcomes[row["ordinal"]]
            outcome.duration_ms += row["duration_ms"]
            outcome.finish(row)

    def _settle(self, due: Sequence[DuePartition], outcomes: Outcomes) -> None:
        """Write the cleaner points of what was cleaned."""
        for location, members in _by_root(due).items():
            points = {
                p.partition: point
                for p in members
                if (point := outcomes[p.ordinal].next_offset) is not None
            }
            is_whole = not any(outcomes[p.ordinal].was_touched for p in members)
            self._roots[location].settle_commits(points, is_whole=is_whole)


def _drop(jobs: "SimpleQueue[list[DuePartition]]") -> None:
    with suppress(Empty):
        while True:
            jobs.get_nowait()


def _whole_bytes(partition: DuePartition) -> int:
    return COMMIT_BYTES + partition.size_bytes


def _by_root(partitions: Iterable[DuePartition]) -> dict[str, list[DuePartition]]:
    found: dict[str, list[DuePartition]] = {}
    for partition in partitions:
        found.setdefault(partition.root, []).append(partition)
    return found


def _no_space(partition: DuePartition, free_bytes: int) -> Outcome:
    return Outcome.refused(
        Reason.NO_SPACE,
        f"{partition.root}: cleaning needs up to {partition.demand.disk_bytes} bytes more, "
        f"{free_bytes} may be used",
    )
