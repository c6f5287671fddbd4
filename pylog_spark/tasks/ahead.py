"""Overlap many small waits of one task; keep answers in order.

An object store answers in tens of milliseconds however little is asked, and a disk takes
milliseconds for each sync, though several at once take hardly longer than one: a task that waits
for each answer before it asks the next question is idle nearly all of the time.
"""

import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from contextvars import copy_context
from itertools import groupby, islice
from operator import itemgetter
from typing import Any, Final, TypeVar

from storage_core.store.open_objects import MANAGED_PREFIX, is_url
from storage_core.threads import in_turns, share_of_waiting, waiting

# Bytes of segments that such work reads or moves at the same time. A partition that has more goes
# alone: the memory of a task is for one. Buffers, maps and uploads take some times as much.
BYTES_AT_ONCE: Final = 32 * 1024 * 1024
# Requests that one task has on their way: object stores take thousands a second and prefix. So
# many commits of a task wait for a disk, too.
AT_ONCE: Final = 16
# Threads cost about a sixth of what a commit computes.
_LEAST_WAITED: Final = 0.15
# Purges of a disk, which compute hardly anything.
PURGES_AT_ONCE: Final = 4

Item = TypeVar("Item")
Answer = TypeVar("Answer")


def map_ahead(
    work: Callable[[Item], Answer], items: Iterable[Item], *, at_once: int = AT_ONCE
) -> Iterator[Answer]:
    """Yield the result of work for each item, in item order.

    Items are taken from their iterator by this thread alone, and no more of them than are on their
    way, so that neither items nor answers pile up.

    Args:
        work: Called in other threads; what it raises is raised here.
        at_once: How many calls may run at the same time.
    """
    iterator = iter(items)
    with ThreadPoolExecutor(max_workers=at_once) as pool:

        def ask(count: int) -> Iterator[Future[Answer]]:
            for item in islice(iterator, count):
                yield pool.submit(copy_context().run, work, item)

        asked = deque(ask(at_once))
        while asked:
            answer = asked.popleft().result()
            asked.extend(ask(1))
            yield answer


def map_in_turns(work: Callable[[Item], Answer], items: Iterable[Item]) -> Iterator[Answer]:
    """Map work on disks over items, in order, computing in turns. While one computes, the others
    wait. The first ones are done in this thread, up to one that has waited for its disk: where none
    does, threads would only take time.

    Args:
        work: As for ``map_ahead``; where it waits it lets others have their turn, as
            ``storage_core.threads`` says.
    """
    iterator = iter(items)
    for item in iterator:
        answer, waited = share_of_waiting(work, item)
        yield answer
        if waited > _LEAST_WAITED:
            break
    yield from map_ahead(in_turns(work), iterator)


def map_partitions(
    work: Callable[[dict[str, Any]], Answer], rows: Iterable[dict[str, Any]]
) -> Iterator[Answer]:
    """Map work over partitions; ahead only on an object store.

    Args:
        rows: Of ``schemas.PARTITION``, or of another table with its ``directory``.
    """
    return map_where_remote(work, rows, directory_of=itemgetter("directory"))


def map_where_remote(
    work: Callable[[Item], Answer], items: Iterable[Item], *, directory_of: Callable[[Item], str]
) -> Iterator[Answer]:
    """Map work over items; ahead only on an object store."""
    for has_requests, some in groupby(items, key=lambda item: is_remote(directory_of(item))):
        map_each = map_ahead if has_requests else map
        yield from map_each(work, some)


class Room:
    """Room for so many bytes, shared by a task's threads. What needs more than there is has the
    room alone."""

    def __init__(self, size_bytes: int) -> None:
        self._size_bytes = self._free_bytes = size_bytes
        self._changed = threading.Condition()

    @contextmanager
    def take(self, size_bytes: int) -> Iterator[None]:
        """Take room for the time of the block; wait until available.

        Args:
            size_bytes: How much; of more than there is at all, all of it.
        """
        room_bytes = min(size_bytes, self._size_bytes)
        with waiting(), self._changed:
            self._changed.wait_for(lambda: room_bytes <= self._free_bytes)
            self._free_bytes -= room_bytes
        try:
            yield
        finally:
            with self._changed:
                self._free_bytes += room_bytes
                self._changed.notify_all()


def is_remote(location: str) -> bool:
    """Whether a root or a directory is on an object store."""
    return is_url(location.removeprefix(MANAGED_PREFIX))
