"""JSON that somebody else may have written: its size and depth are bounded before it is parsed.

Python's parser calls itself for each level. How many it bears hangs on its version and on the
thread's stack: from 3.12 on a text of some thousand levels ends a process whose stack is small, or
was fenced off by a JVM, without an exception. Whatever is not of our own process's making is
parsed here.
"""

import json
import os
import re
import reprlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, Final

from storage_core.errors import ManifestError

MAX_JSON_DEPTH: Final = 64
# A double has at most 309 before its point, what Kafka and we write at most 19.
MAX_NUMBER_DIGITS: Final = 400
_STRUCTURE: Final = b'"[]{}'
_OTHERS: Final = bytes(sorted(set(range(256)) - set(_STRUCTURE)))
_STEPS: Final = bytes.maketrans(b"[]{}", b"\x01\xff\x01\xff")  # one level down, one up again
_STEPS_AT_ONCE: Final = 1 << 16
_STRING: Final = re.compile(rb'"[^"]*(?:"|\Z)')
MAX_INTEGER: Final = 2**63 - 1
# Of any: a claim on a partition of many segments. Who reads one bounds it by what it is first.
MAX_JSON_BYTES: Final = 1 << 30
_WORD: Final = re.compile(r"[\x20-\x7e]*")
_MAX_WORD: Final = 1024
# What is found where something else was expected may be of any size and depth.
_SHOWN: Final = reprlib.Repr()
_SHOWN.maxstring = _SHOWN.maxother = _SHOWN.maxlong = 80


def parse_json(content: bytes | str, *, limit_bytes: int, is_strict: bool = False) -> Any:
    """Parse JSON in UTF-8, in time and memory that grow with its length alone.

    Args:
        content: What was read.
        limit_bytes: The most that it may have.
        is_strict: Refuse what Python takes beyond JSON, or takes twice: ``NaN``, and a field that
            stands twice in an object.

    Raises:
        ValueError: It is longer, is nested beyond MAX_JSON_DEPTH, has a number of more than
            MAX_NUMBER_DIGITS characters, is no UTF-8, or no JSON.
    """
    data = content.encode("utf-8", "surrogatepass") if isinstance(content, str) else content
    if len(data) > limit_bytes:
        raise ValueError(f"has {len(data)} bytes, more than the {limit_bytes} it may have")
    require_shallow(data)
    return json.loads(
        content if isinstance(content, str) else content.decode("utf-8"),
        object_pairs_hook=_unique if is_strict else None,
        parse_constant=_refuse_constant if is_strict else None,
        parse_int=_bounded(int),
        parse_float=_bounded(float),
    )


def require_shallow(data: bytes) -> None:
    """Raise ValueError if a parser would go beyond MAX_JSON_DEPTH in a text, whatever it holds."""
    if _is_deeper(data, MAX_JSON_DEPTH):
        raise ValueError(f"is nested more than {MAX_JSON_DEPTH} levels deep")


def _is_deeper(data: bytes, limit: int) -> bool:
    if data.count(b"[") + data.count(b"{") <= limit:
        return False
    # Escapes first, from the left, as a parser takes them: the quotes left begin and end strings.
    unescaped = data.replace(b"\\\\", b"").replace(b'\\"', b"")
    structure = unescaped.translate(None, _OTHERS).replace(b'""', b"")
    steps = memoryview(_STRING.sub(b"", structure).translate(_STEPS)).cast("b")
    level = 0
    for start in range(0, len(steps), _STEPS_AT_ONCE):
        levels = list(accumulate(steps[start : start + _STEPS_AT_ONCE], initial=level))
        if max(levels) > limit:
            return True
        level = levels[-1]
    return False


def _bounded(kind: Callable[[str], Any]) -> Callable[[str], Any]:
    def parse(text: str) -> Any:
        if len(text) > MAX_NUMBER_DIGITS:
            raise ValueError(f"has a number of {len(text)} digits")
        return kind(text)

    return parse


