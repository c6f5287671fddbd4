"""Undo a run in a managed root: publish former generations again.

Nothing is copied or read but manifests. A partition is only undone if its current generation is
the run's: what somebody committed since is not lost.

A partition may be undone twice: a generation that another attempt of this undo has made says so,
and the history still has what that attempt found. So the answer is the same.
"""

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from typing import Final

from storage_core.catalog.topic_filter import TopicFilter
from storage_core.errors import ConditionFailedError, GuardRefusedError, PartitionNotFoundError
from storage_core.filenames import LOG_SUFFIX, kind_of
from storage_core.roots.root import LeasedAccess, LeasedRoot, PartitionUndo, Undone
from storage_core.store import ManagedStore, ObjectStore, open_object_store
from storage_core.store.generations import (
    Head,
    Manifest,
    list_partitions,
    partition_location,
    read_head,
    read_history,
)

# What was done is on record after so many partitions at the latest.
_AT_ONCE: Final = 10_000
_RUN_TIME: Final = re.compile(r"(\d{8}T\d{6}Z)-")
# Clocks of two machines may differ by so much.
_TOLERANCE_MS: Final = 3_600_000
_UNDOES: Final = "undoes"


@dataclass(frozen=True, slots=True, kw_only=True)
class ManagedPartitionUndo(PartitionUndo):
    """The undo of a run in one partition of a managed root."""

    root: str
    run_id: str
    began_ms: int  # it had committed nothing before, by whatever clock, epoch milliseconds

    def is_in(self, manifest: Manifest) -> bool:
        """Return whether an undo of the run made a generation."""
        return manifest.result.get(_UNDOES) == self.run_id


@dataclass(frozen=True, slots=True, kw_only=True)
class ManagedUndo:
    """The undo of a run in one managed root."""

    root: LeasedRoot
    run_id: str

    @property
    def moves_files(self) -> bool:
        """Whether files are put back: they are only named again."""
        return False

    @property
    def check(self) -> Callable[[ManagedPartitionUndo], Undone | None]:
        """What tasks do to foretell the undo of a partition."""
        return _undo

    @property
    def apply(self) -> Callable[[ManagedPartitionUndo], Undone | None]:
        """What tasks do to undo a partition; each commit is fenced."""
        return partial(_undo, access=self.root.access)

    def parts(self, topics: TopicFilter) -> Iterator[Sequence[ManagedPartitionUndo]]:
        """Yield all partitions of the topics, by thousands."""
        location, began_ms = self.root.location, _began_ms(self.run_id)
        objects = open_object_store(location)
        listed = list_partitions(objects)
        partitions = sorted(partition for partition in listed if topics.admits(partition.topic))
        for first in range(0, len(partitions), _AT_ONCE):
            yield [
                ManagedPartitionUndo(
                    location=partition_location(objects, partition),
                    partition=partition,
                    root=location,
                    run_id=self.run_id,
                    began_ms=began_ms,
                )
                for partition in partitions[first : first + _AT_ONCE]
            ]

    def begin(
        self, part: Sequence[ManagedPartitionUndo], due: Sequence[ManagedPartitionUndo]
    ) -> None:
        """Do nothing: no commit depends on another."""
        del part, due

    def settle(
        self, due: Sequence[ManagedPartitionUndo], done: Sequence[ManagedPartitionUndo]
    ) -> None:
        """Do nothing: each commit was whole, or did not happen."""
        del due, done

    def end(self) -> Sequence[str]:
        """Return nothing: there is no marker of which to tell."""
        return ()


def _began_ms(run_id: str) -> int:
    """Return before when a run cannot have committed anything, epoch milliseconds."""
    began = _RUN_TIME.match(run_id)
    if began is None:
        return 0
    at = datetime.strptime(began[1], "%Y%m%dT%H%M%SZ").replace(tzinfo=UTC)
    return round(at.timestamp() * 1000) - _TOLERANCE_MS


def _undo(undo: ManagedPartitionUndo, access: LeasedAccess | None = None) -> Undone | None:
    """Undo one partition, or foretell it; None where the run changed nothing.

    Args:
        access: The root under the lease of the run that undoes; None to foretell.
    """
    objects = open_object_store(undo.root)
    try:
        head = read_head(objects, undo.partition)
        newest = head.manifest
        is_done = access is not None and newest.run_id == access.run_id and undo.is_in(newest)
        if is_done:
            # By an attempt that could not say so any more: this is what it found.
            newest = read_history(objects, undo.partition, newest.generation - 1)
    except PartitionNotFoundError:
        return None
    if undo.is_in(newest) and not is_done:
        return Undone(is_needed=False)
    if newest.run_id != undo.run_id:
        _check_unchanged(objects, undo, newest)
        return None
    before = newest
    try:
        while before.run_id == undo.run_id and before.generation > 1:
            before = read_history(objects, undo.partition, before.generation - 1)
    except PartitionNotFoundError as error:
        why = f"the generation before the run is gone: {error}"
        raise GuardRefusedError("PURGED", why) from error
    if before.run_id == undo.run_id:
        why = "the run made the partition's first generation: there is none before it"
        raise GuardRefusedError("CHANGED_SINCE_RUN", why)
    steps = []
    if access is not None:
        why = f"as it was before run {undo.run_id}"
        name = str(before.generation)
        steps.append({"operation": "RestoreGeneration", "name": name, "reason": why})
        if not is_done:
            _publish(objects, head, before, undo, access)
    sizes_before, sizes_after = _log_sizes(newest), _log_sizes(before)
    return Undone(
        is_needed=True,
        steps=steps,
        bytes_before=sum(sizes_before),
        bytes_after=sum(sizes_after),
        segments_before=len(sizes_before),
        segments_after=len(sizes_after),
    )


def _publish(
    objects: ObjectStore,
    head: Head,
    before: Manifest,
    undo: ManagedPartitionUndo,
    access: LeasedAccess,
) -> None:
    """Publish the generation before the run as the next one. It is published once, whoever else
    is about it."""
    store = ManagedStore(objects, undo.partition)
    store.go_on_with(head)
    store.restore(before)
    try:
        access.publish(store, {_UNDOES: undo.run_id})
    except ConditionFailedError:
        # Another attempt of this task may have been a little faster.
        now = read_head(objects, undo.partition).manifest
        if now.run_id != access.run_id or not undo.is_in(now):
            raise


def _check_unchanged(objects: ObjectStore, undo: ManagedPartitionUndo, head: Manifest) -> None:
    """Refuse a partition with changes later than the run's."""
    manifest = head
    while manifest.generation > 1 and manifest.committed_ms >= undo.began_ms:
        try:
            manifest = read_history(objects, undo.partition, manifest.generation - 1)
        except PartitionNotFoundError:
            return
        if manifest.run_id == undo.run_id:
            why = (
                f"generation {head.generation} was committed by run {head.run_id} since: "
                f"expected generation {manifest.generation} of run {undo.run_id}"
            )
            raise GuardRefusedError("CHANGED_SINCE_RUN", why)


def _log_sizes(manifest: Manifest) -> list[int]:
    return [f.size_bytes for name, f in manifest.files.items() if kind_of(name) == LOG_SUFFIX]
