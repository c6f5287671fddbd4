"""The header of a record batch, message format v2 (magic 2). Kafka 0.11 and later write this
format.

::

    batch  = header (61 bytes, BATCH_HEADER) records
    records = record_count records (formats.record_v2), compressed as one block if a codec is set

All numbers are big-endian two's complement. ``batch_length`` counts what follows it, so a whole
batch has ``LENGTH_OVERHEAD + batch_length`` bytes. The CRC-32C covers ``attributes`` to the end of
the batch: base offset, length, leader epoch, magic and the CRC itself lie outside it, so that a
broker may stamp offset and epoch without touching the checksum. ``last_offset_delta`` stays what
the producer made it even when compaction removed the last records. When DELETE_HORIZON is set,
``base_timestamp`` holds the delete horizon in milliseconds, and all timestamp deltas are relative
to it. Source: Kafka's protocol guide, "Record Batch", and
``org.apache.kafka.common.record.internal.DefaultRecordBatch``.
"""

import enum
from typing import Final

import numpy as np

from storage_core.formats.fields import field_at

BATCH_HEADER: Final = np.dtype(
    [
        ("base_offset", ">i8"),
        ("batch_length", ">i4"),  # bytes after this field
        ("partition_leader_epoch", ">i4"),  # -1: unknown
        ("magic", ">i1"),
        ("crc", ">u4"),  # CRC-32C of everything after it
        ("attributes", ">i2"),  # only the low byte is in use
        ("last_offset_delta", ">i4"),  # last offset minus base offset
        ("base_timestamp", ">i8"),  # or the delete horizon
        ("max_timestamp", ">i8"),  # largest create time, or the broker's time
        ("producer_id", ">i8"),
        ("producer_epoch", ">i2"),
        ("base_sequence", ">i4"),
        ("record_count", ">i4"),
    ]
)

HEADER_BYTES: Final = BATCH_HEADER.itemsize
BASE_OFFSET_AT: Final = field_at(BATCH_HEADER, "base_offset")
BATCH_LENGTH_AT: Final = field_at(BATCH_HEADER, "batch_length")
LEADER_EPOCH_AT: Final = field_at(BATCH_HEADER, "partition_leader_epoch")
MAGIC_AT: Final = field_at(BATCH_HEADER, "magic")
CRC_AT: Final = field_at(BATCH_HEADER, "crc")
ATTRIBUTES_AT: Final = field_at(BATCH_HEADER, "attributes")
LAST_OFFSET_DELTA_AT: Final = field_at(BATCH_HEADER, "last_offset_delta")
BASE_TIMESTAMP_AT: Final = field_at(BATCH_HEADER, "base_timestamp")
MAX_TIMESTAMP_AT: Final = field_at(BATCH_HEADER, "max_timestamp")
PRODUCER_ID_AT: Final = field_at(BATCH_HEADER, "producer_id")
PRODUCER_EPOCH_AT: Final = field_at(BATCH_HEADER, "producer_epoch")
BASE_SEQUENCE_AT: Final = field_at(BATCH_HEADER, "base_sequence")
RECORD_COUNT_AT: Final = field_at(BATCH_HEADER, "record_count")

# Base offset and length: enough to find the end of any batch, old formats included.
LENGTH_OVERHEAD: Final = BATCH_LENGTH_AT + 4
CRC_START: Final = ATTRIBUTES_AT
# Kafka's file iterator needs this many bytes of an entry, up to the magic.
HEADER_UP_TO_MAGIC_BYTES: Final = MAGIC_AT + 1
# The smallest length field any format can have (a v0 message without key and value).
MIN_ENTRY_LENGTH: Final = 14
MAX_BATCH_BYTES: Final = 2**31 - 1

MAGIC_V2: Final = 2
CODEC_MASK: Final = 0x07
TIMESTAMP_TYPE_BIT: Final = 0x08  # set: log append time
TRANSACTIONAL_BIT: Final = 0x10
CONTROL_BIT: Final = 0x20
DELETE_HORIZON_BIT: Final = 0x40

NO_TIMESTAMP: Final = -1
NO_PRODUCER_ID: Final = -1
NO_PRODUCER_EPOCH: Final = -1
NO_SEQUENCE: Final = -1
NO_LEADER_EPOCH: Final = -1
MAX_SEQUENCE: Final = 2**31 - 1


class Codec(enum.IntEnum):
    """Compression of a batch: the low three bits of its attributes. No codec has the numbers 5
    to 7."""

    NONE = 0
    GZIP = 1
    SNAPPY = 2
    LZ4 = 3
    ZSTD = 4


class TimestampType(enum.StrEnum):
    """What the timestamps of a batch mean, as Kafka prints it."""

    NONE = "NoTimestampType"  # message format v0
    CREATE_TIME = "CreateTime"
    LOG_APPEND_TIME = "LogAppendTime"
