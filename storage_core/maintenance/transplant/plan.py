"""Decide which logs go to which replicas of another, stopped cluster.

Each assigned replica gets the log: an empty one that is elected would cut the full ones to nothing.
The offsets stay. Every batch gets the partition's leader epoch as the metadata has it: the next
leader of a stopped cluster has a later one.
"""

import shutil
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final, NamedTuple

from storage_core.catalog.cluster_metadata import ClusterMetadata
from storage_core.catalog.log_directories import read_topic_id
from storage_core.catalog.metadata_image import PartitionRecord, TopicMetadata
from storage_core.catalog.topic_catalog import (
    INTERNAL_TOPICS,
    TopicCatalog,
    build_topic_catalog,
)
from storage_core.checkpoint.kafka_uuid import is_reserved_directory_id
from storage_core.errors import ConfigError, InconsistentTopicIdError, PylogError
from storage_core.filenames import CLUSTER_METADATA_TOPIC, TopicPartition
from storage_core.local_files import is_there
from storage_core.maintenance.transplant.replica import NewLog, is_empty, is_written
from storage_core.maintenance.transplant.source import (
    SourceLog,
    SourcePlace,
    find_namesakes,
    group_places,
    open_longest,
    read_facts,
)
from storage_core.maintenance.transplant.transplant_reason import TransplantReason
from storage_core.store.local import storage_errors
from storage_core.wording import count_text

# The topic of Confluent's Schema Registry: a registry has one, and its ids are in the records.
SCHEMA_TOPICS: Final = frozenset({"_schemas"})


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetDirectory:
    """A log directory of the target.

    Attributes:
        path: Its path.
        node_id: Its node.
        directory_id: Its id, None without one.
    """

    path: Path
    node_id: int
    directory_id: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Transplant:
    """A partition, and what becomes of it.

    Attributes:
        source: The partition in its own cluster.
        target: Its name in the target.
        location: Path of the log that is taken, empty without one.
        log: The new log; None with a reason.
        homes: The target's log directories that get it.
        is_done: Whether all of them have it.
        newest_ms: Largest timestamp of its records, epoch milliseconds; -1 where none is known.
        reason: Why it stays; None where it goes.
        detail: The same in words; of one that goes, what a person has to know.
    """

    source: TopicPartition
    target: TopicPartition
    location: str = ""
    log: NewLog | None = None
    homes: tuple[Path, ...] = ()
    is_done: bool = False
    newest_ms: int = -1
    reason: TransplantReason | None = None
    detail: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class TransplantRequest:
    """What is to go where.

    Attributes:
        places: The logs of the source.
        topics: Names of the topics that go.
        names: Their names in the target, where these differ.
        counts: Partitions of a topic in the source, by name; a topic that is not there: not known.
        metadata: Of the target.
        directories: Log directories of the target.
        keeps_producers: Whether the target remembers the source's producers.
        now_ms: The run's clock, epoch milliseconds.
    """

    places: Sequence[SourcePlace]
    topics: frozenset[str]
    names: Mapping[str, str]
    counts: Mapping[str, int]
    metadata: ClusterMetadata
    directories: Sequence[TargetDirectory]
    keeps_producers: bool
    now_ms: int


class _LookUp(NamedTuple):
    """What is looked up for each partition.

    Attributes:
        topics: The target's topics, by name.
        catalog: Their configs.
        largest: The largest partition of each topic of the source, by its own name.
        namesakes: Errors of the source's topics that have one name.
    """

    topics: Mapping[str, TopicMetadata]
    catalog: TopicCatalog
    largest: Mapping[str, int]
    namesakes: Mapping[str, InconsistentTopicIdError]


class _Stay(Exception):  # noqa: N818  # an answer about one partition
    """A partition stays."""

    def __init__(self, reason: TransplantReason, detail: str) -> None:
        super().__init__(reason, detail)
        self.reason, self.detail = reason, detail


def plan_transplants(request: TransplantRequest) -> list[Transplant]:
    """Read everything and return what becomes of each partition.

    Raises:
        ConfigError: Two topics would get one name.
        StorageError: A target's directory cannot be looked at.
    """
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
    plans = [
        _plan(request, target, partition, places)
        for partition, places in group_places(request.places)
        if partition.topic in request.topics
    ]
    return _refuse_beyond_room(plans)


