"""Kafka's own Java clients, in the JVM of this process, for a broker on loopback.

Everything waits in the calling thread and has a limit; what a client throws becomes KafkaFailure.
Batches are made by ``Producer.flush`` alone, never by time, so that a log that is written with the
same calls has the same batches.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any, Final, Self

import jpype

from tests.oracle.jvm import KafkaFailure, java, java_bytes, java_map, kafka_failures
from tests.oracle.records import ReadRecord

Headers = tuple[tuple[str, bytes | None], ...]
Partition = tuple[str, int]

LONGEST_WAIT_MS: Final = 60_000
POLL_MS: Final = 500
READY_MS: Final = 3_000
_NOT_READY: Final = frozenset(
    {
        "java.util.concurrent.ExecutionException",
        "java.util.concurrent.TimeoutException",
        "org.apache.kafka.common.errors.TimeoutException",
    }
)
_SERIALIZER: Final = "org.apache.kafka.common.serialization.ByteArraySerializer"
_DESERIALIZER: Final = "org.apache.kafka.common.serialization.ByteArrayDeserializer"
_NOTHING_TIMES_OUT_MS: Final = 600_000
_LARGEST_BATCH_BYTES: Final = 900_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Topic:
    """A topic to create, with its settings by Kafka's names.

    assignment: node ids of each partition's replicas; None leaves that to Kafka.
    """

    partitions: int
    config: Mapping[str, str]
    replicas: int = 1
    assignment: Sequence[Sequence[int]] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """A record to send; the partition follows from the key as in every Java client.

    timestamp_ms None: the clock of now.
    """

    topic: str
    key: bytes | None
    value: bytes | None
    timestamp_ms: int | None = None
    headers: Headers = ()


def is_ready(bootstrap_servers: str, *, has_quorum: bool = True) -> bool:
    """Whether a broker answers, and has a controller that does, if it has a quorum of them."""
    try:
        with _admin(bootstrap_servers, timeout_ms=READY_MS) as admin:
            nodes = _wait(admin.describeCluster().nodes())
            if has_quorum:
                _wait(admin.describeMetadataQuorum().quorumInfo())
            return bool(nodes.size())
    except KafkaFailure as failure:
        if failure.java_class in _NOT_READY:
            return False
        raise


def has_active_controller(bootstrap_controllers: str) -> bool:
    """Whether a controller answers, and is the active one or knows it."""
    try:
        with _admin(bootstrap_controllers, timeout_ms=READY_MS, of_controllers=True) as admin:
            return int(_wait(admin.describeMetadataQuorum().quorumInfo()).leaderId()) >= 0
    except KafkaFailure as failure:
        if failure.java_class in _NOT_READY:
            return False
        raise


def describe_quorum(bootstrap_servers: str) -> tuple[int, int, int, dict[int, int]]:
    """Return leader, epoch and high watermark of the controllers, and each voter's log end."""
    with _admin(bootstrap_servers) as admin:
        info = _wait(admin.describeMetadataQuorum().quorumInfo())
        ends = {int(voter.replicaId()): int(voter.logEndOffset()) for voter in info.voters()}
        return int(info.leaderId()), int(info.leaderEpoch()), int(info.highWatermark()), ends


def feature_levels(bootstrap_servers: str) -> dict[str, int]:
    """Return the level of each feature that the cluster has."""
    with _admin(bootstrap_servers) as admin:
        levels = _wait(admin.describeFeatures().featureMetadata()).finalizedFeatures()
        return {
            str(entry.getKey()): int(entry.getValue().maxVersionLevel())
            for entry in levels.entrySet()
        }


def elect_uncleanly(bootstrap_servers: str, partitions: Iterable[Partition]) -> set[Partition]:
    """Have leaders elected, uncleanly if need be; return the partitions that got a new one."""
    named = java("org.apache.kafka.common.TopicPartition")
    wanted = java("java.util.HashSet")([named(*each) for each in partitions])
    kind = java("org.apache.kafka.common.ElectionType").UNCLEAN
    # A broker that is silent may be asked first.
    with _admin(bootstrap_servers, request_ms=READY_MS) as admin, kafka_failures():
        answers = _wait(admin.electLeaders(kind, wanted).partitions())
        return {
            (str(each.topic()), int(each.partition()))
            for each in wanted
            if not answers.get(each).isPresent()
        }


