"""Start writing large files to disk while they still grow.

The system keeps what is written in memory for half a minute, or until somebody syncs: a disk that
could have worked all the time is idle then, and the sync waits for all of it.
"""

import os
from typing import Final

# For fewer bytes, the request takes longer than it saves in a sync.
_PIECE_BYTES: Final = 2 * 1024 * 1024


class WriteBehind:
    """Start early disk writes of a growing file. Only a sync makes them durable."""

    __slots__ = ("_begun", "_descriptor")

    def __init__(self, descriptor: int, size_bytes: int = 0) -> None:
        self._descriptor = descriptor
        self._begun = size_bytes

    def reach(self, size_bytes: int) -> None:
        """Note the file's new size and start its write, without waiting."""
        if size_bytes - self._begun < _PIECE_BYTES:
            return
        if hasattr(os, "posix_fadvise"):
            # Linux begins to write pages that are to leave memory, and keeps them until they are
            # written: so they stay cached.
            os.posix_fadvise(
                self._descriptor, self._begun, size_bytes - self._begun, os.POSIX_FADV_DONTNEED
            )
        self._begun = size_bytes
