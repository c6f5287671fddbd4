"""A record inside a v2 batch.

::

    record  = length attributes timestamp_delta offset_delta key value header_count header*
    length           zigzag varint, bytes of the record after this field
    attributes       1 byte, unused
    timestamp_delta  zigzag varlong (64 bits), from the batch's base timestamp
    offset_delta     zigzag varint, from the batch's base offset
    key, value       zigzag varint length, negative for null, then the bytes
    header_count     zigzag varint, not negative
    header  = key (varint length, not negative, UTF-8) value (as a record's value)

A varint has at most 5 bytes, a varlong 10. Source: Kafka's protocol guide, "Record", and
``org.apache.kafka.common.record.internal.DefaultRecord``.
"""

from typing import Final

MAX_VARINT_BYTES: Final = 5
MAX_VARLONG_BYTES: Final = 10

# Attributes, two deltas, two lengths and a header count of one byte each.
MIN_BODY_BYTES: Final = 6
# The same with the length before it: no record takes fewer bytes.
MIN_RECORD_BYTES: Final = 7
NULL_LENGTH: Final = -1
