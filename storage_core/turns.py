"""Let one thread compute at a time; release the turn during I/O.

Small partitions are committed beside each other because a sync takes milliseconds and several at
once hardly longer. What they compute meanwhile is Python, one thread at a time in any case; but
where the interpreter's lock changes hands at every call of the operating system, two processors
spend as much on handing it over as on the work. Here it changes hands where somebody waits.
"""

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final, TypeVar

Item = TypeVar("Item")
Answer = TypeVar("Answer")


class _Held(threading.local):
    """The turn that a thread has, if it has one."""

    turn: "threading.Lock | None" = None


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
    turn = _held.turn
    if turn is None:
        yield
        return
    turn.release()
    try:
        yield
    finally:
        turn.acquire()


def sync(descriptor: int) -> None:
    """Sync a file or a folder's entries without holding the turn. The arguments are those of
    ``os.fsync``."""
    with waiting():
        os.fsync(descriptor)