def create_topics(bootstrap_servers: str, topics: Mapping[str, Topic]) -> None:
    """Create topics."""
    new_topic = java("org.apache.kafka.clients.admin.NewTopic")
    with _admin(bootstrap_servers) as admin, kafka_failures():
        wanted = java("java.util.ArrayList")()
        for name, topic in topics.items():
            if topic.assignment is None:
                described = new_topic(name, topic.partitions, jpype.JShort(topic.replicas))
            else:
                described = new_topic(name, _assignment(topic.assignment))
            wanted.add(described.configs(java_map(topic.config.items())))
        _wait(admin.createTopics(wanted).all())


def _assignment(replicas: Sequence[Sequence[int]]) -> Any:
    number = java("java.lang.Integer")
    return java_map(
        (number(partition), java("java.util.ArrayList")([number(node) for node in nodes]))
        for partition, nodes in enumerate(replicas)
    )


def in_sync_replicas(bootstrap_servers: str, topics: Sequence[str]) -> dict[Partition, set[int]]:
    """Return the nodes that are in sync, by partition."""
    with _admin(bootstrap_servers) as admin, kafka_failures():
        names = java("java.util.ArrayList")(list(topics))
        described = _wait(admin.describeTopics(names).allTopicNames())
        return {
            (name, int(partition.partition())): {int(node.id()) for node in partition.isr()}
            for name in topics
            for partition in described.get(name).partitions()
        }


def set_replicas(bootstrap_servers: str, topic: str, nodes: Sequence[int]) -> None:
    """Have all partitions of a topic get their replicas on some nodes, the first preferred."""
    named = java("org.apache.kafka.common.TopicPartition")
    wanted = java("org.apache.kafka.clients.admin.NewPartitionReassignment")
    partitions = in_sync_replicas(bootstrap_servers, [topic])
    number = java("java.lang.Integer")
    with _admin(bootstrap_servers) as admin, kafka_failures():
        replicas = java("java.util.ArrayList")([number(node) for node in nodes])
        changes = java_map(
            (named(*each), java("java.util.Optional").of(wanted(replicas))) for each in partitions
        )
        _wait(admin.alterPartitionReassignments(changes).all())


def set_topic_config(bootstrap_servers: str, topic: str, config: Mapping[str, str]) -> None:
    """Set settings of a topic that exists."""
    _set_config(bootstrap_servers, "TOPIC", topic, config)


def set_group_config(bootstrap_servers: str, group: str, config: Mapping[str, str]) -> None:
    """Set settings of a group, which need not exist yet."""
    _set_config(bootstrap_servers, "GROUP", group, config)


def _set_config(
    bootstrap_servers: str, resource_type: str, name: str, config: Mapping[str, str]
) -> None:
    admin_package = "org.apache.kafka.clients.admin."
    resource = java("org.apache.kafka.common.config.ConfigResource")
    kind = java("org.apache.kafka.common.config.ConfigResource$Type").valueOf(resource_type)
    operation = java(admin_package + "AlterConfigOp")
    operation_kind = java(admin_package + "AlterConfigOp$OpType").SET
    entry = java(admin_package + "ConfigEntry")
    with _admin(bootstrap_servers) as admin, kafka_failures():
        changes = java("java.util.ArrayList")()
        for key, value in config.items():
            changes.add(operation(entry(key, value), operation_kind))
        changed = java_map([(resource(kind, name), changes)])
        _wait(admin.incrementalAlterConfigs(changed).all())


def read_topics(bootstrap_servers: str) -> dict[str, Topic]:
    """Return every topic, the internal ones too, with the settings that were made for it."""
    admin_package = "org.apache.kafka.clients.admin."
    resource = java("org.apache.kafka.common.config.ConfigResource")
    kind = java("org.apache.kafka.common.config.ConfigResource$Type").TOPIC
    said = java(admin_package + "ConfigEntry$ConfigSource").DYNAMIC_TOPIC_CONFIG
    with _admin(bootstrap_servers) as admin, kafka_failures():
        options = java(admin_package + "ListTopicsOptions")().listInternal(True)
        names = _wait(admin.listTopics(options).names())
        described = _wait(admin.describeTopics(names).allTopicNames())
        resources = java("java.util.ArrayList")([resource(kind, name) for name in names])
        configs = _wait(admin.describeConfigs(resources).all())
        topics = {}
        for name in sorted(map(str, names)):
            entries = configs.get(resource(kind, name)).entries()
            config = {str(e.name()): str(e.value()) for e in entries if e.source() == said}
            size = int(described.get(name).partitions().size())
            topics[name] = Topic(partitions=size, config=dict(sorted(config.items())))
        return topics


