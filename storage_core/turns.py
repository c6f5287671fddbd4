"""Threads of one task that take turns: one computes, the others wait for disks.

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
    """Return work that several threads may do: one of them goes on while the others wait.

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
    """Let others go on for the time of the block, which waits for a disk or for somebody else."""
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
    """Make an open file, or the entries of an open folder, durable, as ``os.fsync`` does."""
    with waiting():
        os.fsync(descriptor)
