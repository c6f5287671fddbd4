"""What may happen to a partition's files, as data, and the one executor that commits it."""

from storage_core.plan.executor import commit
from storage_core.plan.operations import (
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
from storage_core.plan.plan import Plan

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
