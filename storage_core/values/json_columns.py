"""Values of a JSON schema as columns.

What the schema names exactly becomes Arrow's: an object of properties is a struct, an array with
one kind of items a list, ``integer`` 64 bits, ``number`` a double. All of it may be null. The rest
is text, the JSON itself: several types, objects of any names, a reference to itself.

A kernel checks values and writes them as lines for Arrow's reader, in which parts that stay text
are strings. What it is not sure of is read alone in Python, which also says what does not fit. If
Arrow's reader ends at a value all the same, values are read some hundred at a time, and where one
of those ends it, each alone.
"""

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.json as pa_json
from numpy.typing import NDArray

from storage_core.filenames import is_text
from storage_core.json_values import (
    MAX_INTEGER,
    MAX_JSON_BYTES,
    MAX_JSON_DEPTH,
    parse_json,
)
from storage_core.kernels import json_rows as rows
from storage_core.values.decoder import MAX_REASONS, Decoded

MAX_SCHEMA_BYTES: Final = 4 << 20
# References can make a schema of a few lines into any number of fields.
_MAX_FIELDS: Final = 10_000
# Values that are read again together where one of very many does not fit.
_FEW: Final = 256
_MAX_TEXT_BYTES: Final = 1 << 30  # Arrow's reader counts in 31 bits
_VALUE: Final = "value"

_Take = Callable[[Any, str], Any]


class _Kind(NamedTuple):
    """What a schema makes of values."""

    type: pa.DataType
    take: _Take  # returns a parsed value as Arrow takes it, for its path
    number: int  # of the kernel
    fields: tuple[tuple[str, "_Kind"], ...] = ()  # of a struct; of a list its items alone


def json_decoder(schema: str, references: Mapping[str, str] | None = None) -> "JsonDecoder":
    """Return the decoder of a JSON schema.

    Args:
        schema: Its text.
        references: The schemas that it refers to, by the names by which it does.

    Raises:
        ValueError: A text is no JSON schema, or has more than 10,000 fields.
    """
    documents = {
        name: parse_json(text, limit_bytes=MAX_SCHEMA_BYTES)
        for name, text in {**(references or {}), "": schema}.items()
    }
    if not isinstance(documents[""], dict | bool):
        raise ValueError(  # noqa: TRY004  # a malformed text
            f"expected a JSON schema, found {_name(documents[''])}"
        )
    for document in list(documents.values()):
        if isinstance(document, dict) and isinstance(document.get("$id"), str):
            documents.setdefault(document["$id"].removesuffix("#"), document)
    kind, of_line = (
        _Compiler(documents, text).compile(documents[""], "", ()) for text in (_TEXT, _TEXT_OF_LINE)
    )
    return JsonDecoder(kind, of_line)


class JsonDecoder:
    """Makes a column of JSON values; a ``Decoder``.

    Args:
        kind: What the schema makes of values.
        of_line: The same of the kernel's lines.
    """

    def __init__(self, kind: _Kind, of_line: _Kind) -> None:
        self.type = kind.type
        self._kind, self._of_line = kind, of_line
        self._parts = _parts(kind)

    def decode(self, values: pa.Array) -> Decoded:
        """Return the column of some values; see ``Decoder``."""
        values = values.cast(pa.large_binary())
        lines, others = self._lines(values)
        parts = [_read(lines, self.type)] if len(lines) else []
        if parts == [None]:
            few = [lines.slice(first, _FEW) for first in range(0, len(lines), _FEW)]
            parts = [_read(each, self.type) or self._each_line(each) for each in few]
        column = pa.concat_arrays(parts) if parts else pa.nulls(0, self.type)
        taken, failed, reasons = self._each(values, others)
        if others.size:
            places = np.arange(len(values))
            places[others] = len(values) + np.arange(others.size)
            column = pa.concat_arrays([column, taken]).take(pa.array(places))
        return Decoded(column, np.array(failed, np.int64), tuple(reasons))

    def _lines(self, values: pa.Array) -> tuple[pa.Array, NDArray[np.int64]]:
        """Return a line for each value, and the rows that have null in place of their values."""
        _, places, data = values.buffers()
        count = len(values)
        offsets = np.zeros(1, np.int64)
        if places is not None and count:
            offsets = np.frombuffer(places, np.int64, count + 1, values.offset * 8)
        is_null = values.is_null().to_numpy(zero_copy_only=False)
        is_other = is_null.astype(np.uint8)
        size = int(offsets[-1] - offsets[0])
        out = np.empty(rows.BYTES_OF_ONE * size + rows.LINE_BYTES * count, np.uint8)
        ends = np.zeros(count + 1, np.int64)
        content = np.frombuffer(data or b"", np.uint8)
        stack = np.zeros(rows.STACK_SHAPE, np.int64)
        for array in (content, offsets):
            array.flags.writeable = False
        rows.write_json_rows(content, offsets, self._parts, out, ends, is_other, stack)
        buffers = [None, pa.py_buffer(ends), pa.py_buffer(out)]
        lines = pa.Array.from_buffers(pa.large_binary(), count, buffers)
        return lines, np.flatnonzero(is_other.astype(np.bool_) & ~is_null)

    def _each_line(self, lines: pa.Array) -> pa.Array:
        """Return the column of lines, each read alone."""
        taken = []
        for line in lines.to_pylist():
            value = parse_json(line[rows.BEGIN.size : -2], limit_bytes=len(line))
            taken.append(None if value is None else self._of_line.take(value, "$"))
        return pa.array(taken, self.type)

    def _each(
        self, values: pa.Array, others: NDArray[np.int64]
    ) -> tuple[pa.Array, list[int], list[str]]:
        """Return the column of some rows, each read alone, and which do not fit and why."""
        taken: list[Any] = []
        failed: list[int] = []
        reasons: list[str] = []
        for row in others.tolist():
            try:
                parsed = parse_json(values[row].as_py(), limit_bytes=MAX_JSON_BYTES)
                taken.append(None if parsed is None else self._kind.take(parsed, "$"))
            except ValueError as error:
                taken.append(None)
                failed.append(row)
                if len(reasons) < MAX_REASONS:
                    reasons.append(str(error))
        return pa.array(taken, self.type), failed, reasons


