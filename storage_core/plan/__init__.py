"""What may happen to a partition's files, as data, and the one executor that commits it."""

from storage_core.plan.executor import commit
from storage_core.plan.operations import (
    CopyRange,
    CreateEmptyFile,
    DeleteFile,
    Operation,
    PromoteFile,
    RenameFile,
    SyncDirectory,
    SyncFile,
    TruncateFile,
    WriteFile,
)
from storage_core.plan.plan import Plan

__all__ = [
    "CopyRange",
    "CreateEmptyFile",
    "DeleteFile",
    "Operation",
    "Plan",
    "PromoteFile",
    "RenameFile",
    "SyncDirectory",
    "SyncFile",
    "TruncateFile",
    "WriteFile",
    "commit",
]
