"""Compact the partitions of log directories: observe, plan, commit, record."""

import json
import logging
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Final, TypeVar

import pyarrow as pa
import pyarrow.compute as pc

from pylog_spark.discovery import resolve_roots
from pylog_spark.engines.choice import Place
from pylog_spark.operations.compact.pass_stages import (
    CompactionLimits,
    DueCompaction,
    PassStages,
    find_due_compactions,
    name_partitions,
)
from pylog_spark.operations.compact.task import (
    CompactionCommit,
    RoundMeasurement,
    clean_partitions,
    commit_partitions,
    measure_partitions,
)
from pylog_spark.operations.observation import Observation
from pylog_spark.operations.retain.driver import retain_step
from pylog_spark.options import JobOptions, Strategy
from pylog_spark.outcomes import Action, Reason, Status
from pylog_spark.rows import table_of
from pylog_spark.run.guards import check_roots
from pylog_spark.run.job import new_job, run_context
from pylog_spark.run.plan_file import SavedPlan
from pylog_spark.run.plan_table import (
    Outcome,
    RowKey,
    offsets_by_root,
    only_planned,
    result_rows,
    row_keys,
    sort_plans,
)
from pylog_spark.run.planning import Demand, WorkItem, cut_beside, pack_units
from pylog_spark.run.run import Run
from pylog_spark.run.run_report import RunReport, merge_steps
from pylog_spark.run.saved_plans import settle_plans
from pylog_spark.run.upkeep import compaction_notes, open_upkeep
from pylog_spark.run.waves import Outcomes, run_waves
from pylog_spark.schemas import CleaningRow, Failure, PartitionName
from pylog_spark.structured_logs import log_fields
from pylog_spark.tasks.observe import Step
from pylog_spark.tasks.run_context import RunContext, WriteContext
from storage_core.clock import Clock
from storage_core.errors import KeylessRecordsError
from storage_core.maintenance.compaction.partition import (
    CleanedLog,
    CleanerStats,
    refuse_keyless,
    total_of,
)
from storage_core.roots.root import HeldRoot

# Run a wave of compaction, from pass one to the cleaner points. Between these are the merge, pass
# two and the commit.
#
# A partition that fits in one task is cleaned whole in one, beside the stages of the others; the
# bytes are the same.

# A commit is renames and syncs: about as long as reading this much.
COMMIT_BYTES: Final = 8 * 1024 * 1024
# Two at once: the tail of one is filled by the next.
_JOBS_BESIDE: Final = 2

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Wave:
    """State shared by the stages of one wave. ``outcomes`` gets what becomes of each partition."""

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


# Collect each log's outcome in a compaction, as rows and totals. They are collected round by
# round.

_ACTION = Action.COMPACT.value


