"""Avro values one by one: hostile bytes become what JSON has."""

import json
import math
import struct
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import datetime, timedelta
from functools import cache, partial
from typing import Any, Final
from uuid import UUID

from storage_core.json_values import MAX_JSON_DEPTH, parse_json

# The binary encoding is that of Avro 1.12 (https://avro.apache.org/docs/1.12.0/specification/).
#
# fastavro reads schemas. Its reader of values believes them: it goes as deep as they say, which
# ends the process, makes as many items as they say (a billion nulls are six bytes), and takes a
# negative index of a union for one from the end. So values are read here, and every number is
# checked before it is used.
#
# As JSON a record is an object, a union the value alone, bytes are text of the characters 0 to 255
# as in Avro's own JSON, and a number that JSON has not is its name: ``"NaN"``. Logical types are
# shown as what they are made of, or, where that is asked for, as text.

MAX_SCHEMA_BYTES: Final = 4 << 20
MAX_FIXED_BYTES: Final = 2**31 - 1
# What of a schema has types in it.
_WITH_TYPES: Final = {"type", "items", "values", "fields"}
PER_SECOND: Final = {"millis": 10**3, "micros": 10**6, "nanos": 10**9}  # of times
MAX_DECIMAL_DIGITS: Final = 76  # Arrow's decimals have so many
_UUID_BYTES: Final = 16
_EPOCH: Final = datetime(1970, 1, 1)  # noqa: DTZ001  # the zone is written by hand
# Items may take no bytes at all; so many of those are fine in any value.
FREE_ITEMS: Final = 1024
# Names of fields and symbols are the schema's, and as long as it likes: each item repeats them.
FREE_NAME_BYTES: Final = 64 << 20
NAME_BYTES_PER_BYTE: Final = 256
_MOST_VARINT_BYTES: Final = 10
_FLOAT: Final = struct.Struct("<f")
_DOUBLE: Final = struct.Struct("<d")


def parse_avro(texts: Iterable[str | bytes]) -> tuple[str, ...]:
    """Return Avro schemas with all names whole.

    Args:
        texts: JSON. Each may refer to types that stand in those before it.

    Raises:
        ValueError: One of them is no schema, or the extra ``avro`` is not installed.
    """
    try:
        from fastavro.schema import (  # noqa: PLC0415  # an extra
            SchemaParseException,
            parse_schema,
        )
    except ModuleNotFoundError as error:
        raise ValueError("fastavro is not installed: pip install 'pylog-spark[avro]'") from error

    named: dict[str, Any] = {}
    try:
        parsed = tuple(
            json.dumps(
                parse_schema(
                    _without_bad_decimals(parse_json(text, limit_bytes=MAX_SCHEMA_BYTES)),
                    named_schemas=named,
                )
            )
            for text in texts
        )
        reader_of(*parsed)
    # Of some schemas that are none the parser takes what is not there.
    except (SchemaParseException, ValueError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"expected an Avro schema: {error}") from error
    return parsed


