"""Kafka 4.4's records of ``__consumer_offsets``, as read or written by it. The schemas have all
their types and versions.

The version of a key is the type of its record; keys have no other versions. Types 0 and 1 are
offset commits, 2 is a group of the classic protocol, the others are groups of the new protocol
(``CONSUMER_GROUP_``), share groups and streams groups. Source:
``org.apache.kafka.coordinator.group.generated`` (``CoordinatorRecordType`` has the numbers).
"""

from collections.abc import Mapping
from typing import Final

from storage_core.messages.schema import (
    BYTES,
    INT8,
    INT16,
    INT32,
    INT64,
    NO_UUID,
    STRING,
    UINT16,
    UUID,
    ArrayOf,
    Field,
    Message,
    RecordType,
    Struct,
)

_COMMIT_KEY: Final = Message(
    fields=Struct(Field("group", STRING), Field("topic", STRING), Field("partition", INT32)),
    flexible_since=None,
)
# Kafka 4.4 reads version 0 after a key of type 0; old brokers may have written the others.
_COMMIT_VALUE: Final = Message(
    newest=4,
    flexible_since=4,
    fields=Struct(
        Field("offset", INT64),
        Field("leader_epoch", INT32, since=3),
        Field("metadata", STRING),
        Field("commit_timestamp", INT64),
        Field("expire_timestamp", INT64, since=1, until=1),
        Field("topic_id", UUID, since=4, tag=0, default=NO_UUID),
    ),
)
_CLASSIC_GROUP_KEY: Final = Message(fields=Struct(Field("group", STRING)), flexible_since=None)
_CLASSIC_GROUP: Final = Message(
    newest=4,
    flexible_since=4,
    fields=Struct(
        Field("protocol_type", STRING),
        Field("generation", INT32),
        Field("protocol", STRING, is_nullable=True),
        Field("leader", STRING, is_nullable=True),
        Field("current_state_timestamp", INT64, since=2),
        Field(
            "members",
            ArrayOf(
                Struct(
                    Field("member_id", STRING),
                    Field("group_instance_id", STRING, since=3, is_nullable=True),
                    Field("client_id", STRING),
                    Field("client_host", STRING),
                    Field("rebalance_timeout", INT32, since=1),
                    Field("session_timeout", INT32),
                    Field("subscription", BYTES),
                    Field("assignment", BYTES),
                )
            ),
        ),
    ),
)

_GROUP_KEY: Final = Message(fields=Struct(Field("group_id", STRING)), flexible_since=None)
_MEMBER_KEY: Final = Message(
    fields=Struct(Field("group_id", STRING), Field("member_id", STRING)), flexible_since=None
)
_ASSIGNMENT_METADATA: Final = Message(
    fields=Struct(
        Field("assignment_epoch", INT32), Field("assignment_timestamp", INT64, tag=0, default=0)
    )
)
_CONFIG: Final = Struct(Field("key", STRING), Field("value", STRING))

# Consumer groups and share groups.
_TOPIC_PARTITIONS: Final = Struct(Field("topic_id", UUID), Field("partitions", ArrayOf(INT32)))
_ASSIGNED_PARTITIONS: Final = Struct(
    Field("topic_id", UUID),
    Field("partitions", ArrayOf(INT32)),
    Field("assignment_epochs", ArrayOf(INT32), is_nullable=True, tag=0, default=()),
)
_TARGET_ASSIGNMENT: Final = Message(
    fields=Struct(Field("topic_partitions", ArrayOf(_TOPIC_PARTITIONS)))
)
_CLASSIC_MEMBER: Final = Struct(
    Field("session_timeout_ms", INT32),
    Field("supported_protocols", ArrayOf(Struct(Field("name", STRING), Field("metadata", BYTES)))),
)
_SHARED_TOPIC: Final = Struct(
    Field("topic_id", UUID), Field("topic_name", STRING), Field("partitions", ArrayOf(INT32))
)