class CleanedLogs:
    """The partitions that a run compacts, and what became of each.

    Args:
        run: The run; its record is told of what has ended.
        plans: Rows of ``schemas.PLAN``; their numbers are the ordinals.
        outcomes: What became of them, by their number, where nothing is cleaned.
    """

    def __init__(self, run: Run, plans: pa.Table, outcomes: Outcomes | None = None) -> None:
        self._run = run
        self.plans = plans
        self.outcomes: Outcomes = outcomes or {}

    def record(self, plans: pa.Table, outcomes: Outcomes) -> None:
        """Tell the ledger what became of partitions in a wave.

        Args:
            plans: Rows of ``schemas.PLAN``, of the round.
        """
        self._run.recorder.outcomes(plans, outcomes, action=_ACTION)
        for outcome in outcomes.values():
            # Of no use any more, and for many partitions too much to keep.
            outcome.columns.pop("operations", None)
        rows = _cleanings(plans, outcomes, run_id=self._run.job.run_id)
        self._run.recorder.cleanings(rows)

    def record_others(self) -> None:
        """Tell the ledger of the partitions that no round was about."""
        numbers = range(self.plans.num_rows)
        self.record(self.plans, {n: Outcome() for n in numbers if n not in self.outcomes})

    def end_round(self, plans: pa.Table, ended: Outcomes) -> set[RowKey]:
        """Record a round's outcomes; return the partitions due for another round.

        These are the partitions of which a segment was split in place of the round, and, where a
        run goes on until all is clean, those whose offset map was full before.

        Args:
            plans: Rows of ``schemas.PLAN``, of the round.
        """
        numbers = {key: number for number, key in enumerate(row_keys(self.plans))}
        keys = row_keys(plans)
        ends = plans["first_uncleanable_offset"]
        again = set()
        for ordinal, outcome in ended.items():
            number = numbers[keys[ordinal]]
            self.outcomes[number] = outcome.after(self.outcomes.get(number))
            point = outcome.next_offset
            is_split = outcome.columns.get("reason") == Reason.SEGMENT_SPLIT.value
            is_unfinished = (
                self._run.job.options.until_clean
                and point is not None
                and plans["first_dirty_offset"][ordinal].as_py() < point < ends[ordinal].as_py()
            )
            if is_split or is_unfinished:
                again.add(keys[ordinal])
        return again

    def results(self) -> pa.Table:
        """Return the rows of ``schemas.RESULT``, in the order of the plans."""
        run_id = self._run.job.run_id
        return result_rows(self.plans, self.outcomes, run_id=run_id, action=_ACTION)

    def cleanings(self) -> pa.Table:
        """Return the rows of ``schemas.CLEANING``: what each round on each partition did."""
        return _cleanings(self.plans, self.outcomes, run_id=self._run.job.run_id)

    def totals(self) -> dict[str, int]:
        """Return the totals of all due partitions by Kafka's gauge names."""
        return _gauges(log for _, log in self._due())

    def root_totals(self) -> dict[str, dict[str, int]]:
        """Return the same of each root of the run."""
        logs: dict[str, list[CleanedLog]] = {root.location: [] for root in self._run.job.roots}
        for root, log in self._due():
            logs[root].append(log)
        return {root: _gauges(those) for root, those in logs.items()}

    def _due(self) -> Iterator[tuple[str, CleanedLog]]:
        """Yield root and numbers of each partition that was due."""
        names = ["root", "status", "cleanable_ratio", "cleanable_bytes", "compaction_delay_ms"]
        for number, row in enumerate(self.plans.select(names).to_pylist()):
            if row["status"] != Status.PLANNED:
                continue
            outcome = self.outcomes.get(number, Outcome())
            yield (
                row["root"],
                CleanedLog(
                    cleanable_ratio=row["cleanable_ratio"],
                    cleanable_bytes=row["cleanable_bytes"],
                    compaction_delay_ms=row["compaction_delay_ms"] or 0,
                    has_failed=outcome.columns.get("status") == Status.FAILED.value
                    or outcome.columns.get("reason") == Reason.NEGATIVE_TIMESTAMP.value,
                    stats=CleanerStats.from_json(outcome.rounds[-1]) if outcome.rounds else None,
                ),
            )


def _gauges(logs: Iterable[CleanedLog]) -> dict[str, int]:
    """Return the totals of some partitions by Kafka's gauge names."""
    return {name.replace("_", "-"): value for name, value in asdict(total_of(logs)).items()}


def _cleanings(plans: pa.Table, outcomes: Mapping[int, Outcome], *, run_id: str) -> pa.Table:
    """Return a row for each round on each partition.

    Args:
        plans: Rows of ``schemas.PLAN``.
    """
    rows = []
    for number, outcome in sorted(outcomes.items()):
        if not outcome.rounds:
            continue
        of_plan = ("root", "topic", "partition", "cleanable_ratio", "compaction_delay_ms")
        root, topic, partition, ratio, delay_ms = (plans[name][number].as_py() for name in of_plan)
        rows += [
            CleaningRow(
                run_id=run_id,
                name=PartitionName(root=root, topic=topic, partition=partition),
                round=index,
                cleanable_ratio=ratio,
                compaction_delay_ms=delay_ms,
                **json.loads(text),
            )
            for index, text in enumerate(outcome.rounds, 1)
        ]
    return table_of(CleaningRow, rows)


# ``--dry-run=exact``: what compaction would make of each planned partition, to the byte.
#
# Both passes are made as in a run, over all executors, one partition a task; nothing is written.

EXACT_NOTE: Final = "what is planned was read and filtered: its figures are exact, no bounds"


