"""One run: its record, its stages, what it holds, and its report.

Every command works inside of one. What a command holds (locks and leases of log directories, the
lease of a trash) it takes before it looks at anything, and the run gives it back when the last step
has ended, whatever ended it; then the record is closed.
"""

import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import cached_property, partial
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self, TypeVar

import pyarrow as pa
import pyarrow.compute as pc

from pylog_spark.discovery import count_directories, discover_partitions
from pylog_spark.engines.choice import Local, Place, open_engine, open_look_engine
from pylog_spark.engines.engine import AnyEngine, run_apart
from pylog_spark.exit_code import ExitCode
from pylog_spark.house import addition_for
from pylog_spark.options import RunLimits
from pylog_spark.outcomes import Action, Reason, Status
from pylog_spark.run.job import Job, brokers_of, open_recorder, unclean_roots
from pylog_spark.run.plan_file import PlanBook
from pylog_spark.run.plan_table import refuse_duplicates
from pylog_spark.run.planning import (
    LEAST_TO_PREPARE_FOR,
    Disks,
    WorkItem,
    WorkUnit,
    are_looked_at_here,
    choose_unit_bytes,
    count_busy,
    find_disks,
    pack_units,
)
from pylog_spark.run.recording import Recorder, ledger_problem_notes
from pylog_spark.run.run_report import Report, RunSummary, summarise
from pylog_spark.structured_logs import log_fields
from pylog_spark.tasks.run_context import RunContext, WriteContext
from storage_core import interruption
from storage_core.errors import StorageError
from storage_core.maintenance.verification.findings import Severity
from storage_core.roots.killed_runs import foresee_marker
from storage_core.roots.open_root import LogRoot
from storage_core.roots.root import HeldRoot, failures_of
from storage_core.wording import span_text

# The budgets of a run for new work: bytes, time, disk space.
#
# A budget is asked between waves, never within one: what was begun is finished, and what finished
# waves committed stays.

# Of what is free on a disk, another writer may want some too.
_USABLE_SHARE: Final = 0.9