def _without_bad_decimals(schema: Any) -> Any:
    """Return a schema without decimals that suit no precision or no type: such a logical type is
    ignored, where fastavro refuses the schema."""
    if isinstance(schema, list):
        return [_without_bad_decimals(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    made = {
        name: _without_bad_decimals(inner) if name in _WITH_TYPES else inner
        for name, inner in schema.items()
    }
    if made.get("logicalType") == "decimal" and not _is_decimal(made):
        del made["logicalType"]
    return made


def _is_decimal(schema: Mapping[str, Any]) -> bool:
    precision, scale, size = schema.get("precision"), schema.get("scale", 0), schema.get("size")
    if type(precision) is not int or type(scale) is not int or not 0 <= scale <= precision != 0:
        return False
    if schema.get("type") != "fixed":
        return schema.get("type") == "bytes"
    if type(size) is not int or not 0 < size <= MAX_FIXED_BYTES:
        return False
    return precision <= math.log10(2) * (8 * size - 1)


class AvroBytes:
    """The bytes of one value, taken from the left."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self.position = 0
        self._depth = 0
        self._items_left = max(len(data), FREE_ITEMS)
        self._names_left = FREE_NAME_BYTES + NAME_BYTES_PER_BYTE * len(data)

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

    def repeat_names(self, size: int) -> None:
        """Take note that names of the schema become part of the value."""
        self._names_left -= size
        if self._names_left < 0:
            raise ValueError(
                f"position {self.position}: names of the schema are too long for so many items"
            )

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


Read = Callable[[AvroBytes], Any]


@cache
def reader_of(*schemas: str, has_logical: bool = False) -> Read:
    """Return the reader of the last of some schemas, which may refer to types of those before.

    Args:
        has_logical: Whether decimals, dates, times and UUIDs are text: ``"12.30"``.
    """
    named: dict[str, Read] = {}
    wrap = _as_text if has_logical else None
    return [_compile(json.loads(schema), named, wrap) for schema in schemas][-1]


@cache
def registered_reader(texts: tuple[str, ...], *, has_logical: bool = False) -> Read:
    """Return the reader of values of a registry's schema, the last of these texts; see
    ``reader_of``."""
    return reader_of(*parse_avro(texts), has_logical=has_logical)


def whole_value(read: Read, reader: AvroBytes) -> Any:
    """Return the value that is left of some bytes."""
    value = read(reader)
    if reader.left:
        raise ValueError(
            f"position {reader.position}: expected the end, found {reader.left} more bytes"
        )
    return value


_Wrap = Callable[[Mapping[str, Any], Read], Read]


def _compile(schema: Any, named: dict[str, Read], wrap: _Wrap | None) -> Read:
    match schema:
        case str():
            read = _PRIMITIVES.get(schema) or _reference(schema, named)
        case list() if schema:
            read = _union([_compile(branch, named, wrap) for branch in schema])
        case {"type": "array", "items": items}:
            read = _array(_compile(items, named, wrap))
        case {"type": "map", "values": values}:
            read = _map(_compile(values, named, wrap))
        case {"type": "record" | "error", "name": str(), "fields": list(fields)}:
            read = _record(
                {field["name"]: _compile(field["type"], named, wrap) for field in fields}
            )
        case {"type": "enum", "name": str(), "symbols": list(symbols)}:
            read = _enum(symbols)
        case {"type": "fixed", "name": str(), "size": int(size)} if size >= 0:
            read = _fixed(size)
        case {"type": str(primitive)} if primitive in _PRIMITIVES:
            read = _PRIMITIVES[primitive]  # with attributes, as a logical type has them
        case _:
            raise ValueError(f"no such type: {json.dumps(schema)[:80]}")
    if wrap is not None and isinstance(schema, dict):
        read = wrap(schema, read)
    if isinstance(schema, dict) and "name" in schema:
        named[schema["name"]] = read
    return read


def _reference(name: str, named: Mapping[str, Read]) -> Read:
    """Return the reader of a named type: an earlier or enclosing one."""

    def read(data: AvroBytes) -> Any:
        return named[name](data)

    return read


def _as_text(schema: Mapping[str, Any], read: Read) -> Read:
    """Return the reader of a logical type's text. A logical type that does not suit the type is
    ignored, as are those that a column has as numbers or bytes."""
    what = (schema.get("type"), schema.get("logicalType"))
    kind, _, unit = str(what[1]).rpartition("-")
    write: Callable[[Any], str]
    match what:
        case ["bytes" | "fixed", "decimal"] if schema["precision"] <= MAX_DECIMAL_DIGITS:
            write = partial(
                _decimal_text, precision=schema["precision"], scale=schema.get("scale", 0)
            )
        case ["fixed", "uuid"] if schema["size"] == _UUID_BYTES:
            write = _uuid_text
        case ["int", "date"]:
            write = _date_text
        case ["int", "time-millis"] | ["long", "time-micros"]:
            write = partial(_time_text, per_second=PER_SECOND[unit])
        case ["long", _] if kind in {"timestamp", "local-timestamp"} and unit in PER_SECOND:
            zone = "Z" if kind == "timestamp" else ""
            write = partial(_timestamp_text, per_second=PER_SECOND[unit], zone=zone)
        case _:
            return read

    def read_text(data: AvroBytes) -> Any:
        start = data.position
        value = read(data)
        try:
            return write(value)
        except OverflowError:
            return value  # beyond the years 1 to 9999
        except ValueError as error:
            raise ValueError(f"position {start}: {error}") from error

    return read_text


def _decimal_text(value: str, precision: int, scale: int) -> str:
    number = int.from_bytes(value.encode("latin-1"), "big", signed=True)
    if abs(number) >= 10**precision:
        raise ValueError("expected a decimal of the schema's precision, found more digits")
    digits = str(abs(number)).rjust(scale + 1, "0")
    whole = len(digits) - scale
    return f"{'-' if number < 0 else ''}{digits[:whole]}{'.' if scale else ''}{digits[whole:]}"


def _uuid_text(value: str) -> str:
    return str(UUID(bytes=value.encode("latin-1")))


def _date_text(value: int) -> str:
    return (_EPOCH + timedelta(days=value)).date().isoformat()


def _time_text(value: int, per_second: int) -> str:
    if not 0 <= value < 86_400 * per_second:
        raise ValueError("expected a time of day, found a number that is none")
    return _timestamp_text(value, per_second, "").partition("T")[2]


def _timestamp_text(value: int, per_second: int, zone: str) -> str:
    seconds, rest = divmod(value, per_second)
    digits = len(str(per_second)) - 1
    return f"{(_EPOCH + timedelta(seconds=seconds)).isoformat()}.{rest:0{digits}d}{zone}"


def _fixed(size: int) -> Read:
    return lambda data: data.take(size).decode("latin-1")


def _union(branches: list[Read]) -> Read:
    return lambda data: branches[data.take_index(len(branches), "of a union")](data)


def _enum(symbols: list[str]) -> Read:
    def read(data: AvroBytes) -> str:
        symbol = symbols[data.take_index(len(symbols), "of an enum")]
        data.repeat_names(len(symbol))
        return symbol

    return read


def _array(item: Read) -> Read:
    def read(data: AvroBytes) -> list[Any]:
        data.go_down()
        items = [item(data) for _ in data.take_items()]
        data.go_up()
        return items

    return read


def _map(value: Read) -> Read:
    def read(data: AvroBytes) -> dict[str, Any]:
        data.go_down()
        entries = {_take_string(data): value(data) for _ in data.take_items()}
        data.go_up()
        return entries

    return read


def _record(fields: Mapping[str, Read]) -> Read:
    size = sum(map(len, fields))

    def read(data: AvroBytes) -> dict[str, Any]:
        data.go_down()
        data.repeat_names(size)
        record = {name: field(data) for name, field in fields.items()}
        data.go_up()
        return record

    return read


def _take_string(data: AvroBytes) -> str:
    start = data.position
    try:
        return data.take(data.take_number()).decode()
    except UnicodeDecodeError as error:
        raise ValueError(f"position {start}: expected UTF-8: {error}") from error


def _take_boolean(data: AvroBytes) -> bool:
    start = data.position
    byte = data.take(1)[0]
    if byte > 1:
        raise ValueError(f"position {start}: expected 0 or 1, found {byte}")
    return bool(byte)


def _take_int(data: AvroBytes) -> int:
    start = data.position
    number = data.take_number()
    if number.bit_length() > 31 and number != -(1 << 31):  # noqa: PLR2004  # bits without the sign
        raise ValueError(f"position {start}: expected a number of 32 bits, found {number}")
    return number


def _finite(number: float) -> float | str:
    if math.isfinite(number):
        return number
    return "NaN" if math.isnan(number) else f"{'-' if number < 0 else ''}Infinity"


_PRIMITIVES: Final[Mapping[str, Read]] = {
    "null": lambda _: None,
    "boolean": _take_boolean,
    "int": _take_int,
    "long": AvroBytes.take_number,
    "float": lambda data: _finite(_FLOAT.unpack(data.take(_FLOAT.size))[0]),
    "double": lambda data: _finite(_DOUBLE.unpack(data.take(_DOUBLE.size))[0]),
    "bytes": lambda data: data.take(data.take_number()).decode("latin-1"),
    "string": _take_string,
}
