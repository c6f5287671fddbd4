"""The protocols of a root of logs: reading, holding, changing partitions.

A root is a broker's log directory, a mirror of one on an object store, or a managed root. Each kind
has a module with its views: the root as anybody reads it; the root while a run holds it, by Kafka's
lock or by a lease; and what the tasks of that run are told, which is the proof of it.

The passes of compaction, retention, recovery and their commits are the same for all kinds. What
differs is the proof that a run may write, where an attempt puts its files, and what makes a commit
happen once. A broker's directory has Kafka's lock, scratch files on its own filesystem and a claim
file for each partition. A managed root has a lease, new immutable objects for each attempt, and a
manifest whose conditional PUT is the commit.

A row that says an error also says whether files may have been changed: then the log directory gets
no marker of a clean shutdown. What is not known counts as changed. A former attempt may have been
killed amid its commit; so an attempt that cannot look into the claim, for whatever reason, cannot
say that nothing was touched.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Final, NoReturn, Protocol, Self, TypeVar

from storage_core.catalog.topic_catalog import TopicCatalog
from storage_core.catalog.topic_filter import TopicFilter
from storage_core.checkpoint.checkpoints import PartitionCheckpoints, SmallFiles
from storage_core.commit import CommitPlan
from storage_core.commit.purge import Purged
from storage_core.errors import GuardRefusedError, StorageError
from storage_core.filenames import TopicPartition
from storage_core.store import LogStore, ManagedStore
from storage_core.store.copying import CopiedRange
from storage_core.store.generations import unpinned
from storage_core.store.lease import LeaseProof
from storage_core.store.open_objects import MANAGED_PREFIX

# The protocol of undoing a run in one root, partition by partition.


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionUndo:
    """A partition in which a run is to be undone; pickles."""

    location: str
    partition: TopicPartition


@dataclass(frozen=True, slots=True, kw_only=True)
class Undone:
    """The undo of a run in one partition, done or foretold."""

    is_needed: bool  # whether anything was left to undo
    # The applied operations, described; none of one foretold.
    steps: Sequence[Mapping[str, Any]] = ()
    # Bytes of its ``.log`` files before the undo; None if nobody has looked.
    bytes_before: int | None = None
    bytes_after: int | None = None  # the same afterwards
    segments_before: int | None = None
    segments_after: int | None = None


UndoT = TypeVar("UndoT", bound=PartitionUndo)
# Done in a task; None where the run has changed nothing. A refusal says why a partition stays as it
# is: where the store itself refuses, that is a failure.
UndoWork = Callable[[UndoT], Undone | None]


class RootUndo(Protocol[UndoT]):
    """The undo of a run in one root.

    The root is held when anything is changed; in a dry run it is only looked at.
    """

    @property
    def moves_files(self) -> bool:
        """Whether files of log directories are put back, and checkpoints before them. Then all
        partitions are compared before the first of them is touched."""
        ...

    @property
    def check(self) -> UndoWork[UndoT]:
        """What tasks do to foretell the undo of a partition."""
        ...

    @property
    def apply(self) -> UndoWork[UndoT]:
        """What tasks do to undo a partition; from ``begin`` on."""
        ...

    def parts(self, topics: TopicFilter) -> Iterator[Sequence[UndoT]]:
        """Yield the partitions that the run may have changed, in order. What was done to one
        part is on record before the next one is begun."""
        ...

    def begin(self, part: Sequence[UndoT], due: Sequence[UndoT]) -> None:
        """Get ready to undo a part of the partitions."""
        ...

    def settle(self, due: Sequence[UndoT], done: Sequence[UndoT]) -> None:
        """Take note which partitions of a part were undone."""
        ...

    def end(self) -> Sequence[str]:
        """Forget what a second attempt would need; return notes for the report. The root was
        given back before: it has its marker again, if it may have it."""
        ...


# The protocol of purging one root of what nobody needs any more.


@dataclass(frozen=True, slots=True, kw_only=True)
class PurgeRequest:
    """What a purge is asked to remove from a root."""

    topics: TopicFilter
    catalog: TopicCatalog
    now_ms: int
    grace_ms: int  # how long former generations stay
    # Sub-directories of a log directory in which there may be something; None to list it.
    names: Sequence[str] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionPurge:
    """A directory to search for files to purge. The object pickles where tasks do the purge."""

    location: str
    partition: TopicPartition | None  # whose it is, None for nobody's


PurgeT = TypeVar("PurgeT", bound=PartitionPurge)
# Partitions that are looked at together, for one listing tells of all.
Stretch = Sequence[PurgeT]


class RootPurge(Protocol[PurgeT]):
    """The purge of one root. A purge writes only if the root is held."""

    @property
    def is_here(self) -> bool:
        """Whether the files to purge lie on this host's disks. Such files are purged from here."""
        ...

    @property
    def find_due(self) -> Callable[[Stretch[PurgeT]], Stretch[PurgeT]]:
        """Filter of a stretch: its directories with something to purge. The filter runs in a
        task."""
        ...

    @property
    def apply(self) -> Callable[[PurgeT], Purged]:
        """The purge of one directory, to run in a task. It removes what goes, or only looks
        where the root is not held."""
        ...

    def begin(self) -> None:
        """Get ready for removals."""
        ...

    def parts(self) -> Iterator[Sequence[Stretch[PurgeT]]]:
        """Yield what is to be looked at. What was done in one part is on record before the next
        one is begun."""
        ...

    def end(self, *, is_whole: bool, now_ms: int) -> Sequence[str]:
        """Remove what belongs to no partition; return remarks.

        Args:
            is_whole: Whether all partitions that were looked at are purged.
        """
        ...


