"""Start writing large files to disk while they still grow.

The system keeps what is written in memory for half a minute, or until somebody syncs: a disk that
could have worked all the time is idle then, and the sync waits for all of it.
"""

import os
from typing import Final

# Below this, asking takes longer than what a sync has to wait less.
_PIECE_BYTES: Final = 2 * 1024 * 1024


class WriteBehind:
    """Start early disk writes of a growing file.

    Only a sync makes them durable.

    Args:
        descriptor: The open file.
        size_bytes: How long it is.
    """

    __slots__ = ("_begun", "_descriptor")

    def __init__(self, descriptor: int, size_bytes: int = 0) -> None:
        self._descriptor = descriptor
        self._begun = size_bytes

    def reach(self, size_bytes: int) -> None:
        """Note the file's new size and start its write, without waiting.

        Raises:
            OSError: The system refuses.
        """
        if size_bytes - self._begun < _PIECE_BYTES:
            return
        if hasattr(os, "posix_fadvise"):
            # Linux begins to write what is to leave its memory, and does not let go of it before
            # it is written: so it stays there.
            os.posix_fadvise(
                self._descriptor, self._begun, size_bytes - self._begun, os.POSIX_FADV_DONTNEED
            )
        self._begun = size_bytes
