"""The records of ``__remote_log_metadata``, as Kafka 4.4 reads them: what brokers say of the
segments in a tier (KIP-405). Source:
``org.apache.kafka.server.log.remote.metadata.storage.generated``."""

from collections.abc import Mapping
from typing import Final

from storage_core.messages.schema import (
    BOOLEAN,
    BYTES,
    INT8,
    INT32,
    INT64,
    STRING,
    UUID,
    ArrayOf,
    Field,
    Message,
    RecordType,
    Struct,
)

SEGMENT: Final = 0
SEGMENT_UPDATE: Final = 1
PARTITION_DELETE: Final = 2
SEGMENT_SNAPSHOT: Final = 3

_PARTITION: Final = Field(
    "topic_id_partition",
    Struct(Field("name", STRING), Field("id", UUID), Field("partition", INT32)),
)
_SEGMENT_ID: Final = Field("remote_log_segment_id", Struct(_PARTITION, Field("id", UUID)))
_CUSTOM: Final = Field("custom_metadata", BYTES, is_nullable=True)
_STATE: Final = Field("remote_log_segment_state", INT8)
# Of a whole segment.
_FACTS: Final = (
    Field("start_offset", INT64),
    Field("end_offset", INT64),
    Field("broker_id", INT32),
    Field("max_timestamp_ms", INT64),
    Field("event_timestamp_ms", INT64),
    Field(
        "segment_leader_epochs",
        ArrayOf(Struct(Field("leader_epoch", INT32), Field("offset", INT64))),
    ),
    Field("segment_size_in_bytes", INT32),
    _CUSTOM,
    _STATE,
    Field("txn_index_empty", BOOLEAN, tag=0, default=False),
)

REMOTE_LOG_RECORDS: Final[Mapping[int, RecordType]] = {
    SEGMENT: RecordType(
        "REMOTE_LOG_SEGMENT_METADATA_RECORD", Message(fields=Struct(_SEGMENT_ID, *_FACTS))
    ),
    SEGMENT_UPDATE: RecordType(
        "REMOTE_LOG_SEGMENT_METADATA_UPDATE_RECORD",
        Message(
            fields=Struct(
                _SEGMENT_ID,
                Field("broker_id", INT32),
                Field("event_timestamp_ms", INT64),
                _CUSTOM,
                _STATE,
            )
        ),
    ),
    PARTITION_DELETE: RecordType(
        "REMOTE_PARTITION_DELETE_METADATA_RECORD",
        Message(
            fields=Struct(
                _PARTITION,
                Field("broker_id", INT32),
                Field("event_timestamp_ms", INT64),
                Field("remote_partition_delete_state", INT8),
            )
        ),
    ),
    # Kafka reads it, but writes none into the topic.
    SEGMENT_SNAPSHOT: RecordType(
        "REMOTE_LOG_SEGMENT_METADATA_SNAPSHOT_RECORD",
        Message(fields=Struct(Field("segment_id", UUID), *_FACTS)),
    ),
}
