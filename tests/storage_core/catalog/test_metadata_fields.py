"""Fields of flexible versions, honest and hostile."""

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from storage_core.catalog.metadata_decoder import FieldReader
from storage_core.errors import CorruptClusterMetadataError
from tests.storage_core.catalog.metadata_bytes import string, tags, unsigned_varint


def reader_of(data: bytes) -> FieldReader:
    return FieldReader(data, file="f", offset=7)


@given(st.integers(0, 2**31 - 1))
def test_an_unsigned_varint_is_read_back(number: int):
    reader = reader_of(unsigned_varint(number))
    assert reader.unsigned_varint() == number
    reader.require_end()


@given(st.text(max_size=300) | st.none())
def test_a_text_is_read_back(text: str | None):
    assert reader_of(string(text)).nullable_string() == text


def test_tagged_fields_are_readers_of_their_own_bytes():
    fields = reader_of(tags({3: b"\x05", 300: b""})).tagged_fields()
    assert fields.keys() == {3, 300}
    assert fields[3].int8() == 5
    assert fields[300].remaining == 0
    with pytest.raises(CorruptClusterMetadataError):
        fields[3].int8()


@pytest.mark.parametrize(
    ("data", "read"),
    [
        pytest.param(b"\x80\x80\x80\x80\x80\x01", FieldReader.unsigned_varint, id="six bytes"),
        pytest.param(b"\xff\xff\xff\xff\x0f", FieldReader.unsigned_varint, id="32 bits"),
        pytest.param(b"\x80", FieldReader.unsigned_varint, id="varint that ends too soon"),
        pytest.param(b"\x00", FieldReader.string, id="null text"),
        pytest.param(b"\x05abc", FieldReader.string, id="text that ends too soon"),
        pytest.param(unsigned_varint(32_769), FieldReader.string, id="text beyond the limit"),
        pytest.param(b"\x00\x00\x00", FieldReader.int32, id="short integer"),
        pytest.param(b"\x00" * 15, FieldReader.uuid, id="short id"),
        pytest.param(b"\x00", lambda r: r.array(r.int32), id="null array"),
        pytest.param(
            unsigned_varint(2**31 - 1), lambda r: r.array(r.int32), id="array of billions"
        ),
        pytest.param(b"\x03\x00\x00\x00\x01", lambda r: r.array(r.int32), id="short array"),
        pytest.param(
            unsigned_varint(2**31 - 1), FieldReader.tagged_fields, id="billions of tagged fields"
        ),
        pytest.param(b"\x01\x00\x09abc", FieldReader.tagged_fields, id="tagged field too long"),
        pytest.param(b"\x01", FieldReader.require_end, id="bytes after the end"),
    ],
)
def test_a_lie_in_the_bytes_is_an_error_with_file_and_offset(
    data: bytes, read: Callable[[FieldReader], object]
):
    with pytest.raises(CorruptClusterMetadataError) as raised:
        read(reader_of(data))
    assert (raised.value.file, raised.value.offset) == ("f", 7)
