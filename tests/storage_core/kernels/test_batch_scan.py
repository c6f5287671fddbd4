"""Scanning batch headers: against the reference, at every torn tail, at lies and other formats."""

import struct
import zlib
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from storage_core.formats.batch_v2 import CRC_AT, HEADER_BYTES, MAGIC_AT, Codec
from storage_core.formats.control import NO_CONTROL_RECORD, ControlType
from storage_core.kernels import batch_scan, batch_write
from storage_core.kernels.batch_scan import (
    BAD_CONTROL_RECORD,
    BAD_LENGTH,
    COLUMN_COUNT,
    CRC_NOT_CHECKED,
    DONE,
    NO_ROOM,
    NOT_CONTROL,
    POSITION,
    TRUNCATED,
    UNKNOWN_COUNT,
    scan_stretches,
)
from storage_core.records.checked_headers import PREAD
from tests.kit import damage
from tests.kit.builders import (
    BatchSpec,
    RecordSpec,
    encode_batch,
    end_txn_marker,
    leader_change_batch,
    log_with,
    segment_bytes,
    some_batches,
)
from tests.kit.decode import decode_segment
from tests.kit.golden_data import Golden, goldens
from tests.kit.legacy import LegacyMessage, encode_entry
from tests.kit.strategies import hostile_batches, segments
from tests.reference.batches import Stop, crc_of, parse_header, scan
from tests.storage_core.kernels.arguments import as_array, fenced, scanned
from tests.storage_core.kernels.twins import in_both_ways
from tests.storage_core.records.memory_file import DescriptorFile

NUMBERS_OF = {
    batch_scan.SIZE: "size",
    batch_scan.BASE_OFFSET: "base_offset",
    batch_scan.LAST_OFFSET: "last_offset",
    batch_scan.LEADER_EPOCH: "partition_leader_epoch",
    batch_scan.MAGIC: "magic",
    batch_scan.ATTRIBUTES: "attributes",
    batch_scan.BASE_TIMESTAMP: "base_timestamp",
    batch_scan.MAX_TIMESTAMP: "max_timestamp",
    batch_scan.PRODUCER_ID: "producer_id",
    batch_scan.PRODUCER_EPOCH: "producer_epoch",
    batch_scan.BASE_SEQUENCE: "base_sequence",
    batch_scan.RECORD_COUNT: "record_count",
    batch_scan.CRC: "crc",
}
STATUS_OF = {Stop.END: DONE, Stop.TORN: TRUNCATED, Stop.BAD_LENGTH: BAD_LENGTH}


def room_for(count: int) -> np.ndarray:
    return np.full((COLUMN_COUNT, count), -99, np.int64)


@pytest.mark.thorough
@in_both_ways(scan_batches=batch_scan.scan_batches)
@given(specs=segments(), tail=st.one_of(st.binary(max_size=70), hostile_batches()))
def test_any_window_is_scanned_as_the_reference_scans_it(scan_batches, specs, tail):
    segment = segment_bytes(specs) + tail
    starts, end, stop = scan(segment)
    data, first, last = fenced(segment)
    table = room_for(len(starts) + 2)
    assert scan_batches(data, first, last, table) == (len(starts), first + end, STATUS_OF[stop])
    for row, start in enumerate(starts):
        assert table[batch_scan.POSITION, row] == first + start
        size = int.from_bytes(segment[start + 8 : start + 12], "big") + 12
        if 2 <= segment[start + MAGIC_AT] < 128 and size >= HEADER_BYTES:
            header = parse_header(segment, start)
            for column, name in NUMBERS_OF.items():
                assert table[column, row] == getattr(header, name), name


@pytest.mark.item("FMT-28")
@in_both_ways(scan_batches=batch_scan.scan_batches)
def test_a_scan_stops_at_the_last_whole_batch_whatever_the_torn_tail(scan_batches):
    whole = len(log_with(batches=3, records=2))
    assert len(log_with(batches=4, records=2)) - whole > 80
    for tail in range(81):
        data = as_array(log_with(batches=3, records=2, torn_tail=tail))
        found = scan_batches(data, 0, len(data), room_for(8))
        assert found == (3, whole, DONE if tail == 0 else TRUNCATED), tail


