"""The protocol of every object store: S3, a local folder, memory.

Keys are relative to the store's URL: names separated by ``/``, checked by ``validate_key`` before
anything is done with them. An object is written whole or not at all; a reader of one sees all of
it or none. Every version of an object has a tag (``etag``) that differs from those of the
versions before it; tags of different stores have nothing to do with each other.

The answer to a conditional write can be lost after the store has obeyed; the library asks again
and is told that the object is there, or has another version. Only the object itself knows who wrote
it: its content names run and attempt, so it was this writer's exactly if it is equal.
"""

import re
import secrets
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Final, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from storage_core.errors import (
    ConditionFailedError,
    InvalidNameError,
    ObjectNotFoundError,
    StorageError,
    UnsafeStoreError,
)

MAX_KEY_BYTES: Final = 1024
# Small objects (manifests, leases, packed companions) up to this are read whole.
DEFAULT_LIMIT_BYTES: Final = 64 << 20

_PLAIN: Final = re.compile(r"[^\x00-\x1f\x7f\\]+")
PROBE_FOLDER: Final = ".pylog-probe"
# S3Proxy over a folder looks first and writes then: it granted several leases in 17 of 60 rounds,
# and let several writers replace one version in 9. It passes ten of both once in 140 times.
RACES: Final = 10
WRITERS: Final = 8


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class ObjectInfo:
    """One object of a listing, or of the answer to a write."""

    key: str  # relative to the store's URL
    size_bytes: int
    etag: str  # tag of this version, without quotes
    # When it was written, epoch milliseconds, by the store's clock. An object store cannot keep a
    # file's own time: a manifest does.
    modified_ms: int
    storage_class: str = ""  # the store's name for it; empty if it has none


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
        """Return a small object whole, and the tag of the same version."""
        ...

    def get_range(self, key: str, start: int, size_bytes: int, *, etag: str = "") -> bytes:
        """Return a stretch of an object, shorter where the object ends before.

        Args:
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
        """Create or replace an object from a local file; return its tag. A large file is sent in
        parts."""
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
        """Replace that version of an object, and return the new one's tag. A lost answer is settled
        as in ``put_if_absent``.

        Raises:
            ConditionFailedError: The object has another version, or is gone.
        """
        ...

    def head(self, key: str) -> ObjectInfo:
        """Return size, tag and time of an object without reading it."""
        ...

    def list(self, prefix: str = "") -> Iterator[ObjectInfo]:
        """Yield every object below a key prefix, in order of keys. Listings come by pages."""
        ...

    def list_folders(self, prefix: str = "") -> Iterator[str]:
        """Yield the names directly below a folder that have something below themselves.

        Args:
            prefix: The folder: empty, or a key with a slash at its end.
        """
        ...

    def list_folder(self, prefix: str = "") -> Iterator[ObjectInfo]:
        """Yield the objects directly in a folder, in order of keys. The prefix is as in
        ``list_folders``."""
        ...

    def delete(self, keys: Sequence[str]) -> None:
        """Delete objects; one that is gone already is no error."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class UnfinishedUpload:
    """An upload in parts that was begun and not ended."""

    key: str  # relative to the store's URL
    upload_id: str
    began_ms: int  # epoch milliseconds, by the store's clock


@runtime_checkable
class KeepsParts(Protocol):
    """An object store with parts of unfinished uploads to drop. Such parts stay until they are
    dropped."""

    def list_uploads(self) -> Iterator[UnfinishedUpload]:
        """Yield the unfinished uploads, in order of keys. Listings come by pages."""
        ...

    def abort_uploads(self, *, before_ms: int) -> int:
        """Drop uploads begun before a time, epoch milliseconds; return their number."""
        ...


@runtime_checkable
class ListsStretches(Protocol):
    """An object store whose listing can begin in the middle."""

    def list_stretch(self, first: str, last: str) -> Iterator[ObjectInfo]:
        """Yield every object from first to last folder, in key order. Listings come by pages.

        Args:
            first: A folder, with a slash at its end.
            last: The same, or one that comes after it in the order of keys.
        """
        ...


