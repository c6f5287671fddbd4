"""Decide which logs go to which replicas of another, stopped cluster.

Each assigned replica gets the log: an empty one that is elected would cut the full ones to nothing.
The offsets stay. Every batch gets the partition's leader epoch as the metadata has it: the next
leader of a stopped cluster has a later one.
"""

import enum
import shutil
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final, NamedTuple

from storage_core.catalog.cluster_metadata import ClusterMetadata
from storage_core.catalog.log_directories import read_topic_id
from storage_core.catalog.metadata_image import PartitionRecord, TopicMetadata
from storage_core.catalog.topic_catalog import INTERNAL_TOPICS, TopicCatalog, build_topic_catalog
from storage_core.checkpoint.checkpoints import is_reserved_directory_id
from storage_core.cluster.transplant.replica import NewLog, TargetPartition, is_empty, is_written
from storage_core.cluster.transplant.source import (
    BatchFacts,
    SourceLog,
    SourcePlace,
    find_namesakes,
    group_places,
    open_current,
    open_source,
    read_facts,
)
from storage_core.coordinators.transactions import (
    DecidedTransaction,
    TransactionCoordinators,
    TransactionOutcome,
)
from storage_core.errors import ConfigError, InconsistentTopicIdError, PylogError
from storage_core.filenames import CLUSTER_METADATA_TOPIC, TopicPartition
from storage_core.local_files import is_there
from storage_core.log.producer_snapshot import ProducerEntry
from storage_core.store.local import storage_errors
from storage_core.wording import count_text

# Why a partition is not given to another cluster.


class TransplantReason(enum.StrEnum):
    """Why a partition stays where it is."""

    INTERNAL_TOPIC = "INTERNAL_TOPIC"
    SCHEMA_TOPIC = "SCHEMA_TOPIC"
    TARGET_TOPIC_MISSING = "TARGET_TOPIC_MISSING"
    PARTITION_COUNT_DIFFERS = "PARTITION_COUNT_DIFFERS"
    REPLICA_NOT_GIVEN = "REPLICA_NOT_GIVEN"
    TARGET_ID_DIFFERS = "TARGET_ID_DIFFERS"
    TARGET_HAS_RECORDS = "TARGET_HAS_RECORDS"
    SOURCE_TOPICS_DIFFER = "SOURCE_TOPICS_DIFFER"
    SOURCE_DAMAGED = "SOURCE_DAMAGED"
    TRANSACTION_UNDECIDED = "TRANSACTION_UNDECIDED"
    LEGACY_FORMAT = "LEGACY_FORMAT"
    BATCH_TOO_LARGE = "BATCH_TOO_LARGE"
    PRODUCER_ID_TAKEN = "PRODUCER_ID_TAKEN"
    TARGET_FULL = "TARGET_FULL"


# The topic of Confluent's Schema Registry: a registry has one, and its ids are in the records.
SCHEMA_TOPICS: Final = frozenset({"_schemas"})


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetDirectory:
    """A log directory of the target."""

    path: Path
    node_id: int
    directory_id: str | None  # its id, None without one


@dataclass(frozen=True, slots=True, kw_only=True)
class Assignment:
    """A partition, and the replicas that are to get its log."""

    source: TopicPartition  # the partition in its own cluster
    target: TargetPartition
    places: tuple[SourcePlace, ...]
    homes: tuple[Path, ...] = ()  # the target's log directories of its replicas
    next_producer_id: int = 0  # the id that the target gives to its next producer
    # Whether an open transaction may be aborted that was committed perhaps.
    aborts_undecided: bool = False
    # Why it stays, whatever its logs have; None where that is not known yet.
    reason: TransplantReason | None = None
    detail: str = ""  # the same in words


