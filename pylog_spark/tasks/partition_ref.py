"""Which partition a plan, a task and an outcome are about."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

from storage_core.filenames import TopicPartition


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionRef:
    """One partition of a run.

    Attributes:
        ordinal: Its row in the run's table of plans, by which outcomes are told apart.
        root: Path or URL of its log directory, as the run was given it.
        directory: Its own directory: a path, or the location of a managed partition.
        partition: Its name.
    """

    ordinal: int
    root: str
    directory: str
    partition: TopicPartition

    @classmethod
    def of(cls, ordinal: int, row: Mapping[str, Any]) -> Self:
        """Return the partition of a row that has root, directory, topic and partition."""
        return cls(
            ordinal=ordinal,
            root=row["root"],
            directory=row["directory"],
            partition=TopicPartition(row["topic"], row["partition"]),
        )