@dataclass(frozen=True, slots=True, kw_only=True)
class Answers:
    """What a broker answers about groups and transactions; enums as Kafka's tools print them."""

    # Type, state and members (id, client id, host) of each group, by its id
    groups: Mapping[str, tuple[str, str, list[tuple[str, str, str]]]]
    # Partitions of each member of a classic group, by group and member id
    assigned: Mapping[tuple[str, str], list[str]]
    # Committed offset, its metadata and leader epoch, by group, topic and partition
    offsets: Mapping[tuple[str, str, int], tuple[int, str, int | None]]
    # Log start offset and log end offset of each partition that has a committed offset
    ends: Mapping[Partition, tuple[int, int]]
    # State, producer id, epoch, timeout, start and partitions, sorted, of each transactional id; a
    # start of None is none
    transactions: Mapping[str, tuple[str, int, int, int, int | None, list[str]]]
    # Producer id, epoch and first offset of what is open, by partition
    open_transactions: Mapping[Partition, list[tuple[int, int, int]]]


def ask_coordinators(bootstrap_servers: str) -> Answers:
    """Return what an admin client is told of groups, committed offsets and transactions."""
    with _admin(bootstrap_servers) as admin, kafka_failures():
        types = {
            str(group.groupId()): str(group.type().get().toString())
            for group in _wait(admin.listGroups().all())
        }
        described = _described_groups(admin, types)
        offsets = _committed_offsets(admin, [name for name, of in types.items() if of != "Share"])
        return Answers(
            groups={
                name: (
                    types[name],
                    str(group.groupState().toString()),
                    sorted(
                        (str(each.consumerId()), str(each.clientId()), str(each.host()))
                        for each in group.members()
                    ),
                )
                for name, group in described.items()
            },
            assigned={
                (name, str(each.consumerId())): sorted(
                    str(place) for place in each.assignment().topicPartitions()
                )
                for name, group in described.items()
                if types[name] == "Classic"
                for each in group.members()
            },
            offsets=offsets,
            ends=_log_ends(admin, {(topic, number) for _, topic, number in offsets}),
            transactions=_transactions(admin),
            open_transactions=_open_transactions(admin),
        )


def _described_groups(admin: Any, types: Mapping[str, str]) -> dict[str, Any]:
    consumers = _strings(name for name, of in types.items() if of != "Share")
    shares = _strings(name for name, of in types.items() if of == "Share")
    answers = (
        *_wait(admin.describeConsumerGroups(consumers).all()).entrySet(),
        *_wait(admin.describeShareGroups(shares).all()).entrySet(),
    )
    return {str(entry.getKey()): entry.getValue() for entry in answers}


def _committed_offsets(
    admin: Any, groups: Sequence[str]
) -> dict[tuple[str, str, int], tuple[int, str, int | None]]:
    offsets = {}
    for name in groups:
        result = admin.listConsumerGroupOffsets(name).partitionsToOffsetAndMetadata(name)
        for entry in _wait(result).entrySet():
            place, value = entry.getKey(), entry.getValue()
            if value is not None:
                epoch = value.leaderEpoch()
                offsets[name, str(place.topic()), int(place.partition())] = (
                    int(value.offset()),
                    str(value.metadata()),
                    int(epoch.get()) if epoch.isPresent() else None,
                )
    return offsets


def _log_ends(admin: Any, partitions: set[Partition]) -> dict[Partition, tuple[int, int]]:
    named = java("org.apache.kafka.common.TopicPartition")
    offset_spec = java("org.apache.kafka.clients.admin.OffsetSpec")
    earliest, latest = (
        _wait(admin.listOffsets(java_map((named(*place), spec) for place in partitions)).all())
        for spec in (offset_spec.earliest(), offset_spec.latest())
    )
    return {
        place: (
            int(earliest.get(named(*place)).offset()),
            int(latest.get(named(*place)).offset()),
        )
        for place in partitions
    }


