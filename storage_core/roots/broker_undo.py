"""Undo a run in a broker's log directory from the trash.

A partition is only touched if every file of it is what the run left; of the others the first file
that is not is named, and they stay as they are.

A partition may be undone twice: what another attempt has undone is found to be undone, and what it
left in the middle is finished. Two attempts never work on a partition at the same time.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Annotated, Final, Protocol

from storage_core.catalog.off_switch import OFF_SWITCH_FILE, is_switched_off
from storage_core.catalog.topic_filter import TopicFilter
from storage_core.checkpoint.checkpoints import Checkpoints, SmallFiles, read_checkpoints
from storage_core.commit.trash import (
    ATTACH,
    TRANSPLANT,
    TrashedRoot,
    list_commits,
    read_raised,
    read_run,
    read_subject,
)
from storage_core.commit.undo import UndonePartition, check_partition, is_undone, undo_partition
from storage_core.errors import (
    ChangedWhileReadError,
    CheckpointError,
    ConfigError,
    GuardRefusedError,
    InconsistentClusterIdError,
    InconsistentTopicIdError,
    PartitionNotFoundError,
    StorageError,
)
from storage_core.filenames import (
    CLEANER_FILE,
    LOG_START_FILE,
    RECOVERY_POINT_FILE,
    REPLICATION_FILE,
    TopicPartition,
    parse_partition_directory,
)
from storage_core.json_values import OMITTED, ONE_LINE, JsonFile, Word
from storage_core.local_files import read_small
from storage_core.log.settled_store import plan_settling
from storage_core.roots.killed_runs import changed_partitions, observe_partitions
from storage_core.roots.root import HeldRoot, PartitionUndo, RootAccess, Undone
from storage_core.store import LocalStore, LogStore
from storage_core.store.local import storage_errors, write_record

_UNCLEAN_NOTE: Final = (
    "{root}: not marked as cleanly shut down, as it was not before the run, or when the undo "
    "began: a broker, or pylog recover, recovers it"
)
_FAILED_NOTE: Final = (
    "{root}: the disk failed, and the undo did no more there; given again when the disk is in "
    "order, the same undo does the rest: {failure}"
)
_MARKER_FILE: Final = "undo-marker-{number}.json"
# A line for each partition.
_MOST_MARKER_BYTES: Final = 64 << 20
_MALFORMED: Final = (
    "; the entries of this partition could not be put back, so its files were not touched "
    "either. A broker does not start with such a file: remove it when you have looked at it, and "
    "give the same undo again"
)
# Which checkpoints an action moves.
_CHECKPOINTS: Final[Mapping[str, Sequence[str]]] = {
    "compact": (CLEANER_FILE,),
    "retain": (LOG_START_FILE, CLEANER_FILE, RECOVERY_POINT_FILE),
    "recover": (RECOVERY_POINT_FILE, LOG_START_FILE, REPLICATION_FILE),
    "truncate": (RECOVERY_POINT_FILE, LOG_START_FILE, REPLICATION_FILE, CLEANER_FILE),
    TRANSPLANT: (RECOVERY_POINT_FILE, LOG_START_FILE, REPLICATION_FILE, CLEANER_FILE),
    ATTACH: (RECOVERY_POINT_FILE, LOG_START_FILE, REPLICATION_FILE, CLEANER_FILE),
}
_TRUNCATE: Final = "truncate"


@dataclass(frozen=True, slots=True, kw_only=True)
class _SeenMarker:
    """The marker of a log directory as an undo saw it first."""

    is_clean: bool
    # What ``observe_partitions`` said then; older versions did not say.
    partitions: Annotated[Mapping[str, Word] | None, OMITTED] = None


_MARKER: Final = JsonFile(_SeenMarker, layout=ONE_LINE, is_open=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class RaisedStart:
    """A log start possibly left raised by a killed run. The run raised it before its commit
    began."""

    raised: int
    before: int | None  # what it was, None without an entry in the checkpoint
    now: int | None  # what it is, None without an entry

    @property
    def is_left(self) -> bool:
        """Whether records below it are hidden that the run has not removed."""
        return self.now == self.raised != self.before

    def verify(self) -> None:
        """Check that the log start is as raised, or as before."""
        if self.now not in {self.raised, self.before}:
            raise ChangedWhileReadError(
                LOG_START_FILE, f"the entry {self.raised} or {self.before}", str(self.now)
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerPartitionUndo(PartitionUndo):
    """The undo of a run in one partition directory."""

    # The trash of the run's commits on it, oldest first; none where the run was killed before it
    # began with one.
    commits: tuple[Path, ...]
    actions: frozenset[str] = frozenset()
    # Its log start, where the run may have raised it for a commit that did not end.
    start: RaisedStart | None = None
    # What is wrong with a checkpoint in which its entries would be put back.
    malformed: CheckpointError | None = None

    @property
    def has_raised_start(self) -> bool:
        """Whether its log start is as the run raised it."""
        return self.start is not None and self.start.is_left

    @property
    def moved_checkpoints(self) -> set[str]:
        """The checkpoints with entries moved by the run."""
        names = {name for action in self.actions for name in _CHECKPOINTS.get(action, ())}
        return names | {LOG_START_FILE} if self.has_raised_start else names

    def is_undone(self) -> bool:
        """Return whether the partition is exactly as before the run. It is not if it is gone."""
        if self.has_raised_start:
            return False
        try:
            return not self.commits or is_undone(LocalStore(Path(self.location)), self.commits)
        except PartitionNotFoundError:
            return False

    def verify(self) -> None:
        """Refuse a switched-off directory or a log start moved since."""
        if is_switched_off(self.location):
            raise GuardRefusedError("SWITCHED_OFF", f"{self.location}: {OFF_SWITCH_FILE}")
        if self.start is not None and not self.commits:
            self.start.verify()

    def describe(self, undone: UndonePartition) -> Undone:
        """Return the undo of the partition as rows tell it, without steps."""
        return Undone(
            is_needed=undone.steps > 0 or self.has_raised_start,
            bytes_before=undone.bytes_before,
            bytes_after=undone.bytes_after,
            segments_before=undone.segments_before,
            segments_after=undone.segments_after,
        )


class LockedAccess(RootAccess, Protocol):
    """A task's interface to a directory in which it can have a partition for itself."""

    def alone(self, location: str) -> AbstractContextManager[LogStore]:
        """Lock a partition against other attempts for the block."""
        ...