def _parts(root: _Kind) -> rows.JsonParts:
    """Return the parts of a schema, as the kernel has them."""
    table = [[rows.ANY, 0, 0, 0, 0], [root.number, 0, 0, 0, 0]]
    names = b""
    waiting = [root]
    for number, kind in enumerate(waiting, rows.ROOT):
        table[number][rows.FIRST] = len(table)
        for name, each in kind.fields:
            # A name that JSON writes with an escape never stands there as it is.
            before, names = len(names), names + name.encode("utf-8", "surrogatepass")
            table.append([each.number, 0, 0, before, len(names)])
            waiting.append(each)
        table[number][rows.LAST] = len(table)
    return rows.JsonParts(np.array(table, np.int64), np.frombuffer(names, np.uint8).copy())


def _read(lines: pa.Array, kind: pa.DataType) -> pa.Array | None:
    """Return the column of lines that Arrow's reader makes; None where it ends at one."""
    _, offsets, data = lines.buffers()
    places = np.frombuffer(offsets, np.int64, len(lines) + 1, lines.offset * 8)
    text = data.slice(int(places[0]), int(places[-1] - places[0]))
    if text.size > _MAX_TEXT_BYTES:
        return None
    try:
        table = pa_json.read_json(
            pa.BufferReader(text),
            read_options=pa_json.ReadOptions(use_threads=False, block_size=text.size),
            parse_options=pa_json.ParseOptions(
                explicit_schema=pa.schema([(_VALUE, kind)]), unexpected_field_behavior="ignore"
            ),
        )
    except (pa.ArrowInvalid, UnicodeDecodeError):
        return None
    return pa.concat_arrays(table.column(_VALUE).chunks)


@dataclass
class _Compiler:
    """Compiles schemas that refer to each other."""

    documents: Mapping[str, Any]  # by name; the schema itself has none
    text: _Kind  # of what stays JSON
    fields: int = field(default=0, init=False)

    def compile(  # noqa: PLR0911  # a kind of schema each
        self, schema: Any, document: str, within: tuple[int, ...]
    ) -> _Kind:
        """Return the kind of a schema.

        Args:
            document: Name of the document that it is part of.
            within: Identities of the schemas around it.
        """
        self.fields += 1
        if self.fields > _MAX_FIELDS:
            raise ValueError(f"has more than {_MAX_FIELDS} fields")
        if not isinstance(schema, dict) or id(schema) in within or len(within) > MAX_JSON_DEPTH:
            return self.text
        within = (*within, id(schema))
        if "$ref" in schema:
            found = self._find(schema["$ref"], document)
            return self.text if found is None else self.compile(*found, within)
        for word in ("allOf", "anyOf", "oneOf"):
            if isinstance(schema.get(word), list):
                some = [each for each in schema[word] if not _is_null(each)]
                is_one = len(some) == 1 and "properties" not in schema
                return self.compile(some[0], document, within) if is_one else self.text
        match _types(schema):
            case ["object"]:
                return self._object(schema, document, within)
            case ["array"]:
                items = schema.get("items")
                if isinstance(items, dict) and "prefixItems" not in schema:
                    return _list(self.compile(items, document, within))
            case ["integer", "number"]:
                return _NUMBER
            case [name] if name in _PLAIN:
                return _PLAIN[name]
        return self.text

    def _object(self, schema: Any, document: str, within: tuple[int, ...]) -> _Kind:
        properties = schema.get("properties")
        if not isinstance(properties, dict) or not properties:
            return self.text
        return _struct(
            {name: self.compile(each, document, within) for name, each in properties.items()}
        )

    def _find(self, reference: Any, document: str) -> tuple[Any, str] | None:
        """Return the schema that a reference names, with the document it is part of; None for
        one that is not there, and for one by an anchor."""
        if not isinstance(reference, str):
            return None
        name, _, pointer = reference.partition("#")
        document = name or document
        found = self.documents.get(document)
        for step in pointer.split("/")[1:]:
            key = step.replace("~1", "/").replace("~0", "~")
            if isinstance(found, list) and key.isascii() and key.isdigit():
                found = dict(enumerate(found)).get(int(key[:9]))
            else:
                found = found.get(key) if isinstance(found, dict) else None
        return None if found is None or (pointer and pointer[0] != "/") else (found, document)


