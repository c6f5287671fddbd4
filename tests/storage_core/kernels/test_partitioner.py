"""Hashes of keys and the partition of a key, against their definitions and values of Kafka."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from storage_core.kernels import key_hash, partitioner
from storage_core.kernels._lanes import LANES
from storage_core.kernels.key_hash import MD5_WORDS
from storage_core.kernels.partitioner import NOT_ASKED
from storage_core.records.new_records import ByteColumn
from tests.reference.hashes import halves_of, md5_128, murmur2, partition_for_key, siphash_1_3_128
from tests.reference.siphash_vectors import KEY, SIPHASH_1_3_128
from tests.storage_core.kernels.arguments import as_array, fenced
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


LOW, HIGH = (np.uint64(half) for half in halves_of(KEY))
SOME_BYTES = np.random.default_rng(11).bytes(300)


@pytest.mark.sampled(9)
@in_both_ways(siphash=key_hash.siphash_1_3_128)
@pytest.mark.parametrize("length", SIPHASH_1_3_128, ids=lambda length: f"{length} bytes")
def test_siphash_gives_the_known_values(siphash, length):
    expected = halves_of(bytes.fromhex(SIPHASH_1_3_128[length]))
    data, start, _ = fenced(bytes(range(length)))
    assert siphash(data, start, length, LOW, HIGH) == expected


@in_both_ways(siphash=key_hash.siphash_1_3_128)
@given(key=st.binary(min_size=16, max_size=16), data=st.binary(max_size=300))
def test_siphash_is_the_reference_for_any_key_and_message(siphash, key, data):
    low, high = (np.uint64(half) for half in halves_of(key))
    buffer, start, _ = fenced(data)
    assert siphash(buffer, start, len(data), low, high) == siphash_1_3_128(key, data)


@in_both_ways(siphash=key_hash.siphash_1_3_128)
@pytest.mark.parametrize("length", [255, 256, 257], ids=lambda length: f"{length} bytes")
def test_siphash_counts_the_length_by_its_last_byte(siphash, length):
    data = SOME_BYTES[:length]
    assert siphash(as_array(data), 0, length, LOW, HIGH) == siphash_1_3_128(KEY, data)


# Of one number of words, of several, and longer than any that lanes are likely to have.
LENGTHS = st.lists(
    st.one_of(st.integers(16, 23), st.integers(0, 8), st.sampled_from([255, 256, 300])),
    max_size=4 * LANES,
)


@in_both_ways(siphash_each=key_hash.siphash_each)
@given(
    lengths=st.one_of(LENGTHS, st.lists(st.integers(8, 15), min_size=2 * LANES, max_size=40)),
    first=st.integers(0, 2),
    behind=st.integers(0, 9),
)
def test_siphash_of_many_is_that_of_each(siphash_each, lengths, first, behind):
    ends = np.cumsum([0, *lengths])
    data = np.random.default_rng(len(lengths)).bytes(int(ends[-1]) + behind)
    start, length = ends[:-1].astype(np.uint64), np.array(lengths, np.uint64)
    first = min(first, len(lengths))
    siphash_each(as_array(data), start, length, first, len(lengths), LOW, HIGH)
    found = list(zip(start.tolist(), length.tolist(), strict=True))
    assert found[:first] == list(zip(ends[:first].tolist(), lengths[:first], strict=True))
    messages = [data[ends[i] : ends[i + 1]] for i in range(first, len(lengths))]
    assert found[first:] == [siphash_1_3_128(KEY, message) for message in messages]


@in_both_ways(siphash_each=key_hash.siphash_each)
def test_no_more_than_the_bytes_there_are_is_read_for_the_last_lanes(siphash_each, monkeypatch):
    def refuse(*arguments):
        raise AssertionError(arguments)

    data = as_array(SOME_BYTES[: 16 * LANES + 7])
    start = np.arange(0, 16 * LANES, 16, dtype=np.uint64)
    if not hasattr(siphash_each, "is_ready"):
        monkeypatch.setitem(siphash_each.__wrapped__.__globals__, "hash_lanes", refuse)
    siphash_each(data, start, np.full(LANES, 16, np.uint64), 0, LANES, LOW, HIGH)
    assert int(start[-1]) == siphash_1_3_128(KEY, SOME_BYTES[16 * LANES - 16 : 16 * LANES])[0]


@in_both_ways(md5=key_hash.md5_128)
def test_md5_is_that_of_the_standard_library_for_every_length(md5):
    words = np.empty(MD5_WORDS, np.uint32)
    for length in range(131):
        data, start, _ = fenced(SOME_BYTES[:length])
        assert md5(data, start, length, words) == md5_128(SOME_BYTES[:length]), length


@given(data=st.binary(max_size=300))
def test_md5_is_that_of_the_standard_library_for_any_message(data):
    words = np.empty(MD5_WORDS, np.uint32)
    assert key_hash.md5_128(as_array(data), 0, len(data), words) == md5_128(data)


def test_two_messages_of_one_md5_have_two_siphashes():
    # Wang, Feng, Lai and Yu, "Collisions for hash functions", 2004: these 128 bytes.
    first = bytes.fromhex(
        "d131dd02c5e6eec4693d9a0698aff95c2fcab58712467eab4004583eb8fb7f89"
        "55ad340609f4b30283e488832571415a085125e8f7cdc99fd91dbdf280373c5b"
        "d8823e3156348f5bae6dacd436c919c6dd53e2b487da03fd02396306d248cda0"
        "e99f33420f577ee8ce54b67080a80d1ec69821bcb6a8839396f9652b6ff72a70"
    )
    second = bytearray(first)
    for position in (19, 45, 59, 83, 109, 123):
        second[position] ^= 0x80
    words = np.empty(MD5_WORDS, np.uint32)
    one, other = as_array(first), as_array(bytes(second))
    assert key_hash.md5_128(one, 0, 128, words) == key_hash.md5_128(other, 0, 128, words)
    siphash = key_hash.siphash_1_3_128
    assert siphash(one, 0, 128, LOW, HIGH) != siphash(other, 0, 128, LOW, HIGH)
