"""Processes of this machine as the engine: no JVM, the same tasks.

A stage is a list of tasks; a task reads what it is given, a unit or the rows that other tasks dealt
out to it, and its rows go on to files, or with its answer. Stages that only look at little are done
by a thread of the driver's process: to start others would take longer. What writes is never done
there: a lock of the driver's process on a file is lost when any of its threads closes that file.
"""

import os
import tempfile
import threading
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, Final, Generic, Self, TypeVar

import cloudpickle
import pyarrow as pa
import pyarrow.acero  # what sorts and groups rows; Arrow would import it in a thread of a task

from pylog_spark.engines.engine import ArrowWork, Engine, Published
from pylog_spark.engines.local_pool import OwnLane, ProcessLanes, RunningStage
from pylog_spark.engines.local_tasks import (
    Piece,
    Sink,
    Stage,
    by_keys,
    by_unit,
    evenly,
    load,
    read_pieces,
    sorted_rows,
    to_driver,
)
from pylog_spark.structured_logs import TaskLogs
from storage_core.interruption import ending_in_order, remove_scratch, removed_at_end
from storage_core.threads import count_processors

_FOLDER_PREFIX: Final = "pylog-engine-"

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class LocalPublished(Generic[T]):
    """A value that workers read from a file, each of them once."""

    file: str

    @property
    def value(self) -> T:
        """The value."""
        value: T = load(self.file)
        return value


@dataclass(frozen=True, slots=True, kw_only=True)
class _Branch:
    """Tasks of one kind."""

    # What each of them is given; None where it is rows that others dealt out.
    units: Sequence[Any] | None = None
    dealt: "LocalRows | None" = None
    sink: Sink = to_driver
    tasks: int = 0
    begin: Callable[[Any], Iterator[pa.RecordBatch]]
    steps: tuple[ArrowWork, ...] = ()


@dataclass(frozen=True, slots=True)
class LocalRows:
    """Rows of tasks that are not done yet; see ``Rows``."""

    branches: tuple[_Branch, ...]
    schema: pa.Schema

    def map(self, work: ArrowWork, schema: pa.Schema) -> "LocalRows":
        """Return the rows that work makes of those of each task."""
        return LocalRows(
            tuple(replace(branch, steps=(*branch.steps, work)) for branch in self.branches),
            schema.remove_metadata(),
        )

    def union(self, other: "LocalRows") -> "LocalRows":
        """Return these rows and others; the tasks stay as they are."""
        return LocalRows(self.branches + other.branches, self.schema)

    def deal_out(self, tasks: int) -> "LocalRows":
        """Return the rows spread evenly over so many tasks."""
        return self._dealt(evenly(tasks), tasks)

    def deal_by(
        self, keys: Sequence[str], tasks: int, *, lanes: Mapping[str, range] | None = None
    ) -> "LocalRows":
        """Return the rows dealt out to tasks by keys; equal values meet."""
        return self._dealt(by_keys(keys, tasks, dict(lanes or {})), tasks)

    def to_units(self, units: int) -> "LocalRows":
        """Return the rows dealt out by their column ``UNIT``."""
        return self._dealt(by_unit, units)

    def sort_within(self, *names: str) -> "LocalRows":
        """Return the rows of each task sorted by some columns."""
        return self.map(sorted_rows(names), self.schema)

    def _dealt(self, sink: Sink, tasks: int) -> "LocalRows":
        begin = read_pieces(self.schema)
        return LocalRows((_Branch(dealt=self, sink=sink, tasks=tasks, begin=begin),), self.schema)


