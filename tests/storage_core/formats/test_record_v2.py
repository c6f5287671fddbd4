"""The sizes that bound a record."""

from storage_core.formats.record_v2 import (
    MAX_VARINT_BYTES,
    MAX_VARLONG_BYTES,
    MIN_BODY_BYTES,
    MIN_RECORD_BYTES,
)
from tests.kit.builders import RecordSpec, encode_record
from tests.reference.varints import encode_varint


def test_the_limits_of_varints_are_those_of_the_largest_numbers():
    assert len(encode_varint(-(2**31))) == MAX_VARINT_BYTES
    assert len(encode_varint(-(2**63))) == MAX_VARLONG_BYTES


def test_no_record_is_smaller_than_one_of_nulls():
    smallest = encode_record(RecordSpec(value=None), timestamp_delta=0, offset_delta=0)
    assert (len(smallest), smallest[0] >> 1) == (MIN_RECORD_BYTES, MIN_BODY_BYTES)
