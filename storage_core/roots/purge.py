"""The protocol of purging one root of what nobody needs any more."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

from storage_core.catalog.topic_catalog import TopicCatalog
from storage_core.catalog.topic_filter import TopicFilter
from storage_core.commit.purge import Purged
from storage_core.filenames import TopicPartition


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
