"""The protocol that every home of a partition's files fulfils.

Names are plain file names inside the partition directory, never paths. Reading methods may be
called by anyone; the methods that change something are for ``commit.executor`` alone.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Final, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from storage_core.errors import ReadOnlyStoreError, StorageError
from storage_core.store.folder_entries import FolderEntries

_PIECE_BYTES: Final = 8 << 20


@dataclass(frozen=True, slots=True, order=True)
class FileInfo:
    """One file of a listing."""

    name: str
    size_bytes: int  # length at the time of the listing
    modified_ms: int  # time of the last modification, epoch milliseconds
    # The file's identity, independent of its name: an inode number, or an object's version; empty
    # if the store cannot tell.
    identity: str = field(default="", compare=False)


class FileReader(Protocol):
    """One open file, read at positions of the caller's choice."""

    name: str
    size_bytes: int

    def read_into(self, position: int, target: NDArray[np.uint8]) -> int:
        """Fill target from a position on; return the number of bytes. At the end of the file
        they are fewer than target holds."""
        ...

    def close(self) -> None:
        """Release the file."""
        ...


@runtime_checkable
class VersionedReader(FileReader, Protocol):
    """One open file of a store that tells its versions apart."""

    @property
    def version(self) -> str:
        """An opaque tag; differs for another file and after any change. It is "" if the store
        has none."""
        ...


def version_of(reader: FileReader) -> str:
    """Return the version of an open file; "" if unknown."""
    return reader.version if isinstance(reader, VersionedReader) else ""


@runtime_checkable
class SharedReader(FileReader, Protocol):
    """One open file for concurrent reads at any position."""

    is_shared: bool  # True; readers of objects, which read ahead of one caller, do not say it


class MappedReader(ABC):
    """One open file with zero-copy reads, if the system allows them.

    Readers derive from it: comparing them with a protocol would cost as much as a small read.
    """

    @abstractmethod
    def map(self, position: int, size_bytes: int) -> NDArray[np.uint8] | None:
        """Return uint8[size_bytes] from a position on; None if not mapped. The array may be
        written to without changing the file."""


class DescriptorReader(ABC):
    """One open file of the operating system. Readers derive from it, as from MappedReader."""

    @property
    @abstractmethod
    def descriptor(self) -> int:
        """The file, for machine code that reads it. Who reads less than it wants leaves the reason
        to ``read_into``."""


class HoledReader(ABC):
    """One open file with a known hole at its end. Readers derive from it, as from MappedReader."""

    @abstractmethod
    def data_end(self) -> int:
        """Return the start of the final hole; the length without one."""


def data_end_of(reader: FileReader) -> int:
    """Return the start of a file's final hole, else its length."""
    return reader.data_end() if isinstance(reader, HoledReader) else reader.size_bytes


class SliceReader(HoledReader):
    """Ranged reads of a stretch of a file."""

    def __init__(self, reader: FileReader, start: int, size_bytes: int) -> None:
        self.name = reader.name
        self.size_bytes = size_bytes
        self._reader = reader
        self._start = start

    def read_into(self, position: int, target: NDArray[np.uint8]) -> int:
        """Fill target from position on and return how many bytes there were."""
        wanted = max(0, min(target.size, self.size_bytes - position))
        return self._reader.read_into(self._start + position, target[:wanted])

    def data_end(self) -> int:
        """Return the start of the hole at the end, else the length."""
        return min(max(data_end_of(self._reader) - self._start, 0), self.size_bytes)

    def close(self) -> None:
        """Release the file."""
        self._reader.close()


def read_limited(reader: FileReader, path: str, limit_bytes: int) -> bytes:
    """Return a small file whole.

    Args:
        path: Of the file, for messages.

    Raises:
        StorageError: It is longer than limit_bytes.
    """
    if reader.size_bytes > limit_bytes:
        raise StorageError(path, f"is longer than the {limit_bytes} bytes it may have")
    data = np.empty(reader.size_bytes, np.uint8)
    return data[: reader.read_into(0, data)].tobytes()


