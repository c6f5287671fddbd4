"""Kafka's messages as declarations: fields by version, and their values.

A message is declared as Kafka declares it in its JSON files (``src/main/resources/common/message``
and ``.../metadata`` of its sources): fields in the order of the bytes, each with its type and the
versions that have it. Names are Kafka's, in snake case. What reads or writes a version is made of
the declaration once, and the tests compare every declaration with the schemas in Kafka's own jars.

A struct that may be null has a byte in front, negative for null; in a tagged field it is an
unsigned varint, 0 for null.
"""

import enum
import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, Self, Union

from storage_core.messages.fields import FieldReader, FieldWriter

# The values of a message or struct, by field; structs are such mappings, arrays are tuples.
Fields = dict[str, Any]
Read = Callable[[FieldReader], Any]
Write = Callable[[FieldWriter, Any], None]

# The text of the id of zeros, which means no id.
NO_UUID: Final = "AAAAAAAAAAAAAAAAAAAAAA"
# Above every version.
_NO_VERSION: Final = 1 << 15


class Type(enum.Enum):
    """The primitive types."""

    BOOLEAN = "boolean"
    INT8 = "int8"
    INT16 = "int16"
    UINT16 = "uint16"
    INT32 = "int32"
    INT64 = "int64"
    FLOAT64 = "float64"
    UUID = "uuid"
    STRING = "string"
    BYTES = "bytes"


BOOLEAN: Final = Type.BOOLEAN
INT8: Final = Type.INT8
INT16: Final = Type.INT16
UINT16: Final = Type.UINT16
INT32: Final = Type.INT32
INT64: Final = Type.INT64
FLOAT64: Final = Type.FLOAT64
UUID: Final = Type.UUID
STRING: Final = Type.STRING
BYTES: Final = Type.BYTES


class ArrayOf(NamedTuple):
    """An array."""

    # The type of its elements: a primitive, or the fields of a struct.
    element: Union[Type, "Struct"]


class Field(NamedTuple):
    """A field of a message or struct."""

    name: str  # Kafka's, in snake case
    type: Union[Type, ArrayOf, "Struct"]
    since: int = 0
    until: int = _NO_VERSION
    is_nullable: bool = False  # whether it may be null, in each version that has it
    tag: int | None = None  # its tag, None for a field that every message of these versions has
    default: Any = None  # A tagged field's value if the bytes lack it
    is_secret: bool = False  # whether it is nobody's to read


class Struct(tuple[Field, ...]):
    """The fields of a struct, in the order of the bytes."""

    __slots__ = ()

    def __new__(cls, *fields: Field) -> Self:
        """Return a struct of these fields."""
        return super().__new__(cls, fields)


# Compared by identity: reader and writer of each version are cached.
@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Message:
    """A message, all versions of it from 0 on."""

    fields: Struct  # in the order of the bytes, the tagged ones where Kafka's declaration has them
    newest: int = 0  # the newest version that Kafka 4.4 reads
    flexible_since: int | None = 0  # the first flexible version, None where there is none

    def is_flexible(self, version: int) -> bool:
        """Whether a version has compact forms and tagged fields."""
        return self.flexible_since is not None and version >= self.flexible_since

    def read(self, reader: FieldReader, version: int) -> Fields:
        """Return the fields of a message.

        Args:
            reader: Over its bytes; afterwards behind the message.
            version: From 0 to the newest.
        """
        self._require(version)
        fields: Fields = _reader_of(self, version)(reader)
        return fields

    def write(self, writer: FieldWriter, version: int, fields: Mapping[str, Any]) -> None:
        """Write the fields of a message.

        Args:
            writer: It goes behind what that has.
            version: From 0 to the newest.
            fields: All that the version has; tagged ones may be missing.
        """
        self._require(version)
        _writer_of(self, version)(writer, fields)

    def blank(self) -> Fields:
        """Return zeros, empty texts and nulls for all fields."""
        return {field.name: _blank(field) for field in self.fields}

    def _require(self, version: int) -> None:
        if not 0 <= version <= self.newest:
            raise ValueError(f"expected a version from 0 to {self.newest}, found {version}")


