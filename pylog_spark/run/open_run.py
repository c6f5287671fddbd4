"""One run while it is open: its record, its stages, and its log directories under their locks.

Every operation, and each step of the nightly, works inside of one: directories are locked before
anything is looked at, and given back, with their markers, when the last step has ended.
"""

import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from types import TracebackType
from typing import Any, Self

import pyarrow as pa
from pyspark.sql import SparkSession

from pylog_spark.discovery import LogRoot, count_directories, discover_partitions
from pylog_spark.roots.broker_root import BrokerRoot, newest_checkpoint_ms
from pylog_spark.roots.writable_root import WritableRoot, writable_root, write_context
from pylog_spark.run.budgets import RunBudget
from pylog_spark.run.catalogs import dump_notes
from pylog_spark.run.disks import find_disks
from pylog_spark.run.dispatch import Dispatcher, run_apart
from pylog_spark.run.job import Job, brokers_of, open_recorder, run_trash, unclean_roots
from pylog_spark.run.plan_file import PlannedPartition
from pylog_spark.run.plan_table import refuse_duplicates
from pylog_spark.run.recording import Recorder
from pylog_spark.run.run_report import (
    EXIT_DONE,
    EXIT_FINDINGS,
    RunReport,
    RunSummary,
    exit_code_of,
    summarise,
)
from pylog_spark.run.saved_plans import write_planned
from pylog_spark.run.store_costs import bucket_notes
from pylog_spark.run.trash import begin_trash
from pylog_spark.schemas import Reason
from pylog_spark.tasks.listing import TopicFilter
from pylog_spark.tasks.run_context import RunContext, WriteContext
from storage_core.catalog.roles import Role
from storage_core.clock import Clock
from storage_core.errors import StorageError


