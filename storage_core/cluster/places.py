"""The replicas of each partition in the log directories of several brokers."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from storage_core.catalog.log_directories import DirectoryKind, SubDirectory
from storage_core.checkpoint.checkpoints import PartitionCheckpoints
from storage_core.cluster.partition_registration import (
    PartitionRegistration,
    TopicIdPartition,
)
from storage_core.maintenance.verification.observed_root import ObservedRoot

_REPLICA_KINDS: Final = frozenset({DirectoryKind.PARTITION})
# Directories with a log that is no current replica of their broker.
_BESIDE_KINDS: Final = frozenset({DirectoryKind.FUTURE, DirectoryKind.STRAY, DirectoryKind.DELETE})


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaPlace:
    """A directory with a copy of a partition, or its absence."""

    broker: int | None  # node id, None where no file says it
    root: str
    directory: str  # its path or URL; empty for a replica that is missing
    kind: DirectoryKind
    is_clean: bool  # whether its log directory has the clean-shutdown marker
    # Its entries in its log directory's checkpoints.
    checkpoints: PartitionCheckpoints = field(default_factory=PartitionCheckpoints)
    problem: str = ""  # why it cannot be opened, as far as its names tell; else empty

    @property
    def is_missing(self) -> bool:
        """Whether an assigned replica is in none of its broker's given directories."""
        return not self.directory


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionPlaces:
    """Where copies of one partition lie."""

    topic: str
    partition: int
    topic_id: str | None  # id of the topic; None where no file says it
    state: PartitionRegistration | None  # its registration, None if unknown
    replicas: tuple[ReplicaPlace, ...]  # replicas of each broker, also missing ones
    beside: tuple[ReplicaPlace, ...]  # copies that moves and deletions left
    # Node ids of assigned brokers whose replica may lie where nobody looked.
    unseen: tuple[int, ...]


def find_places(
    roots: Sequence[ObservedRoot],
    states: Iterable[PartitionRegistration],
    *,
    registered: Mapping[int, Sequence[str]] | None = None,
    are_all_read: bool = True,
) -> list[PartitionPlaces]:
    """Match directories with partitions, by topic id where there is one.

    Equal names with other ids are other partitions. A directory without an id is of the partition
    that the cluster has under its name; if nobody says that, of the only one of that name.

    Args:
        roots: The log directories; several of one broker count as one.
        registered: Ids of the log directories that brokers registered, by node id; None where
            nothing says it.
    """
    registrations = {state.key: state for state in states}
    ids = _ids_of(roots, registrations.values())
    replicas: dict[TopicIdPartition, list[ReplicaPlace]] = {}
    beside: dict[TopicIdPartition, list[ReplicaPlace]] = {}
    for root in roots:
        for entry in root.entries:
            name = entry.topic_partition
            if name is None or entry.kind not in _REPLICA_KINDS | _BESIDE_KINDS:
                continue
            topic_id = entry.topic_id or ids.get((name.topic, name.partition))
            key = (name.topic, name.partition, topic_id)
            groups = replicas if entry.kind in _REPLICA_KINDS else beside
            groups.setdefault(key, []).append(_place(root, entry))
    roots_of: dict[int | None, list[ObservedRoot]] = {}
    for root in roots:
        roots_of.setdefault(_broker(root), []).append(root)
    places = []
    for key in sorted(
        replicas.keys() | beside.keys() | registrations.keys(),
        key=lambda key: (*key[:2], key[2] or ""),
    ):
        state = registrations.get(key)
        own = replicas.get(key, [])
        unseen: list[int] = []
        if state is not None:
            present = {place.broker for place in own}
            absent = [broker for broker in state.replicas if broker not in present]
            for broker in absent:
                own_roots, directories = (
                    roots_of.get(broker, []),
                    (registered or {}).get(broker, ()),
                )
                if _is_seen(state, broker, own_roots, directories, are_all_read=are_all_read):
                    missing = ReplicaPlace(
                        broker=broker,
                        root=own_roots[-1].location,
                        directory="",
                        kind=DirectoryKind.PARTITION,
                        is_clean=True,
                    )
                    own.append(missing)
                else:
                    unseen.append(broker)
        if own or key in beside:
            topic, partition, topic_id = key
            places.append(
                PartitionPlaces(
                    topic=topic,
                    partition=partition,
                    topic_id=topic_id,
                    state=state,
                    replicas=tuple(own),
                    beside=tuple(beside.get(key, ())),
                    unseen=tuple(unseen),
                )
            )
    return places


def _is_seen(
    state: PartitionRegistration,
    broker: int,
    roots: Sequence[ObservedRoot],
    registered: Sequence[str],
    *,
    are_all_read: bool,
) -> bool:
    """Whether a replica absent from the observed directories is really missing. It may be in a
    directory of its broker that was not observed."""
    if not roots or not registered:
        return bool(roots) and are_all_read
    if len(roots) >= len(registered):
        return True
    places = dict(zip(state.replicas, state.directories, strict=False))
    return places.get(broker) in {root.directory_id for root in roots} - {None}


def _broker(root: ObservedRoot) -> int | None:
    return None if root.meta_properties is None else root.meta_properties.node_id


def _ids_of(
    roots: Sequence[ObservedRoot], states: Iterable[PartitionRegistration]
) -> dict[tuple[str, int], str]:
    """Return topic ids by partition, for directories without an id."""
    topic_ids: dict[tuple[str, int], set[str]] = {}
    for root in roots:
        for entry in root.entries:
            name = entry.topic_partition
            if name is not None and entry.kind in _REPLICA_KINDS and entry.topic_id is not None:
                topic_ids.setdefault((name.topic, name.partition), set()).add(entry.topic_id)
    ids = {key: next(iter(some)) for key, some in topic_ids.items() if len(some) == 1}
    return ids | {(state.topic, state.partition): state.topic_id for state in states}


def _place(root: ObservedRoot, entry: SubDirectory) -> ReplicaPlace:
    problem = entry.problem
    if entry.is_link:
        problem = f"{entry.path}: is a link: it is not followed"
    return ReplicaPlace(
        broker=_broker(root),
        root=root.location,
        directory=entry.path,
        kind=entry.kind,
        is_clean=root.context.is_clean,
        checkpoints=root.checkpoints_of(entry.topic_partition),
        problem=problem,
    )
