"""Whether a broker has worked on a log directory since a run of ours was killed there.

What a killed run wrote down, commits that had begun and the marker that it took away, is about
files as they were then. A broker that was started since has changed them:

- one that shut down has left its marker, which every run of ours takes away before its first claim;
- one that crashed has left its lock file, and new high watermarks, which it writes every few
  seconds (``replica.high.watermark.checkpoint.interval.ms``). The lock file alone says nothing:
  where all processes of a run were killed at once, it is the run's own.
"""

from pathlib import Path
from typing import Final

from storage_core.filenames import CLEAN_SHUTDOWN_FILE, LOCK_FILE, REPLICATION_FILE
from storage_core.store.local import storage_errors

# The field in which a run writes down ``watermarks_mark``, wherever it writes something down.
SEEN: Final = "high_watermarks"


def is_abandoned(log_directory: Path) -> bool:
    """Whether the last one who held the lock did not give it back; asked before it is taken.

    Raises:
        StorageError: The disk failed.
    """
    with storage_errors(log_directory):
        return (log_directory / LOCK_FILE).exists()


def watermarks_mark(log_directory: Path) -> str:
    """Return what another writing of the high watermarks changes.

    Raises:
        StorageError: The disk failed.
    """
    path = log_directory / REPLICATION_FILE
    with storage_errors(path):
        try:
            facts = path.stat()
        except FileNotFoundError:
            return "none"
    return f"{facts.st_mtime_ns:x}-{facts.st_size:x}"


def was_visited(log_directory: Path, *, seen: str | None, was_abandoned: bool) -> bool:
    """Whether a broker has worked on a log directory since.

    Args:
        log_directory: Its lock is held.
        seen: The mark of the high watermarks as the killed run saw it, None if it noted none.
        was_abandoned: What ``is_abandoned`` said before the lock was taken.

    Raises:
        StorageError: The disk failed.
    """
    with storage_errors(log_directory):
        if (log_directory / CLEAN_SHUTDOWN_FILE).exists():
            return True
    return was_abandoned and seen != watermarks_mark(log_directory)
