"""Our choice of a partition beside Kafka's own: the hash, and what its producer makes of it."""

import random

import numpy as np
import pytest

from storage_core.checkpoint.checkpoints import encode_uuid
from storage_core.coordinators.remote_log import metadata_partition
from storage_core.kernels import partitioner
from tests.oracle.jvm import java, java_bytes
from tests.storage_core.kernels.test_partitioner import chosen

pytestmark = [pytest.mark.oracle, pytest.mark.usefixtures("kafka_jvm")]


def some_keys() -> list[bytes]:
    dice = random.Random(7)
    short = [bytes([byte]) * length for byte in (0, 0x7F, 0x80, 0xFF) for length in range(9)]
    return short + [dice.randbytes(dice.randrange(0, 70)) for _ in range(2_000)]


def test_the_hash_of_every_key_is_kafkas():
    kafkas = java("org.apache.kafka.common.utils.Utils").murmur2
    for key in some_keys():
        data = np.frombuffer(key, np.uint8)
        assert int(partitioner.murmur2(data, 0, len(key))) == int(kafkas(java_bytes(key))) % 2**32


@pytest.mark.parametrize("count", [1, 2, 12, 1_000, 2**31 - 1])
def test_the_partition_of_every_key_is_that_of_kafkas_producer(count):
    kafkas = java("org.apache.kafka.clients.producer.internals.BuiltInPartitioner").partitionForKey
    keys = some_keys()
    found, row, status, _ = chosen(partitioner.choose_partitions, keys, [count])
    assert (row, status) == (len(keys), partitioner.DONE)
    assert found == [int(kafkas(java_bytes(key), count)) for key in keys]


@pytest.mark.parametrize("count", [1, 3, 50])
def test_the_metadata_partition_of_every_tiered_partition_is_kafkas(count):
    kafkas = java(
        "org.apache.kafka.server.log.remote.metadata.storage.RemoteLogMetadataTopicPartitioner"
    )(count)
    dice = random.Random(8)
    for _ in range(300):
        topic_id, partition = encode_uuid(dice.randbytes(16)), dice.randrange(2**31)
        owner = java("org.apache.kafka.common.TopicIdPartition")(
            java("org.apache.kafka.common.Uuid").fromString(topic_id), partition, "t"
        )
        assert metadata_partition(topic_id, partition, count) == int(
            kafkas.metadataPartition(owner)
        )
