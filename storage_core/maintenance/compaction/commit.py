"""Plan a round's file operations: swap each cleaned group, or split.

The ``.cleaned`` files of all groups appear first; a crash then leaves the old segments. Once every
file of a group is ``.swap`` the new segment counts: a loader deletes what it replaces and drops the
suffix. So the old segments are deleted as soon as that is durable, oldest first, so that a
tombstone never goes before the values that it covers; and they are durably gone before the new one
loses its suffix, for a filesystem may keep names that were not synced in any order. Kafka renames
them to ``.deleted`` first, for consumers that may still read them: a stopped broker has none.

The groups follow each other; one sync makes durable that one has lost its suffix and that the next
one counts. Until then a filesystem may have both as ``.swap``, and a loader deletes all segments
between the first and the last of these. Of two groups that lie side by side there is nothing
between; where a group that stays as it is lies there, they are synced apart.

A round that meets a segment whose offsets do not fit it is given up: the segment is split, as Kafka
does, and the partition is cleaned by another round, over the new segments.
"""

from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from itertools import zip_longest
from typing import Final

from storage_core.commit import (
    CommitPlan,
    DeleteFile,
    DeleteFiles,
    Operation,
    PromoteFile,
    RenameFile,
    SyncDirectory,
    WriteFile,
)
from storage_core.commit.plan import digest_versions
from storage_core.errors import ChangedWhileReadError, CorruptRecordError
from storage_core.filenames import (
    CLEANED_SUFFIX,
    SCRATCH_PREFIX,
    SEGMENT_SUFFIXES,
    SNAPSHOT_SUFFIX,
    SWAP_SUFFIX,
    TXN_INDEX_SUFFIX,
    offset_of,
    segment_file,
    snapshot_file,
)
from storage_core.json_values import from_json, to_json
from storage_core.log.directory_view import DirectoryView
from storage_core.log.loaded_log import LoadChanges, LoadedLog
from storage_core.log.segment_recovery import SegmentSplit, find_parts, plan_parts
from storage_core.log.settled_store import settle_leftovers
from storage_core.maintenance.compaction.plan import CompactionPlan
from storage_core.maintenance.compaction.rewrite import CleanedGroup
from storage_core.store.base import LogStore, UnsharedStore

_COUNTS: Final = "from here on it counts"
# Snapshots of many producers are not carried along with a plan.
_MOST_CARRIED_BYTES: Final = 4096


def verify_inputs(store: LogStore, plan: CompactionPlan) -> None:
    """Check that the segments are still what the plan was made from."""
    files = {file.name: file for file in store.list_files()}
    for segment in plan.segments:
        expected = f"{segment.size_bytes} bytes of {segment.modified_ms} ms"
        file = files.get(segment.log_file)
        actual = f"{file.size_bytes} bytes of {file.modified_ms} ms" if file else "no such file"
        if actual != expected:
            raise ChangedWhileReadError(segment.log_file, expected, actual)


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadWrites:
    """What loading a partition changes, where it only writes small files."""

    writes: tuple[WriteFile, ...]

    @classmethod
    def encode(cls, log: LoadedLog) -> str | None:
        """Return the changes as JSON; None where there are others, or they are not small."""
        writes = tuple(step for step in log.operations if isinstance(step, WriteFile))
        size_bytes = sum(len(step.content) for step in writes)
        is_all = len(writes) == len(log.operations) and size_bytes <= _MOST_CARRIED_BYTES
        return to_json(cls(writes=writes)) if is_all else None


def changes_since_plan(
    store: LogStore, loaded_files: str | None, load_writes: str | None
) -> LoadChanges | None:
    """Return what loading the partition changes: the same as when the round was planned. None where
    its files are no longer the same.

    Args:
        loaded_files: What ``digest_files`` said when the round was planned; None if nobody asked.
        load_writes: What ``LoadWrites.encode`` said then.
    """
    if None in {loaded_files, load_writes} or not isinstance(store, UnsharedStore):
        return None
    found = store.scan()
    if digest_versions(found) != loaded_files:
        return None
    writes = from_json(LoadWrites, load_writes or "").writes
    names = [*found.names, *(step.name for step in writes)]
    offsets = (offset_of(name) for name in names if name.endswith(SNAPSHOT_SUFFIX))
    snapshot_offsets = frozenset(offset for offset in offsets if offset is not None)
    return LoadChanges(operations=writes, snapshot_offsets=snapshot_offsets)


def plan_commit(
    log: LoadedLog | LoadChanges, plan: CompactionPlan, groups: Sequence[CleanedGroup]
) -> CommitPlan:
    """Plan the operations that put cleaned segments into place.

    Args:
        log: What loading the partition changes; these operations come first.
        groups: What pass two made of each group, oldest first.
    """
    has_txn_index = {s.base_offset for s in plan.segments if s.has_txn_index}
    operations = list(log.operations)
    # A file that is written takes its name, and all names before it, to the disk.
    if operations and not isinstance(operations[-1], SyncDirectory | WriteFile):
        operations.append(SyncDirectory(reason="the log as it was loaded"))
    changed = [group for group in groups if group.files]  # the others stay as they are
    for group in changed:
        operations += _appear(group)
    if changed:
        operations.append(SyncDirectory(reason="the cleaned segments are complete"))
    has_begun = False
    for group, after in zip_longest(groups, groups[1:]):
        if not group.files:
            continue
        if not has_begun:
            operations += [*_begin(group), SyncDirectory(reason=_COUNTS)]
        operations += [*_retire(group, has_txn_index), *_end(group)]
        has_begun = after is not None and bool(after.files)
        if has_begun:
            operations += _begin(after)
        operations.append(SyncDirectory(reason="the swap is complete"))
        operations += _remove_snapshots(group, log.snapshot_offsets)
    return CommitPlan(location=plan.location, operations=tuple(operations))


