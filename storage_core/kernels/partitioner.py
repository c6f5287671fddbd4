"""Choose a record's partition as a producer of Kafka's Java client does.

Murmur2 is Austin Appleby's, with the seed of ``org.apache.kafka.common.utils.Utils.murmur2``. The
partition of a key is its hash without the sign bit, modulo the number of partitions
(``BuiltInPartitioner.partitionForKey``).
"""

from typing import Final

import numpy as np
from numpy.typing import NDArray

from storage_core.kernels._jit import inlined_kernel, kernel

# How a choice ended.
DONE: Final = 0
NO_COUNT: Final = 1  # nobody said how many partitions the topic has
OUT_OF_RANGE: Final = 2  # the record asks for a partition that the topic does not have

# Of a record that leaves the choice to its key.
NOT_ASKED: Final = -(2**63)

_SEED: Final = np.uint32(0x9747B28C)
_FACTOR: Final = np.uint32(0x5BD1E995)
_SHIFT: Final = np.uint32(24)
_SIGN_OFF: Final = 0x7FFFFFFF


@inlined_kernel
def murmur2(data: NDArray[np.uint8], start: int, length: int) -> int:
    """Return the 32-bit murmur2 hash of bytes, 0 to 2^32 - 1. The bytes are data[start : start +
    length]."""
    # Products are cut to 32 bits one by one: compiled, they have 64.
    value = _SEED ^ np.uint32(length)
    words = length // 4
    for i in range(words):
        at = start + 4 * i
        word = (
            np.uint32(data[at])
            | (np.uint32(data[at + 1]) << np.uint32(8))
            | (np.uint32(data[at + 2]) << np.uint32(16))
            | (np.uint32(data[at + 3]) << np.uint32(24))
        )
        word = np.uint32(np.uint32(word) * _FACTOR)
        word ^= word >> _SHIFT
        word = np.uint32(np.uint32(word) * _FACTOR)
        value = np.uint32(np.uint32(value) * _FACTOR) ^ word
    tail = start + 4 * words
    tail_bytes = length - 4 * words
    if tail_bytes:
        for i in range(tail_bytes):
            value ^= np.uint32(data[tail + i]) << np.uint32(8 * i)
        value = np.uint32(np.uint32(value) * _FACTOR)
    value = np.uint32(value)
    value ^= value >> np.uint32(13)
    value = np.uint32(np.uint32(value) * _FACTOR)
    return np.uint32(value ^ (value >> np.uint32(15)))


@kernel
def choose_partitions(
    data: NDArray[np.uint8],
    start: NDArray[np.int64],
    length: NDArray[np.int64],
    topic: NDArray[np.int64],
    counts: NDArray[np.int64],
    asked: NDArray[np.int64],
    by_key: bool,  # numba takes no keyword-only arguments
    turns: NDArray[np.int64],
    partition: NDArray[np.int64],
) -> tuple[int, int]:
    """Choose the partition of each record.

    A record that asks for one gets it. Otherwise its key decides. Records without a key take turns
    over the partitions of their topic.

    Args:
        data: uint8[], where the keys lie.
        start: int64[n], where each begins.
        length: int64[n], their bytes, -1 for no key.
        topic: int64[n], row of each record's topic in counts and turns.
        counts: int64[t], partitions of each topic; 0 where that is not known.
        asked: int64[n], the partition that a record asks for, or NOT_ASKED.
        by_key: Whether keys decide; else all records take turns.
        turns: int64[t], whose turn it is in each topic; any number from 0. Goes on.
        partition: int64[n], out.

    Returns:
        (row, status): the first record without a partition, and why; (n, DONE) without one.
    """
    for row in range(length.size):
        count = counts[topic[row]]
        wanted = asked[row]
        if wanted != NOT_ASKED:
            if wanted < 0 or (count > 0 and wanted >= count):
                return row, OUT_OF_RANGE
            partition[row] = wanted
        elif count <= 0:
            return row, NO_COUNT
        elif by_key and length[row] >= 0:
            partition[row] = (np.int64(murmur2(data, start[row], length[row])) & _SIGN_OFF) % count
        else:
            partition[row] = turns[topic[row]] % count
            turns[topic[row]] += 1
    return length.size, DONE