class OpenRun:
    """A run of one job; a context manager that gives everything back.

    A dry run holds no locks, and its record is kept nowhere.

    Args:
        spark: The session.
        job: What is to be done.
        clock: For the times in the ledger.

    Attributes:
        spark: The session.
        job: What is to be done.
        recorder: Keeps the record.
        dispatcher: Starts the stages.
        budget: What may still be begun.
        disks: How many tasks may be at one local disk.
        roots: The roots under their locks and leases, by location; none in a dry run.
        notes: What a reader of the report should know of the run as a whole.
        planned: What ``--plan-out`` is going to save.
        context: What its tasks were told first.
        refused: Directories that are not any more what a saved plan was made for.
        checkpoint_times: When the newest checkpoint of each broker's directory was written, before
            this run wrote any.
    """

    def __init__(self, spark: SparkSession, job: Job, clock: Clock) -> None:
        self._started = time.perf_counter()
        self.spark = spark
        self.job = job
        self.recorder: Recorder = open_recorder(spark, job, clock)
        self.dispatcher = Dispatcher(spark, tag=f"pylog-{job.run_id}")
        self.budget = RunBudget(job.options.limits)
        self.disks = find_disks(job.roots, job.options.limits.per_disk)
        self.roots: Mapping[str, WritableRoot] = {}
        self.notes: tuple[str, ...] = ()
        self.planned: list[PlannedPartition] = []
        self.context: RunContext | None = None
        self.refused: set[str] = set()
        self.checkpoint_times = {
            root.location: at
            for root in job.roots
            if root.role is Role.BROKER and (at := newest_checkpoint_ms(root.location))
        }
        self._clock = clock
        self._held = ExitStack()

    def __enter__(self) -> Self:
        self.dispatcher.__enter__()
        try:
            self.notes += (*dump_notes(self.job.options), *bucket_notes(self.job.roots))
            if not self.job.options.dry_run:
                self.recorder.start()
                self.roots = self._hold_roots()
                self.notes += begin_trash(self.job, self._clock, self._held)
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
        last.push(self._note)
        last.push(self._held)
        # After an error its jobs are interrupted before the roots are given back: no task works
        # where nobody holds the lock.
        last.push(self.dispatcher)
        last.push(self._save_plan)
        last.__exit__(kind, error, trace)
        self.notes += tuple(
            f"{location}: the disk failed, and the run did no more there: the directory has no "
            f"marker of a clean shutdown, the next run finishes what had begun: {failure}"
            for location, failure in self.failures.items()
        )

    def _save_plan(
        self,
        _kind: type[BaseException] | None,
        error: BaseException | None,
        _trace: TracebackType | None,
    ) -> None:
        """Write the plan that was asked for, if there is one."""
        if error is None:
            write_planned(self)

    def observe(
        self,
        look: Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]],
        schema: pa.Schema,
        what: str,
        roots: Sequence[LogRoot] | None = None,
    ) -> pa.Table:
        """Return what tasks make of the partitions of the run; those held twice are refused.

        Args:
            look: Turns rows of ``schemas.PARTITION`` into those of the table; captures values only.
            schema: Columns of the table.
            what: Names the Spark job.
            roots: Those of the run's roots that are looked at; None for all.

        Raises:
            pyspark.errors.PySparkException: Spark failed.
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
    ) -> pa.Table:
        """Return what tasks make of the partitions of the run.

        Args:
            look: As `observe`, and so are the next three.
            schema: See there.
            what: See there.
            roots: See there.
            partitions: Rows of ``schemas.PARTITION``: only these; None for what discovery lists.

        Raises:
            pyspark.errors.PySparkException: Spark failed.
        """
        job = self.job
        chosen = job.roots if roots is None else tuple(roots)
        if partitions is None:
            topics = TopicFilter(topics=job.options.include, exclude=job.options.exclude)
            # Of several steps one is about brokers' directories alone, which no inventory lists.
            file_list = job.options.file_list if chosen == job.roots else None
            frame = discover_partitions(self.spark, chosen, topics, file_list=file_list)
            rows = count_directories(chosen)
        else:
            frame, rows = self.dispatcher.frame_of(partitions), partitions.num_rows
        spread = self.disks.deal_out(self.dispatcher, frame, rows=rows)
        found = self.dispatcher.map_rows(spread, look, schema)
        return self.dispatcher.collect(found, schema, f"{job.title}: {what}")

    def report(
        self,
        results: pa.Table,
        *,
        notes: Sequence[str] = (),
        refused_alone: Collection[Reason] = (),
        has_findings: bool = False,
        summarise: Callable[..., RunSummary] = summarise,
        **tables: Any,
    ) -> RunReport:
        """Return the report of the run, which has ended, and write its numbers into the record.

        Args:
            results: Rows of ``schemas.RESULT``.
            notes: What a reader should know besides the run's own notes.
            refused_alone: As ``exit_code_of``.
            has_findings: Whether something was found that the caller asked to be told of by the
                exit status, where nothing worse says otherwise.
            summarise: Counts the rows.
            **tables: The other tables of a ``RunReport``.
        """
        duration_ms = round((time.perf_counter() - self._started) * 1000)
        summary = summarise(results, duration_ms=duration_ms)
        code = exit_code_of(results, refused_alone=refused_alone, failures=self.failures)
        report = RunReport(
            run_id=self.job.run_id,
            action=self.job.action,
            dry_run=self.job.options.dry_run,
            notes=tuple(dict.fromkeys([*self.notes, *notes])),
            results=results,
            summary=summary,
            exit_code=EXIT_FINDINGS if has_findings and code == EXIT_DONE else code,
            **tables,
        )
        self.recorder.end(summary, exit_code=report.exit_code)
        return report

    def write_context(self, context: RunContext) -> WriteContext:
        """Return what tasks need to write."""
        return write_context(context, self.roots)

    @property
    def unclean_roots(self) -> frozenset[str]:
        """Broker roots whose logs nobody has closed, or recovered since."""
        if self.job.options.dry_run:
            return unclean_roots(self.job.roots)
        return frozenset(location for location, root in self.roots.items() if not root.was_clean)

    @property
    def broker_roots(self) -> Mapping[str, BrokerRoot]:
        """Those of the roots that are a broker's log directories."""
        return {place: root for place, root in self.roots.items() if isinstance(root, BrokerRoot)}

    @property
    def failures(self) -> Mapping[str, StorageError]:
        """What disks failed with, by the log directory that the run then went on without."""
        return {p: root.failure for p, root in self.broker_roots.items() if root.failure}

    def _hold_roots(self) -> Mapping[str, WritableRoot]:
        mark_clean = self.job.options.mark_clean
        return {
            root.location: self._held.enter_context(
                writable_root(
                    root,
                    run_id=self.job.run_id,
                    mark_clean=mark_clean,
                    is_alone=len(self.job.roots) == 1,
                    trash=run_trash(self.job),
                )
            )
            for root in self.job.roots
        }

    def _note(
        self,
        _kind: type[BaseException] | None,
        error: BaseException | None,
        _trace: TracebackType | None,
    ) -> None:
        """Write down that the run failed, if it did."""
        if error is not None:
            run_apart("write the run's END row", partial(self.recorder.fail, error))
