"""The one place that changes the files of a partition."""

from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from storage_core.commit.plan import (
    FINGERPRINTS,
    CommitPlan,
    CopyRange,
    CreateDirectory,
    CreateEmptyFile,
    DeleteFile,
    DeleteFiles,
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
    fingerprint_files,
)
from storage_core.errors import StorageError
from storage_core.store.base import DeletingStore, DirectoryStore, LogStore
from storage_core.store.local import is_without_room

# Epochs of a log without any, as Kafka writes them.
_NO_ENTRIES: Final = b"0\n0\n"


def commit(plan: CommitPlan, store: LogStore) -> None:
    """Apply a plan to a store, operation by operation, in order."""
    for _ in apply_steps(plan.operations, store):
        pass


def apply_steps(operations: Iterable[Operation], store: LogStore) -> Iterator[Operation]:
    """Apply operations to a store, in order; yield each one after."""
    # Asked once, and only where it is needed: a check of the protocol looks up every method.
    outside: DirectoryStore | None = None
    for operation in operations:
        match operation:
            case DeleteFiles():
                _delete(operation.names, store)
            case DeleteFile():
                store.delete(operation.name)
            case WriteFile():
                _write(operation, store)
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
            case TruncateFile():
                store.truncate(operation.name, operation.size_bytes)
            case SyncFile():
                store.sync_file(operation.name)
            case SyncDirectory():
                store.sync_directory()
            case _:
                outside = outside or _outside_of(store, operation)
                _apply_outside(operation, outside)
        yield operation


def _delete(names: Sequence[str], store: LogStore) -> None:
    if isinstance(store, DeletingStore):
        store.delete_files(names)
        return
    for name in names:
        store.delete(name)


def _write(operation: WriteFile, store: LogStore) -> None:
    try:
        store.write_file(operation.name, operation.content, modified_ms=operation.modified_ms)
    except StorageError as error:
        if operation.content != _NO_ENTRIES or not is_without_room(error):
            raise
        # A checkpoint without a byte has no entries either, and needs no room.
        store.delete(operation.name)
        store.create_empty(operation.name)


def _outside_of(store: LogStore, operation: Operation) -> DirectoryStore:
    """Return a store on a local disk, for an operation on files outside of the directory."""
    if isinstance(store, DirectoryStore):
        return store
    raise StorageError(
        store.location, f"{type(operation).__name__}: this store has nothing outside of it"
    )


def _apply_outside(
    operation: KeepFile
    | WriteRecord
    | RecordLeft
    | RestoreFile
    | CreateDirectory
    | RetireDirectory
    | RemoveDirectory,
    store: DirectoryStore,
) -> None:
    """Apply an operation on files outside of the directory."""
    match operation:
        case KeepFile():
            store.keep(operation.name, operation.path, is_copy=operation.is_copy)
        case RestoreFile():
            store.restore(operation.path, operation.name, is_copy=operation.is_copy)
        case WriteRecord():
            store.write_record(operation.path, operation.content)
        case RecordLeft():
            store.write_record(operation.path, FINGERPRINTS.encode(fingerprint_files(store)))
        case CreateDirectory():
            store.create_directory()
        case RetireDirectory():
            store.retire_directory()
        case RemoveDirectory():
            store.remove_directory()
