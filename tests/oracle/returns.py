"""Brokers that come back to what a night left: who leads, what followers cut, what is left.

    state = copy_state(cluster, folder)          # no node runs
    outcome = come_back(cluster, [2, 3, 1])      # the log directories are as in the state

Everything is told by Kafka: leaders by the controller's metadata log, cuts by the brokers' own log
lines, records by its classes over the files that are left.
"""

import re
import shutil
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from storage_core.catalog.cluster_metadata import list_partition_versions
from storage_core.catalog.metadata_image import PartitionRecord
from storage_core.cluster.elections import NO_LEADER
from tests.oracle.broker import BrokerFailure
from tests.oracle.broker_clients import Partition
from tests.oracle.cluster import CONTROLLER_ID, METADATA_DIRECTORY, NODE_IDS, Cluster
from tests.oracle.nights import PARTITIONS, TOPICS, UNCLEAN, read_log

PLACES: Final = [(topic, number) for topic in TOPICS for number in range(PARTITIONS)]
_TIMEOUT_S: Final = 120
_POLL_S: Final = 0.2
# UnifiedLog.truncateTo where it does anything, and truncateFullyAndStartAt.
_CUT: Final = re.compile(
    r"\[UnifiedLog partition=(?P<topic>\S+)-(?P<partition>\d+), dir=\S+\] "
    r"(?:Truncating to offset|Truncate and start at offset) (?P<offset>\d+)"
)

# Offset, leader epoch and value of a record.
Record = tuple[int, int, bytes]


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What became of one partition."""

    leader: int | None  # node id; None without a leader
    way: str  # how it was elected, in the words of an audit
    others: Sequence[int]  # who else led since
    # Offsets at which brokers cut their logs, in order, by node id
    cuts: Mapping[int, Sequence[int]]
    records: Collection[Record]  # what the leader's log has; nothing without a leader


def copy_state(cluster: Cluster, folder: Path) -> None:
    """Copy the log directories of all nodes; none of them runs."""
    for node in (*NODE_IDS, CONTROLLER_ID):
        shutil.copytree(cluster.node(node).log_directory, folder / str(node))


def restore_state(cluster: Cluster, folder: Path) -> None:
    """Put copied log directories back."""
    for node in (*NODE_IDS, CONTROLLER_ID):
        directory = cluster.node(node).log_directory
        shutil.rmtree(directory)
        shutil.copytree(folder / str(node), directory)


def records_of(folder: Path) -> dict[Partition, dict[int, set[Record]]]:
    """Return what each broker's copied log directory has, by partition and node id."""
    return {
        place: {node: set(read_log(folder / str(node) / _name(place))) for node in NODE_IDS}
        for place in PLACES
    }


def come_back(
    cluster: Cluster,
    order: Sequence[int],
    *,
    then: Callable[[], None] | None = None,
    last: Sequence[int] = (),
    at_last: Callable[[], None] | None = None,
) -> dict[Partition, Outcome]:
    """Start the controller, and brokers one after another; end them all when they are in sync.

    Args:
        cluster: None of its nodes runs.
        order: Node ids of the brokers that start.
        last: Node ids of the brokers that start thereafter.
    """
    metadata = cluster.controller.log_directory / METADATA_DIRECTORY
    logged = {node: len(cluster.node(node).log_lines()) for node in NODE_IDS}
    cluster.controller.start()
    wait_for("the brokers' sessions end", lambda: fenced_brokers(cluster) == set(NODE_IDS))
    begin = cluster.metadata().end_offset
    for node in order:
        _start(cluster, node)
    if then is not None:
        then()
    for node in last:
        _start(cluster, node)
    if at_last is not None:
        at_last()
    up = {*order, *last}
    wait_for("followers are in sync", lambda: _are_in_sync(cluster, up))
    for node in up:
        cluster.node(node).kill()
    cluster.controller.kill()
    cuts = {node: cuts_of(cluster.node(node).log_lines()[logged[node] :]) for node in NODE_IDS}
    versions = _versions_of(metadata)
    outcomes = {}
    for place in PLACES:
        history = versions[place]
        new = [number for number, (offset, _) in enumerate(history) if offset >= begin]
        elected = [
            number
            for number in new
            if history[number][1].leader not in {NO_LEADER, history[number - 1][1].leader}
        ]
        last = history[-1][1]
        leader = None if last.leader == NO_LEADER else last.leader
        records: set[Record] = set()
        if leader is not None:
            records = set(read_log(cluster.node(leader).log_directory / _name(place)))
        outcomes[place] = Outcome(
            leader=leader,
            way="none" if leader is None else _way(place, history[elected[-1] - 1][1], leader),
            others=[history[number][1].leader for number in elected[:-1]],
            cuts={node: cut[place] for node, cut in cuts.items() if place in cut},
            records=records,
        )
    return outcomes


