"""Fields of messages; records of internal topics that are not what they should be."""

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from storage_core.errors import MalformedMessageError
from storage_core.messages.fields import FieldReader
from storage_core.messages.group_records import GROUP_RECORDS, OFFSET_COMMIT
from storage_core.messages.internal_records import (
    INTERNAL_RECORDS,
    DecodedRecord,
    Problem,
    decode_assignment,
    decode_internal_record,
    decode_subscription,
)
from tests.storage_core.catalog import metadata_bytes as md
from tests.storage_core.catalog.metadata_bytes import string, tags, unsigned_varint

OFFSETS = "__consumer_offsets"
KEY = b"\x00\x01\x00\x01g\x00\x01t\x00\x00\x00\x07"
KEY_FIELDS = {"group": "g", "topic": "t", "partition": 7}
VALUE = struct.pack(">hqih", 3, 42, 5, 2) + b"me" + struct.pack(">q", 1_000)


def test_a_commit_is_decoded():
    assert decode_internal_record(OFFSETS, KEY, VALUE) == DecodedRecord(
        type_id=1,
        type="OFFSET_COMMIT",
        version=3,
        key=KEY_FIELDS,
        value={"offset": 42, "leader_epoch": 5, "metadata": "me", "commit_timestamp": 1_000},
    )


@pytest.mark.item("REP-16")
@pytest.mark.parametrize("type_id", [0, 1])
def test_each_version_of_a_commit_has_its_own_fields_behind_either_type_of_key(type_id: int):
    key = struct.pack(">h", type_id) + KEY[2:]
    for version, has_epoch, expiry in ((0, 0, 0), (1, 0, 1), (2, 0, 0), (3, 1, 0)):
        value = struct.pack(">hq", version, 42) + struct.pack(">i", 5) * has_epoch
        value += b"\x00\x00" + struct.pack(">q", 1_000) + struct.pack(">q", 2_000) * expiry
        fields = decode_internal_record(OFFSETS, key, value).value
        assert fields.get("leader_epoch", -1) == (5 if has_epoch else -1)
        assert fields.get("expire_timestamp", -1) == (2_000 if expiry else -1)
        assert (fields["offset"], fields["commit_timestamp"]) == (42, 1_000)


def test_a_record_without_a_value_takes_away_what_its_key_names():
    decoded = decode_internal_record(OFFSETS, KEY, None)
    assert (decoded.is_tombstone, decoded.key, decoded.problem) == (True, KEY_FIELDS, None)


def test_bytes_behind_the_fields_are_ignored_as_by_kafka():
    assert decode_internal_record(OFFSETS, KEY, VALUE + b"later").value is not None


@pytest.mark.item("REP-16")
@pytest.mark.parametrize(
    ("key", "value", "expected"),
    [
        pytest.param(
            b"\x00\x63rest",
            VALUE,
            DecodedRecord(
                type_id=99,
                problem=Problem.UNKNOWN_TYPE,
                reason="type 99 is none that Kafka 4.4 has",
            ),
            id="a type of later",
        ),
        pytest.param(
            KEY,
            b"\x00\x05whatever",
            DecodedRecord(
                type_id=1,
                type="OFFSET_COMMIT",
                version=5,
                key=KEY_FIELDS,
                problem=Problem.UNKNOWN_VERSION,
                reason="expected a version from 0 to 4, found 5",
            ),
            id="a version of later",
        ),
        pytest.param(
            None,
            VALUE,
            DecodedRecord(problem=Problem.MALFORMED, reason="expected a key, found null"),
            id="no key",
        ),
        pytest.param(
            b"\x00",
            VALUE,
            DecodedRecord(
                problem=Problem.MALFORMED, reason="key: byte 0: expected 2 bytes, found 1"
            ),
            id="half a type",
        ),
        pytest.param(
            b"\x00\x01\x00\x09g",
            VALUE,
            DecodedRecord(
                type_id=1,
                type="OFFSET_COMMIT",
                problem=Problem.MALFORMED,
                reason="key: byte 4: expected 9 bytes, found 1",
            ),
            id="a length in the key that lies",
        ),
        pytest.param(
            KEY,
            VALUE[:14] + b"\x7f\xff" + VALUE[16:],
            DecodedRecord(
                type_id=1,
                type="OFFSET_COMMIT",
                version=3,
                key=KEY_FIELDS,
                problem=Problem.MALFORMED,
                reason="value: byte 16: expected 32767 bytes, found 10",
            ),
            id="a length in the value that lies",
        ),
        pytest.param(
            KEY,
            VALUE[:14] + b"\xff\xff" + VALUE[16:],
            DecodedRecord(
                type_id=1,
                type="OFFSET_COMMIT",
                version=3,
                key=KEY_FIELDS,
                problem=Problem.MALFORMED,
                reason="value: byte 16: expected a value of metadata, found null",
            ),
            id="a null where there may be none",
        ),
    ],
)
def test_what_cannot_be_decoded_says_why_and_where(key, value, expected):
    assert decode_internal_record(OFFSETS, key, value) == expected


def test_a_record_of_the_clusters_metadata_has_no_key():
    decoded = decode_internal_record("__cluster_metadata", None, md.topic("t"))
    assert (decoded.type, decoded.value) == ("TOPIC_RECORD", {"name": "t", "topic_id": md.ID_A})
    later = decode_internal_record("__cluster_metadata", None, md.frame(md.TOPIC, b"", version=1))
    assert (later.problem, later.type, later.version) == (
        Problem.UNKNOWN_VERSION,
        "TOPIC_RECORD",
        1,
    )
    frame = decode_internal_record(
        "__cluster_metadata", None, md.frame(md.TOPIC, b"", frame_version=2)
    )
    assert (frame.problem, frame.type_id) == (Problem.MALFORMED, None)
    assert decode_internal_record("__cluster_metadata", b"k", None).problem is Problem.MALFORMED


def test_there_is_no_reading_of_a_version_that_is_not_declared():
    message = GROUP_RECORDS[OFFSET_COMMIT].value
    with pytest.raises(ValueError, match="from 0 to 4, found 5"):
        message.read(FieldReader(b""), 5)


@given(
    st.sampled_from(sorted(INTERNAL_RECORDS)),
    st.integers(-1, 30),
    st.binary(max_size=60),
    st.integers(-1, 5),
    st.binary(max_size=60),
)
def test_no_bytes_do_anything_but_decode_or_say_why_not(topic, type_id, key, version, value):
    if topic in {"__cluster_metadata", "__remote_log_metadata"}:
        decoded = decode_internal_record(topic, key, md.frame(max(type_id, 0), value))
    else:
        coded = struct.pack(">h", type_id) + key
        decoded = decode_internal_record(topic, coded, struct.pack(">h", version) + value)
    assert (decoded.problem is None) == (decoded.value is not None)
    assert bool(decoded.reason) == (decoded.problem is not None)


@pytest.mark.parametrize("decode", [decode_subscription, decode_assignment])
def test_what_a_client_says_of_itself_may_be_anything(decode):
    for data in (b"", b"\x00", b"\xff\xff", b"\x00\x01\x7f\xff\xff\xff", b"\x00\x03\x00\x00"):
        with pytest.raises(MalformedMessageError):
            decode(data)


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
def test_a_lie_in_the_bytes_is_an_error_with_its_position(data, read, position):
    with pytest.raises(MalformedMessageError) as raised:
        read(FieldReader(data))
    assert raised.value.position == position
