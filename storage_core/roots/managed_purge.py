"""Purge a managed root of unneeded generations and objects. No reader and no undo needs them any
more."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import groupby
from typing import Final

from storage_core.commit.purge import Purged
from storage_core.errors import StorageError
from storage_core.filenames import TopicPartition
from storage_core.roots.root import (
    LeasedAccess,
    LeasedRoot,
    PartitionPurge,
    PurgeRequest,
    Stretch,
)
from storage_core.store import open_object_store
from storage_core.store.garbage import (
    delete_garbage,
    delete_leftovers,
    find_due,
    find_garbage,
    forget_purged,
    read_purged,
    record_purged,
)
from storage_core.store.generations import list_partitions, partition_location
from storage_core.store.listing import key_order

# Neighbours that one listing is asked for: so few that a task has several listings on their way,
# so many that partitions of a few segments fill its pages of 1,000 objects.
_IN_A_STRETCH: Final = 50
# What was done is on record after so many stretches at the latest.
_AT_ONCE: Final = 200
_SUPERSEDED: Final = "no generation that is kept names it"


@dataclass(frozen=True, slots=True, kw_only=True)
class ManagedPartitionPurge(PartitionPurge):
    """A partition of a managed root in which objects may go."""

    partition: TopicPartition


@dataclass(frozen=True, slots=True, kw_only=True)
class _TaskFacts:
    """The facts that tasks need."""

    root: str
    grace_start_ms: int  # what is needed since then is kept, epoch milliseconds
    seen_ms: int  # what was written before has been looked at by a former purge, epoch milliseconds
    access: LeasedAccess | None  # the root under the run's lease; None to look only


class ManagedPurge:
    """The purge of one managed root.

    Args:
        held: The root under its lease; None to look only.
    """

    def __init__(self, location: str, request: PurgeRequest, held: LeasedRoot | None) -> None:
        self._location = location
        self._request = request
        self._held = held
        self._objects = open_object_store(location)
        self._are_all_asked = False
        self._facts = _TaskFacts(
            root=location,
            grace_start_ms=request.now_ms - request.grace_ms,
            seen_ms=read_purged(self._objects),
            access=None if held is None else held.access,
        )

    @property
    def is_here(self) -> bool:
        """Whether the files to purge lie on this host's disks. They do not: tasks reach them
        from anywhere."""
        return False

    @property
    def find_due(
        self,
    ) -> Callable[[Stretch[ManagedPartitionPurge]], Stretch[ManagedPartitionPurge]]:
        """Returns those of a stretch with objects that may go."""
        return partial(_find_due, facts=self._facts)

    @property
    def apply(self) -> Callable[[ManagedPartitionPurge], Purged]:
        """Deletes objects of a partition; each delete asks for the lease first."""
        return partial(_purge, facts=self._facts)

    def begin(self) -> None:
        """Forget the results of the last purge. This purge may not come to its end."""
        if self._held is not None:
            self._held.begin_writing()
            forget_purged(self._objects)

    def parts(self) -> Iterator[Sequence[Stretch[ManagedPartitionPurge]]]:
        """Yield runs of partitions that follow each other in the root's listing."""
        listed = list(list_partitions(self._objects))
        partitions = {each for each in listed if self._request.topics.admits(each.topic)}
        self._are_all_asked = len(partitions) == len(listed)
        in_order = sorted(listed, key=lambda partition: key_order(str(partition)))
        stretches = []
        for is_meant, some in groupby(in_order, key=partitions.__contains__):
            neighbours = [
                ManagedPartitionPurge(
                    location=partition_location(self._objects, partition),
                    partition=partition,
                )
                for partition in some
                if is_meant
            ]
            stretches += [
                neighbours[first : first + _IN_A_STRETCH]
                for first in range(0, len(neighbours), _IN_A_STRETCH)
            ]
        for first in range(0, len(stretches), _AT_ONCE):
            yield stretches[first : first + _AT_ONCE]

    def end(self, *, is_whole: bool, now_ms: int) -> Sequence[str]:
        """Delete what attempts have left; remember what was seen; return remarks."""
        if self._held is None:
            return ()
        self._held.begin_writing()
        grace_start_ms = self._facts.grace_start_ms
        remarks = [
            f"{self._location}: {remark}"
            for remark in delete_leftovers(self._objects, grace_start_ms=grace_start_ms)
        ]
        if is_whole and self._are_all_asked:
            record_purged(self._objects, grace_start_ms=grace_start_ms, now_ms=now_ms)
        return remarks


def _find_due(
    stretch: Stretch[ManagedPartitionPurge], facts: _TaskFacts
) -> Stretch[ManagedPartitionPurge]:
    by_partition = {each.partition: each for each in stretch}
    times = {"seen_ms": facts.seen_ms, "grace_start_ms": facts.grace_start_ms}
    try:
        due = find_due(open_object_store(facts.root), list(by_partition), **times)
        return [by_partition[partition] for partition in due]
    except StorageError:
        return stretch  # each is asked for by itself, and its own row says what is wrong


def _purge(purge: ManagedPartitionPurge, facts: _TaskFacts) -> Purged:
    objects, access = open_object_store(facts.root), facts.access
    garbage = find_garbage(objects, purge.partition, grace_start_ms=facts.grace_start_ms)
    keys = garbage.keys()
    if access is not None:
        delete_garbage(objects, garbage, fencing_token=access.lease.token, fence=access.validate)
    steps = [{"operation": "DeleteObject", "name": key, "reason": _SUPERSEDED} for key in keys]
    return Purged(files=len(steps), size_bytes=garbage.size_bytes, steps=steps)
