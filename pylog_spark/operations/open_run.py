"""One run while it is open: its record, its stages, and its log directories under their locks.

Every operation, and each step of the nightly, works inside of one: directories are locked before
anything is looked at, and given back, with their markers, when the last step has ended.
"""

from collections.abc import Mapping
from contextlib import ExitStack
from functools import partial
from types import TracebackType
from typing import Self

from pyspark.sql import SparkSession

from pylog_spark.operations.broker_root import BrokerRoot
from pylog_spark.operations.budgets import RunBudget
from pylog_spark.operations.dispatch import Dispatcher, run_apart
from pylog_spark.operations.job import Job, open_recorder, unclean_roots
from pylog_spark.operations.plan_file import PlannedPartition
from pylog_spark.operations.recording import Recorder
from pylog_spark.operations.saved_plans import write_planned
from pylog_spark.operations.store_costs import bucket_notes
from pylog_spark.operations.trash import begin_trash
from pylog_spark.operations.writable_root import WritableRoot, writable_root, write_context
from pylog_spark.tasks.run_context import RunContext, WriteContext
from storage_core.clock import Clock


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
        roots: The roots under their locks and leases, by location; none in a dry run.
        notes: What a reader of the report should know of the run as a whole.
        planned: What ``--plan-out`` is going to save.
        context: What its tasks were told first.
        refused: Directories that are not any more what a saved plan was made for.
    """

    def __init__(self, spark: SparkSession, job: Job, clock: Clock) -> None:
        self.spark = spark
        self.job = job
        self.recorder: Recorder = open_recorder(spark, job, clock)
        self.dispatcher = Dispatcher(spark, tag=f"pylog-{job.run_id}")
        self.budget = RunBudget(job.options.limits)
        self.roots: Mapping[str, WritableRoot] = {}
        self.notes: tuple[str, ...] = ()
        self.planned: list[PlannedPartition] = []
        self.context: RunContext | None = None
        self.refused: set[str] = set()
        self._clock = clock
        self._held = ExitStack()

    def __enter__(self) -> Self:
        self.dispatcher.__enter__()
        try:
            self.notes += bucket_notes(self.job.roots)
            if not self.job.options.dry_run:
                self.recorder.start()
                self.roots = self._hold_roots()
                self.notes += begin_trash(self.job, self._clock)
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
        if error is None:
            write_planned(self)
        last = ExitStack()
        last.push(self.dispatcher)
        last.push(self._note)
        last.push(self._held)
        last.__exit__(kind, error, trace)

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

    def _hold_roots(self) -> Mapping[str, WritableRoot]:
        mark_clean = self.job.options.mark_clean
        return {
            root.location: self._held.enter_context(
                writable_root(root, run_id=self.job.run_id, mark_clean=mark_clean)
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
