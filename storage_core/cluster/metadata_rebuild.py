"""Make a cluster's metadata anew from the logs of its brokers.

Topics, their ids, partitions and replicas are those of the directories. What the directories do not
say is not made up: it is listed. Two things are written that no file has:

- Each broker is registered with the epoch that its next registration names: that of its marker of a
  clean shutdown, none after a kill. A controller takes a broker that names another one out of ISR
  and ELR, as its log may have lost records since. Here the log was read after it lost them.
- Leader epochs and producer ids go on above all that are in the logs; of epochs that are not
  believed, above those alone that followers have to take from a leader.

A controller of 4.4 begins with the records of the snapshot in its ``__cluster_metadata-0``. If that
has none, or before 4.4, it begins with those of ``bootstrap.checkpoint`` in its log directory. It
reads voters from the former alone. So both are written. One of 4.1 does not start if the former has
records.
"""

import enum
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from storage_core.catalog.bootstrap_snapshot import (
    BOOTSTRAP_SNAPSHOT,
    BootstrapMetadata,
    encode_snapshot,
)
from storage_core.catalog.cluster_metadata import (
    CLUSTER_METADATA_DIRECTORY,
    ClusterMetadata,
    MetadataFile,
    Voter,
    read_quorum,
)
from storage_core.catalog.metadata_image import (
    PartitionRecord,
    RegisterBrokerRecord,
    TopicMetadata,
    TopicRecord,
    decode_metadata_record,
)
from storage_core.catalog.release_features import Release
from storage_core.catalog.topic_catalog import INTERNAL_TOPICS, TopicCatalog, TopicConfigSource
from storage_core.checkpoint.broker_files import MetaProperties
from storage_core.checkpoint.checkpoints import INT_MAX, LONG_MAX, UNASSIGNED_DIRECTORY
from storage_core.checkpoint.lock import LogDirectoryLock
from storage_core.cluster.audit import Candidate, PartitionAudit
from storage_core.cluster.log_batches import count
from storage_core.cluster.metadata_copies import (
    has_at_most_format,
    log_is_there,
    missing_properties,
    write_identity,
    write_metadata_log,
)
from storage_core.cluster.places import NamedPartition
from storage_core.cluster.replica import HindranceKind
from storage_core.commit import WriteFile
from storage_core.commit.scratch import remove_unfinished
from storage_core.errors import ConfigError, PylogError
from storage_core.filenames import (
    BOOTSTRAP_SNAPSHOT_FILE,
    PARTITION_METADATA_FILE,
    TRANSACTION_STATE_TOPIC,
)
from storage_core.local_files import is_there
from storage_core.maintenance.verification.observed_root import ObservedRoot, broker_epoch_of
from storage_core.messages.fields import MAX_STRING_BYTES
from storage_core.messages.metadata_records import METADATA_RECORDS
from storage_core.store.local import LocalStore
from storage_core.wording import count_text

# What of its metadata a rebuilt cluster lacks, by name alone.


class UnknownPart(enum.StrEnum):
    """What a rebuilt cluster lacks, or may have otherwise than before."""

    ACCESS_CONTROL = "ACCESS_CONTROL"
    CREDENTIALS = "CREDENTIALS"
    QUOTAS = "QUOTAS"
    BROKER_CONFIG = "BROKER_CONFIG"
    GROUP_CONFIG = "GROUP_CONFIG"
    CLIENT_METRICS = "CLIENT_METRICS"
    TOPIC = "TOPIC"
    TOPIC_CONFIG = "TOPIC_CONFIG"
    TOPIC_ID = "TOPIC_ID"
    REPLICA = "REPLICA"
    REPLICA_ORDER = "REPLICA_ORDER"
    ISR = "ISR"
    EPOCH = "EPOCH"
    STRAY = "STRAY"


