"""Records as text one by one: text, hexadecimal, Base64, JSON or Avro. ``record_columns`` converts
whole columns."""

import json
import math
import struct
from binascii import Error as Base64Error
from binascii import a2b_base64, b2a_base64
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pylog_spark.options.choices import AVRO_FORMATS, BytesFormat
from pylog_spark.text import readable_bytes
from storage_core.errors import ConfigError
from storage_core.json_values import MAX_JSON_BYTES, MAX_JSON_DEPTH, parse_json
from storage_core.records.batch_table import TIMESTAMP_TYPES

if TYPE_CHECKING:
    import pyarrow as pa


# Decode Avro keys and values to JSON, by a user's schema. The user provides the schema; the bytes
# may be hostile.
#
# The binary encoding is that of Avro 1.12 (https://avro.apache.org/docs/1.12.0/specification/);
# the five bytes that clients of a schema registry write before a value are a zero and the number
# of a schema, big-endian
# (https://docs.confluent.io/platform/current/schema-registry/fundamentals/serdes-develop/#wire-format).
#
# fastavro reads schemas. Its reader of values believes them: it goes as deep as they say, which
# ends the process, makes as many items as they say (a billion nulls are six bytes), and takes a
# negative index of a union for one from the end. So values are read here, and every number is
# checked before it is used.
#
# As JSON a record is an object, a union the value alone, bytes are text of the characters 0 to 255
# as in Avro's own JSON, and a number that JSON has not is its name: ``"NaN"``. Logical types are
# shown as what they are made of.

_MAX_SCHEMA_BYTES: Final = 4 << 20
# Items may take no bytes at all; so many of those are fine in any value.
_FREE_ITEMS: Final = 1024
_MOST_VARINT_BYTES: Final = 10
_REGISTRY_HEADER: Final = struct.Struct(">bI")
_FLOAT: Final = struct.Struct("<f")
_DOUBLE: Final = struct.Struct("<d")


@dataclass(frozen=True, slots=True, kw_only=True)
class AvroFormat:
    """Bytes as JSON by a schema; a value that pickles."""

    schema: str
    # Whether the five bytes of a schema registry stand before each value.
    has_registry_header: bool = False

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
        text = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
        return text if text.isprintable() else json.dumps(value, separators=(",", ":"))

    def _is_from_registry(self, data: bytes) -> bool:
        """Whether bytes are a value behind the header of a schema registry."""
        try:
            self._value(data, has_registry_header=True)
        except ValueError:
            return False
        return True

    def _value(self, data: bytes, *, has_registry_header: bool) -> Any:
        reader = _Bytes(data)
        if has_registry_header:
            header = reader.take(_REGISTRY_HEADER.size)
            if header[0]:
                raise ValueError(f"position 0: expected 0, as a registry has it, found {header[0]}")
        value = _reader_of(self.schema)(reader)
        if reader.left:
            raise ValueError(
                f"position {reader.position}: expected the end, found {reader.left} more bytes"
            )
        return value


def read_schema(option: str, file: Path) -> str:
    """Return an Avro schema of a file (``.avsc``), with all names whole."""
    try:
        from fastavro.schema import (  # noqa: PLC0415  # an extra
            SchemaParseException,
            parse_schema,
        )
    except ModuleNotFoundError as error:
        reason = "fastavro is not installed: pip install 'pylog-spark[avro]'"
        raise ConfigError(option, file, reason) from error
    try:
        with file.open("rb") as opened:
            content = opened.read(_MAX_SCHEMA_BYTES + 1)
    except OSError as error:
        raise ConfigError(option, file, error.strerror or str(error)) from error
    try:
        parsed = parse_schema(parse_json(content, limit_bytes=_MAX_SCHEMA_BYTES))
        schema = json.dumps(parsed)
        _reader_of(schema)
    # Of some schemas that are none the parser takes what is not there.
    except (SchemaParseException, ValueError, KeyError, TypeError, AttributeError) as error:
        raise ConfigError(option, file, f"expected an Avro schema: {error}") from error
    return schema