def _transactions(admin: Any) -> dict[str, tuple[str, int, int, int, int | None, list[str]]]:
    names = _strings(listed.transactionalId() for listed in _wait(admin.listTransactions().all()))
    return {
        str(entry.getKey()): (
            str(told.state().toString()),
            int(told.producerId()),
            int(told.producerEpoch()),
            int(told.transactionTimeoutMs()),
            int(start.getAsLong())
            if (start := told.transactionStartTimeMs()).isPresent()
            else None,
            sorted(str(place) for place in told.topicPartitions()),
        )
        for entry in _wait(admin.describeTransactions(names).all()).entrySet()
        for told in [entry.getValue()]
    }


def _open_transactions(admin: Any) -> dict[Partition, list[tuple[int, int, int]]]:
    """Return what the logs of all partitions have open, the internal topics' included."""
    named = java("org.apache.kafka.common.TopicPartition")
    options = java("org.apache.kafka.clients.admin.ListTopicsOptions")().listInternal(True)
    topics = _wait(admin.describeTopics(_wait(admin.listTopics(options).names())).allTopicNames())
    places = java("java.util.ArrayList")(
        [
            named(entry.getKey(), info.partition())
            for entry in topics.entrySet()
            for info in entry.getValue().partitions()
        ]
    )
    found = {}
    for entry in _wait(admin.describeProducers(places).all()).entrySet():
        place = (str(entry.getKey().topic()), int(entry.getKey().partition()))
        producers = [
            (int(one.producerId()), int(one.producerEpoch()), int(start.getAsLong()))
            for one in entry.getValue().activeProducers()
            if (start := one.currentTransactionStartOffset()).isPresent()
        ]
        if producers:
            found[place] = sorted(producers)
    return found


def delete_group(bootstrap_servers: str, group: str) -> None:
    """Delete a group that has no members, with its offsets."""
    with _admin(bootstrap_servers) as admin, kafka_failures():
        _wait(admin.deleteConsumerGroups(_strings([group])).all())


class Delivery:
    """A record on its way, and what its producer is told about it."""

    def __init__(self, future: Any) -> None:
        self._future = future

    def wait(self, seconds: float) -> None:
        """Wait until the producer is told, but no longer than some time."""
        unit = java("java.util.concurrent.TimeUnit").MILLISECONDS
        with suppress(jpype.JException):
            self._future.get(jpype.JLong(max(0, int(1_000 * seconds))), unit)

    def acknowledged(self) -> tuple[Partition, int] | None:
        """Return partition and offset that a broker promised, None without a promise."""
        if not self._future.isDone():
            return None
        try:
            promised = self._future.get()
        except jpype.JException:
            return None
        return (str(promised.topic()), int(promised.partition())), int(promised.offset())


