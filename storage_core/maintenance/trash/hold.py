"""The trash of one run, held against everybody else who writes, empties or undoes it.

The lock of a log directory does not do that: a purge of the trash asks for no log directory, and
an undo may be about others than the purge.
"""

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from storage_core.errors import GuardRefusedError, StorageError
from storage_core.store.local import storage_errors


@contextmanager
def hold_run(folder: Path) -> Iterator[None]:
    """Hold the trash of a run for the time of the block.

    Args:
        folder: The run's; it is there.

    Raises:
        GuardRefusedError: Another process holds it: the run itself, an undo of it, or a purge.
        StorageError: It cannot be opened, or was purged at this moment.
    """
    with storage_errors(folder):
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
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
        yield
    finally:
        os.close(descriptor)
