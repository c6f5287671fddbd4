"""What a run needs of a root that it changes, whatever the root's role is.

Compaction, retention and the nightly see roots through this alone: a broker's directory under
Kafka's lock (``broker_root``) and a managed root under its lease (``managed_root``) differ behind
it, and in what tasks do (``tasks.root_access``).
"""

from collections.abc import Iterable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Protocol, Self

from pylog_spark.discovery import LogRoot
from pylog_spark.roots.broker_root import BrokerRoot
from pylog_spark.roots.managed_root import ManagedRoot
from pylog_spark.tasks.root_access import RootAccess
from pylog_spark.tasks.run_context import RunContext, WriteContext
from storage_core.catalog.roles import Role
from storage_core.errors import StorageError
from storage_core.filenames import TopicPartition


class WritableRoot(Protocol):
    """One root that this run alone may change, for the time that it works on it.

    A context manager: entering it takes the lock or the lease, and refuses where another holds it.
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
        """What its disk failed with, since when nothing is done in it; None while it holds."""
        ...

    @property
    def access(self) -> RootAccess:
        """How tasks read and change its partitions; the same from ``begin_writing`` on."""
        ...

    def __enter__(self) -> Self: ...

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None: ...

    def begin_writing(self) -> None:
        """Get ready for changes; the second time, nothing.

        Raises:
            GuardRefusedError: The lock or lease is gone.
            StorageError: The store failed.
        """
        ...

    def free_bytes(self) -> int:
        """Return how much is free where tasks write; 0 in a root that has failed, or fails now.

        Raises:
            StorageError: The disk fails, and the run has no other root.
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

    def write_cleaner_points(self, points: Mapping[TopicPartition, int]) -> None:
        """Say where the next round of compaction begins in some partitions."""
        ...

    def raise_cleaner_points(self, log_starts: Mapping[TopicPartition, int]) -> None:
        """Let no round of compaction begin below where these logs start now."""
        ...

    def write_log_starts(self, entries: Mapping[TopicPartition, int | None]) -> None:
        """Say where logs start, before segments go, and again afterwards; None for nowhere else.

        Where the log start is part of what a commit writes there is nothing to do.
        """
        ...

    def disown_marker(self) -> None:
        """Take note that records go which other replicas may not have."""
        ...


def writable_root(
    root: LogRoot,
    *,
    run_id: str,
    mark_clean: bool,
    is_alone: bool = True,
    trash: Path | None = None,
) -> WritableRoot:
    """Return a root as its role asks for; nothing is locked yet.

    Args:
        root: Of a role that may be written.
        run_id: The run.
        mark_clean: Whether a broker's directory gets its marker of a clean shutdown back.
        is_alone: Whether it is the only root of the run.
        trash: The run's folder in the trash, None for none.
    """
    if root.role is Role.MANAGED:
        return ManagedRoot(root.location, run_id=run_id)
    return BrokerRoot(
        root.location, run_id=run_id, mark_clean=mark_clean, is_alone=is_alone, trash=trash
    )


def failures_of(roots: Mapping[str, WritableRoot]) -> dict[str, StorageError]:
    """Return what disks failed with, by the root that the run then went on without."""
    return {place: root.failure for place, root in roots.items() if root.failure is not None}


def write_context(
    run: RunContext, roots: Mapping[str, WritableRoot], *, tasks_at_once: int = 1, wave: int = 0
) -> WriteContext:
    """Return what tasks need to write into roots.

    Args:
        run: What all tasks share.
        roots: By location.
        tasks_at_once: How many tasks share the budget of bytes a second.
        wave: Number of the wave.
    """
    return WriteContext(
        run=run,
        roots={place: root.access for place, root in roots.items()},
        tasks_at_once=tasks_at_once,
        wave=wave,
    )