def read_range(reader: FileReader, start: int, end: int) -> Iterator[NDArray[np.uint8]]:
    """Yield the bytes between two positions, piece by piece.

    Yields:
        uint8[n], valid until the next one is asked for.

    Raises:
        StorageError: The file cannot be read, or ends before.
    """
    data = np.empty(min(end - start, _PIECE_BYTES), np.uint8)
    while start < end:
        count = reader.read_into(start, data[: end - start])
        if count == 0:
            raise StorageError(reader.name, f"ends at {start}; expected {end - start} bytes more")
        yield data[:count]
        start += count


class LogStore(Protocol):
    """The files of one partition directory."""

    @property
    def location(self) -> str:
        """Path or URL of the directory, for messages."""
        ...

    def list_files(self) -> list[FileInfo]:
        """Return the regular files, sorted by name.

        Raises:
            PartitionNotFoundError: The directory does not exist.
            StorageError: It cannot be listed, or a file in it cannot be read.
        """
        ...

    def read_file(self, name: str, *, limit_bytes: int) -> bytes:
        """Return a small file whole.

        Raises:
            StorageError: It does not exist, cannot be read, or is longer than limit_bytes.
        """
        ...

    def open_file(self, name: str) -> FileReader:
        """Open a file for ranged reads.

        Raises:
            StorageError: It does not exist or cannot be opened.
        """
        ...

    def write_file(self, name: str, content: bytes, *, modified_ms: int | None = None) -> None:
        """Create or replace a small file durably and atomically. So is all that happened to the
        directory's entries before.

        Args:
            modified_ms: Its modification time, epoch milliseconds; None for now.
        """
        ...

    def copy_range(
        self, source: str, start: int, size_bytes: int, target: str, *, modified_ms: int
    ) -> None:
        """Copy a byte range of a file to a new, synced file.

        Args:
            target: Name of the new file; one that is there is replaced.
            modified_ms: Its modification time, epoch milliseconds.

        Raises:
            StorageError: The source has fewer bytes, or the store failed.
        """
        ...

    def create_empty(self, name: str) -> None:
        """Create an empty file unless there is one of that name."""
        ...

    def promote(self, scratch_path: str, name: str) -> None:
        """Move a finished scratch file of the same filesystem into the directory."""
        ...

    def rename(self, source: str, target: str) -> None:
        """Rename a file, replacing the target if there is one."""
        ...

    def delete(self, name: str) -> None:
        """Delete a file; one that is gone already is no error."""
        ...

    def truncate(self, name: str, size_bytes: int) -> None:
        """Cut a file to size_bytes and sync it."""
        ...

    def sync_file(self, name: str) -> None:
        """Make a file's content durable."""
        ...

    def sync_directory(self) -> None:
        """Make the directory's entries durable."""
        ...


class UnsharedStore(ABC):
    """A store with knowledge of other writers to its files. Stores derive from it."""

    is_ours: bool  # whether nobody does: then its readers are ``MappedReader``s

    @abstractmethod
    def one_look(self) -> AbstractContextManager[None]:
        """List the directory once for all listings of the block."""

    @abstractmethod
    def scan(self) -> FolderEntries:
        """Return all that lies in the directory, sorted by name."""


def one_look(store: LogStore) -> AbstractContextManager[None]:
    """List a directory once for all listings of the block, where each would ask for every file. A
    store that has its listing at hand does nothing."""
    return store.one_look() if isinstance(store, UnsharedStore) else nullcontext()


def is_mapped(store: LogStore) -> bool:
    """Tell whether the system can read a store's files without copying."""
    return isinstance(store, UnsharedStore) and store.is_ours


class DeletingStore(ABC):
    """A store that deletes many files together. Stores derive from it."""

    @abstractmethod
    def delete_files(self, names: Sequence[str]) -> None:
        """Delete files in this order, each as ``delete`` does."""


class HoldableStore(ABC):
    """A store whose directory can be kept open. Stores derive from it."""

    @abstractmethod
    def held(self) -> AbstractContextManager[None]:
        """Keep the directory open for the block's calls. Otherwise each call would open it."""

    @abstractmethod
    def folder(self) -> AbstractContextManager[int]:
        """Return the open directory, for machine code that reads its files. Who cannot read one
        leaves the reason to ``open_file``.

        Raises:
            OSError: It cannot be opened.
        """