@dataclass(frozen=True, slots=True, kw_only=True)
class Transplant:
    """What becomes of a partition."""

    location: str = ""  # path of the log that is taken, empty without one
    homes: tuple[Path, ...] = ()  # the target's log directories that get it; none where it stays
    is_done: bool = False
    log_start_offset: int = -1  # first offset of the new log; -1 without one, as the next two
    log_end_offset: int = -1
    # Largest timestamp of its records, epoch milliseconds; -1 where none is known.
    newest_ms: int = -1
    # Open transactions that are aborted, the undecided ones among them.
    aborted_transactions: int = 0
    aborted_records: int = 0
    committed_transactions: int = 0
    committed_records: int = 0
    undecided_transactions: int = 0  # open transactions that were committed perhaps
    undecided_records: int = 0
    cut_bytes: int = 0  # bytes of the source that do not go
    size_bytes: int = 0
    reason: TransplantReason | None = None  # why it stays; None where it goes
    detail: str = ""  # the same in words; of one that goes, what a person has to know


@dataclass(frozen=True, slots=True, kw_only=True)
class TransplantRequest:
    """What is to go where."""

    places: Sequence[SourcePlace]
    topics: frozenset[str]
    names: Mapping[str, str]  # their names in the target, where these differ
    # Partitions of a topic in the source, by name; a topic that is not there: not known.
    counts: Mapping[str, int]
    metadata: ClusterMetadata
    directories: Sequence[TargetDirectory]
    keeps_producers: bool  # whether the target remembers the source's producers
    # Whether an open transaction may be aborted that was committed perhaps.
    aborts_undecided: bool = False
    now_ms: int


class _LookUp(NamedTuple):
    """What is looked up for each partition."""

    topics: Mapping[str, TopicMetadata]  # the target's topics, by name
    catalog: TopicCatalog
    largest: Mapping[str, int]  # the largest partition of each topic of the source, by its own name
    # Errors of the source's topics that have one name.
    namesakes: Mapping[str, InconsistentTopicIdError]


class _Stay(Exception):  # noqa: N818  # an answer about one partition
    """A partition stays."""

    def __init__(self, reason: TransplantReason, detail: str) -> None:
        super().__init__(reason, detail)
        self.reason, self.detail = reason, detail


def assign_logs(request: TransplantRequest) -> list[Assignment]:
    """Return which replicas of the target get each partition, by its metadata. No log is read
    for it."""
    names = [request.names.get(topic, topic) for topic in request.topics]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise ConfigError("--map", twice[0], "is the new name of several topics")
    largest: dict[str, int] = {}
    for each in (place.partition for place in request.places):
        largest[each.topic] = max(largest.get(each.topic, 0), each.partition)
    target = _LookUp(
        topics=request.metadata.topics_by_name(),
        catalog=build_topic_catalog(metadata=request.metadata),
        largest=largest,
        namesakes=find_namesakes(request.places),
    )
    return [
        _assign(request, target, partition, places)
        for partition, places in group_places(request.places)
        if partition.topic in request.topics
    ]


def _assign(
    request: TransplantRequest,
    target: _LookUp,
    partition: TopicPartition,
    places: Sequence[SourcePlace],
) -> Assignment:
    name = request.names.get(partition.topic, partition.topic)
    goal = TargetPartition(
        partition=TopicPartition(name, partition.partition),
        keeps_producers=request.keeps_producers,
        now_ms=request.now_ms,
    )
    assignment = Assignment(
        source=partition,
        target=goal,
        places=tuple(places),
        next_producer_id=request.metadata.next_producer_id,
        aborts_undecided=request.aborts_undecided,
    )
    try:
        _check_topic(target, partition.topic, name)
        topic, record = _registration(request, target, partition, name)
        homes = _homes(request, record, goal.partition)
    except _Stay as stay:
        return replace(assignment, reason=stay.reason, detail=stay.detail)
    return replace(
        assignment,
        homes=homes,
        target=replace(
            goal,
            topic_id=topic.topic_id,
            leader_epoch=max(record.leader_epoch, 0),
            config=target.catalog.config_or_defaults(name),
        ),
    )


