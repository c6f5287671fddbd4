"""Decode and encode records of internal topics: type, key, value.

::

    coordinators      key: int16 type, fields     value: int16 version, fields, or null (tombstone)
    cluster metadata, no key                      value: frame_version type version (unsigned
    remote log                                    varints), fields; the frame version is 1
    its control       key: int16 version, type    value: fields, an int16 version the first

A record that cannot be decoded stands for itself, with the reason, and hides no other one: a type
or version that Kafka 4.4 does not have, or bytes that are none of their declaration. Sources:
``CoordinatorRecordSerde``, ``AbstractApiMessageSerde``, ``ConsumerProtocol``.
"""

import enum
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final

from storage_core.errors import MalformedMessageError
from storage_core.filenames import (
    CLUSTER_METADATA_TOPIC,
    CONSUMER_OFFSETS_TOPIC,
    REMOTE_LOG_TOPIC,
    SHARE_STATE_TOPIC,
    TRANSACTION_STATE_TOPIC,
)
from storage_core.formats.control import ControlType
from storage_core.messages.fields import FieldReader, FieldWriter
from storage_core.messages.group_records import (
    CONSUMER_ASSIGNMENT,
    CONSUMER_SUBSCRIPTION,
    GROUP_RECORDS,
)
from storage_core.messages.metadata_records import METADATA_RECORDS
from storage_core.messages.remote_log_records import REMOTE_LOG_RECORDS
from storage_core.messages.schema import (
    INT8,
    INT16,
    INT32,
    INT64,
    STRING,
    UINT16,
    UUID,
    ArrayOf,
    Field,
    Fields,
    Message,
    RecordType,
    Struct,
)

# The control records of ``__cluster_metadata`` and its snapshots, as in Kafka 4.4.
#
# Kafka's quorum writes them: who leads it, what a snapshot begins and ends with, who may vote.
# Their key is that of every control record; the value is the message, whose first field is its
# version. Sources: ``ControlRecordUtils``, ``org.apache.kafka.common.message``.

_VERSION: Final = Field("version", INT16)
_VOTER: Final = Struct(Field("voter_id", INT32), Field("voter_directory_id", UUID, since=1))
_ENDPOINT: Final = Struct(Field("name", STRING), Field("host", STRING), Field("port", UINT16))
_RANGE: Final = Struct(Field("min_supported_version", INT16), Field("max_supported_version", INT16))

# By type of control record.
CONTROL_RECORDS: Final[Mapping[int, RecordType]] = {
    ControlType.LEADER_CHANGE: RecordType(
        "LEADER_CHANGE",
        Message(
            fields=Struct(
                _VERSION,
                Field("leader_id", INT32),
                Field("voters", ArrayOf(_VOTER)),
                Field("granting_voters", ArrayOf(_VOTER)),
            ),
            newest=1,
        ),
    ),
    ControlType.SNAPSHOT_HEADER: RecordType(
        "SNAPSHOT_HEADER",
        Message(fields=Struct(_VERSION, Field("last_contained_log_timestamp", INT64))),
    ),
    ControlType.SNAPSHOT_FOOTER: RecordType("SNAPSHOT_FOOTER", Message(fields=Struct(_VERSION))),
    ControlType.KRAFT_VERSION: RecordType(
        "KRAFT_VERSION", Message(fields=Struct(_VERSION, Field("kraft_version", INT16)))
    ),
    ControlType.KRAFT_VOTERS: RecordType(
        "KRAFT_VOTERS",
        Message(
            fields=Struct(
                _VERSION,
                Field(
                    "voters",
                    ArrayOf(
                        Struct(
                            Field("voter_id", INT32),
                            Field("voter_directory_id", UUID),
                            Field("endpoints", ArrayOf(_ENDPOINT)),
                            Field("kraft_version_feature", _RANGE),
                        )
                    ),
                ),
            )
        ),
    ),
}


# The records of ``__transaction_state`` and ``__share_group_state``, as Kafka 4.4 reads them.
#
# The version of a record's key is the record's type. Sources:
# ``org.apache.kafka.coordinator.transaction.generated``,
# ``org.apache.kafka.coordinator.share.generated`` (``CoordinatorRecordType`` has the numbers).

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


