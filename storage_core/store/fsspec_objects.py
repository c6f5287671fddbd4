"""Objects behind any filesystem that fsspec knows, for reading and plain writes. fsspec cannot
replace objects conditionally, so mirrors can be read, but managed roots cannot be here."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime
from typing import Any

import numpy as np
from fsspec.core import url_to_fs
from fsspec.implementations.local import LocalFileSystem
from numpy.typing import NDArray

from storage_core.errors import (
    ChangedWhileReadError,
    ConfigError,
    ObjectNotFoundError,
    StorageError,
    UnsafeStoreError,
)
from storage_core.store.object_store import (
    DEFAULT_LIMIT_BYTES,
    ObjectInfo,
    validate_key,
    validate_prefix,
)


class FsspecObjectStore:
    """The objects below a URL of an fsspec filesystem. An object's tag is the store's own, or
    made of time and size."""

    def __init__(self, url: str) -> None:
        self._url = url.rstrip("/")
        self._fs, root = url_to_fs(self._url, use_listings_cache=False)
        if _is_local(self._fs):
            # It follows links of any user.
            raise ConfigError("location", url, "name a local directory by its path")
        self._root = str(root).rstrip("/")

    @property
    def url(self) -> str:
        """Where the keys begin."""
        return self._url

    def get(self, key: str, *, limit_bytes: int = DEFAULT_LIMIT_BYTES) -> bytes:
        """Return a small object whole."""
        return self.get_with_etag(key, limit_bytes=limit_bytes)[0]

    def get_with_etag(
        self, key: str, *, limit_bytes: int = DEFAULT_LIMIT_BYTES
    ) -> tuple[bytes, str]:
        """Return a small object whole, and its tag from before the read."""
        info = self.head(key)
        if info.size_bytes > limit_bytes:
            raise StorageError(
                f"{self._url}/{key}", f"is longer than the {limit_bytes} bytes it may have"
            )
        with self._errors(key):
            return bytes(self._fs.cat_file(self._path(key))), info.etag

    def get_range(self, key: str, start: int, size_bytes: int, *, etag: str = "") -> bytes:
        """Return a stretch of an object."""
        if etag:
            current_etag = self.head(key).etag
            if current_etag != etag:
                raise ChangedWhileReadError(
                    f"{self._url}/{key}", f"version {etag}", f"version {current_etag}"
                )
        with self._errors(key):
            return bytes(self._fs.cat_file(self._path(key), start=start, end=start + size_bytes))

    def read_into(self, key: str, start: int, target: NDArray[np.uint8], *, etag: str = "") -> int:
        """Fill target from position start on; return the number of bytes."""
        if not target.size:
            return 0
        content = self.get_range(key, start, target.size, etag=etag)
        target[: len(content)] = np.frombuffer(content, np.uint8)
        return len(content)

    def put(self, key: str, content: bytes) -> str:
        """Create or replace an object."""
        with self._errors(key):
            self._fs.makedirs(self._fs._parent(self._path(key)), exist_ok=True)  # noqa: SLF001
            self._fs.pipe_file(self._path(key), content)
        return self.head(key).etag

    def put_file(self, key: str, path: str) -> str:
        """Create or replace an object by a local file."""
        with self._errors(key):
            self._fs.makedirs(self._fs._parent(self._path(key)), exist_ok=True)  # noqa: SLF001
            self._fs.put_file(path, self._path(key))
        return self.head(key).etag

    def put_if_absent(self, key: str, content: bytes) -> str:
        """Refuse: not every filesystem of fsspec has it, and none says so."""
        raise UnsafeStoreError(
            self._url,
            f"cannot write {len(content)} bytes to {key} on condition: fsspec has no conditional "
            "replacement; a managed root lives on S3 or on a local disk",
        )

    def put_if_match(self, key: str, content: bytes, etag: str) -> str:
        """Refuse, as put_if_absent does."""
        raise UnsafeStoreError(
            self._url,
            f"cannot write {len(content)} bytes over version {etag} of {key} on condition: fsspec "
            "has no conditional replacement; a managed root lives on S3 or on a local disk",
        )

    def head(self, key: str) -> ObjectInfo:
        """Return size, tag and time of an object without reading it."""
        with self._errors(key):
            return self._info(self._fs.info(self._path(key)), key)

    def list(self, prefix: str = "") -> Iterator[ObjectInfo]:
        """Yield every object whose key begins with prefix, in order of keys."""
        folder, _, _ = validate_prefix(prefix).rpartition("/")
        with self._errors(prefix):
            files = self._fs.find(f"{self._root}/{folder}".rstrip("/"), detail=True)
        for path, facts in sorted(files.items()):
            key = str(path)[len(self._root) + 1 :]
            if key.startswith(prefix):
                yield self._info(facts, key)

    def list_folders(self, prefix: str = "") -> Iterator[str]:
        """Yield the names of the folders directly below a folder."""
        yield from (
            str(facts["name"]).rstrip("/").rpartition("/")[2]
            for facts in self._entries(prefix)
            if facts["type"] == "directory"
        )

    def list_folder(self, prefix: str = "") -> Iterator[ObjectInfo]:
        """Yield the objects directly in a folder, in order of keys."""
        yield from (
            self._info(facts, str(facts["name"])[len(self._root) + 1 :])
            for facts in self._entries(prefix)
            if facts["type"] == "file"
        )

    def delete(self, keys: Sequence[str]) -> None:
        """Delete objects."""
        for key in keys:
            try:
                with self._errors(key):
                    self._fs.rm_file(self._path(key))
            except ObjectNotFoundError:
                continue

    def _path(self, key: str) -> str:
        return f"{self._root}/{validate_key(key)}"

    def _entries(self, prefix: str) -> Sequence[dict[str, Any]]:
        folder = f"{self._root}/{validate_prefix(prefix)}".rstrip("/")
        try:
            with self._errors(prefix):
                return sorted(self._fs.ls(folder, detail=True), key=lambda facts: facts["name"])
        except ObjectNotFoundError:
            return ()

    def _info(self, facts: dict[str, Any], key: str) -> ObjectInfo:
        if facts["type"] != "file":
            raise ObjectNotFoundError(f"{self._url}/{key}", "is no file")
        modified_ms, size = _modified(facts), int(facts["size"])
        tag = facts.get("ETag") or facts.get("etag") or f"{modified_ms:x}-{size:x}"
        return ObjectInfo(
            key=key,
            size_bytes=size,
            etag=str(tag).strip('"'),
            modified_ms=modified_ms,
            storage_class=str(facts.get("StorageClass") or facts.get("storageClass") or ""),
        )

    @contextmanager
    def _errors(self, key: str) -> Iterator[None]:
        path = f"{self._url}/{key}"
        try:
            yield
        except FileNotFoundError as error:
            raise ObjectNotFoundError(path, str(error) or "there is no such object") from error
        except OSError as error:
            raise StorageError(path, error.strerror or str(error)) from error


def _is_local(filesystem: Any) -> bool:
    """Tell whether a filesystem is local, or a layer over one. A cache is such a layer."""
    while filesystem is not None:
        if isinstance(filesystem, LocalFileSystem):
            return True
        filesystem = getattr(filesystem, "fs", None)
    return False


def _modified(facts: dict[str, Any]) -> int:
    """Return a file's modification time, epoch milliseconds; 0 if unknown."""
    for name in ("LastModified", "last_modified", "mtime", "updated", "created"):
        moment = facts.get(name)
        if isinstance(moment, datetime):
            return int(moment.timestamp() * 1000)
        if isinstance(moment, int | float):
            return int(moment * 1000)
    return 0