_NO_LEADER: Final = -1
# A broker gets ids in blocks of so many, and may have given away all of a block.
_PRODUCER_IDS: Final = 1_000
# Each broker has a block of its own, and a producer that lives on may have no record in any log.
_PRODUCER_ID_MARGIN: Final = 1_000 * _PRODUCER_IDS
# Clients and logs that are not here may know of later elections.
_EPOCH_MARGIN: Final = 100
# Before transactions of metadata, the first leader appends all records in one batch.
_MOST_RECORDS: Final = 10_000
_MIN_IN_SYNC: Final = "min.insync.replicas"
_UNCLEAN_ELECTION: Final = "unclean.leader.election.enable"


@dataclass(frozen=True, slots=True, kw_only=True)
class UnknownFact:
    """What nobody can tell any more."""

    part: UnknownPart
    subject: str  # the topic, partition or directory; empty for the whole cluster
    detail: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RebuiltPartition(NamedPartition):
    """A partition as its logs have it."""

    directories: Mapping[int, str]  # directory id of each replica, by broker
    isr: tuple[int, ...] = ()  # brokers that may lead
    detail: str = ""  # why nobody may lead; else empty
    leader_epoch: int = -1  # the epoch that the next leader's has to be above, -1 without one
    has_records: bool = False
    unnamed: tuple[str, ...] = ()  # its directories without a topic id
    producer_id: int = -1  # largest producer id that a log names, -1 without one
    coordinator_epoch: int = -1  # largest epoch of a transaction's coordinator, -1 without one
    doubtful: str = ""  # its leader epochs that are not believed


def find_in_sync(audit: PartitionAudit, unnamed: Set[str]) -> tuple[int, ...]:
    """Return the brokers that may lead and lose no record.

    Of several with other records, it is those of the latest leader; of equal ones, those without a
    leader epoch that is not believed: followers do not get past it. A broker sets a log without a
    topic id aside and begins an empty one: that is in sync only if there is no record.

    Args:
        unnamed: Directories without a topic id.
    """
    safe = [
        candidate
        for candidate in audit.candidates
        if candidate.is_safe
        and (candidate.replica.place.directory not in unnamed or not has_records(audit))
    ]
    whole = [candidate for candidate in safe if not count(candidate.lost)]
    leaders = whole or safe
    leaders = [candidate for candidate in leaders if not candidate.doubtful] or leaders
    newest = max(map(_position, leaders), default=None)
    brokers = (each.replica.broker for each in leaders if _position(each) == newest)
    return tuple(sorted(broker for broker in brokers if broker is not None))


def find_least_epoch(audit: PartitionAudit, isr: Sequence[int]) -> int:
    """Return the epoch that the next leader's has to be above: the largest one that is believed.

    A follower takes no batch of an epoch above its leader's, a flipped one neither. So where only
    replicas in sync have such a batch, and others lack it, its epoch counts, too.

    Args:
        isr: Brokers that may lead.
    """
    skipped = (
        cut.hindrance.epoch
        for candidate in audit.candidates
        if candidate.replica.broker in isr
        for cut in candidate.cuts
        if cut.hindrance is not None and cut.hindrance.kind is HindranceKind.BATCH_SKIPPED
    )
    return max(
        [audit.largest_epoch, *(each for each in skipped if each + 2 * _EPOCH_MARGIN < INT_MAX)]
    )


def has_records(audit: PartitionAudit) -> bool:
    """Return whether a replica has a record."""
    logs = (candidate.replica.log for candidate in audit.candidates)
    return any(log is not None and log.log_end_offset > log.log_start_offset for log in logs)


def _position(candidate: Candidate) -> tuple[int, int]:
    """Return epoch and end of a candidate's log."""
    log = candidate.replica.log
    if log is None:
        return -1, 0
    end = log.log_end_offset
    epochs = (each.epoch for each in candidate.epochs if each.start_offset < end)
    return max(epochs, default=-1), end


def register_brokers(roots: Iterable[ObservedRoot]) -> list[RegisterBrokerRecord]:
    """Return brokers' registrations that their next ones do not contradict.

    Args:
        roots: Log directories with a node id.
    """
    own: dict[int, list[ObservedRoot]] = {}
    for root in roots:
        if root.meta_properties is not None and root.meta_properties.node_id is not None:
            own.setdefault(root.meta_properties.node_id, []).append(root)
    records = []
    for broker, directories in sorted(own.items()):
        ids = [each for root in directories if (each := root.directory_id) is not None]
        records.append(
            RegisterBrokerRecord(
                broker_id=broker,
                broker_epoch=broker_epoch_of(directories),
                fenced=True,
                log_directories=tuple(ids),
            )
        )
    return records


