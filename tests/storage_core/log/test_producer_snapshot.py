"""Bytes of producer snapshots."""

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from storage_core.errors import CorruptSnapshotError
from storage_core.log.producer_snapshot import (
    ProducerEntry,
    encode_producer_snapshot,
    java_hash_map_order,
    parse_producer_snapshot,
)
from tests.kit.directories import ProducerSpec
from tests.kit.directories import encode_producer_snapshot as encode_plainly
from tests.kit.golden_data import Side, goldens

ENTRY = struct.Struct(">qhiqiqiq")
EMPTY = bytes.fromhex("000148674bc700000000")
FIRST_ENTRY_AT = 10

entries = st.builds(
    ProducerEntry,
    producer_id=st.integers(0, 2**63 - 1),
    producer_epoch=st.integers(-1, 2**15 - 1),
    last_sequence=st.integers(-1, 2**31 - 1),
    last_offset=st.integers(-1, 2**63 - 1),
    offset_delta=st.integers(0, 2**31 - 1),
    last_timestamp=st.integers(-1, 2**62),
    coordinator_epoch=st.integers(-1, 2**31 - 1),
    current_txn_first_offset=st.integers(-1, 2**63 - 1),
)


def ids_in(data: bytes) -> list[int]:
    return [row[0] for row in ENTRY.iter_unpack(data[FIRST_ENTRY_AT:])]


def bucket_in_java(producer_id: int, count: int) -> int:
    """Bucket of a java.util.HashMap<Long, ...> with that many entries, step by step."""
    hash_code = (producer_id ^ (producer_id >> 32)) & 0xFFFFFFFF
    spread = hash_code ^ (hash_code >> 16)
    capacity = 16
    while count > capacity * 3 // 4:
        capacity *= 2
    return spread % capacity


@pytest.mark.item("PRD-11")
def test_an_empty_snapshot_has_these_ten_bytes():
    assert encode_producer_snapshot([]) == EMPTY
    assert parse_producer_snapshot("f", EMPTY) == []


@pytest.mark.item("PRD-11")
def test_every_field_stands_where_kafka_puts_it():
    entry = ProducerEntry(
        producer_id=0x0102030405060708,
        producer_epoch=0x1112,
        last_sequence=0x21222324,
        last_offset=0x3132333435363738,
        offset_delta=0x41424344,
        last_timestamp=0x5152535455565758,
        coordinator_epoch=0x61626364,
        current_txn_first_offset=0x7172737475767778,
    )
    data = encode_producer_snapshot([entry])
    assert data[:2].hex() == "0001"
    assert data[6:].hex() == "".join(
        [
            "00000001",  # entries
            "0102030405060708",
            "1112",
            "21222324",
            "3132333435363738",
            "41424344",
            "5152535455565758",
            "61626364",
            "7172737475767778",
        ]
    )
    assert parse_producer_snapshot("f", data) == [entry]


@pytest.mark.thorough
@pytest.mark.item("PRD-11", "PRD-13")
def test_snapshots_that_kafka_wrote_come_out_again_byte_for_byte(tmp_path):
    sizes = []
    for golden in goldens("clean-*"):
        for side in Side:
            for path in golden.unpack(tmp_path / golden.name / side.value, side).glob("*.snapshot"):
                data = path.read_bytes()
                parsed = parse_producer_snapshot(path.name, data)
                # Kafka's order in the file is one in which the log may have met them.
                assert encode_producer_snapshot(parsed) == data
                backwards = encode_producer_snapshot(parsed[::-1])
                buckets = [bucket_in_java(i, len(parsed)) for i in ids_in(data)]
                assert [bucket_in_java(i, len(parsed)) for i in ids_in(backwards)] == buckets
                sizes.append(len(parsed))
    assert max(sizes) > 1
    assert min(sizes) == 0


@given(st.lists(entries, max_size=40, unique_by=lambda entry: entry.producer_id))
def test_entries_survive_a_round_trip(some):
    parsed = parse_producer_snapshot("f", encode_producer_snapshot(some))
    assert sorted(parsed, key=repr) == sorted(some, key=repr)


@given(st.lists(entries, max_size=5, unique_by=lambda entry: entry.producer_id))
def test_a_snapshot_is_what_the_plain_encoder_makes(some):
    ordered = java_hash_map_order(some)
    names = ProducerSpec.__slots__
    plainly = [ProducerSpec(**{name: getattr(entry, name) for name in names}) for entry in ordered]
    assert encode_producer_snapshot(some) == encode_plainly(plainly)


@pytest.mark.item("PRD-13")
@given(st.lists(st.integers(0, 2**63 - 1), max_size=60, unique=True))
def test_entries_stand_by_bucket_and_in_a_bucket_as_the_log_met_them(ids):
    data = encode_producer_snapshot([ProducerEntry(producer_id=i) for i in ids])
    expected = sorted(ids, key=lambda i: bucket_in_java(i, len(ids)))
    assert ids_in(data) == expected


GOOD = encode_producer_snapshot([ProducerEntry(producer_id=7, last_offset=9)])


@pytest.mark.item("PRD-14")
@pytest.mark.parametrize(
    ("data", "what"),
    [
        pytest.param(b"", "at least 10 bytes", id="no bytes"),
        pytest.param(GOOD[:9], "at least 10 bytes", id="cut inside the header"),
        pytest.param(GOOD[:-1], "expected 0 to 0 entries", id="cut inside an entry"),
        pytest.param(b"\0\2" + GOOD[2:], "expected version 1, found 2", id="another version"),
        pytest.param(GOOD[:2] + b"\0\0\0\0" + GOOD[6:], "expected CRC", id="a wrong CRC"),
        pytest.param(GOOD[:-1] + b"\1", "expected CRC", id="a changed payload"),
        pytest.param(GOOD + b"\0", "expected CRC", id="one byte more"),
        pytest.param(GOOD[:6] + b"\xff" * 4 + GOOD[10:], "found -1", id="a negative count"),
        pytest.param(GOOD[:6] + b"\x7f" * 4 + GOOD[10:], "entries in 56 bytes", id="a huge count"),
    ],
)
def test_a_snapshot_that_is_broken_says_how(data, what):
    with pytest.raises(CorruptSnapshotError, match=what) as caught:
        parse_producer_snapshot("00000000000000000042.snapshot", data)
    assert caught.value.file == "00000000000000000042.snapshot"
