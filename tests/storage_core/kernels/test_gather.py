"""Scattered strings copied end to end, and where headers lie."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from storage_core.kernels import gather
from tests.kit.builders import encode_batch
from tests.kit.strategies import batches
from tests.reference.records import parse_records
from tests.storage_core.kernels.arguments import as_array, opened
from tests.storage_core.kernels.twins import in_both_ways

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
