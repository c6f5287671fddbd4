"""Our offset map beside Kafka's own: every key's offset, its size, and when it is full.

Kafka's probes by windows of the digest and stores offsets; ours probes linearly and stores ranks.
Nothing of that can be seen in a look-up.
"""

import hashlib
import random
from typing import Any

import numpy as np
import pytest

from storage_core.config import CleanerConfig
from storage_core.kernels.offset_table import ABSENT
from storage_core.maintenance.compaction.offset_map import OffsetMap
from storage_core.maintenance.compaction.plan import MAP_SLOT_BYTES, map_capacity
from tests.oracle.jvm import KafkaFailure, java, java_bytes, kafka_failures

pytestmark = [pytest.mark.oracle, pytest.mark.usefixtures("kafka_jvm")]

MAP_CLASS = "org.apache.kafka.storage.internals.log.SkimpyOffsetMap"


def kafkas_map(slots: int) -> Any:
    return java(MAP_CLASS)(slots * MAP_SLOT_BYTES, "MD5")


def buffer_of(key: bytes) -> Any:
    return java("java.nio.ByteBuffer").wrap(java_bytes(key))


def halves(keys: list[bytes]) -> tuple[Any, Any]:
    digests = b"".join(hashlib.md5(key, usedforsecurity=False).digest() for key in keys)
    low, high = np.frombuffer(digests, np.uint64).reshape(-1, 2).T
    return low.copy(), high.copy()


def put_all(keys: list[bytes], *, capacity: int | None = None) -> tuple[OffsetMap, int]:
    """Return our map and how many of the keys were put, their places being their offsets."""
    ours = OffsetMap(capacity)
    low, high = halves(keys)
    return ours, ours.put(low, high, np.arange(len(keys), dtype=np.int64), len(keys))


@pytest.mark.item("CMP-12")
@pytest.mark.parametrize("seed", range(5))
def test_every_key_has_the_offset_that_it_has_in_kafkas_map(seed):
    dice = random.Random(seed)
    names = [dice.randbytes(dice.randrange(0, 20)) for _ in range(400)]
    keys = [dice.choice(names) for _ in range(1500)]
    # All slots but one are used in the end: probing runs over the whole table.
    theirs = kafkas_map(len(set(keys)) + 1)
    for offset, key in enumerate(keys):
        theirs.put(buffer_of(key), offset)
    ours, _ = put_all(keys)
    asked = [*sorted(set(keys)), *(dice.randbytes(21) for _ in range(50))]
    low, high = halves(asked)
    found = ours.look_up(low, high, len(asked)).tolist()
    assert found == [int(theirs.get(buffer_of(key))) for key in asked]
    assert found[-50:] == [ABSENT] * 50
    assert len(ours) == int(theirs.size())


@pytest.mark.item("CMP-12", "CMP-10")
def test_a_full_map_takes_nothing_more():
    keys = [b"%d" % number for number in range(30)]
    theirs = kafkas_map(20)
    for offset, key in enumerate(keys[:20]):
        theirs.put(buffer_of(key), offset)
    with pytest.raises(KafkaFailure, match="full"), kafka_failures():
        theirs.put(buffer_of(keys[20]), 20)
    ours, put = put_all(keys, capacity=20)
    assert (put, len(ours)) == (20, int(theirs.size()))
    bounded = CleanerConfig(dedupe_buffer_bytes=20 * MAP_SLOT_BYTES)
    assert (int(theirs.slots()), map_capacity(bounded)) == (20, 18)
