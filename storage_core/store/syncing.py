"""Make files and folders durable; what threads wait for at the same time, together.

A disk takes milliseconds for a sync, however little there is to write, and a journal's syncs wait
for each other. So what is asked for while a sync runs is gathered for the next one, which is one
``syncfs(2)`` for all. That writes whatever is unwritten on the filesystem: where others write much,
it takes longer than a sync for each file, and those are done.
"""

import ctypes
import enum
import math
import os
import threading
import time
from collections import defaultdict
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from typing import Final, Self

from storage_core.store.filesystems import filesystem_by_number
from storage_core.threads import waiting

# Where nothing is durable, and where syncfs(2) returns when all is. FUSE and network filesystems
# need not ask their servers.
_MEMORY: Final = "tmpfs"
_GATHERING: Final = frozenset({"btrfs", "ext4", "xfs"})
# With more unwritten bytes on this machine nobody tries how long all of them take: some disks
# write no more than 30 MB a second.
_MOST_UNWRITTEN: Final = 64 << 20
# So many files are kept open at most to be made durable together: a task has 1,024 open files, or
# more, for 16 partitions.
_MOST_UNSYNCED: Final = 32
# How much the last sync counts in the mean, and how fast a long one is forgotten.
_SHARE_OF_LAST: Final = 0.25
_MEMORY_FACTS: Final = Path("/proc/meminfo")
_WAIT_BEFORE: Final = 1
_libc: Final = ctypes.CDLL(None)
_HAS_SYNCFS: Final = hasattr(_libc, "syncfs") and hasattr(_libc, "sync_file_range")  # Linux
if _HAS_SYNCFS:
    _libc.sync_file_range.argtypes = [ctypes.c_int, ctypes.c_int64, ctypes.c_int64, ctypes.c_uint]
# How filesystems are synced, by the number of the device.
_ways: Final[dict[int, "Way"]] = {}


class Way(enum.Enum):
    """How files of a filesystem are made durable."""

    NOT = "not"
    TOGETHER = "together"
    ALONE = "alone"


def sync(*descriptors: int) -> None:
    """Make open files, and entries of open folders, durable, without holding the turn.

    Raises:
        OSError: As ``os.fsync`` does, about one of them.
    """
    devices: dict[int, list[int]] = defaultdict(list)
    for descriptor in descriptors:
        devices[os.fstat(descriptor).st_dev].append(descriptor)
    for device, some in devices.items():
        match way_of(device, some[0]):
            case Way.TOGETHER:
                with waiting():
                    _gathering(os.getpid(), device).sync(some)
            case Way.ALONE:
                with waiting():
                    for descriptor in some:
                        os.fsync(descriptor)


class Unsynced:
    """Files that are made durable together, later; a context manager.

    They stay open: of a write that fails later the kernel tells who had the file open then.
    """

    def __init__(self) -> None:
        self._descriptors: list[int] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._close()

    def add(self, *descriptors: int) -> None:
        """Keep open files; of very many, make all durable now."""
        self._descriptors += map(os.dup, descriptors)
        if len(self._descriptors) >= _MOST_UNSYNCED:
            self.sync()

    def sync(self) -> None:
        """Make the files durable, as ``sync`` does, and close them."""
        sync(*self._descriptors)
        self._close()

    def _close(self) -> None:
        while self._descriptors:
            os.close(self._descriptors.pop())


def way_of(device: int, descriptor: int) -> Way:
    """Return how a filesystem's files are made durable.

    Args:
        device: Its number.
        descriptor: An open file on it.
    """
    if device not in _ways:
        name = filesystem_by_number(descriptor) if _HAS_SYNCFS else None
        gathers = Way.TOGETHER if name in _GATHERING else Way.ALONE
        _ways[device] = Way.NOT if name == _MEMORY else gathers
    return _ways[device]


class _Batch:
    """Files that are made durable together."""

    def __init__(self) -> None:
        self.descriptors: list[int] = []
        self.is_durable = False
        self.is_over = threading.Event()


class _Gathering:
    """Syncs of one filesystem: one runs, the next one gathers."""

    def __init__(self) -> None:
        self._disk = threading.Lock()
        self._lock = threading.Lock()
        self._next = _Batch()
        # Mean seconds of a sync of one file, and of all files; 0 as long as none was tried.
        self._one = self._all = 0.0

    def sync(self, descriptors: list[int]) -> None:
        """Make files durable, with others that are asked for meanwhile."""
        with self._lock:
            batch = self._next
            is_first = not batch.descriptors
            batch.descriptors += descriptors
        if is_first:
            try:
                with self._disk:
                    with self._lock:
                        self._next = _Batch()
                    batch.is_durable = self._sync_together(batch.descriptors)
            finally:
                batch.is_over.set()
        else:
            batch.is_over.wait()
        for descriptor in descriptors:
            if not batch.is_durable or not _is_written(descriptor):
                os.fsync(descriptor)

    def _sync_together(self, descriptors: list[int]) -> bool:
        """Sync open files by one call; False if each has to be synced alone."""
        begin = time.perf_counter()
        if len(descriptors) == 1:
            os.fsync(descriptors[0])
            self._one += _SHARE_OF_LAST * (time.perf_counter() - begin - self._one)
            return True
        if self._all > len(descriptors) * self._one or _unwritten_bytes() > _MOST_UNWRITTEN:
            self._all -= _SHARE_OF_LAST * self._all
            return False
        is_durable = sync_filesystem(descriptors[0])
        self._all += _SHARE_OF_LAST * (time.perf_counter() - begin - self._all)
        return is_durable


def sync_filesystem(descriptor: int) -> bool:
    """Make all of an open file's filesystem durable; return whether the kernel says so."""
    return bool(_libc.syncfs(descriptor) == 0)


def _is_written(descriptor: int) -> bool:
    """Tell whether all bytes of a synced file got to the disk.

    ``syncfs(2)`` need not say so: the failure may be older than its descriptor, and Linux before
    5.8 says nothing. This asks about the file alone, and writes nothing.
    """
    return bool(_libc.sync_file_range(descriptor, 0, 0, _WAIT_BEFORE) == 0)


def _unwritten_bytes() -> float:
    """Return how much of this machine's files is not written yet; infinity where /proc is not
    there to say it."""
    with suppress(OSError):
        for line in _MEMORY_FACTS.read_text().splitlines():
            name, _, size = line.partition(":")
            if name == "Dirty":
                return int(size.split()[0]) << 10
    return math.inf


@lru_cache(maxsize=64)
def _gathering(process: int, device: int) -> _Gathering:
    """Return what gathers syncs of a filesystem; a fork has its own."""
    del process, device
    return _Gathering()


# Start writing large files to disk while they still grow.
#
# The system keeps what is written in memory for half a minute, or until somebody syncs: a disk
# that could have worked all the time is idle then, and the sync waits for all of it.

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
