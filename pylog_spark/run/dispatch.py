"""Run one Spark task for each unit of work, and publish what the tasks share.

``spark.range(n)`` in n partitions is the one DataFrame that every kind of session cuts exactly as
asked: task i gets the number i, in order, so that the longest unit starts first. What unit i is,
and the arrays that several units share, travel as broadcast variables, or inside the closure where
a session has none (Spark Connect).
"""

import logging
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, wait
from dataclasses import dataclass
from functools import cached_property, reduce
from types import TracebackType
from typing import Any, Final, Generic, Protocol, Self, TypeVar

import pyarrow as pa
from pyspark import InheritableThread
from pyspark.sql import DataFrame, SparkSession

from pylog_spark.arrow_tasks import map_in_arrow
from pylog_spark.schemas import spark_ddl
from pylog_spark.session_facts import count_slots, heap_bytes, is_connect
from pylog_spark.tasks.cells import PART, cut_batches, join_table, slice_table, with_part

_log: Final = logging.getLogger(__name__)
_PATIENCE_SECONDS: Final = 60.0
_SIGNAL_SECONDS: Final = 0.5
_DESCRIPTION: Final = "spark.job.description"

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)


class Published(Protocol[T_co]):
    """A value that tasks can read."""

    @property
    def value(self) -> T_co:
        """The value, on the driver and in a task."""
        ...


@dataclass(frozen=True, slots=True)
class Inline(Generic[T]):
    """A value that travels inside the closure."""

    value: T


class Dispatcher:
    """Starts the stages of one run; a context manager that frees what it published.

    Args:
        spark: The session.
        tag: Tag of every Spark job of the run, by which they can be found and interrupted.
    """

    def __init__(self, spark: SparkSession, *, tag: str) -> None:
        self._spark = spark
        self._tag = tag
        self._broadcasts: list[Any] = []
        self.can_broadcast = not is_connect(spark)

    def __enter__(self) -> Self:
        self._spark.addTag(self._tag)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if error is not None:
            run_apart("interrupt the run's Spark jobs", self._interrupt)
        try:
            self._spark.removeTag(self._tag)
            self.describe(None)
            self.release()
        except Exception:
            # What went wrong first is what the caller has to hear of.
            if error is None:
                raise
            _log.debug("Spark was not tidied up after an error", exc_info=True)

    def _interrupt(self) -> None:
        self._spark.interruptTag(self._tag)

    @cached_property
    def slots(self) -> int:
        """How many tasks may run at the same time."""
        return count_slots(self._spark)

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

    def hand_over(self) -> Callable[[], None]:
        """Let what was published so far outlive the run: a DataFrame needs it that is kept.

        Returns:
            What frees it; to be called when nobody will ask for the DataFrame's rows any more.
        """
        kept = tuple(self._broadcasts)
        self._broadcasts.clear()

        def free() -> None:
            for broadcast in kept:
                broadcast.destroy()

        return free

    def release(self) -> None:
        """Free everything published so far; stages that read it must have been collected."""
        for broadcast in self._broadcasts:
            broadcast.destroy()
        self._broadcasts.clear()

    def frame_of(self, rows: pa.RecordBatch) -> DataFrame:
        """Return rows that the driver has as a DataFrame."""
        plain = pa.Table.from_batches([rows]).replace_schema_metadata()
        ddl = spark_ddl(rows.schema)
        parts = list(slice_table(plain)) or [plain]
        frames = [self._spark.createDataFrame(part, ddl) for part in parts]
        return reduce(DataFrame.unionByName, frames)

    def spread(
        self,
        units: Sequence[T],
        work: Callable[[T], Iterator[pa.RecordBatch]],
        schema: pa.Schema,
    ) -> DataFrame:
        """Return the rows that work makes of the units, one task a unit, in the units' order.

        They come in pieces (``tasks/cells.py``), for ``collect``, or for tasks that join them.

        Args:
            units: At least one; values that pickle.
            work: Runs in a task; captures values only.
            schema: Columns of the rows.
        """
        published = self.publish(list(units))

        def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            for batch in batches:
                for number in batch.column(0).to_pylist():
                    yield from cut_batches(work(published.value[number]))

        numbers = self._spark.range(0, len(units), 1, len(units))
        return map_in_arrow(numbers, run, with_part(schema))

    @staticmethod
    def map_rows(
        frame: DataFrame,
        work: Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]],
        schema: pa.Schema,
    ) -> DataFrame:
        """Return the rows that work makes of those of a DataFrame, in pieces as ``spread``'s.

        Args:
            frame: Rows.
            work: Runs in a task; captures values only.
            schema: Columns of the rows that it makes.
        """

        def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            yield from cut_batches(work(batches))

        return map_in_arrow(frame, run, with_part(schema))

    def to_units(self, frame: DataFrame, units: int) -> DataFrame:
        """Return the rows of a DataFrame, those of each ``unit`` together in one task.

        Where Spark can (4.1 and later) unit i is task i, so that they start in the units' order.

        Args:
            frame: Rows with a column ``unit``, 0 <= unit < units.
            units: How many tasks.
        """
        if hasattr(frame, "repartitionById"):
            return frame.repartitionById(units, "unit")
        return frame.repartition(units, "unit")

    def alongside(self, work: Callable[[], T]) -> Future[T]:
        """Start work that runs stages of its own, beside those of the calling thread.

        Spark gives slots to the stage that was started first, and what is left to the other: the
        tail of one is filled by the other.
        """
        outcome: Future[T] = Future()

        def run() -> None:
            try:
                outcome.set_result(work())
            except BaseException as error:  # noqa: BLE001  # raised again where it is waited for
                outcome.set_exception(error)

        thread = InheritableThread(target=run, session=self._spark, name="alongside", daemon=True)
        thread.start()
        return outcome

    def wait_for(self, outcome: Future[T]) -> T:
        """Return what ``alongside`` started, when it has ended, or raise its error."""
        return _wait_for(outcome)

    def collect(self, frame: DataFrame, schema: pa.Schema, description: str) -> pa.Table:
        """Run a stage, once, and return its rows.

        Args:
            frame: What to run.
            schema: Columns of the rows.
            description: Shown as the name of the Spark job.
        """
        self.describe(description)
        table = _run_interruptibly(self._spark, frame.toArrow)
        return join_table(table, schema) if PART in table.column_names else table.cast(schema)

    def describe(self, description: str | None) -> None:
        """Name the Spark jobs that follow; Spark Connect has no such names."""
        if self.can_broadcast:
            context = self._spark.sparkContext
            # None removes it, as in Spark's own API; pyspark's annotation does not know.
            context.setLocalProperty(_DESCRIPTION, description)  # type: ignore[arg-type]


