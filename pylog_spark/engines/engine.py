"""The interface of engines: units become tasks, tasks make Arrow rows. All stages of operations run
through it.

An operation says what each task does and how rows go from the tasks of one stage to those of the
next. Where the tasks run is the engine's matter: Spark's executors (``spark_engine``), or processes
of this machine (``local_engine``). Tasks, rows and commits are the same on both.
"""

import logging
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, wait
from contextvars import copy_context
from dataclasses import dataclass, field
from functools import partial
from typing import Any, ClassVar, Final, Generic, Protocol, Self, TypeVar

import pyarrow as pa

from pylog_spark.rows import batches_of, read_rows, schema_of
from pylog_spark.tasks.message import PART, cut_batches, join_messages, join_table, with_part
from storage_core import interruption

_log: Final = logging.getLogger(__name__)
# So long a run waits after an error for its tasks to end.
PATIENCE_SECONDS: Final = 60.0
_SIGNAL_SECONDS: Final = 0.5
# The column of rows that says which task gets them; see ``Rows.to_units``.
UNIT: Final = "unit"

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)
MessageT = TypeVar("MessageT")
RowsT = TypeVar("RowsT", bound="Rows")

ArrowWork = Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]


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


class Rows(Protocol):
    """Arrow rows spread over tasks; nothing runs before they are collected."""

    def map(self, work: ArrowWork, schema: pa.Schema) -> Self:
        """Return the rows that work makes of those of each task.

        Args:
            work: Runs in a task; captures values only.
        """
        ...

    def union(self, other: Self) -> Self:
        """Return these rows and others with equal columns; tasks stay."""
        ...

    def deal_out(self, tasks: int) -> Self:
        """Return the rows spread evenly over so many tasks."""
        ...

    def deal_by(
        self, keys: Sequence[str], tasks: int, *, lanes: Mapping[str, range] | None = None
    ) -> Self:
        """Return the rows dealt out to tasks by keys; equal values meet.

        Args:
            lanes: Tasks that only the rows of one ``root`` go to, by root; the others go to those
                tasks that are nobody's.
        """
        ...

    def to_units(self, units: int) -> Self:
        """Return the rows dealt out by ``UNIT``, each unit in one task.

        Where the engine can (Spark 4.1 and later, local processes) unit i is task i, so that they
        start in the units' order.

        Args:
            units: How many tasks; 0 <= unit < units.
        """
        ...

    def sort_within(self, *names: str) -> Self:
        """Return the rows of each task sorted by some columns."""
        ...


@dataclass(frozen=True, slots=True)
class HandedOver(Generic[RowsT]):
    """Rows that outlive the run whose tasks made them."""

    rows: RowsT
    # Frees what they are made of: to be called when nobody will ask for them any more.
    free: Callable[[], None] = field(repr=False)


