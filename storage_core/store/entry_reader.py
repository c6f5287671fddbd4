"""Read the files that a manifest names, wherever their objects are, with few requests.

Small files of a segment share an object. One of them is asked for by fetching the whole object, if
that is small, and the others are served from it.
"""

from collections.abc import Iterable
from dataclasses import replace
from typing import Final

from storage_core.errors import StorageError
from storage_core.filenames import COMPANIONS_SUFFIX
from storage_core.store.base import FileReader
from storage_core.store.manifest import URL_MARK, FileEntry, split_adopted
from storage_core.store.object_reader import BytesReader, ObjectFileReader
from storage_core.store.object_store import ObjectStore
from storage_core.store.open_objects import open_object_store

_PACK_BYTES: Final = 8 << 20
_PACKS_KEPT: Final = 4
# A larger file of a shared object is read by ranges: its reader may want only its end.
_PACKED_READ_BYTES: Final = 64 << 10


class EntryReader:
    """The bytes behind a manifest's entries."""

    def __init__(self, objects: ObjectStore) -> None:
        self._objects = objects
        self._packs: dict[str, bytes] = {}
        # Up to where a shared object is used, by its key.
        self._ends: dict[str, int] = {}
        self._adopted_from: dict[str, ObjectStore] = {}

    def note(self, entries: Iterable[FileEntry]) -> None:
        """Take note of files that are going to be read: those that share an object come in one."""
        for entry in entries:
            if entry.key.endswith(COMPANIONS_SUFFIX):
                end = entry.start + entry.size_bytes
                self._ends[entry.key] = max(end, self._ends.get(entry.key, 0))

    def read(self, name: str, entry: FileEntry) -> bytes:
        """Return a file whole.

        Args:
            name: Of the file, for messages.
            entry: Where it is.

        Raises:
            ChangedWhileReadError: The object is not the version that the manifest names.
            StorageError: The object is gone or too short, or the store failed.
        """
        if not entry.size_bytes:
            return b""
        own_end = entry.start + entry.size_bytes
        end = max(own_end, self._ends.get(entry.key, 0))
        if not entry.key.endswith(COMPANIONS_SUFFIX) or end > _PACK_BYTES:
            return self._fetch(name, entry)
        if len(self._packs.get(entry.key, b"")) < own_end:
            pack = self._fetch(name, replace(entry, start=0, size_bytes=end))
            while len(self._packs) >= _PACKS_KEPT:
                del self._packs[next(iter(self._packs))]
            self._packs[entry.key] = pack
        return self._packs[entry.key][entry.start : own_end]

    def open(self, name: str, entry: FileEntry) -> FileReader:
        """Open a file for ranged reads; arguments and errors as of read."""
        is_packed = entry.key.endswith(COMPANIONS_SUFFIX)
        if not entry.size_bytes or (is_packed and entry.size_bytes <= _PACKED_READ_BYTES):
            return BytesReader(name, self.read(name, entry))
        objects, key = self.place_of(entry)
        return ObjectFileReader(
            objects,
            key,
            name=name,
            size_bytes=entry.size_bytes,
            start=entry.start,
            etag=entry.etag,
        )

    def place_of(self, entry: FileEntry) -> tuple[ObjectStore, str]:
        """Return store and key of an object, which may have been adopted from elsewhere."""
        if URL_MARK not in entry.key:
            return self._objects, entry.key
        store, key = split_adopted(entry.key, self._objects.url)
        if store not in self._adopted_from:
            self._adopted_from[store] = open_object_store(store)
        return self._adopted_from[store], key

    def _fetch(self, name: str, entry: FileEntry) -> bytes:
        objects, key = self.place_of(entry)
        content = objects.get_range(key, entry.start, entry.size_bytes, etag=entry.etag)
        if len(content) < entry.size_bytes:
            raise StorageError(
                f"{objects.url}/{key}",
                f"ends after {entry.start + len(content)} bytes, but {name} lies in it up to byte "
                f"{entry.start + entry.size_bytes}",
            )
        return content
