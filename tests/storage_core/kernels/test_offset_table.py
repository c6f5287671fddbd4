"""The offset table against a dictionary, the survivors in it, and bytes that are gathered."""

import itertools
import mmap

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from storage_core.kernels import gather, offset_table, survivors
from storage_core.kernels.batch_notes import NOT_DIRTY
from storage_core.kernels.offset_table import ABSENT, SLOT_WORDS
from storage_core.kernels.record_scan import INDEXED, OPENED
from storage_core.maintenance.compaction.offset_map import OffsetMap
from tests.kit.builders import encode_batch
from tests.kit.strategies import batches
from tests.reference.offset_map import OffsetMap as Model
from tests.reference.records import parse_records
from tests.storage_core.kernels.arguments import as_array, noted, opened
from tests.storage_core.kernels.twins import in_both_ways

NO_LIMIT = 2**62
# Few distinct halves, so that keys share slots and one half; 0 is a hash like any other.
HALVES = st.sampled_from([0, 1, 2, 7, 8, 15, 16, 2**63, 2**64 - 1])
KEYS = st.tuples(HALVES, HALVES)
RANKS = st.sampled_from([0, 1, 2, 2**31, 2**32, 5 * 2**32 + 3])


def new_table(slots: int) -> np.ndarray:
    return np.zeros((slots, SLOT_WORDS), np.uint64)


