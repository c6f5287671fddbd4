"""Compact the partitions of log directories: observe, plan, commit, record."""

import logging
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from pylog_spark.discovery import resolve_roots
from pylog_spark.engines.choice import Place
from pylog_spark.operations.cleaning_rows import cleaner_totals, cleaning_rows, describe_totals
from pylog_spark.operations.compaction_waves import CompactionStages
from pylog_spark.operations.due_compactions import CompactionLimits, find_due_compactions
from pylog_spark.operations.exact import EXACT_NOTE, measure_plans
from pylog_spark.operations.retain import retain_step
from pylog_spark.options import JobOptions, Strategy
from pylog_spark.run.guards import check_roots
from pylog_spark.run.job import new_job, run_context
from pylog_spark.run.observation import Observation
from pylog_spark.run.outcome import Outcome
from pylog_spark.run.plan_file import SavedPlan
from pylog_spark.run.plan_table import RowKey, only_planned, result_rows, row_keys, sort_plans
from pylog_spark.run.planning import Demand, broadcast_budget
from pylog_spark.run.run import Run
from pylog_spark.run.run_report import RunReport, merge_steps
from pylog_spark.run.saved_plans import settle_plans
from pylog_spark.run.store_costs import compaction_notes
from pylog_spark.run.upkeep import open_upkeep
from pylog_spark.run.waves import Outcomes, run_waves
from pylog_spark.schemas import Action, Reason, Status
from pylog_spark.tasks.cells import MOST_CELL_BYTES
from pylog_spark.tasks.key_folder import shares_files
from pylog_spark.tasks.observation import Step
from pylog_spark.tasks.retention import SweepScope
from storage_core.clock import Clock
from storage_core.filenames import TopicPartition
from storage_core.maintenance.compaction.plan import map_capacity

_log: Final = logging.getLogger(__name__)