class _Bytes:
    """The bytes of one value, taken from the left."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self.position = 0
        self._depth = 0
        self._items_left = max(len(data), _FREE_ITEMS)

    @property
    def left(self) -> int:
        """How many bytes are left."""
        return len(self._data) - self.position

    def take(self, size: int) -> bytes:
        """Take so many bytes."""
        if not 0 <= size <= self.left:
            raise ValueError(
                f"position {self.position}: expected {size} bytes, {self.left} are left"
            )
        start = self.position
        self.position += size
        return self._data[start : self.position]

    def take_number(self) -> int:
        """Take a 64-bit integer: zigzag, seven bits a byte."""
        start = self.position
        bits = 0
        for number, byte in enumerate(self._data[start : start + _MOST_VARINT_BYTES]):
            bits |= (byte & 0x7F) << (7 * number)
            if byte < 0x80:  # noqa: PLR2004  # the bit that says that another byte follows
                if bits >> 64:
                    break
                self.position += number + 1
                return (bits >> 1) ^ -(bits & 1)
        raise ValueError(f"position {start}: expected a number of 64 bits")

    def take_index(self, count: int, what: str) -> int:
        """Take the index of one of so many."""
        start = self.position
        index = self.take_number()
        if not 0 <= index < count:
            raise ValueError(f"position {start}: expected 0 to {count - 1} {what}, found {index}")
        return index

    def take_items(self) -> Iterator[None]:
        """Take the blocks of an array or map; callers take the items."""
        while True:
            start = self.position
            count = self.take_number()
            if count < 0:
                count = -count
                self.take_number()  # how many bytes they have, for whoever passes over them
            if not count:
                return
            self._items_left -= count
            if self._items_left < 0:
                size = len(self._data)
                raise ValueError(f"position {start}: {count} items are too many for {size} bytes")
            for _ in range(count):
                yield

    def go_down(self) -> None:
        """Enter a record, an array or a map."""
        self._depth += 1
        if self._depth > MAX_JSON_DEPTH:
            raise ValueError(
                f"position {self.position}: is nested more than {MAX_JSON_DEPTH} levels deep"
            )

    def go_up(self) -> None:
        """Take note that this is over."""
        self._depth -= 1


_Read = Callable[[_Bytes], Any]


@cache
def _reader_of(schema: str) -> _Read:
    return _compile(json.loads(schema), {})


def _compile(schema: Any, named: dict[str, _Read]) -> _Read:
    match schema:
        case str():
            read = _PRIMITIVES.get(schema) or _reference(schema, named)
        case list() if schema:
            read = _union([_compile(branch, named) for branch in schema])
        case {"type": "array", "items": items}:
            read = _array(_compile(items, named))
        case {"type": "map", "values": values}:
            read = _map(_compile(values, named))
        case {"type": "record" | "error", "name": str(), "fields": list(fields)}:
            read = _record({field["name"]: _compile(field["type"], named) for field in fields})
        case {"type": "enum", "name": str(), "symbols": list(symbols)}:
            read = _enum(symbols)
        case {"type": "fixed", "name": str(), "size": int(size)} if size >= 0:
            read = _fixed(size)
        case {"type": str(primitive)} if primitive in _PRIMITIVES:
            read = _PRIMITIVES[primitive]  # with attributes, as a logical type has them
        case _:
            raise ValueError(f"no such type: {json.dumps(schema)[:80]}")
    if isinstance(schema, dict) and "name" in schema:
        named[schema["name"]] = read
    return read


def _reference(name: str, named: Mapping[str, _Read]) -> _Read:
    """Return the reader of a named type: an earlier or enclosing one."""

    def read(data: _Bytes) -> Any:
        return named[name](data)

    return read


def _fixed(size: int) -> _Read:
    return lambda data: data.take(size).decode("latin-1")


def _union(branches: list[_Read]) -> _Read:
    return lambda data: branches[data.take_index(len(branches), "of a union")](data)


def _enum(symbols: list[str]) -> _Read:
    return lambda data: symbols[data.take_index(len(symbols), "of an enum")]


def _array(item: _Read) -> _Read:
    def read(data: _Bytes) -> list[Any]:
        data.go_down()
        items = [item(data) for _ in data.take_items()]
        data.go_up()
        return items

    return read


def _map(value: _Read) -> _Read:
    def read(data: _Bytes) -> dict[str, Any]:
        data.go_down()
        entries = {_take_string(data): value(data) for _ in data.take_items()}
        data.go_up()
        return entries

    return read


def _record(fields: Mapping[str, _Read]) -> _Read:
    def read(data: _Bytes) -> dict[str, Any]:
        data.go_down()
        record = {name: field(data) for name, field in fields.items()}
        data.go_up()
        return record

    return read


def _take_string(data: _Bytes) -> str:
    start = data.position
    try:
        return data.take(data.take_number()).decode()
    except UnicodeDecodeError as error:
        raise ValueError(f"position {start}: expected UTF-8: {error}") from error


def _take_boolean(data: _Bytes) -> bool:
    start = data.position
    byte = data.take(1)[0]
    if byte > 1:
        raise ValueError(f"position {start}: expected 0 or 1, found {byte}")
    return bool(byte)


def _take_int(data: _Bytes) -> int:
    start = data.position
    number = data.take_number()
    if number.bit_length() > 31 and number != -(1 << 31):  # noqa: PLR2004  # bits without the sign
        raise ValueError(f"position {start}: expected a number of 32 bits, found {number}")
    return number


def _finite(number: float) -> float | str:
    if math.isfinite(number):
        return number
    return "NaN" if math.isnan(number) else f"{'-' if number < 0 else ''}Infinity"


_PRIMITIVES: Final[Mapping[str, _Read]] = {
    "null": lambda _: None,
    "boolean": _take_boolean,
    "int": _take_int,
    "long": _Bytes.take_number,
    "float": lambda data: _finite(_FLOAT.unpack(data.take(_FLOAT.size))[0]),
    "double": lambda data: _finite(_DOUBLE.unpack(data.take(_DOUBLE.size))[0]),
    "bytes": lambda data: data.take(data.take_number()).decode("latin-1"),
    "string": _take_string,
}


# What an error names a record by.
NAMES: Final = ("topic", "partition", "offset")
_MICROSECONDS: Final = 1000
_JSON_COLUMNS: Final = (
    *("key", "value", "topic", "partition", "offset"),
    *("timestamp", "timestampType", "headers"),
)


# How keys or values are written.
ValueFormat = BytesFormat | AvroFormat


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
    if written in AVRO_FORMATS:
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


def batch_not_in_format(batch: "pa.RecordBatch", error: NotInFormatError) -> ConfigError:
    """Return that error for a record of a batch.

    Args:
        batch: Where it was met; with the columns ``NAMES``.
    """
    topic, partition, offset = (batch.column(name)[error.row].as_py() for name in NAMES)
    return not_in_format(f"{offset} of {topic}-{partition}", error)


def is_json(how: ValueFormat) -> bool:
    """Whether a format writes values as JSON. A value may then be malformed, which is an error
    (``not_in_format``)."""
    return how is BytesFormat.JSON or isinstance(how, AvroFormat)


def format_of_headers(how: ValueFormat) -> BytesFormat:
    """Return the format of header values for records in a format. Few headers are JSON, or Avro,
    even where records are."""
    return BytesFormat.TEXT if how is BytesFormat.JSON or isinstance(how, AvroFormat) else how


def format_value(value: bytes | None, how: ValueFormat) -> str:
    """Return a value as JSON text: a string, JSON itself, ``null``.

    Args:
        value: The bytes, None for null.
        how: Any format but RAW, which JSON has no place for.
    """
    if value is None:
        return "null"
    if isinstance(how, AvroFormat) or how is BytesFormat.JSON:
        return json_of(value, how)
    match how:
        case BytesFormat.HEX:
            return f'"{value.hex()}"'
        case BytesFormat.BASE64:
            return f'"{base64_bytes(value).decode()}"'
        case _:
            return json.dumps(value.decode("utf-8", "backslashreplace"))


def json_lines(batch: "pa.RecordBatch", keys: ValueFormat, values: ValueFormat) -> Iterator[str]:
    """Yield records as JSON, a line each.

    Args:
        batch: With these columns of ``kafka_log``: key, value, topic, partition, offset, timestamp,
            timestampType, headers.
        keys: How keys are written: anything but raw.
    """
    columns = {name: batch.column(name) for name in batch.schema.names}
    columns["timestamp"] = columns["timestamp"].cast("int64")
    rows = zip(*(columns[name].to_pylist() for name in _JSON_COLUMNS), strict=True)
    of_headers = format_of_headers(values)
    for number, row in enumerate(rows):
        key, value, topic, partition, offset, timestamp, timestamp_type, headers = row
        try:
            key_text, value_text = format_value(key, keys), format_value(value, values)
        except NotInFormatError as error:
            raise NotInFormatError(error.how, error.reason, number) from error
        at = "null" if timestamp is None else timestamp // _MICROSECONDS
        pairs = header_pairs(headers or (), of_headers)
        yield (
            f'{{"type":"record","topic":{json.dumps(topic)},"partition":{partition},'
            f'"offset":{offset},"timestamp":{at},'
            f'"timestamp_type":"{TIMESTAMP_TYPES[timestamp_type]}",'
            f'"key":{key_text},"value":{value_text},"headers":{pairs}}}\n'
        )


def header_pairs(headers: Iterable[Mapping[str, Any]], how: BytesFormat) -> str:
    """Return headers as a JSON text: pairs of name and value.

    Args:
        how: How values are written: anything but raw.
    """
    pairs = (f"[{json.dumps(one['key'])},{format_value(one['value'], how)}]" for one in headers)
    return f"[{','.join(pairs)}]"


def json_of(value: bytes, how: ValueFormat) -> str:
    """Return JSON, or what is Avro as JSON, on one line. JSON is otherwise unchanged: its
    numbers keep all their digits."""
    try:
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


# Columns of keys and values: raw, text, hexadecimal, Base64 or JSON. Python is used only for
# values that need a look each: unprintable text, Base64, JSON, Avro.

BYTES: Final = pa.large_binary()
# What a terminal shows as it is: printable ASCII. Regular expressions see bytes as Latin-1.
_NOT_PLAIN: Final = "[^ -~]"


def format_column(values: pa.Array, how: ValueFormat) -> pa.Array:
    """Return a column of bytes in a format; null stays null.

    Returns:
        large_binary.
    """
    values = values.cast(BYTES)
    if how is BytesFormat.RAW:
        return values
    if how is BytesFormat.HEX:
        return _as_hex(values)
    if how is BytesFormat.TEXT:
        return _as_text(values)
    if is_json(how):
        return pa.array(_each(values, lambda value: json_of(value, how).encode()), BYTES)
    if how is BytesFormat.BASE64:
        return pa.array(_each(values, base64_bytes), BYTES)
    raise TypeError(f"{how} has no schema")


def text_column(values: pa.Array, how: ValueFormat) -> pa.Array:
    """Return a column of bytes as text without loss; null stays null.

    Args:
        how: The format; TEXT is UTF-8, with bytes that are none escaped.
    """
    if how is not BytesFormat.TEXT:
        return format_column(values, how).cast(pa.large_string())
    try:
        return values.cast(BYTES).cast(pa.large_string())
    except pa.ArrowInvalid:
        texts = [
            None if v is None else v.decode("utf-8", "backslashreplace") for v in values.to_pylist()
        ]
        return pa.array(texts, pa.large_string())


def _each(values: pa.Array, of_value: Any) -> list[bytes | None]:
    """Return what becomes of each value; a Python object a value."""
    shown: list[bytes | None] = []
    for row, value in enumerate(values.to_pylist()):
        try:
            shown.append(None if value is None else of_value(value))
        except NotInFormatError as error:
            raise NotInFormatError(error.how, error.reason, row) from error
    return shown


def _as_text(values: pa.Array) -> pa.Array:
    """Return values as text; check only the non-ASCII ones singly."""
    mask = pc.fill_null(pc.match_substring_regex(values, pattern=_NOT_PLAIN), False)  # noqa: FBT003
    if not pc.any(mask).as_py():
        return values
    shown = [
        readable_bytes(value, limit=len(value)).encode()
        for value in values.filter(mask).to_pylist()
    ]
    return pc.replace_with_mask(values, mask, pa.array(shown, BYTES))


def _as_hex(values: pa.Array) -> pa.Array:
    count = len(values)
    _, offsets, data = values.buffers()
    places = np.frombuffer(offsets, np.int64, count + 1, values.offset * 8)
    digits = b"" if data is None else memoryview(data)[places[0] : places[-1]].hex().encode()
    doubled = pa.py_buffer((places - places[0]) * 2)
    shown = pa.Array.from_buffers(BYTES, count, [None, doubled, pa.py_buffer(digits)])
    return pc.if_else(values.is_valid(), shown, pa.scalar(None, BYTES))
