"""What a run changed in a log directory, partition by partition, as its trash tells."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from pylog_spark.schemas import Action
from pylog_spark.tasks.listing import TopicFilter
from storage_core.commit.trash import TrashedRoot, list_commits, read_commit, read_raised
from storage_core.commit.undo import is_undone
from storage_core.errors import ChangedWhileReadError, PartitionNotFoundError
from storage_core.filenames import (
    CLEANER_FILE,
    LOG_START_FILE,
    RECOVERY_POINT_FILE,
    REPLICATION_FILE,
    TopicPartition,
    parse_partition_directory,
)
from storage_core.roots.open_root import root_checkpoints
from storage_core.store import LocalStore

# Which checkpoints an action moves.
_CHECKPOINTS: Final[Mapping[str, Sequence[str]]] = {
    Action.COMPACT.value: (CLEANER_FILE,),
    Action.RETAIN.value: (LOG_START_FILE, CLEANER_FILE, RECOVERY_POINT_FILE),
    Action.RECOVER.value: (RECOVERY_POINT_FILE, LOG_START_FILE, REPLICATION_FILE),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class _RaisedStart:
    """What a run that was killed may have left of a log start, raised before its commit began.

    Attributes:
        raised: To what the run raised it.
        before: What it was, None without an entry in the checkpoint.
        now: What it is, None without an entry.
    """

    raised: int
    before: int | None
    now: int | None

    @property
    def is_left(self) -> bool:
        """Whether records below it are hidden that the run has not removed."""
        return self.now == self.raised != self.before

    def verify(self) -> None:
        """Check that it is what the run left, or what it was before.

        Raises:
            ChangedWhileReadError: Somebody else has moved it.
        """
        if self.now not in {self.raised, self.before}:
            raise ChangedWhileReadError(
                LOG_START_FILE, f"the entry {self.raised} or {self.before}", str(self.now)
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionUndo:
    """One partition of a run that is to be undone.

    Attributes:
        root: Its log directory.
        directory: Its own.
        partition: Its name.
        commits: The trash of the run's commits on it, oldest first; none where the run was killed
            before it began with one.
        start: Its log start, where the run may have raised it for a commit that did not end.
    """

    root: str
    directory: Path
    partition: TopicPartition
    commits: tuple[Path, ...]
    start: _RaisedStart | None = None

    @property
    def checkpoints(self) -> set[str]:
        """The checkpoints in which the run moved its entries."""
        actions = {read_commit(folder).action for folder in self.commits}
        names = {name for action in actions for name in _CHECKPOINTS.get(action, ())}
        return names | {LOG_START_FILE} if self.has_raised_start else names

    @property
    def has_raised_start(self) -> bool:
        """Whether its log start is as the run raised it."""
        return self.start is not None and self.start.is_left

    def is_undone(self) -> bool:
        """Whether it is exactly what it was before the run; it is not if it is gone."""
        if self.has_raised_start:
            return False
        try:
            return not self.commits or is_undone(LocalStore(self.directory), self.commits)
        except PartitionNotFoundError:
            return False


def find_undos(folder: Path, root: TrashedRoot, topics: TopicFilter) -> list[PartitionUndo]:
    """Return the partitions of a log directory of which the run kept something.

    And those whose log start it raised and did not come to the rest: nothing of them was kept yet.
    """
    starts = _raised_starts(folder, root)
    commits: dict[Path, list[Path]] = {}
    # One that was killed while it still kept files is not listed, and has changed nothing.
    for commit in sorted(list_commits(folder)):
        commits.setdefault(read_commit(commit).directory, []).append(commit)
    begun = [
        PartitionUndo(
            root=root.location,
            directory=directory,
            partition=partition,
            commits=tuple(oldest_first),
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


def _raised_starts(folder: Path, root: TrashedRoot) -> dict[TopicPartition, _RaisedStart]:
    """Return what the run, if it was killed, may have left of log starts that it raised."""
    raised = read_raised(folder, root.location)
    if not raised:
        return {}
    before = root.checkpoints.get(LOG_START_FILE, {})
    read = root_checkpoints(root.location, [LOG_START_FILE], strict=False)
    now = read.entries.get(LOG_START_FILE, {})
    return {
        partition: _RaisedStart(raised=start, before=before.get(name), now=now.get(partition))
        for name, start in raised.items()
        for partition in (parse_partition_directory(name),)
    }
