"""From cleaned groups to operations: the swap of each group, in Kafka's order.

A group is swapped whole before the next one begins. ``.cleaned`` files appear first; a crash then
leaves the old segments. Once every file of the group is ``.swap`` the new segment counts: a loader
deletes what it replaces and drops the suffix. The old segments go oldest first, so that a
tombstone never goes before the values that it covers; and they are durably gone before the new one
loses its suffix, for a filesystem may keep names that were not synced in any order.
"""

from collections.abc import Sequence

from storage_core.commit import (
    DeleteFile,
    Operation,
    Plan,
    PromoteFile,
    RenameFile,
    SyncDirectory,
)
from storage_core.errors import ChangedWhileReadError
from storage_core.filenames import (
    CLEANED_SUFFIX,
    DELETED_SUFFIX,
    SEGMENT_SUFFIXES,
    SWAP_SUFFIX,
    TXN_INDEX_SUFFIX,
    segment_file,
    snapshot_file,
)
from storage_core.log.loaded_log import LoadedLog
from storage_core.maintenance.compaction.plan import CompactionPlan
from storage_core.maintenance.compaction.rewrite import CleanedGroup
from storage_core.store.base import LogStore


def verify_inputs(store: LogStore, plan: CompactionPlan) -> None:
    """Check that the segments are still what the plan was made from.

    Raises:
        ChangedWhileReadError: A segment is gone, or has another size or modification time.
    """
    files = {file.name: file for file in store.list_files()}
    for segment in plan.segments:
        expected = f"{segment.size_bytes} bytes of {segment.modified_ms} ms"
        file = files.get(segment.log_file)
        found = f"{file.size_bytes} bytes of {file.modified_ms} ms" if file else "no such file"
        if found != expected:
            raise ChangedWhileReadError(segment.log_file, expected, found)


def plan_commit(log: LoadedLog, plan: CompactionPlan, groups: Sequence[CleanedGroup]) -> Plan:
    """Plan the operations that put cleaned segments into place.

    Args:
        log: The partition as it was loaded; its own operations come first.
        plan: The round.
        groups: What pass two made of each group, oldest first.
    """
    has_txn_index = {s.base_offset for s in plan.segments if s.has_txn_index}
    operations = list(log.operations)
    if operations and not isinstance(operations[-1], SyncDirectory):
        operations.append(SyncDirectory(reason="the log as it was loaded"))
    for group in groups:
        operations += _swap(group, has_txn_index, log.snapshot_offsets)
    return Plan(location=plan.location, operations=tuple(operations))


def _swap(
    group: CleanedGroup, has_txn_index: set[int], snapshot_offsets: frozenset[int]
) -> list[Operation]:
    base = group.base_offsets[0]
    new = f"cleaned from {len(group.base_offsets)} segments"
    operations: list[Operation] = []
    names = [segment_file(base, file.suffix) for file in group.files]
    for file, name in zip(group.files, names, strict=True):
        operations.append(
            PromoteFile(
                scratch_path=file.path,
                name=name + CLEANED_SUFFIX,
                size_bytes=file.size_bytes,
                reason=new,
            )
        )
    operations.append(SyncDirectory(reason="the cleaned segment is complete"))
    operations += [
        RenameFile(
            source=name + CLEANED_SUFFIX, target=name + SWAP_SUFFIX, reason="from here on it counts"
        )
        for name in names
    ]
    operations.append(SyncDirectory(reason="from here on it counts"))
    old = [
        segment_file(source, suffix)
        for source in group.base_offsets
        for suffix in SEGMENT_SUFFIXES
        if suffix != TXN_INDEX_SUFFIX or source in has_txn_index
    ]
    replaced = f"replaced by the cleaned segment {base}"
    operations += [
        RenameFile(source=name, target=name + DELETED_SUFFIX, reason=replaced) for name in old
    ]
    # A value whose tombstone is gone must not come back beside a segment that replaced both.
    operations.append(SyncDirectory(reason=replaced))
    operations += [RenameFile(source=name + SWAP_SUFFIX, target=name, reason=new) for name in names]
    operations.append(SyncDirectory(reason="the swap is complete"))
    operations += [DeleteFile(name=name + DELETED_SUFFIX, reason=replaced) for name in old]
    operations += [
        DeleteFile(name=snapshot_file(source), reason=f"no segment begins at {source} any more")
        for source in group.base_offsets[1:]
        if source in snapshot_offsets
    ]
    return operations
