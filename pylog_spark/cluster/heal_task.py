"""Find what heals the logs of partitions; nothing is written."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial

from pylog_spark.rows import Text, column
from pylog_spark.schemas import PartitionName
from pylog_spark.tasks.message import TaskMessage, attempt
from storage_core.cluster.healing import plan_healing
from storage_core.cluster.places import ReplicaPlace
from storage_core.cluster.resting_log import observe_log
from storage_core.errors import StorageError
from storage_core.json_values import to_json


@dataclass(frozen=True, slots=True, kw_only=True)
class HealingTarget:
    """A log to be healed."""

    ordinal: int
    name: PartitionName
    place: ReplicaPlace
    donors: tuple[ReplicaPlace, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class HealingMessage(TaskMessage):
    """What heals a log."""

    healing: Text = column("where it is damaged, and its new segments, as JSON")


def find_healings(targets: Sequence[HealingTarget], quorum: int) -> Iterator[HealingMessage]:
    """Find what heals logs.

    Args:
        quorum: How many donors have to agree, as for ``plan_healing``.
    """
    for target in targets:
        yield attempt(
            HealingMessage(ordinal=target.ordinal), partial(_find, target, quorum), target.name
        )


def _find(target: HealingTarget, quorum: int, head: HealingMessage) -> HealingMessage:
    log = observe_log(target.place)
    if log.error:
        raise StorageError(target.place.directory, log.error)
    donors = [observe_log(place) for place in target.donors]
    return replace(head, healing=to_json(plan_healing(log, donors, quorum=quorum)))