INTERNAL_RECORDS: Final[Mapping[str, Mapping[int, RecordType]]] = MappingProxyType(
    {
        CONSUMER_OFFSETS_TOPIC: GROUP_RECORDS,
        TRANSACTION_STATE_TOPIC: TRANSACTION_RECORDS,
        SHARE_STATE_TOPIC: SHARE_STATE_RECORDS,
        CLUSTER_METADATA_TOPIC: METADATA_RECORDS,
        REMOTE_LOG_TOPIC: REMOTE_LOG_RECORDS,
    }
)
_FRAME_VERSION: Final = 1


class Problem(enum.StrEnum):
    """Why a record is not decoded."""

    UNKNOWN_TYPE = "unknown-type"
    UNKNOWN_VERSION = "unknown-version"
    MALFORMED = "malformed"


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodedRecord:
    """What the bytes of one record mean."""

    type_id: int | None = None  # number of its type, None where the bytes do not get that far
    type: str | None = None  # Kafka's name of the type, None for an unknown one
    version: int | None = None  # version of its value, None for a tombstone
    key: Fields | None = None  # fields of the key, None where there is none or it is not decoded
    # Fields of the value, None for a tombstone or where it is not decoded.
    value: Fields | None = None
    is_tombstone: bool = False  # whether it has no value: what its key names is gone
    problem: Problem | None = None  # why it is not decoded, None where it is
    reason: str = ""  # the same in words, with the byte in key or value; empty where it is decoded


def decode_internal_record(topic: str, key: bytes | None, value: bytes | None) -> DecodedRecord:
    """Decode a record of an internal topic. As in Kafka, bytes behind its fields are ignored.

    Args:
        key: The key's bytes, None for none.
        value: The value's bytes, None for none.
    """
    types = INTERNAL_RECORDS[topic]
    if topic == CLUSTER_METADATA_TOPIC and key is not None:
        return _decode_control(key, value)
    if topic in {CLUSTER_METADATA_TOPIC, REMOTE_LOG_TOPIC}:
        return _decode_metadata(types, value)
    return _decode_coordinator_record(types, key, value)


def decode_subscription(data: bytes) -> Fields:
    """Return what a member of a classic group of consumers subscribes to.

    Args:
        data: The ``subscription`` of a member of a GROUP_METADATA value.
    """
    return _decode_of_consumer(CONSUMER_SUBSCRIPTION, data)


def decode_assignment(data: bytes) -> Fields:
    """Return which partitions a member of a classic group of consumers has.

    Args:
        data: The ``assignment`` of a member of a GROUP_METADATA value.
    """
    return _decode_of_consumer(CONSUMER_ASSIGNMENT, data)


def read_metadata_frame(reader: FieldReader) -> tuple[int, int]:
    """Return type and version of a record of the cluster's or the remote log's metadata."""
    frame_version = reader.unsigned_varint()
    if frame_version != _FRAME_VERSION:
        raise reader.error(f"expected frame version {_FRAME_VERSION}, found {frame_version}")
    return reader.unsigned_varint(), reader.unsigned_varint()


def encode_metadata_record(
    type_id: int, version: int, fields: Mapping[str, Any], *, topic: str = CLUSTER_METADATA_TOPIC
) -> bytes:
    """Return the value of a record of the cluster's metadata, or of ``__remote_log_metadata``.

    Args:
        fields: As ``Message.write`` takes them.
    """
    writer = FieldWriter()
    for number in (_FRAME_VERSION, type_id, version):
        writer.unsigned_varint(number)
    INTERNAL_RECORDS[topic][type_id].value.write(writer, version, fields)
    return writer.data


def encode_control_record(type_id: int, fields: Mapping[str, Any]) -> tuple[bytes, bytes]:
    """Return key and value of a control record, of version 0.

    Args:
        fields: As ``Message.write`` takes them, but the version.
    """
    key, value = FieldWriter(), FieldWriter()
    for number in (0, type_id):
        key.int16(number)
    CONTROL_RECORDS[type_id].value.write(value, 0, {"version": 0, **fields})
    return key.data, value.data