def plan_transplant(assignment: Assignment, coordinators: TransactionCoordinators) -> Transplant:
    """Return what becomes of a partition, by its logs. Nothing is written.

    Args:
        coordinators: What the source's coordinators know of transactions.
    """
    if assignment.reason is not None:
        return Transplant(reason=assignment.reason, detail=assignment.detail)
    plan = Transplant()
    try:
        source = _open(assignment.places, assignment.target.now_ms)
        texts = _source_texts(source, assignment.places)
        plan = replace(plan, location=source.place.location, detail="; ".join(texts))
        log = _new_log(assignment, source, coordinators)
        facts = _check_records(log, assignment.next_producer_id)
        plan = _end_transactions(plan, assignment, source, facts, coordinators)
        _check_undecided(plan, assignment)
        done = [_has_log(home, log) for home in assignment.homes]
    except _Stay as stay:
        return replace(plan, reason=stay.reason, detail=stay.detail)
    return replace(
        plan,
        homes=tuple(
            home for home, has_it in zip(assignment.homes, done, strict=True) if not has_it
        ),
        is_done=all(done),
        log_start_offset=source.log_start_offset,
        log_end_offset=log.log_end_offset,
        newest_ms=facts.newest_ms,
        cut_bytes=source.cut_bytes,
        size_bytes=log.size_bytes,
    )


def open_log(
    assignment: Assignment, location: str, coordinators: TransactionCoordinators
) -> NewLog:
    """Open the log that was planned to go, to write it.

    Args:
        coordinators: What the source's coordinators know of transactions.
    """
    (place,) = (each for each in assignment.places if each.location == location)
    return _new_log(assignment, open_source(place, now_ms=assignment.target.now_ms), coordinators)


def _new_log(
    assignment: Assignment, source: SourceLog, coordinators: TransactionCoordinators
) -> NewLog:
    return NewLog(
        target=assignment.target,
        source=source,
        committed=frozenset(
            each.producer_id
            for each in source.open_producers
            if _decide(source, each, coordinators).outcome is TransactionOutcome.COMMIT
        ),
    )


def _decide(
    source: SourceLog, producer: ProducerEntry, coordinators: TransactionCoordinators
) -> DecidedTransaction:
    partition = source.place.partition
    return coordinators.decide(partition, producer.producer_id, producer.producer_epoch)


def _end_transactions(
    plan: Transplant,
    assignment: Assignment,
    source: SourceLog,
    facts: BatchFacts,
    coordinators: TransactionCoordinators,
) -> Transplant:
    """Return a plan with how the open transactions end."""
    by_outcome: dict[TransactionOutcome, list[int]] = {each: [] for each in TransactionOutcome}
    reason = ""
    for producer in source.open_producers:
        outcome, why = _decide(source, producer, coordinators)
        by_outcome[outcome].append(facts.open_records[producer.producer_id])
        reason = reason or (why if outcome is TransactionOutcome.UNDECIDED else "")
    committed, aborted, undecided = (by_outcome[each] for each in TransactionOutcome)
    texts = [plan.detail] if plan.detail else []
    if committed:
        texts.append(f"{_open_text(committed)} committed, as its coordinator had decided")
    if aborted:
        texts.append(f"{_open_text(aborted)} aborted: no commit was decided")
    if undecided and assignment.aborts_undecided:
        texts.append(f"{_open_text(undecided)} aborted, committed or not: {reason}")
    elif undecided:
        texts = [f"{_open_text(undecided)} committed perhaps: {reason}"]
    return replace(
        plan,
        detail="; ".join(texts),
        aborted_transactions=len(aborted) + len(undecided),
        aborted_records=sum(aborted) + sum(undecided),
        committed_transactions=len(committed),
        committed_records=sum(committed),
        undecided_transactions=len(undecided),
        undecided_records=sum(undecided),
    )