def _unique(pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    fields = dict(pairs)
    if len(fields) < len(pairs):
        seen: set[str] = set()
        twice = next(name for name, _ in pairs if name in seen or seen.add(name))  # type: ignore[func-returns-value]
        raise ValueError(f"field {twice[:80]!r} occurs twice")
    return fields


def _refuse_constant(name: str) -> Any:
    raise ValueError(f"{name} is no JSON number")


class JsonFields:
    """One JSON object, its fields taken one by one by type and range.

    Args:
        file: URL or path of what it was read from, for messages.
        where: Dotted path of the object in there; empty for the outermost.
        fields: The object.
    """

    def __init__(self, file: str, where: str, fields: Mapping[str, Any]) -> None:
        self.file = file
        self._where = where
        self._fields = fields

    def error(self, name: str, reason: str) -> ManifestError:
        """Return the error that says what is wrong with a field."""
        return ManifestError(self.file, self._path(name), reason)

    def require_names(self, names: Sequence[str]) -> None:
        """Raise ManifestError unless the fields are these and no others."""
        for name in self._fields.keys() - set(names):
            raise self.error(name[:80], "is a field that nobody knows")
        for name in names:
            if name not in self._fields:
                raise self.error(name, "is missing")

    def integer(self, name: str, *, least: int = 0, most: int = MAX_INTEGER) -> int:
        """Return a whole number between two bounds, both allowed."""
        value = self._fields.get(name)
        if type(value) is not int or not least <= value <= most:
            raise self.error(
                name, f"expected a whole number from {least} to {most}, found {_show(value)}"
            )
        return value

    def optional_integer(self, name: str, *, least: int = 0) -> int | None:
        """Return a whole number, or None for null."""
        return None if self._fields.get(name) is None else self.integer(name, least=least)

    def boolean(self, name: str) -> bool:
        """Return true or false."""
        value = self._fields.get(name)
        if type(value) is not bool:
            raise self.error(name, f"expected true or false, found {_show(value)}")
        return value

    def word(self, name: str, *, pattern: re.Pattern[str] = _WORD) -> str:
        """Return a text of at most 1,024 printable ASCII characters that matches a pattern."""
        value = self._fields.get(name)
        if type(value) is not str or len(value) > _MAX_WORD or not pattern.fullmatch(value):
            raise self.error(name, f"expected {pattern.pattern}, found {_show(value)}")
        return value

    def optional_word(self, name: str, *, pattern: re.Pattern[str] = _WORD) -> str | None:
        """Return such a text, or None for null."""
        return None if self._fields.get(name) is None else self.word(name, pattern=pattern)

    def text(self, name: str) -> str:
        """Return a text of any characters but NUL, as a path may be."""
        value = self._fields.get(name)
        if type(value) is not str or "\0" in value or not _is_encodable(value):
            raise self.error(name, f"expected a text, found {_show(value)}")
        return value

    def texts(self, name: str) -> tuple[str, ...]:
        """Return a list of texts as ``text`` returns them."""
        values = self._list(name)
        for value in values:
            if type(value) is not str or "\0" in value or not _is_encodable(value):
                raise self.error(name, f"expected texts, found {_show(value)}")
        return tuple(values)

    def file_name(self, name: str) -> str:
        """Return a text that stays what it is when it becomes the last part of a path."""
        return _require_file_name(self.text(name), self._error_of(name))

    def file_names(self, name: str) -> tuple[str, ...]:
        """Return a list of file names."""
        values = self._list(name)
        error_of = self._error_of(name)
        for value in values:
            if type(value) is not str:
                raise error_of(f"expected file names, found {_show(value)}")
            _require_file_name(value, error_of)
        return tuple(values)

    def objects(self, name: str) -> tuple["JsonFields", ...]:
        """Return a list of objects within this one."""
        return _objects(self._list(name), self.file, self._path(name))

    def fields(self, name: str) -> "JsonFields":
        """Return an object within this one."""
        return JsonFields(self.file, self._path(name), self.mapping(name))

    def mapping(self, name: str) -> Mapping[str, Any]:
        """Return an object within this one as it is, its fields unchecked."""
        value = self._fields.get(name)
        if not isinstance(value, dict):
            raise self.error(name, f"expected an object, found {_show(value)}")
        return value

    def names(self) -> Sequence[str]:
        """Return the names of all fields."""
        return tuple(self._fields)

    def require_format(self, format_name: str, version: int) -> None:
        """Raise ManifestError unless the fields ``format`` and ``version`` are these."""
        found = (self._fields.get("format"), self._fields.get("version"))
        if found != (format_name, version) or type(found[1]) is not int:
            raise self.error(
                "format",
                f"expected {format_name} of version {version}, found {_show(found[0])} of version "
                f"{_show(found[1])}",
            )

    def _list(self, name: str) -> list[Any]:
        value = self._fields.get(name)
        if not isinstance(value, list):
            raise self.error(name, f"expected a list, found {_show(value)}")
        return value

    def _error_of(self, name: str) -> Callable[[str], ManifestError]:
        return lambda reason: self.error(name, reason)

    def _path(self, name: str) -> str:
        return f"{self._where}.{name}" if self._where and name else name or self._where


def parse_json_object(content: bytes, file: str) -> JsonFields:
    """Parse one JSON object.

    Raises:
        ManifestError: The content is no JSON object in UTF-8, is longer or nested deeper than any
            of ours, or names a field twice.
    """
    value = _parse(content, file)
    if not isinstance(value, dict):
        raise ManifestError(file, "", f"expected a JSON object, found {_show(value)}")
    return JsonFields(file, "", value)


@dataclass(frozen=True, slots=True)
class JsonDocument:
    """A small JSON document of ours, which says its format and has just these fields.

    Attributes:
        format: What its field ``format`` says.
        version: What its field ``version`` says.
        fields: Names of all its other fields, in the order in which they are written.
    """

    format: str
    version: int
    fields: tuple[str, ...]

    def parse(self, content: bytes, file: str) -> JsonFields:
        """Parse one; errors as of parse_json_object, and for another format or other fields."""
        document = parse_json_object(content, file)
        document.require_format(self.format, self.version)
        document.require_names(("format", "version", *self.fields))
        return document

    def encode(self, values: Mapping[str, Any], *, is_compact: bool = False) -> bytes:
        """Return the bytes of one with these values, by field; see encode_json_object."""
        return encode_json_object(
            {
                "format": self.format,
                "version": self.version,
                **{name: values[name] for name in self.fields},
            },
            is_compact=is_compact,
        )


def parse_json_objects(content: bytes, file: str) -> tuple[JsonFields, ...]:
    """Parse a list of JSON objects; errors as of parse_json_object."""
    value = _parse(content, file)
    if not isinstance(value, list):
        raise ManifestError(file, "", f"expected a JSON list, found {_show(value)}")
    return _objects(value, file, "")


def _require_file_name(name: str, error_of: Callable[[str], ManifestError]) -> str:
    """Return a name if it is that of an entry of a folder, and of no other one.

    Args:
        name: The name.
        error_of: Returns the error to be raised, for a reason.
    """
    if name in {"", ".", ".."} or "/" in name or "\0" in name:
        raise error_of(f"expected the name of a file, found {_show(name)}")
    return name


def _is_encodable(text: str) -> bool:
    """Whether it can be a path: JSON also spells halves of characters, which are none."""
    try:
        os.fsencode(text)
    except UnicodeEncodeError:
        return False
    return True


def encode_json_object(fields: Mapping[str, Any], *, is_compact: bool = False) -> bytes:
    """Return JSON for people and programs: fields in the order given, a line each.

    Args:
        fields: The object.
        is_compact: Whether it is for programs alone: on one line, without spaces.
    """
    layout: dict[str, Any] = {"separators": (",", ":")} if is_compact else {"indent": 1}
    return (json.dumps(fields, ensure_ascii=True, allow_nan=False, **layout) + "\n").encode()


def _parse(content: bytes, file: str) -> Any:
    try:
        return parse_json(content, limit_bytes=MAX_JSON_BYTES, is_strict=True)
    except ValueError as error:
        raise ManifestError(file, "", f"is no JSON: {error}") from error


def _objects(values: Sequence[Any], file: str, where: str) -> tuple[JsonFields, ...]:
    for number, value in enumerate(values):
        if not isinstance(value, dict):
            reason = f"expected an object, found {_show(value)}"
            raise ManifestError(file, f"{where}[{number}]", reason)
    return tuple(
        JsonFields(file, f"{where}[{number}]", value) for number, value in enumerate(values)
    )


def _show(value: object) -> str:
    return _SHOWN.repr(value)
