"""Remove what has expired from log directories: observe, plan, commit, record.

Log starts rise in the checkpoint of a directory before its first file goes. A partition that is
compacted is not swept here, but after its compaction, by the same function for another step.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from pylog_spark.discovery import resolve_roots
from pylog_spark.engines.choice import Place
from pylog_spark.operations.observation.driver import Observation
from pylog_spark.operations.retain.deletion_guard import refuse_deletions
from pylog_spark.operations.retain.evidence import RunEvidence
from pylog_spark.operations.retain.task import (
    RetentionContext,
    SweepWork,
)
from pylog_spark.operations.retain.waves import SweepStages, drop_stale_log_starts
from pylog_spark.options import JobOptions
from pylog_spark.run.guards import check_roots
from pylog_spark.run.job import new_job, run_context
from pylog_spark.run.outcome import Outcome
from pylog_spark.run.plan_file import SavedPlan
from pylog_spark.run.plan_table import read_planned, result_rows
from pylog_spark.run.run import Run
from pylog_spark.run.run_report import RunReport
from pylog_spark.run.saved_plans import SWEEP, settle_plans
from pylog_spark.run.upkeep import open_upkeep
from pylog_spark.run.waves import Outcomes, run_waves
from pylog_spark.schemas import (
    ALLOWED_BY,
    RETENTION,
    Action,
    Reason,
    Status,
)
from pylog_spark.structured_logs import log_fields
from pylog_spark.tasks.admission import Step
from storage_core.clock import Clock

# What the pass over compacted partitions has nothing to say of.
_OUT_OF_SCOPE: Final = frozenset(
    {
        Reason.INTERNAL_METADATA,
        Reason.DELETE_DIRECTORY,
        Reason.STRAY_DIRECTORY,
        Reason.INVALID_DIRECTORY_NAME,
        Reason.NOT_COMPACTED,
        Reason.CLEANER_DISABLED,
        Reason.CONFIG_UNKNOWN,
        Reason.METADATA_UNKNOWN,
        Reason.NOTHING_TO_RETAIN,
        Reason.COMPACTED,
    }
)


def retain(
    place: Place,
    roots: Sequence[str | Path],
    options: JobOptions,
    *,
    clock: Clock | None = None,
    saved: SavedPlan | None = None,
) -> RunReport:
    """Remove the segments that have expired, as Kafka's log manager would.

    Args:
        place: Where it runs: a Spark session, or this machine (``Local``).
        options: What to do, and how; its dry run writes nothing.
        clock: For the times in the ledger; what is decided follows ``options.now_ms``.
        saved: The plan of ``options.plan_in`` where it was read already; None to read it here.
    """
    log_roots = resolve_roots(roots, role=options.role)
    check_roots(log_roots, options)
    job = new_job(Action.RETAIN.value, log_roots, options, clock=clock, saved=saved)
    with open_upkeep(place, job) as run:
        context = run_context(job, run.unclean_roots)
        step = retain_step(run, Observation(run, context, {Step.RETAIN}))
    return run.report(RunReport, step.results, notes=step.notes, retentions=step.retentions)


@dataclass(frozen=True, slots=True, kw_only=True)
class RetentionStep:
    """What a sweep over a run's partitions found and did."""

    results: pa.Table  # rows of ``schemas.RESULT``
    retentions: pa.Table  # rows of ``schemas.RETENTION``, in the same order
    notes: tuple[str, ...] = ()  # what a reader should know of it, line by line


@log_fields(step=Action.RETAIN.value)
def retain_step(
    run: Run,
    observation: Observation,
    *,
    step: Step = Step.RETAIN,
    excluded: frozenset[str] = frozenset(),
) -> RetentionStep:
    """Remove expired segments in an open run; a dry run only plans.

    Args:
        run: The run; each wave is in its record when this returns.
        step: RETAIN, or SWEEP for partitions that are compacted, after their compaction. Of these
            only the ones in which something goes, or went wrong, have rows.
        excluded: Partition directories that are left alone: their compaction failed.
    """
    job, context = run.job, observation.context
    shared = RetentionContext(
        run=context,
        step=step,
        excluded=excluded,
    )
    observed = observation.rows(step, excluded=excluded)
    plans = _sort(observed)
    if step is Step.SWEEP:
        plans = _swept_rows(plans)
    plans = settle_plans(
        run,
        context,
        plans,
        action=Action.RETAIN.value if step is Step.RETAIN else SWEEP,
    )
    plans = refuse_deletions(
        plans, job.options.limits, RunEvidence(run, context), observed=observed
    )
    outcomes: Outcomes = {}
    if not job.options.dry_run:
        # Before anything goes: of a run that is killed the ledger would say, by the rows of what
        # went, that a limit was enforced which in another partition of the topic was refused.
        refused = _refused(plans)
        run.recorder.outcomes(plans, refused, action=Action.RETAIN.value)
        due = list(read_planned(SweepWork, plans))
        for ended in run_waves(run, SweepStages(run, shared), due):
            outcomes |= ended
            observation.note_changes(plans, ended)
            run.recorder.outcomes(plans, ended, action=Action.RETAIN.value)
        drop_stale_log_starts(run, observed)
        ordinals = outcomes.keys() | refused.keys()
        others = {n: Outcome() for n in range(plans.num_rows) if n not in ordinals}
        run.recorder.outcomes(plans, others, action=Action.RETAIN.value)
    return RetentionStep(
        results=result_rows(plans, outcomes, run_id=job.run_id, action=Action.RETAIN.value),
        retentions=_retentions(plans, outcomes),
    )


def _sort(plans: pa.Table) -> pa.Table:
    """Return the rows, largest losses first, then by name. This is the order of a report."""
    is_left = pc.not_equal(plans["status"], Status.PLANNED.value)
    lost = pc.if_else(is_left, 0, pc.fill_null(plans["deleted_bytes"], 0))
    # A directory that is no partition has no topic; it stands last, as nulls do.
    keyed = plans.select(["topic", "partition", "root", "directory"])
    keyed = keyed.append_column("is_left", is_left.cast(pa.int8())).append_column("lost", lost)
    keys = [("is_left", "ascending"), ("lost", "descending")]
    keys += [(name, "ascending") for name in ("topic", "partition", "root", "directory")]
    return plans.take(pc.sort_indices(keyed, sort_keys=keys))


def _swept_rows(plans: pa.Table) -> pa.Table:
    """Return the rows of compacted partitions with something to tell."""
    silent = pa.array(sorted(reason.value for reason in _OUT_OF_SCOPE))
    return plans.filter(pc.invert(pc.is_in(plans["reason"], silent)))


def _refused(plans: pa.Table) -> Outcomes:
    """Return the outcomes of the rows that the guard of deletions refused."""
    is_refused = pc.is_in(plans["reason"], pa.array(sorted(ALLOWED_BY), pa.string()))
    return {number: Outcome() for number in pc.indices_nonzero(is_refused).to_pylist()}


def _retentions(plans: pa.Table, outcomes: Mapping[int, Outcome]) -> pa.Table:
    """Return the retention of each partition, as rows of ``schemas.RETENTION``. They say what
    went, or would, and what keeps the rest."""
    statuses = plans["status"].to_pylist()
    for number, outcome in outcomes.items():
        statuses[number] = outcome.columns.get("status", statuses[number])
    place = plans.schema.get_field_index("status")
    settled = plans.set_column(place, plans.schema.field("status"), pa.array(statuses, pa.string()))
    looked = settled.filter(pc.is_valid(settled["old_log_start_offset"]))
    return looked.select(RETENTION.names).cast(RETENTION)