class Producer:
    """A producer; a context manager. Nothing is sent before ``flush``.

    Args:
        config: Settings, by Kafka's names; ``transactional.id`` makes it transactional.
    """

    def __init__(self, bootstrap_servers: str, config: Mapping[str, str] | None = None) -> None:
        settings = {
            "bootstrap.servers": bootstrap_servers,
            "acks": "all",
            "batch.size": str(_LARGEST_BATCH_BYTES),
            "linger.ms": str(LONGEST_WAIT_MS),
            "delivery.timeout.ms": str(_NOTHING_TIMES_OUT_MS),
            # The leader of a new topic refuses what comes before it knows of it. The second batch
            # may come later, and be taken: then the first one is out of order for good.
            "max.in.flight.requests.per.connection": "1",
            **(config or {}),
        }
        serializer = java(_SERIALIZER)
        self._record = java("org.apache.kafka.clients.producer.ProducerRecord")
        self._header = java("org.apache.kafka.common.header.internals.RecordHeader")
        with kafka_failures():
            self._producer = java("org.apache.kafka.clients.producer.KafkaProducer")(
                java_map(settings.items()), serializer(), serializer()
            )
            if "transactional.id" in settings:
                self._producer.initTransactions()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        with kafka_failures():
            self._producer.close(_duration(LONGEST_WAIT_MS))

    def vanish(self) -> None:
        """Close without waiting for anybody, as if its process had died."""
        with kafka_failures():
            self._producer.close(_duration(0))

    def send(self, message: Message) -> "Delivery":
        """Add a record to the batch of its partition."""
        headers = java("java.util.ArrayList")()
        for name, value in message.headers:
            headers.add(self._header(name, java_bytes(value)))
        timestamp = message.timestamp_ms
        with kafka_failures():
            return Delivery(
                self._producer.send(
                    self._record(
                        message.topic,
                        None,
                        None if timestamp is None else java("java.lang.Long").valueOf(timestamp),
                        java_bytes(message.key),
                        java_bytes(message.value),
                        headers,
                    )
                )
            )

    def flush(self) -> None:
        """Send what was added and wait until it is written."""
        with kafka_failures():
            self._producer.flush()

    def begin(self) -> None:
        """Begin a transaction."""
        with kafka_failures():
            self._producer.beginTransaction()

    def commit(self) -> None:
        """Commit the transaction."""
        with kafka_failures():
            self._producer.commitTransaction()

    def abort(self) -> None:
        """Send what was added, then abort the transaction: aborted records are in the log."""
        with kafka_failures():
            self._producer.flush()
            self._producer.abortTransaction()

    def commit_offsets(self, group: "GroupMember") -> None:
        """Make the positions of a group's member part of the transaction."""
        with kafka_failures():
            self._producer.sendOffsetsToTransaction(group.positions(), group.metadata())


