"""Kafka's own readers and writers of the small files, and ours."""

import base64
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jpype
import pytest

from storage_core.checkpoint import (
    EpochEntry,
    PartitionMetadata,
    encode_clean_shutdown,
    encode_leader_epochs,
    encode_offset_checkpoint,
    encode_partition_metadata,
    parse_clean_shutdown,
    parse_leader_epochs,
    parse_meta_properties,
    parse_offset_checkpoint,
    parse_partition_metadata,
    validate_one_broker,
)
from storage_core.checkpoint.checkpoints import encode_uuid
from storage_core.errors import CheckpointError, PylogError
from storage_core.filenames import TopicPartition
from tests.oracle.jvm import java, java_file
from tests.storage_core.checkpoint.test_offset_checkpoint import READABLE, UNREADABLE

pytestmark = [pytest.mark.oracle, pytest.mark.usefixtures("kafka_jvm")]

CHECKPOINT = "org.apache.kafka.storage.internals.checkpoint."
PROPERTIES = "org.apache.kafka.metadata.properties."
UUIDS = [bytes(15) + b"\x01", bytes(range(16)), b"\xff" * 16]
PARTITION_METADATA = {
    "written by Kafka": b"version: 0\ntopic_id: 6OhPo7FvRwiN63dAgYqoUA",
    "last newline": b"version: 0\ntopic_id: 6OhPo7FvRwiN63dAgYqoUA\n",
    "other names": b"v: 3\nt: 6OhPo7FvRwiN63dAgYqoUA==\nmore",
    "tab": b"version:\t0\r\ntopic_id:  6OhPo7FvRwiN63dAgYqoUA",
    "spare bits": b"version: 0\ntopic_id: 6OhPo7FvRwiN63dAgYqoUB",
    "no white space": b"version:0\ntopic_id: 6OhPo7FvRwiN63dAgYqoUA",
    "negative version": b"version: -1\ntopic_id: 6OhPo7FvRwiN63dAgYqoUA",
    "version no number": b"version: 0 \ntopic_id: 6OhPo7FvRwiN63dAgYqoUA",
    "zero id": b"version: 0\ntopic_id: AAAAAAAAAAAAAAAAAAAAAA",
    "short id": b"version: 0\ntopic_id: 6OhPo7FvRwiN63dAgYqoU",
    "half the padding": b"version: 0\ntopic_id: 6OhPo7FvRwiN63dAgYqoUA=",
    "plus in the id": b"version: 0\ntopic_id: 6OhPo7FvRwiN63dAgYqo+A",
    "two colons": b"version: 0\ntopic_id: 6OhPo7FvRwiN63dAgYqoUA: x",
    "one line": b"version: 0",
    "empty": b"",
}
MARKERS = {
    "written by Kafka": b'{"version":0,"brokerEpoch":11}',
    "other keys": b'{"brokerEpoch": 7, "more": [1]}',
    "empty": b"",
    "no JSON": b"{",
    "no epoch": b'{"version":0}',
    "null": b'{"version":0,"brokerEpoch":null}',
    "65 bits": b'{"version":0,"brokerEpoch":9223372036854775808}',
}
META_PROPERTIES = {
    "written by Kafka": b"#\n#Sat\nnode.id=1\ndirectory.id=ohZNig90xgRlmLmr-NUttg\nversion=1\n"
    b"cluster.id=V3CHegy_ZdcmiWckVUA0FQ\n",
    "version 0": b"version=0\nbroker.id=3\n",
    "no version": b"broker.id=3\ncluster.id=c\nnode.id=9\n",
    "empty": b"",
    "blanks around the version": b"version= 1 \nnode.id=1\ncluster.id=c\n",
    "blanks after the node": b"version=1\nnode.id=1 \ncluster.id=c\n",
    "later version": b"version=2\nnode.id=1\ncluster.id=c\n",
    "version no number": b"version=x\n",
    "no node": b"version=1\ncluster.id=c\n",
    "no cluster": b"version=1\nnode.id=1\n",
    "node no number": b"broker.id=one\n",
    "directory no id": b"broker.id=1\ndirectory.id=x\n",
    "escapes": b"version=1\nnode.id=1\ncluster.id=\\u0063\\=d\n",
    "joined lines": b"version=1\nnode.id=1\ncluster.id=c\\\n   d\n",
}


def failure_channel() -> Any:
    return java("org.apache.kafka.storage.internals.log.LogDirFailureChannel")(10)


def offsets_by_kafka(file: Path) -> dict[TopicPartition, int]:
    checkpoint = java(CHECKPOINT + "OffsetCheckpointFile")(java_file(file), failure_channel())
    return {
        TopicPartition(str(entry.getKey().topic()), int(entry.getKey().partition())): int(
            entry.getValue()
        )
        for entry in checkpoint.read().entrySet()
    }


