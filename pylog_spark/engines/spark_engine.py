"""Spark as an engine: DataFrames as rows, ``mapInArrow``, broadcast values.

``spark.range(n)`` in n partitions is the one DataFrame that every kind of session cuts exactly as
asked: task i gets the number i, in order, so that the longest unit starts first. What unit i is,
and the arrays that several units share, travel as broadcast variables, or inside the closure where
a session has none (Spark Connect).
"""

import logging
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from typing import Any, ClassVar, Final, Self, TypeVar

import pyarrow as pa
from pyspark import InheritableThread, StorageLevel
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812  # the name that everybody gives it

from pylog_spark.engines.engine import (
    PATIENCE_SECONDS,
    UNIT,
    ArrowWork,
    Engine,
    HandedOver,
    Inline,
    Published,
    run_apart,
)
from pylog_spark.engines.session_facts import (
    count_slots,
    cpus_of_task,
    heap_bytes,
    is_connect,
    is_local,
)
from pylog_spark.rows import spark_ddl
from pylog_spark.structured_logs import TaskLogs
from pylog_spark.tasks.worker import ASKED, freeze_modules, read_asked, with_asked
from storage_core.checkpoint.lock import kept_shares
from storage_core.store.requests import REQUESTS

# So many rows are made a batch of where the driver reads them one by one.
_STREAMED_ROWS: Final = 1000
# Between two looks at tasks that are to end.
_INTERRUPT_SECONDS: Final = 0.1
# A job that ended a run is one of these; a few run beside each other.
_NEWEST_JOBS: Final = 20
_log: Final = logging.getLogger(__name__)
_DESCRIPTION: Final = "spark.job.description"
_NUMBERS: Final = pa.schema([("id", pa.int64())])

T = TypeVar("T")


def map_in_arrow(frame: DataFrame, work: ArrowWork, schema: pa.Schema) -> DataFrame:
    """Return the rows that work makes of those of a DataFrame, and what was asked of S3 for them.

    Args:
        work: Runs in a task; captures values only.
    """
    logs = TaskLogs.of_driver()

    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        freeze_modules()
        logs.begin()
        with kept_shares():
            yield from with_asked(work, batches)

    return frame.mapInArrow(run, spark_ddl(schema.append(ASKED)))


@dataclass(frozen=True, slots=True)
class SparkRows:
    """Rows as a DataFrame has them; see ``Rows``."""

    whole: DataFrame  # with the engine's column

    @property
    def frame(self) -> DataFrame:
        """The rows."""
        return self.whole.drop(ASKED.name)

    def map(self, work: ArrowWork, schema: pa.Schema) -> "SparkRows":
        """Return the rows that work makes of those of each task."""
        return SparkRows(map_in_arrow(self.whole, work, schema))

    def union(self, other: "SparkRows") -> "SparkRows":
        """Return these rows and others; the tasks stay as they are."""
        return SparkRows(self.whole.unionByName(other.whole))

    def deal_out(self, tasks: int) -> "SparkRows":
        """Return the rows spread evenly over so many tasks."""
        return SparkRows(self.whole.repartition(tasks))

    def deal_by(
        self, keys: Sequence[str], tasks: int, *, lanes: Mapping[str, range] | None = None
    ) -> "SparkRows":
        """Return the rows dealt out to tasks by keys; equal values meet."""
        if not lanes:
            return SparkRows(self.whole.repartition(tasks, *keys))
        first = max(lane.stop for lane in lanes.values())
        unit = F.lit(first) + F.pmod(F.hash(*keys), F.lit(tasks - first))
        for root, lane in lanes.items():
            share = F.lit(lane.start) + F.pmod(F.hash(*keys), F.lit(len(lane)))
            unit = F.when(F.col("root") == root, share).otherwise(unit)
        return SparkRows(_to_units(self.whole.withColumn(UNIT, unit), tasks).drop(UNIT))

    def to_units(self, units: int) -> "SparkRows":
        """Return the rows dealt out by their column ``UNIT``."""
        return SparkRows(_to_units(self.whole, units))

    def sort_within(self, *names: str) -> "SparkRows":
        """Return the rows of each task sorted by some columns."""
        return SparkRows(self.whole.sortWithinPartitions(*names))