def _start(cluster: Cluster, node: int) -> None:
    """Start a broker, and wait until the controller lets it lead."""
    cluster.node(node).start()
    wait_for(f"broker {node} may lead", lambda: node not in fenced_brokers(cluster))
    # A broker says after its start that a partition has another log directory now; till then an
    # unclean election passes it over.
    wait_for("unclean elections", lambda: _have_leaders(cluster))


def _name(place: Partition) -> str:
    return f"{place[0]}-{place[1]}"


def _way(place: Partition, before: PartitionRecord, leader: int) -> str:
    """Return how a leader came to lead, by the partition just before."""
    if leader in before.isr:
        return "isr"
    elr = before.eligible_leader_replicas
    if leader in elr:
        return "elr"
    # The last of the ELR may leave it, and the last known leader be elected, in one change: that
    # happens where an unclean election had not come first.
    is_unclean = TOPICS[place[0]].config[UNCLEAN] == "true"
    may_be_last = not is_unclean or not (before.isr or elr)
    if may_be_last and before.last_known_eligible_leader_replicas == (leader,):
        return "last_known_leader"
    return "unclean"


def _versions_of(metadata: Path) -> dict[Partition, list[tuple[int, PartitionRecord]]]:
    versions: dict[Partition, list[tuple[int, PartitionRecord]]] = {}
    for each in list_partition_versions(metadata):
        place = (each.topic, each.state.partition)
        versions.setdefault(place, []).append((each.offset, each.state))
    return versions


def cuts_of(lines: Sequence[str]) -> dict[Partition, list[int]]:
    """Return where a broker's log lines say that it cut its logs, in order."""
    cuts: dict[Partition, list[int]] = {}
    for match in filter(None, map(_CUT.search, lines)):
        place = (match["topic"], int(match["partition"]))
        cuts.setdefault(place, []).append(int(match["offset"]))
    return cuts


def fenced_brokers(cluster: Cluster) -> set[int]:
    """Return the node ids of the brokers that may not lead."""
    return {node for node, broker in cluster.metadata().brokers.items() if broker.fenced}


def _have_leaders(cluster: Cluster) -> bool:
    """Whether all partitions have a leader in which any replica may lead."""
    return all(
        partition.leader != NO_LEADER
        for topic in cluster.metadata().topics.values()
        for partition in topic.partitions.values()
        if TOPICS[topic.name].config[UNCLEAN] == "true"
    )


def _are_in_sync(cluster: Cluster, up: set[int]) -> bool:
    """Whether brokers are in sync in all partitions that have a leader."""
    return all(
        up.issubset(partition.isr)
        for topic in cluster.metadata().topics.values()
        for partition in topic.partitions.values()
        if partition.leader != NO_LEADER
    )


def wait_for(what: str, is_so: Callable[[], bool]) -> None:
    """Wait until something is so."""
    deadline = time.monotonic() + _TIMEOUT_S
    while not is_so():
        if time.monotonic() > deadline:
            raise BrokerFailure(f"not after {_TIMEOUT_S} s: {what}", "")
        time.sleep(_POLL_S)