@pytest.mark.item("FMT-28")
@in_both_ways(scan_batches=batch_scan.scan_batches)
@pytest.mark.parametrize("tail", range(21), ids=lambda tail: f"{tail} bytes")
def test_17_bytes_or_fewer_are_not_looked_at(scan_batches, tail):
    # Bytes that would be an impossible length if they were believed.
    data = as_array(log_with(batches=1) + b"\xff" * tail)
    whole = len(data) - tail
    expected = DONE if tail == 0 else TRUNCATED if tail <= 17 else BAD_LENGTH
    assert scan_batches(data, 0, len(data), room_for(8)) == (1, whole, expected)


@pytest.mark.item("FMT-28")
@in_both_ways(scan_batches=batch_scan.scan_batches)
@pytest.mark.parametrize(
    ("magic", "length", "status"),
    [
        (0, 13, BAD_LENGTH),
        (0, 14, DONE),
        (1, 13, BAD_LENGTH),
        (1, 14, DONE),
        (2, 13, BAD_LENGTH),
        (2, 14, DONE),
        (2, 48, DONE),
        (2, 49, DONE),
        (3, 13, BAD_LENGTH),
        (3, 14, DONE),
        (-1, 14, DONE),
        (2, -1, BAD_LENGTH),
        (2, -(2**31), BAD_LENGTH),
        (2, 50, TRUNCATED),
        (2, 2**31 - 1, TRUNCATED),
        (2, 2**31 - 12, TRUNCATED),
    ],
)
def test_a_length_has_to_be_possible_for_the_smallest_message_whatever_the_magic(
    scan_batches, magic, length, status
):
    size = 12 + length if status == DONE else HEADER_BYTES
    entry = damage.with_lying_length(encode_batch(BatchSpec(magic=magic)), length)[:size]
    entry += bytes(size - len(entry))
    count = 1 if status == DONE else 0
    table = room_for(8)
    assert scan_batches(as_array(entry), 0, size, table) == (count, size * count, status)
    if count:
        assert table[[batch_scan.SIZE, batch_scan.MAGIC], 0].tolist() == [size, magic]


@pytest.mark.item("FMT-28")
@in_both_ways(scan_batches=batch_scan.scan_batches)
def test_formats_may_be_mixed_and_a_magic_above_2_is_read_as_v2(scan_batches):
    old = struct.pack(">qiIbb", 5, 14, 0, 1, 0) + bytes(8)
    new = encode_batch(BatchSpec(base_offset=7, leader_epoch=4, magic=3))
    data = as_array(old + new + old)
    table = room_for(3)
    assert scan_batches(data, 0, len(data), table) == (3, len(data), DONE)
    assert table[batch_scan.MAGIC].tolist() == [1, 3, 1]
    assert table[batch_scan.SIZE].tolist() == [26, HEADER_BYTES, 26]
    assert table[batch_scan.LEADER_EPOCH].tolist() == [-1, 4, -1]


