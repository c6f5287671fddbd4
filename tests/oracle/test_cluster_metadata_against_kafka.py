"""Metadata records that Kafka wrote, of every version that it writes, and what they add up to."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import jpype
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from storage_core.catalog.cluster_metadata import (
    CLUSTER_METADATA_DIRECTORY,
    read_cluster_metadata,
)
from storage_core.catalog.metadata_image import (
    BrokerRegistrationChangeRecord,
    ClearElrRecord,
    ConfigRecord,
    FeatureLevelRecord,
    Fencing,
    MetadataImage,
    MetadataRecord,
    PartitionChangeRecord,
    PartitionRecord,
    ProducerIdsRecord,
    RegisterBrokerRecord,
    RemoveTopicRecord,
    SkippedRecord,
    TopicRecord,
    TransactionMark,
    TransactionRecord,
    UnregisterBrokerRecord,
    decode_metadata_record,
)
from tests.kit.golden_data import Golden
from tests.oracle.jvm import java, python_bytes

pytestmark = [pytest.mark.oracle, pytest.mark.usefixtures("kafka_jvm")]

METADATA = "org.apache.kafka.common.metadata."
IDS = ["6OhPo7FvRwiN63dAgYqoUA", "Pwfy5rl5Qw6jBT2A6nuzCQ", "b_UNIGBITraaXMNs6EvOMA"]
DIRECTORIES = ["ohZNig90xgRlmLmr-NUttg", "Y0x2kbxs_vG_YmsMBH-UEg"]


def uuid(text: str) -> Any:
    return java("org.apache.kafka.common.Uuid").fromString(text)


def uuids(*texts: str) -> Any:
    return java_list(uuid(text) for text in texts)


def integers(*numbers: int) -> Any:
    return java_list(java("java.lang.Integer")(number) for number in numbers)


def java_list(elements: Any) -> Any:
    result = java("java.util.ArrayList")()
    for element in elements:
        result.add(element)
    return result


def serialized(record: Any, version: int) -> bytes:
    """Return the bytes that Kafka writes for a record."""
    message = java("org.apache.kafka.server.common.ApiMessageAndVersion")(
        record, jpype.JShort(version)
    )
    serde = java("org.apache.kafka.metadata.MetadataRecordSerde")()
    cache = java("org.apache.kafka.common.protocol.ObjectSerializationCache")()
    buffer = java("java.nio.ByteBuffer").allocate(serde.recordSize(message, cache))
    serde.write(message, cache, java("org.apache.kafka.common.protocol.ByteBufferAccessor")(buffer))
    buffer.flip()
    value = python_bytes(buffer)
    assert value is not None
    return value


def decoded(record: Any, version: int) -> MetadataRecord:
    return decode_metadata_record(serialized(record, version), file="f", offset=0)


def highest_version(name: str) -> int:
    return int(java(METADATA + name).HIGHEST_SUPPORTED_VERSION)


def partition_record(version: int) -> Any:
    record = java(METADATA + "PartitionRecord")()
    record.setPartitionId(3).setTopicId(uuid(IDS[0])).setReplicas(integers(1, 2))
    record.setIsr(integers(2)).setRemovingReplicas(integers(4)).setAddingReplicas(integers(5))
    record.setLeader(2).setLeaderEpoch(8).setPartitionEpoch(9)
    record.setLeaderRecoveryState(jpype.JByte(1))
    if version >= 1:
        record.setDirectories(uuids(*DIRECTORIES))
    if version >= 2:
        record.setEligibleLeaderReplicas(integers(1)).setLastKnownElr(integers(1, 2))
    return record


def test_partitions_of_every_version_are_decoded():
    assert highest_version("PartitionRecord") == 2
    for version in range(3):
        assert decoded(partition_record(version), version) == PartitionRecord(
            topic_id=IDS[0],
            partition=3,
            replicas=(1, 2),
            isr=(2,),
            removing_replicas=(4,),
            adding_replicas=(5,),
            leader=2,
            leader_epoch=8,
            partition_epoch=9,
            directories=tuple(DIRECTORIES) if version >= 1 else (),
            eligible_leader_replicas=(1,) if version >= 2 else (),
            last_known_eligible_leader_replicas=(1, 2) if version >= 2 else (),
        )


def test_partition_changes_of_every_version_are_decoded():
    assert highest_version("PartitionChangeRecord") == 2
    for version in range(3):
        record = java(METADATA + "PartitionChangeRecord")()
        record.setPartitionId(3).setTopicId(uuid(IDS[0]))
        assert decoded(record, version) == PartitionChangeRecord(topic_id=IDS[0], partition=3)
        record.setIsr(integers()).setLeader(-1).setReplicas(integers(7))
        record.setRemovingReplicas(integers(8)).setAddingReplicas(integers(9))
        record.setLeaderRecoveryState(jpype.JByte(0))
        if version >= 1:
            record.setDirectories(uuids(DIRECTORIES[0]))
        if version >= 2:
            record.setEligibleLeaderReplicas(integers(1)).setLastKnownElr(integers(2))
        assert decoded(record, version) == PartitionChangeRecord(
            topic_id=IDS[0],
            partition=3,
            isr=(),
            leader=-1,
            replicas=(7,),
            removing_replicas=(8,),
            adding_replicas=(9,),
            directories=(DIRECTORIES[0],) if version >= 1 else None,
            eligible_leader_replicas=(1,) if version >= 2 else None,
            last_known_eligible_leader_replicas=(2,) if version >= 2 else None,
        )


def test_brokers_of_every_version_are_decoded():
    assert highest_version("RegisterBrokerRecord") == 4
    for version in range(5):
        record = java(METADATA + "RegisterBrokerRecord")()
        record.setBrokerId(3).setBrokerEpoch(11).setFenced(True).setIncarnationId(uuid(IDS[1]))
        record.setRack("rack")
        endpoint = java(METADATA + "RegisterBrokerRecord$BrokerEndpoint")()
        record.endPoints().add(endpoint.setName("PLAINTEXT").setHost("host").setPort(65535))
        feature = java(METADATA + "RegisterBrokerRecord$BrokerFeature")()
        record.features().add(feature.setName("metadata.version"))
        if version >= 1:
            record.setInControlledShutdown(True)
        if version >= 2:
            record.setIsMigratingZkBroker(True)
        if version >= 3:
            record.setLogDirs(uuids(*DIRECTORIES))
        if version >= 4:
            record.setCordonedLogDirs(uuids(DIRECTORIES[1]))
        assert decoded(record, version) == RegisterBrokerRecord(
            broker_id=3,
            broker_epoch=11,
            fenced=True,
            log_directories=tuple(DIRECTORIES) if version >= 3 else (),
            cordoned_log_directories=(DIRECTORIES[1],) if version >= 4 else None,
            in_controlled_shutdown=version >= 1,
        )


def test_changes_of_brokers_of_every_version_are_decoded():
    assert highest_version("BrokerRegistrationChangeRecord") == 3
    for version in range(4):
        for fencing in (-1, 0, 1):
            record = java(METADATA + "BrokerRegistrationChangeRecord")()
            record.setBrokerId(3).setBrokerEpoch(11).setFenced(jpype.JByte(fencing))
            if version >= 1:
                record.setInControlledShutdown(jpype.JByte(1))
            if version >= 2:
                record.setLogDirs(uuids(*DIRECTORIES))
            if version >= 3:
                record.setCordonedLogDirs(uuids())
            assert decoded(record, version) == BrokerRegistrationChangeRecord(
                broker_id=3,
                broker_epoch=11,
                fencing=fencing,
                log_directories=tuple(DIRECTORIES) if version >= 2 else (),
                cordoned_log_directories=() if version >= 3 else None,
                in_controlled_shutdown=1 if version >= 1 else 0,
            )


def kafka(name: str) -> Any:
    return java(METADATA + name)()


SINGLE_VERSIONS: dict[str, tuple[Callable[[Any], Any], MetadataRecord]] = {
    "TopicRecord": (
        lambda r: r.setName("t").setTopicId(uuid(IDS[0])),
        TopicRecord(name="t", topic_id=IDS[0]),
    ),
    "RemoveTopicRecord": (
        lambda r: r.setTopicId(uuid(IDS[0])),
        RemoveTopicRecord(topic_id=IDS[0]),
    ),
    "ConfigRecord": (
        lambda r: (
            r.setResourceType(jpype.JByte(2))
            .setResourceName("t")
            .setName("retention.ms")
            .setValue("5")
        ),
        ConfigRecord(resource_type=2, resource_name="t", key="retention.ms", value="5"),
    ),
    "FeatureLevelRecord": (
        lambda r: r.setName("metadata.version").setFeatureLevel(jpype.JShort(33)),
        FeatureLevelRecord(name="metadata.version", level=33),
    ),
    "ProducerIdsRecord": (
        lambda r: r.setBrokerId(3).setBrokerEpoch(11).setNextProducerId(2000),
        ProducerIdsRecord(next_producer_id=2000),
    ),
    "UnregisterBrokerRecord": (
        lambda r: r.setBrokerId(3).setBrokerEpoch(11),
        UnregisterBrokerRecord(broker_id=3),
    ),
    "FenceBrokerRecord": (
        lambda r: r.setId(3).setEpoch(11),
        BrokerRegistrationChangeRecord(broker_id=3, broker_epoch=11, fencing=Fencing.FENCE),
    ),
    "UnfenceBrokerRecord": (
        lambda r: r.setId(3).setEpoch(11),
        BrokerRegistrationChangeRecord(broker_id=3, broker_epoch=11, fencing=Fencing.UNFENCE),
    ),
    "ClearElrRecord": (lambda r: r.setTopicName("t"), ClearElrRecord(topic="t")),
    "BeginTransactionRecord": (
        lambda r: r.setName("Bootstrap records"),
        TransactionRecord(mark=TransactionMark.BEGIN),
    ),
    "EndTransactionRecord": (lambda r: r, TransactionRecord(mark=TransactionMark.END)),
    "AbortTransactionRecord": (
        lambda r: r.setReason("why"),
        TransactionRecord(mark=TransactionMark.ABORT),
    ),
}
FULLY_TESTED = {
    "PartitionRecord",
    "PartitionChangeRecord",
    "RegisterBrokerRecord",
    "BrokerRegistrationChangeRecord",
}


@pytest.mark.parametrize("name", SINGLE_VERSIONS)
def test_a_record_of_one_version_is_decoded(name: str):
    fill, expected = SINGLE_VERSIONS[name]
    assert highest_version(name) == 0
    assert decoded(fill(kafka(name)), 0) == expected


def test_a_setting_that_was_removed_has_no_value():
    record = kafka("ConfigRecord").setResourceType(jpype.JByte(2)).setResourceName("t")
    found = decoded(record.setName("retention.ms").setValue(None), 0)
    assert isinstance(found, ConfigRecord)
    assert found.value is None


def test_every_other_type_of_kafkas_is_skipped_as_a_known_one():
    types = java(METADATA + "MetadataRecordType").values()
    names = {str(kind.toString()): kind for kind in types}
    names = {
        "".join(part.capitalize() for part in name.split("_")): kind for name, kind in names.items()
    }
    others = set(names) - set(SINGLE_VERSIONS) - FULLY_TESTED
    assert len(others) == 11
    for name in others:
        record = names[name].newMetadataRecord()
        found = decoded(record, int(names[name].highestSupportedVersion()))
        assert found == SkippedRecord(api_key=int(names[name].id()), is_known=True)


@pytest.mark.thorough
def test_a_record_of_a_broker_is_what_kafka_reads_in_its_log(tmp_path: Path):
    directory = Golden("broker-dir").unpack(tmp_path) / CLUSTER_METADATA_DIRECTORY
    metadata = read_cluster_metadata(directory)
    image = image_of_kafka(values_of(directory / "00000000000000000000.log"))
    assert topics_of(image) == {
        topic.name: (
            topic_id,
            {number: comparable(partition) for number, partition in topic.partitions.items()},
        )
        for topic_id, topic in metadata.topics.items()
    }
    assert configs_of(image) == metadata.topic_configs


def values_of(log: Path) -> list[bytes]:
    """Return the values of a log's data records, as Kafka reads them."""
    records = java("org.apache.kafka.common.record.internal.FileRecords").open(
        java("java.io.File")(str(log))
    )
    values = []
    for batch in records.batches():
        if not batch.isControlBatch():
            for record in batch:
                value = python_bytes(record.value())
                assert value is not None
                values.append(value)
    records.close()
    return values


