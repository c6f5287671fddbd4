"""Say whether a step of a run concerns a partition.

The questions are asked in the order of what they cost: the directory's name, its root, its topic's
config, the partition's own small files, and the checkpoints.
"""

import enum
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from pylog_spark.options import HighWatermarkSource
from pylog_spark.schemas import Reason
from pylog_spark.tasks.failures import attempt_directory, needs_recovery
from pylog_spark.tasks.listing import (
    REASON_OF_KIND,
    REASON_OF_OTHER_KIND,
    OpenStore,
    left_alone,
    reason_to_leave,
)
from pylog_spark.tasks.run_context import RunContext
from storage_core.catalog.off_switch import is_switched_off
from storage_core.catalog.roles import Role
from storage_core.catalog.topic_catalog import TopicConfigSource
from storage_core.checkpoint.checkpoints import Checkpoints, PartitionCheckpoints
from storage_core.config import LogConfig
from storage_core.filenames import TopicPartition
from storage_core.roots.partition_facts import has_expected_topic_id, partition_checkpoints
from storage_core.store import LogStore

_REMOTE_KEY: Final = "remote.storage.enable"


class Step(enum.StrEnum):
    """A step of a run with a need for observations.

    The steps are in the order in which a night does them. As in a broker, partitions that are
    compacted are swept after their rounds, and all others apart from them.
    """

    RETAIN = "retain"  # sweeps what is not compacted
    COMPACT = "compact"
    SWEEP = "sweep"  # of what is compacted
    PURGE = "purge"


@dataclass(frozen=True, slots=True, kw_only=True)
class Admitted:
    """A partition that a step concerns."""

    store: LogStore
    config: LogConfig
    checkpoints: PartitionCheckpoints  # what the checkpoint files, or its manifest, say of it
    high_watermark: int | None  # that which counts; None for the log's end


def admit_topic(step: Step, root: str, topic: str, run: RunContext) -> LogConfig | Reason:
    """Return a topic's config, or the reason against a step."""
    catalog = run.catalogs[root]
    config = catalog.config_for(topic)
    if config is None:
        return Reason.METADATA_UNKNOWN if catalog.metadata_problem else Reason.CONFIG_UNKNOWN
    if config.remote_storage_enable:
        return Reason.TIERED
    if step is Step.RETAIN:
        if config.is_compacted:
            return Reason.COMPACTED
    elif not config.is_compacted:
        return Reason.NOT_COMPACTED
    elif not run.options.cleaner.enabled:
        return Reason.CLEANER_DISABLED
    entry = catalog.find(topic)
    # Where a broker kept a cache of remote indexes, only the cluster itself, or somebody who says
    # it of the topic, knows that a topic is not tiered.
    may_be_tiered = (
        root in run.remote_roots
        and entry is not None
        and entry.source is not TopicConfigSource.CLUSTER_METADATA
        and _REMOTE_KEY not in entry.config_overrides
    )
    return Reason.REMOTE_STORAGE if may_be_tiered else config


def is_only_replica(row: Mapping[str, Any], run: RunContext) -> bool:
    """Whether a broker's partition is known to have no other replica.

    Without an entry in the checkpoint its high watermark is then the log's end, as for the leader
    that its broker becomes.

    Args:
        row: Of ``schemas.PARTITION``.
    """
    partition = TopicPartition(row["topic"], row["partition"])
    is_alone = run.catalogs[row["root"]].has_other_replicas(partition) is False
    return is_alone and Role(row["role"]).facts.is_owned_by_broker


def observe_alone(
    step: Step,
    row: Mapping[str, Any],
    run: RunContext,
    checkpoints_of: Callable[[str], Checkpoints],
    observe: Callable[[Admitted], dict[str, Any]],
    *,
    excluded: frozenset[str] = frozenset(),
    open_store: OpenStore,
) -> dict[str, Any]:
    """Return a step's row of one directory, whatever is wrong with it.

    Args:
        row: Of ``schemas.PARTITION``.
        observe: Returns the columns of a partition that the step concerns.
        excluded: Partition directories that a sweep leaves alone: their compaction failed.
    """

    def work() -> dict[str, Any]:
        admitted = _admit(step, row, run, checkpoints_of, excluded=excluded, open_store=open_store)
        return left_alone(row, admitted) if isinstance(admitted, Reason) else observe(admitted)

    return attempt_directory(row, work, needs_recovery)


def _admit(
    step: Step,
    row: Mapping[str, Any],
    run: RunContext,
    checkpoints_of: Callable[[str], Checkpoints],
    *,
    excluded: frozenset[str],
    open_store: OpenStore,
) -> Admitted | Reason:
    """Admit a partition to a step, or return the reason against it."""
    root, topic, directory = row["root"], row["topic"], row["directory"]
    kinds = REASON_OF_KIND if step is Step.COMPACT else REASON_OF_OTHER_KIND
    reason = reason_to_leave(row, kinds)
    if reason is None and run.is_unclean(root, directory):
        reason = Reason.UNCLEAN_SHUTDOWN
    if reason is None and step is Step.COMPACT and is_switched_off(directory):
        reason = Reason.SWITCHED_OFF
    if reason is not None:
        return reason
    config = admit_topic(step, root, topic, run)
    if isinstance(config, Reason):
        return config
    if step is not Step.COMPACT and is_switched_off(directory):
        reason = Reason.SWITCHED_OFF
    elif directory in excluded:
        reason = Reason.COMPACTED
    if reason is not None:
        return reason
    store = open_store(row)
    if not has_expected_topic_id(store, run.catalogs[root].topic_id(topic)):
        return Reason.INCONSISTENT_TOPIC_ID
    partition = TopicPartition(topic, row["partition"])
    checkpoints = partition_checkpoints(store, partition, partial(checkpoints_of, root))
    high_watermark = checkpoints.high_watermark
    if run.options.high_watermark is HighWatermarkSource.LOG_END:
        high_watermark = None
    elif high_watermark is None and not is_only_replica(row, run):
        return Reason.NO_HIGH_WATERMARK
    return Admitted(
        store=store, config=config, checkpoints=checkpoints, high_watermark=high_watermark
    )
