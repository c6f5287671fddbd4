"""Primitives of Kafka's messages, honest and hostile."""

import struct
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from storage_core.errors import MalformedMessageError
from storage_core.messages.fields import FieldReader
from tests.storage_core.catalog.metadata_bytes import string, tags, unsigned_varint


@given(st.integers(0, 2**31 - 1))
def test_an_unsigned_varint_is_read_back(number: int):
    reader = FieldReader(unsigned_varint(number))
    assert reader.unsigned_varint() == number
    reader.require_end()


@given(st.text(max_size=300) | st.none())
def test_a_compact_text_is_read_back(text: str | None):
    assert FieldReader(string(text)).nullable_compact_string() == text


@given(st.text(max_size=300))
def test_a_text_is_read_back(text: str):
    encoded = text.encode()
    reader = FieldReader(struct.pack(">h", len(encoded)) + encoded + b"\xff\xff")
    assert reader.nullable_string() == text
    assert reader.nullable_string() is None
    reader.require_end()


def test_numbers_have_their_widths_and_signs():
    reader = FieldReader(b"\xff" * 2 + b"\xff" * 2 + b"\xff" * 8 + struct.pack(">d", -2.5))
    assert (reader.uint16(), reader.int16(), reader.int64()) == (65_535, -1, -1)
    assert reader.float64() == -2.5


def test_bytes_and_arrays_may_be_null():
    reader = FieldReader(b"\xff\xff\xff\xff" * 3 + b"\x00" * 3)
    assert reader.nullable_bytes() is None
    assert reader.nullable_array(reader.int8) is None
    assert reader.nullable_int32_array() is None
    assert reader.nullable_compact_bytes() is None
    assert reader.nullable_compact_array(reader.int8) is None
    assert reader.nullable_compact_int32_array() is None
    reader.require_end()


def test_tagged_fields_are_readers_of_their_own_bytes():
    reader = FieldReader(b"\xff" + tags({3: b"\x05", 300: b""}) + b"\x07", start=1)
    fields = dict(reader.tagged_fields())
    assert fields.keys() == {3, 300}
    assert fields[3].int8() == 5
    assert fields[300].remaining == 0
    with pytest.raises(MalformedMessageError):
        fields[3].int8()
    assert reader.int8() == 7


@pytest.mark.parametrize(
    ("data", "read", "position"),
    [
        pytest.param(b"\x80\x80\x80\x80\x80\x01", FieldReader.unsigned_varint, 5, id="six bytes"),
        pytest.param(b"\xff\xff\xff\xff\x0f", FieldReader.unsigned_varint, 5, id="32 bits"),
        pytest.param(b"\x80", FieldReader.unsigned_varint, 1, id="varint that ends too soon"),
        pytest.param(
            b"\x05abc", FieldReader.nullable_compact_string, 1, id="compact text too short"
        ),
        pytest.param(b"\x00\x04abc", FieldReader.nullable_string, 2, id="text too short"),
        pytest.param(
            unsigned_varint(32_769),
            FieldReader.nullable_compact_string,
            3,
            id="text over the limit",
        ),
        pytest.param(b"\x00\x00\x00\x04abc", FieldReader.nullable_bytes, 4, id="bytes too short"),
        pytest.param(
            b"\x05abc", FieldReader.nullable_compact_bytes, 1, id="compact bytes too short"
        ),
        pytest.param(b"\x00\x00\x00", FieldReader.int32, 0, id="short integer"),
        pytest.param(b"\x00" * 15, FieldReader.uuid, 0, id="short id"),
        pytest.param(
            b"\x7f\xff\xff\xff", lambda r: r.nullable_array(r.int8), 4, id="array of billions"
        ),
        pytest.param(
            unsigned_varint(2**31 - 1),
            lambda r: r.nullable_compact_array(r.int8),
            5,
            id="compact array of billions",
        ),
        pytest.param(
            b"\x03\x00\x00\x00\x01", FieldReader.nullable_compact_int32_array, 1, id="short array"
        ),
        pytest.param(
            unsigned_varint(2**31 - 1),
            lambda r: list(r.tagged_fields()),
            5,
            id="billions of tagged fields",
        ),
        pytest.param(
            b"\x01\x00\x09abc", lambda r: list(r.tagged_fields()), 3, id="tagged field too long"
        ),
        pytest.param(b"\x01", FieldReader.require_end, 0, id="bytes after the end"),
    ],
)
def test_a_lie_in_the_bytes_is_an_error_with_its_position(
    data: bytes, read: Callable[[FieldReader], object], position: int
):
    with pytest.raises(MalformedMessageError) as raised:
        read(FieldReader(data))
    assert raised.value.position == position
