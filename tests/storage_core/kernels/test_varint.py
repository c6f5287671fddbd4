"""Varints against the reference, and the numbers of fixed width against struct."""

import struct

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from storage_core.kernels import varint
from storage_core.kernels.varint import INVALID
from tests.reference.varints import MalformedVarintError, decode_varint, encode_varint
from tests.storage_core.kernels.arguments import as_array, fenced
from tests.storage_core.kernels.twins import in_both_ways

INT16, INT32, INT64 = (
    st.integers(-(2 ** (bits - 1)), 2 ** (bits - 1) - 1) for bits in (16, 32, 64)
)
# Mostly bytes that go on, so that numbers come near their limits.
VARINT_BYTES = st.lists(st.one_of(st.integers(0x80, 0xFF), st.integers(0, 0xFF)), max_size=12).map(
    bytes
)


def expected(data: bytes, start: int, end: int, *, bits: int) -> tuple[int, int] | None:
    try:
        return decode_varint(data, start, end, bits=bits)
    except MalformedVarintError:
        return None


@in_both_ways(read_varint=varint.read_varint, read_varlong=varint.read_varlong)
@given(data=VARINT_BYTES)
def test_any_bytes_mean_what_the_reference_says(read_varint, read_varlong, data):
    buffer, start, end = fenced(data)
    for read, bits in ((read_varint, 32), (read_varlong, 64)):
        value, position = read(buffer, start, end)
        found = None if position == INVALID else (value, position)
        assert found == expected(buffer.tobytes(), start, end, bits=bits)


@pytest.mark.item("FMT-10")
@in_both_ways(read_varint=varint.read_varint, read_varlong=varint.read_varlong)
@pytest.mark.parametrize(("bits", "most_bytes"), [(32, 5), (64, 10)])
def test_a_number_ends_within_5_bytes_or_10(read_varint, read_varlong, bits, most_bytes):
    read = read_varint if bits == 32 else read_varlong
    for length in range(1, 13):
        data = as_array(b"\x80" * (length - 1) + b"\0" + b"\0" * 16)
        _, position = read(data, 0, len(data))
        assert position == (length if length <= most_bytes else INVALID)


@in_both_ways(read_varint=varint.read_varint, read_varlong=varint.read_varlong)
@pytest.mark.parametrize("length", range(11))
def test_a_number_without_an_end_is_invalid(read_varint, read_varlong, length):
    buffer, start, end = fenced(b"\xff" * length)
    assert read_varint(buffer, start, end)[1] == INVALID
    assert read_varlong(buffer, start, end)[1] == INVALID


@in_both_ways(
    write_varlong=varint.write_varlong,
    varlong_size=varint.varlong_size,
    read_varlong=varint.read_varlong,
)
@given(number=INT64)
def test_a_number_is_written_as_the_reference_writes_it(
    write_varlong, varlong_size, read_varlong, number
):
    encoded = encode_varint(number)
    buffer = np.zeros(20, np.uint8)
    assert write_varlong(buffer, 3, number) == 3 + len(encoded)
    assert buffer.tobytes() == bytes(3) + encoded + bytes(17 - len(encoded))
    assert varlong_size(number) == len(encoded)
    assert read_varlong(buffer, 3, 20) == (number, 3 + len(encoded))


@in_both_ways(varlong_size=varint.varlong_size)
def test_the_size_grows_every_seven_bits(varlong_size):
    for bits in range(63):
        for number in (2**bits - 1, 2**bits, -(2**bits), -(2**bits) - 1):
            assert varlong_size(number) == len(encode_varint(number))


@in_both_ways(
    read_i16=varint.read_i16,
    read_i32=varint.read_i32,
    read_u32=varint.read_u32,
    read_i64=varint.read_i64,
)
@given(data=st.binary(min_size=8, max_size=8))
def test_numbers_of_fixed_width_are_big_endian(read_i16, read_i32, read_u32, read_i64, data):
    buffer = as_array(b"\xff" + data)
    for read, form in ((read_i16, ">h"), (read_i32, ">i"), (read_u32, ">I"), (read_i64, ">q")):
        assert (read(buffer, 1),) == struct.unpack_from(form, data)


@in_both_ways(write_i16=varint.write_i16, write_i32=varint.write_i32, write_i64=varint.write_i64)
@given(small=INT16, middle=st.one_of(INT32, st.integers(2**31, 2**32 - 1)), large=INT64)
def test_numbers_of_fixed_width_are_written_big_endian(
    write_i16, write_i32, write_i64, small, middle, large
):
    buffer = np.zeros(16, np.uint8)
    write_i16(buffer, 1, small)
    write_i32(buffer, 3, middle)
    write_i64(buffer, 7, large)
    assert buffer.tobytes() == b"\0" + struct.pack(">hIq", small, middle % 2**32, large) + b"\0"