def or_none(read: Callable[[], Any]) -> Any:
    """Return what is read, None if it is refused."""
    try:
        return read()
    except (jpype.JException, PylogError):
        return None


@pytest.mark.item("CKP-01", "CKP-02", "CKP-03")
@pytest.mark.parametrize("name", READABLE | UNREADABLE)
def test_kafka_reads_and_refuses_the_same_offset_checkpoints(name: str, tmp_path: Path):
    data = (READABLE | UNREADABLE)[name][0]
    file = tmp_path / "checkpoint"
    file.write_bytes(data)
    expected = or_none(lambda: offsets_by_kafka(file))
    if name == "leading blank that makes three fields":
        # Kafka takes the white space for the end of a topic without a name.
        assert expected == {TopicPartition("", 0): 5}
        expected = None
    assert or_none(lambda: parse_offset_checkpoint(data, file=name)) == expected
    assert (expected is None) == (name in UNREADABLE)


@pytest.mark.item("CKP-01", "CKP-02")
def test_kafka_reads_the_offset_checkpoint_that_we_write_and_writes_the_same_lines(tmp_path: Path):
    offsets = {
        TopicPartition("a.b_c-d", 0): 2**63 - 1,
        TopicPartition("x", 2**31 - 1): 0,
        TopicPartition("x", 7): -1,
    }
    file = tmp_path / "checkpoint"
    for written in ({}, offsets):
        file.write_bytes(encode_offset_checkpoint(written))
        assert offsets_by_kafka(file) == written
        map_of = java("java.util.HashMap")()
        for partition, offset in written.items():
            key = java("org.apache.kafka.common.TopicPartition")(
                partition.topic, partition.partition
            )
            map_of.put(key, java("java.lang.Long")(offset))
        java(CHECKPOINT + "OffsetCheckpointFile")(java_file(file), failure_channel()).write(map_of)
        lines = encode_offset_checkpoint(written).splitlines(keepends=True)
        assert sorted(file.read_bytes().splitlines(keepends=True)) == sorted(lines)


@pytest.mark.item("CKP-01", "CKP-03")
@pytest.mark.parametrize(
    "data",
    [
        *(b"", b"0\n", b"0\n0\n", b"0\n2\n5 100\n3 50\n", b"0\n1\n-1 -7\n", b"0\n1\n5 100  \n"),
        *(b"0\n1\n5\n", b"0\n1\n 5 100\n", b"0\n1\n 5\n", b"0\n1\n5 100 7\n", b"0\n1\nfive 7\n"),
        *(b"0\n2\n5 100\n", b"1\n0\n", b"0\n1\n2147483648 7\n", b"0\n1\n\n"),
    ],
    ids=repr,
)
def test_kafka_reads_and_refuses_the_same_epoch_checkpoints(data: bytes, tmp_path: Path):
    file = tmp_path / "a-0" / "leader-epoch-checkpoint"
    file.parent.mkdir()
    file.write_bytes(data)

    def read() -> list[EpochEntry]:
        checkpoint = java(CHECKPOINT + "LeaderEpochCheckpointFile")(
            java_file(file), failure_channel()
        )
        return [
            EpochEntry(int(entry.epoch()), int(entry.startOffset())) for entry in checkpoint.read()
        ]

    expected = or_none(read)
    ours = or_none(lambda: parse_leader_epochs(data, file="f"))
    assert ours == expected
    if ours is not None:
        file.write_bytes(encode_leader_epochs(ours))
        assert read() == ours


@pytest.mark.item("CKP-15")
@pytest.mark.parametrize("name", PARTITION_METADATA)
def test_kafka_reads_and_refuses_the_same_partition_metadata(name: str, tmp_path: Path):
    data = PARTITION_METADATA[name]
    file = tmp_path / "partition.metadata"
    file.write_bytes(data)

    def read() -> PartitionMetadata:
        found = java(CHECKPOINT + "PartitionMetadataFile")(
            java_file(file), failure_channel()
        ).read()
        return PartitionMetadata(
            version=int(found.version()), topic_id=str(found.topicId().toString())
        )

    assert or_none(lambda: parse_partition_metadata(data, file="f")) == or_none(read)


@pytest.mark.item("CKP-15")
def test_kafka_writes_the_partition_metadata_that_we_write(tmp_path: Path):
    file = tmp_path / "partition.metadata"
    for value in UUIDS:
        metadata = PartitionMetadata(topic_id=encode_uuid(value))
        writer = java(CHECKPOINT + "PartitionMetadataFile")(java_file(file), failure_channel())
        writer.record(java("org.apache.kafka.common.Uuid").fromString(metadata.topic_id))
        writer.maybeFlush()
        assert encode_partition_metadata(metadata) == file.read_bytes()
        assert base64.urlsafe_b64decode(metadata.topic_id + "==") == value


