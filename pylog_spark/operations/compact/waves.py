"""Run a wave of compaction, from pass one to the cleaner points. Between these are the merge, pass
two and the commit.

A partition that fits in one task is cleaned whole in one, beside the stages of the others; the
bytes are the same.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from queue import Empty, SimpleQueue
from typing import Final, TypeVar

from pylog_spark.operations.compact.pass_stages import (
    CompactionLimits,
    DueCompaction,
    PassStages,
    name_partitions,
)
from pylog_spark.operations.compact.task import (
    CompactionCommit,
    clean_partitions,
    commit_partitions,
)
from pylog_spark.options import Strategy
from pylog_spark.run.plan_table import Outcome
from pylog_spark.run.planning import Demand, WorkItem, cut_beside
from pylog_spark.run.run import Run
from pylog_spark.run.waves import Outcomes
from pylog_spark.schemas import Reason
from pylog_spark.tasks.run_context import RunContext, WriteContext
from storage_core.roots.root import HeldRoot

# A commit is renames and syncs: about as long as reading this much.
COMMIT_BYTES: Final = 8 * 1024 * 1024
# Two at once: the tail of one is filled by the next.
_JOBS_BESIDE: Final = 2

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Wave:
    """State shared by the stages of one wave.

    ``outcomes`` gets what becomes of each partition.
    """

    title: str
    passes: PassStages
    context: WriteContext
    outcomes: Outcomes


class CompactionStages:
    """Cleans the partitions of a wave.

    Args:
        run: The run; it holds the roots.
        limits: How much one task and one wave are given.
    """

    def __init__(self, run: Run, context: RunContext, limits: CompactionLimits) -> None:
        self._run = run
        self._context = context
        self.limits = limits

    def demand(self, each: DueCompaction) -> Demand:
        """Return what a round of one partition needs."""
        is_published = each.strategy is Strategy.BROADCAST
        return Demand(
            map_bytes=each.plan_bytes + (each.map_bytes if is_published else 0),
            disk_bytes=each.extra_bytes,
            read_bytes=each.size_bytes,
            tasks=1 if each.strategy is Strategy.WHOLE else len(each.segment_bytes),
        )

    def title(self, due: Sequence[DueCompaction]) -> str:
        """Return what the wave does."""
        return f"{self._run.job.title} {name_partitions(due)}"

    def prepare(self, _root: HeldRoot, _due: Sequence[DueCompaction]) -> None:
        """Write nothing: a round of compaction is announced by its claims alone."""

    def work(self, due: Sequence[DueCompaction], title: str) -> Outcomes:
        """Clean the partitions."""
        self._run.budget.use(sum(each.size_bytes for each in due))
        tasks_at_once = min(self.limits.slots, self._most_at_once(due))
        context = replace(
            self._run.write_context(self._context),
            tasks_at_once=tasks_at_once,
            threads=self._run.engine.threads_of(tasks_at_once),
        )
        wave = _Wave(
            title=title,
            passes=PassStages(self._run.engine, self.limits, context, title),
            context=context,
            outcomes={each.ref.ordinal: Outcome() for each in due},
        )
        whole = [each for each in due if each.strategy is Strategy.WHOLE]
        spread = [each for each in due if each.strategy is not Strategy.WHOLE]
        if spread and whole and self.limits.disks.per_disk is None:
            # Where the stages of big partitions leave slots idle, at a merge or a last long task,
            # small ones are cleaned.
            jobs = self._cut_beside(whole)
            beside = [
                self._run.engine.alongside(partial(self._clean_beside, jobs, wave))
                for _ in range(min(_JOBS_BESIDE, jobs.qsize()))
            ]
            try:
                self._clean_spread(spread, wave)
                for each_beside in beside:
                    self._run.engine.wait_for(each_beside)
            except BaseException:
                _drop(jobs)  # what has not begun does not begin any more
                raise
        else:
            # Stages that run beside each other would have their own tasks at a disk, each.
            if spread:
                self._clean_spread(spread, wave)
            if whole:
                self._clean_whole(whole, wave)
        return wave.outcomes

    def settle(
        self, root: HeldRoot, due: Sequence[DueCompaction], outcomes: Mapping[int, Outcome]
    ) -> None:
        """Write the cleaner points of what was cleaned."""
        points = {
            each.ref.partition: point
            for each in due
            if (point := outcomes[each.ref.ordinal].next_offset) is not None
        }
        is_whole = not any(outcomes[each.ref.ordinal].was_touched for each in due)
        root.settle_commits(points, is_whole=is_whole)

    def _most_at_once(self, due: Sequence[DueCompaction]) -> int:
        """Return how many tasks may share the budget of bytes per second. They are tasks of one
        wave."""
        counts: Counter[str] = Counter()
        for each in due:
            counts[each.ref.root] += self.demand(each).tasks
        return self.limits.disks.most_at_once(counts)

    def _cut_beside(self, whole: Sequence[DueCompaction]) -> "SimpleQueue[list[DueCompaction]]":
        """Return the jobs that run beside the stages of big partitions."""
        jobs: SimpleQueue[list[DueCompaction]] = SimpleQueue()
        queue = list(whole)
        for count in cut_beside([_whole_bytes(each) for each in whole], slots=self.limits.slots):
            jobs.put(queue[:count])
            del queue[:count]
        return jobs

    def _clean_beside(self, jobs: "SimpleQueue[list[DueCompaction]]", wave: _Wave) -> None:
        """Clean small partitions, job by job, until none is left."""
        while True:
            try:
                due = jobs.get_nowait()
            except Empty:
                return
            self._clean_whole(due, wave)

    def _clean_spread(self, due: Sequence[DueCompaction], wave: _Wave) -> None:
        """Run both passes over many tasks, and commit the cleaned segments."""
        cleaned = wave.passes.clean(due, wave.outcomes)
        ready = [each for each in due if each.ref.ordinal in cleaned]
        if ready:
            pairs = {each.ref.ordinal: (each.work, cleaned[each.ref.ordinal]) for each in ready}
            commit = partial(commit_partitions, context=wave.context)
            self._end(ready, pairs, commit, "commit", wave, size_of=lambda _: COMMIT_BYTES)
        # The estimate of a map's size holds for all but absurdly compressed data.
        whole = [
            each
            for each in due
            if each.ref.ordinal not in cleaned and not wave.outcomes[each.ref.ordinal].has_ended
        ]
        if whole:
            self._clean_whole(whole, wave)

    def _clean_whole(self, due: Sequence[DueCompaction], wave: _Wave) -> None:
        """Clean partitions in one task each."""
        works = {each.ref.ordinal: each.work for each in due}
        clean = partial(clean_partitions, context=wave.context)
        self._end(due, works, clean, "clean", wave, size_of=_whole_bytes)

    def _end(
        self,
        partitions: Sequence[DueCompaction],
        values: Mapping[int, T],
        work: Callable[[Sequence[T]], Iterator[CompactionCommit]],
        what: str,
        wave: _Wave,
        *,
        size_of: Callable[[DueCompaction], int],
    ) -> None:
        """Run the last stage of some partitions. Its tasks alone change files of the logs."""
        units = wave.passes.pack(
            WorkItem(
                value=values[each.ref.ordinal],
                size_bytes=size_of(each),
                disk=self.limits.disks.of(each.ref.root),
            )
            for each in partitions
        )
        ask = self._run.engine.ask
        for commit in ask(units, work, CompactionCommit, f"{wave.title}: {what}"):
            outcome = outcome_of_commit(commit)
            outcome.duration_ms += wave.outcomes[commit.ordinal].duration_ms
            wave.outcomes[commit.ordinal] = outcome


def outcome_of_commit(row: CompactionCommit) -> Outcome:
    """Return a partition's outcome after a round's commit or a split."""
    if row.was_split:
        outcome = Outcome.refused(Reason.SEGMENT_SPLIT, row.failure.error or "")
        outcome.columns["operations"] = row.operations
        outcome.duration_ms = row.duration_ms
        return outcome
    outcome = Outcome.of(row)
    if not row.failure:
        outcome.columns["records_before"] = row.records_before
        outcome.columns["records_after"] = row.records_after
        outcome.columns["records_without_key"] = row.records_without_key
        outcome.next_offset = row.next_offset
        outcome.rounds = () if row.statistics is None else (row.statistics,)
    return outcome


def _drop(jobs: "SimpleQueue[list[DueCompaction]]") -> None:
    with suppress(Empty):
        while True:
            jobs.get_nowait()


def _whole_bytes(each: DueCompaction) -> int:
    return COMMIT_BYTES + each.size_bytes
