"""The trash of one run, held against everybody else who writes, empties or undoes it.

The lock of a log directory does not do that: a purge of the trash asks for no log directory, and
an undo may be about others than the purge. Whoever finishes a commit of a killed run writes into
its trash, too, and holds it for that time.
"""

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import Final

from storage_core.errors import GuardRefusedError, StorageError
from storage_core.store.local import storage_errors

# The folders, by filesystem and inode, that are held by what goes on here: by callers up the stack.
_HELD: Final[ContextVar[frozenset[tuple[int, int]]]] = ContextVar(
    "trash_held_here", default=frozenset()
)


@contextmanager
def hold_run(folder: Path) -> Iterator[None]:
    """Hold the trash of a run for the time of the block.

    Args:
        folder: The run's; it is there.

    Raises:
        GuardRefusedError: Another process holds it: the run itself, an undo of it, or a purge.
        StorageError: It cannot be opened or locked, or was purged at this moment.
    """
    with storage_errors(folder):
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        _lock(descriptor, folder)
        identity = _identity(os.fstat(descriptor))
        _HELD.set(_HELD.get() | {identity})
        try:
            yield
        finally:
            _HELD.set(_HELD.get() - {identity})
    finally:
        os.close(descriptor)


@contextmanager
def hold_run_again(folder: Path) -> Iterator[None]:
    """Hold the trash of a run for the time of the block, if it is not held here already.

    For the commits of a run that was killed, which are finished by whoever next works on its log
    directory: that may be the undo of the very same run.

    Raises:
        GuardRefusedError: Somebody else holds it.
        StorageError: It is not there any more, or cannot be opened or locked.
    """
    with storage_errors(folder):
        identity = _identity(folder.stat())
    if identity in _HELD.get():
        yield
    else:
        with hold_run(folder):
            yield


def _lock(descriptor: int, folder: Path) -> None:
    with storage_errors(folder):
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise GuardRefusedError(
                "TRASH_IN_USE",
                f"{folder}: another process works with it at this moment: run {folder.name} "
                "itself, an undo of it, or a purge",
            ) from None
        if not folder.exists():
            raise StorageError(str(folder), "was purged at this moment")


def _identity(facts: os.stat_result) -> tuple[int, int]:
    return facts.st_dev, facts.st_ino