def image_of_kafka(values: list[bytes]) -> Any:
    """Return Kafka's image of a run of records; transactions are taken as committed."""
    image = java("org.apache.kafka.image.MetadataImage").EMPTY
    serde = java("org.apache.kafka.metadata.MetadataRecordSerde")()
    builder = java("org.apache.kafka.image.MetadataDelta$Builder")
    marks = {23, 24, 25}
    for value in values:
        buffer = java("java.nio.ByteBuffer").wrap(jpype.JArray(jpype.JByte)(value))
        accessor = java("org.apache.kafka.common.protocol.ByteBufferAccessor")(buffer)
        message = serde.read(accessor, buffer.remaining()).message()
        if int(message.apiKey()) not in marks:
            delta = builder().setImage(image).build()
            delta.replay(message)
            image = delta.apply(java("org.apache.kafka.image.MetadataProvenance").EMPTY)
    return image


def topics_of(image: Any) -> dict[str, tuple[str, dict[int, tuple[object, ...]]]]:
    topics = {}
    for entry in image.topics().topicsById().entrySet():
        topic = entry.getValue()
        partitions = {}
        for item in topic.partitions().entrySet():
            partition = item.getValue()
            partitions[int(item.getKey())] = (
                tuple(map(int, partition.replicas)),
                tuple(map(int, partition.isr)),
                tuple(map(int, partition.removingReplicas)),
                tuple(map(int, partition.addingReplicas)),
                int(partition.leader),
                int(partition.leaderEpoch),
                int(partition.partitionEpoch),
                tuple(map(int, partition.elr)),
                tuple(map(int, partition.lastKnownElr)),
                tuple(str(directory.toString()) for directory in partition.directories),
            )
        topics[str(topic.name())] = (str(topic.id().toString()), partitions)
    return topics


