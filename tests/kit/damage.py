"""Batches whose bytes lie, each with a CRC that is right, so that only the lie can be found.

Every function takes an encoded batch, or says how to build one, and returns encoded bytes.
"""

import dataclasses
import enum
import struct
from typing import Final

from storage_core.formats.batch_v2 import (
    ATTRIBUTES_AT,
    BATCH_LENGTH_AT,
    CODEC_MASK,
    HEADER_BYTES,
    RECORD_COUNT_AT,
    Codec,
)
from storage_core.records.codecs import compress
from tests.kit.builders import (
    BatchSpec,
    RecordSpec,
    encode_batch,
    encode_records,
    encode_varint,
    with_valid_crc,
)

_INT32: Final = struct.Struct(">i")
_INT16: Final = struct.Struct(">h")
_ENDLESS_VARINT: Final = b"\xff" * 20


def with_int32(batch: bytes, at: int, number: int) -> bytes:
    """Return the batch with another int32 at a position, its CRC made right."""
    return with_valid_crc(batch[:at] + _INT32.pack(number) + batch[at + _INT32.size :])


def truncated(batch: bytes, size: int) -> bytes:
    """Return the first bytes of a batch."""
    return batch[:size]


def with_lying_length(batch: bytes, length: int) -> bytes:
    """Return the batch with another length in its header; the length lies outside of the CRC."""
    return batch[:BATCH_LENGTH_AT] + _INT32.pack(length) + batch[BATCH_LENGTH_AT + _INT32.size :]


def with_lying_count(batch: bytes, count: int) -> bytes:
    """Return the batch with another record count."""
    return with_int32(batch, RECORD_COUNT_AT, count)


def with_codec(batch: bytes, codec: int) -> bytes:
    """Return the batch with another codec, 0 to 7, in its attributes; the records stay."""
    (attributes,) = _INT16.unpack_from(batch, ATTRIBUTES_AT)
    changed = _INT16.pack(attributes & ~CODEC_MASK | codec)
    return with_valid_crc(batch[:ATTRIBUTES_AT] + changed + batch[ATTRIBUTES_AT + _INT16.size :])


def with_wrong_crc(batch: bytes) -> bytes:
    """Return the batch with its last bit turned over, its CRC as it was."""
    return batch[:-1] + bytes([batch[-1] ^ 1])


def with_payload(batch: BatchSpec, payload: bytes) -> bytes:
    """Return the batch with other bytes for its records, compressed as it says."""
    return encode_batch(batch, payload=compress(batch.codec, payload))


def with_trailing_bytes(batch: BatchSpec, extra: bytes = b"\0") -> bytes:
    """Return the batch with bytes after its last record."""
    return with_payload(batch, encode_records(batch) + extra)


def decompression_bomb(codec: Codec, *, value_bytes: int, batch: BatchSpec | None = None) -> bytes:
    """Return a small batch of one record with a large value of zeros."""
    spec = dataclasses.replace(
        batch or BatchSpec(),
        codec=codec,
        records=(RecordSpec(key=b"bomb", value=bytes(value_bytes)),),
    )
    return encode_batch(spec)


class BadRecord(enum.Enum):
    """A way in which the first record of a batch is malformed; the value tells it in words."""

    ENDLESS_LENGTH = "the length is a varint without an end"
    NEGATIVE_LENGTH = "the length is negative"
    LENGTH_PAST_THE_END = "the length runs past the batch"
    LENGTH_TOO_SMALL = "the length ends inside of the record"
    LENGTH_TOO_LARGE = "the length covers bytes that no field takes"
    ENDLESS_TIMESTAMP = "the timestamp delta is a varint without an end"
    KEY_PAST_THE_END = "the key runs past the record"
    VALUE_PAST_THE_END = "the value runs past the record"
    NEGATIVE_HEADER_COUNT = "the header count is negative"
    HUGE_HEADER_COUNT = "there are more headers than bytes"
    NEGATIVE_HEADER_NAME = "the length of a header's name is negative"
    HEADER_NAME_PAST_THE_END = "a header's name runs past the record"
    HEADER_VALUE_PAST_THE_END = "a header's value runs past the record"


_START: Final = b"\0" + encode_varint(0) + encode_varint(0)  # attributes and deltas
_FIELDS: Final = _START + encode_varint(1) + b"k" + encode_varint(1) + b"v"
_BODIES: Final = {
    BadRecord.ENDLESS_TIMESTAMP: b"\0" + _ENDLESS_VARINT,
    BadRecord.KEY_PAST_THE_END: _START + encode_varint(100) + b"k",
    BadRecord.VALUE_PAST_THE_END: _START + encode_varint(1) + b"k" + encode_varint(2**31 - 1),
    BadRecord.NEGATIVE_HEADER_COUNT: _FIELDS + encode_varint(-1),
    BadRecord.HUGE_HEADER_COUNT: _FIELDS + encode_varint(2**31 - 1),
    BadRecord.NEGATIVE_HEADER_NAME: _FIELDS + encode_varint(1) + encode_varint(-1) + b"\0",
    BadRecord.HEADER_NAME_PAST_THE_END: _FIELDS + encode_varint(1) + encode_varint(100) + b"\0",
    BadRecord.HEADER_VALUE_PAST_THE_END: _FIELDS + encode_varint(1) + b"\x02h" + encode_varint(9),
}
_GOOD_BODY: Final = _FIELDS + encode_varint(0)
_RECORDS: Final = {
    BadRecord.ENDLESS_LENGTH: _ENDLESS_VARINT,
    BadRecord.NEGATIVE_LENGTH: encode_varint(-1) + _GOOD_BODY,
    BadRecord.LENGTH_PAST_THE_END: encode_varint(len(_GOOD_BODY) + 1) + _GOOD_BODY,
    BadRecord.LENGTH_TOO_SMALL: encode_varint(len(_GOOD_BODY) - 1) + _GOOD_BODY,
    BadRecord.LENGTH_TOO_LARGE: encode_varint(len(_GOOD_BODY) + 1) + _GOOD_BODY + b"\0",
    **{bad: encode_varint(len(body)) + body for bad, body in _BODIES.items()},
}


def bad_record(bad: BadRecord, batch: BatchSpec | None = None) -> bytes:
    """Return a batch of one record that is malformed in that way."""
    spec = dataclasses.replace(
        batch or BatchSpec(), records=(RecordSpec(key=b"k", value=b"v"),), record_count=1
    )
    return with_payload(spec, _RECORDS[bad])


def header_only(batch: bytes) -> bytes:
    """Return the header of a batch, its length and count as they were: the records are missing."""
    return batch[:HEADER_BYTES]
