"""The varint twins against the format's definition."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.kit.builders import encode_varint as built_varint
from tests.reference.varints import MalformedVarintError, decode_varint, encode_varint


@pytest.mark.parametrize(
    ("number", "encoded"),
    [
        (0, "00"),
        (-1, "01"),
        (1, "02"),
        (63, "7e"),
        (-64, "7f"),
        (64, "8001"),
        (-65, "8101"),
        (2**31 - 1, "feffffff0f"),
        (-(2**31), "ffffffff0f"),
        (2**63 - 1, "feffffffffffffffff01"),
        (-(2**63), "ffffffffffffffffff01"),
    ],
)
def test_known_numbers(number: int, encoded: str):
    data = bytes.fromhex(encoded)
    assert encode_varint(number) == data
    assert decode_varint(data, 0, len(data), bits=64) == (number, len(data))


@given(st.integers(-(2**63), 2**63 - 1))
def test_both_encoders_agree_and_the_decoder_reads_them(number: int):
    data = encode_varint(number)
    assert built_varint(number) == data
    assert decode_varint(b"x" + data + b"x", 1, len(data) + 1, bits=64) == (number, len(data) + 1)


@pytest.mark.parametrize(("bits", "most_bytes"), [(32, 5), (64, 10)])
def test_a_number_may_not_be_longer_than_its_bits_ask_for(bits: int, most_bytes: int):
    endless = b"\xff" * most_bytes + b"\0"
    with pytest.raises(MalformedVarintError):
        decode_varint(endless, 0, len(endless), bits=bits)
    padded = b"\x80" * (most_bytes - 1) + b"\0"
    assert decode_varint(padded, 0, len(padded), bits=bits) == (0, most_bytes)


def test_a_number_may_not_run_past_the_end():
    with pytest.raises(MalformedVarintError):
        decode_varint(b"\x80\x01", 0, 1)
    with pytest.raises(MalformedVarintError):
        decode_varint(b"", 0, 0)


def test_bits_beyond_the_32nd_are_dropped():
    assert decode_varint(b"\xfe\xff\xff\xff\x7f", 0, 5) == (2**31 - 1, 5)