@pytest.mark.item("CKP-16")
@pytest.mark.parametrize("name", MARKERS)
def test_kafka_reads_the_same_from_a_marker(name: str, tmp_path: Path):
    (tmp_path / ".kafka_cleanshutdown").write_bytes(MARKERS[name])
    found = java(CHECKPOINT + "CleanShutdownFileHandler")(str(tmp_path)).read()
    expected = int(found.getAsLong()) if found.isPresent() else -1
    assert parse_clean_shutdown(MARKERS[name]).broker_epoch == expected


@pytest.mark.item("CKP-16")
def test_kafka_writes_the_marker_that_we_write(tmp_path: Path):
    handler = java(CHECKPOINT + "CleanShutdownFileHandler")(str(tmp_path))
    for epoch in (-1, 0, 2**63 - 1):
        handler.write(epoch)
        assert (tmp_path / ".kafka_cleanshutdown").read_bytes() == encode_clean_shutdown(epoch)


def meta_by_kafka(file: Path) -> tuple[object, ...]:
    properties = java(PROPERTIES + "PropertiesUtils").readPropertiesFile(str(file))
    builder = java(PROPERTIES + "MetaProperties$Builder")
    found = builder(properties).build()
    return (
        int(found.version().number()),
        str(found.clusterId().get()) if found.clusterId().isPresent() else None,
        int(found.nodeId().getAsInt()) if found.nodeId().isPresent() else None,
        str(found.directoryId().get().toString()) if found.directoryId().isPresent() else None,
    )


def our_meta(data: bytes) -> tuple[object, ...]:
    found = parse_meta_properties(data, file="f")
    return found.version, found.cluster_id, found.node_id, found.directory_id


@pytest.mark.item("CKP-17")
@pytest.mark.parametrize("name", META_PROPERTIES)
def test_kafka_reads_and_refuses_the_same_meta_properties(name: str, tmp_path: Path):
    data = META_PROPERTIES[name]
    file = tmp_path / "meta.properties"
    file.write_bytes(data)
    assert or_none(lambda: our_meta(data)) == or_none(lambda: meta_by_kafka(file))


@pytest.mark.item("DIR-11")
@pytest.mark.parametrize(
    "pair",
    [
        (b"version=1\nnode.id=1\ncluster.id=c\n", b"version=1\nnode.id=1\ncluster.id=c\n"),
        (b"version=1\nnode.id=1\ncluster.id=c\n", b"version=1\nnode.id=2\ncluster.id=c\n"),
        (b"version=1\nnode.id=1\ncluster.id=c\n", b"version=1\nnode.id=1\ncluster.id=d\n"),
        (b"version=1\nnode.id=1\ncluster.id=c\n", b"version=0\n"),
        (b"directory.id=ohZNig90xgRlmLmr-NUttg\n", b"directory.id=ohZNig90xgRlmLmr-NUttg\n"),
        (b"directory.id=AAAAAAAAAAAAAAAAAAAAAg\n", b""),
        (b"directory.id=AAAAAAAAAAAAAAAAAAAAZA\n", b""),
    ],
    ids=str,
)
def test_kafka_finds_the_same_directories_to_be_one_brokers(
    pair: tuple[bytes, bytes], tmp_path: Path
):
    loader = java(PROPERTIES + "MetaPropertiesEnsemble$Loader")()
    directories = java("java.util.ArrayList")()
    for name, data in zip("ab", pair, strict=True):
        (tmp_path / name).mkdir()
        (tmp_path / name / "meta.properties").write_bytes(data)
        directories.add(str(tmp_path / name))
    flags = java("java.util.EnumSet").noneOf(
        java(PROPERTIES + "MetaPropertiesEnsemble$VerificationFlag")
    )
    empty = java("java.util.Optional").empty()
    nobody = java("java.util.OptionalInt").empty()
    ensemble = loader.addLogDirs(directories).load()
    agree = or_none(lambda: ensemble.verify(empty, nobody, flags) or True)
    ours = {
        name: parse_meta_properties(data, file=name) for name, data in zip("ab", pair, strict=True)
    }
    assert or_none(lambda: validate_one_broker(ours) or True) == agree


def test_only_checkpoint_errors_come_out_of_our_parsers():
    with pytest.raises(CheckpointError):
        parse_offset_checkpoint(UNREADABLE["empty count"][0], file="f")
