"""Objects in the memory of this process: ``memory://name/prefix``.

Who imports this module opens such URLs by it, in place of fsspec's own.
"""

import itertools
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from storage_core.clock import Clock, SystemClock
from storage_core.errors import (
    ChangedWhileReadError,
    ConditionFailedError,
    ObjectNotFoundError,
    StorageError,
)
from storage_core.store.object_store import (
    DEFAULT_LIMIT_BYTES,
    ObjectInfo,
    validate_key,
    validate_prefix,
)
from storage_core.store.open_objects import OPENERS

# Of all stores: full path to (content, tag, time written).
_OBJECTS: Final[dict[str, tuple[bytes, str, int]]] = {}
_LOCK: Final = threading.Lock()
_VERSIONS: Final = itertools.count(1)


class MemoryObjectStore:
    """Objects under one name; stores of the same URL share them."""

    def __init__(self, url: str, clock: Clock | None = None) -> None:
        self._url = url.rstrip("/")
        self._clock = clock or SystemClock()

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
        """Return a small object whole, and the tag of the version that was read."""
        content, etag, _ = self._find(key)
        if len(content) > limit_bytes:
            raise StorageError(
                self._path(key), f"is longer than the {limit_bytes} bytes it may have"
            )
        return content, etag

    def get_range(self, key: str, start: int, size_bytes: int, *, etag: str = "") -> bytes:
        """Return a stretch of an object."""
        content, current_etag, _ = self._find(key)
        if etag and current_etag != etag:
            raise ChangedWhileReadError(
                self._path(key), f"version {etag}", f"version {current_etag}"
            )
        return content[start : start + size_bytes]

    def read_into(self, key: str, start: int, target: NDArray[np.uint8], *, etag: str = "") -> int:
        """Fill target from position start on and return how many bytes there were."""
        content = self.get_range(key, start, target.size, etag=etag)
        target[: len(content)] = np.frombuffer(content, np.uint8)
        return len(content)

    def put(self, key: str, content: bytes) -> str:
        """Create or replace an object."""
        path = self._path(key)
        with _LOCK:
            return self._store(path, content)

    def put_file(self, key: str, path: str) -> str:
        """Create or replace an object by a local file."""
        try:
            content = Path(path).read_bytes()
        except OSError as error:
            raise StorageError(path, error.strerror or str(error)) from error
        return self.put(key, content)

    def put_if_absent(self, key: str, content: bytes) -> str:
        """Create an object unless there is one."""
        return self._put_if(key, content, "")

    def put_if_match(self, key: str, content: bytes, etag: str) -> str:
        """Replace that version of an object."""
        return self._put_if(key, content, etag)

    def head(self, key: str) -> ObjectInfo:
        """Return size, tag and time of an object without reading it."""
        content, etag, modified_ms = self._find(key)
        return ObjectInfo(key=key, size_bytes=len(content), etag=etag, modified_ms=modified_ms)

    def list(self, prefix: str = "") -> Iterator[ObjectInfo]:
        """Yield every object whose key begins with prefix, in order of keys."""
        start = f"{self._url}/{validate_prefix(prefix)}"
        for path in sorted(_OBJECTS):
            version = _OBJECTS.get(path)
            if path.startswith(start) and version is not None:
                content, etag, modified_ms = version
                yield ObjectInfo(
                    key=path[len(self._url) + 1 :],
                    size_bytes=len(content),
                    etag=etag,
                    modified_ms=modified_ms,
                )

    def list_stretch(self, first: str, last: str) -> Iterator[ObjectInfo]:
        """Yield every object from the first folder to the last, in order of keys."""
        start, end = validate_prefix(first), validate_prefix(last)
        for info in self.list():
            if info.key >= start and (info.key <= end or info.key.startswith(end)):
                yield info

    def list_folders(self, prefix: str = "") -> Iterator[str]:
        """Yield the names directly below a folder that have something below themselves."""
        names = (info.key[len(prefix) :].partition("/") for info in self.list(prefix))
        yield from sorted({name for name, slash, _ in names if slash})

    def list_folder(self, prefix: str = "") -> Iterator[ObjectInfo]:
        """Yield the objects directly in a folder, in order of keys."""
        yield from (info for info in self.list(prefix) if "/" not in info.key[len(prefix) :])

    def delete(self, keys: Sequence[str]) -> None:
        """Delete objects."""
        paths = [self._path(key) for key in keys]
        with _LOCK:
            for path in paths:
                _OBJECTS.pop(path, None)

    def _path(self, key: str) -> str:
        return f"{self._url}/{validate_key(key)}"

    def _put_if(self, key: str, content: bytes, etag: str) -> str:
        path = self._path(key)
        with _LOCK:
            present, current_etag, _ = _OBJECTS.get(path, (b"", "", 0))
            if current_etag == etag:
                return self._store(path, content)
        if current_etag and present == content:
            return current_etag
        raise ConditionFailedError(path, etag, current_etag)

    def _find(self, key: str) -> tuple[bytes, str, int]:
        path = self._path(key)
        version = _OBJECTS.get(path)
        if version is None:
            raise ObjectNotFoundError(path, "there is no such object")
        return version

    def _store(self, path: str, content: bytes) -> str:
        etag = f"m{next(_VERSIONS)}"
        _OBJECTS[path] = (bytes(content), etag, self._clock.now_ms())
        return etag


OPENERS["memory"] = MemoryObjectStore


def forget_memory(url: str) -> None:
    """Drop every object below a ``memory://`` URL."""
    with _LOCK:
        for path in [path for path in _OBJECTS if path.startswith(url.rstrip("/") + "/")]:
            del _OBJECTS[path]
