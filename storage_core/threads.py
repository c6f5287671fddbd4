"""Run one task's work on several processors, results in order.

Compiled kernels, reads, writes and syncs release the interpreter's lock, so a second thread takes
a second core. Whoever has but one core says so, and everything happens in turn, in the same order.
"""

import os
import sys
import threading
import time
from collections.abc import Callable, Generator, Iterator
from concurrent.futures import Future
from contextlib import closing, contextmanager
from queue import SimpleQueue
from typing import Any, Final, Generic, TypeVar, cast

# Threads of NumPy's linear algebra, of which nothing here makes use.
#
# OpenBLAS starts one for each processor but one while NumPy is imported, and each looks for work
# for some hundredths of a second before it sleeps: on two processors that was a quarter of the CPU
# time of a short command. It reads the environment, at that moment only.

# As many threads of OpenBLAS as a process has, its own included.
BLAS_THREADS_VARIABLE: Final = "OPENBLAS_NUM_THREADS"


def start_no_blas_threads() -> None:
    """Let this process and its children start no BLAS threads. Settings of the user stay."""
    os.environ.setdefault(BLAS_THREADS_VARIABLE, "1")


# Let one thread compute at a time; release the turn during I/O.
#
# Small partitions are committed beside each other because a sync takes milliseconds and several at
# once hardly longer. What they compute meanwhile is Python, one thread at a time in any case; but
# where the interpreter's lock changes hands at every call of the operating system, two processors
# spend as much on handing it over as on the work. Here it changes hands where somebody waits.

Item = TypeVar("Item")
Answer = TypeVar("Answer")


class _Held(threading.local):
    """The turn that a thread has, if it has one, and how long it has waited for disks and others
    all in all."""

    turn: "threading.Lock | None" = None
    waited_seconds = 0.0


_held: Final = _Held()


def in_turns(work: Callable[[Item], Answer]) -> Callable[[Item], Answer]:
    """Return work for several threads: one computes, the others wait.

    Args:
        work: Waits for disks by ``sync``, and for anything else as long in ``waiting``: for locks,
            too, that others keep while they wait.
    """
    turn = threading.Lock()

    def work_in_turn(item: Item) -> Answer:
        with turn:
            _held.turn = turn
            try:
                return work(item)
            finally:
                _held.turn = None

    return work_in_turn


@contextmanager
def waiting() -> Iterator[None]:
    """Release the turn for the block: a wait for disk or others."""
    turn, begin = _held.turn, time.perf_counter()
    if turn is not None:
        turn.release()
    try:
        yield
    finally:
        _held.waited_seconds += time.perf_counter() - begin
        if turn is not None:
            turn.acquire()


def share_of_waiting(work: Callable[[Item], Answer], item: Item) -> tuple[Answer, float]:
    """Do work in this thread; return its answer, and how much of its time it was ``waiting``."""
    begin, before = time.perf_counter(), _held.waited_seconds
    answer = work(item)
    waited = _held.waited_seconds - before
    return answer, waited / max(time.perf_counter() - begin, waited, sys.float_info.min)


Made = TypeVar("Made")
_END: Final = object()


def count_processors() -> int:
    """Return how many processors this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def valid_at_once(threads: int) -> int:
    """Return the number of ``in_order`` items valid at the same time."""
    # One for each thread, and one for the result in use.
    return threads + 1 if threads > 1 else 1


def in_order(
    items: Generator[Item], work: Callable[[Item], Made], *, threads: int
) -> Generator[Made]:
    """Yield the results of concurrent work on items, in their order.

    Args:
        items: Makes them, one after the other, each by the thread that works on it then; closed at
            the end, however that comes. The last ``valid_at_once`` items have to be valid at any
            time: an item is used until the result after its own is asked for.
        work: The function for each item, called by any thread.
        threads: How many work; with one, the caller's does everything when a result is asked for.
    """
    with closing(items):
        if threads == 1:
            for item in items:
                yield work(item)
            return
        with _often:
            queue = _WorkQueue(items, work, threads)
            try:
                yield from queue.results()
            finally:
                queue.end()


# How long a thread keeps the interpreter's lock, at most, while another waits for it. Python's own
# 5 ms are longer than a kernel works on a window: the core of the waiting thread was idle for them.
_SWITCH_SECS: Final = 0.0003


class _SwitchingOften:
    """A context in which the interpreter's lock changes hands often. Several may be open."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._open = 0
        self._before = 0.0

    def __enter__(self) -> None:
        with self._lock:
            if not self._open:
                self._before = sys.getswitchinterval()
                sys.setswitchinterval(min(self._before, _SWITCH_SECS))
            self._open += 1

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self._open -= 1
            if not self._open:
                sys.setswitchinterval(self._before)


_often: Final = _SwitchingOften()


class _WorkQueue(Generic[Item, Made]):
    """Threads to make items in turn and process them concurrently."""

    def __init__(self, items: Generator[Item], work: Callable[[Item], Made], threads: int) -> None:
        self._items = items
        self._work = work
        self._is_over = False
        self._turn = threading.Lock()
        self._room = threading.Semaphore(valid_at_once(threads))
        self._results: SimpleQueue[Future[Any]] = SimpleQueue()
        self._threads = [
            threading.Thread(target=self._run, name=f"pylog-beside_{number}")
            for number in range(threads)
        ]
        for thread in self._threads:
            thread.start()

    def results(self) -> Generator[Made]:
        """Yield the results in the order of the items."""
        while (result := self._next()) is not _END:
            yield result
            self._room.release()

    def _next(self) -> Any:
        with waiting():
            return self._results.get().result()

    def end(self) -> None:
        """Have the threads end, after the items that they are at."""
        self._is_over = True
        self._room.release(len(self._threads))
        for thread in self._threads:
            thread.join()

    def _run(self) -> None:
        while True:
            self._room.acquire()
            with self._turn:
                if self._is_over:
                    return
                # Whose turn it is decides the order of the results.
                result: Future[Any] = Future()
                self._results.put(result)
                try:
                    item = next(self._items, _END)
                except BaseException as error:  # noqa: BLE001  # whoever asks for it hears of it
                    self._is_over = True
                    result.set_exception(error)
                    return
                if item is _END:
                    self._is_over = True
                    result.set_result(_END)
                    return
            try:
                result.set_result(self._work(cast("Item", item)))
            except BaseException as error:  # noqa: BLE001  # as above
                result.set_exception(error)
