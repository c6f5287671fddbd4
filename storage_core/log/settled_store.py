"""Only the files of a partition that a load would leave.

Whoever reads takes no lock, and a swap of segments is many renames: in the middle of one, or after
one that was cut short, the plain names are neither the old log nor the new one. So a directory is
listed until two listings agree, what lies in it is settled as a loader settles it, without writing,
and from then on each name means the very file that was listed, whatever that is called meanwhile.
"""

import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing
from typing import Final, TypeGuard

import numpy as np

from storage_core.errors import ChangedWhileReadError, StorageError, located
from storage_core.filenames import (
    DELETED_SUFFIX,
    LOG_SUFFIX,
    OFFSET_INDEX_SUFFIX,
    SCRATCH_PREFIX,
    SWAP_SUFFIX,
    TIME_INDEX_SUFFIX,
    TRANSIENT_SUFFIXES,
    kind_of,
    offset_of,
)
from storage_core.log.directory_view import DirectoryView, SliceReader
from storage_core.log.leftovers import settle_leftovers
from storage_core.store.base import FileInfo, FileReader, IdentifyingStore, LogStore, ReadOnlyStore

# Seconds to wait before each attempt to see a directory without changes.
_PAUSES: Final = (0.0, 0.02, 0.05, 0.1, 0.2, 0.4, 0.8, 1.6)


class SettledStore(ReadOnlyStore):
    """The files of one partition as of its listing, settled.

    A file is opened if it is the one that was listed: under its name of then, or that which a swap
    gives it in its course. Of the active segment's log what was appended since does not show.

    Args:
        growing: Name of the log that somebody may append to; empty for none.
        removed: Names that were in the directory and that a load takes away.
    """

    def __init__(
        self,
        store: LogStore,
        files: Mapping[str, FileInfo],
        *,
        growing: str = "",
        removed: frozenset[str] = frozenset(),
    ) -> None:
        self._store = store
        self.files = files
        self.growing = growing
        self.removed = removed

    @property
    def location(self) -> str:
        """Path or URL of the directory."""
        return self._store.location

    def list_files(self) -> list[FileInfo]:
        """Return the files under the names that they have here, sorted."""
        return sorted(
            FileInfo(name, file.size_bytes, file.modified_ms, file.identity)
            for name, file in self.files.items()
        )

    def pick(self, names: Iterable[str]) -> dict[str, FileInfo]:
        """Return the files of some names, for a store like this one."""
        return {name: self.files[name] for name in names if name in self.files}

    def read_file(self, name: str, *, limit_bytes: int) -> bytes:
        """Return a small file whole."""
        with closing(self.open_file(name)) as reader:
            if reader.size_bytes > limit_bytes:
                path = f"{self.location}/{name}"
                raise StorageError(path, f"is longer than the {limit_bytes} bytes it may have")
            data = np.empty(reader.size_bytes, np.uint8)
            return data[: reader.read_into(0, data)].tobytes()

    def open_file(self, name: str) -> FileReader:
        """Open a file for ranged reads, as long as it was."""
        listed = self.files.get(name)
        if listed is None:
            raise StorageError(f"{self.location}/{name}", "No such file or directory")
        reader = self._find(name, listed)
        listed_bytes, size_bytes = listed.size_bytes, reader.size_bytes
        if size_bytes == listed_bytes:
            return reader
        is_changed_log = kind_of(name) == LOG_SUFFIX and name != self.growing
        # A roll, or a stop, trims preallocated indexes of the active segment.
        is_cut_to_size = (
            kind_of(name) in {OFFSET_INDEX_SUFFIX, TIME_INDEX_SUFFIX}
            and self.growing
            and offset_of(name) == offset_of(self.growing)
        )
        if size_bytes < listed_bytes and is_cut_to_size:
            return reader
        if size_bytes < listed_bytes or is_changed_log:
            reader.close()
            raise self._changed(listed, f"{size_bytes} bytes")
        return SliceReader(reader, 0, listed_bytes)

    def _find(self, name: str, listed: FileInfo) -> FileReader:
        store = self._store
        if not listed.identity or not _is_identifying(store):
            return store.open_file(listed.name)
        others = (name, name + SWAP_SUFFIX, name + DELETED_SUFFIX)
        # A renamed file may be missed under both names.
        for candidate in (listed.name, *others, *others):
            reader = store.open_identified(candidate, listed.identity)
            if reader is not None:
                return reader
        raise self._changed(listed, "another file, or none")

    def _changed(self, listed: FileInfo, actual: str) -> ChangedWhileReadError:
        path = f"{self.location}/{listed.name}"
        return ChangedWhileReadError(path, f"the file of {listed.size_bytes} bytes", actual)


