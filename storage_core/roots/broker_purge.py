"""Purge a broker's log directory of deleted files and partitions. The broker has put them aside
to remove them itself."""

import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Final

from storage_core.catalog.log_directories import DirectoryKind, classify_directory
from storage_core.catalog.off_switch import OFF_SWITCH_FILE, is_switched_off
from storage_core.commit.purge import (
    Purge,
    Purged,
    apply_purge,
    plan_purge_directory,
    plan_purge_partition,
)
from storage_core.config import LogConfig
from storage_core.errors import GuardRefusedError, PylogError
from storage_core.filenames import TopicPartition
from storage_core.local_files import folder_names
from storage_core.roots.root import PartitionPurge, PurgeRequest, Stretch

if TYPE_CHECKING:
    from storage_core.roots.root import HeldRoot

_DEFAULT_DELAY_MS: Final = LogConfig().file_delete_delay_ms
_KINDS: Final = frozenset(
    {DirectoryKind.PARTITION, DirectoryKind.FUTURE, DirectoryKind.STRAY, DirectoryKind.DELETE}
)


@dataclass(frozen=True, slots=True, kw_only=True)
class DirectoryPurge(PartitionPurge):
    """A sub-directory in which there may be something to purge."""

    kind: DirectoryKind | None  # what it is; None for the log directory that cannot be listed
    problem: OSError | None = None


class BrokerPurge:
    """The purge of one log directory.

    Args:
        held: The directory under its lock; None to look only.
    """

    def __init__(self, location: str, request: PurgeRequest, held: "HeldRoot | None") -> None:
        self._location = location
        self._request = request
        self._held = held
        self._forgotten: set[TopicPartition] = set()
        self._forgetting = threading.Lock()

    @property
    def is_here(self) -> bool:
        """Whether what goes lies on this host's disks: it does."""
        return True

    @property
    def find_due(self) -> Callable[[Stretch[DirectoryPurge]], Stretch[DirectoryPurge]]:
        """Returns all of a stretch: each directory is listed by itself."""
        return lambda stretch: stretch

    @property
    def apply(self) -> Callable[[DirectoryPurge], Purged]:
        """Delete the files and partition directories that this purge covers."""
        return self._purge

    def begin(self) -> None:
        """Do nothing: each removal asks for the lock first."""

    def parts(self) -> Iterator[Sequence[Stretch[DirectoryPurge]]]:
        """Yield the sub-directories as one stretch."""
        yield [self._directories]

    def end(self, *, is_whole: bool, now_ms: int) -> Sequence[str]:
        """Do nothing: there is nothing beside the sub-directories."""
        del is_whole, now_ms
        return ()

    @cached_property
    def _directories(self) -> list[DirectoryPurge]:
        """The sub-directories in which something may go."""
        names = self._request.names
        try:
            listed = folder_names(Path(self._location)) if names is None else names
        except OSError as error:
            return [
                DirectoryPurge(location=self._location, partition=None, kind=None, problem=error)
            ]
        directories = []
        for name in listed:
            kind, partition = classify_directory(name)
            path = Path(self._location, name)
            is_asked = self._request.topics.admits(partition.topic if partition else None)
            if is_asked and kind in _KINDS and not path.is_symlink():
                directories.append(
                    DirectoryPurge(location=str(path), partition=partition, kind=kind)
                )
        return directories

    def _purge(self, directory: DirectoryPurge) -> Purged:
        if directory.problem is not None:
            raise directory.problem
        purge = self._plan(directory)
        partition = directory.partition if directory.kind is DirectoryKind.DELETE else None
        if partition is not None and purge.plans and self._held is not None:
            self._forget(partition, self._held)
        fence = None if self._held is None else self._held.validate
        return apply_purge(purge, dry_run=self._held is None, fence=fence)

    def _plan(self, directory: DirectoryPurge) -> Purge:
        """Return what goes of a directory."""
        path, now_ms = Path(directory.location), self._request.now_ms
        if directory.kind is DirectoryKind.DELETE:
            # The topic is gone, and its config with it.
            purge = plan_purge_directory(path, now_ms=now_ms, delay_ms=_DEFAULT_DELAY_MS)
        else:
            # That files with this suffix go is not a question of config: a broker's start drops
            # them all.
            partition = directory.partition
            config = (
                None if partition is None else self._request.catalog.config_for(partition.topic)
            )
            delay_ms = _DEFAULT_DELAY_MS if config is None else config.file_delete_delay_ms
            purge = plan_purge_partition(path, now_ms=now_ms, delay_ms=delay_ms)
        if purge.plans and is_switched_off(directory.location):
            why = f"{directory.location}: {OFF_SWITCH_FILE}"
            raise GuardRefusedError("SWITCHED_OFF", why)
        return purge

    def _forget(self, partition: TopicPartition, held: "HeldRoot") -> None:
        """Drop the checkpoint entries of deleted partitions before their files.

        A broker does that when it renames the directory. One that died in between has not, and
        entries of a partition that is created again would count for the new one. Those of all
        directories that this purge removes go together, for each time every checkpoint is read
        whole, and the log directory listed. Whoever comes meanwhile waits for that.
        """
        with self._forgetting:
            if held.failure is None and partition not in self._forgotten:
                going = self._due | {partition}
                held.drop_entries(going)
                self._forgotten |= going
            if held.failure is not None:
                raise held.failure

    @cached_property
    def _due(self) -> frozenset[TopicPartition]:
        """The partitions with deleted directories that go in this purge. The plans are made
        again when it is their turn: together they name every file."""
        return frozenset(
            each.partition
            for each in self._directories
            if each.kind is DirectoryKind.DELETE and each.partition and self._goes(each)
        )

    def _goes(self, directory: DirectoryPurge) -> bool:
        """Return whether a directory goes; it is planned again in its turn."""
        try:
            return bool(self._plan(directory).plans)
        except (PylogError, OSError):
            return False  # its own row will say why
