"""Work of one task beside its own: what comes next is made while what is there is used.

Compiled kernels, reads, writes and syncs release the interpreter's lock, so a second thread takes
a second core. Whoever has but one core says so, and everything happens in turn, in the same order.
"""

import os
from collections import deque
from collections.abc import Callable, Generator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from typing import Any, Final, Self, TypeVar, cast

# Items that are there at the same time: the one in use and those made ahead.
_AT_ONCE: Final = 3

Item = TypeVar("Item")
_END: Final = object()


def count_processors() -> int:
    """Return how many processors this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def valid_at_once(threads: int) -> int:
    """Return how many items of ``read_ahead`` have to be valid at the same time."""
    return _AT_ONCE if threads > 1 else 1


def read_ahead(items: Generator[Item], *, threads: int) -> Generator[Item]:
    """Yield items in order, the next ones being made by another thread where there are two.

    Args:
        items: Makes them, and has no other user; closed at the end, however that comes. The last
            ``valid_at_once`` items have to be valid at any time.
        threads: How many the task may use; with one, each item is made when it is asked for.

    Raises:
        Exception: What making an item raises, in its turn: never before the items ahead of it.
    """
    with closing(items):
        if threads == 1:
            yield from items
            return
        pool = ThreadPoolExecutor(1, thread_name_prefix="pylog-ahead")
        try:
            made = deque(pool.submit(next, items, _END) for _ in range(_AT_ONCE))
            while (item := made.popleft().result()) is not _END:
                yield cast("Item", item)
                made.append(pool.submit(next, items, _END))
        finally:
            pool.shutdown(cancel_futures=True)


class Beside:
    """Does one call after the other, in another thread where there are two; a context manager.

    Args:
        threads: How many the task may use; with one, each call is done at once.
    """

    def __init__(self, *, threads: int) -> None:
        self._pool = ThreadPoolExecutor(1, "pylog-beside") if threads > 1 else None
        self._running: Future[Any] | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        if self._pool is not None:
            self._pool.shutdown()

    def do(self, call: Callable[..., Any], *arguments: Any) -> None:
        """Begin a call once the one before it is done.

        Raises:
            Exception: What the call before it raised, or this one where there is one thread.
        """
        if self._pool is None:
            call(*arguments)
            return
        self.wait()
        self._running = self._pool.submit(call, *arguments)

    def wait(self) -> None:
        """Return when the last call is done.

        Raises:
            Exception: What it raised.
        """
        running, self._running = self._running, None
        if running is not None:
            running.result()
