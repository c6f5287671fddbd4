"""A log entry of message format v0 or v1 (magic 0, 1). Brokers before Kafka 0.11 wrote these
formats.

::

    entry    = offset (int64) size (int32) message
    message  = crc (uint32) magic attributes [timestamp (int64), v1 only] key value
    key, value  int32 length, negative for null, then the bytes
    set      = entry*, uncompressed, one after the other

All numbers are big-endian. ``size`` counts the message alone. The CRC-32 (IEEE) covers everything
after itself. A compressed message carries a whole set in its value, compressed as one block; its
own offset is that of the *last* message inside. Inner messages of a v0 wrapper have their offsets
as they are, those of a v1 wrapper count from an unknown base: they are absolute once the last of
them is the wrapper's, or as they are if the wrapper's offset is 0. There is one level only. Of a
v1 wrapper with log append time every inner message of format v1 takes the timestamp. Source:
Kafka's protocol guide, "Message sets", and
``org.apache.kafka.common.record.internal.LegacyRecord`` and ``AbstractLegacyRecordBatch``.
"""

from typing import Final

import numpy as np

from storage_core.formats.fields import field_at

# The beginning of both formats; size and magic have the positions of a v2 batch's length and magic.
ENTRY_HEADER: Final = np.dtype(
    [
        ("offset", ">i8"),  # of the last message inside, if compressed
        ("size", ">i4"),  # bytes after this field
        ("crc", ">u4"),  # CRC-32 of everything after it
        ("magic", ">i1"),
        ("attributes", ">i1"),
    ]
)

OFFSET_AT: Final = field_at(ENTRY_HEADER, "offset")
SIZE_AT: Final = field_at(ENTRY_HEADER, "size")
ENTRY_CRC_AT: Final = field_at(ENTRY_HEADER, "crc")
ENTRY_CRC_START: Final = field_at(ENTRY_HEADER, "magic")
ENTRY_MAGIC_AT: Final = field_at(ENTRY_HEADER, "magic")
ENTRY_ATTRIBUTES_AT: Final = field_at(ENTRY_HEADER, "attributes")
# Offset and size, before the message.
ENTRY_OVERHEAD: Final = ENTRY_CRC_AT
# Directly behind the attributes: the timestamp in v1, the key in v0.
TIMESTAMP_AT: Final = ENTRY_HEADER.itemsize
KEY_AT_V0: Final = ENTRY_HEADER.itemsize
KEY_AT_V1: Final = ENTRY_HEADER.itemsize + 8
LENGTH_BYTES: Final = 4

# A message without key and value.
MIN_MESSAGE_BYTES_V0: Final = KEY_AT_V0 + 2 * LENGTH_BYTES - ENTRY_OVERHEAD

MAGIC_V0: Final = 0
MAGIC_V1: Final = 1
