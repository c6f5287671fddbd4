"""What a run changed in a log directory, partition by partition, as its trash tells."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from pylog_spark.schemas import Action
from pylog_spark.tasks.undo import PartitionUndo, RaisedStart
from storage_core.catalog.topic_filter import TopicFilter
from storage_core.commit.trash import TrashedRoot, list_commits, read_raised, read_subject
from storage_core.filenames import (
    CLEANER_FILE,
    LOG_START_FILE,
    RECOVERY_POINT_FILE,
    REPLICATION_FILE,
    TopicPartition,
    parse_partition_directory,
)
from storage_core.roots.open_root import root_checkpoints

# Which checkpoints an action moves.
_CHECKPOINTS: Final[Mapping[str, Sequence[str]]] = {
    Action.COMPACT.value: (CLEANER_FILE,),
    Action.RETAIN.value: (LOG_START_FILE, CLEANER_FILE, RECOVERY_POINT_FILE),
    Action.RECOVER.value: (RECOVERY_POINT_FILE, LOG_START_FILE, REPLICATION_FILE),
    Action.TRUNCATE.value: (
        *(RECOVERY_POINT_FILE, LOG_START_FILE, REPLICATION_FILE, CLEANER_FILE),
    ),
}


def moved_checkpoints(undo: PartitionUndo) -> set[str]:
    """Return the checkpoints in which the run moved the entries of a partition."""
    names = {name for action in undo.actions for name in _CHECKPOINTS.get(action, ())}
    return names | {LOG_START_FILE} if undo.has_raised_start else names


def find_undos(folder: Path, root: TrashedRoot, topics: TopicFilter) -> list[PartitionUndo]:
    """Return the partitions of a log directory of which the run kept something.

    And those whose log start it raised and did not come to the rest: nothing of them was kept yet.
    """
    starts = _raised_starts(folder, root)
    commits: dict[Path, list[tuple[Path, str]]] = {}
    # One that was killed while it still kept files is not listed, and has changed nothing.
    for commit in sorted(list_commits(folder)):
        directory, action = read_subject(commit)
        commits.setdefault(directory, []).append((commit, action))
    begun = [
        PartitionUndo(
            root=root.location,
            directory=directory,
            partition=partition,
            commits=tuple(commit for commit, _ in oldest_first),
            actions=frozenset(action for _, action in oldest_first),
            start=starts.pop(partition, None),
        )
        for directory, oldest_first in commits.items()
        if str(directory.parent) == root.location
        for partition in (parse_partition_directory(directory.name),)
    ]
    others = [
        PartitionUndo(
            root=root.location,
            directory=Path(root.location, str(partition)),
            partition=partition,
            commits=(),
            start=start,
        )
        for partition, start in starts.items()
    ]
    chosen = [undo for undo in (*begun, *others) if topics.admits(undo.partition.topic)]
    return sorted(chosen, key=lambda undo: undo.partition)


def _raised_starts(folder: Path, root: TrashedRoot) -> dict[TopicPartition, RaisedStart]:
    """Return what the run, if it was killed, may have left of log starts that it raised."""
    raised = read_raised(folder, root.location)
    if not raised:
        return {}
    before = root.checkpoints.get(LOG_START_FILE, {})
    read = root_checkpoints(root.location, [LOG_START_FILE], strict=False)
    now = read.entries.get(LOG_START_FILE, {})
    return {
        partition: RaisedStart(raised=start, before=before.get(name), now=now.get(partition))
        for name, start in raised.items()
        for partition in (parse_partition_directory(name),)
    }