def _to_units(frame: DataFrame, units: int) -> DataFrame:
    if hasattr(frame, "repartitionById"):
        return frame.repartitionById(units, UNIT)
    return frame.repartition(units, UNIT)


class SparkEngine(Engine[SparkRows]):
    """Runs the stages of one run as jobs of a session.

    Args:
        tag: Tag of every Spark job of the run, by which they can be found and interrupted.
    """

    name: ClassVar[str] = "spark"

    def __init__(self, spark: SparkSession, *, tag: str) -> None:
        self._spark = spark
        self._tag = tag
        self._broadcasts: list[Any] = []
        self._counted: set[bytes] = set()  # tasks whose requests to S3 were counted, by id
        self._kept: list[DataFrame] = []
        self._is_prepared = False
        self.can_broadcast = not is_connect(spark)

    def __enter__(self) -> Self:
        if self.can_broadcast:
            # A session's own tags are a thread's, and only that thread can interrupt by them.
            self._spark.sparkContext.addJobTag(self._tag)
        else:
            self._spark.addTag(self._tag)
        return self

    def __exit__(self, _kind: object, error: BaseException | None, _trace: object) -> None:
        if error is not None:
            run_apart("interrupt the run's Spark jobs", self._interrupt)
        try:
            if self.can_broadcast:
                self._spark.sparkContext.removeJobTag(self._tag)
            else:
                self._spark.removeTag(self._tag)
            self.describe(None)
            self.release()
        except Exception as problem:  # noqa: BLE001  # what was done is done
            # What went wrong first is what the caller has to hear of.
            if error is None:
                _log.warning("Spark was not tidied up after the run: %s", problem)
            _log.debug("Spark was not tidied up", exc_info=True)

    def _interrupt(self) -> None:
        """Cancel the run's jobs and wait until their tasks have ended.

        Spark takes some seconds to end a task of Python's after its job. A session of Spark Connect
        does not tell when.
        """
        if not self.can_broadcast:
            self._spark.interruptTag(self._tag)
            return
        context = self._spark.sparkContext
        try:
            self._await_tasks(time.monotonic() + PATIENCE_SECONDS)
        finally:  # shared clusters do not let everybody ask the JVM
            context.cancelJobsWithTag(self._tag)

    def _await_tasks(self, limit: float) -> None:
        context = self._spark.sparkContext
        tracker = context._jsc.sc().statusTracker()  # noqa: SLF001  # Python's own knows no tags
        stages: set[int] = set()
        while time.monotonic() < limit:
            # Spark knows of a job a moment after its start.
            time.sleep(_INTERRUPT_SECONDS)
            ours = sorted(tracker.getJobIdsForTag(self._tag))
            jobs = set(tracker.getActiveJobIds()).intersection(ours)
            # A job that failed may have tasks that have not.
            for job_id in jobs.union(ours[-_NEWEST_JOBS:]):
                if (job := context.statusTracker().getJobInfo(job_id)) is not None:
                    stages.update(job.stageIds)
            # Another thread may have begun a stage after the last time.
            context.cancelJobsWithTag(self._tag)
            if not jobs and not any(map(self._active_tasks, stages)):
                return

    def _active_tasks(self, stage_id: int) -> int:
        stage = self._spark.sparkContext.statusTracker().getStageInfo(stage_id)
        return 0 if stage is None else int(stage.numActiveTasks)

    def prepare(self) -> None:
        """Begin to start the Python workers of this machine, and what Spark needs for a stage."""
        if not self._is_prepared and is_local(self._spark):
            self._is_prepared = True
            self.alongside(self._start_workers)

    def _start_workers(self) -> None:
        """Run a task a slot that does nothing."""
        self.describe("start workers")
        numbers = self._spark.range(0, self.slots, 1, self.slots)
        map_in_arrow(numbers, _no_rows, _NUMBERS).toArrow()

    @cached_property
    def slots(self) -> int:
        """How many tasks may run at the same time."""
        return count_slots(self._spark)

    def threads_of(self, tasks: int) -> int:
        """Return how many threads each of some tasks may use.

        Spark gives each task some processors of an executor, whatever else is idle there. Only
        where all slots lie in this machine, the idle ones are known to be the tasks' to use.
        """
        idle = self.slots // max(1, tasks) if is_local(self._spark) else 1
        return max(idle, self._cpus_of_task)

    @cached_property
    def _cpus_of_task(self) -> int:
        return cpus_of_task(self._spark)

    @cached_property
    def heap_bytes(self) -> int:
        """The heap that what is published has to pass through."""
        return heap_bytes(self._spark)

    def publish(self, value: T) -> Published[T]:
        """Make a value readable in tasks, until ``release``."""
        if not self.can_broadcast:
            return Inline(value)
        broadcast = self._spark.sparkContext.broadcast(value)
        self._broadcasts.append(broadcast)
        return broadcast

    def hand_over(self, rows: SparkRows) -> HandedOver[SparkRows]:
        """Let rows outlive the run, with everything published and kept."""
        frames, broadcasts = tuple(self._kept), tuple(self._broadcasts)
        self._kept.clear()
        self._broadcasts.clear()
        return HandedOver(rows, lambda: _free(frames, broadcasts))

    def release(self) -> None:
        """Free everything published and kept so far. Collect all rows that depend on it before."""
        _free(self._kept, self._broadcasts)
        self._kept.clear()
        self._broadcasts.clear()

    def each(
        self,
        units: Sequence[T],
        work: Callable[[T], Iterator[pa.RecordBatch]],
        schema: pa.Schema,
    ) -> SparkRows:
        """Return the rows of work on the units, in their order. Each unit is a task."""
        published = self.publish(list(units))

        def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            for batch in batches:
                for number in batch.column(0).to_pylist():
                    yield from work(published.value[number])

        numbers = self._spark.range(0, len(units), 1, len(units))
        return SparkRows(map_in_arrow(numbers, run, schema))

    def _compute(self, rows: SparkRows, *, is_look: bool) -> pa.Table:
        del is_look  # tasks run where the executors are
        table: pa.Table = rows.whole.toArrow()
        for asked in table[ASKED.name].drop_null().to_pylist():
            for task, requests in read_asked(asked):
                if task not in self._counted:
                    self._counted.add(task)
                    REQUESTS.add(requests)
        return table.drop_columns([ASKED.name])

    def stream(
        self, rows: SparkRows, schema: pa.Schema, description: str
    ) -> Iterator[pa.RecordBatch]:
        """Run stages and yield the rows, one task's at a time."""
        self.describe(description)
        iterator = rows.frame.toLocalIterator()
        while several := list(islice(iterator, _STREAMED_ROWS)):
            yield pa.RecordBatch.from_pylist([row.asDict() for row in several], schema)

    def _keep(self, rows: SparkRows, *, is_look: bool) -> SparkRows:
        """Return the same rows, which are computed once, until ``release``."""
        del is_look
        # Not in memory, which tasks need.
        frame = rows.whole.persist(StorageLevel.DISK_ONLY)
        self._kept.append(frame)
        return SparkRows(frame)

    def _thread(self, target: Callable[[], None]) -> threading.Thread:
        """Return a thread of Spark's kind, with this one's tags and properties.

        A signal that arrives in the middle of a call to the JVM is turned into another error by
        the cleaning up around that call, and the caller never learns that somebody pressed Ctrl-C:
        the thread that is to notice it makes no such calls.
        """
        return InheritableThread(target=target, session=self._spark, name="stage", daemon=True)

    def describe(self, description: str | None) -> None:
        """Name the Spark jobs that follow; Spark Connect has no such names."""
        if self.can_broadcast:
            context = self._spark.sparkContext
            # None removes it, as in Spark's own API; pyspark's annotation does not know.
            context.setLocalProperty(_DESCRIPTION, description)  # type: ignore[arg-type]

    def completed_tasks(self, tasks: int) -> int:
        """Return the number of completed tasks of a running stage. Their number of tasks identifies
        the stage. A session of Spark Connect tells only when a stage has ended."""
        if is_connect(self._spark):
            return 0
        tracker = self._spark.sparkContext.statusTracker()
        for stage_id in tracker.getActiveStageIds():
            stage = tracker.getStageInfo(stage_id)
            if stage is not None and stage.numTasks == tasks:
                return int(stage.numCompletedTasks)
        return 0


def _no_rows(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    return (batch.slice(0, 0) for batch in batches)


def _free(frames: Iterable[DataFrame], broadcasts: Iterable[Any]) -> None:
    for frame in frames:
        frame.unpersist()
    for broadcast in broadcasts:
        broadcast.destroy()
