"""Compact the partitions of log directories: observe, plan, commit, record."""

import logging
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from pylog_spark.discovery import resolve_roots
from pylog_spark.engines.choice import Place
from pylog_spark.operations.compact.cleaned_logs import CleanedLogs
from pylog_spark.operations.compact.due_compactions import CompactionLimits, find_due_compactions
from pylog_spark.operations.compact.exact import EXACT_NOTE, measure_plans
from pylog_spark.operations.compact.waves import CompactionStages
from pylog_spark.operations.observation.driver import Observation
from pylog_spark.operations.retain.driver import retain_step
from pylog_spark.options import JobOptions, Strategy
from pylog_spark.run.guards import check_roots
from pylog_spark.run.job import new_job, run_context
from pylog_spark.run.plan_file import SavedPlan
from pylog_spark.run.plan_table import offsets_by_root, only_planned, sort_plans
from pylog_spark.run.run import Run
from pylog_spark.run.run_report import RunReport, merge_steps
from pylog_spark.run.saved_plans import settle_plans
from pylog_spark.run.store_costs import compaction_notes
from pylog_spark.run.upkeep import open_upkeep
from pylog_spark.run.waves import Outcomes, run_waves
from pylog_spark.schemas import Action, Reason, Status
from pylog_spark.structured_logs import log_fields
from pylog_spark.tasks.admission import Step
from storage_core.clock import Clock

_log: Final = logging.getLogger(__name__)

# Logs that stay as they are: neither cleaned nor swept.
_GIVEN_UP: Final = frozenset({Reason.NEGATIVE_TIMESTAMP, Reason.RECORDS_WITHOUT_KEY})
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
        due = find_due_compactions(
            plans,
            limits,
            shares_files=lambda root: run.roots[root].access.shared_folder(root) is not None,
        )
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

    Kafka's cleaner does not sweep those either that it gave up.
    """
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