def _decode_of_consumer(message: Message, data: bytes) -> Fields:
    reader = FieldReader(data)
    version = reader.int16()
    if version < 0:
        raise reader.error(f"expected a version of at least 0, found {version}")
    return message.read(reader, min(version, message.newest))


def _decode_coordinator_record(
    types: Mapping[int, RecordType], key: bytes | None, value: bytes | None
) -> DecodedRecord:
    if key is None:
        return DecodedRecord(problem=Problem.MALFORMED, reason="expected a key, found null")
    type_id: int | None = None
    try:
        reader = FieldReader(key)
        type_id = reader.int16()
        record_type = types.get(type_id)
        if record_type is None or record_type.key is None:
            return _of_unknown_type(type_id)
        key_fields = record_type.key.read(reader, 0)
    except MalformedMessageError as error:
        name = None if type_id is None else types[type_id].name
        return DecodedRecord(
            type_id=type_id, type=name, problem=Problem.MALFORMED, reason=f"key: {error}"
        )
    if value is None:
        return DecodedRecord(
            type_id=type_id, type=record_type.name, key=key_fields, is_tombstone=True
        )
    version: int | None = None
    try:
        reader = FieldReader(value)
        version = reader.int16()
        return _decode_value(type_id, record_type, version, key_fields, reader)
    except MalformedMessageError as error:
        return _malformed(type_id, record_type, version, key_fields, error)


def _decode_metadata(types: Mapping[int, RecordType], value: bytes | None) -> DecodedRecord:
    if value is None:
        return DecodedRecord(problem=Problem.MALFORMED, reason="expected a value, found null")
    try:
        reader = FieldReader(value)
        type_id, version = read_metadata_frame(reader)
    except MalformedMessageError as error:
        return DecodedRecord(problem=Problem.MALFORMED, reason=f"value: {error}")
    record_type = types.get(type_id)
    if record_type is None:
        return _of_unknown_type(type_id)
    try:
        return _decode_value(type_id, record_type, version, None, reader)
    except MalformedMessageError as error:
        return _malformed(type_id, record_type, version, None, error)


def _decode_control(key: bytes, value: bytes | None) -> DecodedRecord:
    """Decode a control record of the cluster's metadata. Only control records have a key there."""
    try:
        reader = FieldReader(key)
        reader.int16()
        type_id = reader.int16()
    except MalformedMessageError as error:
        return DecodedRecord(problem=Problem.MALFORMED, reason=f"key: {error}")
    record_type = CONTROL_RECORDS.get(type_id)
    if record_type is None:
        return _of_unknown_type(type_id)
    version: int | None = None
    try:
        # The version is a field of the message, too.
        version = FieldReader(value or b"").int16()
        return _decode_value(type_id, record_type, version, None, FieldReader(value or b""))
    except MalformedMessageError as error:
        return _malformed(type_id, record_type, version, None, error)


def _decode_value(
    type_id: int, record_type: RecordType, version: int, key: Fields | None, reader: FieldReader
) -> DecodedRecord:
    message = record_type.value
    is_readable = 0 <= version <= message.newest
    return DecodedRecord(
        type_id=type_id,
        type=record_type.name,
        version=version,
        key=key,
        value=message.read(reader, version) if is_readable else None,
        problem=None if is_readable else Problem.UNKNOWN_VERSION,
        reason=(
            "" if is_readable else f"expected a version from 0 to {message.newest}, found {version}"
        ),
    )


def _malformed(
    type_id: int,
    record_type: RecordType,
    version: int | None,
    key: Fields | None,
    error: MalformedMessageError,
) -> DecodedRecord:
    return DecodedRecord(
        type_id=type_id,
        type=record_type.name,
        version=version,
        key=key,
        problem=Problem.MALFORMED,
        reason=f"value: {error}",
    )


def _of_unknown_type(type_id: int) -> DecodedRecord:
    return DecodedRecord(
        type_id=type_id,
        problem=Problem.UNKNOWN_TYPE,
        reason=f"type {type_id} is none that Kafka 4.4 has",
    )
