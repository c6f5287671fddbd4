"""Recover the partitions of log directories, as a broker does when it starts after a crash.

Observe what has to be read, read segments in parallel, put each log in order, write the
checkpoints, and, where everything was recovered, the marker that spares the broker all of it.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import pyarrow as pa

from pylog_spark.discovery import resolve_roots
from pylog_spark.engines.choice import Place
from pylog_spark.operations.recovery_rows import RecoveryRows
from pylog_spark.operations.recovery_waves import DueRecovery, RecoveryStages, find_due_logs
from pylog_spark.options import JobOptions
from pylog_spark.run.exit_rule import is_as_bad
from pylog_spark.run.guards import check_recovery
from pylog_spark.run.job import new_job, run_context
from pylog_spark.run.missing_directories import find_missing_directories
from pylog_spark.run.plan_file import SavedPlan
from pylog_spark.run.progress import OnProgress, ProgressMeter
from pylog_spark.run.run import Run
from pylog_spark.run.run_report import RunReport
from pylog_spark.run.saved_plans import note_operations, settle_plans
from pylog_spark.run.upkeep import open_upkeep
from pylog_spark.run.waves import NO_LIMIT, Outcomes, run_waves
from pylog_spark.schemas import RECOVERY_WORK, Action, Reason, Status
from pylog_spark.tasks.recovery import RecoveryLimits, observe_recovery
from pylog_spark.tasks.run_context import RunContext
from storage_core.catalog.roles import Role, local_path
from storage_core.checkpoint.broker_files import read_clean_shutdown
from storage_core.checkpoint.checkpoints import RECOVERY_FILES
from storage_core.clock import Clock
from storage_core.maintenance.verification.findings import Severity
from storage_core.roots.broker import BrokerRoot
from storage_core.roots.open_root import LogRoot, root_checkpoints
from storage_core.roots.root import HeldRoot

# What does not keep a directory from being marked: no broker loads it by the marker, or at all.
_NOT_LOADED: Final = frozenset(
    {Reason.INTERNAL_METADATA, Reason.DELETE_DIRECTORY, Reason.STRAY_DIRECTORY}
)


def recover(  # noqa: PLR0913  # besides what is said, what is at hand
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
        roots: Paths of log directories.
        options: What to do, and how; its dry run writes nothing. A mirror is only reported on,
            unless cutting is allowed and what is cut is salvaged.
        clock: For the times in the ledger; what is decided follows ``options.now_ms``.
        on_progress: Told how far the reading has come.
        fail_on: Cuts as bad as this make the exit status 1; None for none. A cut of which batches
            can still be read, or below the checkpointed high watermark, is an error, others are
            warnings. A log whose tail was gone before makes it 1 in any case, unless it is allowed
            to cut there.
        saved: The plan of ``options.plan_in`` where it was read already; None to read it here.

    Raises:
        ConfigError: A root is no directory, is there twice, or would hold the ledger or what is
            salvaged; or the file of ``options.plan_in`` is no plan.
        GuardRefusedError: A root's role was not said, it is locked, roots are of several brokers,
            or the machine's clock is behind the newest checkpoint.
        PylogError: The cluster's metadata or a root's own files cannot be read.
        pyspark.errors.PySparkException: Spark failed.
    """
    log_roots = resolve_roots(roots, said=options.role)
    options, notes = check_recovery(log_roots, options)
    job = new_job(Action.RECOVER.value, log_roots, options, clock=clock, saved=saved)
    with open_upkeep(place, job) as run:
        recovery = RecoveryStep(run, log_roots, on_progress)
        recovery.run()
    return run.report(
        RunReport,
        recovery.rows.results(),
        notes=(*notes, *recovery.notes),
        has_findings=recovery.has_missing_tail or is_as_bad(recovery.rows.worst_cut(), fail_on),
        cuts=recovery.rows.cuts(),
        recoveries=recovery.rows.recoveries(),
    )