def comparable(partition: PartitionRecord) -> tuple[object, ...]:
    return (
        partition.replicas,
        partition.isr,
        partition.removing_replicas,
        partition.adding_replicas,
        partition.leader,
        partition.leader_epoch,
        partition.partition_epoch,
        partition.eligible_leader_replicas,
        partition.last_known_eligible_leader_replicas,
        partition.directories,
    )


def configs_of(image: Any) -> dict[str, dict[str, str]]:
    configs = {}
    for entry in image.configs().resourceData().entrySet():
        if str(entry.getKey().type()) == "TOPIC":
            configs[str(entry.getKey().name())] = {
                str(item.getKey()): str(item.getValue())
                for item in entry.getValue().data().entrySet()
            }
    return configs


# A step of a cluster's life: what happens, to which topic and partition, with which numbers.
steps = st.tuples(
    st.sampled_from(["create", "remove", "partition", "change", "config", "unset", "clear"]),
    st.integers(0, 2),
    st.integers(0, 2),
    st.integers(0, 1_000),
)


def plausible_values(plan: list[tuple[str, int, int, int]]) -> list[bytes]:
    """Return records of a history that a controller could have written."""
    values: list[bytes] = []
    partitions: dict[int, set[int]] = {}
    for kind, topic, number, seed in plan:
        name, topic_id = f"t{topic}", uuid(IDS[topic])
        exists = topic in partitions
        if kind == "create" and not exists:
            partitions[topic] = set()
            values.append(serialized(kafka("TopicRecord").setName(name).setTopicId(topic_id), 0))
        elif kind == "remove" and exists:
            del partitions[topic]
            values.append(serialized(kafka("RemoveTopicRecord").setTopicId(topic_id), 0))
        elif kind == "partition" and exists and number not in partitions[topic]:
            partitions[topic].add(number)
            record = partition_record(2).setPartitionId(number).setTopicId(topic_id)
            values.append(serialized(record.setLeaderRecoveryState(jpype.JByte(0)), 2))
        elif kind == "change" and exists and number in partitions[topic]:
            values.append(serialized(some_change(topic_id, number, seed), 2))
        elif kind in {"config", "unset"} and exists:
            record = kafka("ConfigRecord").setResourceType(jpype.JByte(2)).setResourceName(name)
            key = ["retention.ms", "cleanup.policy"][seed % 2]
            values.append(
                serialized(record.setName(key).setValue(str(seed) if kind == "config" else None), 0)
            )
        elif kind == "clear":
            every = seed % 2 or not exists
            values.append(
                serialized(kafka("ClearElrRecord").setTopicName("" if every else name), 0)
            )
    return values


