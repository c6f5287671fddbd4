"""Copy an object to another key, by the store itself if possible. It is possible if both keys are
on the same store.

A copy is of the version that was planned, or it is refused: S3 is told to compare the tag as it
copies. Not every server obeys; where the copy's own tag does not show that it has the same bytes,
and on other stores, the original is asked once more.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Final, Protocol, runtime_checkable

import numpy as np

from storage_core.errors import ChangedWhileReadError, StorageError
from storage_core.store.base import FileReader
from storage_core.store.generations import FileEntry
from storage_core.store.local_objects import LocalObjectStore
from storage_core.store.object_store import ObjectStore, validate_key
from storage_core.temporary_folder import temporary_folder

# The size of ranged reads; the content is never wholly in memory.
WINDOW_BYTES: Final = 16 << 20
_REFUSED: Final = frozenset({"412", "PreconditionFailed"})


def is_server_side(source: ObjectStore, target: ObjectStore) -> bool:
    """Whether a copy moves no bytes through this machine."""
    return _is_s3(source) and _is_s3(target)


def copy_object(
    source: ObjectStore, key: str, etag: str, target: ObjectStore, target_key: str
) -> str:
    """Copy one version of an object and return the copy's tag.

    Args:
        etag: Tag of the version; empty where its store gives none.
        target: Where the copy goes; may be the same store.
    """
    if is_server_side(source, target):
        tag = _copy_on_s3(source, key, etag, target, target_key)
        if tag == etag:
            return tag
    elif isinstance(source, LocalObjectStore):
        tag = target.put_file(target_key, str(Path(source.url) / validate_key(key)))
    else:
        with temporary_folder("pylog-copy-") as folder:
            path = folder / "object"
            _download(source, key, etag, path)
            tag = target.put_file(target_key, str(path))
    if etag:
        current_etag = source.head(key).etag
        if current_etag != etag:
            raise ChangedWhileReadError(
                f"{source.url}/{key}", f"version {etag}", f"version {current_etag}"
            )
    return tag


def upload_file(
    reader: FileReader, size_bytes: int, place: str, target: ObjectStore, key: str
) -> str:
    """Write what a reader gives to a new object, and return its tag.

    Args:
        place: Where it is read, for messages.
    """
    window = np.empty(min(size_bytes, WINDOW_BYTES), np.uint8)
    with temporary_folder("pylog-copy-") as folder:
        path = folder / "object"
        with path.open("wb") as file:
            for start in range(0, size_bytes, WINDOW_BYTES):
                part = window[: size_bytes - start]
                if reader.read_into(start, part) != part.size:
                    raise StorageError(place, f"ends before its {size_bytes} bytes")
                file.write(part.data)
        return target.put_file(key, str(path))


def _is_s3(store: ObjectStore) -> bool:
    return store.url.startswith("s3://")


def _download(source: ObjectStore, key: str, etag: str, path: Path) -> None:
    size = source.head(key).size_bytes
    with path.open("wb") as file:
        for start in range(0, size, WINDOW_BYTES):
            wanted = min(WINDOW_BYTES, size - start)
            content = source.get_range(key, start, wanted, etag=etag)
            if len(content) != wanted:
                raise StorageError(f"{source.url}/{key}", f"ends before its {size} bytes")
            file.write(content)


def _copy_on_s3(
    source: ObjectStore, key: str, etag: str, target: ObjectStore, target_key: str
) -> str:
    """Copy an object by one CopyObject request. Kafka's segments have at most 2 GiB; one request
    copies up to 5."""
    from storage_core.store.s3_objects import (  # noqa: PLC0415  # likewise
        S3ObjectStore,  # of an extra
        error_code,
        tag_of,
    )

    if not isinstance(source, S3ObjectStore) or not isinstance(target, S3ObjectStore):
        raise TypeError("expected two stores on S3")
    condition = {"CopySourceIfMatch": f'"{etag}"'} if etag else {}
    place = f"{source.url}/{key}"
    try:
        answer = target.call(
            "copy_object",
            Key=target.whole_key(target_key),
            CopySource={"Bucket": source.bucket, "Key": source.whole_key(key)},
            **condition,
        )
    except OSError as error:
        code = error_code(error)
        if code in _REFUSED:
            raise ChangedWhileReadError(place, f"version {etag}", "another one") from error
        raise StorageError(place, f"was not copied: {code or error}") from error
    return tag_of(answer["CopyObjectResult"])


# Ranges left out of a cleaned log, for the store to copy.
#
# Whoever knows without reading that a long stretch of a log stays leaves it out of the scratch
# file: there is a gap, which takes no room on the disk. What uploads the file has the store fill
# the gaps.

# A gap saves at least one read and one write request: it costs no more than no gap.
LEAST_GAP_BYTES: Final = 16 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class CopiedRange:
    """A range left out of a file; it reads as zeros."""

    position: int
    source: FileEntry  # the stretch of an object whose bytes belong there

    @property
    def end_position(self) -> int:
        """Just past it in the file."""
        return self.position + self.source.size_bytes


@runtime_checkable
class CopiesStretches(Protocol):
    """A partition on an object store with possible server-side range copies."""

    def stretch_to_copy(self, name: str, start: int, size_bytes: int) -> FileEntry | None:
        """Return the location of a range; None if it cannot be copied.

        Args:
            size_bytes: Its length; the file is no shorter.
        """
        ...


def may_be_gap(objects: ObjectStore, size_bytes: int) -> bool:
    """Tell whether a range is worth a copy by the store itself. Some stores copy no parts of
    objects."""
    return size_bytes >= LEAST_GAP_BYTES and is_server_side(objects, objects)