def _plan(
    request: TransplantRequest,
    target: _LookUp,
    partition: TopicPartition,
    places: Sequence[SourcePlace],
) -> Transplant:
    name = request.names.get(partition.topic, partition.topic)
    plan = Transplant(source=partition, target=TopicPartition(name, partition.partition))
    try:
        _check_topic(target, partition.topic, name)
        topic, record = _registration(request, target, partition, name)
        homes = _homes(request, record, plan.target)
        log = _open(places, request.now_ms)
        detail = _source_text(log, places)
        plan = replace(plan, location=log.place.location, homes=homes, detail=detail)
        new = NewLog(
            partition=plan.target,
            topic_id=topic.topic_id,
            leader_epoch=max(record.leader_epoch, 0),
            source=log,
            has_producers=request.keeps_producers,
            config=target.catalog.config_or_defaults(name),
            now_ms=request.now_ms,
        )
        newest_ms = _check_records(request, new)
        done = [_has_log(home, new) for home in homes]
    except _Stay as stay:
        return replace(plan, reason=stay.reason, detail=stay.detail)
    return replace(
        plan,
        log=new,
        homes=tuple(home for home, has_it in zip(homes, done, strict=True) if not has_it),
        is_done=all(done),
        newest_ms=newest_ms,
    )


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
    """Return the longest log; one that cannot be opened may be longer."""
    log, errors = open_longest(places, now_ms=now_ms)
    if log is None or errors:
        where, error = next(iter(errors.items()))
        detail = str(error)
        if not detail.startswith(where):
            detail = f"{where}: {detail}"
        raise _Stay(TransplantReason.SOURCE_DAMAGED, detail)
    if log.cut_records:
        records = count_text(log.cut_records, "readable record")
        detail = f"{log.place.location}: a start would cut {records} behind damage"
        raise _Stay(TransplantReason.SOURCE_DAMAGED, detail)
    return log


def _source_text(log: SourceLog, places: Sequence[SourcePlace]) -> str:
    """Return in words which of several logs goes, and what is cut."""
    texts = []
    if len(places) > 1:
        texts.append(f"the longest of {len(places)} logs: {log.place.location}")
    if log.cut_bytes:
        size = count_text(log.cut_bytes, "byte")
        texts.append(f"{size} at the end do not go: no record in them can be read")
    return "; ".join(texts)


def _check_records(request: TransplantRequest, new: NewLog) -> int:
    """Refuse records that the target cannot have; return the newest timestamp."""
    log = new.source
    try:
        facts = read_facts(log)
    except PylogError as error:
        raise _Stay(TransplantReason.SOURCE_DAMAGED, str(error)) from error
    if facts.has_legacy:
        detail = f"{log.place.location} has batches of a message format before v2"
        raise _Stay(TransplantReason.LEGACY_FORMAT, detail)
    most = new.config.max_message_bytes
    if facts.largest_bytes > most:
        detail = f"a batch has {facts.largest_bytes} bytes, max.message.bytes is {most}"
        raise _Stay(TransplantReason.BATCH_TOO_LARGE, detail)
    next_id = request.metadata.next_producer_id
    largest = max((each.producer_id for each in log.producers), default=-1)
    if new.has_producers and largest >= next_id:
        detail = f"the target will give producer id {largest} to another one: its next is {next_id}"
        raise _Stay(TransplantReason.PRODUCER_ID_TAKEN, detail)
    return facts.newest_ms


def _has_log(home: Path, new: NewLog) -> bool:
    """Return whether a log directory has the log from a former call."""
    directory = home / str(new.partition)
    with storage_errors(directory):
        if not is_there(directory, may_be_link=True):
            return False
    try:
        topic_id = read_topic_id(str(directory))
        if topic_id not in {None, new.topic_id}:
            detail = f"{directory} is of topic id {topic_id}, the target's is {new.topic_id}"
            raise _Stay(TransplantReason.TARGET_ID_DIFFERS, detail)
        if is_written(directory, new):
            return True
        has_records = not is_empty(directory)
    except PylogError as error:
        raise _Stay(TransplantReason.TARGET_HAS_RECORDS, str(error)) from error
    if has_records:
        raise _Stay(TransplantReason.TARGET_HAS_RECORDS, f"{directory} has records")
    return False


def _refuse_beyond_room(plans: Iterable[Transplant]) -> list[Transplant]:
    """Refuse the plans for which the disks have no room left."""
    free: dict[int, int] = {}
    checked = []
    for plan in plans:
        needs: dict[int, int] = {}
        places: dict[int, Path] = {}
        for home in plan.homes if plan.log is not None else ():
            with storage_errors(home):
                device = home.stat().st_dev
                free.setdefault(device, shutil.disk_usage(home).free)
            needs[device] = needs.get(device, 0) + (plan.log.size_bytes if plan.log else 0)
            places[device] = home
        short = next((device for device in needs if needs[device] > free[device]), None)
        if short is None:
            for device, size_bytes in needs.items():
                free[device] -= size_bytes
            checked.append(plan)
            continue
        detail = (
            f"{places[short]} has {count_text(free[short], 'byte')} of room left, the log needs "
            f"{needs[short]}"
        )
        full = TransplantReason.TARGET_FULL
        checked.append(replace(plan, log=None, homes=(), reason=full, detail=detail))
    return checked
