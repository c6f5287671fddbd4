"""Bitmaps of survivors against Python's own integers."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from storage_core.kernels import survivors
from tests.storage_core.kernels.twins import in_both_ways

BITS = st.sets(st.integers(0, 199))


def words_of(bits: set[int], count: int = 4) -> np.ndarray:
    number = sum(1 << bit for bit in bits)
    return np.array([(number >> (64 * word)) % 2**64 for word in range(count)], np.uint64)


def bits_of(words: np.ndarray) -> set[int]:
    number = sum(int(word) << (64 * i) for i, word in enumerate(words))
    return {bit for bit in range(64 * len(words)) if number >> bit & 1}


@in_both_ways(is_set=survivors.is_set)
@given(bits=BITS)
def test_a_bit_is_set_or_not(is_set, bits):
    words = words_of(bits)
    assert {bit for bit in range(256) if is_set(words, bit)} == bits


@in_both_ways(count_range=survivors.count_range)
@given(bits=BITS, first=st.integers(0, 256), length=st.integers(0, 256))
def test_set_bits_of_a_range_are_counted(count_range, bits, first, length):
    end = min(first + length, 256)
    assert count_range(words_of(bits), first, end) == sum(first <= bit < end for bit in bits)


@in_both_ways(count_range=survivors.count_range)
@pytest.mark.parametrize(
    ("first", "end"), [(0, 0), (0, 63), (0, 64), (0, 65), (63, 65), (64, 128), (1, 256), (256, 256)]
)
def test_every_bit_of_a_full_map_is_counted(count_range, first, end):
    assert count_range(words_of(set(range(256))), first, end) == end - first


@in_both_ways(mark_survivors=survivors.mark_survivors)
@given(
    places=st.sets(st.tuples(st.integers(0, 2), st.integers(0, 150)), max_size=30),
)
def test_every_record_that_the_table_names_gets_its_bit(mark_survivors, places):
    table = np.zeros((64, 3), np.uint64)
    slots = np.random.default_rng(3).permutation(64)
    for slot, (segment, ordinal) in zip(slots.tolist(), sorted(places), strict=False):
        table[slot] = (0, 0, (segment << 32) + ordinal + 1)
    first_word = np.array([0, 3, 6], np.int64)
    words = np.zeros(9, np.uint64)
    mark_survivors(table, first_word, words)
    for segment, first in enumerate(first_word.tolist()):
        found = bits_of(words[first : first + 3])
        assert found == {ordinal for number, ordinal in places if number == segment}
