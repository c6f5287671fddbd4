"""Read of a partition's replicas what a cluster's metadata say of it."""

from collections.abc import Iterator, Sequence, Set
from dataclasses import dataclass, replace
from functools import partial

from pylog_spark.cluster.differences_task import log_name
from pylog_spark.rows import Text, column
from pylog_spark.tasks.message import TaskMessage, attempt
from storage_core.cluster.audit import audit_partition
from storage_core.cluster.metadata_rebuild import (
    find_in_sync,
    find_least_epoch,
    has_records,
)
from storage_core.cluster.places import ANY_INDEX_BYTES, PartitionPlaces
from storage_core.cluster.replica import open_replica
from storage_core.coordinators.transactions import find_largest_producer_id
from storage_core.filenames import TRANSACTION_STATE_TOPIC
from storage_core.log.settled_store import settle
from storage_core.store import open_store


@dataclass(frozen=True, slots=True, kw_only=True)
class RebuildFacts(TaskMessage):
    """What the replicas of a partition say of it."""

    isr: tuple[int, ...] = column("brokers that may lead and lose no record")
    detail: Text = column("why a replica cannot be opened, null for none")
    leader_epoch: int = column("epoch that the next leader's has to be above, -1 without one")
    has_records: bool = column("whether a log has records, or cannot be opened")
    producer_id: int = column("largest producer id that a log names, -1 without one")
    coordinator_epoch: int = column("largest epoch of a transaction's coordinator, -1 for none")
    doubtful: Text = column("leader epochs of its replicas that are not believed, null for none")


def read_partitions(
    items: Sequence[tuple[int, PartitionPlaces]], *, now_ms: int, unnamed: Set[str]
) -> Iterator[RebuildFacts]:
    """Yield a message for each partition, whatever is wrong with it.

    Args:
        unnamed: Directories without a topic id.
    """
    for ordinal, places in items:
        head = RebuildFacts(ordinal=ordinal)
        yield attempt(head, partial(_read, places, now_ms, unnamed), log_name(places))


def _read(
    places: PartitionPlaces, now_ms: int, unnamed: Set[str], head: RebuildFacts
) -> RebuildFacts:
    most = ANY_INDEX_BYTES if places.state is None else places.state.segment_index_bytes
    replicas = [open_replica(place, now_ms, most) for place in places.replicas]
    beside = [open_replica(place, now_ms, most) for place in places.beside]
    audit = audit_partition(replicas, places.state, beside)
    producer_id = audit.largest_producer_id
    if places.topic == TRANSACTION_STATE_TOPIC:
        stores = (open_store(each.place.directory) for each in replicas if each.log is not None)
        producer_id = max(producer_id, *map(find_largest_producer_id, map(settle, stores)), -1)
    isr = find_in_sync(audit, unnamed)
    doubtful = (
        f"broker {replica.broker} has leader epoch {each.run.epoch} at offset "
        f"{each.run.first_offset}, expected {each.expected}"
        for replica, own in zip(replicas, audit.doubtful, strict=True)
        for each in own[:1]
    )
    errors = (f"broker {each.broker}: {each.error}" for each in replicas if each.error)
    return replace(
        head,
        isr=isr,
        detail="; ".join(errors) or None,
        leader_epoch=find_least_epoch(audit, isr),
        has_records=has_records(audit) or any(each.error for each in replicas),
        producer_id=producer_id,
        coordinator_epoch=audit.largest_coordinator_epoch,
        doubtful="; ".join(doubtful) or None,
    )
