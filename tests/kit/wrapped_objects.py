"""Object stores around another one: it counts what is asked of it, or dies in the middle.

A process that is killed between two requests leaves what the requests before did; one that is
killed within an upload leaves nothing that a reader could see.
"""

import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Final, TypeVar

import numpy as np
from numpy.typing import NDArray

from storage_core.filenames import (
    COMPANIONS_SUFFIX,
    HISTORY_DIRECTORY,
    LEASE_FILE,
    MANAGED_ROOT_FILE,
    MANIFEST_FILE,
    PURGED_FILE,
)
from storage_core.store.managed_store import is_log
from storage_core.store.object_store import DEFAULT_LIMIT_BYTES, ObjectInfo, ObjectStore
from tests.kit.faulty_store import NEVER, Moment, SimulatedCrash

T = TypeVar("T")
# Where a local store's interrupted write leaves what it had.
TORN_KEY: Final = ".pylog-tmp/torn"


def kind_of_key(key: str) -> str:
    """Return what an object is.

    Returns:
        data (a log), companions, manifest, history, lease, root, purged, or other.
    """
    name = key.rstrip("/").rpartition("/")[2]
    fixed = {
        MANIFEST_FILE: "manifest",
        LEASE_FILE: "lease",
        MANAGED_ROOT_FILE: "root",
        PURGED_FILE: "purged",
    }
    if name in fixed:
        return fixed[name]
    if name.endswith(COMPANIONS_SUFFIX):
        return "companions"
    if f"/{HISTORY_DIRECTORY}/" in f"/{key}":
        return "history"
    return "data" if is_log(name) else "other"


class WrappedObjects:
    """An ObjectStore that hands every call on to another one, through one method."""

    def __init__(self, objects: ObjectStore) -> None:
        self._objects = objects

    @property
    def url(self) -> str:
        """Where the keys begin."""
        return self._objects.url

    def get(self, key: str, *, limit_bytes: int = DEFAULT_LIMIT_BYTES) -> bytes:
        """Return a small object whole."""
        return self._read("get", key, lambda: self._objects.get(key, limit_bytes=limit_bytes))

    def get_with_etag(
        self, key: str, *, limit_bytes: int = DEFAULT_LIMIT_BYTES
    ) -> tuple[bytes, str]:
        """Return a small object whole, and its tag."""
        return self._read(
            "get", key, lambda: self._objects.get_with_etag(key, limit_bytes=limit_bytes)
        )

    def get_range(self, key: str, start: int, size_bytes: int, *, etag: str = "") -> bytes:
        """Return a stretch of an object."""
        return self._read(
            "get", key, lambda: self._objects.get_range(key, start, size_bytes, etag=etag)
        )

    def read_into(self, key: str, start: int, target: NDArray[np.uint8], *, etag: str = "") -> int:
        """Fill target from position start on."""
        return self._read(
            "get", key, lambda: self._objects.read_into(key, start, target, etag=etag)
        )

    def put(self, key: str, content: bytes) -> str:
        """Create or replace an object."""
        return self._change("put", key, lambda: self._objects.put(key, content))

    def put_file(self, key: str, path: str) -> str:
        """Create or replace an object by a local file."""
        return self._change("put_file", key, lambda: self._objects.put_file(key, path))

    def put_if_absent(self, key: str, content: bytes) -> str:
        """Create an object unless there is one."""
        return self._change("put_if_absent", key, lambda: self._objects.put_if_absent(key, content))

    def put_if_match(self, key: str, content: bytes, etag: str) -> str:
        """Replace that version of an object."""
        return self._change(
            "put_if_match", key, lambda: self._objects.put_if_match(key, content, etag)
        )

    def head(self, key: str) -> ObjectInfo:
        """Return what is known of an object."""
        return self._read("head", key, lambda: self._objects.head(key))

    def list(self, prefix: str = "") -> Iterator[ObjectInfo]:
        """Yield every object whose key begins with prefix."""
        return self._read("list", prefix, lambda: self._objects.list(prefix))

    def list_folders(self, prefix: str = "") -> Iterator[str]:
        """Yield the names directly below a folder."""
        return self._read("list", prefix, lambda: self._objects.list_folders(prefix))

    def list_folder(self, prefix: str = "") -> Iterator[ObjectInfo]:
        """Yield the objects directly in a folder."""
        return self._read("list", prefix, lambda: self._objects.list_folder(prefix))

    def delete(self, keys: Sequence[str]) -> None:
        """Delete objects."""
        self._change(
            "delete",
            keys[0] if keys else "",
            lambda: self._objects.delete(keys),
            tear=lambda: self._objects.delete(keys[: len(keys) // 2]),
        )

    def _read(self, method: str, key: str, action: Callable[[], T]) -> T:
        del method, key
        return action()

    def _change(
        self, method: str, key: str, action: Callable[[], T], tear: Callable[[], None] | None = None
    ) -> T:
        del method, key, tear
        return action()


class CountingObjects(WrappedObjects):
    """Counts what is asked of a store."""

    def __init__(self, objects: ObjectStore) -> None:
        super().__init__(objects)
        # How often each (method, kind of object) was called; see ``kind_of_key``
        self.requests: Counter[tuple[str, str]] = Counter()
        self._counting = threading.Lock()

    def count(self, method: str, kind: str | None = None) -> int:
        """Return how often a method was called, for objects of one kind or of all."""
        return sum(
            number
            for (called, found), number in self.requests.items()
            if called == method and kind in {None, found}
        )

    def _read(self, method: str, key: str, action: Callable[[], T]) -> T:
        self._note(method, key)
        return action()

    def _change(
        self, method: str, key: str, action: Callable[[], T], tear: Callable[[], None] | None = None
    ) -> T:
        del tear
        self._note(method, key)
        return action()

    def _note(self, method: str, key: str) -> None:
        with self._counting:
            self.requests[method, kind_of_key(key)] += 1


class FaultyObjects(WrappedObjects):
    """Stops at one of the changes made through it, as a process that is killed.

    Args:
        stop_at: Number of the change, from 0; NEVER to only count.
        moment: When. A torn write leaves nothing under its key, and half of its bytes where local
            stores write temporary files; of a torn deletion, half of the keys are gone.
    """

    def __init__(
        self, objects: ObjectStore, *, stop_at: int = NEVER, moment: Moment = Moment.BEFORE
    ) -> None:
        super().__init__(objects)
        self._stop_at = stop_at
        self._moment = moment
        self._counting = threading.Lock()
        self._crash: SimulatedCrash | None = None
        # Method and key of every change that was asked for, in order
        self.changes: list[tuple[str, str]] = []

    def _read(self, method: str, key: str, action: Callable[[], T]) -> T:
        del method, key
        if self._crash is not None:
            raise self._crash
        return action()

    def _change(
        self, method: str, key: str, action: Callable[[], T], tear: Callable[[], None] | None = None
    ) -> T:
        with self._counting:
            if self._crash is not None:
                raise self._crash
            self.changes.append((method, key))
            if len(self.changes) - 1 != self._stop_at:
                return action()
            self._crash = SimulatedCrash(f"{self._moment.value} change {self._stop_at}: {method}")
            if self._moment is Moment.AFTER:
                action()
            elif self._moment is Moment.TORN and tear is not None:
                tear()
            elif self._moment is Moment.TORN:
                self._objects.put(TORN_KEY, b"half of a longer con")
            raise self._crash
