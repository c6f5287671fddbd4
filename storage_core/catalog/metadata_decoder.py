"""The bytes of metadata records, as tables of their fields, and how the fields are read.

::

    record            frame_version api_key version (unsigned varints) fields tagged fields
    unsigned varint   7 bits a byte, least significant first, at most 5 bytes
    compact string    unsigned varint length + 1 (0: null), then UTF-8
    compact array     unsigned varint count + 1 (0: null), then the elements
    id                16 bytes
    tagged fields     unsigned varint count, then per field: tag, size (unsigned varints), bytes

Integers are big-endian two's complement. The frame version is 1. Every version that Kafka 4.4 reads
is read here. Types that concern no log (quotas, credentials, access rights and so on) are not
decoded. Source: ``org.apache.kafka.common.metadata`` (the generated ``read`` methods),
``AbstractApiMessageSerde``, Kafka's protocol guide, KIP-482.
"""

import functools
import struct
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, Final, NamedTuple, TypeVar

from storage_core.catalog.metadata_image import (
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
from storage_core.checkpoint.kafka_uuid import UUID_BYTES, encode_uuid
from storage_core.errors import CorruptClusterMetadataError

_MAX_VARINT_BYTES: Final = 5
_INT_MAX: Final = 2**31 - 1
# Kafka's own limits of a string, an array and a set of tagged fields.
_MAX_STRING_BYTES: Final = 32_767
_MAX_ARRAY_LENGTH: Final = 1_000_000
_MAX_TAGGED_FIELDS: Final = 10_000
_PAYLOAD: Final = 0x7F
_CONTINUES: Final = 0x80
_PAYLOAD_BITS: Final = 7

_INT32_BYTES: Final = 4

_T = TypeVar("_T")
# A cluster has few directories and many partitions, each of which names some of them.
_uuid_text = functools.lru_cache(maxsize=1 << 16)(encode_uuid)
_FRAME_VERSION: Final = 1
_SKIPPED: Final = ""
# Delegation tokens, credentials, quotas, producer ids, access rights, no-ops, controllers.
_OTHER_KNOWN_TYPES: Final = frozenset({10, 11, 14, 15, 18, 19, 20, 21, 22, 26, 27, 29})


class FieldReader:
    """A cursor over one record's bytes; every read that goes past their end raises.

    Args:
        data: The bytes.
        file: Name of the file they come from, for errors.
        offset: Offset of the record, for errors.
    """

    def __init__(self, data: bytes, *, file: str, offset: int) -> None:
        self._data = data
        self._at, self._end = 0, len(data)
        self._file, self._offset = file, offset

    @property
    def remaining(self) -> int:
        """How many bytes are left."""
        return self._end - self._at

    def error(self, reason: str) -> CorruptClusterMetadataError:
        """Return the error for something that is wrong with this record."""
        return CorruptClusterMetadataError(self._file, self._offset, reason)

    def require_end(self) -> None:
        """Check that nothing is left."""
        if self.remaining:
            raise self.error(f"expected the end of the record, found {self.remaining} more bytes")

    def take(self, size: int) -> bytes:
        """Read so many bytes."""
        start = self._at
        end = start + size
        if end > self._end:
            raise self.error(f"expected {size} bytes, found {self.remaining}")
        self._at = end
        return self._data[start:end]

    def int8(self) -> int:
        """Read one byte as a signed number."""
        return int.from_bytes(self.take(1), "big", signed=True)

    def int16(self) -> int:
        """Read two bytes as a signed number."""
        return int.from_bytes(self.take(2), "big", signed=True)

    def int32(self) -> int:
        """Read four bytes as a signed number."""
        return int.from_bytes(self.take(4), "big", signed=True)

    def int64(self) -> int:
        """Read eight bytes as a signed number."""
        return int.from_bytes(self.take(8), "big", signed=True)

    def boolean(self) -> bool:
        """Read one byte; anything but zero is true."""
        return self.int8() != 0

    def uuid(self) -> str:
        """Read an id, as its text."""
        return _uuid_text(self.take(UUID_BYTES))

    def unsigned_varint(self) -> int:
        """Read a number of at most 31 bits."""
        # Nearly every number is small: most lengths, all types and versions.
        at = self._at
        if at < self._end and (small := self._data[at]) < _CONTINUES:
            self._at = at + 1
            return small
        value = 0
        for index in range(_MAX_VARINT_BYTES):
            byte = self.take(1)[0]
            value |= (byte & _PAYLOAD) << (_PAYLOAD_BITS * index)
            if not byte & _CONTINUES:
                break
        else:
            raise self.error(f"a number has more than {_MAX_VARINT_BYTES} bytes")
        if value > _INT_MAX:
            raise self.error(f"expected a number of 31 bits, found {value}")
        return value

    def nullable_string(self) -> str | None:
        """Read a text or null; bytes that are no UTF-8 become replacement characters."""
        length = self.unsigned_varint() - 1
        if length < 0:
            return None
        if length > _MAX_STRING_BYTES:
            raise self.error(f"a text has {length} bytes; at most {_MAX_STRING_BYTES} are allowed")
        return self.take(length).decode("utf-8", "replace")

    def string(self) -> str:
        """Read a text that is not null."""
        text = self.nullable_string()
        if text is None:
            raise self.error("expected a text, found null")
        return text

    def nullable_array(self, read_element: Callable[[], _T]) -> tuple[_T, ...] | None:
        """Read elements or null; the count is checked against the bytes that are left."""
        count = self._array_length()
        return None if count < 0 else tuple(read_element() for _ in range(count))

    def array(self, read_element: Callable[[], _T]) -> tuple[_T, ...]:
        """Read elements, not null."""
        return self._not_null(self.nullable_array(read_element))

    def nullable_int32_array(self) -> tuple[int, ...] | None:
        """Read four-byte numbers or null."""
        count = self._array_length()
        if count < 0:
            return None
        return struct.unpack(f">{count}i", self.take(_INT32_BYTES * count))

    def int32_array(self) -> tuple[int, ...]:
        """Read four-byte numbers, not null."""
        return self._not_null(self.nullable_int32_array())

    def _array_length(self) -> int:
        """Read the length of an array, negative for null; no element takes less than a byte."""
        count = self.unsigned_varint() - 1
        if count > self.remaining or count > _MAX_ARRAY_LENGTH:
            raise self.error(f"an array has {count} elements, but {self.remaining} bytes are left")
        return count

    def _not_null(self, elements: tuple[_T, ...] | None) -> tuple[_T, ...]:
        if elements is None:
            raise self.error("expected an array, found null")
        return elements

    def tagged_fields(self) -> dict[int, "FieldReader"]:
        """Read the tagged fields: a reader over the bytes of each, by tag."""
        count = self.unsigned_varint()
        if count > min(self.remaining, _MAX_TAGGED_FIELDS):
            raise self.error(f"there are {count} tagged fields in {self.remaining} bytes")
        fields = {}
        for _ in range(count):
            tag = self.unsigned_varint()
            data = self.take(self.unsigned_varint())
            fields[tag] = FieldReader(data, file=self._file, offset=self._offset)
        return fields


class _Field(NamedTuple):
    """One field of a record, in the order of the bytes.

    Attributes:
        name: Of the record's attribute; empty for a field that nothing here needs.
        read: Reads it.
        since: The first version that has it.
    """

    name: str
    read: Callable[[FieldReader], Any]
    since: int = 0


class _Layout(NamedTuple):
    """The fields of one type of record.

    Attributes:
        record: What is made of them.
        newest: The newest version that Kafka 4.4 reads.
        fields: Those that every record has.
        tags: Those that a record may have, by tag.
        preset: Attributes that stand in no field, or not in each record.
    """

    record: Callable[..., MetadataRecord]
    newest: int
    fields: tuple[_Field, ...] = ()
    tags: Mapping[int, _Field] = MappingProxyType({})
    preset: Mapping[str, Any] = MappingProxyType({})


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
    layout = _LAYOUTS.get(api_key)
    if layout is None:
        return SkippedRecord(api_key=api_key, is_known=api_key in _OTHER_KNOWN_TYPES)
    if version > layout.newest:
        raise reader.error(
            f"type {api_key} has version {version}; this reader knows versions up to "
            f"{layout.newest}"
        )
    values = {name: read(reader) for name, read in _FIELDS_OF_VERSION[api_key, version]}
    values.pop(_SKIPPED, None)
    values.update(layout.preset)
    for tag, tagged in reader.tagged_fields().items():
        if tag in layout.tags:
            name, read, _ = layout.tags[tag]
            values[name] = read(tagged)
            tagged.require_end()
    reader.require_end()
    return layout.record(**values)


def _skip_endpoints(reader: FieldReader) -> None:
    def skip_endpoint() -> None:
        reader.string(), reader.string(), reader.int16(), reader.int16()
        reader.tagged_fields()

    reader.array(skip_endpoint)


def _skip_features(reader: FieldReader) -> None:
    def skip_feature() -> None:
        reader.string(), reader.int16(), reader.int16()
        reader.tagged_fields()

    reader.array(skip_feature)


def _numbers(reader: FieldReader) -> tuple[int, ...]:
    return reader.nullable_int32_array() or ()


def _ids(reader: FieldReader) -> tuple[str, ...]:
    return reader.nullable_array(reader.uuid) or ()


def _nullable_ids(reader: FieldReader) -> tuple[str, ...] | None:
    return reader.nullable_array(reader.uuid)


_INT32, _INT64 = FieldReader.int32, FieldReader.int64
_NUMBERS, _NULLABLE_NUMBERS = FieldReader.int32_array, FieldReader.nullable_int32_array
_TEXT, _ID = FieldReader.string, FieldReader.uuid
_BROKER_AND_EPOCH: Final = (_Field("broker_id", _INT32), _Field("broker_epoch", _INT64))

# By type; MetadataRecordType has the numbers.
_LAYOUTS: Final[Mapping[int, _Layout]] = {
    0: _Layout(
        RegisterBrokerRecord,
        4,
        (
            _Field("broker_id", _INT32),
            _Field(_SKIPPED, FieldReader.boolean, since=2),  # whether it is a migrating broker
            _Field(_SKIPPED, _ID),  # of the broker's process
            _Field("broker_epoch", _INT64),
            _Field(_SKIPPED, _skip_endpoints),
            _Field(_SKIPPED, _skip_features),
            _Field(_SKIPPED, FieldReader.nullable_string),  # the rack
            _Field("fenced", FieldReader.boolean),
            _Field(_SKIPPED, FieldReader.boolean, since=1),  # whether it is shutting down
        ),
        {
            0: _Field("log_directories", _ids),
            1: _Field("cordoned_log_directories", _nullable_ids),
        },
    ),
    1: _Layout(
        UnregisterBrokerRecord,
        0,
        (_Field("broker_id", _INT32), _Field(_SKIPPED, _INT64)),
    ),
    2: _Layout(TopicRecord, 0, (_Field("name", _TEXT), _Field("topic_id", _ID))),
    3: _Layout(
        PartitionRecord,
        2,
        (
            _Field("partition", _INT32),
            _Field("topic_id", _ID),
            _Field("replicas", _NUMBERS),
            _Field("isr", _NUMBERS),
            _Field("removing_replicas", _NUMBERS),
            _Field("adding_replicas", _NUMBERS),
            _Field("leader", _INT32),
            _Field("leader_epoch", _INT32),
            _Field("partition_epoch", _INT32),
            _Field("directories", lambda reader: reader.array(reader.uuid), since=1),
        ),
        {
            1: _Field("eligible_leader_replicas", _numbers),
            2: _Field("last_known_eligible_leader_replicas", _numbers),
        },
    ),
    4: _Layout(
        ConfigRecord,
        0,
        (
            _Field("resource_type", FieldReader.int8),
            _Field("resource_name", _TEXT),
            _Field("key", _TEXT),
            _Field("value", FieldReader.nullable_string),
        ),
    ),
    5: _Layout(
        PartitionChangeRecord,
        2,
        (_Field("partition", _INT32), _Field("topic_id", _ID)),
        {
            0: _Field("isr", _NULLABLE_NUMBERS),
            1: _Field("leader", _INT32),
            2: _Field("replicas", _NULLABLE_NUMBERS),
            3: _Field("removing_replicas", _NULLABLE_NUMBERS),
            4: _Field("adding_replicas", _NULLABLE_NUMBERS),
            6: _Field("eligible_leader_replicas", _NULLABLE_NUMBERS),
            7: _Field("last_known_eligible_leader_replicas", _NULLABLE_NUMBERS),
            8: _Field("directories", _nullable_ids),
        },
    ),
    7: _Layout(
        BrokerRegistrationChangeRecord, 0, _BROKER_AND_EPOCH, preset={"fencing": Fencing.FENCE}
    ),
    8: _Layout(
        BrokerRegistrationChangeRecord, 0, _BROKER_AND_EPOCH, preset={"fencing": Fencing.UNFENCE}
    ),
    9: _Layout(RemoveTopicRecord, 0, (_Field("topic_id", _ID),)),
    12: _Layout(FeatureLevelRecord, 0, (_Field("name", _TEXT), _Field("level", FieldReader.int16))),
    17: _Layout(
        BrokerRegistrationChangeRecord,
        3,
        _BROKER_AND_EPOCH,
        {
            0: _Field("fencing", FieldReader.int8),
            2: _Field("log_directories", _ids),
            3: _Field("cordoned_log_directories", _nullable_ids),
        },
        {"fencing": Fencing.NONE},
    ),
    23: _Layout(TransactionRecord, 0, preset={"mark": TransactionMark.BEGIN}),
    24: _Layout(TransactionRecord, 0, preset={"mark": TransactionMark.END}),
    25: _Layout(TransactionRecord, 0, preset={"mark": TransactionMark.ABORT}),
    28: _Layout(ClearElrRecord, 0, (_Field("topic", _TEXT),)),
}
# A snapshot has a record for each partition of the cluster: what can be chosen once is.
_FIELDS_OF_VERSION: Final = {
    (api_key, version): tuple(
        (field.name, field.read) for field in layout.fields if version >= field.since
    )
    for api_key, layout in _LAYOUTS.items()
    for version in range(layout.newest + 1)
}
