"""CRC-32 (IEEE), against zlib's."""

import zlib

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from storage_core.kernels.crc32 import crc32
from tests.storage_core.kernels.arguments import as_array, fenced
from tests.storage_core.kernels.twins import in_both_ways


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