class RecordType(NamedTuple):
    """A type of record of an internal topic."""

    name: str
    value: Message  # the message of its value; a record without a value is a tombstone
    key: Message | None = None  # the message of its key, None if records have no key


def secret_fields(message: Message) -> frozenset[str]:
    """Return the names of a message's fields that are nobody's to read."""
    return frozenset(field.name for field in message.fields if field.is_secret)


def _blank(field: Field) -> Any:
    if field.tag is not None or field.is_nullable:
        return field.default
    return _BLANKS[field.type] if isinstance(field.type, Type) else ()


@functools.cache
def _reader_of(message: Message, version: int) -> Read:
    """Return the reader of one version of a message, from a cache. A log has many records of
    that version."""
    return _struct_reader(message.fields, version, message.is_flexible(version))


def _struct_reader(struct: Struct, version: int, is_flexible: bool) -> Read:  # noqa: FBT001 - a fact of the version
    """Return what reads the fields that a version has."""
    present = [field for field in struct if field.since <= version <= field.until]
    plain = [(f.name, _field_reader(f, version, is_flexible)) for f in present if f.tag is None]
    if not is_flexible:
        return lambda reader: {name: read(reader) for name, read in plain}
    tagged = {
        field.tag: (field.name, _field_reader(field, version, is_flexible))
        for field in present
        if field.tag is not None
    }
    defaults = {field.name: field.default for field in present if field.tag is not None}

    def read_flexible(reader: FieldReader) -> Fields:
        values = {name: read(reader) for name, read in plain}
        values.update(defaults)
        for tag, content in reader.tagged_fields():
            if tag in tagged:
                name, read = tagged[tag]
                values[name] = read(content)
                content.require_end()
        return values

    return read_flexible


def _field_reader(field: Field, version: int, is_flexible: bool) -> Read:  # noqa: FBT001 - as above
    """Return the reader of one field; it refuses a forbidden null."""
    read = _type_reader(field.type, version, is_flexible)
    if isinstance(field.type, Struct) and field.is_nullable:
        if field.tag is None:
            return lambda reader: None if reader.int8() < 0 else read(reader)
        return lambda reader: None if reader.unsigned_varint() <= 0 else read(reader)
    is_of_length = isinstance(field.type, ArrayOf) or field.type in {Type.STRING, Type.BYTES}
    return read if field.is_nullable or not is_of_length else _not_null(field.name, read)


def _type_reader(type_: Type | ArrayOf | Struct, version: int, is_flexible: bool) -> Read:  # noqa: FBT001 - as above
    """Return what reads a value, null where its type has a null."""
    if isinstance(type_, Struct):
        return _struct_reader(type_, version, is_flexible)
    if isinstance(type_, Type):
        return (_COMPACT if is_flexible else _PRIMITIVES)[type_]
    if type_.element is Type.INT32:
        compact, plain = FieldReader.nullable_compact_int32_array, FieldReader.nullable_int32_array
        return compact if is_flexible else plain
    element = _type_reader(type_.element, version, is_flexible)
    if type_.element in {Type.STRING, Type.BYTES}:
        element = _not_null("an element", element)
    if is_flexible:
        return lambda reader: reader.nullable_compact_array(lambda: element(reader))
    return lambda reader: reader.nullable_array(lambda: element(reader))


def _not_null(name: str, read: Read) -> Read:
    def read_value(reader: FieldReader) -> Any:
        value = read(reader)
        if value is None:
            raise reader.error(f"expected a value of {name}, found null")
        return value

    return read_value


@functools.cache
def _writer_of(message: Message, version: int) -> Write:
    """Return the writer of one version of a message, from a cache."""
    return _struct_writer(message.fields, version, message.is_flexible(version))


