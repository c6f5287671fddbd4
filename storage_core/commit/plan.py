"""The plan of changes to one partition's files, as data.

Each operation carries the reason for it: a dry run prints it, the ledger keeps it. A commit that a
crash cut short is completed or undone by loading the log, unless a claim of it was kept.
"""

import hashlib
import json
import os
import stat
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, MutableMapping
from dataclasses import dataclass
from operator import attrgetter
from pathlib import Path
from typing import Annotated, Any, Final, TypeVar

from storage_core.filenames import DELETED_SUFFIX, SCRATCH_PREFIX, TEMPORARY_SUFFIX
from storage_core.json_values import ONE_LINE, Count, FileName, JsonFile, Key, SystemText, whole
from storage_core.store.base import LogStore, UnsharedStore
from storage_core.store.folder_entries import FolderEntries
from storage_core.store.local import LocalStore, storage_errors

# Fingerprints and versions: tell whether a directory's files have changed.
#
# After days, and in a copy: names, sizes and modification times of all files, and a checksum of
# the small ones, for epochs, snapshots and indexes may be rewritten in place with the same length.
# That is a ``FileFingerprint``.
#
# In one directory on one disk, from one process to the next, without a look into any file: a file
# that has the same name, size, modification time and inode is the one that was left there, and
# nobody has written into it. That is a ``FileVersion``.

SMALL_FILE_BYTES: Final = 64 * 1024
_DIGEST_BYTES: Final = 16
# Of files that wait for their end, and of scratch files.
_PASSING_SUFFIXES: Final = (DELETED_SUFFIX, TEMPORARY_SUFFIX)


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class FileFingerprint:
    """A file's name, size, time and small-file CRC, to notice changes."""

    name: FileName
    size_bytes: Count
    modified_ms: int | None  # its modification time, epoch milliseconds; None where any will do
    crc32: Count | None  # CRC-32 of a file of at most ``SMALL_FILE_BYTES``; None for a larger one

    def matches(self, other: "FileFingerprint | None") -> bool:
        """Tell whether two fingerprints are of one version; None is no file."""
        if other is None or self.size_bytes != other.size_bytes or self.crc32 != other.crc32:
            return False
        return None in {self.modified_ms, other.modified_ms} or (
            self.modified_ms == other.modified_ms
        )

    def __str__(self) -> str:
        time = "" if self.modified_ms is None else f" of {self.modified_ms} ms"
        crc = "" if self.crc32 is None else f", CRC {self.crc32:08x}"
        return f"{self.size_bytes} bytes{time}{crc}"


# The fingerprints of all files of a directory.
FINGERPRINTS: Final[JsonFile[tuple[FileFingerprint, ...]]] = JsonFile(
    tuple[FileFingerprint, ...], layout=ONE_LINE
)


def fingerprint_files(store: LogStore) -> tuple[FileFingerprint, ...]:
    """Return fingerprints of a directory's files but scratch files, sorted by name."""
    return tuple(
        FileFingerprint(
            name=file.name,
            size_bytes=file.size_bytes,
            modified_ms=file.modified_ms,
            crc32=(
                checksum(store.read_file(file.name, limit_bytes=SMALL_FILE_BYTES))
                if file.size_bytes <= SMALL_FILE_BYTES
                else None
            ),
        )
        for file in store.list_files()
        if not is_scratch(file.name)
    )


def is_scratch(name: str) -> bool:
    """Tell by its name whether a file is a scratch file. Scratch files are of a job at work, or
    of a killed one."""
    return name.startswith(SCRATCH_PREFIX) or name.endswith(TEMPORARY_SUFFIX)


def checksum(content: bytes) -> int:
    """Return the CRC-32 of a small file."""
    return zlib.crc32(content)


@dataclass(frozen=True, slots=True)
class FileVersion:
    """One version of one file of a local disk."""

    size_bytes: Annotated[Count, Key("size")]
    modified_ns: Annotated[int, Key("time")]  # its modification time, epoch nanoseconds
    inode: Annotated[int, whole(most=2**64 - 1)]

    @classmethod
    def of(cls, facts: os.stat_result) -> "FileVersion":
        """Return the version that the operating system tells of."""
        return cls(facts.st_size, facts.st_mtime_ns, facts.st_ino)

    def __str__(self) -> str:
        return f"{self.size_bytes} bytes of {self.modified_ns} ns, inode {self.inode}"


Versions = Mapping[str, FileVersion]


def observe_versions(directory: Path) -> dict[str, FileVersion]:
    """Return the versions of a directory's files but scratch files, by name."""
    return versions_of(LocalStore(directory).scan())


def versions_of(found: FolderEntries) -> dict[str, FileVersion]:
    """Return the versions of listed files but scratch files, by name."""
    return {name: FileVersion(*row) for name, *row in _rows_of(found, (TEMPORARY_SUFFIX,))}