def _is_null(schema: Any) -> bool:
    return isinstance(schema, dict) and schema.get("type") in ("null", ["null"])


def _types(schema: Mapping[str, Any]) -> list[str]:
    """Return the types that a schema names, sorted, without null; none where it says nothing."""
    named = schema.get("type")
    if named is None:
        choice = schema.get("enum", [schema["const"]] if "const" in schema else None)
        if isinstance(choice, list) and choice:
            return sorted({_name(each) for each in choice if each is not None})
        return ["object"] if "properties" in schema else []
    several = named if isinstance(named, list) else [named]
    return sorted({each for each in several if isinstance(each, str)} - {"null"})


def _name(value: Any) -> str:
    """Return what JSON schemas call the type of a value."""
    match value:
        case None:
            return "null"
        case bool():
            return "boolean"
        case int():
            return "integer"
        case float():
            return "number"
        case str():
            return "string"
    return "array" if isinstance(value, list) else "object"


def _refuse(path: str, expected: str, value: Any) -> ValueError:
    shown = _name(value)
    if not isinstance(value, dict | list | None):
        shown += f" {json.dumps(value)[:40]}"
    return ValueError(f"{path}: expected {expected}, found {shown}")


def _take_text(value: Any, path: str) -> str:
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    if not is_text(text):
        raise ValueError(f"{path}: expected text of Unicode, found half a character")
    return text


def _take_string(value: Any, path: str) -> str:
    if not isinstance(value, str):
        raise _refuse(path, "string", value)
    if not is_text(value):
        raise ValueError(f"{path}: expected text of Unicode, found half a character")
    return value


def _take_integer(value: Any, path: str) -> int:
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int):
        raise _refuse(path, "integer", value)
    if not -MAX_INTEGER - 1 <= value <= MAX_INTEGER:
        raise _refuse(path, "integer of 64 bits", value)
    return value


def _take_number(value: Any, path: str) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise _refuse(path, "number", value)
    try:
        return float(value)
    except OverflowError:
        return math.inf if value > 0 else -math.inf  # as Arrow's reader has it


def _take_boolean(value: Any, path: str) -> bool:
    if not isinstance(value, bool):
        raise _refuse(path, "boolean", value)
    return value


_TEXT: Final = _Kind(pa.string(), _take_text, rows.TEXT)
_TEXT_OF_LINE: Final = _Kind(pa.string(), _take_string, rows.TEXT)
_NUMBER: Final = _Kind(pa.float64(), _take_number, rows.NUMBER)
_PLAIN: Final[Mapping[str, _Kind]] = {
    "string": _Kind(pa.string(), _take_string, rows.STRING),
    "integer": _Kind(pa.int64(), _take_integer, rows.INTEGER),
    "number": _NUMBER,
    "boolean": _Kind(pa.bool_(), _take_boolean, rows.BOOLEAN),
}


def _struct(members: Mapping[str, _Kind]) -> _Kind:
    takes = {name: kind.take for name, kind in members.items()}

    def take(value: Any, path: str) -> dict[str, Any]:
        if not isinstance(value, dict):
            raise _refuse(path, "object", value)
        return {
            name: takes[name](part, f"{path}.{name}")
            for name, part in value.items()
            if part is not None and name in takes
        }

    kind = pa.struct([(name, each.type) for name, each in members.items()])
    return _Kind(kind, take, rows.STRUCT, tuple(members.items()))


def _list(items: _Kind) -> _Kind:
    def take(value: Any, path: str) -> list[Any]:
        if not isinstance(value, list):
            raise _refuse(path, "array", value)
        return [
            None if part is None else items.take(part, f"{path}[{number}]")
            for number, part in enumerate(value)
        ]

    return _Kind(pa.list_(items.type), take, rows.LIST, (("", items),))