class RecoveryStep:
    """The recovery of some log directories, within a run that is open.

    Args:
        run: The run; its dry run only reports.
        roots: Those of its log directories that are recovered.
        on_progress: Told how far the reading has come.

    Attributes:
        rows: The partitions, and what became of each.
        notes: What a reader should know of it, line by line.
    """

    def __init__(self, run: Run, roots: Sequence[LogRoot], on_progress: OnProgress | None) -> None:
        self._run = run
        self._job = run.job
        self._chosen = tuple(roots)
        self._on_progress = on_progress
        options = run.job.options
        self._limits = RecoveryLimits(
            allow_truncate=options.allow_truncate,
            max_truncate_bytes=options.max_truncate_bytes,
            salvage=options.salvage,
        )
        self.rows = RecoveryRows(run.job.run_id, Action.RECOVER.value)
        self._recorded: set[int] = set()
        self.notes: list[str] = []

    def run(self) -> None:
        """Recover; what is done is in the run's record when this returns.

        Raises:
            PylogError: The cluster's metadata or a root's own files cannot be read.
            pyspark.errors.PySparkException: Spark failed.
        """
        missing = find_missing_directories(self._job.roots, self._job.options)
        roots = {
            root.location: self._run.roots[root.location]
            for root in self._chosen
            if root.location in self._run.roots
        }
        if self._job.options.dry_run:
            unclean = _without_marker(self._chosen)
        else:
            unclean = frozenset(place for place, root in roots.items() if not root.was_clean)
        context = self._observe(unclean)
        due = find_due_logs(self.rows.partitions)
        self._recover(self._clean_ones(due, context), context)
        if not self._job.options.dry_run:
            self._mark(roots, missing)
            self._record(range(self.rows.partitions.num_rows))
        self._advise()

    @property
    def has_missing_tail(self) -> bool:
        """Whether acknowledged records were gone before, and nobody said that they may be."""
        return not self._job.options.allow_truncate and self.rows.has_missing_tail()

    @property
    def unrecovered(self) -> frozenset[str]:
        """Partition directories that no further step may touch."""
        return frozenset(row["directory"] for row in self._unwell())

    def _unwell(self) -> Iterator[Mapping[str, Any]]:
        """Yield root and directory, among others, of each log that is not in order."""
        # But not its segments: all logs have too many of them to be made objects at once.
        rows = self.rows.partitions.select(["root", "directory", "status", "reason"]).to_pylist()
        for ordinal, row in enumerate(rows):
            outcome = self.rows.outcomes.get(ordinal)
            if not _is_well(row if outcome is None else outcome.columns):
                yield row

    def _observe(self, unclean: frozenset[str]) -> RunContext:
        context = run_context(self._job, unclean)

        def observe(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            return observe_recovery(batches, context)

        what = f"look what has to be read in {self._job.places}"
        found = self._run.observe(observe, RECOVERY_WORK, what, self._chosen)
        self.rows.partitions = settle_plans(self._run, context, found, action=Action.RECOVER.value)
        for root in self._chosen:
            read = root_checkpoints(root.location, RECOVERY_FILES, strict=False)
            self.notes += [
                f"{problem}; it counts as empty and stays as it is. A broker does not start with "
                "it: remove it when you have looked at it"
                for problem in read.problems.values()
            ]
        self._note_guessed_configs(context)
        return context

    def _note_guessed_configs(self, context: RunContext) -> None:
        """Say of which topics no source knows the config; recovery takes the defaults for them."""
        rows = self.rows.partitions.select(["root", "topic", "status"]).to_pylist()
        planned = {(row["root"], row["topic"]) for row in rows if row["status"] == Status.PLANNED}
        unknown = sorted({t for root, t in planned if context.catalogs[root].find(t) is None})
        if unknown:
            more = "" if len(unknown) == 1 else f" and {len(unknown) - 1} more topics"
            self.notes.append(
                f"no source knows the config of {unknown[0]}{more}: recovered with Kafka's "
                "defaults, which decide only how dense rebuilt indexes are"
            )

    def _clean_ones(self, due: Sequence[DueRecovery], context: RunContext) -> list[DueRecovery]:
        """Load what was cleanly shut down, without writing; return what is in need of repair.

        What a broker's start changes in logs that are in order, such as snapshots of producers
        that it does not need any more, is left to it: the directory keeps its marker.
        """
        clean = [each for each in due if each.work.is_clean]
        if not clean:
            return list(due)
        stages = RecoveryStages(self._run, context, self._limits, may_write=False)
        what = f"load {len(clean)} logs that were closed"
        outcomes = stages.work(clean, f"{self._job.title} {self._job.places}: {what}")
        idle = set()
        for ordinal, outcome in outcomes.items():
            if outcome.columns["status"] == Status.PLANNED and not outcome.columns["is_repaired"]:
                skipped = {"status": Status.SKIPPED, "reason": Reason.NOTHING_TO_RECOVER}
                outcome.columns |= skipped
                self.rows.outcomes[ordinal] = outcome
                idle.add(ordinal)
        return [each for each in due if each.ref.ordinal not in idle]

    def _recover(self, due: Sequence[DueRecovery], context: RunContext) -> None:
        """Recover partitions in waves.

        Where the run's time is over no more are begun: their directory gets no marker, and whoever
        recovers it next, a broker too, has the less to do.
        """
        options = self._job.options
        meter = ProgressMeter(
            self._run.engine,
            total_bytes=sum(each.size_bytes for each in due),
            total_segments=sum(len(each.scan_offsets) for each in due),
            report=self._on_progress,
        )
        may_write = not options.dry_run
        stages = RecoveryStages(self._run, context, self._limits, may_write=may_write, meter=meter)
        budget = replace(NO_LIMIT, read_bytes=options.tuning.wave_max_bytes)
        for ended in run_waves(self._run, stages, due, budget=budget):
            self.rows.outcomes |= ended
            self._note(ended)
            if may_write:
                self._record(ended)

    def _note(self, outcomes: Outcomes) -> None:
        """Tell a plan that is going to be saved what is done to these partitions."""
        directories = self.rows.partitions["directory"]
        texts = {
            directories[ordinal].as_py(): outcome.columns["operations"]
            for ordinal, outcome in outcomes.items()
            if "operations" in outcome.columns
        }
        note_operations(self._run, Action.RECOVER.value, texts)

    def _mark(self, roots: Mapping[str, HeldRoot], missing: Mapping[str, Sequence[str]]) -> None:
        """Let directories be marked clean if every log of theirs is, and say why if not.

        A directory that had the marker has it back in any case, unless a log was left half done.
        """
        options = self._job.options
        if not options.mark_clean:
            return
        brokers = {root.location for root in self._job.roots if root.role is Role.BROKER}
        unrecovered = Counter(row["root"] for row in self._unwell())
        for location, root in roots.items():
            if root.was_clean or location not in brokers:
                continue
            reasons = []
            if unrecovered[location]:
                reasons.append(f"{unrecovered[location]} of its logs were not recovered")
            if options.include or options.exclude:
                reasons.append("--topics or --exclude left logs out")
            reasons += missing.get(location, [])
            if reasons:
                why = "; ".join(reasons)
                self.notes.append(
                    f"{location}: not marked as cleanly shut down, the broker will recover it "
                    f"again: {why}"
                )
            else:
                root.claim_clean()

    def _advise(self) -> None:
        note = self.rows.low_ends_note()
        if note is not None:
            self.notes.append(note)

    def _record(self, ordinals: Iterable[int]) -> None:
        """Tell the ledger of partitions that it does not know of yet."""
        fresh = [ordinal for ordinal in ordinals if ordinal not in self._recorded]
        self._recorded |= set(fresh)
        self._run.recorder.results(self.rows.result_rows(fresh))
        ended = {n: self.rows.outcomes[n] for n in fresh if n in self.rows.outcomes}
        texts = {
            ordinal: outcome.columns["operations"]
            for ordinal, outcome in ended.items()
            if outcome.columns["status"] == Status.DONE
        }
        self._run.recorder.operations(self.rows.partitions, texts)
        for outcome in ended.values():
            # Of no use any more, and for many partitions too much to keep.
            outcome.columns.pop("operations", None)


def _is_well(outcome: Mapping[str, Any]) -> bool:
    """Whether a log is in order, or none that a broker loads."""
    is_idle = outcome.get("reason") in {*_NOT_LOADED, Reason.NOTHING_TO_RECOVER}
    return outcome["status"] == Status.DONE or is_idle


def _without_marker(roots: Iterable[LogRoot]) -> frozenset[str]:
    """Return the roots, of any role, whose logs nobody has closed."""
    return frozenset(
        root.location
        for root in roots
        if local_path(root.location) is None
        or root.role is Role.MANAGED
        or read_clean_shutdown(BrokerRoot(Path(root.location))) is None
    )