def _check_undecided(plan: Transplant, assignment: Assignment) -> None:
    """Refuse to abort what was committed perhaps, without consent."""
    if plan.undecided_transactions and not assignment.aborts_undecided:
        raise _Stay(TransplantReason.TRANSACTION_UNDECIDED, plan.detail)


def _open_text(records: Sequence[int]) -> str:
    """Return in words how many records open transactions have, with a verb."""
    transactions = count_text(len(records), "open transaction")
    verb = "is" if len(records) == 1 else "are"
    return f"{transactions} of {count_text(sum(records), 'record')} {verb}"


def _check_topic(target: _LookUp, topic: str, name: str) -> None:
    for each in (topic, name):
        if each in SCHEMA_TOPICS:
            detail = f"{each} has the ids of a schema registry, which are in records of others"
            raise _Stay(TransplantReason.SCHEMA_TOPIC, detail)
        if each in INTERNAL_TOPICS or each == CLUSTER_METADATA_TOPIC:
            detail = f"{each} is about its own cluster: its topics, groups or transactions"
            raise _Stay(TransplantReason.INTERNAL_TOPIC, detail)
    if namesake := target.namesakes.get(topic):
        raise _Stay(TransplantReason.SOURCE_TOPICS_DIFFER, str(namesake))


def _registration(
    request: TransplantRequest,
    target: _LookUp,
    partition: TopicPartition,
    name: str,
) -> tuple[TopicMetadata, PartitionRecord]:
    """Return the target's topic and partition."""
    topic, least = target.topics.get(name), target.largest[partition.topic]
    count = request.counts.get(partition.topic)
    if topic is None:
        partitions = _partitions_text(count, least)
        detail = f"the target has no topic {name}: create it with {partitions}"
        raise _Stay(TransplantReason.TARGET_TOPIC_MISSING, detail)
    there = len(topic.partitions)
    record = topic.partitions.get(partition.partition)
    if count not in {None, there} or there <= least or record is None:
        detail = (
            f"{partition.topic} has {_partitions_text(count, least)}, {name} in the target has "
            f"{there}: keys would be in other ones"
        )
        raise _Stay(TransplantReason.PARTITION_COUNT_DIFFERS, detail)
    return topic, record


def _partitions_text(count: int | None, least: int) -> str:
    """Return a number of partitions, or the least one, in words."""
    if count is None:
        return f"at least {count_text(least + 1, 'partition')}"
    return count_text(count, "partition")


def _homes(
    request: TransplantRequest, record: PartitionRecord, partition: TopicPartition
) -> tuple[Path, ...]:
    """Return the log directory of each replica."""
    assigned = dict(zip(record.replicas, record.directories, strict=False))
    homes = []
    for node in record.replicas:
        own = [each for each in request.directories if each.node_id == node]
        directory_id = assigned.get(node)
        there = [each for each in own if is_there(each.path / str(partition), may_be_link=True)]
        by_id = [each for each in own if each.directory_id == directory_id]
        is_free = directory_id is None or is_reserved_directory_id(directory_id)
        registered = request.metadata.brokers.get(node)
        count = len(registered.log_directories) if registered else 0
        # A broker takes a log where it finds it; without all directories nobody knows of others.
        may_choose = is_free and len(own) >= max(count, 1)
        candidates = there or by_id or (own if may_choose else [])
        if not candidates:
            which = f"log directory {directory_id}" if not is_free else "all log directories"
            detail = f"a replica is on node {node}: give {which} of it"
            raise _Stay(TransplantReason.REPLICA_NOT_GIVEN, detail)
        homes.append(candidates[0].path)
    return tuple(homes)


def _open(places: Sequence[SourcePlace], now_ms: int) -> SourceLog:
    """Return the log that goes; one that cannot be opened may be longer."""
    log, errors = open_current(places, now_ms=now_ms)
    if log is None or errors:
        where, error = next(iter(errors.items()))
        detail = str(error)
        if not detail.startswith(where):
            detail = f"{where}: {detail}"
        raise _Stay(TransplantReason.SOURCE_DAMAGED, detail)
    return log