# Streams groups.
_TASKS: Final = Struct(Field("subtopology_id", STRING), Field("partitions", ArrayOf(INT32)))
_ASSIGNED_TASKS: Final = Struct(
    Field("subtopology_id", STRING),
    Field("partitions", ArrayOf(INT32)),
    Field("assignment_epochs", ArrayOf(INT32), is_nullable=True, tag=0, default=()),
)
_INTERNAL_TOPIC: Final = Struct(
    Field("name", STRING),
    Field("partitions", INT32),
    Field("replication_factor", INT16),
    Field("topic_configs", ArrayOf(_CONFIG)),
)
_SUBTOPOLOGY: Final = Struct(
    Field("subtopology_id", STRING),
    Field("source_topics", ArrayOf(STRING)),
    Field("source_topic_regex", ArrayOf(STRING)),
    Field("state_changelog_topics", ArrayOf(_INTERNAL_TOPIC)),
    Field("repartition_sink_topics", ArrayOf(STRING)),
    Field("repartition_source_topics", ArrayOf(_INTERNAL_TOPIC)),
    Field(
        "copartition_groups",
        ArrayOf(
            Struct(
                Field("source_topics", ArrayOf(INT16)),
                Field("source_topic_regex", ArrayOf(INT16)),
                Field("repartition_source_topics", ArrayOf(INT16)),
            )
        ),
    ),
)

LEGACY_OFFSET_COMMIT: Final = 0
OFFSET_COMMIT: Final = 1
GROUP_METADATA: Final = 2
CONSUMER_GROUP_METADATA: Final = 3
CONSUMER_GROUP_MEMBER_METADATA: Final = 5
CONSUMER_GROUP_TARGET_ASSIGNMENT_METADATA: Final = 6
CONSUMER_GROUP_CURRENT_MEMBER_ASSIGNMENT: Final = 8
SHARE_GROUP_MEMBER_METADATA: Final = 10
SHARE_GROUP_METADATA: Final = 11
STREAMS_GROUP_METADATA: Final = 17
STREAMS_GROUP_MEMBER_METADATA: Final = 19

