"""List a root on an object store: directories, and some directories' files. Listings come by pages.

A listing is what an object store charges for and what takes its time: 1,000 keys a request. The
directories of a root come from pages with a delimiter. The files of neighbouring directories come
from flat pages that begin where the first one does, so that small partitions share a page; a store
that cannot begin in the middle is asked once a directory. Nothing is ever asked once a file.

A name from a listing is somebody else's text. It is handed on as it is, but never a name that
would lead elsewhere as a path.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

from storage_core.errors import StorageError
from storage_core.store.object_store import ObjectStore
from storage_core.store.open_objects import open_object_store

# Just above "/", in the order in which object stores sort keys.
_AFTER_SLASH: Final = "0"
_S3: Final = "s3://"
_UNSAFE: Final = re.compile(r"[/\\\x00-\x1f\x7f]")


@dataclass(frozen=True, slots=True, order=True)
class ListedFile:
    """One file of a partition directory, from a listing or an inventory."""

    name: str  # plain file name; see ``is_plain_name``
    size_bytes: int
    # Time of the last modification, epoch milliseconds. Two that differ in nothing else are equal:
    # an inventory rounds it.
    modified_ms: int = field(compare=False)
    etag: str  # the store's tag of the content, without quotes; empty where it gives none


class RootListing(Protocol):
    """The listing of one root."""

    def directories(self) -> Iterator[str]:
        """Yield the names of the root's directories, in any order."""
        ...

    def files(self, directories: Sequence[str]) -> Iterator[tuple[str, list[ListedFile]]]:
        """Yield each of the directories with its files, sorted by name.

        Args:
            directories: At least one, sorted by ``key_order``; on a store that lists from the
                middle, with no other directory between them that has many files.
        """
        ...


def is_plain_name(name: str) -> bool:
    """Tell whether a name from a listing is safe in a path."""
    return name not in {"", ".", ".."} and not _UNSAFE.search(name)


def key_order(directory: str) -> str:
    """Return a directory's sort key: files then follow object key order."""
    return directory + "/"


def open_listing(root: str) -> RootListing:
    """Return the listing of a root.

    Args:
        root: URL of any kind that fsspec knows, or a path.
    """
    store = open_object_store(root)
    return S3Listing(store) if store.url.startswith(_S3) else FolderListing(store)


@contextmanager
def listing_errors(place: str) -> Iterator[None]:
    """Turn a store library's errors into a StorageError of that place."""
    try:
        yield
    except StorageError:
        raise
    except Exception as error:
        # Object store libraries have error classes of their own, without a common base.
        reason = str(error) or type(error).__name__
        raise StorageError(place, f"cannot be listed: {reason}") from error


class S3Listing:
    """The listing of a root on S3, by ListObjectsV2.

    Args:
        store: The root, an ``S3ObjectStore``: its module belongs to an extra.
    """

    def __init__(self, store: Any) -> None:
        self._store = store
        prefix = store.url.partition("://")[2].partition("/")[2]
        self._prefix = f"{prefix}/" if prefix else ""

    def directories(self) -> Iterator[str]:
        """Yield the names of the root's directories."""
        for page in self._pages(Delimiter="/"):
            for common in page.get("CommonPrefixes", ()):
                name = common["Prefix"][len(self._prefix) : -1]
                if is_plain_name(name):
                    yield name

    def files(self, directories: Sequence[str]) -> Iterator[tuple[str, list[ListedFile]]]:
        """Yield each of the directories with its files, from flat pages."""
        end = self._prefix + directories[-1] + _AFTER_SLASH
        files: dict[str, list[ListedFile]] = {name: [] for name in directories}
        for page in self._pages(StartAfter=self._prefix + directories[0] + "/"):
            contents = page.get("Contents", ())
            for entry in contents:
                directory, _, name = entry["Key"][len(self._prefix) :].partition("/")
                if directory in files and is_plain_name(name):
                    files[directory].append(_s3_file(name, entry))
            if contents and contents[-1]["Key"] >= end:
                break
        yield from files.items()

    def _pages(self, **more: str) -> Iterator[Mapping[str, Any]]:
        arguments = {"Prefix": self._prefix, **more}
        while True:
            with listing_errors(self._store.url):
                page = self._store.call("list_objects_v2", **arguments)
            yield page
            if not page.get("IsTruncated"):
                return
            arguments["ContinuationToken"] = page["NextContinuationToken"]


class FolderListing:
    """The listing of a root on a store other than S3. It costs one request for each directory."""

    def __init__(self, store: ObjectStore) -> None:
        self._store = store

    def directories(self) -> Iterator[str]:
        """Yield the names of the root's directories."""
        with listing_errors(self._store.url):
            for name in self._store.list_folders():
                if is_plain_name(name):
                    yield name

    def files(self, directories: Sequence[str]) -> Iterator[tuple[str, list[ListedFile]]]:
        """Yield each of the directories with its files."""
        for directory in directories:
            with listing_errors(f"{self._store.url}/{directory}"):
                files = [
                    ListedFile(
                        info.key.rpartition("/")[2], info.size_bytes, info.modified_ms, info.etag
                    )
                    for info in self._store.list_folder(directory + "/")
                ]
            yield directory, sorted(file for file in files if is_plain_name(file.name))


def _s3_file(name: str, entry: Mapping[str, Any]) -> ListedFile:
    return ListedFile(
        name=name,
        size_bytes=entry["Size"],
        modified_ms=round(entry["LastModified"].timestamp() * 1000),
        etag=entry["ETag"].strip('"'),
    )
