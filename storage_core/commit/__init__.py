"""Change a partition's files exactly once, and undo or purge the change.

The package has plans, claims and the trash.
"""

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
