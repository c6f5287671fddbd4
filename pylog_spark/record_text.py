"""Records as text one by one: text, hexadecimal, Base64, JSON or Avro. ``record_columns`` converts
whole columns, by Arrow; a dump does without, which saves 8 MiB."""

import json
import struct
from binascii import Error as Base64Error
from binascii import a2b_base64, b2a_base64
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from pylog_spark.options.choices import AVRO_FORMATS, BytesFormat
from storage_core.errors import ConfigError
from storage_core.json_values import MAX_JSON_BYTES, parse_json
from storage_core.values.avro_values import (
    MAX_SCHEMA_BYTES,
    AvroBytes,
    parse_avro,
    reader_of,
    registered_reader,
    whole_value,
)
from storage_core.values.registry import (
    AVRO,
    JSON,
    OWN_FILE,
    PROTOBUF,
    SchemaRegistry,
    id_header,
)

# Decode Avro keys and values to JSON, by a user's schema or those of a registry. The bytes may be
# hostile: ``avro_values`` checks them.
#
# The five bytes that clients of a schema registry write before a value are a zero and the number
# of a schema, big-endian
# (https://docs.confluent.io/platform/current/schema-registry/fundamentals/serdes-develop/#wire-format).

_REGISTRY_HEADER: Final = struct.Struct(">BI")
# A record's headers: names and values.
Headers = Iterable[tuple[str, bytes | memoryview | None]]


@dataclass(frozen=True, slots=True, kw_only=True)
class AvroFormat:
    """Bytes as JSON by a schema; a value that pickles."""

    schema: str
    # Whether the five bytes of a schema registry stand before each value.
    has_registry_header: bool = False
    has_logical: bool = False  # whether decimals, dates, times and UUIDs are text

    def __str__(self) -> str:
        return "avro-registry" if self.has_registry_header else "avro"

    def to_json(self, data: bytes) -> str:
        """Return a value as one line of JSON, without terminal control characters."""
        try:
            value = self._value(data, has_registry_header=self.has_registry_header)
        except ValueError as error:
            if self.has_registry_header or not self._is_from_registry(data):
                raise
            reason = f"{error}; a schema registry's header stands before it: avro-registry reads it"
            raise ValueError(reason) from error
        return _json_text(value)

    def _is_from_registry(self, data: bytes) -> bool:
        """Whether bytes are a value behind the header of a schema registry."""
        try:
            self._value(data, has_registry_header=True)
        except ValueError:
            return False
        return True

    def _value(self, data: bytes, *, has_registry_header: bool) -> Any:
        reader = AvroBytes(data)
        if has_registry_header:
            _take_registry_header(reader)
        return whole_value(reader_of(self.schema, has_logical=self.has_logical), reader)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)  # a registry has no hash
class RegistryFormat:
    """Bytes as JSON, each value by the schema whose number stands before it, or which a header of
    its record names; a value that pickles.

    Values of a JSON schema are JSON; whether they fit the schema is not asked.
    """

    registry: SchemaRegistry
    name: str  # key or value
    has_logical: bool = False  # as of ``AvroFormat``

    def __str__(self) -> str:
        return "registry"

    def to_json(self, data: bytes, headers: Headers = ()) -> str:
        """Return a value as one line of JSON, without terminal control characters."""
        header = id_header(self.name)
        written = next((bytes(each or b"") for name, each in headers if name == header), None)
        if written is None:
            reader = AvroBytes(data)
            number = _take_registry_header(reader)
        else:
            number, before = self.registry.read_id(header, written)
            data = before + data
            reader = AvroBytes(data)
        schema = self.registry.schema(number)
        if schema.kind == JSON:
            try:
                return json_of(data[reader.position :], BytesFormat.JSON)
            except NotInFormatError as error:
                raise ValueError(f"by schema {number}: {error.reason}") from error
        of_registry = f"schema {number} of {self.registry.place}"
        if schema.kind == PROTOBUF:
            from storage_core.values.protobuf_columns import (  # noqa: PLC0415  # kernels
                protobuf_to_json,
            )

            try:
                text = protobuf_to_json(schema.files, OWN_FILE, data[reader.position :])
            except ValueError as error:
                raise ValueError(f"by {of_registry}: {error}") from error
            return _json_text(json.loads(text))
        if schema.kind != AVRO:
            reason = f"is of the kind {schema.kind}, which is not decoded; base64 shows the value"
            raise ValueError(f"{of_registry}: {reason}")
        try:
            read = registered_reader(schema.texts, has_logical=self.has_logical)
        except ValueError as error:
            raise ValueError(f"{of_registry}: {error}") from error
        try:
            return _json_text(whole_value(read, reader))
        except ValueError as error:
            raise ValueError(f"by schema {number}: {error}") from error


