"""The plan of changes to one partition's files, as data.

Each operation carries the reason for it: a dry run prints it, the ledger keeps it. A commit that a
crash cut short is completed or undone by loading the log, unless a claim of it was kept.
"""

from collections.abc import Callable, Iterable, Iterator, MutableMapping
from dataclasses import dataclass
from typing import TypeVar

from storage_core.json_values import FileName, SystemText


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteFile:
    """Create or replace a small file, with a time if given.

    ``modified_ms`` is the modification time, epoch milliseconds.
    """

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


def changed_names(step: Operation) -> tuple[str, ...]:
    """Return the names of files possibly changed by a step."""
    match step:
        case RenameFile(source=source, target=target):
            return (source, target)
        case CopyRange(target=name):
            return (name,)
        case (
            WriteFile(name=name)
            | CreateEmptyFile(name=name)
            | PromoteFile(name=name)
            | DeleteFile(name=name)
            | TruncateFile(name=name)
        ):
            return (name,)
        case _:
            return ()


def independent_groups(steps: Iterable[Operation]) -> Iterator[tuple[Operation, ...]]:
    """Cut steps into the longest groups with no two on one file.

    Of such a group it can be told by the files, step by step, what was done and what was not; and
    whoever does the steps again, leaving out those that were done, comes to the same end.
    """
    group: list[Operation] = []
    met: set[str] = set()
    for step in steps:
        names = _met_names(step)
        if not met.isdisjoint(names):
            yield tuple(group)
            group, met = [], set()
        group.append(step)
        met |= names
    if group:
        yield tuple(group)


def _met_names(step: Operation) -> set[str]:
    """Return the names of files that a step changes or works with."""
    names = set(changed_names(step))
    match step:
        case CopyRange(source=name) | KeepFile(name=name) | SyncFile(name=name):
            names.add(name)
        case _:
            pass
    return names


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
        case RenameFile(source=source, target=target):
            if source in files:
                files[target] = files.pop(source)
        case DeleteFile(name=name):
            files.pop(name, None)
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
        """Yield one flat dictionary a step: its kind and its fields. Contents are given by their
        size."""
        for operation in self.operations:
            row: dict[str, str | int] = {"operation": type(operation).__name__}
            for field in operation.__slots__:
                value = getattr(operation, field)
                if isinstance(value, bytes):
                    row["size_bytes"] = len(value)
                elif value is not None:
                    row[field] = value
            yield row
