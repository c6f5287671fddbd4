"""Decode and encode the metadata log's records about logs.

The messages themselves, field by field, are declared in ``messages.metadata_records``; here stands
which of them concern logs, and which of their fields. Every version that Kafka 4.4 reads is read.
Types that concern no log (quotas, credentials, access rights and so on) are not decoded.
"""

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, Final, NamedTuple

from storage_core.catalog.metadata_image import (
    BrokerRegistrationChangeRecord,
    ClearElrRecord,
    ConfigRecord,
    FeatureLevelRecord,
    Fencing,
    MetadataRecord,
    PartitionChangeRecord,
    PartitionRecord,
    ProducerIdsRecord,
    RegisterBrokerRecord,
    RemoveTopicRecord,
    SkippedRecord,
    TopicRecord,
    TransactionMark,
    TransactionRecord,
    UnregisterBrokerRecord,
)
from storage_core.errors import CorruptClusterMetadataError, MalformedMessageError
from storage_core.messages.field_reader import FieldReader
from storage_core.messages.internal_records import encode_metadata_record, read_metadata_frame
from storage_core.messages.metadata_records import METADATA_RECORDS


class _Meaning(NamedTuple):
    """What one type of record says of logs."""

    record: Callable[..., MetadataRecord]
    # Attribute of the record and Kafka's name of the field; where the field is null or of a later
    # version, the attribute has its default.
    fields: tuple[tuple[str, str], ...] = ()
    preset: Mapping[str, Any] = MappingProxyType({})  # attributes that stand in no field


def decode_metadata_record(value: bytes, *, file: str, offset: int) -> MetadataRecord:
    """Decode the value of one record of the metadata log."""
    try:
        return _decode(FieldReader(value))
    except MalformedMessageError as error:
        raise CorruptClusterMetadataError(file, offset, str(error)) from error


def encode_record(record: MetadataRecord, version: int) -> bytes:
    """Return the value of a record of the metadata log. Fields that concern no log are empty.

    Args:
        record: A record whose type alone says what it means.
    """
    api_key, meaning = _MEANINGS_BY_RECORD[type(record)]
    values = METADATA_RECORDS[api_key].value.blank()
    for ours, name in meaning.fields:
        value = getattr(record, ours)
        # No element where null is the default says as much as null.
        values[name] = values[name] if value == () else value
    return encode_metadata_record(api_key, version, values)


def _decode(reader: FieldReader) -> MetadataRecord:
    api_key, version = read_metadata_frame(reader)
    meaning = _MEANINGS.get(api_key)
    if meaning is None:
        return SkippedRecord(api_key=api_key, is_known=api_key in METADATA_RECORDS)
    message = METADATA_RECORDS[api_key].value
    if version > message.newest:
        raise reader.error(
            f"type {api_key} has version {version}; this reader knows versions up to "
            f"{message.newest}"
        )
    values = message.read(reader, version)
    reader.require_end()
    fields = {
        ours: value for ours, name in meaning.fields if (value := values.get(name)) is not None
    }
    return meaning.record(**fields, **meaning.preset)


def _same(*names: str) -> tuple[tuple[str, str], ...]:
    return tuple((name, name) for name in names)


_PARTITION: Final = (("partition", "partition_id"), ("topic_id", "topic_id"))
_REPLICAS: Final = (
    *_same("replicas", "isr", "removing_replicas", "adding_replicas", "leader", "directories"),
    *_same("eligible_leader_replicas"),
    ("last_known_eligible_leader_replicas", "last_known_elr"),
)
_DIRECTORIES: Final = (
    ("log_directories", "log_dirs"),
    ("cordoned_log_directories", "cordoned_log_dirs"),
)
_BROKER: Final = (("broker_id", "id"), ("broker_epoch", "epoch"))

# By type; MetadataRecordType has the numbers.
_MEANINGS: Final[Mapping[int, _Meaning]] = {
    0: _Meaning(
        RegisterBrokerRecord,
        (
            *_same("broker_id", "broker_epoch", "fenced", "in_controlled_shutdown"),
            *_DIRECTORIES,
        ),
    ),
    1: _Meaning(UnregisterBrokerRecord, _same("broker_id")),
    2: _Meaning(TopicRecord, _same("name", "topic_id")),
    3: _Meaning(
        PartitionRecord, (*_PARTITION, *_REPLICAS, *_same("leader_epoch", "partition_epoch"))
    ),
    4: _Meaning(ConfigRecord, (*_same("resource_type", "resource_name", "value"), ("key", "name"))),
    5: _Meaning(PartitionChangeRecord, (*_PARTITION, *_REPLICAS)),
    7: _Meaning(BrokerRegistrationChangeRecord, _BROKER, {"fencing": Fencing.FENCE}),
    8: _Meaning(BrokerRegistrationChangeRecord, _BROKER, {"fencing": Fencing.UNFENCE}),
    9: _Meaning(RemoveTopicRecord, _same("topic_id")),
    12: _Meaning(FeatureLevelRecord, (("name", "name"), ("level", "feature_level"))),
    15: _Meaning(ProducerIdsRecord, _same("next_producer_id")),
    17: _Meaning(
        BrokerRegistrationChangeRecord,
        (
            *_same("broker_id", "broker_epoch", "in_controlled_shutdown"),
            ("fencing", "fenced"),
            *_DIRECTORIES,
        ),
    ),
    23: _Meaning(TransactionRecord, preset={"mark": TransactionMark.BEGIN}),
    24: _Meaning(TransactionRecord, preset={"mark": TransactionMark.END}),
    25: _Meaning(TransactionRecord, preset={"mark": TransactionMark.ABORT}),
    28: _Meaning(ClearElrRecord, (("topic", "topic_name"),)),
}
_MEANINGS_BY_RECORD: Final = {
    meaning.record: (api_key, meaning)
    for api_key, meaning in _MEANINGS.items()
    if not meaning.preset
}