# By type.
GROUP_RECORDS: Final[Mapping[int, RecordType]] = {
    LEGACY_OFFSET_COMMIT: RecordType("LEGACY_OFFSET_COMMIT", _COMMIT_VALUE, _COMMIT_KEY),
    OFFSET_COMMIT: RecordType("OFFSET_COMMIT", _COMMIT_VALUE, _COMMIT_KEY),
    GROUP_METADATA: RecordType("GROUP_METADATA", _CLASSIC_GROUP, _CLASSIC_GROUP_KEY),
    CONSUMER_GROUP_METADATA: RecordType(
        "CONSUMER_GROUP_METADATA",
        Message(
            fields=Struct(Field("epoch", INT32), Field("metadata_hash", INT64, tag=0, default=0))
        ),
        _GROUP_KEY,
    ),
    4: RecordType(
        "CONSUMER_GROUP_PARTITION_METADATA",
        Message(
            fields=Struct(
                Field(
                    "topics",
                    ArrayOf(
                        Struct(
                            Field("topic_id", UUID),
                            Field("topic_name", STRING),
                            Field("num_partitions", INT32),
                            Field(
                                "partition_metadata",
                                ArrayOf(
                                    Struct(
                                        Field("partition", INT32), Field("racks", ArrayOf(STRING))
                                    )
                                ),
                            ),
                        )
                    ),
                )
            )
        ),
        _GROUP_KEY,
    ),
    CONSUMER_GROUP_MEMBER_METADATA: RecordType(
        "CONSUMER_GROUP_MEMBER_METADATA",
        Message(
            fields=Struct(
                Field("instance_id", STRING, is_nullable=True),
                Field("rack_id", STRING, is_nullable=True),
                Field("client_id", STRING),
                Field("client_host", STRING),
                Field("subscribed_topic_names", ArrayOf(STRING)),
                Field("subscribed_topic_regex", STRING, is_nullable=True),
                Field("rebalance_timeout_ms", INT32),
                Field("server_assignor", STRING, is_nullable=True),
                Field(
                    "classic_member_metadata",
                    _CLASSIC_MEMBER,
                    is_nullable=True,
                    tag=0,
                    default={"session_timeout_ms": 0, "supported_protocols": ()},
                ),
            )
        ),
        _MEMBER_KEY,
    ),
    CONSUMER_GROUP_TARGET_ASSIGNMENT_METADATA: RecordType(
        "CONSUMER_GROUP_TARGET_ASSIGNMENT_METADATA", _ASSIGNMENT_METADATA, _GROUP_KEY
    ),
    7: RecordType("CONSUMER_GROUP_TARGET_ASSIGNMENT_MEMBER", _TARGET_ASSIGNMENT, _MEMBER_KEY),
    CONSUMER_GROUP_CURRENT_MEMBER_ASSIGNMENT: RecordType(
        "CONSUMER_GROUP_CURRENT_MEMBER_ASSIGNMENT",
        Message(
            fields=Struct(
                Field("member_epoch", INT32),
                Field("previous_member_epoch", INT32),
                Field("state", INT8),
                Field("assigned_partitions", ArrayOf(_ASSIGNED_PARTITIONS)),
                Field("partitions_pending_revocation", ArrayOf(_ASSIGNED_PARTITIONS)),
            )
        ),
        _MEMBER_KEY,
    ),
    SHARE_GROUP_MEMBER_METADATA: RecordType(
        "SHARE_GROUP_MEMBER_METADATA",
        Message(
            fields=Struct(
                Field("rack_id", STRING, is_nullable=True),
                Field("client_id", STRING),
                Field("client_host", STRING),
                Field("subscribed_topic_names", ArrayOf(STRING)),
            )
        ),
        _MEMBER_KEY,
    ),
    SHARE_GROUP_METADATA: RecordType(
        "SHARE_GROUP_METADATA",
        Message(fields=Struct(Field("epoch", INT32), Field("metadata_hash", INT64))),
        _GROUP_KEY,
    ),
    12: RecordType("SHARE_GROUP_TARGET_ASSIGNMENT_METADATA", _ASSIGNMENT_METADATA, _GROUP_KEY),
    13: RecordType("SHARE_GROUP_TARGET_ASSIGNMENT_MEMBER", _TARGET_ASSIGNMENT, _MEMBER_KEY),
    14: RecordType(
        "SHARE_GROUP_CURRENT_MEMBER_ASSIGNMENT",
        Message(
            fields=Struct(
                Field("member_epoch", INT32),
                Field("previous_member_epoch", INT32),
                Field("state", INT8),
                Field("assigned_partitions", ArrayOf(_TOPIC_PARTITIONS)),
            )
        ),
        _MEMBER_KEY,
    ),
    15: RecordType(
        "SHARE_GROUP_STATE_PARTITION_METADATA",
        Message(
            fields=Struct(
                Field("initializing_topics", ArrayOf(_SHARED_TOPIC)),
                Field("initialized_topics", ArrayOf(_SHARED_TOPIC)),
                Field(
                    "deleting_topics",
                    ArrayOf(Struct(Field("topic_id", UUID), Field("topic_name", STRING))),
                ),
            )
        ),
        _GROUP_KEY,
    ),
    16: RecordType(
        "CONSUMER_GROUP_REGULAR_EXPRESSION",
        Message(
            fields=Struct(
                Field("topics", ArrayOf(STRING)), Field("version", INT64), Field("timestamp", INT64)
            )
        ),
        Message(
            fields=Struct(Field("group_id", STRING), Field("regular_expression", STRING)),
            flexible_since=None,
        ),
    ),
    STREAMS_GROUP_METADATA: RecordType(
        "STREAMS_GROUP_METADATA",
        Message(
            fields=Struct(
                Field("epoch", INT32),
                Field("metadata_hash", INT64),
                Field("validated_topology_epoch", INT32, tag=0, default=-1),
                Field(
                    "last_assignment_configs",
                    ArrayOf(_CONFIG),
                    is_nullable=True,
                    tag=1,
                    default=(),
                ),
                Field("stored_description_topology_epoch", INT32, tag=2, default=-1),
                Field("failed_description_topology_epoch", INT32, tag=3, default=-1),
            )
        ),
        _GROUP_KEY,
    ),
    STREAMS_GROUP_MEMBER_METADATA: RecordType(
        "STREAMS_GROUP_MEMBER_METADATA",
        Message(
            fields=Struct(
                Field("instance_id", STRING, is_nullable=True),
                Field("rack_id", STRING, is_nullable=True),
                Field("client_id", STRING),
                Field("client_host", STRING),
                Field("rebalance_timeout_ms", INT32),
                Field("topology_epoch", INT32),
                Field("process_id", STRING),
                Field(
                    "user_endpoint",
                    Struct(Field("host", STRING), Field("port", UINT16)),
                    is_nullable=True,
                ),
                Field("client_tags", ArrayOf(_CONFIG)),
            )
        ),
        _MEMBER_KEY,
    ),
    20: RecordType("STREAMS_GROUP_TARGET_ASSIGNMENT_METADATA", _ASSIGNMENT_METADATA, _GROUP_KEY),
    21: RecordType(
        "STREAMS_GROUP_TARGET_ASSIGNMENT_MEMBER",
        Message(
            fields=Struct(
                Field("active_tasks", ArrayOf(_TASKS)),
                Field("standby_tasks", ArrayOf(_TASKS)),
                Field("warmup_tasks", ArrayOf(_TASKS)),
            )
        ),
        _MEMBER_KEY,
    ),
    22: RecordType(
        "STREAMS_GROUP_CURRENT_MEMBER_ASSIGNMENT",
        Message(
            fields=Struct(
                Field("member_epoch", INT32),
                Field("previous_member_epoch", INT32),
                Field("state", INT8),
                Field("active_tasks", ArrayOf(_ASSIGNED_TASKS)),
                Field("standby_tasks", ArrayOf(_ASSIGNED_TASKS)),
                Field("warmup_tasks", ArrayOf(_ASSIGNED_TASKS)),
                Field("active_tasks_pending_revocation", ArrayOf(_ASSIGNED_TASKS)),
                Field("standby_tasks_pending_revocation", ArrayOf(_ASSIGNED_TASKS)),
                Field("warmup_tasks_pending_revocation", ArrayOf(_ASSIGNED_TASKS)),
            )
        ),
        _MEMBER_KEY,
    ),
    23: RecordType(
        "STREAMS_GROUP_TOPOLOGY",
        Message(
            fields=Struct(Field("epoch", INT32), Field("subtopologies", ArrayOf(_SUBTOPOLOGY)))
        ),
        _GROUP_KEY,
    ),
}

# Data of a classic consumer group's member: its subscription and assignment. Both begin with an
# int16 version, and a version above the newest is read as that one: it only adds fields.
_OWNED_PARTITIONS: Final = Struct(Field("topic", STRING), Field("partitions", ArrayOf(INT32)))
CONSUMER_SUBSCRIPTION: Final = Message(
    newest=3,
    flexible_since=None,
    fields=Struct(
        Field("topics", ArrayOf(STRING)),
        Field("user_data", BYTES, is_nullable=True),
        Field("owned_partitions", ArrayOf(_OWNED_PARTITIONS), since=1),
        Field("generation_id", INT32, since=2),
        Field("rack_id", STRING, since=3, is_nullable=True),
    ),
)
CONSUMER_ASSIGNMENT: Final = Message(
    newest=3,
    flexible_since=None,
    fields=Struct(
        Field("assigned_partitions", ArrayOf(_OWNED_PARTITIONS)),
        Field("user_data", BYTES, is_nullable=True),
    ),
)