TOUCHED: Final = "touched"


@dataclass(frozen=True, slots=True, kw_only=True)
class Prepared:
    """What an attempt is about to commit."""

    result: dict[str, Any]  # the partition's row as it is once that is done; plain values
    # The operations; None where there is nothing to do, and the row says why.
    plan: CommitPlan | None
    # The offsets that move with them; None leaves one as it is. In a broker's directory they stand
    # in files of the whole directory, which the holder alone writes.
    checkpoints: PartitionCheckpoints = field(default_factory=PartitionCheckpoints)


# Looks at a partition once more and says what is to be done to it.
Prepare = Callable[[LogStore], Prepared]


class Root(SmallFiles, Protocol):
    """A root as anybody reads it."""

    @property
    def has_manifests(self) -> bool:
        """Whether its partitions have manifests."""
        ...

    @property
    def has_requests(self) -> bool:
        """Whether each look is a request to a store. Several looks wait at once then."""
        ...

    def directories(self) -> list[str]:
        """Return the names of its sub-directories, sorted.

        Raises:
            StorageError: It cannot be listed.
        """
        ...

    def locate(self, directory: str) -> str:
        """Return where a sub-directory is, as ``open_store`` takes it."""
        ...

    def newest_write_ms(self) -> int:
        """Return when a broker or run last wrote checkpoints; 0 if never.

        Raises:
            PylogError: It cannot be asked.
        """
        ...

    def purge_of(self, request: PurgeRequest, held: "HeldRoot | None") -> RootPurge[Any]:
        """Return the purge of the root.

        Args:
            held: The root as the run holds it; None to look only.

        Raises:
            GuardRefusedError: Nobody may change a root of this kind.
            PylogError: What former purges have left cannot be read.
        """
        ...

    def hold(
        self, *, run_id: str, mark_clean: bool, is_alone: bool = True, trash: Path | None = None
    ) -> "HeldRoot":
        """Return the root as a run holds it; entering it locks. Nothing is locked before.

        Args:
            mark_clean: Whether a broker's directory gets its marker of a clean shutdown back.
            is_alone: Whether it is the only root of the run.
            trash: The run's folder in the trash, None for none.

        Raises:
            GuardRefusedError: Nobody may change a root of this kind.
        """
        ...