def validate_key(key: str) -> str:
    """Return the key after a check: plain names between single slashes.

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
    """Return the prefix after a check: empty, a key or key/."""
    if prefix:
        validate_key(prefix.removesuffix("/"))
    return prefix


def settle_write(store: ObjectStore, key: str, content: bytes, expected_etag: str) -> str:
    """Return an object's tag if a write of unclear outcome succeeded. It did if the object has the
    content of that write.

    Args:
        expected_etag: Tag of the version that was to be replaced; empty for none.

    Raises:
        ConditionFailedError: It is something else.
    """
    path = f"{store.url}/{key}"
    try:
        current, etag = store.get_with_etag(key, limit_bytes=max(DEFAULT_LIMIT_BYTES, len(content)))
    except ObjectNotFoundError:
        raise ConditionFailedError(path, expected_etag, "") from None
    if current != content:
        raise ConditionFailedError(path, expected_etag, etag)
    return etag


def require_conditional_writes(store: ObjectStore) -> None:
    """Try out whether the store obeys the conditions of writes.

    Servers exist that take the conditions and ignore them, and servers that look first and write
    then: such a store refuses writers that come one after the other, and lets several of those win
    that come at once. So writers race, ``RACES`` times ``WRITERS`` for each of the two conditions.
    All of it is written below ``.pylog-probe/`` and deleted. In a local folder nothing races: there
    the conditions are a link and a lock of the kernel's, and other filesystems are refused before.

    Raises:
        UnsafeStoreError: A write went through that had to be refused, or the other way round, or
            the store names one version of an object by two tags.
        StorageError: The store failed.
    """
    key = f"{PROBE_FOLDER}/{secrets.token_hex(16)}"
    races = [f"{key}-{number}" for number in range(RACES)] if "://" in store.url else []
    keys = [key, *races]
    try:
        _probe(store, key)
        with ThreadPoolExecutor(WRITERS, thread_name_prefix="pylog-probe") as pool:
            for race in races:
                _race(store, race, pool)
    finally:
        store.delete(keys)


def _probe(store: ObjectStore, key: str) -> None:
    """Try the conditions one write after the other."""
    first = store.put_if_absent(key, b"first")
    _require_tag(store, key, first)
    _require_refusal(store, "If-None-Match: *", lambda: store.put_if_absent(key, b"overwritten"))
    try:
        second = store.put_if_match(key, b"second", first)
    except ConditionFailedError as error:
        raise UnsafeStoreError(
            store.url, "a PUT with If-Match and the right tag is refused; expected it to replace"
        ) from error
    if second == first:
        raise UnsafeStoreError(
            store.url, f"two versions of an object have the same tag {first}; expected two tags"
        )
    _require_tag(store, key, second)
    _require_refusal(store, "If-Match", lambda: store.put_if_match(key, b"stale", first))
    content = store.get(key)
    if content != b"second":
        raise UnsafeStoreError(
            store.url, f"an object reads {content!r} after a refused write; expected b'second'"
        )


def _require_tag(store: ObjectStore, key: str, etag: str) -> None:
    """Refuse a store whose HEAD or GET has another tag."""
    for request, answer in (
        ("HEAD", store.head(key).etag),
        ("GET", store.get_with_etag(key)[1]),
    ):
        if answer != etag:
            raise UnsafeStoreError(
                store.url,
                f"a {request} names an object {answer!r} that its PUT named {etag!r}; expected one "
                "tag a version",
            )


def _race(store: ObjectStore, key: str, pool: ThreadPoolExecutor) -> None:
    """Let writers create an object at once, then replace it at once."""
    etag = _one_winner(
        store, key, pool, "If-None-Match: *", lambda content: store.put_if_absent(key, content)
    )
    _one_winner(
        store, key, pool, "If-Match", lambda content: store.put_if_match(key, content, etag)
    )


def _one_winner(
    store: ObjectStore,
    key: str,
    pool: ThreadPoolExecutor,
    condition: str,
    write: Callable[[bytes], str],
) -> str:
    """Return the tag of the one write that won a race.

    Raises:
        UnsafeStoreError: Several won, or none, or the object is not what the winner wrote.
        StorageError: None won, and the store failed.
    """
    start = threading.Barrier(WRITERS)

    def take_part(number: int) -> str | StorageError:
        start.wait()
        try:
            return write(b"%s, writer %d" % (condition.encode(), number))
        except StorageError as error:
            return error

    answers = list(pool.map(take_part, range(WRITERS)))
    winners = {number: each for number, each in enumerate(answers) if isinstance(each, str)}
    if len(winners) > 1:
        raise UnsafeStoreError(
            store.url,
            f"{len(winners)} of {WRITERS} writers that PUT one object with {condition} at once "
            "were told that they had written it; expected one, or two runs could commit at once: "
            "a managed root cannot live here",
        )
    if not winners:
        for error in answers:
            if isinstance(error, StorageError) and not isinstance(error, ConditionFailedError):
                raise error
        raise UnsafeStoreError(
            store.url,
            f"all of {WRITERS} writers that PUT one object with {condition} at once were refused; "
            "expected that one is not: a managed root cannot live here",
        )
    ((winner, etag),) = winners.items()
    content, version = store.get_with_etag(key)
    if (content, version) != (b"%s, writer %d" % (condition.encode(), winner), etag):
        raise UnsafeStoreError(
            store.url,
            f"after a race of {WRITERS} PUTs with {condition} an object is {content!r}, "
            f"version {version}; expected that of writer {winner}, version {etag}: a managed root "
            "cannot live here",
        )
    return etag


def _require_refusal(store: ObjectStore, condition: str, write: Callable[[], str]) -> None:
    try:
        write()
    except ConditionFailedError:
        return
    except StorageError as error:
        raise UnsafeStoreError(
            store.url, f"a PUT with {condition} that does not hold fails otherwise: {error}"
        ) from error
    raise UnsafeStoreError(
        store.url,
        f"the store ignores {condition}: a PUT overwrote an object that it had to leave alone, so "
        "two runs could commit at once; a managed root cannot live here",
    )