def _struct_writer(struct: Struct, version: int, is_flexible: bool) -> Write:  # noqa: FBT001 - as above
    """Return what writes the fields of a version, without tagged defaults."""
    present = [field for field in struct if field.since <= version <= field.until]
    writers = {field.name: _field_writer(field, version, is_flexible) for field in present}
    plain = [field.name for field in present if field.tag is None]
    tagged = sorted(
        (field.tag, field.name, field.default) for field in present if field.tag is not None
    )

    def write(writer: FieldWriter, values: Mapping[str, Any]) -> None:
        for name in plain:
            writers[name](writer, values[name])
        contents = []
        for tag, name, default in tagged:
            value = values.get(name, default)
            if value != default:
                content = FieldWriter()
                writers[name](content, value)
                contents.append((tag, content.data))
        if is_flexible:
            writer.tagged_fields(contents)

    return write


def _field_writer(field: Field, version: int, is_flexible: bool) -> Write:  # noqa: FBT001 - as above
    """Return the writer of one field; it refuses a forbidden null."""
    write = _type_writer(field.type, version, is_flexible)

    def write_value(writer: FieldWriter, value: Any) -> None:
        if value is None and not field.is_nullable:
            raise ValueError(f"expected a value of {field.name}, found null")
        if isinstance(field.type, Struct) and field.is_nullable:
            if field.tag is None:
                writer.int8(-1 if value is None else 1)
            else:
                writer.unsigned_varint(0 if value is None else 1)
            if value is None:
                return
        write(writer, value)

    return write_value


def _type_writer(type_: Type | ArrayOf | Struct, version: int, is_flexible: bool) -> Write:  # noqa: FBT001 - as above
    """Return what writes a value, null where its type has a null."""
    if isinstance(type_, Struct):
        return _struct_writer(type_, version, is_flexible)
    if isinstance(type_, Type):
        return (_COMPACT_WRITES if is_flexible else _PRIMITIVE_WRITES)[type_]
    element = _field_writer(Field("an element", type_.element), version, is_flexible)
    write = FieldWriter.nullable_compact_array if is_flexible else FieldWriter.nullable_array
    return lambda writer, values: write(writer, values, functools.partial(element, writer))


_BLANKS: Final = dict.fromkeys(Type, 0) | {
    Type.BOOLEAN: False,
    Type.FLOAT64: 0.0,
    Type.UUID: NO_UUID,
    Type.STRING: "",
    Type.BYTES: b"",
}
_PRIMITIVES: Final[dict[Type, Read]] = {
    Type.BOOLEAN: FieldReader.boolean,
    Type.INT8: FieldReader.int8,
    Type.INT16: FieldReader.int16,
    Type.UINT16: FieldReader.uint16,
    Type.INT32: FieldReader.int32,
    Type.INT64: FieldReader.int64,
    Type.FLOAT64: FieldReader.float64,
    Type.UUID: FieldReader.uuid,
    Type.STRING: FieldReader.nullable_string,
    Type.BYTES: FieldReader.nullable_bytes,
}
_COMPACT: Final[dict[Type, Read]] = _PRIMITIVES | {
    Type.STRING: FieldReader.nullable_compact_string,
    Type.BYTES: FieldReader.nullable_compact_bytes,
}
_PRIMITIVE_WRITES: Final[dict[Type, Write]] = {
    Type.BOOLEAN: FieldWriter.boolean,
    Type.INT8: FieldWriter.int8,
    Type.INT16: FieldWriter.int16,
    Type.UINT16: FieldWriter.uint16,
    Type.INT32: FieldWriter.int32,
    Type.INT64: FieldWriter.int64,
    Type.FLOAT64: FieldWriter.float64,
    Type.UUID: FieldWriter.uuid,
    Type.STRING: FieldWriter.nullable_string,
    Type.BYTES: FieldWriter.nullable_bytes,
}
_COMPACT_WRITES: Final[dict[Type, Write]] = _PRIMITIVE_WRITES | {
    Type.STRING: FieldWriter.nullable_compact_string,
    Type.BYTES: FieldWriter.nullable_compact_bytes,
}
