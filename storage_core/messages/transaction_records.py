"""The records of ``__transaction_state`` and ``__share_group_state``, as Kafka 4.4 reads them.

The version of a record's key is the record's type. Sources:
``org.apache.kafka.coordinator.transaction.generated``,
``org.apache.kafka.coordinator.share.generated`` (``CoordinatorRecordType`` has the numbers).
"""

from collections.abc import Mapping
from typing import Final

from storage_core.messages.schema import (
    INT8,
    INT16,
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

TRANSACTION_LOG: Final = 0
TRANSACTION_RECORDS: Final[Mapping[int, RecordType]] = {
    TRANSACTION_LOG: RecordType(
        "TRANSACTION_LOG",
        Message(
            newest=1,
            flexible_since=1,
            fields=Struct(
                Field("producer_id", INT64),
                Field("producer_epoch", INT16),
                Field("transaction_timeout_ms", INT32),
                Field("transaction_status", INT8),
                Field(
                    "transaction_partitions",
                    ArrayOf(Struct(Field("topic", STRING), Field("partition_ids", ArrayOf(INT32)))),
                    is_nullable=True,
                ),
                Field("transaction_last_update_timestamp_ms", INT64),
                Field("transaction_start_timestamp_ms", INT64),
                Field("previous_producer_id", INT64, since=1, tag=0, default=-1),
                Field("next_producer_id", INT64, since=1, tag=1, default=-1),
                Field("client_transaction_version", INT16, since=1, tag=2, default=0),
                Field("next_producer_epoch", INT16, since=1, tag=3, default=-1),
            ),
        ),
        Message(fields=Struct(Field("transactional_id", STRING)), flexible_since=None),
    )
}

_SHARE_KEY: Final = Message(
    fields=Struct(Field("group_id", STRING), Field("topic_id", UUID), Field("partition", INT32)),
    flexible_since=None,
)
_STATE_BATCHES: Final = Field(
    "state_batches",
    ArrayOf(
        Struct(
            Field("first_offset", INT64),
            Field("last_offset", INT64),
            Field("delivery_state", INT8),
            Field("delivery_count", INT16),
        )
    ),
)
SHARE_SNAPSHOT: Final = 0
SHARE_UPDATE: Final = 1
_COMPLETE_COUNT: Final = Field("delivery_complete_count", INT32, tag=0, default=-1)
SHARE_STATE_RECORDS: Final[Mapping[int, RecordType]] = {
    SHARE_SNAPSHOT: RecordType(
        "SHARE_SNAPSHOT",
        Message(
            fields=Struct(
                Field("snapshot_epoch", INT32),
                Field("state_epoch", INT32),
                Field("leader_epoch", INT32),
                Field("start_offset", INT64),
                Field("create_timestamp", INT64),
                Field("write_timestamp", INT64),
                _STATE_BATCHES,
                _COMPLETE_COUNT,
            )
        ),
        _SHARE_KEY,
    ),
    SHARE_UPDATE: RecordType(
        "SHARE_UPDATE",
        Message(
            fields=Struct(
                Field("snapshot_epoch", INT32),
                Field("leader_epoch", INT32),
                Field("start_offset", INT64),
                _STATE_BATCHES,
                _COMPLETE_COUNT,
            )
        ),
        _SHARE_KEY,
    ),
}
