"""The protocol of undoing a run in one root, partition by partition."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from storage_core.catalog.topic_filter import TopicFilter
from storage_core.filenames import TopicPartition


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