def _take_registry_header(reader: AvroBytes) -> int:
    """Take what clients of a registry write first; return the number of the schema."""
    magic, number = _REGISTRY_HEADER.unpack(reader.take(_REGISTRY_HEADER.size))
    if magic:
        raise ValueError(f"position 0: expected 0, as a registry has it, found {magic}")
    return int(number)


def _json_text(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    return text if text.isprintable() else json.dumps(value, separators=(",", ":"))


def read_schema(option: str, file: Path) -> str:
    """Return an Avro schema of a file (``.avsc``), with all names whole."""
    try:
        with file.open("rb") as opened:
            content = opened.read(MAX_SCHEMA_BYTES + 1)
        (schema,) = parse_avro([content])
    except OSError as error:
        raise ConfigError(option, file, error.strerror or str(error)) from error
    except ValueError as error:
        raise ConfigError(option, file, str(error)) from error
    return schema


_BySchema = AvroFormat | RegistryFormat
# How keys or values are written.
ValueFormat = BytesFormat | _BySchema


class NotInFormatError(ValueError):
    """A value is not what its format says.

    Attributes:
        reason: Why, for a person.
        row: Which one of a column; 0 for a value alone.
    """

    def __init__(self, how: str, reason: str, row: int = 0) -> None:
        super().__init__(how, reason, row)
        self.how, self.reason, self.row = how, reason, row


def parse_bytes_text(option: str, text: str, written: BytesFormat) -> bytes:
    """Return the bytes that a person has written."""
    if written in {*AVRO_FORMATS, BytesFormat.REGISTRY}:
        raise ConfigError(option, text, f"no bytes are found by {written}: text, hex or base64")
    try:
        if written is BytesFormat.HEX:
            return bytes.fromhex(text)
        if written is BytesFormat.BASE64:
            return a2b_base64(text, strict_mode=True)
    except (ValueError, Base64Error) as error:
        raise ConfigError(option, text, f"expected {written}: {error}") from error
    # A byte of the command line that is no UTF-8 comes as half a character.
    return text.encode("utf-8", "surrogateescape")


def not_in_format(record: str, error: NotInFormatError) -> ConfigError:
    """Return the error about a record not in the wanted format."""
    reason = f"the record at offset {record} is not: {error.reason}; text shows it as it is"
    return ConfigError("--key-format, --value-format", error.how, reason)


def is_json(how: ValueFormat) -> bool:
    """Whether a format writes values as JSON. A value may then be malformed, which is an error
    (``not_in_format``)."""
    return how is BytesFormat.JSON or isinstance(how, _BySchema)


def format_of_headers(how: ValueFormat) -> BytesFormat:
    """Return the format of header values for records in a format. Few headers are JSON, or Avro,
    even where records are."""
    return BytesFormat.TEXT if how is BytesFormat.JSON or isinstance(how, _BySchema) else how


def format_value(value: bytes | None, how: ValueFormat, headers: Headers = ()) -> str:
    """Return a value as JSON text: a string, JSON itself, ``null``.

    Args:
        value: The bytes, None for null.
        how: Any format but RAW, which JSON has no place for.
        headers: The record's, of which one may name the value's schema.
    """
    if value is None:
        return "null"
    if isinstance(how, _BySchema) or how is BytesFormat.JSON:
        return json_of(value, how, headers)
    match how:
        case BytesFormat.HEX:
            return f'"{value.hex()}"'
        case BytesFormat.BASE64:
            return f'"{base64_bytes(value).decode()}"'
        case _:
            return json.dumps(value.decode("utf-8", "backslashreplace"))


def json_of(value: bytes, how: ValueFormat, headers: Headers = ()) -> str:
    """Return JSON, or what is Avro as JSON, on one line. JSON is otherwise unchanged: its
    numbers keep all their digits."""
    try:
        if isinstance(how, RegistryFormat):
            return how.to_json(value, headers)
        if isinstance(how, AvroFormat):
            return how.to_json(value)
        # Python's parser takes these two beyond JSON.
        has_constant = b"NaN" in value or b"Infinity" in value
        parse_json(value, limit_bytes=MAX_JSON_BYTES, is_strict=has_constant)
    except ValueError as error:
        raise NotInFormatError(str(how), str(error)) from error
    # Line ends are but space between tokens: strings have none.
    return value.translate(_ON_ONE_LINE).strip().decode()


def base64_bytes(value: bytes) -> bytes:
    """Return the Base64 of some bytes, on one line."""
    return b2a_base64(value, newline=False)


_ON_ONE_LINE: Final = bytes.maketrans(b"\r\n", b"  ")