@dataclass(frozen=True, slots=True, kw_only=True)
class RebuiltMetadata:
    """The metadata of a cluster, made anew."""

    metadata: BootstrapMetadata
    unknowns: tuple[UnknownFact, ...]

    @property
    def partition_count(self) -> int:
        """How many partitions there are."""
        return sum(len(topic.partitions) for topic in self.metadata.topics)


def plan_metadata(
    partitions: Sequence[RebuiltPartition],
    *,
    release: Release,
    brokers: Sequence[RegisterBrokerRecord],
    catalog: TopicCatalog,
    older: ClusterMetadata | None,
) -> RebuiltMetadata:
    """Return the metadata of a cluster by what its logs have.

    Args:
        older: An older copy of the metadata, None without one.
    """
    topics, unnamed = _by_topic(partitions)
    if not topics:
        reason = "no partition is here; `kafka-storage format` begins a cluster without topics"
        raise ConfigError("ROOT", None, reason)
    configs, config_facts = _find_configs(topics, catalog)
    coordinator_epoch = max((each.coordinator_epoch for each in partitions), default=-1)
    named = [
        TopicMetadata(
            name=topic,
            topic_id=topic_id,
            partitions={
                each.partition: _record(each, topic_id, older, coordinator_epoch) for each in own
            },
        )
        for (topic, topic_id), own in topics.items()
    ]
    homes = {broker for own in topics.values() for each in own for broker in each.directories}
    metadata = BootstrapMetadata(
        release=release,
        topics=named,
        topic_configs=configs,
        broker_configs={} if older is None else older.broker_configs,
        group_configs={} if older is None else older.group_configs,
        client_metrics_configs={} if older is None else older.client_metrics_configs,
        # A node without a replica registers by itself, if it is a broker.
        brokers=[each for each in brokers if each.broker_id in homes],
        next_producer_id=_next_producer_id(partitions, older),
    )
    if not release.has_transactions and sum(1 for _ in metadata.values()) > _MOST_RECORDS:
        reason = f"its first leader appends at most {_MOST_RECORDS:,} records; say 3.6 or later"
        raise ConfigError("--release-version", release.version, reason)
    facts = [*_of_cluster(older), *_of_brokers(brokers, older), *config_facts]
    facts += [
        UnknownFact(
            part=UnknownPart.TOPIC_ID,
            subject=topic,
            detail="no file has its id, and its logs are empty: it is left out, and a broker sets "
            "these directories aside; create it anew",
        )
        for topic in unnamed
    ]
    facts += _of_partitions(topics, older)
    return RebuiltMetadata(metadata=metadata, unknowns=tuple(facts))


