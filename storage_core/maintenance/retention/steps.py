"""Retention's changes of files, in an order safe to interrupt anywhere.

The log start has risen before, in the checkpoint of the log directory. Then come the epochs, the
new segment if all old ones go, and, oldest first, the segments: each file gets the suffix
``.deleted``, the records before their indexes, and is unlinked when all of them have it. A loader
that finds a part of this done drops the ``.deleted`` files and indexes without records, and what is
left lies below the log start: the next sweep takes it. The next run of ours does both.
"""

from collections.abc import Collection

from storage_core.checkpoint.checkpoint_files import (
    MAX_LEADER_EPOCH_BYTES,
    encode_leader_epochs,
    parse_leader_epochs,
)
from storage_core.commit import (
    CreateEmptyFile,
    DeleteFile,
    Operation,
    RenameFile,
    SyncDirectory,
    WriteFile,
)
from storage_core.errors import CheckpointError, RollError
from storage_core.filenames import (
    CHECKPOINT_DELETED_SUFFIX,
    DELETED_SUFFIX,
    INDEX_SUFFIXES,
    LEADER_EPOCH_FILE,
    LOG_SUFFIX,
    OFFSET_INDEX_SUFFIX,
    SEGMENT_SUFFIXES,
    TIME_INDEX_SUFFIX,
    kind_of,
    log_file,
    offset_of,
    segment_file,
    snapshot_file,
)
from storage_core.log.leader_epoch_cache import LeaderEpochCache
from storage_core.maintenance.partition_state import PartitionState
from storage_core.maintenance.retention.plan import Predicate, RetentionPlan
from storage_core.store.base import LogStore

# The records last: a segment that has them has its indexes.
_NEW_SEGMENT_SUFFIXES = (TIME_INDEX_SUFFIX, OFFSET_INDEX_SUFFIX, LOG_SUFFIX)

_REASONS = {
    Predicate.LOG_START: "retention: below the log start offset",
    Predicate.SIZE: "retention: the log is larger than retention.bytes",
    Predicate.TIME: "retention: older than retention.ms",
}


def plan_steps(
    state: PartitionState, plan: RetentionPlan, *, unlink: bool = True
) -> tuple[Operation, ...]:
    """Return what happens to segments and snapshots; the epochs come before it.

    Args:
        unlink: Whether files are unlinked at the end, also those that an earlier deletion left with
            the suffix ``.deleted``. If not, they are left to the broker's next start.
    """
    leftovers = [
        DeleteFile(name=name, reason="leftover of a deletion that was decided before")
        for name in sorted(state.names)
        if _is_leftover(name, state.names) and (unlink or not name.endswith(DELETED_SUFFIX))
    ]
    roll = _roll(state, plan)
    gone: list[tuple[str, str]] = []
    for removal in plan.removals:
        # The snapshot first: nothing would tell a second run that it belonged to a segment.
        base = removal.segment.base_offset
        names = [snapshot_file(base), *(segment_file(base, suffix) for suffix in SEGMENT_SUFFIXES)]
        gone += [(name, _REASONS[removal.predicate]) for name in names if name in state.names]
    renames: list[Operation] = [
        RenameFile(source=name, target=name + DELETED_SUFFIX, reason=why) for name, why in gone
    ]
    deletes: list[Operation] = []
    if gone:
        renames.append(SyncDirectory(reason="from here on the segments are gone"))
    if unlink:
        deletes = [DeleteFile(name=name + DELETED_SUFFIX, reason=why) for name, why in gone]
    return (*leftovers, *roll, *renames, *deletes)


def plan_epochs(store: LogStore, log_start_offset: int) -> tuple[Operation, ...]:
    """Return the leader epoch file's change for a raised log start.

    Args:
        store: The partition; it has such a file.
    """
    data = store.read_file(LEADER_EPOCH_FILE, limit_bytes=MAX_LEADER_EPOCH_BYTES)
    try:
        cache = LeaderEpochCache(parse_leader_epochs(data, file=LEADER_EPOCH_FILE))
    except ValueError as error:
        raise CheckpointError(LEADER_EPOCH_FILE, 0, f"expected no negative numbers: {error}") from (
            error
        )
    is_changed = cache.truncate_from_start(log_start_offset)
    content = encode_leader_epochs(cache.entries)
    if not is_changed or content == data:
        return ()
    return (WriteFile(name=LEADER_EPOCH_FILE, content=content, reason="the log start has risen"),)


def _is_leftover(name: str, names: Collection[str]) -> bool:
    """Whether a file is left over from an interrupted deletion. A log loader removes such a file
    too."""
    if name.endswith(DELETED_SUFFIX):
        return not name.endswith(CHECKPOINT_DELETED_SUFFIX)
    base = offset_of(name)
    return kind_of(name) in INDEX_SUFFIXES and base is not None and log_file(base) not in names


def _roll(state: PartitionState, plan: RetentionPlan) -> tuple[Operation, ...]:
    """Return what makes a new active segment, if every segment goes."""
    base = plan.roll_offset
    if base is None:
        return ()
    if base in plan.removed_base_offsets:
        raise RollError(state.location, base, "a segment with bytes, but no records, begins there")
    reason = "every segment goes: the log goes on in an empty one"
    files = [segment_file(base, suffix) for suffix in _NEW_SEGMENT_SUFFIXES]
    return (
        *(CreateEmptyFile(name=name, reason=reason) for name in files),
        SyncDirectory(reason=reason),
    )
