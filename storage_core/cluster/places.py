"""The replicas of each partition in the log directories of several brokers."""

from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field
from typing import Any, Final

from storage_core.catalog.cluster_metadata import ClusterMetadata
from storage_core.catalog.log_directories import DirectoryKind, SubDirectory
from storage_core.checkpoint.checkpoints import PartitionCheckpoints
from storage_core.config import NEWEST_RELEASE, LogConfig, merge_dynamic_configs
from storage_core.errors import ConfigError
from storage_core.json_values import parse_json
from storage_core.maintenance.verification.observed_root import ObservedRoot

# Read a partition's state from cluster metadata or from a user's file.

_CLEANUP_POLICY: Final = "cleanup.policy"
_UNCLEAN_ELECTION: Final = "unclean.leader.election.enable"
_INDEX_BYTES: Final = "segment.index.bytes"
# A partition's key: equal names with other ids are other partitions; the id is None if no file has
# it.
TopicIdPartition = tuple[str, int, str | None]
# The settings of topics and brokers that matter here.
_TOPIC_KEYS: Final = frozenset(
    {_CLEANUP_POLICY, "min.insync.replicas", _UNCLEAN_ELECTION, _INDEX_BYTES}
)
_BROKER_KEYS: Final = frozenset(
    {"log.cleanup.policy", "min.insync.replicas", _UNCLEAN_ELECTION, "log.index.size.max.bytes"}
)
_NO_SETTINGS: Final[Mapping[str, str]] = {}
# A script wrote it for some hundred thousand partitions, or a person for one.
MAX_STATE_BYTES: Final = 1 << 27
# Where nothing says ``segment.index.bytes``: no index is too large for its broker.
ANY_INDEX_BYTES: Final = (1 << 31) - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class NamedPartition:
    """A partition's name, and the id of its topic."""

    topic: str
    partition: int
    topic_id: str | None  # None where no file says it

    @property
    def key(self) -> TopicIdPartition:
        """What tells it from other partitions."""
        return self.topic, self.partition, self.topic_id

    @property
    def name(self) -> str:
        """Topic and number."""
        return f"{self.topic}-{self.partition}"


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionRegistration(NamedPartition):
    """The controller's view of a partition."""

    topic_id: str
    replicas: tuple[int, ...]  # node ids, the preferred leader first
    isr: tuple[int, ...]  # node ids of the in-sync replicas
    elr: tuple[int, ...] = ()  # node ids of the eligible leader replicas
    last_known_elr: tuple[int, ...] = ()  # node ids of the last known ones
    leader: int = -1  # node id, -1 for none
    leader_epoch: int = 0  # number of the leader's reign
    # The topic's minimum, at most the number of its first partition's replicas.
    min_insync_replicas: int = 1
    is_compacted: bool = False  # whether the topic's cleanup policy removes records by key
    # Whether a replica may lead that is neither in ISR nor ELR.
    is_unclean_election_enabled: bool = False
    segment_index_bytes: int = ANY_INDEX_BYTES  # largest index with which a broker opens its log
    # Id of the log directory of each replica; empty where nothing says it.
    directories: tuple[str, ...] = ()


def states_of(
    metadata: ClusterMetadata,
    broker: Mapping[str, str],
    overrides: Mapping[str, str],
    *,
    release: str = NEWEST_RELEASE,
) -> Iterable[PartitionRegistration]:
    """Yield the partitions of a cluster.

    Args:
        broker: The brokers' own settings; those in the metadata come before them.
        overrides: Settings of topics that come before all.
    """
    dynamic = metadata.broker_configs.get("", {})
    counted = merge_dynamic_configs(broker, dynamic, {}, directories=None, release=release)
    broker = _chosen(counted.settings, _BROKER_KEYS)
    for topic in metadata.topics.values():
        own = metadata.topic_configs.get(topic.name, {})
        settings = _chosen({**own, **overrides}, _TOPIC_KEYS)
        config = LogConfig.from_topic_overrides(settings, broker=broker)
        least = config.min_insync_replicas
        if 0 in topic.partitions:
            least = min(least, len(topic.partitions[0].replicas))
        for number, record in sorted(topic.partitions.items()):
            yield PartitionRegistration(
                topic=topic.name,
                partition=number,
                topic_id=topic.topic_id,
                replicas=record.replicas,
                isr=record.isr,
                elr=record.eligible_leader_replicas,
                last_known_elr=record.last_known_eligible_leader_replicas,
                leader=record.leader,
                leader_epoch=record.leader_epoch,
                min_insync_replicas=least,
                is_compacted=config.is_compacted,
                is_unclean_election_enabled=config.unclean_leader_election_enable,
                segment_index_bytes=config.segment_index_bytes,
                directories=record.directories,
            )


def _chosen(settings: Mapping[str, str], keys: Set[str]) -> dict[str, str]:
    return {key: settings[key] for key in sorted(keys & settings.keys())}


def parse_states(
    content: bytes, file: str, overrides: Mapping[str, str] = _NO_SETTINGS
) -> list[PartitionRegistration]:
    """Read a file of states: ``{"partitions": [{topic, partition, topic_id, replicas, ...}]}``.

    Args:
        overrides: Settings of topics that come before those of the file.
    """
    try:
        partitions = parse_json(content, limit_bytes=MAX_STATE_BYTES)["partitions"]
        return [_parse(row, overrides) for row in partitions]
    except (ConfigError, ValueError, KeyError, TypeError, AttributeError) as error:
        what = f"{type(error).__name__}: {error}"
        reason = f"expected the states of partitions as JSON: {what:.200}"
        raise ConfigError("--state", file, reason) from error


def _parse(row: Mapping[str, Any], overrides: Mapping[str, str]) -> PartitionRegistration:
    settings = {
        key: _text(value)
        for key, value in {**row.get("config", {}), **overrides}.items()
        if key in {_CLEANUP_POLICY, _UNCLEAN_ELECTION, _INDEX_BYTES}
    }
    config = LogConfig.from_topic_overrides(settings)
    index_bytes = config.segment_index_bytes if _INDEX_BYTES in settings else ANY_INDEX_BYTES
    return PartitionRegistration(
        topic=_text(row["topic"]),
        partition=_number(row["partition"]),
        topic_id=_text(row["topic_id"]),
        replicas=(replicas := _numbers(row["replicas"])),
        isr=_numbers(row["isr"]),
        elr=_numbers(row.get("elr", [])),
        last_known_elr=_numbers(row.get("last_known_elr", [])),
        leader=_number(row.get("leader", -1)),
        leader_epoch=_number(row.get("leader_epoch", 0)),
        min_insync_replicas=min(_number(row.get("min_insync_replicas", 1)), len(replicas)),
        is_compacted=config.is_compacted,
        is_unclean_election_enabled=config.unclean_leader_election_enable,
        segment_index_bytes=index_bytes,
    )


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(f"expected a text, found {value!r:.80}")
    return value


def _number(value: Any) -> int:
    if not isinstance(value, int) or isinstance(value, bool):
        raise TypeError(f"expected a whole number, found {value!r:.80}")
    return value


def _numbers(value: Sequence[Any]) -> tuple[int, ...]:
    if not isinstance(value, list):
        raise TypeError(f"expected a list of node ids, found {value!r:.80}")
    return tuple(map(_number, value))


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
class PartitionPlaces(NamedPartition):
    """Where copies of one partition lie."""

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
