"""Offset, time and transaction indexes: searched as Kafka searches them, cut, read and written."""

import struct
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from storage_core.errors import CorruptIndexError
from storage_core.formats.index_entries import OFFSET_INDEX_ENTRY, TIME_INDEX_ENTRY
from storage_core.index.segment_indexes import (
    NO_SLOT,
    WARM_BYTES,
    AbortedTxn,
    OffsetIndex,
    TimeIndex,
    collect_aborted,
    encode_transaction_index,
    find_slots,
    parse_transaction_index,
    truncate_aborted,
    truncate_offset_index,
    truncate_time_index,
)
from tests.kit.golden_data import Golden, goldens

BASE = 5000
WARM_ENTRIES = 8192 // 8


def index_of(offsets: list[int], *, tail: bytes = b"") -> OffsetIndex:
    """Return an index whose entry for an offset has ten times that as its position."""
    entries = np.zeros(len(offsets), OFFSET_INDEX_ENTRY)
    entries["relative_offset"] = np.array(offsets, np.int64) - BASE
    entries["position"] = (np.array(offsets, np.int64) - BASE) * 10
    return OffsetIndex.parse(BASE, entries.tobytes() + tail)


def linear(offsets: list[int], target: int) -> int:
    return max(((offset - BASE) * 10 for offset in offsets if offset <= target), default=0)


@pytest.mark.item("IDX-11")
@given(
    offsets=st.sets(st.integers(BASE + 1, BASE + 60), max_size=30).map(sorted),
    target=st.integers(BASE - 2, BASE + 62),
)
def test_the_entry_with_the_largest_offset_up_to_the_target_is_found(offsets, target):
    assert index_of(offsets).look_up(target) == linear(offsets, target)


@pytest.mark.item("IDX-14")
@pytest.mark.parametrize(
    "count",
    [1, 2, WARM_ENTRIES - 1, WARM_ENTRIES, WARM_ENTRIES + 1, WARM_ENTRIES + 2, 3 * WARM_ENTRIES],
)
def test_the_warm_section_changes_no_result(count):
    offsets = [BASE + 3 * i + 2 for i in range(count)]
    index = index_of(offsets)
    positions = np.array([0] + [(offset - BASE) * 10 for offset in offsets])
    targets = np.arange(BASE - 1, offsets[-1] + 3)
    expected = positions[np.searchsorted(offsets, targets, side="right")]
    assert [index.look_up(int(target)) for target in targets] == expected.tolist()


@pytest.mark.parametrize("tail", range(8), ids=lambda tail: f"{tail} bytes")
def test_a_ragged_tail_is_no_entry(tail):
    index = index_of([BASE + 3, BASE + 9], tail=b"\x7f" * tail)
    assert len(index.entries) == 2
    assert index.last_offset == BASE + 9
    assert index.look_up(BASE + 100) == 90


def test_the_last_offset_of_an_empty_index_is_the_base_offset():
    assert index_of([]).last_offset == BASE


