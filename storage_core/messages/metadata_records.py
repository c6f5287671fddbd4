"""The records of ``__cluster_metadata``, every type and version that Kafka 4.4 reads. Source:
``org.apache.kafka.common.metadata``."""

from collections.abc import Mapping
from typing import Final

from storage_core.messages.schema import (
    BOOLEAN,
    BYTES,
    FLOAT64,
    INT8,
    INT16,
    INT32,
    INT64,
    STRING,
    UINT16,
    UUID,
    ArrayOf,
    Field,
    Message,
    RecordType,
    Struct,
)

_ENDPOINT: Final = Struct(
    Field("name", STRING),
    Field("host", STRING),
    Field("port", UINT16),
    Field("security_protocol", INT16),
)
_FEATURE: Final = Struct(
    Field("name", STRING),
    Field("min_supported_version", INT16),
    Field("max_supported_version", INT16),
)

# By type; MetadataRecordType has the numbers.
METADATA_RECORDS: Final[Mapping[int, RecordType]] = {
    0: RecordType(
        "REGISTER_BROKER_RECORD",
        Message(
            fields=Struct(
                Field("broker_id", INT32),
                Field("is_migrating_zk_broker", BOOLEAN, since=2),
                Field("incarnation_id", UUID),
                Field("broker_epoch", INT64),
                Field("end_points", ArrayOf(_ENDPOINT)),
                Field("features", ArrayOf(_FEATURE)),
                Field("rack", STRING, is_nullable=True),
                Field("fenced", BOOLEAN),
                Field("in_controlled_shutdown", BOOLEAN, since=1),
                Field("log_dirs", ArrayOf(UUID), since=3, tag=0, default=()),
                Field("cordoned_log_dirs", ArrayOf(UUID), since=4, is_nullable=True, tag=1),
            ),
            newest=4,
        ),
    ),
    1: RecordType(
        "UNREGISTER_BROKER_RECORD",
        Message(
            fields=Struct(
                Field("broker_id", INT32),
                Field("broker_epoch", INT64),
            )
        ),
    ),
    2: RecordType(
        "TOPIC_RECORD",
        Message(
            fields=Struct(
                Field("name", STRING),
                Field("topic_id", UUID),
            )
        ),
    ),
    3: RecordType(
        "PARTITION_RECORD",
        Message(
            fields=Struct(
                Field("partition_id", INT32),
                Field("topic_id", UUID),
                Field("replicas", ArrayOf(INT32)),
                Field("isr", ArrayOf(INT32)),
                Field("removing_replicas", ArrayOf(INT32)),
                Field("adding_replicas", ArrayOf(INT32)),
                Field("leader", INT32),
                Field("leader_epoch", INT32),
                Field("partition_epoch", INT32),
                Field("directories", ArrayOf(UUID), since=1),
                Field("leader_recovery_state", INT8, tag=0, default=0),
                Field("eligible_leader_replicas", ArrayOf(INT32), since=2, is_nullable=True, tag=1),
                Field("last_known_elr", ArrayOf(INT32), since=2, is_nullable=True, tag=2),
            ),
            newest=2,
        ),
    ),
    4: RecordType(
        "CONFIG_RECORD",
        Message(
            fields=Struct(
                Field("resource_type", INT8),
                Field("resource_name", STRING),
                Field("name", STRING),
                Field("value", STRING, is_nullable=True),
            )
        ),
    ),
    5: RecordType(
        "PARTITION_CHANGE_RECORD",
        Message(
            fields=Struct(
                Field("partition_id", INT32),
                Field("topic_id", UUID),
                Field("isr", ArrayOf(INT32), is_nullable=True, tag=0),
                Field("leader", INT32, tag=1, default=-2),
                Field("replicas", ArrayOf(INT32), is_nullable=True, tag=2),
                Field("removing_replicas", ArrayOf(INT32), is_nullable=True, tag=3),
                Field("adding_replicas", ArrayOf(INT32), is_nullable=True, tag=4),
                Field("leader_recovery_state", INT8, tag=5, default=-1),
                Field("eligible_leader_replicas", ArrayOf(INT32), since=2, is_nullable=True, tag=6),
                Field("last_known_elr", ArrayOf(INT32), since=2, is_nullable=True, tag=7),
                Field("directories", ArrayOf(UUID), since=1, is_nullable=True, tag=8),
            ),
            newest=2,
        ),
    ),
    7: RecordType(
        "FENCE_BROKER_RECORD",
        Message(
            fields=Struct(
                Field("id", INT32),
                Field("epoch", INT64),
            )
        ),
    ),
    8: RecordType(
        "UNFENCE_BROKER_RECORD",
        Message(
            fields=Struct(
                Field("id", INT32),
                Field("epoch", INT64),
            )
        ),
    ),
    9: RecordType(
        "REMOVE_TOPIC_RECORD",
        Message(
            fields=Struct(
                Field("topic_id", UUID),
            )
        ),
    ),
    10: RecordType(
        "DELEGATION_TOKEN_RECORD",
        Message(
            fields=Struct(
                Field("owner", STRING),
                Field("requester", STRING),
                Field("renewers", ArrayOf(STRING)),
                Field("issue_timestamp", INT64),
                Field("max_timestamp", INT64),
                Field("expiration_timestamp", INT64),
                Field("token_id", STRING),
            )
        ),
    ),
    11: RecordType(
        "USER_SCRAM_CREDENTIAL_RECORD",
        Message(
            fields=Struct(
                Field("name", STRING),
                Field("mechanism", INT8),
                Field("salt", BYTES, is_secret=True),
                Field("stored_key", BYTES, is_secret=True),
                Field("server_key", BYTES, is_secret=True),
                Field("iterations", INT32),
            )
        ),
    ),
    12: RecordType(
        "FEATURE_LEVEL_RECORD",
        Message(
            fields=Struct(
                Field("name", STRING),
                Field("feature_level", INT16),
            )
        ),
    ),
    14: RecordType(
        "CLIENT_QUOTA_RECORD",
        Message(
            fields=Struct(
                Field(
                    "entity",
                    ArrayOf(
                        Struct(
                            Field("entity_type", STRING),
                            Field("entity_name", STRING, is_nullable=True),
                        )
                    ),
                ),
                Field("key", STRING),
                Field("value", FLOAT64),
                Field("remove", BOOLEAN),
            )
        ),
    ),
    15: RecordType(
        "PRODUCER_IDS_RECORD",
        Message(
            fields=Struct(
                Field("broker_id", INT32),
                Field("broker_epoch", INT64),
                Field("next_producer_id", INT64),
            )
        ),
    ),
    17: RecordType(
        "BROKER_REGISTRATION_CHANGE_RECORD",
        Message(
            fields=Struct(
                Field("broker_id", INT32),
                Field("broker_epoch", INT64),
                Field("fenced", INT8, tag=0, default=0),
                Field("in_controlled_shutdown", INT8, since=1, tag=1, default=0),
                Field("log_dirs", ArrayOf(UUID), since=2, tag=2, default=()),
                Field("cordoned_log_dirs", ArrayOf(UUID), since=3, is_nullable=True, tag=3),
            ),
            newest=3,
        ),
    ),
    18: RecordType(
        "ACCESS_CONTROL_ENTRY_RECORD",
        Message(
            fields=Struct(
                Field("id", UUID),
                Field("resource_type", INT8),
                Field("resource_name", STRING),
                Field("pattern_type", INT8),
                Field("principal", STRING),
                Field("host", STRING),
                Field("operation", INT8),
                Field("permission_type", INT8),
            )
        ),
    ),
    19: RecordType(
        "REMOVE_ACCESS_CONTROL_ENTRY_RECORD",
        Message(
            fields=Struct(
                Field("id", UUID),
            )
        ),
    ),
    20: RecordType("NO_OP_RECORD", Message(fields=Struct())),
    21: RecordType(
        "ZK_MIGRATION_STATE_RECORD",
        Message(
            fields=Struct(
                Field("zk_migration_state", INT8),
            )
        ),
    ),
    22: RecordType(
        "REMOVE_USER_SCRAM_CREDENTIAL_RECORD",
        Message(
            fields=Struct(
                Field("name", STRING),
                Field("mechanism", INT8),
            )
        ),
    ),
    23: RecordType(
        "BEGIN_TRANSACTION_RECORD",
        Message(
            fields=Struct(
                Field("name", STRING, is_nullable=True, tag=0),
            )
        ),
    ),
    24: RecordType("END_TRANSACTION_RECORD", Message(fields=Struct())),
    25: RecordType(
        "ABORT_TRANSACTION_RECORD",
        Message(
            fields=Struct(
                Field("reason", STRING, is_nullable=True, tag=0),
            )
        ),
    ),
    26: RecordType(
        "REMOVE_DELEGATION_TOKEN_RECORD",
        Message(
            fields=Struct(
                Field("token_id", STRING),
            )
        ),
    ),
    27: RecordType(
        "REGISTER_CONTROLLER_RECORD",
        Message(
            fields=Struct(
                Field("controller_id", INT32),
                Field("incarnation_id", UUID),
                Field("zk_migration_ready", BOOLEAN),
                Field("end_points", ArrayOf(_ENDPOINT)),
                Field("features", ArrayOf(_FEATURE)),
            )
        ),
    ),
    28: RecordType(
        "CLEAR_ELR_RECORD",
        Message(
            fields=Struct(
                Field("topic_name", STRING),
            )
        ),
    ),
    29: RecordType(
        "UNREGISTER_CONTROLLER_RECORD",
        Message(
            fields=Struct(
                Field("controller_id", INT32),
            )
        ),
    ),
}
