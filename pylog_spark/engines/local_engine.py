"""Processes of this machine as the engine: no JVM, the same tasks.

A stage is a list of tasks; a task reads what it is given, a unit or the rows that other tasks dealt
out to it, and its rows go on to files, or with its answer. Stages that only look at little are done
by a thread of the driver's process: to start others would take longer. What writes is never done
there: a lock of the driver's process on a file is lost when any of its threads closes that file.
"""

import os
import pickle
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import uuid
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import ExitStack, suppress
from dataclasses import dataclass, replace
from functools import partial
from itertools import count
from multiprocessing.connection import Connection
from pathlib import Path
from queue import PriorityQueue
from typing import IO, Any, ClassVar, Final, Generic, Protocol, Self, TypeVar

import cloudpickle
import numpy.ma  # noqa: F401  # Arrow imports it at its first array, which may be a lane's
import pyarrow as pa

from pylog_spark.engines.engine import ArrowWork, Engine, Published
from pylog_spark.engines.errors import TaskFailedError
from pylog_spark.engines.local_worker import (
    Piece,
    Sink,
    Stage,
    be_template,
    by_keys,
    by_unit,
    evenly,
    load,
    read_pieces,
    sorted_rows,
    to_driver,
)
from pylog_spark.structured_logs import TaskLogs
from storage_core.interruption import (
    SIGNAL_THREAD,
    ending_in_order,
    is_watched,
    remove_scratch,
    removed_at_end,
)
from storage_core.store.requests import REQUESTS
from storage_core.threads import count_processors

# How a stage fails that this machine runs.


# The driver's side of the local engine's processes. It assigns tasks to processes, and replaces a
# process that dies.
#
# Each lane, a thread, has a process of its own and hands it one task after the other. A process
# that dies is replaced, and its task given to another: tasks may be done twice.

# As often as Spark on a cluster tries a task.
_ATTEMPTS: Final = 4
_PATIENCE_SECONDS: Final = 60.0
_PRELOADED: Final = ("pylog_spark.tasks", "storage_core")
# Threads that do nothing while nothing happens.
_WAITING: Final = (threading.main_thread().name, SIGNAL_THREAD)
# Native threads whose library takes care of forks: the allocator's, which gives memory back.
_FORKED_WITH_CARE: Final = frozenset({"jemalloc_bg_thd"})


class RunningStage:
    """A stage while its tasks are done.

    Args:
        inputs: The input of each task, in the order of their beginning.
        file: Where workers find the stage; None where no other process does its tasks.
    """

    def __init__(
        self, stage: Stage, inputs: Sequence[Any], title: str, file: Path | None = None
    ) -> None:
        self.stage = stage
        self.inputs = inputs
        self.title = title
        self.file = file
        self.outcome: Future[list[list[Piece]]] = Future()
        self.completed = 0
        self._made: list[list[Piece]] = [[] for _ in inputs]
        self._deaths = [0] * len(inputs)
        self._lock = threading.Lock()

    def done(self, task: int, pieces: list[Piece]) -> None:
        """Take what a task has made."""
        with self._lock:
            self._made[task] = pieces
            self.completed += 1
            is_last = self.completed == len(self.inputs)
        if is_last and not self.outcome.done():
            self.outcome.set_result(self._made)

    def fail(self, task: int, text: str, trace: str = "") -> None:
        """Give up: a task failed."""
        error = TaskFailedError(f"{self.title}: task {task + 1} of {len(self.inputs)}: {text}")
        if trace:
            error.add_note(trace)
        with self._lock:
            if not self.outcome.done():
                self.outcome.set_exception(error)

    def may_be_tried_again(self, task: int) -> bool:
        """Note a process's death with a task; return whether to retry."""
        with self._lock:
            self._deaths[task] += 1
            return self._deaths[task] < _ATTEMPTS