def measure_plans(run: Run, plans: pa.Table) -> tuple[pa.Table, dict[int, Outcome]]:
    """Measure the planned rows of a table of plans.

    Args:
        plans: Rows of ``schemas.PLAN``.

    Returns:
        (plans, outcomes): the plans with exact bytes afterwards, and the columns of each result.
    """
    statuses = plans["status"].to_pylist()
    planned = [n for n, status in enumerate(statuses) if status == Status.PLANNED.value]
    if not planned:
        return plans, {}
    # The longest first: it must not be what everything waits for.
    items = (
        WorkItem(
            value=(number, plans["plan"][number].as_py()),
            size_bytes=sum(plans["segment_bytes"][number].as_py()),
            disk=run.disks.of(plans["root"][number].as_py()),
        )
        for number in planned
    )
    units = [unit.values for unit in pack_units(items, unit_bytes=0, per_disk=run.disks.per_disk)]
    title = f"{run.job.title}: measure what {len(planned)} partitions would become"
    outcomes = {}
    exact: dict[str, int] = {}
    sizes = plans["bytes_after"].to_pylist()
    for row in run.engine.ask(units, measure_partitions, RoundMeasurement, title):
        outcome = outcomes[row.ordinal] = Outcome(duration_ms=row.duration_ms)
        if row.failure:
            outcome.fail(row.failure)
            continue
        try:
            if Reason.RECORDS_WITHOUT_KEY not in run.job.options.limits.overrides:
                refuse_keyless(
                    plans["directory"][row.ordinal].as_py(),
                    keyless=row.records_without_key,
                    records=row.messages_read,
                )
        except KeylessRecordsError as error:
            outcome.fail(Failure.of(error))
            outcome.columns["records_without_key"] = row.records_without_key
            continue
        outcome.columns = {
            "status": Status.PLANNED.value,
            "bytes_after": row.bytes_after,
            "segments_after": row.segments_after,
            "records_before": row.records_before,
            "records_after": row.records_after,
            "records_without_key": row.records_without_key or None,
        }
        sizes[row.ordinal] = row.bytes_after
        exact[plans["directory"][row.ordinal].as_py()] = row.bytes_after
    run.plans.revise(
        Action.COMPACT.value,
        exact,
        lambda noted, size: replace(noted, figures={**noted.figures, "bytes_after": size}),
    )
    place = plans.column_names.index("bytes_after")
    column = pa.array(sizes, pa.int64())
    return plans.set_column(place, plans.schema.field("bytes_after"), column), outcomes


_log: Final = logging.getLogger(__name__)

# Logs that stay as they are: neither cleaned nor swept.
_GIVEN_UP: Final = frozenset({Reason.NEGATIVE_TIMESTAMP, Reason.RECORDS_WITHOUT_KEY})
_NO_BROADCAST: Final = "this session has no broadcast variables: offset maps are shuffled"