class RunBudget:
    """The budget of one run.

    Args:
        limits: What it may use.
        clock: Seconds that only grow; for tests.
    """

    def __init__(self, limits: RunLimits, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._limits = limits
        self._clock = clock
        self._began = clock()
        self._used_bytes = 0

    def use(self, size_bytes: int) -> None:
        """Take note of bytes that a wave is going to read."""
        self._used_bytes += size_bytes

    def refusal(self) -> tuple[Reason, str] | None:
        """Return why nothing more may be begun, None while it may."""
        most_bytes, most_ms = self._limits.max_bytes, self._limits.max_duration_ms
        if most_bytes is not None and self._used_bytes >= most_bytes:
            why = f"--max-bytes {most_bytes}: {self._used_bytes} bytes were read before it"
            return Reason.BUDGET_SPENT, why
        spent_ms = round((self._clock() - self._began) * 1000)
        if most_ms is not None and spent_ms >= most_ms:
            why = f"--max-duration {span_text(most_ms)}: {span_text(spent_ms)} had passed before it"
            return Reason.BUDGET_SPENT, why
        return None

    def usable_of(self, free_bytes: int) -> int:
        """Return the usable part of a disk's free space, never negative."""
        spared = min(int(free_bytes * _USABLE_SHARE), free_bytes - self._limits.min_free_bytes)
        return max(0, spared)


# Which exit status the rows of a run give it.

# Refusals by a guard: nothing is wrong with what was done, but something was not allowed.
_GUARDS: Final = frozenset(
    {
        Reason.CONFIG_UNKNOWN,
        Reason.METADATA_UNKNOWN,
        Reason.NO_HIGH_WATERMARK,
        Reason.UNCLEAN_SHUTDOWN,
        Reason.RECOVERY_REQUIRED,
        Reason.NO_SPACE,
        Reason.DELETES_TOO_MUCH,
        Reason.CLOCK_PAST_RETENTION,
        Reason.REMOTE_STORAGE,
        Reason.TIERED,
        Reason.INCONSISTENT_TOPIC_ID,
        Reason.INCONSISTENT_CLUSTER_ID,
        Reason.INCONSISTENT_EPOCHS,
        Reason.SWITCHED_OFF,
        Reason.NEGATIVE_TIMESTAMP,
        Reason.AGE_CONTRADICTED,
        Reason.RECORDS_WITHOUT_KEY,
    }
)
# What no run ever works on; neither done nor refused.
_NOT_ASKED_FOR: Final = frozenset(
    {
        Reason.INTERNAL_METADATA,
        Reason.FUTURE_DIRECTORY,
        Reason.DELETE_DIRECTORY,
        Reason.STRAY_DIRECTORY,
        Reason.INVALID_DIRECTORY_NAME,
        Reason.LINKED_DIRECTORY,
    }
)
_CUTS: Final = frozenset(
    {
        Reason.CUTS_BELOW_HIGH_WATERMARK,
        Reason.CUTS_COMMITTED_RECORDS,
        Reason.CUTS_READABLE_RECORDS,
        Reason.CUTS_TOO_MUCH,
        Reason.CUTS_WHOLE_LOG,
        Reason.BEGINS_ANEW,
    }
)
_TRANSFERS: Final = frozenset(
    {
        Reason.OVERLAPPING_SEGMENTS,
        Reason.MIXED_REPLICAS,
        Reason.MISSING_SEGMENTS,
        Reason.OFFSETS_IN_TIER,
        Reason.UNFINISHED_SWAP,
        Reason.INCONSISTENT_TOPIC_ID,
        Reason.TARGET_NOT_EMPTY,
        Reason.TARGET_IS_OLDER,
    }
)
# By action: reasons of which a single row is enough for 3. What was asked for was begun, and a
# person has to decide about the rest.
_FOR_A_PERSON: Final[Mapping[str, Collection[str]]] = {
    Action.RECOVER: _CUTS,
    Action.RUN: _CUTS,
    Action.TRUNCATE: _CUTS,
    Action.INGEST: _TRANSFERS,
    Action.MATERIALIZE: _TRANSFERS,
    Action.UNDO: frozenset({Reason.CHANGED_SINCE_RUN, Reason.RUN_NOT_ENDED, Reason.PURGED}),
}


def exit_code_of(
    results: pa.Table,
    *,
    action: str,
    failures: Collection[str] = (),
    has_findings: bool = False,
) -> ExitCode:
    """Return the exit status for a run's rows.

    4 if a partition failed, or the disk of a log directory. 3 if a guard refused every partition of
    a root that was asked for: a scheduler must not take a root that nobody was allowed to touch for
    one that is done. Single refusals among partitions that are in order are rows of the result, and
    0, but for those that a person has to decide about. 1 if nothing worse is said, and something
    was found that the caller asked to be told of.

    Args:
        results: Rows of ``schemas.RESULT``.
        has_findings: Whether there are such findings.
    """
    failed = pc.equal(results["status"], Status.FAILED.value)
    if failures or pc.any(failed).as_py():
        return ExitCode.PARTLY_FAILED
    reasons = _FOR_A_PERSON.get(action) or addition_for("for_a_person", action) or ()
    if _is_refused(results, {Reason.INPUTS_CHANGED, *reasons}):
        return ExitCode.REFUSED
    return ExitCode.FINDINGS if has_findings else ExitCode.DONE


def _is_refused(results: pa.Table, for_a_person: Collection[str]) -> bool:
    refused: set[str] = set()
    accepted: set[str] = set()
    # Arrow would import its query engine, which takes longer, to group them.
    kinds = set(zip(results["root"].to_pylist(), results["reason"].to_pylist(), strict=True))
    for root, reason in kinds:
        if reason in for_a_person:
            return True
        if reason in _GUARDS:
            refused.add(root)
        elif reason not in _NOT_ASKED_FOR:
            accepted.add(root)
    return bool(refused - accepted)


def is_as_bad(worst: Severity | None, fail_on: Severity | None) -> bool:
    """Return whether the worst finding is as bad as ``--fail-on``. The option's value None means
    that no finding is bad."""
    return worst is not None and fail_on is not None and worst.rank >= fail_on.rank


T = TypeVar("T")
RootT = TypeVar("RootT", bound=HeldRoot)
ReportT = TypeVar("ReportT", bound=Report)


class Run:
    """A run of one job; a context manager that gives everything back. A dry run holds no locks, and
    keeps no record.

    Args:
        place: Where its tasks run: a Spark session, or this machine.

    Attributes:
        budget: What may still be begun.
        held: What is given back when the run has ended, the last first.
        roots: The roots under their locks and leases, by location; none in a dry run.
        notes: What a reader of the report should know of the run as a whole.
        plans: What it plans, and what a saved plan is held against.
        checkpoint_times: When the newest checkpoint of each broker's directory was written, before
            this run wrote any.
    """

    def __init__(self, place: Place, job: Job) -> None:
        self._started = time.perf_counter()
        self.place = place
        self.job = job
        self.recorder: Recorder = open_recorder(place, job)
        self.engine: AnyEngine = open_engine(place, tag=f"pylog-{job.run_id}")
        self.budget = RunBudget(job.options.limits)
        self.held = ExitStack()
        self._said = ExitStack()
        self.roots: dict[str, HeldRoot] = {}
        self.notes: list[str] = []
        self._problems: list[str] = []
        self.plans = PlanBook()
        self.checkpoint_times = {
            root.location: at
            for root in job.roots
            if root.role.facts.is_owned_by_broker and (at := root.open().newest_write_ms())
        }

    def __enter__(self) -> Self:
        self._said.enter_context(interruption.ending_in_order())
        self._said.enter_context(log_fields(run_id=self.job.run_id))
        self.engine.__enter__()
        try:
            self.recorder.start()
        except BaseException as error:
            self.__exit__(type(error), error, error.__traceback__)
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        last = ExitStack()
        last.push(self._said)
        last.push(self._record_failure)
        last.push(self.held)
        # After an error its tasks are ended before the roots are given back: no task works
        # where nobody holds the lock.
        last.push(self.engine)
        last.__exit__(kind, error, trace)

    def _record_failure(
        self,
        _kind: type[BaseException] | None,
        error: BaseException | None,
        _trace: TracebackType | None,
    ) -> None:
        """Write the END row of a run that an error ended."""
        if error is not None:
            cause = interruption.cause_of(error)
            run_apart("write the run's END row", partial(self.recorder.fail, cause))

    @cached_property
    def disks(self) -> Disks:
        """How many tasks may be at one local disk."""
        return find_disks(self.job.roots, self.job.options.limits.per_disk)

    def note(self, lines: Iterable[str]) -> None:
        """Tell the reader of the report something of the run as a whole."""
        self.notes += lines

    def fail(self, problem: str) -> None:
        """Tell of a failure after the work was done. It makes the exit status 5."""
        self._problems.append(problem)

    def hold(self, root: RootT, *, until: ExitStack | None = None) -> RootT:
        """Take a root's lock or lease.

        Args:
            until: Gives it back; None for the end of the run. A root whose disk fails here is one
                of the run's all the same.
        """
        self.roots[root.location] = root
        (until or self.held).enter_context(root)
        return root

    def hold_roots(self, *, trash: Path | None = None) -> None:
        """Take the locks and leases of all roots, unless dry run.

        Args:
            trash: The run's folder in the trash, which keeps what tasks take out of partitions;
                None for none.
        """
        for root in () if self.job.options.dry_run else self.job.roots:
            self.hold(
                root.open().hold(
                    run_id=self.job.run_id,
                    mark_clean=self.job.options.mark_clean,
                    is_alone=len(self.job.roots) == 1,
                    trash=trash,
                )
            )

    def observe(
        self,
        look: Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]],
        schema: pa.Schema,
        what: str,
        roots: Sequence[LogRoot] | None = None,
    ) -> pa.Table:
        """Observe the run's partitions in tasks; refuse partitions held twice.

        Args:
            look: Turns rows of ``schemas.PARTITION`` into those of the table; captures values only.
            roots: Those of the run's roots that are looked at; None for all.
        """
        return refuse_duplicates(self.look(look, schema, what, roots), brokers_of(self.job.roots))

    def look(
        self,
        look: Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]],
        schema: pa.Schema,
        what: str,
        roots: Sequence[LogRoot] | None = None,
        *,
        partitions: pa.RecordBatch | None = None,
        is_look: bool | None = None,
    ) -> pa.Table:
        """Return what tasks make of the partitions of the run.

        Args:
            look: As `observe`, and so are the next three.
            partitions: Rows of ``schemas.PARTITION``, maybe with more columns: only these; None for
                what discovery lists.
            is_look: Whether they are looked at in this process; None leaves it to their number.
        """
        job = self.job
        listed_roots = job.roots if roots is None else tuple(roots)
        count = count_directories(listed_roots) if partitions is None else partitions.num_rows
        is_look = are_looked_at_here(count) if is_look is None else is_look
        self.prepare(count)
        engine = self._look_engine if is_look else self.engine
        if partitions is None:
            # Of several steps one is about brokers' directories alone, which no inventory lists.
            file_list = job.options.file_list if listed_roots == job.roots else None
            listed = discover_partitions(engine, listed_roots, job.topics, file_list=file_list)
        else:
            listed = engine.each([partitions], lambda batch: iter([batch]), partitions.schema)
        spread = self.disks.deal_out(engine, listed, count=count)
        rows = engine.map_rows(spread, look, schema)
        return engine.collect(rows, schema, f"{job.title}: {what}", is_look=is_look)

    def prepare(self, count: int | None) -> None:
        """Begin to start what tasks need, if there are enough partitions, unless dry run.

        Args:
            count: How many there are at most; None where that is not known.
        """
        if not self.job.options.dry_run and (count is None or count >= LEAST_TO_PREPARE_FOR):
            self.engine.prepare()

    def looks_alone(self, partitions: pa.RecordBatch | None = None) -> bool:
        """Whether ``look`` looks in this process, and other processes of this machine could help.

        Args:
            partitions: As `look`.
        """
        count = count_directories(self.job.roots) if partitions is None else partitions.num_rows
        return isinstance(self.place, Local) and are_looked_at_here(count)

    @cached_property
    def _look_engine(self) -> AnyEngine:
        """Runs the stages that only look at little."""
        engine = open_look_engine(self.place, self.engine)
        return engine if engine is self.engine else self.held.enter_context(engine)

    def report(
        self,
        kind: type[ReportT],
        results: pa.Table,
        *,
        notes: Sequence[str] = (),
        has_findings: bool = False,
        summarise: Callable[..., RunSummary] = summarise,
        **tables: Any,
    ) -> ReportT:
        """Return the ended run's report; write its numbers into the record.

        Args:
            results: Rows of ``schemas.RESULT``.
            notes: What a reader should know besides the run's own notes.
            has_findings: Whether something was found that the caller asked to be told of by the
                exit status, where nothing worse says otherwise.
            **tables: What this kind of report has besides.
        """
        duration_ms = round((time.perf_counter() - self._started) * 1000)
        report = kind(
            run_id=self.job.run_id,
            action=self.job.action,
            dry_run=self.job.options.dry_run,
            notes=tuple(dict.fromkeys([*self.notes, *notes, *self._problems])),
            results=results,
            summary=summarise(results, duration_ms=duration_ms),
            exit_code=exit_code_of(
                results,
                action=self.job.action,
                failures=self.failures,
                has_findings=has_findings,
            ),
            engine=self.engine.name,
            **tables,
        )
        if self._problems or self.recorder.problems:
            report = replace(report, exit_code=ExitCode.FAILED)
        self.recorder.end(report, summarise=summarise)
        if not self.recorder.problems:
            return report
        # The END row itself may have failed.
        remarks = ledger_problem_notes(self.recorder.problems)
        return replace(report.with_notes(remarks), exit_code=ExitCode.FAILED)

    def write_context(self, context: RunContext) -> WriteContext:
        """Return what tasks need to write."""
        access = {place: root.access for place, root in self.roots.items()}
        return WriteContext(run=context, roots=access)

    def unit_bytes(self, total_bytes: int) -> int:
        """Return one task's bytes for a number of bytes in all."""
        tuning = self.job.options.tuning
        return choose_unit_bytes(
            total_bytes,
            slots=self.engine.slots,
            least_bytes=tuning.unit_min_bytes,
            most_bytes=tuning.unit_max_bytes,
        )

    def pack(self, items: Sequence[WorkItem[T]]) -> list[WorkUnit[T]]:
        """Return items in units, one per task, sized by the total."""
        return pack_units(items, unit_bytes=self.unit_bytes(sum(item.size_bytes for item in items)))

    def readers_of(self, units: Sequence[WorkUnit[Any]]) -> int:
        """Return at how many places a task may read one segment. The task of each unit reads at
        these places at once.

        A disk that takes so many tasks at once is read at so many places. The threads of a
        compaction are not bounded by it, as one of them reads: ``engine.threads_of`` says those.
        """
        is_limited = self.disks.per_disk is not None
        return 1 if is_limited else self.engine.threads_of(count_busy(units))

    @property
    def unclean_roots(self) -> frozenset[str]:
        """Broker roots whose logs nobody has closed, or recovered since."""
        if self.job.options.dry_run:
            # The run that follows puts back the marker that a killed run took away.
            return frozenset(
                location
                for location in unclean_roots(self.job.roots)
                if not foresee_marker(Path(location))
            )
        return frozenset(location for location, root in self.roots.items() if not root.was_clean)

    @property
    def failures(self) -> Mapping[str, StorageError]:
        """The disk failures of the run, by log directory. The run went on without that
        directory."""
        return failures_of(self.roots)
