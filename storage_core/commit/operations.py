"""The changes that may be made to the files of one partition, as data.

Each operation carries the reason for it: a dry run prints it, the ledger keeps it. A commit that a
crash cut short is not taken up again: loading the log completes or undoes what it left.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteFile:
    """Create or replace a small file; modified_ms, epoch milliseconds, is its time if given."""

    name: str
    content: bytes
    reason: str
    modified_ms: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class CreateEmptyFile:
    """Create an empty file unless there is one."""

    name: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PromoteFile:
    """Move a finished, synced scratch file into the partition directory."""

    scratch_path: str
    name: str
    size_bytes: int
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class CopyRange:
    """Copy a stretch of a file of the directory to a new, synced one with this modification time.

    Attributes:
        source: Name of the file that holds the bytes.
        start: Where in it they begin.
        size_bytes: How many there are.
        target: Name of the new file.
        modified_ms: Its modification time, epoch milliseconds.
        reason: Why.
    """

    source: str
    start: int
    size_bytes: int
    target: str
    modified_ms: int
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RenameFile:
    """Rename a file, replacing the target."""

    source: str
    target: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class DeleteFile:
    """Delete a file."""

    name: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TruncateFile:
    """Cut a file to a length."""

    name: str
    size_bytes: int
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SyncFile:
    """Make a file's content durable: whoever wrote it may not have lived to do that."""

    name: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SyncDirectory:
    """Make all that happened to the directory's entries so far durable."""

    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class KeepFile:
    """Keep a file as it is now outside of the directory, too; the directory does not change.

    Attributes:
        name: Of the file.
        path: What it is called outside; folders on the way are made.
        size_bytes: How long it is; -1 where that is not known before the commit.
        is_copy: Whether its bytes are copied; otherwise it gets a second name on its filesystem.
        reason: Why.
    """

    name: str
    path: str
    size_bytes: int
    is_copy: bool
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteRecord:
    """Create or replace a small file outside of the directory; it and its folder are durable."""

    path: str
    content: bytes
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordLeft:
    """Write down outside of the directory what its files look like now."""

    path: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RestoreFile:
    """Give a file that was kept a name in the directory, replacing what has it; it stays kept."""

    path: str
    name: str
    size_bytes: int
    is_copy: bool
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoveDirectory:
    """Remove the directory, which is empty by now."""

    reason: str


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
    | RemoveDirectory
)
