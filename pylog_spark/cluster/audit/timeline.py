"""Tell leaders, ISR and ELR of partitions over time. The cluster's metadata log says them."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from pylog_spark.cluster.audit.driver import open_places
from pylog_spark.options import JobOptions
from storage_core.catalog.cluster_metadata import PartitionVersion, list_partition_versions
from storage_core.errors import ConfigError

# Of a row for programs.
TIMELINE_KEYS: Final = (
    *("topic", "partition", "topic_id", "offset", "timestamp_ms", "leader", "leader_epoch"),
    *("partition_epoch", "isr", "elr", "last_known_elr", "replicas"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Timeline:
    """The versions of partitions."""

    versions: Sequence[PartitionVersion]  # by partition, then in the order of the log
    belief: str  # whose metadata they are, and how old
    notes: Sequence[str] = ()  # what else a person should know of the log directories
    unread: Mapping[str, str] = field(default_factory=dict)

    def rows(self) -> Iterator[dict[str, Any]]:
        """Yield each version under ``TIMELINE_KEYS``."""
        for version in self.versions:
            state = version.state
            yield {
                "topic": version.topic,
                "partition": state.partition,
                "topic_id": state.topic_id,
                "offset": version.offset,
                "timestamp_ms": version.timestamp_ms,
                "leader": state.leader,
                "leader_epoch": state.leader_epoch,
                "partition_epoch": state.partition_epoch,
                "isr": list(state.isr),
                "elr": list(state.eligible_leader_replicas),
                "last_known_elr": list(state.last_known_eligible_leader_replicas),
                "replicas": list(state.replicas),
            }


def read_timeline(roots: Sequence[str | Path], options: JobOptions) -> Timeline:
    """Return the versions of the chosen partitions from the cluster's metadata. The newest
    metadata of the roots are read."""
    job, _, _, cluster = open_places(roots, options, None)
    if cluster.metadata is None:
        reasons = "; ".join([cluster.belief, *cluster.notes])
        raise ConfigError("--timeline", None, f"expected metadata of the cluster: {reasons}")
    versions = [
        version
        for version in list_partition_versions(Path(cluster.directory))
        if job.topics.admits(version.topic)
    ]
    versions.sort(key=lambda each: (each.topic, each.state.topic_id, each.state.partition))
    return Timeline(
        versions=versions, belief=cluster.belief, notes=cluster.notes, unread=cluster.unread
    )
