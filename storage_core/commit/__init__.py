"""What may happen to a partition's files, as data, and the one executor that commits it."""

from storage_core.commit.executor import commit
from storage_core.commit.operations import (
    CopyRange,
    CreateEmptyFile,
    DeleteFile,
    KeepFile,
    Operation,
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
from storage_core.commit.plan import Plan

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
