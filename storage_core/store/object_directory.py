"""A partition directory on an object store, as somebody's sync keeps it: only read.

There is one LIST, the first time that something needs it. A file that was listed is read in the
version that was listed: if the sync replaces it meanwhile, the read fails instead of mixing two.
"""

from collections.abc import Iterable, Mapping

from storage_core.errors import ObjectNotFoundError, PartitionNotFoundError
from storage_core.store.base import FileInfo
from storage_core.store.object_reader import ObjectFileReader
from storage_core.store.object_store import ObjectInfo, ObjectStore
from storage_core.store.read_only import ReadOnlyStore


class ObjectDirectory(ReadOnlyStore):
    """The objects directly in one folder, as the files of a partition.

    Args:
        objects: Where the folder is.
        folder: Its key, without a slash at the end; empty for the store's own top.
        listing: What is in it, where a listing of many folders has told already.
    """

    def __init__(
        self, objects: ObjectStore, folder: str, listing: Iterable[ObjectInfo] | None = None
    ) -> None:
        self._objects = objects
        self._prefix = f"{folder}/" if folder else ""
        self._listing = None if listing is None else self._by_name(listing)

    @property
    def location(self) -> str:
        """URL of the directory."""
        return f"{self._objects.url}/{self._prefix}".rstrip("/")

    def list_objects(self) -> Mapping[str, ObjectInfo]:
        """Return the directory's objects by file name.

        Raises:
            PartitionNotFoundError: There are none.
        """
        if self._listing is None:
            self._listing = self._by_name(self._objects.list_folder(self._prefix))
        if not self._listing:
            raise PartitionNotFoundError(self.location)
        return self._listing

    def list_files(self) -> list[FileInfo]:
        """Return the files, sorted by name."""
        return sorted(
            FileInfo(name, info.size_bytes, info.modified_ms, info.etag)
            for name, info in self.list_objects().items()
        )

    def read_file(self, name: str, *, limit_bytes: int) -> bytes:
        """Return a small file whole."""
        return self._objects.get(self._prefix + name, limit_bytes=limit_bytes)

    def open_file(self, name: str) -> ObjectFileReader:
        """Open a file for ranged reads."""
        info = self._listing.get(name) if self._listing else None
        if info is None:
            info = self._objects.head(self._prefix + name)
        return ObjectFileReader(
            self._objects, info.key, name=name, size_bytes=info.size_bytes, etag=info.etag
        )

    def open_identified(self, name: str, identity: str) -> ObjectFileReader | None:
        """Open a file in one version, None if there is another one now, or none.

        Nothing is asked for a version that was listed: a read of another one fails.
        """
        info = self._listing.get(name) if self._listing else None
        if info is None or info.etag != identity:
            try:
                info = self._objects.head(self._prefix + name)
            except ObjectNotFoundError:
                return None
        if info.etag != identity:
            return None
        return ObjectFileReader(
            self._objects, info.key, name=name, size_bytes=info.size_bytes, etag=info.etag
        )

    def _by_name(self, listing: Iterable[ObjectInfo]) -> dict[str, ObjectInfo]:
        return {info.key[len(self._prefix) :]: info for info in listing}
