"""The header of a batch, field by field, beside what Kafka's documentation says and Kafka wrote."""

import struct
from pathlib import Path

import numpy as np
import pytest

from storage_core.formats import batch_v2
from storage_core.formats.batch_v2 import BATCH_HEADER, HEADER_BYTES, LENGTH_OVERHEAD, Codec
from tests.kit.golden_data import Golden, goldens
from tests.reference.batches import parse_header, scan

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
