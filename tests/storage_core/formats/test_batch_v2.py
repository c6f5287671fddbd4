"""Kafka's formats, field by field, beside its documentation and what it wrote."""

import struct
from pathlib import Path

import numpy as np
import pytest

from storage_core.formats import batch_v2, control, record_v2
from storage_core.formats.batch_v2 import BATCH_HEADER, HEADER_BYTES, LENGTH_OVERHEAD, Codec
from storage_core.formats.fields import field_at
from storage_core.formats.index_entries import OFFSET_INDEX_ENTRY, TIME_INDEX_ENTRY, TXN_INDEX_ENTRY
from storage_core.formats.producer_snapshot import (
    CRC_START,
    SNAPSHOT_ENTRY,
    SNAPSHOT_HEADER,
    SNAPSHOT_VERSION,
)
from tests.kit.builders import RecordSpec, encode_record
from tests.kit.golden_data import Golden, goldens
from tests.reference.batches import parse_header, scan
from tests.reference.varints import encode_varint

# Kafka's protocol guide, "Record Batch".
DOCUMENTED = {
    "base_offset": (0, 8),
    "batch_length": (8, 4),
    "partition_leader_epoch": (12, 4),
    "magic": (16, 1),
    "crc": (17, 4),
    "attributes": (21, 2),
    "last_offset_delta": (23, 4),
    "base_timestamp": (27, 8),
    "max_timestamp": (35, 8),
    "producer_id": (43, 8),
    "producer_epoch": (51, 2),
    "base_sequence": (53, 4),
    "record_count": (57, 4),
}


@pytest.mark.item("FMT-01")
def test_every_field_is_where_the_protocol_guide_says():
    fields = BATCH_HEADER.fields
    found = {name: (at, kind.itemsize) for name, (kind, at, *_) in fields.items()}
    assert found == DOCUMENTED
    assert (HEADER_BYTES, LENGTH_OVERHEAD) == (61, 12)


def test_every_number_is_big_endian_and_all_but_the_crc_are_signed():
    for name, (_, size) in DOCUMENTED.items():
        header = np.zeros(1, BATCH_HEADER)
        header[name] = -2 if name != "crc" else 2**32 - 2
        at, _ = DOCUMENTED[name]
        assert header.tobytes()[at : at + size] == struct.pack(">q", -2)[-size:]


@pytest.mark.item("FMT-01")
@pytest.mark.parametrize(
    "golden", [*goldens("dump-*"), *goldens("clean-everything-*")], ids=lambda golden: golden.name
)
def test_every_header_of_kafkas_is_parsed_and_comes_back(golden: Golden, tmp_path: Path):
    seen = 0
    for log in sorted(golden.unpack(tmp_path).glob("*.log")):
        segment = log.read_bytes()
        for start in scan(segment)[0]:
            header = np.frombuffer(segment, BATCH_HEADER, 1, start)
            expected = parse_header(segment, start)
            assert {name: int(header[name][0]) for name in BATCH_HEADER.names} == {
                name: getattr(expected, name) for name in BATCH_HEADER.names
            }
            again = np.zeros(1, BATCH_HEADER)
            for name in BATCH_HEADER.names:
                again[name] = header[name]
            assert again.tobytes() == segment[start : start + HEADER_BYTES]
            assert header["magic"] == 2
            seen += 1
    assert seen


@pytest.mark.item("FMT-03")
def test_the_bits_of_the_attributes_do_not_overlap_and_leave_the_seventh_unused():
    masks = [
        batch_v2.CODEC_MASK,
        batch_v2.TIMESTAMP_TYPE_BIT,
        batch_v2.TRANSACTIONAL_BIT,
        batch_v2.CONTROL_BIT,
        batch_v2.DELETE_HORIZON_BIT,
    ]
    assert masks == [0b111, 1 << 3, 1 << 4, 1 << 5, 1 << 6]


@pytest.mark.item("FMT-23")
def test_there_are_five_codecs():
    assert {codec.name: codec.value for codec in Codec} == {
        "NONE": 0,
        "GZIP": 1,
        "SNAPPY": 2,
        "LZ4": 3,
        "ZSTD": 4,
    }


