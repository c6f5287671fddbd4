"""Our choice of a partition beside Kafka's own: the hash, and what its producer makes of it."""

import random

import numpy as np
import pytest

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