def some_change(topic_id: Any, number: int, seed: int) -> Any:
    record = kafka("PartitionChangeRecord").setPartitionId(number).setTopicId(topic_id)
    if seed & 1:
        record.setIsr(integers(*range(seed % 3)))
    if seed & 2:
        record.setLeader(seed % 3 - 1)
    if seed & 4:
        record.setReplicas(integers(2, 3)).setDirectories(uuids(*DIRECTORIES))
    if seed & 8:
        record.setEligibleLeaderReplicas(integers(*range(seed % 2)))
        record.setLastKnownElr(integers(9))
    if seed & 16:
        record.setAddingReplicas(integers()).setRemovingReplicas(integers(seed))
    return record


@settings(deadline=None, max_examples=60)
@given(st.lists(steps, max_size=40))
def test_any_history_of_a_cluster_adds_up_to_what_it_adds_up_to_in_kafka(
    plan: list[tuple[str, int, int, int]],
):
    values = plausible_values(plan)
    ours = MetadataImage()
    for offset, value in enumerate(values):
        ours.apply(decode_metadata_record(value, file="f", offset=offset), file="f", offset=offset)
    image = image_of_kafka(values)
    assert topics_of(image) == {
        topic.name: (
            topic_id,
            {number: comparable(partition) for number, partition in topic.partitions.items()},
        )
        for topic_id, topic in ours.topics().items()
    }
    assert configs_of(image) == ours.topic_configs