def _source_texts(log: SourceLog, places: Sequence[SourcePlace]) -> list[str]:
    """Return in words which of several logs goes, and what is cut."""
    texts = []
    if len(places) > 1:
        in_sync = sum(bool(place.is_in_sync) for place in places)
        which = f"{len(places)} logs"
        if log.place.is_in_sync and in_sync < len(places):
            which = f"the logs in sync, {in_sync} of {len(places)}"
        texts.append(f"the longest of {which}: {log.place.location}")
    if log.is_out_of_sync:
        nodes = ", ".join(map(str, log.place.in_sync_nodes)) or "none"
        texts.append(
            f"{log.place.location} was not in sync: it may lack acknowledged records that the "
            f"nodes in sync have ({nodes}); give their log directories"
        )
    if log.cut_bytes:
        size = count_text(log.cut_bytes, "byte")
        texts.append(f"{size} at the end do not go: no record in them can be read")
    return texts


def _check_records(new: NewLog, next_producer_id: int) -> BatchFacts:
    """Refuse records that the target cannot have; return their facts."""
    log = new.source
    try:
        facts = read_facts(log)
    except PylogError as error:
        raise _Stay(TransplantReason.SOURCE_DAMAGED, str(error)) from error
    if facts.has_legacy:
        detail = f"{log.place.location} has batches of a message format before v2"
        raise _Stay(TransplantReason.LEGACY_FORMAT, detail)
    most = new.target.config.max_message_bytes
    if facts.largest_bytes > most:
        detail = f"a batch has {facts.largest_bytes} bytes, max.message.bytes is {most}"
        raise _Stay(TransplantReason.BATCH_TOO_LARGE, detail)
    largest = max((each.producer_id for each in log.producers), default=-1)
    if new.target.keeps_producers and largest >= next_producer_id:
        detail = (
            f"the target will give producer id {largest} to another one: its next is "
            f"{next_producer_id}"
        )
        raise _Stay(TransplantReason.PRODUCER_ID_TAKEN, detail)
    return facts


def _has_log(home: Path, new: NewLog) -> bool:
    """Return whether a log directory has the log from a former call."""
    directory = home / str(new.target.partition)
    with storage_errors(directory):
        if not is_there(directory, may_be_link=True):
            return False
    try:
        topic_id = read_topic_id(str(directory))
        if topic_id not in {None, new.target.topic_id}:
            detail = f"{directory} is of topic id {topic_id}, the target's is {new.target.topic_id}"
            raise _Stay(TransplantReason.TARGET_ID_DIFFERS, detail)
        if is_written(directory, new):
            return True
        has_records = not is_empty(directory)
    except PylogError as error:
        raise _Stay(TransplantReason.TARGET_HAS_RECORDS, str(error)) from error
    if has_records:
        raise _Stay(TransplantReason.TARGET_HAS_RECORDS, f"{directory} has records")
    return False


class TargetRoom:
    """The free bytes of the target's disks, less the given ones."""

    def __init__(self) -> None:
        self._free: dict[int, int] = {}

    def take(self, homes: Sequence[Path], size_bytes: int) -> str:
        """Give a log room on its disks, if all have it.

        Returns:
            Which disk has no room, and how much it has; empty where all have.
        """
        needs: Counter[int] = Counter()
        places: dict[int, Path] = {}
        for home in homes:
            with storage_errors(home):
                device = home.stat().st_dev
                self._free.setdefault(device, shutil.disk_usage(home).free)
            needs[device] += size_bytes
            places[device] = home
        for device, needed in needs.items():
            if needed > self._free[device]:
                free = count_text(self._free[device], "byte")
                return f"{places[device]} has {free} of room left, the log needs {needed}"
        for device, needed in needs.items():
            self._free[device] -= needed
        return ""