class MarkedRoot(HeldRoot, Protocol):
    """A directory under a run's lock, with a marker that can be taken away."""

    @property
    def access(self) -> LockedAccess:
        """How tasks read and change its partitions."""
        ...

    def claim_unclean(self) -> None:
        """Let the directory end without the marker."""
        ...


class BrokerUndo:
    """The undo of a run in one log directory.

    Args:
        folder: The trash of the run that is undone.
    """

    def __init__(self, root: MarkedRoot, files: SmallFiles, folder: Path) -> None:
        self._root = root
        self._files = files
        self._folder = folder
        roots = read_run(folder).roots
        locations = [before.location for before in roots]
        if root.location not in locations:
            raise ConfigError("RUN", folder.name, f"it kept nothing of {root.location}")
        number = locations.index(root.location)
        self._before = roots[number]
        self._marker_file = folder / _MARKER_FILE.format(number=number)
        self._is_clean = False
        self._is_whole = False
        self._notes: list[str] = []

    @property
    def moves_files(self) -> bool:
        """Whether files are put back: they are."""
        return True

    @property
    def check(self) -> Callable[[BrokerPartitionUndo], Undone]:
        """What tasks do to foretell the undo of a partition."""
        return _check

    @property
    def apply(self) -> Callable[[BrokerPartitionUndo], Undone]:
        """What tasks do to undo a partition, under its claim."""
        return partial(_undo, access=self._root.access)

    def parts(self, topics: TopicFilter) -> Iterator[Sequence[BrokerPartitionUndo]]:
        """Yield all partitions at once: they share checkpoints and the marker.

        These are the partitions of which the run kept something, and those whose log start it
        raised and did not come to the rest: nothing of them was kept yet.
        """
        location = self._root.location
        starts = self._raised_starts()
        commits: dict[Path, list[tuple[Path, str]]] = {}
        # One that was killed while it still kept files is not listed, and has changed nothing.
        for commit in sorted(list_commits(self._folder)):
            directory, action = read_subject(commit)
            if str(directory.parent) == location:
                commits.setdefault(directory, []).append((commit, action))
        for partition in starts:
            commits.setdefault(Path(location, str(partition)), [])
        problems = self._read(self._before.checkpoints).problems
        undos = []
        for directory, oldest_first in commits.items():
            partition = parse_partition_directory(directory.name)
            undo = BrokerPartitionUndo(
                location=str(directory),
                partition=partition,
                commits=tuple(commit for commit, _ in oldest_first),
                actions=frozenset(action for _, action in oldest_first),
                start=starts.get(partition),
            )
            malformed = sorted(undo.moved_checkpoints & problems.keys())
            if malformed:
                undo = replace(undo, malformed=problems[malformed[0]])
            if topics.admits(partition.topic):
                undos.append(undo)
        yield sorted(undos, key=lambda undo: undo.partition)

    def begin(
        self, part: Sequence[BrokerPartitionUndo], due: Sequence[BrokerPartitionUndo]
    ) -> None:
        """Take the marker away, and put back checkpoints that allow it.

        Where one of that cannot be done, the files of the partitions stay as they are, and the
        same undo does it all later.
        """
        root = self._root
        if not due:
            self._finish_marker(part)
            return
        places = {each.location for each in due}
        self._is_clean = remember_marker(
            self._marker_file,
            root,
            verified={
                Path(each.location).name
                for each in part
                if each.location in places or each.is_undone()
            },
        )
        root.begin_writing()
        # Half undone, the logs are as they were before they were recovered, perhaps: nobody may
        # believe the marker until all are, neither at the end of this run nor after a kill.
        root.claim_unclean()
        root.allow_commits([each.location for each in due])
        root.write_checkpoints(_entries_before(self._before, due, _not_above))

    def settle(
        self, due: Sequence[BrokerPartitionUndo], done: Sequence[BrokerPartitionUndo]
    ) -> None:
        """Put back the other checkpoints, and maybe the marker."""
        root = self._root
        root.write_checkpoints(_entries_before(self._before, done, _above))
        self._is_whole = len(done) == len(due)
        root.settle_commits({}, is_whole=self._is_whole)
        if self._is_clean and self._before.was_clean:
            root.claim_clean()
        else:
            root.claim_unclean()
            self._notes.append(_UNCLEAN_NOTE.format(root=root.location))

    def end(self) -> Sequence[str]:
        """Forget the former marker; return notes for the report."""
        root = self._root
        if root.failure is not None:
            self._notes.append(_FAILED_NOTE.format(root=root.location, failure=root.failure))
        elif self._is_whole:
            # The marker is there: nobody has to remember any more that it was.
            try:
                self._marker_file.unlink(missing_ok=True)
            except OSError as error:
                reason = error.strerror or str(error)
                self._notes.append(
                    f"{self._marker_file}: is of no use any more, and stays: {reason}"
                )
        return self._notes

    def _raised_starts(self) -> dict[TopicPartition, RaisedStart]:
        """Return the log starts raised by the run, by partition. A run that was killed may have
        left them raised."""
        raised = read_raised(self._folder, self._root.location)
        if not raised:
            return {}
        before = self._before.checkpoints.get(LOG_START_FILE, {})
        now = self._read([LOG_START_FILE]).entries.get(LOG_START_FILE, {})
        return {
            partition: RaisedStart(raised=start, before=before.get(name), now=now.get(partition))
            for name, start in raised.items()
            for partition in (parse_partition_directory(name),)
        }

    def _read(self, names: Iterable[str]) -> Checkpoints:
        """Return what checkpoints say; nothing once the disk has failed."""
        try:
            if self._root.failure is None:
                return read_checkpoints(self._files, names, strict=False)
        except StorageError as error:
            self._root.give_up(error)
        return Checkpoints()

    def _finish_marker(self, part: Sequence[BrokerPartitionUndo]) -> None:
        """Write the marker of an undo killed just before it. It is written only if nothing else was
        left to do. Not if anything has changed since: then a broker may have removed it."""
        root = self._root
        if root.was_clean or not self._before.was_clean or not self._marker_file.is_file():
            return
        if not all(each.is_undone() for each in part):
            return
        verified = {Path(each.location).name for each in part}
        if remember_marker(self._marker_file, root, verified=verified):
            root.begin_writing()
            root.claim_clean()


