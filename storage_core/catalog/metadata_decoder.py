"""The bytes of metadata records.

::

    record = frame_version api_key version (unsigned varints) fields

The frame version is 1. Every version that Kafka 4.4 reads is read here: TopicRecord,
RemoveTopicRecord, ConfigRecord, FeatureLevelRecord, UnregisterBrokerRecord, FenceBrokerRecord,
UnfenceBrokerRecord, ClearElrRecord and the three of transactions have version 0; PartitionRecord
and PartitionChangeRecord 0 to 2, BrokerRegistrationChangeRecord 0 to 3, RegisterBrokerRecord
0 to 4. Types that concern no log (quotas, credentials, access rights and so on) are not decoded.
Source: ``org.apache.kafka.common.metadata`` and ``AbstractApiMessageSerde``.
"""

import enum
from collections.abc import Callable
from typing import Final, TypeVar

from storage_core.catalog.metadata_fields import FieldReader
from storage_core.catalog.metadata_records import (
    NO_LEADER_CHANGE,
    BrokerRegistrationChangeRecord,
    ClearElrRecord,
    ConfigRecord,
    FeatureLevelRecord,
    Fencing,
    MetadataRecord,
    PartitionChangeRecord,
    PartitionRecord,
    RegisterBrokerRecord,
    RemoveTopicRecord,
    SkippedRecord,
    TopicRecord,
    TransactionMark,
    TransactionRecord,
    UnregisterBrokerRecord,
)

_T = TypeVar("_T")
_FRAME_VERSION: Final = 1


class _PartitionTag(enum.IntEnum):
    ELIGIBLE_LEADER_REPLICAS = 1
    LAST_KNOWN_ELIGIBLE_LEADER_REPLICAS = 2


class _PartitionChangeTag(enum.IntEnum):
    ISR = 0
    LEADER = 1
    REPLICAS = 2
    REMOVING_REPLICAS = 3
    ADDING_REPLICAS = 4
    ELIGIBLE_LEADER_REPLICAS = 6
    LAST_KNOWN_ELIGIBLE_LEADER_REPLICAS = 7
    DIRECTORIES = 8


class _BrokerTag(enum.IntEnum):
    LOG_DIRECTORIES = 0
    CORDONED_LOG_DIRECTORIES = 1


class _BrokerChangeTag(enum.IntEnum):
    FENCING = 0
    LOG_DIRECTORIES = 2
    CORDONED_LOG_DIRECTORIES = 3


def decode_metadata_record(value: bytes, *, file: str, offset: int) -> MetadataRecord:
    """Decode the value of one record of the metadata log.

    Args:
        value: The bytes.
        file: Name of the file, for errors.
        offset: Offset of the record, for errors.

    Raises:
        CorruptClusterMetadataError: The frame or a field is malformed, or the version of a type
            that matters is newer than this reader knows.
    """
    reader = FieldReader(value, file=file, offset=offset)
    frame_version = reader.unsigned_varint()
    if frame_version != _FRAME_VERSION:
        raise reader.error(f"expected frame version {_FRAME_VERSION}, found {frame_version}")
    api_key, version = reader.unsigned_varint(), reader.unsigned_varint()
    known = _DECODERS.get(api_key)
    if known is None:
        return SkippedRecord(api_key=api_key, is_known=api_key in _OTHER_KNOWN_TYPES)
    highest_version, decode = known
    if version > highest_version:
        raise reader.error(
            f"type {api_key} has version {version}; this reader knows versions up to "
            f"{highest_version}"
        )
    record = decode(reader, version)
    reader.require_end()
    return record


# Each takes the reader behind the frame, and the version; most types have only one.


def _topic(reader: FieldReader, version: int) -> TopicRecord:  # noqa: ARG001
    record = TopicRecord(name=reader.string(), topic_id=reader.uuid())
    reader.tagged_fields()
    return record


