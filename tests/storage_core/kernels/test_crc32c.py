"""CRC-32C and CRC-32 by instruction and by table, and what of a batch they cover."""

import zlib

import crc32c as package
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from storage_core.formats.batch_v2 import BATCH_HEADER, CRC_START
from storage_core.formats.fields import field_at
from storage_core.kernels import batch_scan, crc32c
from storage_core.kernels._intrinsics import HAS_CRC_INSTRUCTION
from storage_core.kernels.crc32 import crc32
from tests.kit.builders import log_with
from tests.storage_core.kernels.arguments import as_array, fenced, scanned
from tests.storage_core.kernels.twins import in_both_ways, plainly

SOME_BYTES = np.random.default_rng(7).integers(0, 256, 100, np.uint8)
MANY_BYTES = np.random.default_rng(8).integers(0, 256, 20_100, np.uint8)

needs_instruction = pytest.mark.skipif(
    not HAS_CRC_INSTRUCTION, reason="this CPU has no instruction for CRC-32C"
)
in_all_ways = pytest.mark.parametrize(
    "name",
    [
        "crc32c_by_table",
        pytest.param("crc32c_by_instruction", marks=needs_instruction),
        pytest.param("crc32c_by_folding", marks=needs_instruction),
    ],
)


@pytest.mark.sampled(11)
@in_all_ways
@pytest.mark.parametrize("way", ["compiled", "plain"])
@pytest.mark.parametrize("start", range(9), ids=lambda start: f"from byte {start}")
def test_every_length_gives_the_crc_of_the_package(name, way, start):
    compiled = getattr(crc32c, name)
    crc = compiled if way == "compiled" else plainly(compiled)
    for length in range(71):
        chosen = SOME_BYTES[start : start + length].tobytes()
        assert crc(SOME_BYTES, start, start + length) == package.crc32c(chosen)


@in_both_ways(by_instruction=crc32c.crc32c_by_instruction)
@pytest.mark.parametrize(
    "length",
    [383, 384, 385, 768, 1151, 1152, 3071, 3072, 3073, 3456, 6144, 7000, 9999],
    ids=lambda length: f"{length} bytes",
)
@needs_instruction
def test_stretches_that_go_on_at_once_give_the_crc_of_the_package(by_instruction, length):
    for start in (0, 3):
        chosen = MANY_BYTES[start : start + length].tobytes()
        assert by_instruction(MANY_BYTES, start, start + length) == package.crc32c(chosen)


@needs_instruction
def test_long_buffers_give_the_same_crc_by_instruction_by_folding_and_by_table():
    for length in range(300, 20_000, 331):
        by_table = crc32c.crc32c_by_table(MANY_BYTES, 5, 5 + length)
        assert crc32c.crc32c_by_instruction(MANY_BYTES, 5, 5 + length) == by_table
        assert crc32c.crc32c_by_folding(MANY_BYTES, 5, 5 + length) == by_table


@needs_instruction
@pytest.mark.parametrize("vectors", range(3, 14), ids=lambda count: f"{count} vectors")
def test_what_vectors_leave_over_is_in_the_crc(vectors):
    for rest in (0, 1, 7, 8, 63):
        for start in (0, 5):
            end = start + 64 * vectors + rest
            expected = package.crc32c(MANY_BYTES[start:end].tobytes())
            assert crc32c.crc32c_by_folding(MANY_BYTES, start, end) == expected


@needs_instruction
def test_each_bit_of_each_vector_counts():
    data = MANY_BYTES[:700].copy()
    whole = crc32c.crc32c_by_folding(data, 0, 700)
    for position in range(700):
        data[position] ^= 1 << position % 8
        assert crc32c.crc32c_by_folding(data, 0, 700) == package.crc32c(data.tobytes()) != whole
        data[position] ^= 1 << position % 8


@given(data=st.binary(max_size=300))
def test_any_bytes_give_the_crc_of_the_package(data):
    assert crc32c.crc32c(as_array(data), 0, len(data)) == package.crc32c(data)


def test_known_values():
    # RFC 3720, B.4.
    for data, expected in (
        (bytes(32), 0x8A9136AA),
        (b"\xff" * 32, 0x62A8AB43),
        (bytes(range(32)), 0x46DD794E),
        (b"123456789", 0xE3069283),
    ):
        assert crc32c.crc32c_by_table(as_array(data), 0, len(data)) == expected
        assert crc32c.crc32c(as_array(data), 0, len(data)) == expected


@pytest.mark.item("FMT-02")
@in_both_ways(check_crcs=batch_scan.check_crcs)
@pytest.mark.parametrize("field", BATCH_HEADER.names)
def test_a_flipped_bit_is_noticed_in_every_field_behind_the_crc(check_crcs, field):
    data = as_array(log_with(batches=1, records=2))
    data[field_at(BATCH_HEADER, field)] ^= 0x01
    # The length and the magic decide where the batch ends, so the table is read before.
    table = scanned(as_array(log_with(batches=1, records=2)))
    if field == "crc":
        table[batch_scan.CRC] = int.from_bytes(data[17:21].tobytes(), "big")
    is_covered = field_at(BATCH_HEADER, field) >= CRC_START
    found = check_crcs(data, table, 1)
    assert (found == 0) == (is_covered or field == "crc")
    assert table[batch_scan.CRC_OK, 0] == (0 if found == 0 else 1)


@pytest.mark.item("FMT-02")
@in_both_ways(check_crcs=batch_scan.check_crcs)
def test_a_flipped_bit_is_noticed_in_every_byte_of_the_records(check_crcs):
    good = as_array(log_with(batches=1, records=2))
    table = scanned(good)
    for position in range(CRC_START, len(good)):
        data = good.copy()
        data[position] ^= 0x80
        assert check_crcs(data, table, 1) == 0
    assert check_crcs(good, table, 1) == -1


@pytest.mark.item("FMT-15")
@in_both_ways(crc32=crc32)
@given(data=st.binary(max_size=200))
def test_any_range_has_the_crc_that_zlib_gives_it(crc32, data):
    buffer, start, end = fenced(data)
    assert crc32(buffer, start, end) == zlib.crc32(data)


@in_both_ways(crc32=crc32)
def test_the_check_value_of_the_algorithm(crc32):
    assert crc32(as_array(b"123456789"), 0, 9) == 0xCBF43926


def test_a_large_range_at_every_alignment():
    data = np.random.default_rng(7).integers(0, 256, 100_000, dtype=np.uint8)
    for start in range(17):
        for end in range(len(data) - 17, len(data) + 1):
            assert crc32(data, start, end) == zlib.crc32(data[start:end].tobytes())