def compact(
    place: Place,
    roots: Sequence[str | Path],
    options: JobOptions,
    *,
    strategy: Strategy = Strategy.AUTO,
    clock: Clock | None = None,
    saved: SavedPlan | None = None,
) -> RunReport:
    """Compact every partition that is due, as Kafka's log cleaner would.

    Args:
        place: Where it runs: a Spark session, or this machine (``Local``).
        options: What to do, and how; its dry run writes nothing.
        strategy: How partitions are spread; AUTO leaves it to their sizes.
        clock: For the times in the ledger; what is decided follows ``options.now_ms``.
        saved: The plan of ``options.plan_in`` where it was read already; None to read it here.
    """
    log_roots = resolve_roots(roots, role=options.role)
    check_roots(log_roots, options)
    job = new_job(Action.COMPACT.value, log_roots, options, clock=clock, saved=saved)
    with open_upkeep(place, job) as run:
        context = run_context(job, run.unclean_roots)
        observation = Observation(run, context, {Step.COMPACT, Step.SWEEP})
        step = compact_step(run, observation, strategy=strategy)
    return run.report(
        RunReport,
        step.results,
        notes=step.notes,
        plans=step.plans,
        retentions=step.retentions,
        cleanings=step.cleanings,
        cleaner=step.totals,
        gauges=step.gauges,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class CompactionStep:
    """What the compaction of a run's partitions found and did."""

    results: pa.Table  # rows of ``schemas.RESULT``, of the sweep as well
    plans: pa.Table  # rows of ``schemas.PLAN``, most urgent first
    # Rows of ``schemas.RETENTION``: what expired in partitions that are compacted.
    retentions: pa.Table
    cleanings: pa.Table  # rows of ``schemas.CLEANING``
    totals: Mapping[str, int]  # numbers of all that was due, by the names of Kafka's gauges
    gauges: Mapping[str, Mapping[str, int]]
    notes: tuple[str, ...]  # what a reader should know of it, line by line


@log_fields(step=Action.COMPACT.value)
def compact_step(
    run: Run, observation: Observation, *, strategy: Strategy = Strategy.AUTO
) -> CompactionStep:
    """Compact all due partitions in an open run; a dry run plans.

    Then remove what has expired in partitions that are compacted, as Kafka's cleaner does: never
    before their compaction, and not where it failed.

    Args:
        run: The run; each round is in its record when this returns.
        strategy: How partitions are spread; AUTO leaves it to their sizes.
    """
    job = run.job
    notes: tuple[str, ...] = () if run.engine.can_broadcast else (_NO_BROADCAST,)
    for note in notes:
        _log.info(note)
    plans = settle_plans(
        run, observation.context, _planned(run, observation), action=Action.COMPACT.value
    )
    notes += compaction_notes(job.roots, plans)
    logs = CleanedLogs(run, plans)
    if not job.options.dry_run:
        _clean(run, observation, logs, strategy)
    elif job.options.exact:
        logs = CleanedLogs(run, *measure_plans(run, plans))
        notes = (*notes, EXACT_NOTE)
    compacted = logs.results()
    swept = retain_step(run, observation, step=Step.SWEEP, excluded=_failed(logs.plans, compacted))
    _raise_points(run, swept.retentions)
    return CompactionStep(
        results=merge_steps([compacted, swept.results]),
        plans=logs.plans,
        retentions=swept.retentions,
        cleanings=logs.cleanings(),
        totals=logs.totals(),
        gauges=logs.root_totals(),
        notes=(*notes, *swept.notes),
    )


def _planned(
    run: Run, observation: Observation, *, among: Collection[str] | None = None
) -> pa.Table:
    """Return the table of plans, most urgent first. It has the plans of all directories, or of
    some."""
    rows = observation.rows(Step.COMPACT, among=among)
    return sort_plans(rows, run.job.options.limits.order)


def _clean(run: Run, observation: Observation, logs: CleanedLogs, strategy: Strategy) -> None:
    """Clean the planned partitions round by round. Each wave is on record when it has ended."""
    # Points outside of their log are corrected at once, be it cleaned or not, as Kafka does.
    reset = logs.plans.filter(logs.plans["checkpoint_reset"])
    for location, points in offsets_by_root(reset, "first_dirty_offset").items():
        run.roots[location].begin_writing()
        run.roots[location].write_cleaner_points(points)
    limits = CompactionLimits.of(run, strategy)
    stages = CompactionStages(run, observation.context, limits)
    plans = logs.plans
    while plans.num_rows:
        due = find_due_compactions(plans, limits)
        outcomes: Outcomes = {}
        for ended in run_waves(run, stages, due, budget=limits.of_wave):
            outcomes |= ended
            logs.record(plans, ended)
        observation.note_changes(plans, outcomes)
        again = logs.end_round(plans, outcomes)
        if not again or run.job.saved is not None:
            break  # of a further round nothing stands in a plan that was saved
        among = [str(directory) for _, directory in again]
        plans = only_planned(_planned(run, observation, among=among), again)
    logs.record_others()


def _failed(plans: pa.Table, results: pa.Table) -> frozenset[str]:
    """Return the directories of failed compactions. The rows of both tables are in the same order.
    Kafka's cleaner does not sweep those either that it gave up."""
    # Where a whole root could not be listed there is a row without any.
    places, statuses = plans["directory"].to_pylist(), results["status"].to_pylist()
    rows = zip(places, statuses, results["reason"].to_pylist(), strict=True)
    return frozenset(
        place
        for place, status, reason in rows
        if place and (status == Status.FAILED or reason in _GIVEN_UP)
    )


def _raise_points(run: Run, retentions: pa.Table) -> None:
    """Raise cleaner points to log starts raised by a sweep.

    Kafka does that when it looks at the log the next time; so would the next run, which would have
    something to do then after one that has done everything.
    """
    done = retentions.filter(pc.equal(retentions["status"], Status.DONE.value))
    for location, starts in offsets_by_root(done, "log_start_offset").items():
        run.roots[location].raise_cleaner_points(starts)