def _remove_topic(reader: FieldReader, version: int) -> RemoveTopicRecord:  # noqa: ARG001
    record = RemoveTopicRecord(topic_id=reader.uuid())
    reader.tagged_fields()
    return record


def _partition(reader: FieldReader, version: int) -> PartitionRecord:
    partition, topic_id = reader.int32(), reader.uuid()
    replicas, isr = reader.int32_array(), reader.int32_array()
    removing, adding = reader.int32_array(), reader.int32_array()
    leader, leader_epoch, partition_epoch = reader.int32(), reader.int32(), reader.int32()
    directories = reader.array(reader.uuid) if version >= 1 else ()
    tags = reader.tagged_fields()
    return PartitionRecord(
        topic_id=topic_id,
        partition=partition,
        replicas=replicas,
        isr=isr,
        removing_replicas=removing,
        adding_replicas=adding,
        leader=leader,
        leader_epoch=leader_epoch,
        partition_epoch=partition_epoch,
        directories=directories,
        eligible_leader_replicas=_numbers(tags, _PartitionTag.ELIGIBLE_LEADER_REPLICAS) or (),
        last_known_eligible_leader_replicas=_numbers(
            tags, _PartitionTag.LAST_KNOWN_ELIGIBLE_LEADER_REPLICAS
        )
        or (),
    )


def _partition_change(reader: FieldReader, version: int) -> PartitionChangeRecord:  # noqa: ARG001
    partition, topic_id = reader.int32(), reader.uuid()
    tags = reader.tagged_fields()
    tag = _PartitionChangeTag
    leader = tags.get(tag.LEADER)
    return PartitionChangeRecord(
        topic_id=topic_id,
        partition=partition,
        isr=_numbers(tags, tag.ISR),
        leader=NO_LEADER_CHANGE if leader is None else _whole(leader, leader.int32),
        replicas=_numbers(tags, tag.REPLICAS),
        removing_replicas=_numbers(tags, tag.REMOVING_REPLICAS),
        adding_replicas=_numbers(tags, tag.ADDING_REPLICAS),
        eligible_leader_replicas=_numbers(tags, tag.ELIGIBLE_LEADER_REPLICAS),
        last_known_eligible_leader_replicas=_numbers(tags, tag.LAST_KNOWN_ELIGIBLE_LEADER_REPLICAS),
        directories=_ids(tags, tag.DIRECTORIES),
    )


def _clear_elr(reader: FieldReader, version: int) -> ClearElrRecord:  # noqa: ARG001
    record = ClearElrRecord(topic=reader.string())
    reader.tagged_fields()
    return record


def _config(reader: FieldReader, version: int) -> ConfigRecord:  # noqa: ARG001
    record = ConfigRecord(
        resource_type=reader.int8(),
        resource_name=reader.string(),
        key=reader.string(),
        value=reader.nullable_string(),
    )
    reader.tagged_fields()
    return record


def _feature_level(reader: FieldReader, version: int) -> FeatureLevelRecord:  # noqa: ARG001
    record = FeatureLevelRecord(name=reader.string(), level=reader.int16())
    reader.tagged_fields()
    return record


def _register_broker(reader: FieldReader, version: int) -> RegisterBrokerRecord:
    broker_id = reader.int32()
    if version >= 2:  # noqa: PLR2004 - from version 2 on: whether it is a migrating broker
        reader.boolean()
    reader.uuid()  # of the broker's process
    broker_epoch = reader.int64()

    def skip_endpoint() -> None:
        reader.string(), reader.string(), reader.int16(), reader.int16()
        reader.tagged_fields()

    def skip_feature() -> None:
        reader.string(), reader.int16(), reader.int16()
        reader.tagged_fields()

    reader.array(skip_endpoint)
    reader.array(skip_feature)
    reader.nullable_string()  # the rack
    fenced = reader.boolean()
    if version >= 1:  # whether it is shutting down
        reader.boolean()
    tags = reader.tagged_fields()
    return RegisterBrokerRecord(
        broker_id=broker_id,
        broker_epoch=broker_epoch,
        fenced=fenced,
        log_directories=_ids(tags, _BrokerTag.LOG_DIRECTORIES) or (),
        cordoned_log_directories=_ids(tags, _BrokerTag.CORDONED_LOG_DIRECTORIES),
    )