def kafkas_search(column: list[int], target: int) -> int:
    """Binary search for the slot, with the newest entries first, as Kafka's index does it."""
    if not column:
        return -1

    def between(low: int, high: int) -> int:
        while low < high:
            middle = -(-(low + high) // 2)
            if column[middle] == target:
                return middle
            low, high = (middle, high) if column[middle] < target else (low, middle - 1)
        return low

    last = len(column) - 1
    first_warm = max(0, last - WARM_ENTRIES)
    if column[first_warm] < target:
        return between(first_warm, last)
    return -1 if column[0] > target else between(0, first_warm)


@pytest.mark.parametrize("zeros", [1, 5, 700, 2 * WARM_ENTRIES])
@pytest.mark.parametrize("count", [1, 30, 1500])
def test_an_index_that_ends_in_zeros_is_searched_as_kafka_searches_it(count, zeros):
    relative = [3 * i + 2 for i in range(count)] + [0] * zeros
    entries = np.zeros(len(relative), OFFSET_INDEX_ENTRY)
    entries["relative_offset"] = relative
    entries["position"] = np.arange(len(relative)) + 1
    index = OffsetIndex.parse(BASE, entries.tobytes())
    for target in range(-1, 3 * count + 3, 7):
        slot = kafkas_search(relative, target)
        assert index.look_up(BASE + target) == (slot + 1 if slot >= 0 else 0)
    assert index.last_offset == BASE


@pytest.mark.item("IDX-11", "IDX-12", "IDX-14")
@given(
    values=st.sets(st.integers(1, 400), max_size=300).map(sorted),
    target=st.integers(-1, 402),
    entry_bytes=st.sampled_from((8, 12, 400)),
)
def test_it_finds_what_a_linear_search_finds(values, target, entry_bytes):
    column = np.array(values, np.int32)
    below = [slot for slot, value in enumerate(values) if value <= target]
    found = find_slots(column, target, entry_bytes=entry_bytes)
    assert found.at_or_below == (below[-1] if below else NO_SLOT)


@pytest.mark.item("IDX-13")
@given(
    values=st.sets(st.integers(1, 400), max_size=300).map(sorted),
    target=st.integers(-1, 402),
    entry_bytes=st.sampled_from((8, 12, 400)),
)
def test_upwards_it_finds_the_first_at_or_above_or_the_one_after_an_equal(
    values, target, entry_bytes
):
    found = find_slots(np.array(values, np.int32), target, entry_bytes=entry_bytes).at_or_above
    above = [slot for slot, value in enumerate(values) if value >= target]
    first = above[0] if above else NO_SLOT
    if found != first:
        # An equal entry at which the search ends without a look is passed over.
        assert values[first] == target
        assert found == (first + 1 if first + 1 < len(values) else NO_SLOT)


@pytest.mark.item("IDX-14")
@pytest.mark.parametrize(("entry_bytes", "warm"), [(8, 1024), (12, 682)], ids=["offset", "time"])
def test_the_warm_entries_are_as_many_as_kafkas(entry_bytes, warm):
    assert WARM_BYTES // entry_bytes == warm
    column = np.arange(1, 3 * warm, dtype=np.int32)
    for target in (1, len(column) - warm - 1, len(column) - warm, len(column) - warm + 1):
        assert find_slots(column, target, entry_bytes=entry_bytes).at_or_below == target - 1


ENTRIES = np.array([(70, 2), (90, 8)], TIME_INDEX_ENTRY).tobytes()


@pytest.mark.parametrize("tail", range(12), ids=lambda tail: f"{tail} bytes")
def test_a_ragged_tail_is_no_time_entry(tail):
    index = TimeIndex.parse(100, ENTRIES + b"\x7f" * tail)
    assert (len(index.entries), index.last_timestamp) == (2, 90)


def test_an_empty_index_has_no_last_timestamp():
    assert TimeIndex.parse(100, b"").last_timestamp == -1


def test_what_the_bytes_say_is_taken_as_it_is():
    assert TimeIndex.parse(100, ENTRIES + bytes(24)).last_timestamp == 0


FILE = "00000000000000000100.txnindex"
TXN_BASE = 100
OFFSETS = st.integers(-(2**63), 2**63 - 1)


def txn(first: int, last: int, *, producer_id: int = 1, stable: int | None = None) -> AbortedTxn:
    return AbortedTxn(
        producer_id=producer_id,
        first_offset=first,
        last_offset=last,
        last_stable_offset=last + 1 if stable is None else stable,
    )


@pytest.mark.item("IDX-04")
@pytest.mark.parametrize("golden", goldens("clean-txn-*"), ids=lambda golden: golden.name)
def test_kafkas_files_are_decoded_and_encoded_again(golden: Golden, tmp_path: Path):
    seen = 0
    for path in sorted(golden.unpack(tmp_path).glob("*.txnindex")):
        data = path.read_bytes()
        entries = parse_transaction_index(path.name, int(path.stem), data)
        assert encode_transaction_index(entries) == data
        expected = [row[1:] for row in struct.iter_unpack(">hqqqq", data)]
        assert expected == [
            (entry.producer_id, entry.first_offset, entry.last_offset, entry.last_stable_offset)
            for entry in entries
        ]
        seen += len(entries)
    assert seen


@pytest.mark.item("IDX-04")
@given(
    entries=st.lists(
        st.builds(
            AbortedTxn,
            producer_id=OFFSETS,
            first_offset=OFFSETS,
            last_offset=st.integers(TXN_BASE, 2**63 - 1),
            last_stable_offset=OFFSETS,
        ),
        max_size=5,
    ).map(tuple),
    tail=st.binary(max_size=33),
)
def test_entries_come_back_and_a_tail_shorter_than_one_is_ignored(entries, tail):
    data = encode_transaction_index(entries)
    assert len(data) == 34 * len(entries)
    assert parse_transaction_index(FILE, TXN_BASE, data + tail) == entries


@pytest.mark.item("IDX-19")
@pytest.mark.parametrize("version", [9, 1, -1])
def test_another_version_stops_the_load_and_is_named(version):
    data = encode_transaction_index([txn(100, 110), txn(120, 130)])
    damaged = data[:34] + struct.pack(">h", version) + data[36:]
    with pytest.raises(CorruptIndexError, match=f"expected version 0, found {version}") as caught:
        parse_transaction_index(FILE, TXN_BASE, damaged)
    assert (caught.value.file, caught.value.position) == (FILE, 34)


def test_a_transaction_that_ended_below_the_segment_is_named():
    data = encode_transaction_index([txn(90, 100), txn(90, 99)])
    with pytest.raises(CorruptIndexError, match="at least 100, found 99") as caught:
        parse_transaction_index(FILE, TXN_BASE, data)
    assert (caught.value.file, caught.value.position) == (FILE, 34)


def collected(fetch_offset: int, upper_bound_offset: int) -> list[int]:
    indexes = [
        (txn(10, 20), txn(15, 30, stable=31)),
        (),
        (txn(40, 50, stable=45), txn(42, 60, stable=61), txn(55, 70, stable=71)),
    ]
    found = collect_aborted(
        indexes, fetch_offset=fetch_offset, upper_bound_offset=upper_bound_offset
    )
    return [entry.first_offset for entry in found]


@pytest.mark.parametrize(
    ("fetch_offset", "upper_bound_offset", "expected"),
    [
        pytest.param(0, 100, [10, 15, 40, 42, 55], id="everything"),
        pytest.param(20, 100, [10, 15, 40, 42, 55], id="from the last offset of the first"),
        pytest.param(21, 100, [15, 40, 42, 55], id="from behind it"),
        pytest.param(0, 10, [], id="up to the first offset of the first"),
        pytest.param(0, 11, [10], id="up to behind it"),
        pytest.param(0, 31, [10, 15], id="up to a last stable offset"),
        pytest.param(0, 45, [10, 15, 40], id="where the stable offset ends the search"),
        pytest.param(0, 46, [10, 15, 40, 42], id="where it does not end it yet"),
        pytest.param(71, 100, [], id="behind everything"),
    ],
)
def test_transactions_that_reach_into_a_range_are_collected(
    fetch_offset, upper_bound_offset, expected
):
    assert collected(fetch_offset, upper_bound_offset) == expected


CUT_OFFSETS = (110, 120, 130)


def index(entry: np.dtype[np.void]) -> bytes:
    entries = np.zeros(len(CUT_OFFSETS), entry)
    entries["relative_offset"] = np.array(CUT_OFFSETS) - TXN_BASE
    entries[entry.names[1] if entry is OFFSET_INDEX_ENTRY else "timestamp"] = [7, 8, 9]
    return entries.tobytes()


@pytest.mark.item("IDX-15")
@pytest.mark.parametrize(
    ("offset", "left"),
    [
        pytest.param(99, 0, id="below the segment"),
        pytest.param(109, 0, id="below the first entry"),
        pytest.param(110, 0, id="at the first entry"),
        pytest.param(111, 1, id="above the first entry"),
        pytest.param(130, 2, id="at the last entry"),
        pytest.param(131, 3, id="above the last entry"),
    ],
)
@pytest.mark.parametrize("kind", ["offset", "time"])
def test_the_entries_below_the_offset_stay(kind, offset, left):
    entry = OFFSET_INDEX_ENTRY if kind == "offset" else TIME_INDEX_ENTRY
    truncate = truncate_offset_index if kind == "offset" else truncate_time_index
    data = index(entry)
    assert truncate(TXN_BASE, data, offset) == data[: left * entry.itemsize]


@pytest.mark.item("IDX-15")
def test_a_ragged_tail_goes_and_an_empty_index_stays_empty():
    assert truncate_offset_index(TXN_BASE, index(OFFSET_INDEX_ENTRY) + b"\0\0", 999) == index(
        OFFSET_INDEX_ENTRY
    )
    assert truncate_time_index(TXN_BASE, b"", 5) == b""


@pytest.mark.item("IDX-15")
@pytest.mark.parametrize(("offset", "left"), [(109, 0), (110, 0), (111, 1), (120, 1), (121, 2)])
def test_aborted_transactions_go_from_the_first_that_ends_too_late(offset, left):
    aborted = [
        AbortedTxn(producer_id=1, first_offset=100, last_offset=end, last_stable_offset=end + 1)
        for end in (110, 120)
    ]
    assert truncate_aborted(aborted, offset) == tuple(aborted[:left])