def columns(
    entries: list[tuple[tuple[int, int], int]],
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    low = np.array([key[0] for key, _ in entries], np.uint64)
    high = np.array([key[1] for key, _ in entries], np.uint64)
    return low, high, np.array([rank for _, rank in entries], np.int64)


def looked_up(look_up_block, table: np.ndarray, keys: list[tuple[int, int]]) -> list[int]:
    low, high, rank = columns([(key, 0) for key in keys])
    look_up_block(table, low, high, len(keys), rank)
    return rank.tolist()


@in_both_ways(
    insert_block=offset_table.insert_block,
    look_up_block=offset_table.look_up_block,
    list_entries=offset_table.list_entries,
    copy_entries=offset_table.copy_entries,
    count_before_empty=offset_table.count_before_empty,
    spread_entries=offset_table.spread_entries,
)
@given(
    entries=st.lists(st.tuples(KEYS, RANKS), max_size=40),
    others=st.lists(KEYS, max_size=10),
    cut=st.integers(0, 40),
)
def test_a_table_is_a_dictionary_that_keeps_the_larger_rank(
    insert_block,
    look_up_block,
    list_entries,
    copy_entries,
    count_before_empty,
    spread_entries,
    entries,
    others,
    cut,
):
    model: dict[tuple[int, int], int] = {}
    for key, rank in entries:
        model[key] = max(model.get(key, ABSENT), rank)
    table = new_table(64)
    low, high, rank = columns(entries)
    cut = min(cut, len(entries))
    done, used = insert_block(table, low, high, rank, 0, cut, 0, 63, NO_LIMIT)
    assert done == cut
    done, used = insert_block(table, low, high, rank, cut, len(entries), used, 63, NO_LIMIT)
    assert (done, used) == (len(entries), len(model))
    larger = np.concatenate([table, new_table(64)])
    begin = larger[: count_before_empty(larger)]
    moved = begin.copy()
    begin[:] = 0
    spread_entries(larger, len(moved), 64)
    copy_entries(moved, larger)
    assert not larger[larger[:, 2] == 0].any()
    keys = [key for key, _ in entries] + others
    for each in (table, larger):
        assert looked_up(look_up_block, each, keys) == [model.get(key, ABSENT) for key in keys]
        low, high, rank = np.empty(used, np.uint64), np.empty(used, np.uint64), np.empty(used, int)
        assert list_entries(each, low, high, rank) == used
        listed = zip(low.tolist(), high.tolist(), rank.tolist(), strict=True)
        assert {(a, b): c for a, b, c in listed} == model


@in_both_ways(insert_block=offset_table.insert_block, look_up_block=offset_table.look_up_block)
def test_probing_goes_on_at_the_first_slot_after_the_last(insert_block, look_up_block):
    keys = [(7, high) for high in range(5)] + [(6, 0), (0, 0)]
    low, high, rank = columns([(key, i) for i, key in enumerate(keys)])
    table = new_table(8)
    assert insert_block(table, low, high, rank, 0, 7, 0, 7, NO_LIMIT) == (7, 7)
    assert np.count_nonzero(table[:, 2]) == 7
    assert looked_up(look_up_block, table, [*keys, (7, 99)]) == [*range(7), ABSENT]


@pytest.mark.sampled(2)
@in_both_ways(
    insert_block=offset_table.insert_block,
    mark_latest=offset_table.mark_latest,
    note_hashes=offset_table.note_hashes,
)
@pytest.mark.parametrize("tells", [True, False])
@given(
    known=st.dictionaries(KEYS, RANKS, max_size=20),
    batches=st.lists(
        st.tuples(
            st.sampled_from([ABSENT, 0, 1, 2**32]), st.booleans(), st.lists(KEYS, max_size=9)
        ),
        max_size=6,
    ),
)
def test_a_record_that_is_not_older_than_the_table_says_gets_its_bit(
    insert_block, mark_latest, note_hashes, tells, known, batches
):
    table = new_table(64)
    insert_block(table, *columns(list(known.items())), 0, len(known), 0, 63, NO_LIMIT)
    seen = np.zeros(1, np.uint64) if tells else np.full(1, 2**64 - 1, np.uint64)
    note_hashes(table, seen)
    counts = [len(keys) for _, _, keys in batches]
    first_bit = np.cumsum([0, *counts])
    records = [
        (key, row, first_bit[row] + i, rank + i * (rises and rank != ABSENT))
        for row, (rank, rises, keys) in enumerate(batches)
        for i, key in enumerate(keys)
    ]
    low, high, _ = columns([(key, 0) for key, *_ in records])
    words = np.zeros(2, np.uint64)
    mark_latest(
        table,
        seen,
        low,
        high,
        np.array([row for _, row, *_ in records], np.int64),
        np.array([bit for *_, bit, _ in records], np.int64),
        noted(
            len(batches),
            flags=[INDEXED | OPENED * rises for _, rises, _ in batches],
            own_rank=[NOT_DIRTY if rank == ABSENT else rank for rank, *_ in batches],
            look_up_bit=first_bit[:-1],
        ),
        np.empty(offset_table.LOOK_UP_BLOCK, np.int64),
        words,
    )
    found = {bit for bit in range(128) if int(words[bit // 64]) >> bit % 64 & 1}
    assert found == {bit for key, _, bit, own in records if own >= known.get(key, ABSENT)}


@in_both_ways(insert_block=offset_table.insert_block)
def test_a_new_key_that_needs_a_larger_table_is_not_put(insert_block):
    entries = [((1, 0), 0), ((2, 0), 1), ((1, 0), 2), ((3, 0), 3), ((1, 0), 4)]
    table = new_table(8)
    assert insert_block(table, *columns(entries), 0, 5, 0, 2, NO_LIMIT) == (3, 2)
    assert insert_block(table, *columns(entries), 3, 5, 2, 3, NO_LIMIT) == (5, 3)


@in_both_ways(insert_block=offset_table.insert_block)
def test_a_full_map_takes_no_put_even_of_a_key_that_it_knows(insert_block):
    entries = [((1, 0), 0), ((1, 0), 1), ((2, 0), 2), ((1, 0), 3), ((2, 0), 4)]
    table = new_table(8)
    assert insert_block(table, *columns(entries), 0, 5, 0, 4, 2) == (3, 2)
    assert sorted(table[:, 2].tolist())[-2:] == [2, 3]  # ranks 1 and 2, plus one


@given(
    keys=st.lists(st.integers(0, 60), max_size=120),
    capacity=st.one_of(st.none(), st.integers(1, 70)),
    cuts=st.lists(st.integers(0, 120), max_size=3),
)
def test_a_bounded_map_takes_the_puts_that_the_reference_takes(keys, capacity, cuts):
    model = Model(capacity=capacity)
    for rank, key in enumerate(keys):
        if model.is_full:
            break
        model.put(key, rank)
    offsets = OffsetMap(capacity)
    edges = [0, *sorted(min(cut, len(keys)) for cut in cuts), len(keys)]
    for first, end in itertools.pairwise(edges):
        block = [((key, key * 7), rank) for rank, key in enumerate(keys[first:end], first)]
        if offsets.put(*columns(block), len(block)) < len(block):
            break
    assert len(offsets) == len(model.offsets)
    low, high, _ = columns([((key, key * 7), 0) for key in range(61)])
    assert offsets.look_up(low, high, 61).tolist() == [model.get(key) for key in range(61)]


@pytest.mark.parametrize("count", [2559, 2560, 2561, 200_000], ids=lambda count: f"{count} keys")
def test_a_map_grows_with_its_keys(count):
    random = np.random.default_rng(count)
    low = random.integers(0, 2**64, count, np.uint64)
    high = random.integers(0, 2**64, count, np.uint64)
    rank = np.arange(count)
    offsets = OffsetMap()
    assert offsets.put(low, high, rank, count) == count
    assert len(offsets) == count
    assert len(offsets.table) >= 1.6 * count
    assert (offsets.look_up(low, high, count) == rank).all()
    assert (offsets.look_up(high, low, count) == ABSENT).all()
    again = OffsetMap.from_entries(*offsets.entries())
    assert (again.look_up(low, high, count) == rank).all()


def test_a_map_grows_where_the_system_cannot_extend_memory(monkeypatch):
    class Fixed(mmap.mmap):
        def resize(self, _size: int) -> None:
            raise SystemError("mmap: resizing not available--no mremap()")

    monkeypatch.setattr(mmap, "mmap", Fixed)
    low = np.arange(20_000, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    offsets = OffsetMap()
    assert offsets.put(low, low, np.arange(20_000), 20_000) == 20_000
    assert (offsets.look_up(low, low, 20_000) == np.arange(20_000)).all()


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


DATA, ARENA = bytes(range(100)), bytes(range(100, 200))
SPANS = st.tuples(st.integers(0, 1), st.integers(0, 100), st.integers(-3, 100))


@in_both_ways(gather_bytes=gather.gather_bytes)
@given(spans=st.lists(SPANS, max_size=12))
def test_strings_are_copied_end_to_end_and_nulls_are_not(gather_bytes, spans):
    spans = [(where, start, min(length, 100 - start)) for where, start, length in spans]
    expected = [
        (ARENA if where else DATA)[start : start + max(length, 0)] for where, start, length in spans
    ]
    offsets = np.cumsum([0, *map(len, expected)]).astype(np.int32)
    out = np.zeros(offsets[-1], np.uint8)
    gather_bytes(
        as_array(DATA),
        as_array(ARENA),
        np.array([1, 0], np.uint8),
        np.array([1 - where for where, _, _ in spans], np.int64),
        np.array([start for _, start, _ in spans], np.int64),
        np.array([length for _, _, length in spans], np.int64),
        offsets,
        out,
    )
    assert out.tobytes() == b"".join(expected)


@in_both_ways(add_lengths=gather.add_lengths)
@given(lengths=st.lists(st.integers(-3, 100), max_size=12))
def test_lengths_are_added_up_and_nulls_counted(add_lengths, lengths):
    offsets = np.empty(len(lengths) + 1, np.int32)
    found = add_lengths(np.array(lengths, np.int64), offsets)
    sizes = [max(length, 0) for length in lengths]
    assert found == (sum(sizes), sum(length < 0 for length in lengths))
    assert offsets.tolist() == [sum(sizes[:end]) for end in range(len(sizes) + 1)]


@in_both_ways(add_to_batch=gather.add_to_batch)
def test_what_a_batch_says_is_added_to_each_of_its_records(add_to_batch):
    base = np.array([100, -7, 2**63 - 1], np.int64)
    out = np.empty(4, np.int64)
    with np.errstate(over="ignore"):
        add_to_batch(base, np.array([0, 0, 1, 2]), np.array([0, 3, -1, 1], np.int64), out)
    assert out.tolist() == [100, 103, -8, -(2**63)]


@in_both_ways(list_headers=gather.list_headers)
@given(spec=batches())
def test_headers_are_listed_where_the_reference_finds_them(list_headers, spec):
    window = opened(encode_batch(spec))
    source = window.arena if window.in_arena[0] else window.data
    start, end = int(window.start[0]), int(window.end[0])
    records = parse_records(source[start:end].tobytes(), len(spec.records))
    expected = [
        (i, name + start, name_length, value + start, value_length)
        for i, record in enumerate(records)
        for name, name_length, value, value_length in record.headers
    ]
    found = np.empty((5, len(expected)), np.int64)
    list_headers(
        window.data,
        window.arena,
        np.full(len(records), window.in_arena[0]),
        np.array([record.header_start + start for record in records], np.int64),
        np.array([len(record.headers) for record in records], np.int64),
        *found,
    )
    assert [tuple(header) for header in found.T.tolist()] == expected
