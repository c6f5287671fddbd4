"""The files of a generation that is being prepared: those that have objects, those that wait."""

from collections.abc import Mapping
from dataclasses import dataclass

from storage_core.filenames import LOG_SUFFIX, TIME_INDEX_SUFFIX, kind_of, offset_of
from storage_core.store.manifest import FileEntry
from storage_core.store.uploads import last_timestamp


@dataclass(frozen=True, slots=True)
class WaitingFile:
    """A small file that has no object yet.

    Attributes:
        content: All of it.
        modified_ms: Its modification time, epoch milliseconds.
    """

    content: bytes
    modified_ms: int


def size_of(file: FileEntry | WaitingFile) -> int:
    """Return a file's length in bytes."""
    return len(file.content) if isinstance(file, WaitingFile) else file.size_bytes


def cut_file(
    file: FileEntry | WaitingFile, start: int, size_bytes: int, modified_ms: int
) -> FileEntry | WaitingFile:
    """Return a stretch of a file as a file; what is known of its records is not known of that."""
    if isinstance(file, WaitingFile):
        return WaitingFile(file.content[start : start + size_bytes], modified_ms)
    return FileEntry(
        key=file.key if size_bytes else "",
        start=file.start + start if size_bytes else 0,
        size_bytes=size_bytes,
        etag=file.etag if size_bytes else "",
        modified_ms=modified_ms,
    )


def known_timestamps(files: Mapping[str, FileEntry | WaitingFile]) -> dict[int, int]:
    """Return the largest timestamps of the segments of which an entry tells it.

    Returns:
        By base offset; -1 for a segment whose records have none.
    """
    found = {}
    for name, file in files.items():
        offset = offset_of(name)
        if (
            isinstance(file, FileEntry)
            and offset is not None
            and kind_of(name) == LOG_SUFFIX
            and file.largest_timestamp is not None
        ):
            found[offset] = file.largest_timestamp
    return found


def waiting_timestamps(files: Mapping[str, FileEntry | WaitingFile]) -> dict[int, int]:
    """Return what waiting time indexes tell of segments of which nothing is known yet."""
    known = known_timestamps(files)
    found = {}
    for name, file in files.items():
        offset = offset_of(name)
        if (
            isinstance(file, WaitingFile)
            and offset is not None
            and kind_of(name) == TIME_INDEX_SUFFIX
            and offset not in known
        ):
            timestamp = last_timestamp(file.content)
            if timestamp is not None:
                found[offset] = timestamp
    return found
