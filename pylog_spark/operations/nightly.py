"""The nightly job: all due maintenance of some log directories.

Recover what was not closed, remove what has expired, compact, and purge what former runs put
aside: one after the other, under one lock and one name. Each step commits partition by partition,
so a run that is killed has done what it has done; the next one finds less to do.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path

import pyarrow as pa

from pylog_spark.discovery import resolve_roots
from pylog_spark.engines.choice import Place
from pylog_spark.operations.compact.driver import compact_step
from pylog_spark.operations.observation import Observation
from pylog_spark.operations.purge import purge_step
from pylog_spark.operations.recover.driver import recover_step
from pylog_spark.operations.retain.driver import retain_step
from pylog_spark.options import JobOptions
from pylog_spark.outcomes import Action
from pylog_spark.run.guards import check_roots, check_salvage
from pylog_spark.run.job import new_job, run_context
from pylog_spark.run.plan_file import SavedPlan
from pylog_spark.run.progress import OnProgress
from pylog_spark.run.run import Run, is_as_bad
from pylog_spark.run.run_report import NOT_OF_THIS_STEP, RunReport, merge_steps, summarise_steps
from pylog_spark.run.upkeep import open_upkeep
from pylog_spark.schemas import CLEANING, CUT, PLAN, RECOVERY, RETENTION
from pylog_spark.tasks.observe import Step
from storage_core.clock import Clock
from storage_core.maintenance.verification.findings import Severity


def run_nightly(  # besides what is said, what is at hand
    place: Place,
    roots: Sequence[str | Path],
    options: JobOptions,
    *,
    clock: Clock | None = None,
    on_progress: OnProgress | None = None,
    fail_on: Severity | None = None,
    saved: SavedPlan | None = None,
) -> RunReport:
    """Do what is due, record it and report it.

    Args:
        place: Where it runs: a Spark session, or this machine (``Local``).
        options: What to do, and how; its dry run writes nothing.
        clock: For the times in the ledger; what is decided follows ``options.now_ms``.
        on_progress: Told how far the reading of a recovery has come.
        fail_on: Cuts of a recovery as bad as this make the exit status 1; None for none.
        saved: The plan of ``options.plan_in`` where it was read already; None to read it here.
    """
    log_roots = resolve_roots(roots, role=options.role)
    check_roots(log_roots, options)
    check_salvage(log_roots, options)
    job = new_job(
        Action.RUN.value, log_roots, options, clock=clock, saved=saved, unsaid=NOT_OF_THIS_STEP
    )
    with open_upkeep(place, job) as run:
        night = _Night(run)
        night.recover(on_progress)
        night.retain()
        night.compact()
        night.purge()
    return run.report(
        RunReport,
        merge_steps(night.tables),
        notes=night.notes,
        has_findings=night.has_missing_tail or is_as_bad(night.worst_cut, fail_on),
        summarise=summarise_steps,
        plans=night.plans,
        cuts=night.cuts,
        recoveries=night.recoveries,
        retentions=pa.concat_tables(night.retentions),
        cleanings=night.cleanings,
        cleaner=night.cleaner,
        gauges=night.gauges,
    )


class _Night:
    """The steps of one run, and what they found and did."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self._context = run_context(run.job, run.unclean_roots)
        self.tables: list[pa.Table] = []
        self.notes: list[str] = []
        self.plans = PLAN.empty_table()
        self.cuts = CUT.empty_table()
        self.worst_cut: Severity | None = None
        self.has_missing_tail = False
        self.recoveries = RECOVERY.empty_table()
        self.retentions = [RETENTION.empty_table()]
        self.cleanings = CLEANING.empty_table()
        self.cleaner: Mapping[str, int] = {}
        self.gauges: dict[str, dict[str, int]] = {}

    def recover(self, on_progress: OnProgress | None) -> None:
        """Recover the brokers' directories without a marker of a clean shutdown. The others are
        not read."""
        unclean = self._run.unclean_roots
        roots = [
            root
            for root in self._run.job.roots
            if root.role.facts.is_owned_by_broker and root.location in unclean
        ]
        if not roots:
            return
        step = recover_step(self._run, roots, on_progress)
        self.tables.append(step.results)
        self.notes += step.notes
        self.cuts, self.recoveries = step.cuts, step.recoveries
        self._note_gauges(step.gauges)
        self.worst_cut = step.worst_cut
        self.has_missing_tail = step.has_missing_tail
        if not self._run.job.options.dry_run:
            # What was recovered is in order, whether or not the directory may say so to a broker.
            recovered = {root.location for root in roots}
            self._context = replace(
                self._context, unclean_roots=unclean - recovered, unrecovered=step.unrecovered
            )

    @cached_property
    def _observation(self) -> Observation:
        """The look at all partitions, made after any recovery."""
        has_purge = self._run.job.saved is None
        return Observation(
            self._run, self._context, set(Step) - (set() if has_purge else {Step.PURGE})
        )

    def retain(self) -> None:
        """Remove what has expired, but for partitions that are compacted."""
        step = retain_step(self._run, self._observation)
        self.tables.append(step.results)
        self.retentions.append(step.retentions)
        self.notes += step.notes

    def compact(self) -> None:
        """Compact what is due, and remove what has expired there."""
        step = compact_step(self._run, self._observation)
        self.tables.append(step.results)
        self.retentions.append(step.retentions)
        self.plans = step.plans
        self.cleanings, self.cleaner = step.cleanings, step.totals
        self._note_gauges(step.gauges)
        self.notes += step.notes

    def purge(self) -> None:
        """Remove for good what brokers and former runs put aside."""
        if self._run.job.saved is not None:
            return  # a saved plan holds no purge: see _observation
        listed = self._observation.rows(Step.PURGE)
        self.tables.append(purge_step(self._run, self._context.catalogs, listed=listed))

    def _note_gauges(self, gauges: Mapping[str, Mapping[str, int]]) -> None:
        for root, numbers in gauges.items():
            self.gauges.setdefault(root, {}).update(numbers)