class ReadOnlyRoot(ABC):
    """A root on which each look is a request, and which nobody here may change."""

    has_manifests: ClassVar = False
    has_requests: ClassVar = True

    @property
    @abstractmethod
    def refusal(self) -> str:
        """Why it is not changed, with its place."""

    def newest_write_ms(self) -> int:
        """Return 0: times of objects say nothing of our clock."""
        return 0

    def purge_of(self, request: PurgeRequest, held: "HeldRoot | None") -> NoReturn:
        """Refuse as ``hold``: what was put aside is somebody else's, too."""
        del request, held
        raise GuardRefusedError("ROLE_IS_READ_ONLY", self.refusal)

    def hold(
        self, *, run_id: str, mark_clean: bool, is_alone: bool = True, trash: Path | None = None
    ) -> NoReturn:
        """Refuse: its objects are somebody else's."""
        del run_id, mark_clean, is_alone, trash
        raise GuardRefusedError("ROLE_IS_READ_ONLY", self.refusal)


class RootAccess(Protocol):
    """A root's interface for tasks while their run holds it; pickles."""

    def validate(self) -> None:
        """Check that this run may still write there.

        Raises:
            GuardRefusedError: It may not, or not from this host.
        """
        ...

    def open(self, location: str) -> LogStore:
        """Open a partition for reading."""
        ...

    def scratch(self, location: str) -> AbstractContextManager[Path]:
        """Return an attempt's scratch folder for a partition, for the block."""
        ...

    def shared_folder(self, location: str) -> Path | None:
        """Return the folder that all tasks see; None if they share none.

        Args:
            location: The partition whose files go there, or the root to ask for any.
        """
        ...

    def keep(
        self,
        location: str,
        attempt: str,
        base_offset: int,
        files: Mapping[str, str],
        gaps: Sequence[CopiedRange] = (),
    ) -> Mapping[str, str]:
        """Move a segment's files within reach of another task's promotion.

        Args:
            attempt: Name of the attempt that wrote them; no other has it.
            files: Where they are in the scratch folder, by suffix.
            gaps: Those that the log has, in order; where it is now it has none any more.

        Returns:
            Where they are now, by suffix.
        """
        ...

    def commit(self, location: str, work: str, prepare: Prepare) -> dict[str, Any]:
        """Commit a piece of work once, however often this is called. It may be called from
        anywhere.

        Args:
            work: Name of the work; a run does not do two of one name on a partition.
            prepare: Called unless a former attempt of the same work has begun.

        Returns:
            The result of the attempt that did it; or the error, and whether files may have been
            touched.
        """
        ...


