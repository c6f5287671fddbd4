"""Decode Avro keys and values to JSON, by a user's schema. The user provides the schema; the bytes
may be hostile.

The binary encoding is that of Avro 1.12 (https://avro.apache.org/docs/1.12.0/specification/); the
five bytes that clients of a schema registry write before a value are a zero and the number of a
schema, big-endian
(https://docs.confluent.io/platform/current/schema-registry/fundamentals/serdes-develop/#wire-format).

fastavro reads schemas. Its reader of values believes them: it goes as deep as they say, which ends
the process, makes as many items as they say (a billion nulls are six bytes), and takes a negative
index of a union for one from the end. So values are read here, and every number is checked before
it is used.

As JSON a record is an object, a union the value alone, bytes are text of the characters 0 to 255
as in Avro's own JSON, and a number that JSON has not is its name: ``"NaN"``. Logical types are
shown as what they are made of.
"""

import json
import math
import struct
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Final

from storage_core.errors import ConfigError
from storage_core.json_text import MAX_JSON_DEPTH, parse_json

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