def _next_producer_id(partitions: Iterable[RebuiltPartition], older: ClusterMetadata | None) -> int:
    last = max(partitions, key=lambda each: each.producer_id)
    block = (last.producer_id // _PRODUCER_IDS + 1) * _PRODUCER_IDS
    first = max(block, 0 if older is None else older.next_producer_id) + _PRODUCER_ID_MARGIN
    if first > LONG_MAX - _PRODUCER_ID_MARGIN:
        raise ConfigError("ROOT", last.name, f"no producer ids are left above {last.producer_id}")
    return first


_Topics = Mapping[tuple[str, str], Sequence[RebuiltPartition]]


def _by_topic(partitions: Iterable[RebuiltPartition]) -> tuple[_Topics, list[str]]:
    """Return each topic's partitions, and the topics without an id."""
    by_name: dict[str, list[RebuiltPartition]] = {}
    for each in partitions:
        by_name.setdefault(each.topic, []).append(each)
    topics: dict[tuple[str, str], list[RebuiltPartition]] = {}
    names: dict[str, str] = {}
    unnamed = []
    for topic, own in sorted(by_name.items()):
        ids = sorted({each.topic_id for each in own if each.topic_id is not None})
        if len(ids) > 1:
            reason = (
                f"the topic has {len(ids)} ids: {', '.join(ids)}; move the directories of those "
                f"that were deleted away (each has its id in {PARTITION_METADATA_FILE})"
            )
            raise ConfigError("ROOT", topic, reason)
        if not ids:
            _require_empty(own)
            unnamed.append(topic)
            continue
        numbers = {each.partition for each in own}
        lost = next((each for each in range(max(numbers)) if each not in numbers), None)
        if lost is not None:
            reason = (
                f"no replica is here, though the topic has partition {max(numbers)}: give the log "
                "directory that has it, or make an empty directory of this name in that of the "
                "broker which is to begin it anew"
            )
            raise ConfigError("ROOT", f"{topic}-{lost}", reason)
        other = names.setdefault(ids[0], topic)
        if other != topic:
            reason = (
                f"it has the id of {other}, {ids[0]}: move the directories of the topic that was "
                f"renamed away, or write its own id into {PARTITION_METADATA_FILE}"
            )
            raise ConfigError("ROOT", topic, reason)
        topics[topic, ids[0]] = sorted(own, key=lambda each: each.partition)
    return topics, unnamed


def _require_empty(own: Iterable[RebuiltPartition]) -> None:
    for each in own:
        if each.has_records:
            reason = (
                f"{each.detail or 'it has records'}; no {PARTITION_METADATA_FILE} of its topic "
                "says its id: "
                "write that file (two lines, `version: 0` and `topic_id: ID`) into each of its "
                "directories, or move them away"
            )
            raise ConfigError("ROOT", each.name, reason)


def _find_configs(
    topics: _Topics, catalog: TopicCatalog
) -> tuple[dict[str, Mapping[str, str]], list[UnknownFact]]:
    """Return the settings of topics, and what is not known of them."""
    configs: dict[str, Mapping[str, str]] = {}
    facts = []
    unknown: list[str] = []
    for (topic, _), own in topics.items():
        entry = catalog.find(topic)
        detail = ""
        is_assumed = entry is None or entry.source is TopicConfigSource.ASSUMED
        if topic in INTERNAL_TOPICS and is_assumed:
            most = max(len(each.directories) for each in own)
            settings = dict(INTERNAL_TOPICS[topic] if entry is None else entry.config_overrides)
            if int(settings.get(_MIN_IN_SYNC, 0)) > most:
                del settings[_MIN_IN_SYNC]
            configs[topic] = settings
            detail = "it has the settings with which Kafka 4.4 creates it"
        elif entry is None:
            unknown.append(topic)
        else:
            configs[topic] = entry.config_overrides
            if is_assumed:
                detail = "it has the defaults of its brokers, as --assume-defaults says"
            elif entry.ignored_keys:
                keys = ", ".join(entry.ignored_keys)
                detail = f"Kafka 4.4 knows no settings of these names: {keys}"
        details = [detail] if detail else []
        if topic in configs and not all(each.isr for each in own):
            configs[topic] = {**configs[topic], _UNCLEAN_ELECTION: "false"}
            details.append(
                f"{_UNCLEAN_ELECTION} is false, whatever it was: else the first broker that starts "
                "might lead a partition of which nobody is in sync; change it when all have leaders"
            )
        facts += [
            UnknownFact(part=UnknownPart.TOPIC_CONFIG, subject=topic, detail=each)
            for each in details
        ]
        for key, value in configs.get(topic, {}).items():
            if len(value.encode()) > MAX_STRING_BYTES:
                reason = f"{key} has more than {MAX_STRING_BYTES:,} bytes, which no record takes"
                raise ConfigError("ROOT", topic, reason)
    if unknown:
        reason = (
            "nothing says the config of these topics, and by a default their records may be "
            "deleted: give --topic-dump, --older-copy, `topics:` in --config (`pylog config init "
            "ROOT > topics.yaml` begins one), or --assume-defaults GLOB"
        )
        raise ConfigError("ROOT", ", ".join(unknown), reason)
    return configs, facts


def _record(
    own: RebuiltPartition, topic_id: str, older: ClusterMetadata | None, coordinator_epoch: int
) -> PartitionRecord:
    """Return a partition's record: without a leader, until a broker starts."""
    before = _before(topic_id, own.partition, older)
    epoch = max(own.leader_epoch, -1 if before is None else before.leader_epoch)
    if own.topic == TRANSACTION_STATE_TOPIC:  # its leader's epoch is that of markers
        epoch = max(epoch, coordinator_epoch)
    if epoch + _EPOCH_MARGIN >= INT_MAX:  # an election needs a later one
        reason = f"expected leader epochs below {INT_MAX - _EPOCH_MARGIN}, found {epoch}"
        raise ConfigError("ROOT", own.name, reason)
    brokers = sorted(own.directories)
    if before is None:  # spread over brokers
        first = own.partition % len(brokers)
        brokers = brokers[first:] + brokers[:first]
    else:
        order = {broker: place for place, broker in enumerate(before.replicas)}
        brokers.sort(key=lambda broker: order.get(broker, len(order)))
    return PartitionRecord(
        topic_id=topic_id,
        partition=own.partition,
        replicas=tuple(brokers),
        isr=tuple(broker for broker in brokers if broker in own.isr),
        removing_replicas=(),
        adding_replicas=(),
        leader=_NO_LEADER,
        leader_epoch=epoch + _EPOCH_MARGIN,
        partition_epoch=0,
        directories=tuple(own.directories[broker] or UNASSIGNED_DIRECTORY for broker in brokers),
    )


def _before(topic_id: str, partition: int, older: ClusterMetadata | None) -> PartitionRecord | None:
    topic = None if older is None else older.topics.get(topic_id)
    return None if topic is None else topic.partitions.get(partition)


# Types of records of each part, as METADATA_RECORDS has them.
_NOT_CARRIED_OVER: Final = {
    UnknownPart.ACCESS_CONTROL: ("access control entries", (18,)),
    UnknownPart.CREDENTIALS: ("SCRAM credentials and delegation tokens", (10, 11)),
    UnknownPart.QUOTAS: ("quotas of clients and users", (14,)),
}


# Configs of an older copy that are written as they are.
_CARRIED_OVER: Final = {
    UnknownPart.GROUP_CONFIG: "settings of groups",
    UnknownPart.CLIENT_METRICS: "subscriptions to metrics of clients",
}


def _of_cluster(older: ClusterMetadata | None) -> Iterator[UnknownFact]:
    for part, (words, types) in _NOT_CARRIED_OVER.items():
        detail = f"{words}: none is written"
        records = 0 if older is None else sum(older.skipped.get(each, 0) for each in types)
        if records:
            names = " and ".join(METADATA_RECORDS[each].name for each in types)
            detail += f"; the older copy has {count_text(records, 'record')} of {names}"
        yield UnknownFact(part=part, subject="", detail=detail)
    detail = "settings of brokers that were made while they ran: "
    detail += (
        "none is written"
        if older is None
        else "those of the older copy that concern logs, and no other"
    )
    yield UnknownFact(part=UnknownPart.BROKER_CONFIG, subject="", detail=detail)
    for part, words in _CARRIED_OVER.items():
        detail = f"{words}: {'none is written' if older is None else 'those of the older copy'}"
        yield UnknownFact(part=part, subject="", detail=detail)
    if older is None:
        detail = "which replica is the preferred leader: they take turns, partition by partition"
        yield UnknownFact(part=UnknownPart.REPLICA_ORDER, subject="", detail=detail)
    detail = (
        "topics of which no replica is here, and partitions above the largest of a topic: in a "
        "topic with fewer of them a key goes elsewhere"
    )
    yield UnknownFact(part=UnknownPart.TOPIC, subject="", detail=detail)
    detail = "replicas in log directories that were not given: a broker sets them aside"
    yield UnknownFact(part=UnknownPart.REPLICA, subject="", detail=detail)


def _of_brokers(
    brokers: Iterable[RegisterBrokerRecord], older: ClusterMetadata | None
) -> Iterator[UnknownFact]:
    present = {directory for broker in brokers for directory in broker.log_directories}
    for node, broker in sorted({} if older is None else older.brokers.items()):
        lost = [directory for directory in broker.log_directories if directory not in present]
        if lost:
            detail = (
                f"the older copy has its log directories {', '.join(lost)}, and they are not here: "
                "a broker sets aside what lies there"
            )
            yield UnknownFact(part=UnknownPart.REPLICA, subject=f"broker {node}", detail=detail)


def _of_partitions(topics: _Topics, older: ClusterMetadata | None) -> Iterator[UnknownFact]:
    for (_, topic_id), own in topics.items():
        for each in own:
            if not each.isr:
                detail = (
                    f"{each.detail or 'no replica may lead without a loss'}: it has no leader; "
                    "`pylog audit` says what each would lose, an unclean election "
                    "(kafka-leader-election.sh) takes one"
                )
                yield UnknownFact(part=UnknownPart.ISR, subject=each.name, detail=detail)
            if each.doubtful:
                detail = (
                    f"{each.doubtful}: perhaps a flipped bit, which no checksum covers; "
                    "`pylog explain EPOCH_DOUBTFUL` says what to do before that broker starts"
                )
                yield UnknownFact(part=UnknownPart.EPOCH, subject=each.name, detail=detail)
            for directory in each.unnamed if each.has_records else ():
                detail = (
                    f"it has no {PARTITION_METADATA_FILE}: its broker sets it aside, unless that "
                    f"file says `version: 0` and `topic_id: {topic_id}` in two lines by then"
                )
                yield UnknownFact(part=UnknownPart.TOPIC_ID, subject=directory, detail=detail)
            before = _before(topic_id, each.partition, older)
            lost = sorted({*(before.replicas if before else ())} - each.directories.keys())
            if lost:
                brokers = ", ".join(map(str, lost))
                detail = f"the older copy has it on broker {brokers} too, and it is not here"
                yield UnknownFact(part=UnknownPart.REPLICA, subject=each.name, detail=detail)
    present = {topic_id: {each.partition for each in own} for (_, topic_id), own in topics.items()}
    for topic_id, topic in sorted({} if older is None else older.topics.items()):
        missing = sorted(topic.partitions.keys() - present.get(topic_id, set()))
        for number in missing:
            detail = "the older copy has it, and no log of it is here: deleted since, or lost"
            subject = f"{topic.name}-{number}"
            yield UnknownFact(part=UnknownPart.TOPIC, subject=subject, detail=detail)


@dataclass(frozen=True, slots=True, kw_only=True)
class BootstrapTarget:
    """A controller's log directory that begins with rebuilt metadata."""

    directory: Path
    properties: MetaProperties
    is_formatted: bool  # whether it has its ``meta.properties``
    replaced_topics: int  # how many topics the snapshot has that is replaced: of an earlier rebuild


def plan_targets(
    targets: Mapping[int, Path], *, cluster_id: str, voters: Sequence[Voter]
) -> list[BootstrapTarget]:
    """Check the log directories of controllers.

    Args:
        targets: Log directories, by node id.
        voters: Voters that the log is to have; empty for fixed ones.
    """
    ids = {voter.node_id: voter.directory_id for voter in voters}
    planned = []
    for node, directory in sorted(targets.items()):
        if voters and node not in ids:
            names = ", ".join(map(str, sorted(ids)))
            raise ConfigError("--into", node, f"is none of --initial-controllers: {names}")
        wanted = MetaProperties(
            version=1, cluster_id=cluster_id, node_id=node, directory_id=ids.get(node)
        )
        missing = missing_properties(directory, wanted)
        if not has_at_most_format(directory):
            raise log_is_there(directory)
        planned.append(
            BootstrapTarget(
                directory=directory,
                properties=wanted,
                is_formatted=missing is None,
                replaced_topics=_count_replaced(directory, voters),
            )
        )
    others = sorted(ids.keys() - targets.keys())
    if others:
        names = ", ".join(map(str, others))
        reason = (
            f"expected a directory for each of --initial-controllers, {names} has none: a voter "
            "that is only formatted may lead, and then brokers set all logs aside"
        )
        raise ConfigError("--into", None, reason)
    if len({each.directory.resolve() for each in planned}) < len(planned):
        there = ", ".join(str(each.directory) for each in planned)
        raise ConfigError("--into", there, "expected another directory for each controller")
    return planned


def _count_replaced(directory: Path, voters: Sequence[Voter]) -> int:
    """Return how many topics a directory's bootstrap snapshots have, 0 without one."""
    of_log = _count_in_log(directory, voters)
    file = directory / BOOTSTRAP_SNAPSHOT_FILE
    if not is_there(file, may_be_link=True):
        return of_log
    try:
        records = (
            decode_metadata_record(value, file=str(file), offset=offset)
            for batch in MetadataFile(file, may_be_torn=False).batches()
            for offset, value in batch.values
        )
        return max(of_log, sum(isinstance(record, TopicRecord) for record in records))
    except PylogError as error:
        reason = f"its snapshot cannot be read: {error}; move {BOOTSTRAP_SNAPSHOT_FILE} away"
        raise ConfigError("--into", directory, reason) from error


def _count_in_log(directory: Path, voters: Sequence[Voter]) -> int:
    log = directory / CLUSTER_METADATA_DIRECTORY
    if not is_there(log, may_be_link=True):
        return 0
    try:
        metadata, quorum = read_quorum(log)
    except PylogError as error:
        reason = f"its snapshot cannot be read: {error}; move {CLUSTER_METADATA_DIRECTORY} away"
        raise ConfigError("--into", directory, reason) from error
    if quorum.voters and not voters:
        nodes = ", ".join(str(voter.node_id) for voter in quorum.voters)
        reason = (
            f"its snapshot has the voters of a dynamic quorum ({nodes}), and without any nobody "
            "leads: give --initial-controllers"
        )
        raise ConfigError("--into", directory, reason)
    return len(metadata.topics)


def bootstrap_names(release: Release, voters: Sequence[Voter]) -> list[str]:
    """Return the entries with which a controller's log directory begins, besides its identity."""
    has_log = release.has_bootstrap_in_log or voters
    return [BOOTSTRAP_SNAPSHOT_FILE, *([CLUSTER_METADATA_DIRECTORY] if has_log else [])]


def write_bootstrap(
    targets: Sequence[BootstrapTarget],
    metadata: BootstrapMetadata,
    *,
    voters: Sequence[Voter],
    timestamp_ms: int,
) -> None:
    """Write the bootstrap snapshot into the log directories of controllers.

    Args:
        voters: Voters that the log is to have; empty for fixed ones.
    """

    def snapshot(values: Sequence[bytes], voters: Sequence[Voter]) -> bytes:
        return b"".join(encode_snapshot(values, voters=voters, timestamp_ms=timestamp_ms))

    values = [*metadata.values()]
    file = snapshot(values, ())
    in_log = []
    if CLUSTER_METADATA_DIRECTORY in bootstrap_names(metadata.release, voters):
        content = snapshot(values if metadata.release.has_bootstrap_in_log else [], voters)
        in_log = [WriteFile(name=BOOTSTRAP_SNAPSHOT, content=content, reason="no copy is left")]
    with ExitStack() as stack:
        locks = [stack.enter_context(LogDirectoryLock(each.directory)) for each in targets]
        for target in targets:
            remove_unfinished(target.directory)
        missing = [missing_properties(each.directory, each.properties) for each in targets]
        for target in targets:
            if not has_at_most_format(target.directory):
                raise log_is_there(target.directory)
        for target, lock, properties in zip(targets, locks, missing, strict=True):
            home = LocalStore(target.directory, may_be_link=True)
            home.write_file(BOOTSTRAP_SNAPSHOT_FILE, file)
            write_metadata_log(target.directory, lock, in_log)
            write_identity(target.directory, properties)
