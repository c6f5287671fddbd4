"""The entries of one open folder by machine code: listed as columns, or deleted."""

import fcntl
import os
from collections.abc import Sequence
from typing import Final, overload

import numpy as np
from numpy.typing import NDArray

from storage_core.checkpoint.lock import BESIDE, LockedFile
from storage_core.kernels import file_starts as kernel
from storage_core.kernels._intrinsics import system_functions
from storage_core.local_files import Entry, scan_open
from storage_core.lock_holder import NOBODYS, SHARED_QUERY

# None on a system that lacks one of them.
_FUNCTIONS: Final = system_functions(kernel.SCAN_FUNCTIONS)
_DELETING: Final = system_functions(kernel.DELETING_FUNCTIONS)
# Writable, as kernels are compiled for; nobody writes into them.
_QUERY: Final = np.frombuffer(bytearray(SHARED_QUERY), np.uint8)
_NOBODYS: Final = np.frombuffer(bytearray(NOBODYS), np.uint8)
_LISTED_BYTES: Final = 1 << 15
_FIRST_CAPACITY: Final = 512
_NAME_BYTES: Final = 64
_NANOSECONDS: Final = 1_000_000_000
# The columns of the kernel, as the operating system names them.
_FACTS: Final = (
    "st_mode",
    "st_ino",
    "st_dev",
    "st_nlink",
    "st_uid",
    "st_gid",
    "st_size",
    "st_mtime_ns",
    "st_ctime_ns",
)


class FolderEntries(Sequence[Entry]):
    """The entries of a folder, sorted by name. Few of them are asked for one by one.

    Attributes:
        names: Their names.
        modes, devices, inodes, sizes: Of the entries themselves: no link is followed.
        modified_ns: When they were modified last, epoch nanoseconds.
    """

    def __init__(self, names: list[str], facts: Sequence[list[int]]) -> None:
        self.names = names
        self._facts = facts
        self.modes, self.inodes, self.devices, *_, self.sizes, self.modified_ns, _ = facts

    @classmethod
    def of_folder(cls, folder: int) -> "FolderEntries":
        """List an open folder; entries that vanish meanwhile are left out."""
        found = _by_machine_code(folder)
        return cls.of(scan_open(folder)) if found is None else found

    @classmethod
    def of(cls, entries: Sequence[Entry]) -> "FolderEntries":
        """Return the listing of entries that are sorted by name."""
        names = [entry.name for entry in entries]
        return cls(names, [[getattr(e.facts, name) for e in entries] for name in _FACTS])

    def __len__(self) -> int:
        return len(self.names)

    @overload
    def __getitem__(self, place: int) -> Entry: ...
    @overload
    def __getitem__(self, place: slice) -> list[Entry]: ...
    def __getitem__(self, place: int | slice) -> Entry | list[Entry]:
        if isinstance(place, slice):
            return [*self][place]
        *facts, modified_ns, changed_ns = (column[place] for column in self._facts)
        times = 0, modified_ns // _NANOSECONDS, changed_ns // _NANOSECONDS
        # Seconds, the same with fractions, nanoseconds: of a look no access counts.
        facts += [*times, *times, 0, modified_ns, changed_ns]
        return Entry(self.names[place], os.stat_result(facts))


def _by_machine_code(folder: int) -> FolderEntries | None:
    """List an open folder; None where something is unusual."""
    if _FUNCTIONS is None:
        return None
    capacity = _FIRST_CAPACITY
    while True:
        names = np.empty(capacity * _NAME_BYTES, np.uint8)
        table = np.empty((kernel.ENTRY_COLUMNS, capacity), np.int64)
        count, used = kernel.scan_folder(
            _FUNCTIONS,
            folder,
            np.empty(_LISTED_BYTES // 8, np.uint64).view(np.uint8),
            np.empty(kernel.FACTS_WORDS, np.uint32),
            names,
            table,
        )
        os.lseek(folder, 0, os.SEEK_SET)  # as `os.scandir` leaves it
        if count != kernel.NO_ROOM:
            break
        capacity *= 4
    if count < 0:
        return None
    found = os.fsdecode(names[:used].tobytes()).split("\0")[:count]
    order = sorted(range(count), key=found.__getitem__)
    columns = table.take(order, axis=1)
    facts: list[list[int]] = columns.tolist()
    facts[kernel.ENTRY_INODE] = columns[kernel.ENTRY_INODE].view(np.uint64).tolist()
    return FolderEntries([found[place] for place in order], facts)


def c_strings(texts: Sequence[str]) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """Return names or paths as machine code takes them: uint8[m], a zero byte behind each, and
    int64[n], where each begins."""
    joined = np.frombuffer(bytearray(os.fsencode("\0".join((*texts, "")))), np.uint8)
    return joined, np.concatenate(([0], np.flatnonzero(joined == 0) + 1))[:-1]


def delete_names(folder: int, names: Sequence[str], lock: LockedFile) -> int:
    """Delete files of an open partition directory, asking before each as ``LockShare.validate``.

    Returns:
        How many it has deleted. Where these are not all, the next one is left to those who can say
        why.
    """
    if _DELETING is None:
        return 0
    text, name_at = c_strings((BESIDE, *names))
    high, low = divmod(lock.inode, 1 << 32)
    device = os.major(lock.device), os.minor(lock.device)
    return kernel.delete_files(
        _DELETING,
        folder,
        text,
        name_at[1:],
        np.array((lock.descriptor, low, high, *device, fcntl.F_OFD_GETLK), np.int64),
        _QUERY,
        _NOBODYS,
        np.empty(len(SHARED_QUERY), np.uint8),
        np.empty(kernel.FACTS_WORDS, np.uint32),
    )
