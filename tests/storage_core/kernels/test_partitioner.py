"""The partition of a key, against the hash's definition and the values of Kafka's own tests."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from storage_core.kernels import partitioner
from storage_core.kernels.partitioner import NOT_ASKED
from storage_core.records.new_records import ByteColumn
from tests.reference.hashes import murmur2, partition_for_key
from tests.storage_core.kernels.arguments import fenced
from tests.storage_core.kernels.twins import in_both_ways

# From UtilsTest of Apache Kafka, as 32 bits without a sign.
OF_KAFKAS_TESTS = {
    b"21": -973932308,
    b"foobar": -790332482,
    b"a-little-bit-long-string": -985981536,
    b"a-little-bit-longer-string": -1486304829,
    b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8": -58897971,
    b"abc": 479470107,
}


@in_both_ways(hashed=partitioner.murmur2)
@pytest.mark.parametrize("key", OF_KAFKAS_TESTS, ids=lambda key: key.decode())
def test_the_hash_has_the_values_of_kafkas_tests(hashed, key):
    data, start, _ = fenced(key)
    assert hashed(data, start, len(key)) == OF_KAFKAS_TESTS[key] % 2**32


@in_both_ways(hashed=partitioner.murmur2)
@given(key=st.binary(max_size=40))
def test_the_hash_is_the_reference_for_any_key(hashed, key):
    data, start, _ = fenced(key)
    assert hashed(data, start, len(key)) == murmur2(key)


def chosen(choose, keys, counts, *, topics=None, asked=None, by_key=True, turns=None):
    """Return (partitions, row, status, turns)."""
    data = np.frombuffer(b"#" + b"".join(key or b"" for key in keys) + b"#", np.uint8)
    length = np.array([-1 if key is None else len(key) for key in keys], np.int64)
    start = 1 + np.cumsum(np.maximum(length, 0)) - np.maximum(length, 0)
    column = ByteColumn.of_spans(data, start, length)
    out = np.full(len(keys), -7, np.int64)
    turns = np.array(turns or [0] * len(counts), np.int64)
    row, status = choose(
        column.data,
        column.start,
        column.length,
        np.array(topics or [0] * len(keys), np.int64),
        np.array(counts, np.int64),
        np.array(asked or [NOT_ASKED] * len(keys), np.int64),
        by_key,
        turns,
        out,
    )
    return out.tolist(), row, status, turns.tolist()


@in_both_ways(choose=partitioner.choose_partitions)
@given(
    keys=st.lists(st.binary(max_size=12) | st.none(), max_size=20),
    count=st.integers(1, 7),
    first=st.integers(0, 9),
)
def test_keys_decide_and_records_without_one_take_turns(choose, keys, count, first):
    turn, expected = first, []
    for key in keys:
        expected.append(turn % count if key is None else partition_for_key(key, count))
        turn += key is None
    found = chosen(choose, keys, [count], turns=[first])
    assert found == (expected, len(keys), partitioner.DONE, [turn])


@in_both_ways(choose=partitioner.choose_partitions)
def test_each_topic_has_its_own_count_and_turn(choose):
    keys = [None, None, b"k", None, b""]
    topics = [0, 1, 1, 1, 0]
    found = chosen(choose, keys, [2, 3], topics=topics, turns=[1, 5])
    expected = [1, 2, partition_for_key(b"k", 3), 0, partition_for_key(b"", 2)]
    assert found == (expected, 5, partitioner.DONE, [2, 7])


@in_both_ways(choose=partitioner.choose_partitions)
def test_without_keys_all_take_turns(choose):
    found, _, _, turns = chosen(choose, [b"same"] * 5, [2], by_key=False)
    assert (found, turns) == ([0, 1, 0, 1, 0], [5])


@in_both_ways(choose=partitioner.choose_partitions)
@pytest.mark.parametrize(
    ("counts", "asked", "expected"),
    [
        ([4], [3, 0], ([3, 0], 2, partitioner.DONE)),
        ([0], [9, 7], ([9, 7], 2, partitioner.DONE)),
        ([4], [3, 4], ([3, -7], 1, partitioner.OUT_OF_RANGE)),
        ([4], [-1, 0], ([-7, -7], 0, partitioner.OUT_OF_RANGE)),
        ([0], [2, NOT_ASKED], ([2, -7], 1, partitioner.NO_COUNT)),
    ],
    ids=["in range", "count unknown", "beyond", "negative", "nobody knows"],
)
def test_a_record_gets_the_partition_that_it_asks_for_or_none(choose, counts, asked, expected):
    assert chosen(choose, [b"k", b"k"], counts, asked=asked)[:3] == expected
