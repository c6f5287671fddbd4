"""Ids as Kafka spells them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from storage_core.checkpoint.checkpoints import (
    ZERO_UUID,
    encode_uuid,
    is_reserved_directory_id,
    parse_uuid,
)


@given(st.binary(min_size=16, max_size=16))
def test_the_text_of_an_id_parses_to_itself(value: bytes):
    text = encode_uuid(value)
    assert len(text) == 22
    assert parse_uuid(text) == text
    assert parse_uuid(f"{text}==") == text


def test_bits_beyond_the_id_are_dropped():
    assert parse_uuid("AAAAAAAAAAAAAAAAAAAAAP") == ZERO_UUID


def test_an_id_has_sixteen_bytes():
    with pytest.raises(ValueError, match="16 bytes"):
        encode_uuid(b"short")


@pytest.mark.parametrize(
    ("number", "reserved"),
    [(0, True), (1, True), (2, True), (99, True), (100, False), (2**63 - 1, False), (2**63, True)],
)
def test_the_first_hundred_directory_ids_are_reserved(number: int, reserved: bool):
    assert is_reserved_directory_id(encode_uuid(number.to_bytes(16))) is reserved
    assert is_reserved_directory_id(encode_uuid(b"\x01" + number.to_bytes(15))) is False
