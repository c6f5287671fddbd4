"""What a refused or unanswered conditional write came to, and whether a store keeps its word.

The answer to a write can be lost after the store has obeyed; the library asks again and is told
that the object is there, or has another version. Only the object itself knows who wrote it: its
content names run and attempt, so it was this writer's exactly if it is equal.
"""

import secrets
from collections.abc import Callable
from typing import Final

from storage_core.errors import (
    ConditionFailedError,
    ObjectNotFoundError,
    StorageError,
    UnsafeStoreError,
)
from storage_core.store.object_store import DEFAULT_LIMIT_BYTES, ObjectStore

PROBE_FOLDER: Final = ".pylog-probe"


def settle_write(store: ObjectStore, key: str, content: bytes, expected_etag: str) -> str:
    """Return the tag of the object if it is what was to be written.

    Args:
        store: Where it is.
        key: Of the object.
        content: What was to be written.
        expected_etag: Tag of the version that was to be replaced; empty for none.

    Raises:
        ConditionFailedError: It is something else.
    """
    path = f"{store.url}/{key}"
    try:
        found, etag = store.get_with_etag(key, limit_bytes=max(DEFAULT_LIMIT_BYTES, len(content)))
    except ObjectNotFoundError:
        raise ConditionFailedError(path, expected_etag, "") from None
    if found != content:
        raise ConditionFailedError(path, expected_etag, etag)
    return etag


def require_conditional_writes(store: ObjectStore) -> None:
    """Try whether the store refuses what a conditional write has to be refused.

    Servers exist that take the conditions and ignore them. Writes four times to an object of its
    own below ``.pylog-probe/`` and deletes it.

    Raises:
        UnsafeStoreError: A write went through that had to be refused, or the other way round.
        StorageError: The store failed.
    """
    key = f"{PROBE_FOLDER}/{secrets.token_hex(16)}"
    try:
        _probe(store, key)
    finally:
        store.delete([key])


def _probe(store: ObjectStore, key: str) -> None:
    first = store.put_if_absent(key, b"first")
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
    _require_refusal(store, "If-Match", lambda: store.put_if_match(key, b"stale", first))
    content = store.get(key)
    if content != b"second":
        raise UnsafeStoreError(
            store.url, f"an object reads {content!r} after a refused write; expected b'second'"
        )


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