class PlannedStore(ReadOnlyStore):
    """The files of a partition once a load's plan has been applied.

    Args:
        view: View of the loaded and closed log.
    """

    def __init__(self, view: DirectoryView) -> None:
        self._view = view

    @property
    def location(self) -> str:
        """Path or URL of the directory."""
        return self._view.store.location

    def list_files(self) -> list[FileInfo]:
        """Return the files that there will be, sorted by name."""
        sources = ((name, self._view.source(name)) for name in self._view.names)
        return [FileInfo(name, file.size_bytes, file.modified_ms) for name, file in sources]

    def read_file(self, name: str, *, limit_bytes: int) -> bytes:
        """Return a small file whole."""
        return self._view.read(name, limit_bytes=limit_bytes)

    def open_file(self, name: str) -> FileReader:
        """Open a file for ranged reads."""
        return self._view.open(name)


@located
def settle(store: LogStore) -> SettledStore:
    """Return a changing directory's partition as a load would leave it."""
    problem = ""
    for pause in _PAUSES:
        if pause:  # even a sleep of 0 seconds yields the processor
            time.sleep(pause)
        try:
            before = store.list_files()
            files = dict(_settled(store, before))
            if _is_same(before, store.list_files()):
                after = {file.name for file in files.values()}
                return SettledStore(
                    store,
                    files,
                    growing=_last_log(files),
                    removed=frozenset(file.name for file in before if file.name not in after),
                )
        except ChangedWhileReadError as error:
            problem = str(error)
        except StorageError as error:
            if not isinstance(error.__cause__, FileNotFoundError):
                raise
            problem = str(error)
    expected = f"a directory that stands still for a moment, in {len(_PAUSES)} attempts"
    raise ChangedWhileReadError(
        store.location, expected, problem or "one whose files are being renamed: try again"
    )


def settled_files(store: LogStore, listing: list[FileInfo]) -> list[FileInfo]:
    """Return the files a load would leave, by a directory's listing. If every name is settled,
    nothing is opened. Errors as of ``settle``."""
    return settle(store).list_files() if is_unfinished(listing) else listing


def is_unfinished(files: Iterable[FileInfo]) -> bool:
    """Whether there are names that a load would settle, or take away."""
    return any(
        file.name.endswith(TRANSIENT_SUFFIXES) or file.name.startswith(SCRATCH_PREFIX)
        for file in files
    )


def _settled(store: LogStore, listing: list[FileInfo]) -> Iterator[tuple[str, FileInfo]]:
    """Yield each name a load leaves, with the file of its bytes."""
    by_name = {file.name: file for file in listing}
    if not is_unfinished(listing):
        yield from by_name.items()
        return
    view = DirectoryView(SettledStore(store, by_name, growing=_last_log(by_name)))
    settle_leftovers(view)
    for name in view.names:
        yield name, by_name[view.source(name).name]


def _is_same(before: list[FileInfo], after: list[FileInfo]) -> bool:
    return [(f.name, f.identity) for f in before] == [(f.name, f.identity) for f in after]


def _is_identifying(store: LogStore) -> TypeGuard[IdentifyingStore]:
    """Whether a store can identify its files.

    ``isinstance`` is slower: it compares whole protocols.
    """
    return hasattr(store, "open_identified")


def _last_log(names: Iterable[str]) -> str:
    logs = (name for name in names if kind_of(name) == LOG_SUFFIX)
    return max(logs, key=lambda name: offset_of(name) or 0, default="")
