"""A file that is a string of bytes, and windows over it."""

import os
from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from storage_core.records.reader import Window, scan_windows
from storage_core.store.base import DescriptorReader

FILE = "00000000000000000000.log"


class MemoryFile:
    """An open file of these bytes.

    Attributes:
        largest_read: The most bytes that were asked for at once.
    """

    def __init__(self, data: bytes, *, size_bytes: int | None = None) -> None:
        self.name = FILE
        self.size_bytes = len(data) if size_bytes is None else size_bytes
        self.largest_read = 0
        self._data = data

    def read_into(self, position: int, target: NDArray[np.uint8]) -> int:
        self.largest_read = max(self.largest_read, len(target))
        found = self._data[position : position + len(target)]
        target[: len(found)] = np.frombuffer(found, np.uint8)
        return len(found)

    def close(self) -> None: ...


class SharedMemoryFile(MemoryFile):
    """One that threads may read at the same moment."""

    is_shared = True


class DescriptorFile(SharedMemoryFile, DescriptorReader):
    """One that machine code may read by itself."""

    def __init__(self, data: bytes) -> None:
        super().__init__(data)
        self._file = os.memfd_create(FILE)
        os.write(self._file, data)

    @property
    def descriptor(self) -> int:
        return self._file

    def close(self) -> None:
        os.close(self._file)


def windows_of(data: bytes, **how: Any) -> Iterator[Window]:
    """Scan bytes; how is what scan_windows takes."""
    return scan_windows(MemoryFile(data), **how)


def only_window_of(data: bytes) -> Window:
    """Return the one window that holds all of the bytes."""
    (window,) = windows_of(data)
    return window