class Engine(ABC, Generic[RowsT]):
    """Runs the stages of one run; a context manager. At its end it frees everything published and
    kept.

    After an error no task works any more when the block is left: whoever holds locks gives them
    back after that.
    """

    name: ClassVar[str]  # what a report calls it
    can_broadcast: bool  # whether what is published travels once, not inside of every stage

    @abstractmethod
    def __enter__(self) -> Self: ...

    @abstractmethod
    def __exit__(self, _kind: object, error: BaseException | None, _trace: object) -> None: ...

    @property
    @abstractmethod
    def slots(self) -> int:
        """How many tasks may run at the same time."""

    @abstractmethod
    def threads_of(self, tasks: int) -> int:
        """Return the number of threads for each of some concurrent tasks."""

    @property
    @abstractmethod
    def heap_bytes(self) -> int:
        """The memory that what is published has to pass through."""

    def prepare(self) -> None:
        """Begin to start what tasks need, if that takes a while: they come soon."""

    @abstractmethod
    def publish(self, value: T) -> Published[T]:
        """Make a value readable in tasks, until ``release``."""

    @abstractmethod
    def release(self) -> None:
        """Free everything published and kept so far. Collect all rows that depend on it before."""

    @abstractmethod
    def each(
        self,
        units: Sequence[T],
        work: Callable[[T], Iterator[pa.RecordBatch]],
        schema: pa.Schema,
    ) -> RowsT:
        """Return the rows of work on the units, in their order. Each unit is a task.

        Args:
            units: At least one; values that pickle.
            work: Runs in a task; captures values only.
        """

    def spread(
        self,
        units: Sequence[T],
        work: Callable[[T], Iterable[MessageT]],
        kind: type[MessageT],
    ) -> RowsT:
        """Return messages of work, a task a unit, as rows in pieces.

        They are for ``receive`` and ``collect``, or for tasks that join them. No row of a stage is
        larger than Spark's row path bears (``tasks/message.py``).

        Args:
            work: Runs in a task; captures values only.
            kind: The dataclass of the messages.
        """

        def run(unit: T) -> Iterator[pa.RecordBatch]:
            return cut_batches(batches_of(kind, work(unit)))

        return self.each(units, run, with_part(schema_of(kind)))

    def map_rows(self, rows: RowsT, work: ArrowWork, schema: pa.Schema) -> RowsT:
        """Return the rows that work makes of others, in pieces as ``spread``'s.

        Args:
            work: Runs in a task; captures values only.
        """

        def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            return cut_batches(work(batches))

        return rows.map(run, with_part(schema))

    def map_messages(
        self,
        rows: RowsT,
        source: type[T],
        work: Callable[[Iterator[T]], Iterable[MessageT]],
        kind: type[MessageT],
    ) -> RowsT:
        """Return the messages that work makes of those of each task.

        Args:
            rows: Those, in pieces that follow each other.
            work: Runs in a task; captures values only.
            kind: The dataclass of the messages that it makes.
        """

        def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            return batches_of(kind, work(join_messages(source, batches)))

        return self.map_rows(rows, run, schema_of(kind))

    def collect(
        self, rows: RowsT, schema: pa.Schema, description: str, *, is_look: bool = False
    ) -> pa.Table:
        """Run stages, once, and return the rows.

        Args:
            description: What is shown while it runs.
            is_look: Whether the tasks write nothing and read little: an engine may run them beside
                the driver's own work, in its process.
        """
        self.describe(description)
        table = self.wait_for(self.alongside(lambda: self._compute(rows, is_look=is_look)))
        return join_table(table, schema) if PART in table.column_names else table.cast(schema)

    def receive(
        self, rows: RowsT, kind: type[MessageT], description: str, *, is_look: bool = False
    ) -> Iterator[MessageT]:
        """Run stages, once, and return their messages; otherwise as ``collect``."""
        return read_rows(kind, self.collect(rows, schema_of(kind), description, is_look=is_look))

    def ask(
        self,
        units: Sequence[T],
        work: Callable[[T], Iterable[MessageT]],
        kind: type[MessageT],
        description: str,
        *,
        is_look: bool = False,
    ) -> Iterator[MessageT]:
        """Run a stage of its own, and return its messages."""
        rows = self.spread(units, work, kind)
        return read_rows(kind, self.collect(rows, schema_of(kind), description, is_look=is_look))

    @abstractmethod
    def stream(self, rows: RowsT, schema: pa.Schema, description: str) -> Iterator[pa.RecordBatch]:
        """Run small stages once, and yield the rows, never all in memory.

        Args:
            description: What is shown while it runs.
        """

    @abstractmethod
    def _compute(self, rows: RowsT, *, is_look: bool) -> pa.Table:
        """Run stages and return the rows, as they are."""

    def keep(self, rows: RowsT, description: str, *, is_look: bool = False) -> RowsT:
        """Return the same rows for several readers, computed only once. They run now, or when
        somebody reads the first time; their rows stay where tasks are.

        Args:
            description: What is shown while it runs.
        """
        self.describe(description)
        return self._keep(rows, is_look=is_look)

    @abstractmethod
    def _keep(self, rows: RowsT, *, is_look: bool) -> RowsT:
        """Return the same rows, which are computed once, until ``release``."""

    @abstractmethod
    def hand_over(self, rows: RowsT) -> HandedOver[RowsT] | None:
        """Let rows outlive the run, with everything published and kept.

        Returns:
            The rows; None where no rows outlive their run.
        """

    @abstractmethod
    def _thread(self, target: Callable[[], None]) -> threading.Thread:
        """Return a thread for work that runs stages."""

    def alongside(self, work: Callable[[], T]) -> Future[T]:
        """Start work with its own stages beside the calling thread.

        Slots go to the stage that was started first, and what is left to the other: the tail of
        one is filled by the other.
        """
        outcome: Future[T] = Future()

        def run() -> None:
            try:
                outcome.set_result(work())
            except BaseException as error:  # noqa: BLE001  # raised again where it is waited for
                outcome.set_exception(error)

        # What log lines say of the run is said there as well.
        self._thread(partial(copy_context().run, run)).start()
        return outcome

    def wait_for(self, outcome: Future[T]) -> T:
        """Return what ``alongside`` started, when it has ended, or raise its error. The wait is
        in small steps, between which a request to end this program is noticed."""
        interruption.check()
        while not outcome.done():
            wait([outcome], timeout=_SIGNAL_SECONDS)
            interruption.check()
        return outcome.result()

    @abstractmethod
    def describe(self, description: str | None) -> None:
        """Name the stages that follow, where the engine shows names."""

    @abstractmethod
    def completed_tasks(self, tasks: int) -> int:
        """Return the number of completed tasks of a running stage. Their number of tasks
        identifies the stage."""


AnyEngine = Engine[Any]


def run_apart(what: str, step: Callable[[], object]) -> None:
    """Use Spark after an error, in a thread, and never raise.

    A thread that a signal interrupted in the middle of a call to the JVM finds that call's answer
    when it asks for the next one. Another thread has a connection of its own.
    """

    def attempt() -> None:
        try:
            step()
        except Exception as error:  # noqa: BLE001  # the error that led here is on its way up
            # A signal to the whole group has ended the JVM, too.
            if not interruption.is_requested():
                _log.warning("could not %s: %s", what, error)

    work = partial(copy_context().run, attempt)
    thread = threading.Thread(target=work, name=what, daemon=True)
    thread.start()
    thread.join(timeout=PATIENCE_SECONDS)
