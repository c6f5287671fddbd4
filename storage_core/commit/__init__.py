"""What changes the files of a partition, once, and back: plans, claims, the trash, undo, purge."""

from storage_core.commit.executor import commit
from storage_core.commit.plan import (
    CopyRange,
    CreateEmptyFile,
    DeleteFile,
    KeepFile,
    Operation,
    Plan,
    PromoteFile,
    RecordLeft,
    RemoveDirectory,
    RenameFile,
    RestoreFile,
    SyncDirectory,
    SyncFile,
    TruncateFile,
    WriteFile,
    WriteRecord,
)

__all__ = [
    "CopyRange",
    "CreateEmptyFile",
    "DeleteFile",
    "KeepFile",
    "Operation",
    "Plan",
    "PromoteFile",
    "RecordLeft",
    "RemoveDirectory",
    "RenameFile",
    "RestoreFile",
    "SyncDirectory",
    "SyncFile",
    "TruncateFile",
    "WriteFile",
    "WriteRecord",
    "commit",
]
