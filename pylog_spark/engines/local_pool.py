"""The driver's side of the local engine's processes. It assigns tasks to processes, and replaces a
process that dies.

Each lane, a thread, has a process of its own and hands it one task after the other. A process that
dies is replaced, and its task given to another: tasks may be done twice.
"""

import os
import pickle
import signal
import socket
import subprocess
import sys
import threading
from abc import ABC, abstractmethod
from collections.abc import Sequence
from concurrent.futures import Future
from contextlib import suppress
from itertools import count
from multiprocessing.connection import Connection
from pathlib import Path
from queue import PriorityQueue
from typing import Any, Final

import cloudpickle

from pylog_spark.engines.errors import TaskFailedError
from pylog_spark.engines.local_tasks import Piece, Stage

# As often as Spark on a cluster tries a task.
_ATTEMPTS: Final = 4
_PATIENCE_SECONDS: Final = 60.0
_PRELOADED: Final = ("pylog_spark.tasks", "storage_core")


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
        self._template: subprocess.Popen[bytes] | None = None
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
        content = cloudpickle.dumps(running.inputs[task])
        try:
            if self._worker is None:
                self._worker = self._lanes.fork()
            self._worker.send_bytes(pickle.dumps((str(running.file), content, task)))
            pieces, failure = pickle.loads(self._worker.recv_bytes())  # noqa: S301  # our own fork's
        except (EOFError, OSError) as error:
            raise ProcessDiedError from error
        if failure is None:
            running.done(task, pieces)
        else:
            running.fail(task, *failure)

    def close(self) -> None:
        if self._worker is not None:
            self._worker.close()