def _check(undo: BrokerPartitionUndo) -> Undone:
    with _changed_since_run():
        undo.verify()
        undone = undo.describe(check_partition(LocalStore(Path(undo.location)), undo.commits))
    if undone.is_needed and undo.malformed is not None:
        file, line = undo.malformed.file, undo.malformed.line
        raise CheckpointError(file, line, undo.malformed.reason + _MALFORMED)
    return undone


def _undo(undo: BrokerPartitionUndo, access: LockedAccess) -> Undone:
    with _changed_since_run(), access.alone(undo.location) as store:
        undo.verify()
        undone = undo_partition(store, undo.commits, settling=plan_settling)
    steps = [step for plan in undone.plans for step in plan.describe()]
    return replace(undo.describe(undone), steps=steps)


@contextmanager
def _changed_since_run() -> Iterator[None]:
    """Refuse a partition that is not as the run left it."""
    try:
        yield
    except (
        ChangedWhileReadError,
        InconsistentClusterIdError,
        InconsistentTopicIdError,
    ) as error:
        raise GuardRefusedError("CHANGED_SINCE_RUN", str(error)) from error


def _entries_before(
    root: TrashedRoot,
    due: Iterable[BrokerPartitionUndo],
    names_of: Callable[[BrokerPartitionUndo], set[str]],
) -> dict[str, dict[TopicPartition, int | None]]:
    """Return the checkpoint entries from before the run, by file. A file that was malformed then
    has no former entries."""
    entries: dict[str, dict[TopicPartition, int | None]] = {}
    for undo in due:
        for name in names_of(undo) & root.checkpoints.keys():
            before = root.checkpoints[name].get(str(undo.partition))
            entries.setdefault(name, {})[undo.partition] = before
    return entries