def rows_of(scan_batches, data: bytes) -> list[dict[str, int]]:
    """Return what a scan says of each batch, by the names of a v2 header."""
    table = room_for(len(data) // 26 + 1)
    count, end, status = scan_batches(as_array(data), 0, len(data), table)
    assert (end, status) == (len(data), DONE)
    names = NUMBERS_OF | {batch_scan.MAGIC: "magic", batch_scan.SIZE: "size"}
    return [
        {name: int(table[column, row]) for column, name in names.items()} for row in range(count)
    ]


@pytest.mark.item("FMT-22")
@in_both_ways(scan_batches=batch_scan.scan_batches)
@pytest.mark.parametrize("is_append", [False, True], ids=["create time", "append time"])
@pytest.mark.parametrize("magic", [0, 1])
@pytest.mark.parametrize("codec", [Codec.NONE, Codec.SNAPPY], ids=lambda codec: codec.name)
def test_an_old_entry_is_a_batch_that_says_little(scan_batches, magic, codec, is_append):
    attributes = int(codec) | (8 if is_append else 0)
    other_bits = -16
    message = LegacyMessage(
        offset=77, timestamp=1234, magic=magic, attributes=attributes | other_bits
    )
    (row,) = rows_of(scan_batches, encode_entry(message))
    timestamp = 1234 if magic else -1
    assert row == {
        "base_offset": 77,
        "last_offset": 77,
        "partition_leader_epoch": -1,
        # The format's own bits and no others: bit 3 means nothing in v0.
        "attributes": attributes if magic else int(codec),
        "base_timestamp": timestamp,
        "max_timestamp": timestamp,
        "producer_id": -1,
        "producer_epoch": -1,
        "base_sequence": -1,
        "record_count": UNKNOWN_COUNT,
        "crc": int.from_bytes(encode_entry(message)[12:16], "big"),
        "magic": magic,
        "size": len(encode_entry(message)),
    }


@pytest.mark.item("FMT-28")
@in_both_ways(scan_batches=batch_scan.scan_batches, check_crcs=batch_scan.check_crcs)
@pytest.mark.parametrize("magic", [2, 3, 127])
def test_a_new_batch_smaller_than_its_header_is_a_batch_but_never_valid(
    scan_batches, check_crcs, magic
):
    batch = encode_batch(BatchSpec(base_offset=9, is_control=True, magic=magic))
    short = damage.with_lying_length(batch, 48)[:60]
    table = room_for(2)
    assert scan_batches(as_array(short), 0, 60, table) == (1, 60, DONE)
    assert table[batch_scan.CRC_OK, 0] == 0
    assert table[[batch_scan.BASE_OFFSET, batch_scan.LAST_OFFSET], 0].tolist() == [9, 9]
    assert table[batch_scan.RECORD_COUNT, 0] == UNKNOWN_COUNT
    assert check_crcs(as_array(short), table, 1) == 0
    assert table[batch_scan.CRC_OK, 0] == 0


@pytest.mark.item("FMT-15")
@in_both_ways(check_crcs=batch_scan.check_crcs)
@pytest.mark.parametrize("magic", [0, 1])
def test_the_crc_of_an_old_entry_covers_all_behind_it(check_crcs, magic):
    entry = encode_entry(LegacyMessage(offset=3, key=b"key", value=b"value", magic=magic))
    for position in range(len(entry)):
        if 8 <= position < 12 or position == 16:
            continue  # the size; and the magic, which may make a v2 batch of it
        changed = bytearray(entry)
        changed[position] ^= 1
        table = scanned(as_array(changed))
        # Offset and size stand before the message.
        assert check_crcs(as_array(changed), table, 1) == (-1 if position < 8 else 0), position


@pytest.mark.item("FMT-15")
@pytest.mark.parametrize("golden", goldens("clean-*legacy*"), ids=lambda golden: golden.name)
def test_the_crcs_that_kafka_wrote_for_old_entries_are_right(golden: Golden, tmp_path: Path):
    seen = 0
    for log in sorted(golden.unpack(tmp_path).glob("*.log")):
        data = log.read_bytes()
        table = scanned(as_array(data))
        assert batch_scan.check_crcs(as_array(data), table, table.shape[1]) == -1
        for row, start in enumerate(scan(data)[0]):
            stored = int.from_bytes(data[start + 12 : start + 16], "big")
            end = start + int(table[batch_scan.SIZE, row])
            assert table[batch_scan.CRC, row] == stored == zlib.crc32(data[start + 16 : end])
            seen += 1
    assert seen


@in_both_ways(scan_batches=batch_scan.scan_batches)
@pytest.mark.parametrize("room", range(5))
def test_a_full_table_stops_the_scan_where_it_can_go_on(scan_batches, room):
    data = as_array(log_with(batches=4))
    table = room_for(room)
    count, end, status = scan_batches(data, 0, len(data), table)
    assert (count, status) == (room, NO_ROOM if room < 4 else DONE)
    rest, end, status = scan_batches(data, end, len(data), room_for(4))
    assert (count + rest, end, status) == (4, len(data), DONE)


def test_stretches_are_scanned_one_after_the_other():
    data = as_array(b"?" + segment_bytes(some_batches(count=3)) + b"?")
    starts, lengths = np.array([len(data), 1, 1]), np.array([0, len(data) - 2, len(data) - 1])
    table, (row_ends, statuses) = room_for(5), np.zeros((2, 3), np.int64)
    assert scan_stretches(data, starts, lengths, table, row_ends, statuses) == 5
    assert (row_ends.tolist(), statuses.tolist()) == ([0, 3, 5], [DONE, DONE, NO_ROOM])
    assert table[POSITION, 3:].tolist() == table[POSITION, :2].tolist()


@in_both_ways(scan_batches=batch_scan.scan_batches)
def test_a_scan_knows_nothing_yet_of_crcs_and_control_records(scan_batches):
    data = as_array(log_with(batches=2))
    table = room_for(2)
    scan_batches(data, 0, len(data), table)
    assert (table[batch_scan.CRC_OK] == CRC_NOT_CHECKED).all()
    assert (table[batch_scan.CONTROL_TYPE] == NOT_CONTROL).all()
    assert (table[batch_scan.COORDINATOR_EPOCH] == -1).all()


@in_both_ways(check_crcs=batch_scan.check_crcs)
def test_the_first_wrong_crc_is_named_and_every_one_is_marked(check_crcs):
    good = encode_batch(BatchSpec(records=(RecordSpec(key=b"k"),)))
    bad = damage.with_wrong_crc(good)
    old = encode_entry(LegacyMessage(offset=5))
    data = as_array(good + old + bad + good + bad)
    table = scanned(data)
    assert check_crcs(data, table, 5) == 2
    assert table[batch_scan.CRC_OK].tolist() == [1, 1, 0, 1, 0]
    assert check_crcs(data, table, 2) == -1


@pytest.mark.sampled(2)
@pytest.mark.item("FMT-01", "FMT-02")
@in_both_ways(write_header=batch_write.write_header)
@pytest.mark.parametrize("golden", goldens("dump-*"), ids=lambda golden: golden.name)
def test_every_header_that_kafka_wrote_is_parsed_and_written_again(write_header, golden, tmp_path):
    seen = 0
    for log in sorted(golden.unpack(tmp_path).glob("*.log")):
        segment = log.read_bytes()
        data = as_array(segment)
        table = scanned(data)
        assert batch_scan.check_crcs(data, table, table.shape[1]) == -1
        # The records stay in place, the headers have to come back, their CRCs included.
        again = data.copy()
        for row, start in enumerate(scan(segment)[0]):
            header = parse_header(segment, start)
            assert header.crc == crc_of(segment[start : start + header.size])
            again[start : start + HEADER_BYTES] = 0xEE
            write_header(
                again,
                start,
                table,
                row,
                header.size,
                header.attributes,
                header.base_timestamp,
                header.max_timestamp,
                header.record_count,
            )
            seen += 1
        assert again.tobytes() == segment
    assert seen


def control_batch(key: bytes | None, value: bytes | None = b"", **changes) -> bytes:
    spec = BatchSpec(records=(RecordSpec(key=key, value=value),), is_control=True, **changes)
    return encode_batch(spec)


def control_type_of(read_control_types, batch: bytes) -> tuple[int, int]:
    data = as_array(batch)
    table = scanned(data)
    assert read_control_types(data, table, 1) == 1
    return table[batch_scan.CONTROL_TYPE, 0], table[batch_scan.COORDINATOR_EPOCH, 0]


@pytest.mark.item("FMT-12")
@in_both_ways(read_control_types=batch_scan.read_control_types)
@pytest.mark.parametrize("number", [*range(8), 2**15 - 1, -1], ids=lambda number: f"type {number}")
def test_the_type_of_a_control_record_is_read(read_control_types, number):
    for version in (0, 1, 2**15 - 1):
        key = struct.pack(">hh", version, number)
        found, _ = control_type_of(read_control_types, control_batch(key))
        assert found == number
        assert control_type_of(read_control_types, control_batch(key + b"more")) == (number, -1)
    known = {member.value for member in ControlType} - {ControlType.UNKNOWN}
    assert known == set(range(7))


@pytest.mark.item("FMT-12")
@in_both_ways(read_control_types=batch_scan.read_control_types)
@pytest.mark.parametrize(
    "batch",
    [
        pytest.param(control_batch(struct.pack(">hh", -1, 0)), id="a version below 0"),
        pytest.param(control_batch(b"\0\0\0"), id="a key of 3 bytes"),
        pytest.param(control_batch(b""), id="an empty key"),
        pytest.param(control_batch(None), id="no key"),
        pytest.param(
            damage.with_codec(control_batch(struct.pack(">hh", 0, 0)), Codec.GZIP), id="compressed"
        ),
        pytest.param(
            damage.with_lying_count(control_batch(struct.pack(">hh", 0, 0)), -1),
            id="a negative count",
        ),
        *(
            pytest.param(damage.bad_record(bad, BatchSpec(is_control=True)), id=bad.value)
            for bad in damage.BadRecord
        ),
    ],
)
def test_a_control_record_that_cannot_be_read_is_told_apart(read_control_types, batch):
    assert control_type_of(read_control_types, batch) == (BAD_CONTROL_RECORD, -1)


@in_both_ways(read_control_types=batch_scan.read_control_types)
def test_only_control_batches_are_looked_at(read_control_types):
    specs = [
        BatchSpec(records=(RecordSpec(key=struct.pack(">hh", 0, 1)),)),
        end_txn_marker(base_offset=1, producer_id=3, producer_epoch=2, coordinator_epoch=9),
        BatchSpec(base_offset=2, is_control=True, is_transactional=True),
        leader_change_batch(base_offset=3, leader_epoch=4),
        end_txn_marker(
            base_offset=4, producer_id=3, producer_epoch=2, control_type=ControlType.ABORT
        ),
    ]
    data = as_array(segment_bytes(specs))
    table = scanned(data)
    assert read_control_types(data, table, len(specs)) == 4
    assert table[batch_scan.CONTROL_TYPE].tolist() == [NOT_CONTROL, 1, NO_CONTROL_RECORD, 2, 0]
    # A value long enough for a coordinator's epoch is read as one; only markers make use of it.
    assert table[batch_scan.COORDINATOR_EPOCH, [0, 1, 2, 4]].tolist() == [-1, 9, -1, 0]


def kafkas_markers(directory: Path) -> list[bytes]:
    found = []
    for log in sorted(directory.glob("*.log")):
        segment = log.read_bytes()
        found += [
            segment[batch.position : batch.position + batch.size]
            for batch in decode_segment(segment)[0]
            if batch.header["attributes"] & 0x30 == 0x30
        ]
    return found


@pytest.mark.item("FMT-13")
@pytest.mark.parametrize("golden", goldens("*txn-v2*"), ids=lambda golden: golden.name)
def test_kafkas_markers_are_read_and_are_the_ones_that_are_built(golden: Golden, tmp_path: Path):
    fresh = 0
    for marker in kafkas_markers(golden.unpack(tmp_path)):
        data = as_array(marker)
        table = scanned(data)
        assert batch_scan.read_control_types(data, table, 1) == 1
        column = table[:, 0]
        (batch,), _ = decode_segment(marker)
        if not batch.records:
            assert column[batch_scan.CONTROL_TYPE] == NO_CONTROL_RECORD
            continue
        assert column[batch_scan.BASE_SEQUENCE] == -1
        assert column[batch_scan.COORDINATOR_EPOCH] == int.from_bytes(batch.records[0].value[2:6])
        if column[batch_scan.ATTRIBUTES] & 0x40:
            continue
        fresh += 1
        assert len(marker) == 78
        built = end_txn_marker(
            base_offset=column[batch_scan.BASE_OFFSET],
            producer_id=column[batch_scan.PRODUCER_ID],
            producer_epoch=column[batch_scan.PRODUCER_EPOCH],
            control_type=ControlType(column[batch_scan.CONTROL_TYPE]),
            timestamp=column[batch_scan.MAX_TIMESTAMP],
            coordinator_epoch=column[batch_scan.COORDINATOR_EPOCH],
            leader_epoch=column[batch_scan.LEADER_EPOCH],
        )
        assert encode_batch(built) == marker
    assert fresh


@in_both_ways(
    scan_batches=batch_scan.scan_batches,
    check_crcs=batch_scan.check_crcs,
    read_control_types=batch_scan.read_control_types,
)
@given(batch=hostile_batches(), noise=st.integers(0, 2**16))
def test_hostile_batches_do_no_harm(scan_batches, check_crcs, read_control_types, batch, noise):
    data, start, end = fenced(batch)
    data[start + noise % max(1, len(batch))] ^= 0x20  # makes control batches of some
    table = room_for(8)
    count, stop, _ = scan_batches(data, start, end, table)
    assert start <= stop <= end
    check_crcs(data, table, count)
    read_control_types(data, table, count)
    crcs = [int(crc) for crc in table[batch_scan.CRC, :count]]
    for row in range(count):
        position = int(table[batch_scan.POSITION, row])
        if table[batch_scan.MAGIC, row] >= 2:
            stored = data[position + CRC_AT : position + CRC_AT + 4].tobytes()
            assert crcs[row] == int.from_bytes(stored, "big")


@in_both_ways(walk_headers=batch_scan.walk_headers)
@pytest.mark.parametrize(
    ("behind", "is_walked"),
    [
        (b"", True),
        (encode_batch(BatchSpec(base_offset=9)), True),
        (encode_batch(end_txn_marker(base_offset=9, producer_id=1, producer_epoch=0)), True),
        (encode_entry(LegacyMessage(offset=9)), False),
        (encode_batch(BatchSpec(base_offset=9, magic=3)), False),
        (encode_batch(BatchSpec(base_offset=9))[:-1], False),
        (damage.with_lying_length(encode_batch(BatchSpec(base_offset=9)), 40), False),
        (control_batch(bytes(100)), False),
        (bytes(90), False),
    ],
)
def test_a_walk_finds_what_a_scan_does_and_ends_before_what_it_cannot_tell(
    walk_headers, behind, is_walked
):
    log = log_with(batches=4, records=3)
    specs = [
        end_txn_marker(base_offset=5, producer_id=1, producer_epoch=0),
        BatchSpec(base_offset=6),
    ]
    whole = bytes(7) + log + segment_bytes(specs)
    data = as_array(whole[7:] + (behind if is_walked else b""))
    expected = scanned(data)
    batch_scan.read_control_types(data, expected, expected.shape[1])
    table, head = room_for(20), np.empty(HEADER_BYTES + 35, np.uint8)
    with closing(DescriptorFile(whole + behind)) as file:
        stop = len(whole + behind)
        count, end = walk_headers(PREAD, file.descriptor, 7, stop, head, table)
        np.testing.assert_array_equal(table[:, :count], expected)
        assert end == 7 + data.size
        assert walk_headers(PREAD, file.descriptor, 7, stop, head, table[:, :2])[0] == 2
        assert walk_headers(PREAD, -1, 7, stop, head, table) == (0, 7)


@in_both_ways(find_kinds=batch_scan.find_kinds)
@pytest.mark.parametrize(
    ("batch", "kinds"),
    [
        (encode_batch(BatchSpec()), 0),
        (encode_batch(BatchSpec(codec=Codec.LZ4)), batch_scan.HAS_CODEC),
        (encode_batch(BatchSpec(is_transactional=True)), batch_scan.HAS_TRANSACTION),
        (control_batch(bytes(4)), batch_scan.HAS_TRANSACTION),
        (control_batch(bytes(1)), batch_scan.HAS_TRANSACTION | batch_scan.HAS_UNREADABLE),
        (encode_entry(LegacyMessage(offset=0)), batch_scan.HAS_LEGACY),
        (
            encode_entry(LegacyMessage(offset=0, magic=-1)),
            batch_scan.HAS_LEGACY | batch_scan.HAS_UNREADABLE,
        ),
        (encode_batch(BatchSpec(magic=3)), batch_scan.HAS_UNREADABLE),
        (damage.with_lying_length(encode_batch(BatchSpec()), 48)[:60], batch_scan.HAS_UNREADABLE),
    ],
    ids=[
        "plain",
        "compressed",
        "of a transaction",
        "a marker",
        "a bad marker",
        "legacy",
        "no format",
        "a later format",
        "shorter than a header",
    ],
)
def test_what_is_among_batches_is_told(find_kinds, batch, kinds):
    plain = encode_batch(BatchSpec())
    data = as_array(plain + batch + plain)
    table = scanned(data)
    batch_scan.read_control_types(data, table, table.shape[1])
    assert table.shape[1] == 3
    assert find_kinds(table) == kinds
    assert find_kinds(table[:, :1]) == find_kinds(table[:, 2:]) == find_kinds(table[:, :0]) == 0