def _names(group: CleanedGroup) -> list[str]:
    """Return the final names of a cleaned segment's files."""
    return [segment_file(group.base_offsets[0], file.suffix) for file in group.files]


def _old_files(group: CleanedGroup, has_txn_index: set[int]) -> tuple[str, ...]:
    """Return the files that a cleaned segment replaces, oldest first."""
    return tuple(
        segment_file(source, suffix)
        for source in group.base_offsets
        for suffix in SEGMENT_SUFFIXES
        if suffix != TXN_INDEX_SUFFIX or source in has_txn_index
    )


def _new(group: CleanedGroup) -> str:
    return f"cleaned from {len(group.base_offsets)} segments"


def _appear(group: CleanedGroup) -> list[Operation]:
    """Bring the files of a cleaned segment into the directory."""
    return [
        PromoteFile(
            scratch_path=file.path,
            name=name + CLEANED_SUFFIX,
            size_bytes=file.size_bytes,
            reason=_new(group),
        )
        for file, name in zip(group.files, _names(group), strict=True)
    ]


def _begin(group: CleanedGroup) -> list[Operation]:
    """Rename a cleaned segment's files to ``.swap``; then it counts. It counts once all of them
    have the new name."""
    return [
        RenameFile(source=name + CLEANED_SUFFIX, target=name + SWAP_SUFFIX, reason=_COUNTS)
        for name in _names(group)
    ]


def _retire(group: CleanedGroup, has_txn_index: set[int]) -> list[Operation]:
    """Delete the segments that are replaced, durably."""
    old = _old_files(group, has_txn_index)
    reason = f"replaced by the cleaned segment {group.base_offsets[0]}"
    return [
        DeleteFiles(names=old, reason=reason),
        # A value whose tombstone is gone must not come back beside a segment that replaced both.
        SyncDirectory(reason=reason),
    ]


def _end(group: CleanedGroup) -> list[Operation]:
    """Give the files of a cleaned segment their own names."""
    return [
        RenameFile(source=name + SWAP_SUFFIX, target=name, reason=_new(group))
        for name in _names(group)
    ]


def _remove_snapshots(group: CleanedGroup, snapshot_offsets: frozenset[int]) -> list[Operation]:
    """Delete snapshots at whose offsets no segment begins any more."""
    return [
        DeleteFile(name=snapshot_file(source), reason=f"no segment begins at {source} any more")
        for source in group.base_offsets[1:]
        if source in snapshot_offsets
    ]


def find_split(store: LogStore, plan: CompactionPlan, file: str) -> SegmentSplit:
    """Find the parts of a segment with fitting offsets; plan nothing. The segment is read once."""
    bases = [segment.base_offset for segment in plan.segments if segment.log_file == file]
    if not bases:
        raise CorruptRecordError(file, 0, "no segment of the round has this name")
    (base_offset,) = bases
    with closing(store.open_file(file)) as reader:
        split = find_parts(
            reader,
            base_offset,
            index_interval_bytes=plan.index_interval_bytes,
            max_index_bytes=plan.segment_index_bytes,
            limits=plan.limits,
        )
    later = (s.base_offset for s in plan.segments if s.base_offset > base_offset)
    end = min(later, default=None)
    lowest, highest = split.lowest_offset, split.highest_offset
    if lowest < base_offset or (end is not None and highest >= end):
        actual = f"found {lowest} to {highest}"
        raise CorruptRecordError(file, 0, f"expected offsets from {base_offset} to {end}, {actual}")
    return split


def plan_found_split(store: LogStore, split: SegmentSplit) -> CommitPlan:
    """Plan to replace a segment by its parts.

    What a crash inside of another swap left is settled first: a ``.swap`` may be the segment that
    was read, and next to a ``.cleaned`` file a loader would drop the parts of a stopped split.
    Scratch files stay: a run may still need its own.

    Args:
        split: The parts; the bytes of the segment are still those that were read.
    """
    view = DirectoryView(store)
    settle_leftovers(view)
    plan_parts(view, split)
    operations = [
        step
        for step in view.operations
        if not (isinstance(step, DeleteFile) and step.name.startswith(SCRATCH_PREFIX))
    ]
    snapshot = snapshot_file(split.base_offset)
    if split.base_offset not in split.base_offsets and snapshot in view:
        reason = f"no segment begins at {split.base_offset} any more"
        operations.append(DeleteFile(name=snapshot, reason=reason))
    return CommitPlan(location=store.location, operations=tuple(operations))


def plan_split(store: LogStore, plan: CompactionPlan, file: str) -> CommitPlan:
    """Plan to replace a segment by parts whose offsets fit."""
    return plan_found_split(store, find_split(store, plan, file))
