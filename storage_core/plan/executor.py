"""The one place that changes the files of a partition."""

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
from storage_core.store.base import LogStore


def commit(plan: Plan, store: LogStore) -> None:
    """Apply a plan to a store, operation by operation, in order.

    Raises:
        StorageError: The store failed; what was done until then stays, and is a state that a
            log loader completes or undoes.
    """
    for operation in plan.operations:
        _apply(operation, store)


def _apply(operation: Operation, store: LogStore) -> None:
    match operation:
        case WriteFile():
            store.write_file(operation.name, operation.content, modified_ms=operation.modified_ms)
        case CreateEmptyFile():
            store.create_empty(operation.name)
        case PromoteFile():
            store.promote(operation.scratch_path, operation.name)
        case CopyRange():
            store.copy_range(
                operation.source,
                operation.start,
                operation.size_bytes,
                operation.target,
                modified_ms=operation.modified_ms,
            )
        case RenameFile():
            store.rename(operation.source, operation.target)
        case DeleteFile():
            store.delete(operation.name)
        case TruncateFile():
            store.truncate(operation.name, operation.size_bytes)
        case SyncFile():
            store.sync_file(operation.name)
        case SyncDirectory():
            store.sync_directory()
