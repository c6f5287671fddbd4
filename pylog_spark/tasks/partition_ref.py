"""Which partition a plan, a task and an outcome are about."""

from dataclasses import asdict, dataclass

from pylog_spark.schemas import PartitionName
from storage_core.filenames import TopicPartition


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionRef:
    """One partition of a run."""

    ordinal: int  # its row in the run's table of plans, by which outcomes are told apart
    root: str
    directory: str  # its own directory: a path, or the location of a managed partition
    partition: TopicPartition

    @property
    def name(self) -> PartitionName:
        """Its name in rows and log lines."""
        return PartitionName(root=self.root, **asdict(self.partition))
