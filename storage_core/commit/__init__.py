"""Change a partition's files exactly once, and undo or purge the change.

The package has plans, claims and the trash.
"""

from storage_core.commit.executor import commit
from storage_core.commit.plan import (
    CommitPlan,
    CopyRange,
    CreateDirectory,
    CreateEmptyFile,
    DeleteFile,
    KeepFile,
    Operation,
    PromoteFile,
    RecordLeft,
    RemoveDirectory,
    RenameFile,
    RestoreFile,
    RetireDirectory,
    SyncDirectory,
    SyncFile,
    TruncateFile,
    WriteFile,
    WriteRecord,
)

__all__ = [
    "CommitPlan",
    "CopyRange",
    "CreateDirectory",
    "CreateEmptyFile",
    "DeleteFile",
    "KeepFile",
    "Operation",
    "PromoteFile",
    "RecordLeft",
    "RemoveDirectory",
    "RenameFile",
    "RestoreFile",
    "RetireDirectory",
    "SyncDirectory",
    "SyncFile",
    "TruncateFile",
    "WriteFile",
    "WriteRecord",
    "commit",
]
