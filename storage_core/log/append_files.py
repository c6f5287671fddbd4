"""The files of a segment that is being written, on a local disk.

A log that is open for appends writes as it goes, like a broker: what a crash leaves is what a log
loader recovers. So this does not go through plans; everything else that happens to a partition's
files does.
"""

import os
from pathlib import Path
from typing import Protocol

from storage_core.store.local import LocalStore, storage_errors


class AppendFile(Protocol):
    """A file that grows."""

    @property
    def size_bytes(self) -> int:
        """Bytes that were written; a preallocated file is longer."""
        ...

    def append(self, content: bytes | bytearray | memoryview) -> None:
        """Write bytes behind those that were written before."""
        ...

    def trim(self) -> None:
        """Cut a preallocated file to what was written."""
        ...

    def sync(self) -> None:
        """Make the bytes durable."""
        ...

    def close(self) -> None:
        """Release the file."""
        ...


class AppendFiles(Protocol):
    """What opens the files of segments."""

    def open_file(self, name: str, *, preallocate_bytes: int = 0) -> AppendFile:
        """Open a file at its end, or create it.

        Args:
            name: Of the file.
            preallocate_bytes: Length that a new or empty file gets.
        """
        ...

    def sync_directory(self) -> None:
        """Make the directory's entries durable."""
        ...


class LocalAppendFile:
    """A local file that grows.

    Args:
        path: Of the file, for messages.
        descriptor: The file, open for writing; this object closes it.
        size_bytes: Bytes that were written.
    """

    def __init__(self, path: Path, descriptor: int, *, size_bytes: int) -> None:
        self._path = path
        self._size_bytes = size_bytes
        self._descriptor = descriptor

    @property
    def size_bytes(self) -> int:
        """Bytes that were written."""
        return self._size_bytes

    def append(self, content: bytes | bytearray | memoryview) -> None:
        """Write bytes behind those that were written before.

        Raises:
            StorageError: The disk refused; what was written of them does not count.
        """
        view = memoryview(content).cast("B")
        written = 0
        with storage_errors(self._path):
            while written < len(view):
                written += os.pwrite(self._descriptor, view[written:], self._size_bytes + written)
        self._size_bytes += len(view)

    def trim(self) -> None:
        """Cut the file to what was written."""
        with storage_errors(self._path):
            if os.fstat(self._descriptor).st_size != self._size_bytes:
                os.ftruncate(self._descriptor, self._size_bytes)

    def sync(self) -> None:
        """Make the bytes durable."""
        with storage_errors(self._path):
            os.fsync(self._descriptor)

    def close(self) -> None:
        """Release the file."""
        with storage_errors(self._path):
            os.close(self._descriptor)


class LocalAppendFiles:
    """Opens the files of one partition directory."""

    def __init__(self, store: LocalStore) -> None:
        self._store = store

    def open_file(self, name: str, *, preallocate_bytes: int = 0) -> LocalAppendFile:
        """Open a file at its end, or create it with owner and mode of the directory."""
        path = self._store.directory / name
        self._store.create_empty(name)
        descriptor = self._store.open_descriptor(name, os.O_WRONLY)
        with storage_errors(path):
            size_bytes = os.fstat(descriptor).st_size
            if preallocate_bytes and not size_bytes:
                os.ftruncate(descriptor, preallocate_bytes)
        return LocalAppendFile(path, descriptor, size_bytes=size_bytes)

    def sync_directory(self) -> None:
        """Make the directory's entries durable."""
        self._store.sync_directory()