class HeldRoot(Protocol):
    """One root under this run's exclusive lock or lease.

    A context manager: entering it takes the lock or the lease, and refuses where another holds it;
    leaving it gives that back.
    """

    @property
    def location(self) -> str:
        """Path or URL of the root."""
        ...

    @property
    def was_clean(self) -> bool:
        """Whether nothing in it has to be recovered before anything else."""
        ...

    @property
    def failure(self) -> StorageError | None:
        """The failure of its disk, None while the disk works. Nothing is done in the root since."""
        ...

    @property
    def access(self) -> RootAccess:
        """How tasks read and change its partitions; the same from ``begin_writing`` on."""
        ...

    def __enter__(self) -> Self: ...

    def __exit__(self, _kind: object, error: BaseException | None, _trace: object) -> None: ...

    def validate(self) -> None:
        """Check right before a change that this run may still write.

        Raises:
            GuardRefusedError: The lock or lease is gone.
            StorageError: The store failed.
        """
        ...

    def begin_writing(self, seen: Mapping[str, str] | None = None) -> None:
        """Get ready for changes; the second time, nothing.

        Args:
            seen: What ``digest_files`` has said of some partitions, by name, since the root is
                held; None for none.

        Raises:
            GuardRefusedError: The lock or lease is gone.
            StorageError: The store failed.
        """
        ...

    def free_bytes(self) -> int:
        """Return the bytes free for tasks; 0 in a failed root. It is 0 as well in a root that fails
        now.

        Raises:
            StorageError: The disk fails, and the run has no other root.
        """
        ...

    def give_up(self, error: StorageError) -> None:
        """Leave the root alone from now on, for its disk has failed.

        Raises:
            StorageError: The failure, where the run ends with it.
        """
        ...

    def undo_of(self, run_id: str, folder: Path | None) -> RootUndo[Any]:
        """Return the undo of a run in this root.

        Args:
            folder: What it kept of local directories; None where there is no trash.

        Raises:
            PylogError: What the run kept cannot be understood or read.
        """
        ...

    def allow_commits(self, directories: Iterable[str | Path]) -> None:
        """Let tasks commit these partitions."""
        ...

    def settle_commits(self, points: Mapping[TopicPartition, int], *, is_whole: bool) -> None:
        """Take note that commits have ended.

        Args:
            points: Where the next round of compaction begins in the partitions that were cleaned.
            is_whole: Whether every partition is in a state that is known: as it was, or done.
        """
        ...

    def write_checkpoints(self, changes: Mapping[str, Mapping[TopicPartition, int | None]]) -> None:
        """Move checkpointed offsets, unless each commit writes them itself.

        A file that is malformed is left as it is: what it said of others is not ours to lose.

        Args:
            changes: Offsets by file, in the order in which the files are written; None for a
                partition that has none any more. Entries of other partitions stay.

        Raises:
            GuardRefusedError: The lock is gone.
        """
        ...

    def raise_log_starts(self, starts: Mapping[TopicPartition, int]) -> None:
        """Raise log starts before segments go, so that nobody reads what goes."""
        ...

    def settle_log_starts(self, entries: Mapping[TopicPartition, int | None]) -> None:
        """Write log starts once the segments are gone; None drops entries."""
        ...

    def write_cleaner_points(self, points: Mapping[TopicPartition, int]) -> None:
        """Say where the next round of compaction begins in some partitions."""
        ...

    def raise_cleaner_points(self, log_starts: Mapping[TopicPartition, int]) -> None:
        """Let no round of compaction begin below where these logs start now."""
        ...

    def drop_entries(self, partitions: Collection[TopicPartition]) -> None:
        """Take partitions that were deleted out of all checkpoints."""
        ...

    def disown_marker(self) -> None:
        """Let the marker written at the end name no broker epoch. What is removed may have been
        more than other replicas have."""
        ...

    def own_marker(self) -> None:
        """Let the marker name the broker's epoch again. After all nothing was removed since it
        was disowned."""
        ...

    def claim_clean(self) -> None:
        """Let the root end with a clean shutdown marker.

        By no broker: its epoch is unknown to the controller, which then takes nothing for granted.
        Whatever its partitions look like now, they are as they should be.
        """
        ...


class LeasedAccess(RootAccess, Protocol):
    """A task's interface to a managed root while its run has the lease."""

    @property
    def run_id(self) -> str:
        """The run."""
        ...

    @property
    def lease(self) -> LeaseProof:
        """What tells the run's lease from another's."""
        ...

    def publish(self, store: ManagedStore, result: Mapping[str, Any]) -> None:
        """Commit the next generation of a partition, fenced by the lease."""
        ...


class LeasedRoot(HeldRoot, Protocol):
    """A managed root under this run's lease."""

    @property
    def access(self) -> LeasedAccess:
        """How tasks read and change its partitions."""
        ...


def root_of(location: str) -> str:
    """Return the root of a partition's location, as rows name it."""
    return unpinned(location.removeprefix(MANAGED_PREFIX)).rpartition("/")[0]


def failures_of(roots: Mapping[str, HeldRoot]) -> dict[str, StorageError]:
    """Return disk failures by the root dropped from the run. The run went on without that root."""
    return {place: root.failure for place, root in roots.items() if root.failure is not None}