def _not_above(undo: BrokerPartitionUndo) -> set[str]:
    """Return the checkpoints that are put back before the files. With these former points the
    log is in order as the run left it, too."""
    names = undo.moved_checkpoints
    return names & {LOG_START_FILE} if _TRUNCATE in undo.actions else names


def _above(undo: BrokerPartitionUndo) -> set[str]:
    """Return the checkpoints put back after the files. Their former points may lie above the log
    as the run left it."""
    return undo.moved_checkpoints - _not_above(undo)


def remember_marker(path: Path, held: MarkedRoot, *, verified: Collection[str]) -> bool:
    """Return whether the directory had its marker when its undo began.

    While logs are half undone nobody may believe the marker: it is away from before the first file
    changes until the last one is as it was, and after a kill only this file tells of it.

    Not if somebody else has changed a partition since: a broker that left no marker, above all.
    """
    directory = Path(held.location)
    if path.is_file():
        with storage_errors(path):
            content = read_small(path, _MOST_MARKER_BYTES, trusted=(directory.stat().st_uid,))
        first = _MARKER.parse(content, str(path))
        if not first.is_clean:
            return False
        if not held.was_clean:
            if first.partitions is None:
                return False
            return not changed_partitions(first.partitions, directory, verified=verified)
    marker = _SeenMarker(is_clean=held.was_clean, partitions=observe_partitions(directory))
    write_record(path, _MARKER.encode(marker))
    return held.was_clean
