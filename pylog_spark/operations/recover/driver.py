"""Recover log directories as a broker does after a crash.

Observe what has to be read, read segments in parallel, put each log in order, write the
checkpoints, and, where everything was recovered, the marker that spares the broker all of it.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import pyarrow as pa

from pylog_spark.discovery import resolve_roots
from pylog_spark.engines.choice import Place
from pylog_spark.operations.recover.recovered_logs import RecoveredLogs
from pylog_spark.operations.recover.task import observe_recovery
from pylog_spark.operations.recover.waves import DueRecovery, RecoveryStages, find_due_logs
from pylog_spark.options import JobOptions
from pylog_spark.outcomes import Action
from pylog_spark.run.catalogs import problem_notes
from pylog_spark.run.guards import check_recovery, find_missing_directories
from pylog_spark.run.job import new_job, run_context
from pylog_spark.run.plan_file import SavedPlan
from pylog_spark.run.progress import OnProgress, ProgressMeter
from pylog_spark.run.run import Run, is_as_bad
from pylog_spark.run.run_report import RunReport
from pylog_spark.run.saved_plans import settle_plans
from pylog_spark.run.upkeep import open_upkeep
from pylog_spark.run.waves import NO_LIMIT, run_waves
from pylog_spark.schemas import RECOVERY_WORK
from pylog_spark.structured_logs import log_fields
from pylog_spark.tasks.run_context import RunContext
from storage_core.catalog.roles import local_path
from storage_core.checkpoint.broker_files import read_clean_shutdown
from storage_core.checkpoint.checkpoints import RECOVERY_FILES
from storage_core.clock import Clock
from storage_core.maintenance.verification.findings import Severity
from storage_core.roots.broker import BrokerRoot
from storage_core.roots.open_root import LogRoot, root_checkpoints
from storage_core.roots.root import HeldRoot


def recover(  # besides what is said, what is at hand
    place: Place,
    roots: Sequence[str | Path],
    options: JobOptions,
    *,
    clock: Clock | None = None,
    on_progress: OnProgress | None = None,
    fail_on: Severity | None = None,
    saved: SavedPlan | None = None,
) -> RunReport:
    """Recover every partition, so that the broker starts at once.

    Args:
        place: Where it runs: a Spark session, or this machine (``Local``).
        options: What to do, and how; its dry run writes nothing. A mirror is only reported on,
            unless cutting is allowed and what is cut is salvaged.
        clock: For the times in the ledger; what is decided follows ``options.now_ms``.
        on_progress: Told how far the reading has come.
        fail_on: Cuts as bad as this make the exit status 1; None for none. A cut of which batches
            can still be read, or below the checkpointed high watermark, is an error, others are
            warnings. A log whose tail was gone before makes it 1 in any case, unless it is allowed
            to cut there.
        saved: The plan of ``options.plan_in`` where it was read already; None to read it here.
    """
    log_roots = resolve_roots(roots, role=options.role)
    options, notes = check_recovery(log_roots, options)
    job = new_job(Action.RECOVER.value, log_roots, options, clock=clock, saved=saved)
    with open_upkeep(place, job) as run:
        step = recover_step(run, log_roots, on_progress)
    return run.report(
        RunReport,
        step.results,
        notes=(*notes, *step.notes),
        has_findings=step.has_missing_tail or is_as_bad(step.worst_cut, fail_on),
        cuts=step.cuts,
        recoveries=step.recoveries,
        gauges=step.gauges,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class RecoveryStep:
    """What the recovery of some log directories found and did."""

    results: pa.Table  # rows of ``schemas.RESULT``, worst first
    cuts: pa.Table  # rows of ``schemas.CUT``
    recoveries: pa.Table  # rows of ``schemas.RECOVERY``
    # What of each root is left, by the names of Kafka's gauges.
    gauges: Mapping[str, Mapping[str, int]]
    worst_cut: Severity | None  # how bad the worst cut is, None without any
    # Whether acknowledged records were gone before, and nobody said that they may be.
    has_missing_tail: bool
    unrecovered: frozenset[str]  # partition directories that no further step may touch
    notes: tuple[str, ...]  # what a reader should know of it, line by line


@log_fields(step=Action.RECOVER.value)
def recover_step(
    run: Run, roots: Sequence[LogRoot], on_progress: OnProgress | None
) -> RecoveryStep:
    """Recover log directories in an open run; a dry run only reports.

    Args:
        run: The run; what is done is in its record when this returns.
        on_progress: Told how far the reading has come.
    """
    options = run.job.options
    missing = find_missing_directories(run.job.roots, options)
    held = [run.roots[root.location] for root in roots if root.location in run.roots]
    unclean = (
        _without_marker(roots)
        if options.dry_run
        else frozenset(root.location for root in held if not root.was_clean)
    )
    context = run_context(run.job, unclean)
    logs = RecoveredLogs(run, _observe(run, context, roots))
    notes = [
        *problem_notes(context.catalogs),
        *_checkpoint_notes(roots),
        *logs.guessed_config_notes(context),
    ]
    due = _load_closed(run, context, logs)
    _put_in_order(run, context, logs, due, on_progress)
    if not options.dry_run:
        notes += _mark_clean(run, held, logs, missing)
        logs.record(range(logs.partitions.num_rows))
    return RecoveryStep(
        results=logs.results(),
        cuts=logs.cuts(),
        recoveries=logs.recoveries(),
        gauges=logs.gauges(),
        worst_cut=logs.worst_cut(),
        has_missing_tail=not options.allow_truncate and logs.has_missing_tail(),
        unrecovered=logs.unrecovered(),
        notes=(
            *notes,
            *logs.readable_cut_notes(options.salvage),
            *logs.low_end_notes(context),
            *logs.doubtful_epoch_notes(),
        ),
    )


def _observe(run: Run, context: RunContext, roots: Sequence[LogRoot]) -> pa.Table:
    """Return the work of a recovery, read from listings only. They are rows of
    ``schemas.RECOVERY_WORK``."""

    def observe(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        return observe_recovery(batches, context)

    what = f"look what has to be read in {run.job.places}"
    observed = run.observe(observe, RECOVERY_WORK, what, roots)
    return settle_plans(run, context, observed, action=Action.RECOVER.value)


def _load_closed(run: Run, context: RunContext, logs: RecoveredLogs) -> list[DueRecovery]:
    """Load closed logs without writing; return the logs to repair. The logs that were not closed
    are among these.

    What a broker's start changes in logs that are in order, such as snapshots of producers
    that it does not need any more, is left to it: the directory keeps its marker.
    """
    due = find_due_logs(logs.partitions)
    closed = [each for each in due if each.work.is_clean]
    if not closed:
        return due
    title = f"{run.job.title} {run.job.places}: load {len(closed)} logs that were closed"
    loaded = RecoveryStages(run, context, may_write=False).work(closed, title)
    idle = logs.leave_idle(loaded)
    return [each for each in due if each.ref.ordinal not in idle]


def _put_in_order(
    run: Run,
    context: RunContext,
    logs: RecoveredLogs,
    due: Sequence[DueRecovery],
    on_progress: OnProgress | None,
) -> None:
    """Recover partitions in waves.

    Where the run's time is over no more are begun: their directory gets no marker, and whoever
    recovers it next, a broker too, has the less to do.
    """
    meter = ProgressMeter(
        run.engine,
        total_bytes=sum(each.size_bytes for each in due),
        total_segments=sum(len(each.scan_offsets) for each in due),
        report=on_progress,
    )
    stages = RecoveryStages(run, context, may_write=not run.job.options.dry_run, meter=meter)
    budget = replace(NO_LIMIT, read_bytes=run.job.options.tuning.wave_max_bytes)
    for ended in run_waves(run, stages, due, budget=budget):
        logs.end(ended)


def _mark_clean(
    run: Run,
    roots: Iterable[HeldRoot],
    logs: RecoveredLogs,
    missing: Mapping[str, Sequence[str]],
) -> Iterator[str]:
    """Mark directories clean if all their logs are; yield obstacles. Why a directory is not marked
    is told line by line.

    A directory that had the marker has it back in any case, unless a log was left half done.
    """
    options = run.job.options
    if not options.mark_clean:
        return
    brokers = {root.location for root in run.job.roots if root.role.facts.is_owned_by_broker}
    unrecovered = logs.count_unrecovered()
    for root in roots:
        location = root.location
        if root.was_clean or location not in brokers:
            continue
        reasons = []
        if unrecovered[location]:
            reasons.append(f"{unrecovered[location]} of its logs were not recovered")
        if options.include or options.exclude:
            reasons.append("--topics or --exclude left logs out")
        reasons += missing.get(location, [])
        if not reasons:
            root.claim_clean()
            continue
        why = "; ".join(reasons)
        yield (
            f"{location}: not marked as cleanly shut down, the broker will recover it again: {why}"
        )


def _checkpoint_notes(roots: Iterable[LogRoot]) -> Iterator[str]:
    """Yield which checkpoint files of the roots cannot be understood."""
    for root in roots:
        read = root_checkpoints(root.location, RECOVERY_FILES, strict=False)
        for problem in read.problems.values():
            yield (
                f"{problem}; it counts as empty and stays as it is. A broker does not start with "
                "it: remove it when you have looked at it"
            )


def _without_marker(roots: Iterable[LogRoot]) -> frozenset[str]:
    """Return the roots, of any role, whose logs nobody has closed."""
    return frozenset(
        root.location
        for root in roots
        if local_path(root.location) is None
        or not root.role.facts.has_marker
        or read_clean_shutdown(BrokerRoot(Path(root.location))) is None
    )