_NO_BROADCAST: Final = (
    "this session has no broadcast variables: offset maps are shared by scratch files or shuffled"
)


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
        roots: Paths of log directories.
        options: What to do, and how; its dry run writes nothing.
        strategy: How partitions are spread; AUTO leaves it to their sizes.
        clock: For the times in the ledger; what is decided follows ``options.now_ms``.
        saved: The plan of ``options.plan_in`` where it was read already; None to read it here.

    Raises:
        ConfigError: A root is no directory, is there twice, or would hold the ledger; or the file
            of ``options.plan_in`` is no plan.
        GuardRefusedError: A root's role was not said or is read-only, it is locked, roots are of
            several brokers, or the machine's clock is behind the newest checkpoint.
        PylogError: The cluster's metadata or a root's own files cannot be read.
        pyspark.errors.PySparkException: Spark failed.
    """
    log_roots = resolve_roots(roots, said=options.role)
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
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class CompactionStep:
    """What the compaction of a run's partitions found and did.

    Attributes:
        results: Rows of ``schemas.RESULT``, of the sweep as well.
        plans: Rows of ``schemas.PLAN``, most urgent first.
        retentions: Rows of ``schemas.RETENTION``: what expired in partitions that are compacted.
        cleanings: Rows of ``schemas.CLEANING``.
        totals: Numbers of all that was due, by the names of Kafka's gauges.
        notes: What a reader should know of it, line by line.
    """

    results: pa.Table
    plans: pa.Table
    retentions: pa.Table
    cleanings: pa.Table
    totals: Mapping[str, int]
    notes: tuple[str, ...]


def compact_step(
    run: Run, observation: Observation, *, strategy: Strategy = Strategy.AUTO
) -> CompactionStep:
    """Compact what is due, within a run that is open; its dry run only plans.

    Then remove what has expired in partitions that are compacted, as Kafka's cleaner does: never
    before their compaction, and not where it failed.

    Args:
        run: The run; each round is in its record when this returns.
        observation: What was seen of its partitions.
        strategy: How partitions are spread; AUTO leaves it to their sizes.

    Raises:
        StorageError: A root's own files cannot be read or written.
        pyspark.errors.PySparkException: Spark failed.
    """
    job = run.job
    notes: tuple[str, ...] = () if run.engine.can_broadcast else (_NO_BROADCAST,)
    for note in notes:
        _log.info(note)
    plans = settle_plans(
        run, observation.context, _planned(run, observation), action=Action.COMPACT.value
    )
    notes += compaction_notes(job.roots, plans)
    outcomes: Outcomes = {}
    if not job.options.dry_run:
        outcomes = _clean(run, observation, plans, strategy)
    elif job.options.exact:
        plans, outcomes = measure_plans(run, plans)
        notes = (*notes, EXACT_NOTE)
    compacted = result_rows(plans, outcomes, run_id=job.run_id, action=Action.COMPACT.value)
    swept = retain_step(
        run, observation, scope=SweepScope.COMPACTED, excluded=_failed(plans, compacted)
    )
    _raise_points(run, swept.retentions)
    return CompactionStep(
        results=merge_steps([compacted, swept.results]),
        plans=plans,
        retentions=swept.retentions,
        cleanings=cleaning_rows(plans, outcomes, run_id=job.run_id),
        totals=describe_totals(cleaner_totals(plans, outcomes)),
        notes=(*notes, *swept.notes),
    )


def _raise_points(run: Run, retentions: pa.Table) -> None:
    """Bring cleaner points up to the log starts that a sweep has raised above them.

    Kafka does that when it looks at the log the next time; so would the next run, which would have
    something to do then after one that has done everything.
    """
    starts: dict[str, dict[TopicPartition, int]] = {}
    names = ["root", "topic", "partition", "log_start_offset"]
    done = retentions.filter(pc.equal(retentions["status"], Status.DONE.value))
    for row in done.select(names).to_pylist():
        partition = TopicPartition(row["topic"], row["partition"])
        starts.setdefault(row["root"], {})[partition] = row["log_start_offset"]
    for location, entries in starts.items():
        run.roots[location].raise_cleaner_points(entries)


def _failed(plans: pa.Table, results: pa.Table) -> frozenset[str]:
    """Return the directories whose compaction failed; the rows are in the same order."""
    # Where a whole root could not be listed there is a row without any.
    rows = zip(plans["directory"].to_pylist(), results["status"].to_pylist(), strict=True)
    return frozenset(place for place, status in rows if place and status == Status.FAILED)


def _clean(run: Run, observation: Observation, plans: pa.Table, strategy: Strategy) -> Outcomes:
    """Clean what is planned, under the locks of all roots; record each round when it has ended."""
    options, engine = run.job.options, run.engine
    for location, points in _reset_points(plans).items():
        run.roots[location].begin_writing()
        run.roots[location].write_cleaner_points(points)
    limits = CompactionLimits(
        least_unit_bytes=options.tuning.unit_min_bytes,
        most_unit_bytes=options.tuning.unit_max_bytes,
        # Without broadcasts the plans of a wave are values in Spark's own plan.
        budget_bytes=broadcast_budget(
            options.tuning.broadcast_max_bytes, heap_bytes=engine.heap_bytes
        )
        if engine.can_broadcast
        else MOST_CELL_BYTES,
        slots=engine.slots,
        can_broadcast=engine.can_broadcast,
        max_keys=map_capacity(options.cleaner),
        # What a caller asks for wins over the run's option.
        strategy=Strategy(options.strategy) if strategy is Strategy.AUTO else strategy,
        files_bytes=options.tuning.files_max_bytes,
        bucket_bytes=options.tuning.shuffle_bucket_bytes,
        wave_bytes=options.tuning.wave_max_bytes,
        wave_tasks=options.tuning.wave_max_tasks,
        disks=run.disks,
    )
    stages = CompactionStages(run, observation.context, limits)
    left = plans
    outcomes: Outcomes = {}
    while left.num_rows:
        ended = _clean_once(run, stages, left)
        observation.note_changes(left, ended)
        outcomes |= _merge(plans, outcomes, left, ended)
        again = _split(left, ended)
        if options.until_clean:
            again |= _unfinished(left, ended)
        if not again:
            break
        left = only_planned(_planned(run, observation), again)
    others = {number: Outcome() for number in range(plans.num_rows) if number not in outcomes}
    _record(run, plans, others)
    return outcomes


def _clean_once(run: Run, stages: CompactionStages, plans: pa.Table) -> Outcomes:
    """Clean the planned rows of a table of plans; record each wave when it has ended."""
    limits = stages.limits
    due = find_due_compactions(
        plans, limits, shares_files=lambda root: shares_files(run.roots[root].access)
    )
    budget = Demand(
        map_bytes=limits.budget_bytes,
        disk_bytes=sys.maxsize,
        read_bytes=limits.wave_bytes,
        tasks=limits.wave_tasks,
    )
    outcomes: Outcomes = {}
    for ended in run_waves(run, stages, due, budget=budget):
        outcomes |= ended
        _record(run, plans, ended)
    return outcomes


def _merge(plans: pa.Table, outcomes: Outcomes, left: pa.Table, ended: Outcomes) -> Outcomes:
    """Return outcomes by their rows in plans, put together with those of former rounds."""
    numbers = {key: number for number, key in enumerate(row_keys(plans))}
    merged: Outcomes = {}
    for ordinal, key in enumerate(row_keys(left)):
        if ordinal in ended:
            number = numbers[key]
            merged[number] = ended[ordinal].after(outcomes.get(number))
    return merged


def _unfinished(plans: pa.Table, outcomes: Outcomes) -> set[RowKey]:
    """Return the partitions whose offset map was full before all that is dirty was cleaned."""
    first = plans["first_dirty_offset"].to_pylist()
    end = plans["first_uncleanable_offset"].to_pylist()
    keys = row_keys(plans)
    return {
        keys[ordinal]
        for ordinal, outcome in outcomes.items()
        if outcome.next_offset is not None and first[ordinal] < outcome.next_offset < end[ordinal]
    }


def _split(plans: pa.Table, outcomes: Outcomes) -> set[RowKey]:
    """Return the partitions of which a segment was split in place of the round."""
    keys = row_keys(plans)
    return {
        keys[ordinal]
        for ordinal, outcome in outcomes.items()
        if outcome.columns.get("reason") == Reason.SEGMENT_SPLIT.value
    }


def _planned(run: Run, observation: Observation) -> pa.Table:
    """Return the table of plans, most urgent first."""
    return sort_plans(observation.rows(Step.COMPACT), run.job.options.limits.order)


def _reset_points(plans: pa.Table) -> dict[str, dict[TopicPartition, int]]:
    """Return, by root, the cleaner points that lay outside of their log, corrected.

    They are written back at once, be the partition cleaned or not, as Kafka does.
    """
    points: dict[str, dict[TopicPartition, int]] = {}
    names = ["root", "topic", "partition", "first_dirty_offset"]
    for row in plans.filter(plans["checkpoint_reset"]).select(names).to_pylist():
        partition = TopicPartition(row["topic"], row["partition"])
        points.setdefault(row["root"], {})[partition] = row["first_dirty_offset"]
    return points


def _record(run: Run, plans: pa.Table, outcomes: Outcomes) -> None:
    run.recorder.outcomes(plans, outcomes, action=Action.COMPACT.value)
    run.recorder.cleanings(cleaning_rows(plans, outcomes, run_id=run.job.run_id))