class LocalEngine(Engine[LocalRows]):
    """Runs the stages of one run in processes of this machine.

    Args:
        slots: How many tasks run at the same time; None for as many as there are processors.
    """

    name: ClassVar[str] = "local"

    def __init__(self, slots: int | None = None) -> None:
        self.can_broadcast = True
        self._slots = slots or count_processors()
        self._folder: Path | None = None
        self._is_closed = False
        self._removal = ExitStack()
        self._published: list[Path] = []
        self._kept: list[list[Piece]] = []
        self._own = OwnLane()
        self._processes = ProcessLanes(self._slots)
        self._running: list[RunningStage] = []
        self._title = ""
        self._lock = threading.Lock()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self._own.close()
        self._processes.close()
        with self._lock:
            # Work beside the main thread's may ask for the folder only now.
            self._is_closed = True
        if self._folder is not None:
            remove_scratch(str(self._folder))
        self._removal.close()

    @property
    def slots(self) -> int:
        """How many tasks may run at the same time."""
        return self._slots

    def threads_of(self, tasks: int) -> int:
        """Return the number of threads for each of some tasks. All slots are of one machine."""
        return max(1, self._slots // max(1, tasks))

    @property
    def heap_bytes(self) -> int:
        """What of the machine's memory is one process's."""
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // (self._slots + 1)

    def publish(self, value: T) -> Published[T]:
        """Make a value readable in tasks, until ``release``."""
        file = self._new_file("value", value)
        self._published.append(file)
        return LocalPublished(str(file))

    def release(self) -> None:
        """Free everything published and kept so far. Collect all rows that depend on it before."""
        for file in self._published:
            file.unlink(missing_ok=True)
        self._published.clear()
        _remove_files(self._kept)
        self._kept.clear()

    def each(
        self,
        units: Sequence[T],
        work: Callable[[T], Iterator[pa.RecordBatch]],
        schema: pa.Schema,
    ) -> LocalRows:
        """Return the rows of work on the units, in their order. Each unit is a task."""
        return LocalRows((_Branch(units=list(units), begin=work),), schema.remove_metadata())

    def _compute(self, rows: LocalRows, *, is_look: bool) -> pa.Table:
        results = self._run(rows, to_driver, is_look=is_look)
        batches = [piece.read(rows.schema) for pieces in results for piece in pieces]
        _remove_files(results)  # what was read of them stays readable
        return pa.Table.from_batches(batches, rows.schema)

    def stream(
        self, rows: LocalRows, schema: pa.Schema, description: str
    ) -> Iterator[pa.RecordBatch]:
        """Run stages, and yield the rows from their tasks' files."""
        self.describe(description)
        results = self._run(rows, to_driver, is_look=True)
        try:
            for pieces in results:
                for piece in pieces:
                    yield piece.read(rows.schema).cast(schema)
        finally:
            _remove_files(results)

    def _keep(self, rows: LocalRows, *, is_look: bool) -> LocalRows:
        """Return the same rows, which are computed once, until ``release``."""
        results = self._run(rows, to_driver, is_look=is_look)
        self._kept += results
        return LocalRows((_Branch(units=results, begin=read_pieces(rows.schema)),), rows.schema)

    def hand_over(self, rows: LocalRows) -> None:
        """Return None: rows lie in files that end with the run."""
        del rows

    def _run(self, rows: LocalRows, sink: Sink, *, is_look: bool) -> list[list[Piece]]:
        """Return the results of all tasks; no branch waits for another."""
        branches = [
            self.alongside(partial(self._run_branch, branch, rows.schema, sink, is_look=is_look))
            for branch in rows.branches
        ]
        return [pieces for branch in branches for pieces in self.wait_for(branch)]

    def _run_branch(
        self, branch: _Branch, schema: pa.Schema, sink: Sink, *, is_look: bool
    ) -> list[list[Piece]]:
        inputs: Sequence[Any] = branch.units or ()
        dealt: list[list[Piece]] = []
        if branch.dealt is not None:
            dealt = self._run(branch.dealt, branch.sink, is_look=is_look)
            by_task: list[list[Piece]] = [[] for _ in range(branch.tasks)]
            for pieces in dealt:
                for piece in pieces:
                    by_task[piece.target].append(piece)
            inputs = by_task
        stage = Stage(
            begin=branch.begin,
            steps=branch.steps,
            schema=schema,
            sink=sink,
            folder=str(self._scratch()),
            logs=TaskLogs.of_driver(),
        )
        results = self._do(stage, inputs, is_look=is_look)
        _remove_files(dealt)
        return results

    def _do(self, stage: Stage, inputs: Sequence[Any], *, is_look: bool) -> list[list[Piece]]:
        """Do the tasks of a stage."""
        if not inputs:
            return []
        file = None if is_look else self._new_file("stage", stage)
        running = RunningStage(stage, inputs, self._title, file)
        with self._lock:
            self._running.append(running)
        try:
            (self._own if is_look else self._processes).begin(running)
            return self.wait_for(running.outcome)
        finally:
            with self._lock:
                self._running.remove(running)
            if file is not None:
                file.unlink(missing_ok=True)

    def _thread(self, target: Callable[[], None]) -> threading.Thread:
        return threading.Thread(target=target, name="stage", daemon=True)

    def describe(self, description: str | None) -> None:
        """Take note of what errors say of the stages that follow."""
        self._title = description or ""

    def completed_tasks(self, tasks: int) -> int:
        """Return the number of completed tasks of a running stage. Their number of tasks
        identifies the stage."""
        with self._lock:
            counts = [each.completed for each in self._running if len(each.inputs) == tasks]
        return counts[0] if counts else 0

    def _scratch(self) -> Path:
        with self._lock:
            if self._is_closed:
                raise RuntimeError("the engine was closed")
            if self._folder is None:
                # A signal in between would leave it.
                with ending_in_order():
                    self._folder = Path(tempfile.mkdtemp(prefix=_FOLDER_PREFIX))
                    self._removal.enter_context(removed_at_end(str(self._folder)))
            return self._folder

    def _new_file(self, kind: str, value: object) -> Path:
        file = self._scratch() / f"{kind}-{uuid.uuid4().hex}"
        file.write_bytes(cloudpickle.dumps(value))
        return file


def _remove_files(results: Sequence[Sequence[Piece]]) -> None:
    for file in {piece.file for pieces in results for piece in pieces if piece.file is not None}:
        Path(file).unlink(missing_ok=True)