def _rows_of(found: FolderEntries, passing: tuple[str, ...]) -> list[tuple[str, int, int, int]]:
    """Return name, size, time and inode of listed files, but for scratch files and those whose
    names end in one of ``passing``."""
    # A run lists all files of all partitions: do not make an object, or a call, for each.
    rows = zip(found.names, found.sizes, found.modified_ns, found.inodes, strict=True)
    return [
        row
        for row, mode in zip(rows, found.modes, strict=True)
        if not (row[0].endswith(passing) or row[0].startswith(SCRATCH_PREFIX) or stat.S_ISDIR(mode))
    ]


def version_of(path: Path) -> FileVersion | None:
    """Return the version of a file, None where there is none."""
    with storage_errors(path):
        try:
            return FileVersion.of(path.lstat())
        except FileNotFoundError:
            return None


def digest_files(store: LogStore) -> str | None:
    """Return ``digest_versions`` of a partition; None where the store is no directory."""
    return digest_versions(store.scan()) if isinstance(store, UnsharedStore) else None


def digest_versions(found: FolderEntries) -> str:
    """Return a digest of the names and versions of listed files.

    Any change of the files would change it, but for scratch files, and those that only wait for
    their end: a purge removes them, and nobody reads them.
    """
    listed = _rows_of(found, _PASSING_SUFFIXES)
    return hashlib.blake2b(json.dumps(listed).encode(), digest_size=_DIGEST_BYTES).hexdigest()


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteFile:
    """Create or replace a small file, with a time if given. ``modified_ms`` is the modification
    time, epoch milliseconds."""

    name: FileName
    content: bytes
    reason: SystemText
    modified_ms: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class CreateEmptyFile:
    """Create an empty file unless there is one."""

    name: FileName
    reason: SystemText


@dataclass(frozen=True, slots=True, kw_only=True)
class PromoteFile:
    """Move a finished, synced scratch file into the partition directory."""

    scratch_path: SystemText
    name: FileName
    size_bytes: int
    reason: SystemText


@dataclass(frozen=True, slots=True, kw_only=True)
class CopyRange:
    """Copy a byte range of a file to a new, synced file. The copy is in the same directory;
    ``modified_ms`` is its modification time."""

    source: FileName
    start: int
    size_bytes: int
    target: FileName
    modified_ms: int  # its modification time, epoch milliseconds
    reason: SystemText


@dataclass(frozen=True, slots=True, kw_only=True)
class RenameFile:
    """Rename a file, replacing the target."""

    source: FileName
    target: FileName
    reason: SystemText


@dataclass(frozen=True, slots=True, kw_only=True)
class DeleteFile:
    """Delete a file."""

    name: FileName
    reason: SystemText


@dataclass(frozen=True, slots=True, kw_only=True)
class DeleteFiles:
    """Delete files for one reason, in this order: a commit of hundreds of deletions has few steps.
    It is described as so many of `DeleteFile`."""

    names: tuple[FileName, ...]
    reason: SystemText


@dataclass(frozen=True, slots=True, kw_only=True)
class TruncateFile:
    """Cut a file to a length."""

    name: FileName
    size_bytes: int
    reason: SystemText


@dataclass(frozen=True, slots=True, kw_only=True)
class SyncFile:
    """Make a file's content durable. Its writer may have been killed before the sync."""

    name: FileName
    reason: SystemText


@dataclass(frozen=True, slots=True, kw_only=True)
class SyncDirectory:
    """Make all that happened to the directory's entries so far durable."""

    reason: SystemText


@dataclass(frozen=True, slots=True, kw_only=True)
class KeepFile:
    """Keep a file's present version outside of the directory, too."""

    name: FileName
    path: SystemText  # its path outside; missing folders are made
    size_bytes: int  # how long it is; -1 where that is not known before the commit
    is_copy: bool  # whether its bytes are copied; otherwise it gets a second name on its filesystem
    reason: SystemText


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteRecord:
    """Create or replace a small file outside the directory, durably. The file's folder becomes
    durable, too."""

    path: SystemText
    content: bytes
    reason: SystemText


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordLeft:
    """Write down outside of the directory what its files look like now."""

    path: SystemText
    reason: SystemText


@dataclass(frozen=True, slots=True, kw_only=True)
class RestoreFile:
    """Put a kept file into the directory, replacing its namesake. The kept file stays in the
    trash."""

    path: SystemText
    name: FileName
    size_bytes: int
    is_copy: bool
    reason: SystemText


@dataclass(frozen=True, slots=True, kw_only=True)
class CreateDirectory:
    """Create the directory unless it is there."""

    reason: SystemText


@dataclass(frozen=True, slots=True, kw_only=True)
class RetireDirectory:
    """Take the directory away with all its files, at one moment."""

    reason: SystemText


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoveDirectory:
    """Remove the directory, which is empty by now."""

    reason: SystemText