def _run_interruptibly(spark: SparkSession, stage: Callable[[], pa.Table]) -> pa.Table:
    """Run a stage in a thread of its own, so that a signal ends the wait for it at once.

    A signal that arrives in the middle of a call to the JVM is turned into another error by the
    cleaning up around that call, and the caller never learns that somebody pressed Ctrl-C.
    """
    outcome: Future[pa.Table] = Future()

    def run() -> None:
        try:
            outcome.set_result(stage())
        except BaseException as error:  # noqa: BLE001  # raised again where it is waited for
            outcome.set_exception(error)

    # Spark's own kind of thread takes over the tags and properties of this one.
    thread = InheritableThread(target=run, session=spark, name="stage", daemon=True)
    thread.start()
    return _wait_for(outcome)


def _wait_for(outcome: Future[T]) -> T:
    """Wait in small steps: a signal is noticed between them."""
    while not outcome.done():
        wait([outcome], timeout=_SIGNAL_SECONDS)
    return outcome.result()


def run_apart(what: str, step: Callable[[], object]) -> None:
    """Do something with Spark after an error, in a thread of its own, and never raise.

    A thread that a signal interrupted in the middle of a call to the JVM finds that call's answer
    when it asks for the next one. Another thread has a connection of its own.

    Args:
        what: What the step does, for the log.
        step: Calls Spark.
    """

    def attempt() -> None:
        try:
            step()
        except Exception as error:  # noqa: BLE001  # the error that led here is on its way up
            _log.warning("could not %s: %s", what, error)

    thread = threading.Thread(target=attempt, name=what, daemon=True)
    thread.start()
    thread.join(timeout=_PATIENCE_SECONDS)
