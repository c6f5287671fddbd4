"""The protocol that every home of objects fulfils: an S3 bucket, a local folder, memory.

Keys are relative to the store's URL: names separated by ``/``, checked by ``validate_key`` before
anything is done with them. An object is written whole or not at all; a reader of one sees all of
it or none. Every version of an object has a tag (``etag``) that differs from those of the
versions before it; tags of different stores have nothing to do with each other.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from storage_core.errors import InvalidNameError

MAX_KEY_BYTES: Final = 1024
# Small objects (manifests, leases, packed companions) are read whole up to this.
DEFAULT_LIMIT_BYTES: Final = 64 << 20

_PLAIN: Final = re.compile(r"[^\x00-\x1f\x7f\\]+")


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class ObjectInfo:
    """What a listing, or the answer to a write, says of one object.

    Attributes:
        key: Relative to the store's URL.
        size_bytes: Length.
        etag: Tag of this version, without quotes.
        modified_ms: When it was written, epoch milliseconds, by the store's clock. An object
            store cannot keep a file's own time: a manifest does.
        storage_class: As the store names it; empty where it has none.
    """

    key: str
    size_bytes: int
    etag: str
    modified_ms: int
    storage_class: str = ""


class ObjectStore(Protocol):
    """Objects under one URL.

    Raises of all methods:
        ObjectNotFoundError: Where an object that has to be there is not.
        StorageError: The store failed, after the retries of its own library.
        InvalidNameError: A key is not one.
    """

    @property
    def url(self) -> str:
        """Where the keys begin, without a slash at the end."""
        ...

    def get(self, key: str, *, limit_bytes: int = DEFAULT_LIMIT_BYTES) -> bytes:
        """Return a small object whole.

        Raises:
            StorageError: It is longer than limit_bytes.
        """
        ...

    def get_with_etag(
        self, key: str, *, limit_bytes: int = DEFAULT_LIMIT_BYTES
    ) -> tuple[bytes, str]:
        """Return a small object whole, and the tag of the version that was read."""
        ...

    def get_range(self, key: str, start: int, size_bytes: int, *, etag: str = "") -> bytes:
        """Return a stretch of an object, shorter where the object ends before.

        Args:
            key: Of the object.
            start: Position of the first byte.
            size_bytes: How many to return at most.
            etag: If given, the version that has to be read.

        Raises:
            ChangedWhileReadError: The object has another version now.
        """
        ...

    def read_into(self, key: str, start: int, target: NDArray[np.uint8], *, etag: str = "") -> int:
        """Fill target from position start on; otherwise as get_range.

        Returns:
            How many bytes there were; fewer than target holds at the end of the object.
        """
        ...

    def put(self, key: str, content: bytes) -> str:
        """Create or replace an object, and return its tag."""
        ...

    def put_file(self, key: str, path: str) -> str:
        """Create or replace an object by a local file, in parts if it is large; return its tag."""
        ...

    def put_if_absent(self, key: str, content: bytes) -> str:
        """Create an object unless there is one, and return its tag.

        A write whose answer was lost is settled by reading back: it succeeded if the object is
        what was written. So content has to differ between writers.

        Raises:
            ConditionFailedError: There is one, with another content.
        """
        ...

    def put_if_match(self, key: str, content: bytes, etag: str) -> str:
        """Replace that version of an object, and return the new one's tag.

        A lost answer is settled as in put_if_absent.

        Raises:
            ConditionFailedError: The object has another version, or is gone.
        """
        ...

    def head(self, key: str) -> ObjectInfo:
        """Return what is known of an object without reading it."""
        ...

    def list(self, prefix: str = "") -> Iterator[ObjectInfo]:
        """Yield every object whose key begins with prefix, in order of keys, page by page."""
        ...

    def list_folders(self, prefix: str = "") -> Iterator[str]:
        """Yield the names directly below a folder that have something below themselves.

        Args:
            prefix: The folder: empty, or a key with a slash at its end.
        """
        ...

    def list_folder(self, prefix: str = "") -> Iterator[ObjectInfo]:
        """Yield the objects directly in a folder, in order of keys; prefix as in list_folders."""
        ...

    def delete(self, keys: Sequence[str]) -> None:
        """Delete objects; one that is gone already is no error."""
        ...


@runtime_checkable
class KeepsParts(Protocol):
    """An object store that keeps what an unfinished upload has sent until somebody drops it."""

    def abort_uploads(self, *, before_ms: int) -> int:
        """Drop the uploads that were begun before a time, epoch milliseconds; return how many."""
        ...


def validate_key(key: str) -> str:
    """Return the key if it is one: plain names separated by single slashes.

    Raises:
        InvalidNameError: It is empty or too long, begins or ends with a slash, or one of its names
            is empty, ``.`` or ``..`` or has a control character or a backslash.
    """
    if len(key.encode("utf-8", "surrogatepass")) > MAX_KEY_BYTES:
        raise InvalidNameError(key[:80], f"a key has at most {MAX_KEY_BYTES} bytes")
    for name in key.split("/"):
        if name in {"", ".", ".."} or not _PLAIN.fullmatch(name):
            raise InvalidNameError(key, "expected plain names separated by single slashes")
    return key


def validate_prefix(prefix: str) -> str:
    """Return the prefix if it is empty, a key, or a key with a slash at its end."""
    if prefix:
        validate_key(prefix.removesuffix("/"))
    return prefix