LAYOUT = np.dtype([("first", ">i2"), ("second", ">i8"), ("third", "u1")])


def test_a_field_begins_where_the_ones_before_it_end():
    assert [field_at(LAYOUT, name) for name in ("first", "second", "third")] == [0, 2, 10]


@pytest.mark.parametrize("layout", [LAYOUT, np.dtype("i8")], ids=["a layout", "a bare number"])
def test_a_field_that_is_not_there_has_no_position(layout):
    with pytest.raises(KeyError):
        field_at(layout, "fourth")


def test_the_limits_of_varints_are_those_of_the_largest_numbers():
    assert len(encode_varint(-(2**31))) == record_v2.MAX_VARINT_BYTES
    assert len(encode_varint(-(2**63))) == record_v2.MAX_VARLONG_BYTES


def test_no_record_is_smaller_than_one_of_nulls():
    smallest = encode_record(RecordSpec(value=None), timestamp_delta=0, offset_delta=0)
    assert (len(smallest), smallest[0] >> 1) == (
        record_v2.MIN_RECORD_BYTES,
        record_v2.MIN_BODY_BYTES,
    )


@pytest.mark.item("FMT-12")
def test_a_key_is_a_version_and_a_type():
    key = np.frombuffer(struct.pack(">hh", 3, -7), control.CONTROL_KEY)[0]
    assert (int(key["version"]), int(key["type"]), control.CONTROL_KEY_BYTES) == (3, -7, 4)
    names = ["ABORT", "COMMIT", "LEADER_CHANGE", "SNAPSHOT_HEADER", "SNAPSHOT_FOOTER"]
    names += ["KRAFT_VERSION", "KRAFT_VOTERS"]
    assert [control.ControlType[name].value for name in names] == list(range(7))
    assert control.NO_CONTROL_RECORD not in set(control.ControlType)


@pytest.mark.item("FMT-13")
def test_a_markers_value_is_a_version_and_the_coordinators_epoch():
    value = np.frombuffer(struct.pack(">hi", 0, 2**31 - 1), control.END_TXN_VALUE)[0]
    assert (int(value["version"]), int(value["coordinator_epoch"])) == (0, 2**31 - 1)
    assert control.END_TXN_VALUE_BYTES == 6


@pytest.mark.parametrize("golden", goldens("clean-txn-none-*"), ids=lambda golden: golden.name)
def test_kafkas_snapshots_have_this_layout(golden: Golden, tmp_path: Path):
    seen = 0
    for path in sorted(golden.unpack(tmp_path).glob("*.snapshot")):
        data = path.read_bytes()
        header = np.frombuffer(data, SNAPSHOT_HEADER, 1)[0]
        assert header["version"] == SNAPSHOT_VERSION
        entries = np.frombuffer(data, SNAPSHOT_ENTRY, offset=SNAPSHOT_HEADER.itemsize)
        assert header["entry_count"] == len(entries)
        assert entries.tolist() == list(struct.iter_unpack(">qhiqiqiq", data[10:]))
        seen += len(entries)
    assert seen


def test_the_crc_covers_everything_after_itself():
    assert (CRC_START, SNAPSHOT_HEADER.itemsize, SNAPSHOT_ENTRY.itemsize) == (6, 10, 46)


@pytest.mark.parametrize(
    ("entry", "form", "values"),
    [
        pytest.param(
            OFFSET_INDEX_ENTRY, ">ii", (7, -8), id="offset index", marks=pytest.mark.item("IDX-01")
        ),
        pytest.param(
            TIME_INDEX_ENTRY, ">qi", (-7, 8), id="time index", marks=pytest.mark.item("IDX-02")
        ),
        pytest.param(
            TXN_INDEX_ENTRY,
            ">hqqqq",
            (0, 1, -2, 2**62, 4),
            id="transaction index",
            marks=pytest.mark.item("IDX-04"),
        ),
    ],
)
def test_an_entry_is_its_numbers_end_to_end(entry, form, values):
    assert entry.itemsize == struct.calcsize(form)
    assert np.array([values, values], entry).tobytes() == struct.pack(form, *values) * 2
