"""The transaction index: files of Kafka's, entries that stop a load, and what reaches a range."""

import struct
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from storage_core.errors import CorruptIndexError
from storage_core.index.segment_indexes import (
    AbortedTxn,
    collect_aborted,
    encode_transaction_index,
    parse_transaction_index,
)
from tests.kit.golden_data import Golden, goldens

FILE = "00000000000000000100.txnindex"
BASE = 100
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
            last_offset=st.integers(BASE, 2**63 - 1),
            last_stable_offset=OFFSETS,
        ),
        max_size=5,
    ).map(tuple),
    tail=st.binary(max_size=33),
)
def test_entries_come_back_and_a_tail_shorter_than_one_is_ignored(entries, tail):
    data = encode_transaction_index(entries)
    assert len(data) == 34 * len(entries)
    assert parse_transaction_index(FILE, BASE, data + tail) == entries


@pytest.mark.item("IDX-19")
@pytest.mark.parametrize("version", [9, 1, -1])
def test_another_version_stops_the_load_and_is_named(version):
    data = encode_transaction_index([txn(100, 110), txn(120, 130)])
    damaged = data[:34] + struct.pack(">h", version) + data[36:]
    with pytest.raises(CorruptIndexError, match=f"expected version 0, found {version}") as caught:
        parse_transaction_index(FILE, BASE, damaged)
    assert (caught.value.file, caught.value.position) == (FILE, 34)


def test_a_transaction_that_ended_below_the_segment_is_named():
    data = encode_transaction_index([txn(90, 100), txn(90, 99)])
    with pytest.raises(CorruptIndexError, match="at least 100, found 99") as caught:
        parse_transaction_index(FILE, BASE, data)
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