class Lanes(ABC):
    """Threads for tasks: the oldest stage first, in its order.

    Args:
        most: How many tasks may be done at the same time.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._queue: PriorityQueue[tuple[int, int, int, RunningStage | None]] = PriorityQueue()
        self._numbers = count()
        self._threads: list[threading.Thread] = []
        self._begun = 0
        self._lock = threading.Lock()
        self.is_closed = False

    def begin(self, running: RunningStage) -> None:
        """Begin a stage; its outcome tells when it has ended."""
        number = next(self._numbers)
        for task in range(len(running.inputs)):
            self._queue.put((number, task, id(running), running))
        with self._lock:
            # A lane that had nothing to do yet has no process either.
            self._begun += len(running.inputs)
            while len(self._threads) < min(self._most, self._begun):
                thread = threading.Thread(target=self._lane, name="lane", daemon=True)
                self._threads.append(thread)
                thread.start()

    def close(self) -> None:
        """Let idle lanes end; begin no waiting task any more."""
        self.is_closed = True
        for _ in self._threads:
            self._queue.put((-1, 0, 0, None))

    def _lane(self) -> None:
        hand = self._hand()
        while not self.is_closed:
            number, task, key, running = self._queue.get()
            if running is None or self.is_closed:
                break
            if running.outcome.done():
                continue
            try:
                hand.do(running, task)
            except ProcessDiedError:
                hand.close()
                if self.is_closed:
                    break
                hand = self._hand()
                if running.may_be_tried_again(task):
                    self._queue.put((number, task, key, running))
                else:
                    why = (
                        f"the process died that did it, {_ATTEMPTS} times (killed, out of memory?)"
                    )
                    running.fail(task, why)
            except Exception as error:  # noqa: BLE001  # whoever waits for the stage gets it
                running.fail(task, f"{type(error).__name__}: {error}")
        hand.close()

    @abstractmethod
    def _hand(self) -> "Hand":
        """Return what does the tasks of a lane."""


class Hand(ABC):
    """Does one task after the other."""

    @abstractmethod
    def do(self, running: RunningStage, task: int) -> None:
        """Do a task."""

    @abstractmethod
    def close(self) -> None:
        """Give back what this holds."""


class ProcessDiedError(Exception):
    """A process ended in the middle of a task."""


class OwnLane(Lanes):
    """The driver's own process: for tasks that only look, at little.

    One of them at a time: two that ask a disk for many small things have the interpreter's lock
    change hands at every call, and take nearly twice as long as one after the other.
    """

    def __init__(self) -> None:
        super().__init__(1)

    def _hand(self) -> Hand:
        return _OwnHand()


class _OwnHand(Hand):
    def do(self, running: RunningStage, task: int) -> None:
        running.done(task, running.stage.run_here(running.inputs[task], task))

    def close(self) -> None:
        """Nothing is held."""


class Template(Protocol):
    """The process that has imported what tasks need, and forks the workers."""

    pid: int  # it leads a group of its own
    stdin: IO[bytes] | None  # where it waits for names of modules; None where it has them

    def wait(self) -> object:
        """Return when it has ended."""
        ...


class ForkedTemplate:
    """A template that is a fork of this process: it has what this one has imported.

    Args:
        control: Socket whose other end asks for forks.
        asking: That other end.
    """

    stdin: IO[bytes] | None = None

    def __init__(self, control: socket.socket, asking: socket.socket) -> None:
        self.pid = os.fork()
        if self.pid == 0:
            asking.close()
            be_template(control.fileno())
        # In both processes: whoever kills the group next finds it.
        with suppress(PermissionError, ProcessLookupError):
            os.setpgid(self.pid, self.pid)

    def wait(self) -> None:
        """Return when it has ended."""
        with suppress(ChildProcessError):
            os.waitpid(self.pid, 0)


def may_fork() -> bool:
    """Whether a fork of this process can do tasks: it is our program, and no thread is at work that
    the fork would miss."""
    if not is_watched() or threading.current_thread() is not threading.main_thread():
        return False
    waiting = {thread.native_id for thread in threading.enumerate() if thread.name in _WAITING}
    try:
        others = [
            Path("/proc/self/task", number, "comm").read_text().strip()
            for number in os.listdir("/proc/self/task")  # noqa: PTH208  # as numbers
            if int(number) not in waiting
        ]
    except OSError:
        return False
    return set(others) <= _FORKED_WITH_CARE


def start_template(control: int) -> subprocess.Popen[bytes]:
    """Start the process that imports what tasks need, and forks the workers.

    Args:
        control: Socket whose other end asks for forks.

    Returns:
        The process, which waits on standard input for names of modules.
    """
    # The modules of this process, wherever it found them.
    paths = [path or str(Path.cwd()) for path in sys.path]
    program = (
        f"import sys; sys.path[:] = {paths!r}; "
        "from pylog_spark.engines.local_worker import serve_forks; "
        f"serve_forks({control})"
    )
    # A group of its own: a terminal's Ctrl-C is for the driver, which ends them all.
    return subprocess.Popen(  # noqa: S603  # our own program
        [sys.executable, "-P", "-c", program],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        pass_fds=[control],
        process_group=0,
    )


def modules_of_tasks() -> list[str]:
    """Return the imported modules to preload for tasks."""
    return [name for name in sys.modules if name.startswith(_PRELOADED)]


class ProcessLanes(Lanes):
    """Lanes with a process each, forked from one with all imports."""

    def __init__(self, most: int) -> None:
        super().__init__(most)
        self._template: Template | None = None
        self._control: socket.socket | None = None
        self._forking = threading.Lock()

    def _hand(self) -> Hand:
        return _ProcessHand(self)

    def fork(self) -> Connection:
        """Return the connection to a new process."""
        with self._forking:
            if self.is_closed:
                raise ProcessDiedError
            control = self._control or self._start()
            ours, theirs = socket.socketpair()
            with theirs:
                try:
                    socket.send_fds(control, [b"."], [theirs.fileno()])
                except OSError as error:
                    ours.close()
                    raise ProcessDiedError from error
            return Connection(ours.detach())

    def fork_early(self) -> None:
        """Have the process that forks be a fork of this one, where that can be. It costs some
        milliseconds, and inherits what is open: so it is the first that a run does."""
        if may_fork():
            self._control, theirs = socket.socketpair()
            with theirs:
                self._template = ForkedTemplate(theirs, self._control)

    def prepare(self) -> None:
        """Start the process that forks, unless it has started."""
        with self._forking:
            if self._control is None and not self.is_closed:
                self._start()

    def _start(self) -> socket.socket:
        self._control, theirs = socket.socketpair()
        with theirs:
            self._template = start_template(theirs.fileno())
        if self._template.stdin is not None:
            with suppress(BrokenPipeError), self._template.stdin as stream:
                pickle.dump(modules_of_tasks(), stream)
        return self._control

    def close(self) -> None:
        """Kill the processes; when this returns, none of them works any more."""
        super().close()
        with self._forking:
            if self._template is not None:
                with suppress(ProcessLookupError):
                    os.killpg(self._template.pid, signal.SIGKILL)
                self._template.wait()
            if self._control is not None:
                self._control.close()
        for thread in self._threads:
            # Its connection ends with its process.
            thread.join(timeout=_PATIENCE_SECONDS)


class _ProcessHand(Hand):
    def __init__(self, lanes: ProcessLanes) -> None:
        self._lanes = lanes
        self._worker: Connection | None = None

    def do(self, running: RunningStage, task: int) -> None:
        # A value, not a function of somebody's: the plain pickler is the fast one.
        content = pickle.dumps(running.inputs[task])
        try:
            if self._worker is None:
                self._worker = self._lanes.fork()
            self._worker.send_bytes(pickle.dumps((str(running.file), content, task)))
            pieces, failure, asked = pickle.loads(self._worker.recv_bytes())  # noqa: S301  # our own fork's
        except (EOFError, OSError) as error:
            raise ProcessDiedError from error
        REQUESTS.add(asked)
        if failure is None:
            running.done(task, pieces)
        else:
            running.fail(task, *failure)

    def close(self) -> None:
        if self._worker is not None:
            self._worker.close()


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
        self._processes.fork_early()
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

    def prepare(self) -> None:
        """Start the process of which the workers are forks: it imports beside this one's looks."""
        self._processes.prepare()

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