class GroupMember:
    """The only member of a consumer group, which commits what it has read; a context manager."""

    def __init__(
        self,
        bootstrap_servers: str,
        group: str,
        topics: Sequence[str],
        config: Mapping[str, str] | None = None,
    ) -> None:
        settings = {
            "group.id": group,
            "client.id": group,
            "enable.auto.commit": "false",
            "auto.offset.reset": "earliest",
            **(config or {}),
        }
        with kafka_failures():
            self._consumer = new_consumer(bootstrap_servers, settings)
            self._consumer.subscribe(java("java.util.ArrayList")(list(topics)))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        with kafka_failures():
            self._consumer.close()

    def vanish(self) -> None:
        """Close without waiting for anybody, as if its process had died."""
        options = java("org.apache.kafka.clients.consumer.CloseOptions")
        with kafka_failures():
            self._consumer.close(options.timeout(_duration(0)))

    def poll(self) -> int:
        """Read some records and return how many; 0 only at the end of every partition."""
        with kafka_failures():
            for _ in range(LONGEST_WAIT_MS // POLL_MS):
                count = int(self._consumer.poll(_duration(POLL_MS)).count())
                if count or self._is_at_end():
                    return count
        raise KafkaFailure("KafkaConsumer.poll", "a group's member got no records", "")

    def commit(self) -> None:
        """Commit the positions."""
        with kafka_failures():
            self._consumer.commitSync()

    def positions(self) -> Any:
        """Return Kafka's map of partitions to the offsets to be committed."""
        offset = java("org.apache.kafka.clients.consumer.OffsetAndMetadata")
        with kafka_failures():
            assigned = self._consumer.assignment()
            return java_map((p, offset(self._consumer.position(p))) for p in assigned)

    def metadata(self) -> Any:
        """Return Kafka's metadata of the group's member."""
        with kafka_failures():
            return self._consumer.groupMetadata()

    def _is_at_end(self) -> bool:
        assigned = self._consumer.assignment()
        return bool(assigned.size()) and _are_read(self._consumer, assigned)


def consume_topics(
    bootstrap_servers: str, topics: Mapping[str, int], *, read_committed: bool = True
) -> dict[Partition, list[ReadRecord]]:
    """Return every record of topics that a consumer gets, in offset order; no group is involved.

    Returns:
        Records by partition; they have no sequence, which consumers do not get.
    """
    isolation = "read_committed" if read_committed else "read_uncommitted"
    wanted = [(topic, number) for topic, count in topics.items() for number in range(count)]
    records: dict[Partition, list[ReadRecord]] = {partition: [] for partition in wanted}
    with kafka_failures():
        consumer = new_consumer(bootstrap_servers, {"isolation.level": isolation})
        try:
            named = java("org.apache.kafka.common.TopicPartition")
            assigned = java("java.util.ArrayList")([named(t, number) for t, number in wanted])
            consumer.assign(assigned)
            consumer.seekToBeginning(assigned)
            for _ in range(LONGEST_WAIT_MS // POLL_MS):
                for record in consumer.poll(_duration(POLL_MS)):
                    place = (str(record.topic()), int(record.partition()))
                    records[place].append(_consumed(record))
                if _are_read(consumer, assigned):
                    return records
        finally:
            consumer.close()
    raise KafkaFailure("KafkaConsumer.poll", "a consumer did not come to the end", "")


@contextmanager
def _admin(
    bootstrap_servers: str,
    timeout_ms: int = LONGEST_WAIT_MS,
    *,
    request_ms: int | None = None,
    of_controllers: bool = False,
) -> Iterator[Any]:
    settings = {
        "bootstrap.controllers" if of_controllers else "bootstrap.servers": bootstrap_servers,
        "default.api.timeout.ms": str(timeout_ms),
        "request.timeout.ms": str(timeout_ms if request_ms is None else request_ms),
    }
    with kafka_failures():
        admin = java("org.apache.kafka.clients.admin.Admin").create(java_map(settings.items()))
    try:
        yield admin
    finally:
        admin.close(_duration(0))


def new_consumer(bootstrap_servers: str, config: Mapping[str, str]) -> Any:
    """Return a Java consumer of bytes; the caller closes it."""
    settings = {"bootstrap.servers": bootstrap_servers, **config}
    deserializer = java(_DESERIALIZER)
    return java("org.apache.kafka.clients.consumer.KafkaConsumer")(
        java_map(settings.items()), deserializer(), deserializer()
    )


def poll_records(consumer: Any) -> list[ReadRecord]:
    """Poll a consumer once; records have no sequence, which consumers do not get."""
    with kafka_failures():
        return [_consumed(record) for record in consumer.poll(_duration(POLL_MS))]


class ShareMember:
    """The only member of a share group, which accepts what it gets with its next poll."""

    def __init__(self, bootstrap_servers: str, group: str, topics: Sequence[str]) -> None:
        settings = {"bootstrap.servers": bootstrap_servers, "group.id": group, "client.id": group}
        deserializer = java(_DESERIALIZER)
        with kafka_failures():
            self._consumer = java("org.apache.kafka.clients.consumer.KafkaShareConsumer")(
                java_map(settings.items()), deserializer(), deserializer()
            )
            self._consumer.subscribe(_strings(topics))

    def poll(self) -> int:
        """Read some records and return how many, at least one."""
        with kafka_failures():
            for _ in range(LONGEST_WAIT_MS // POLL_MS):
                count = int(self._consumer.poll(_duration(POLL_MS)).count())
                if count:
                    return count
        raise KafkaFailure("KafkaShareConsumer.poll", "a group's member got no records", "")

    def vanish(self) -> None:
        """Close without waiting for anybody, as if its process had died."""
        with kafka_failures():
            self._consumer.close(_duration(0))


def _are_read(consumer: Any, partitions: Any) -> bool:
    ends = consumer.endOffsets(partitions)
    return all(int(consumer.position(p)) >= int(ends.get(p)) for p in partitions)


def _consumed(record: Any) -> ReadRecord:
    return ReadRecord(
        offset=int(record.offset()),
        timestamp=int(record.timestamp()),
        sequence=-1,
        key=_bytes(record.key()),
        value=_bytes(record.value()),
        headers=tuple((str(h.key()), _bytes(h.value())) for h in record.headers()),
    )


def _bytes(array: Any) -> bytes | None:
    return None if array is None else bytes(array)


def _wait(future: Any) -> Any:
    unit = java("java.util.concurrent.TimeUnit").MILLISECONDS
    with kafka_failures():
        return future.get(jpype.JLong(LONGEST_WAIT_MS), unit)


def _strings(texts: Iterable[Any]) -> Any:
    return java("java.util.ArrayList")([str(text) for text in texts])


def _duration(milliseconds: int) -> Any:
    return java("java.time.Duration").ofMillis(milliseconds)