Operation = (
    WriteFile
    | CreateEmptyFile
    | PromoteFile
    | CopyRange
    | RenameFile
    | DeleteFile
    | DeleteFiles
    | TruncateFile
    | SyncFile
    | SyncDirectory
    | KeepFile
    | WriteRecord
    | RecordLeft
    | RestoreFile
    | CreateDirectory
    | RetireDirectory
    | RemoveDirectory
)

_Version = TypeVar("_Version")


# The fields of an operation that name files that it may change, and others that it works with. By
# its type: patterns are tried one after the other, for each step of a commit.
_CHANGED: Final[Mapping[type, tuple[str, ...]]] = {
    RenameFile: ("source", "target"),
    CopyRange: ("target",),
    **dict.fromkeys((WriteFile, CreateEmptyFile, PromoteFile, DeleteFile, TruncateFile), ("name",)),
}
_READ: Final[Mapping[type, tuple[str, ...]]] = {
    CopyRange: ("source",),
    KeepFile: ("name",),
    SyncFile: ("name",),
}
_MET: Final[Mapping[type, tuple[str, ...]]] = {
    kind: (*_CHANGED.get(kind, ()), *_READ.get(kind, ())) for kind in {*_CHANGED, *_READ}
}


def _names_of(fields: tuple[str, ...]) -> Callable[[Operation], tuple[str, ...]]:
    values: Callable[[Operation], Any] = attrgetter(*fields)
    return values if fields[1:] else lambda step: (values(step),)


def _no_names(_step: Operation) -> tuple[str, ...]:
    return ()


_DELETED_NAMES: Final = {DeleteFiles: attrgetter("names")}
_CHANGED_NAMES: Final = {kind: _names_of(of) for kind, of in _CHANGED.items()} | _DELETED_NAMES
_MET_NAMES: Final = {kind: _names_of(of) for kind, of in _MET.items()} | _DELETED_NAMES


def changed_names(step: Operation) -> tuple[str, ...]:
    """Return the names of files possibly changed by a step."""
    return _CHANGED_NAMES.get(type(step), _no_names)(step)


def met_names(step: Operation) -> tuple[str, ...]:
    """Return the names of all files that a step works with in the directory."""
    return _MET_NAMES.get(type(step), _no_names)(step)


def independent_groups(steps: Iterable[Operation]) -> Iterator[tuple[Operation, ...]]:
    """Cut steps into the longest groups with no two on one file.

    Of such a group it can be told by the files, step by step, what was done and what was not; and
    whoever does the steps again, leaving out those that were done, comes to the same end.
    """
    group: list[Operation] = []
    met: set[str] = set()
    for step in steps:
        names = met_names(step)
        if not met.isdisjoint(names):
            yield tuple(group)
            group, met = [], set()
        group.append(step)
        met.update(names)
    if group:
        yield tuple(group)


def follow_step(
    step: Operation,
    files: MutableMapping[str, _Version],
    new_version: Callable[[Operation], _Version],
) -> None:
    """Update a directory's file versions, by name, to those after a step.

    Args:
        new_version: Returns what stands for the version that the step itself makes.
    """
    match step:
        case DeleteFile() | DeleteFiles():
            for name in changed_names(step):
                files.pop(name, None)
        case RenameFile(source=source, target=target):
            if source in files:
                files[target] = files.pop(source)
        case CreateEmptyFile(name=name):
            if name not in files:
                files[name] = new_version(step)
        case _:
            for name in changed_names(step):
                files[name] = new_version(step)


@dataclass(frozen=True, slots=True, kw_only=True)
class CommitPlan:
    """What is to be done to one partition directory, in this order."""

    location: str
    # The steps; a crash after any of them leaves a state that a log loader brings to the old or the
    # new content.
    operations: tuple[Operation, ...]

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to do."""
        return not self.operations

    @property
    def peak_extra_bytes(self) -> int:
        """Upper bound of the disk space needed on top of today's."""
        return sum(
            len(operation.content) if isinstance(operation, WriteFile) else operation.size_bytes
            for operation in self.operations
            if isinstance(operation, PromoteFile | CopyRange | WriteFile)
            or (isinstance(operation, RestoreFile) and operation.is_copy)
        )

    def describe(self) -> Iterator[dict[str, str | int]]:
        """Yield one flat dictionary a step, or a deleted file: its kind and its fields. Contents
        are given by their size."""
        for operation in self.operations:
            if isinstance(operation, DeleteFiles):
                kind, why = DeleteFile.__name__, operation.reason
                for name in operation.names:
                    yield {"operation": kind, "name": name, "reason": why}
                continue
            row: dict[str, str | int] = {"operation": type(operation).__name__}
            for field in operation.__slots__:
                value = getattr(operation, field)
                if isinstance(value, bytes):
                    row["size_bytes"] = len(value)
                elif value is not None:
                    row[field] = value
            yield row