def _broker_change(reader: FieldReader, version: int) -> BrokerRegistrationChangeRecord:  # noqa: ARG001
    broker_id, broker_epoch = reader.int32(), reader.int64()
    tags = reader.tagged_fields()
    fencing = tags.get(_BrokerChangeTag.FENCING)
    return BrokerRegistrationChangeRecord(
        broker_id=broker_id,
        broker_epoch=broker_epoch,
        fencing=Fencing.NONE if fencing is None else _whole(fencing, fencing.int8),
        log_directories=_ids(tags, _BrokerChangeTag.LOG_DIRECTORIES) or (),
        cordoned_log_directories=_ids(tags, _BrokerChangeTag.CORDONED_LOG_DIRECTORIES),
    )


def _unregister_broker(reader: FieldReader, version: int) -> UnregisterBrokerRecord:  # noqa: ARG001
    broker_id, _ = reader.int32(), reader.int64()
    reader.tagged_fields()
    return UnregisterBrokerRecord(broker_id=broker_id)


def _fence(fencing: Fencing) -> Callable[[FieldReader, int], BrokerRegistrationChangeRecord]:
    def decode(reader: FieldReader, version: int) -> BrokerRegistrationChangeRecord:  # noqa: ARG001
        broker_id, epoch = reader.int32(), reader.int64()
        reader.tagged_fields()
        return BrokerRegistrationChangeRecord(
            broker_id=broker_id, broker_epoch=epoch, fencing=fencing
        )

    return decode


def _transaction(mark: TransactionMark) -> Callable[[FieldReader, int], TransactionRecord]:
    def decode(reader: FieldReader, version: int) -> TransactionRecord:  # noqa: ARG001
        reader.tagged_fields()
        return TransactionRecord(mark=mark)

    return decode


def _numbers(tags: dict[int, FieldReader], tag: int) -> tuple[int, ...] | None:
    field = tags.get(tag)
    return None if field is None else _whole(field, field.nullable_int32_array)


def _ids(tags: dict[int, FieldReader], tag: int) -> tuple[str, ...] | None:
    field = tags.get(tag)
    return None if field is None else _whole(field, lambda: field.nullable_array(field.uuid))


def _whole(field: FieldReader, read: Callable[[], _T]) -> _T:
    """Read a tagged field and check that it has no more bytes than that."""
    value = read()
    field.require_end()
    return value


# By type: the newest version that Kafka 4.4 reads, and how. MetadataRecordType has the numbers.
_DECODERS: Final[dict[int, tuple[int, Callable[[FieldReader, int], MetadataRecord]]]] = {
    0: (4, _register_broker),
    1: (0, _unregister_broker),
    2: (0, _topic),
    3: (2, _partition),
    4: (0, _config),
    5: (2, _partition_change),
    7: (0, _fence(Fencing.FENCE)),
    8: (0, _fence(Fencing.UNFENCE)),
    9: (0, _remove_topic),
    12: (0, _feature_level),
    17: (3, _broker_change),
    23: (0, _transaction(TransactionMark.BEGIN)),
    24: (0, _transaction(TransactionMark.END)),
    25: (0, _transaction(TransactionMark.ABORT)),
    28: (0, _clear_elr),
}
# Delegation tokens, credentials, quotas, producer ids, access rights, no-ops, controllers.
_OTHER_KNOWN_TYPES: Final = frozenset({10, 11, 14, 15, 18, 19, 20, 21, 22, 26, 27, 29})
