"""Upload one task's data objects for another task's commit to name. That commit puts them into a
manifest.

What a task has uploaded travels to the commit as a location, a text that says where the bytes are:
``pylog-object:`` and the JSON of a file's entry in a manifest. The small files of a segment go
into one object, one after another: requests are what an object store charges for.
"""

import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Final

import numpy as np

from storage_core.errors import InvalidNameError, StorageError
from storage_core.filenames import (
    COMPANIONS_SUFFIX,
    LOG_SUFFIX,
    TIME_INDEX_SUFFIX,
    TopicPartition,
    kind_of,
    log_file,
    offset_of,
    settled_name,
)
from storage_core.formats.batch_v2 import NO_TIMESTAMP
from storage_core.formats.index_entries import TIME_INDEX_ENTRY
from storage_core.json_text import parse_json
from storage_core.local_files import facts_of
from storage_core.store.local import storage_errors
from storage_core.store.manifest import FileEntry, data_key
from storage_core.store.object_store import ObjectStore

UPLOADED_PREFIX: Final = "pylog-object:"
PARTITION_STEM: Final = "partition"
_MAX_LOCATION_BYTES: Final = 1 << 16


def upload_file(  # the object, its owner, and the way to upload it
    objects: ObjectStore,
    partition: TopicPartition,
    attempt_id: str,
    path: Path,
    name: str,
    *,
    largest_timestamp: int | None = None,
    put: Callable[[str, str], str] | None = None,
) -> str:
    """Upload a finished local file as one object; return its location.

    Args:
        attempt_id: Id of the task's attempt; no name is uploaded twice under one id.
        path: Path of the local file; its modification time becomes the file's.
        largest_timestamp: Largest timestamp of a segment's records, if it is known.
        put: Makes an object of that key by the file of that path and returns its tag, as
            ``put_file``; None for that.
    """
    with storage_errors(path):
        facts = facts_of(path)
    if facts is None:
        raise StorageError(str(path), "No such file or directory")
    key = data_key(partition, attempt_id, name)
    etag = (put or objects.put_file)(key, str(path)) if facts.st_size else ""
    return encode_location(
        FileEntry(
            key=key if facts.st_size else "",
            start=0,
            size_bytes=facts.st_size,
            etag=etag,
            modified_ms=facts.st_mtime_ns // 1_000_000,
            largest_timestamp=largest_timestamp,
        )
    )


def upload_companions(
    objects: ObjectStore, key: str, contents: Mapping[str, tuple[bytes, int]]
) -> dict[str, FileEntry]:
    """Upload small files as one object.

    Args:
        contents: By name: bytes, and modification time in epoch milliseconds.

    Returns:
        Their entries by name; files without bytes need no object.
    """
    packed = b"".join(content for content, _ in contents.values())
    etag = objects.put(key, packed) if packed else ""
    entries = {}
    start = 0
    for name, (content, modified_ms) in contents.items():
        is_empty = not content
        entries[name] = FileEntry(
            key="" if is_empty else key,
            start=0 if is_empty else start,
            size_bytes=len(content),
            etag="" if is_empty else etag,
            modified_ms=modified_ms,
        )
        start += len(content)
    return entries


def is_log(name: str) -> bool:
    """Tell whether a file is a segment's log, under any transient suffix."""
    return kind_of(settled_name(name)) == LOG_SUFFIX


def object_stem(name: str) -> str:
    """Return the stem of a file's object: its log's or segment's name. Small files of a segment
    share an object, named after the segment."""
    offset = offset_of(name)
    if offset is None:
        return PARTITION_STEM
    return log_file(offset) if is_log(name) else f"{offset:020d}"


def object_name(stem: str, number: int) -> str:
    """Return an attempt's object name from its stem and a number. The number counts the
    attempt's objects of that stem."""
    again = f"-{number}" if number else ""
    if stem.endswith(LOG_SUFFIX):
        return f"{stem.removesuffix(LOG_SUFFIX)}{again}{LOG_SUFFIX}"
    return f"{stem}{again}{COMPANIONS_SUFFIX}"


def encode_location(entry: FileEntry) -> str:
    """Return the location of an uploaded file, for ``PromoteFile``."""
    return UPLOADED_PREFIX + json.dumps(asdict(entry), separators=(",", ":"))


def parse_location(location: str) -> FileEntry:
    """Parse the location of an uploaded file."""
    try:
        text = location.removeprefix(UPLOADED_PREFIX)
        entry = parse_json(text, limit_bytes=_MAX_LOCATION_BYTES)
        return FileEntry(**{field.name: entry[field.name] for field in fields(FileEntry)})
    except (ValueError, KeyError, TypeError) as error:
        raise InvalidNameError(location[:80], "is no location of an uploaded object") from error


def last_timestamp(time_index: bytes) -> int | None:
    """Return the largest timestamp that a closed segment's time index tells.

    Returns:
        The last entry's; NO_TIMESTAMP for an index without entries; None for one that says
        nothing: of a length that no index has, or that ends in zeros.
    """
    if len(time_index) % TIME_INDEX_ENTRY.itemsize:
        return None
    stamps = np.frombuffer(time_index, TIME_INDEX_ENTRY)["timestamp"]
    if not stamps.size:
        return NO_TIMESTAMP
    if stamps[-1] <= 0 or (stamps.size > 1 and stamps[-1] <= stamps[-2]):
        return None
    return int(stamps[-1])


@dataclass(frozen=True, slots=True)
class WaitingFile:
    """A small file that has no object yet."""

    content: bytes
    modified_ms: int  # its modification time, epoch milliseconds


def size_of(file: FileEntry | WaitingFile) -> int:
    """Return a file's length in bytes."""
    return len(file.content) if isinstance(file, WaitingFile) else file.size_bytes


def cut_file(
    file: FileEntry | WaitingFile, start: int, size_bytes: int, modified_ms: int
) -> FileEntry | WaitingFile:
    """Return a range of a file as another, without largest timestamp."""
    if isinstance(file, WaitingFile):
        return WaitingFile(file.content[start : start + size_bytes], modified_ms)
    return FileEntry(
        key=file.key if size_bytes else "",
        start=file.start + start if size_bytes else 0,
        size_bytes=size_bytes,
        etag=file.etag if size_bytes else "",
        modified_ms=modified_ms,
    )


def recorded_timestamps(files: Mapping[str, FileEntry | WaitingFile]) -> dict[int, int]:
    """Return the largest timestamps of segments in manifest entries, if any.

    Returns:
        By base offset; -1 for a segment whose records have none.
    """
    timestamps = {}
    for name, file in files.items():
        offset = offset_of(name)
        if (
            isinstance(file, FileEntry)
            and offset is not None
            and kind_of(name) == LOG_SUFFIX
            and file.largest_timestamp is not None
        ):
            timestamps[offset] = file.largest_timestamp
    return timestamps


def waiting_timestamps(files: Mapping[str, FileEntry | WaitingFile]) -> dict[int, int]:
    """Return largest timestamps from waiting time indexes, where the manifest has none."""
    recorded = recorded_timestamps(files)
    timestamps = {}
    for name, file in files.items():
        offset = offset_of(name)
        if (
            isinstance(file, WaitingFile)
            and offset is not None
            and kind_of(name) == TIME_INDEX_SUFFIX
            and offset not in recorded
        ):
            timestamp = last_timestamp(file.content)
            if timestamp is not None:
                timestamps[offset] = timestamp
    return timestamps