def held(store: LogStore) -> AbstractContextManager[None]:
    """Keep a store's directory open for a block with many calls, where that can be."""
    return store.held() if isinstance(store, HoldableStore) else nullcontext()


class IdentifyingStore(LogStore, Protocol):
    """A store that knows one file from another of the same name."""

    def open_identified(self, name: str, identity: str) -> FileReader | None:
        """Open a file if it still has this identity, else return None.

        Raises:
            StorageError: It cannot be opened, for another reason than not being there.
        """
        ...


class OwnedFiles(ABC):
    """A partition whose files' owners and modes pass to their replacements."""

    @abstractmethod
    def hand_on_ownership(self, descriptor: int, name: str) -> None:
        """Give an open file elsewhere owner, group and mode of one here.

        Raises:
            StorageError: The disk failed.
        """
        ...


@runtime_checkable
class DirectoryStore(LogStore, Protocol):
    """A partition directory on a disk, beside which files can be kept. Each method may be called
    again after a crash in its middle."""

    def keep(self, name: str, path: str, *, is_copy: bool) -> None:
        """Keep a file under a second path, outside of the directory.

        The path's folders are made. The bytes of a copy are durable at once, and it has times and
        manners of the file; names are durable once ``write_record`` has written into their folder,
        and beside that. What a former attempt left at the path is replaced; a file that is gone
        while its path is there was kept by one.

        Args:
            is_copy: Whether the bytes are copied.

        Raises:
            StorageError: There is no such file, the disk failed, or the path is on another
                filesystem and the file is not to be copied.
        """
        ...

    def restore(self, path: str, name: str, *, is_copy: bool) -> None:
        """Put a kept file into the directory, replacing its namesake.

        Args:
            is_copy: Whether the bytes are copied.

        Raises:
            StorageError: There is no such file, or the disk failed.
        """
        ...

    def write_record(self, path: str, content: bytes) -> None:
        """Create or replace a small file outside, durable with its folder's entries."""
        ...

    def create_directory(self) -> None:
        """Create the directory, with its log directory's owner, unless it is there.

        Raises:
            StorageError: The disk failed.
        """
        ...

    def retire_directory(self) -> None:
        """Rename the directory as a deleted partition's, then remove it.

        A broker removes what a crash leaves of it. If it is not there, nothing is done.

        Raises:
            StorageError: The disk failed.
        """
        ...

    def remove_directory(self) -> None:
        """Remove the directory if it is there.

        Raises:
            StorageError: It is not empty, or the disk failed.
        """
        ...


class ReadOnlyStore(ABC):
    """The changing methods of a ``LogStore`` that is only read: each refuses."""

    @property
    @abstractmethod
    def location(self) -> str:
        """Path or URL of the directory."""

    def write_file(self, name: str, content: bytes, *, modified_ms: int | None = None) -> None:
        """Refuse."""
        del content, modified_ms
        raise self._refusal(f"writing {name}")

    def copy_range(
        self, source: str, start: int, size_bytes: int, target: str, *, modified_ms: int
    ) -> None:
        """Refuse."""
        del source, start, size_bytes, modified_ms
        raise self._refusal(f"writing {target}")

    def create_empty(self, name: str) -> None:
        """Refuse."""
        raise self._refusal(f"creating {name}")

    def promote(self, scratch_path: str, name: str) -> None:
        """Refuse."""
        del scratch_path
        raise self._refusal(f"writing {name}")

    def rename(self, source: str, target: str) -> None:
        """Refuse."""
        raise self._refusal(f"renaming {source} to {target}")

    def delete(self, name: str) -> None:
        """Refuse."""
        raise self._refusal(f"deleting {name}")

    def truncate(self, name: str, size_bytes: int) -> None:
        """Refuse."""
        raise self._refusal(f"cutting {name} to {size_bytes} bytes")

    def sync_file(self, name: str) -> None:
        """Refuse: whoever syncs has written."""
        raise self._refusal(f"syncing {name}")

    def sync_directory(self) -> None:
        """Refuse: whoever syncs has written."""
        raise self._refusal("syncing the directory")

    def _refusal(self, operation: str) -> ReadOnlyStoreError:
        return ReadOnlyStoreError(self.location, operation)
