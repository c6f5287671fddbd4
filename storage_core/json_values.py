"""Read dataclasses from JSON, and write them.

The fields of a dataclass, and what they are declared to be, are all there is to say. A value is
read as its declared type or not at all, for somebody else may have written it: a saved plan is
applied by whoever is handed it. So whole numbers have 64 bits, texts are UTF-8, and what no type
describes is not nested beyond reason. Narrower types have a reader of their own::

    generation: Annotated[int, whole(1)]
    name: FileName

What JSON calls otherwise, or lays out otherwise, says so in its declaration::

    size_bytes: Annotated[Count, Key("size")]
    proof: Annotated[LeaseProof, INLINE]  # its fields are fields of the outer object
    adopted: Annotated[tuple[str, ...], OMITTED] = ()  # is not there where it has its default

``JsonFile`` is the door for files and objects that outlive a process; ``to_json`` and ``from_json``
serve messages between processes of one run.
"""

import base64
import binascii
import enum
import json
import math
import os
import re
import types
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import MISSING, dataclass, fields, is_dataclass
from functools import cache, partial
from itertools import accumulate
from operator import attrgetter
from pathlib import Path, PurePath
from typing import (
    TYPE_CHECKING,
    Annotated,
    Any,
    Final,
    Generic,
    TypeVar,
    Union,
    get_args,
    get_origin,
    get_type_hints,
)

from storage_core.errors import ManifestError
from storage_core.filenames import is_text

if TYPE_CHECKING:
    from _typeshed import DataclassInstance


# Parse JSON, perhaps another user's, of bounded size and depth.
#
# Python's parser calls itself for each level. How many it bears hangs on its version and on the
# thread's stack: from 3.12 on a text of some thousand levels ends a process whose stack is small,
# or was fenced off by a JVM, without an exception. Whatever is not of our own process's making is
# parsed here.

MAX_JSON_DEPTH: Final = 64
# A double has at most 309 digits before its point; Kafka's and our numbers have at most 19.
MAX_NUMBER_DIGITS: Final = 400
_STRUCTURE: Final = b'"[]{}'
_OTHERS: Final = bytes(sorted(set(range(256)) - set(_STRUCTURE)))
_STEPS: Final = bytes.maketrans(b"[]{}", b"\x01\xff\x01\xff")  # one level down, one up again
_STEPS_AT_ONCE: Final = 1 << 16
_STRING: Final = re.compile(rb'"[^"]*(?:"|\Z)')
MAX_INTEGER: Final = 2**63 - 1
# A bound for any text: a claim on a partition of many segments. Readers set tighter ones.
MAX_JSON_BYTES: Final = 1 << 30


def parse_json(content: bytes | str, *, limit_bytes: int, is_strict: bool = False) -> Any:
    """Parse UTF-8 JSON in time and memory linear in its length.

    Args:
        limit_bytes: The most that it may have.
        is_strict: Refuse what Python takes beyond JSON, or takes twice: ``NaN``, and a field that
            stands twice in an object.
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
    """Raise ValueError if a JSON text nests deeper than MAX_JSON_DEPTH."""
    if _is_deeper(data, MAX_JSON_DEPTH):
        raise ValueError(f"is nested more than {MAX_JSON_DEPTH} levels deep")


def _is_deeper(data: bytes, limit: int) -> bool:
    if data.count(b"[") + data.count(b"{") <= limit:
        return False
    # Escapes first, from the left, as in a parser: the remaining quotes begin and end strings.
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
        names: set[str] = set()
        twice = next(name for name, _ in pairs if name in names or names.add(name))  # type: ignore[func-returns-value]
        raise ValueError(f"field {twice[:80]!r} occurs twice")
    return fields


def _refuse_constant(name: str) -> Any:
    raise ValueError(f"{name} is no JSON number")


_MAX_DEPTH: Final = 50
_MAX_WORD: Final = 1024
_SHOWN: Final = 80
_PLAIN_TYPES: Final = frozenset({str, int, float, bool, type(None)})

T = TypeVar("T")
Reader = Callable[[object], Any]


class MismatchError(ValueError):
    """A value does not have its declared type. Each caller adds its part of the path."""

    def __init__(self, reason: str, path: str = "") -> None:
        super().__init__(reason, path)
        self.reason, self.path = reason, path

    def within(self, step: str) -> "MismatchError":
        """Return the same of the value that this one is in."""
        return MismatchError(self.reason, step + self.path)


@dataclass(frozen=True, slots=True)
class Key:
    """A field's key in JSON, if it is not the field's name."""

    name: str


class Placement(enum.Enum):
    """A field's place in JSON: inline, or omitted if default. Any other field has a key of its
    own."""

    INLINE = "the fields of the dataclass that it is stand among the outer ones"
    OMITTED = "not there where it has its default"


INLINE: Final = Placement.INLINE
OMITTED: Final = Placement.OMITTED


@dataclass(frozen=True, slots=True)
class Layout:
    """The JSON layout of a file: ``json.dumps`` arguments and the ending."""

    indent: int | None = None
    separators: tuple[str, str] | None = None
    end: str = ""


ONE_LINE: Final = Layout()
COMPACT_LINE: Final = Layout(separators=(",", ":"), end="\n")
SPREAD: Final = Layout(indent=1, end="\n")
SPREAD_WITHOUT_END: Final = Layout(indent=1)


def to_json(value: "DataclassInstance") -> str:
    """Return a dataclass as one JSON object on one line."""
    return json.dumps(to_plain(value))


def from_json(kind: type[T], text: str) -> T:
    """Return the dataclass that ``to_json`` wrote, in this program."""
    value: T = read_value(kind, json.loads(text), kind.__name__)
    return value


def read_value(kind: Any, value: object, where: str) -> Any:
    """Convert a JSON value to a type; defaults fill missing fields.

    Args:
        kind: A plain type, an enum, a dataclass, an optional one of these, or a tuple, a frozenset
            or a mapping of them; Any for what no type describes.
        where: Dotted path of it, for messages.
    """
    try:
        return _reader(kind, is_whole=False)(value)
    except MismatchError as error:
        raise ValueError(f"{where}{error.path}: {error.reason}") from None


def read_part(kind: Any, value: object, *, file: str, where: str) -> Any:
    """Convert a JSON value with all its fields from a file."""
    try:
        return _reader(kind, is_whole=True)(value)
    except MismatchError as error:
        path = f"{where}{error.path}".removeprefix(".")
        raise ManifestError(file, path, error.reason) from None


def parse_object(content: bytes, file: str) -> dict[str, Any]:
    """Parse one JSON object, whatever is in it."""
    value = _parse(content, file)
    if not isinstance(value, dict):
        raise ManifestError(file, "", _unexpected("a JSON object", value).reason)
    return value


def _parse(content: bytes, file: str) -> Any:
    try:
        return parse_json(content, limit_bytes=MAX_JSON_BYTES, is_strict=True)
    except ValueError as error:
        raise ManifestError(file, "", f"is no JSON: {error}") from error


@dataclass(frozen=True, slots=True)
class JsonFile(Generic[T]):
    """The format of a JSON file or object for a dataclass."""

    kind: type[T]
    format: str | None = None  # the value of its first field ``format``; None without such a field
    version: int = 1  # the value of its second field ``version``, if it has a format
    layout: Layout = SPREAD
    is_open: bool = False  # whether fields that nobody knows are passed over

    def parse(self, content: bytes, file: str) -> T:
        """Return what a file holds.

        Args:
            file: URL or path of it, for messages.
        """
        if not is_dataclass(self.kind):
            part: T = read_part(self.kind, _parse(content, file), file=file, where="")
            return part
        return self.read(parse_object(content, file), file)

    def read(self, values: Mapping[str, Any], file: str) -> T:
        """Return what a parsed object holds; errors as of parse."""
        if self.format is not None:
            form = (values.get("format"), values.get("version"))
            if form != (self.format, self.version) or type(form[1]) is not int:
                raise ManifestError(
                    file,
                    "format",
                    f"expected {self.format} of version {self.version}, found {_show(form[0])} "
                    f"of version {_show(form[1])}",
                )
            values = {name: values[name] for name in values if name not in {"format", "version"}}
        if self.is_open:
            kind: Any = self.kind
            names = _readers_by_key(kind, is_whole=True)
            values = {name: values[name] for name in values if name in names}
        value: T = read_part(self.kind, values, file=file, where="")
        return value

    def encode(self, value: T, *, layout: Layout | None = None) -> bytes:
        """Return the content of a file, with fields of the declared class. Fields of a subclass
        are left out."""
        plain: Any = value
        if is_dataclass(self.kind):
            head = {} if self.format is None else {"format": self.format, "version": self.version}
            kind: Any = self.kind
            plain = head | _values_getter(kind)(value)
        layout = layout or self.layout
        # A claim has hundreds of steps and versions: values that JSON has are not walked here.
        text = json.dumps(
            plain,
            allow_nan=False,
            indent=layout.indent,
            separators=layout.separators,
            default=_one_as_plain,
        )
        return (text + layout.end).encode()


def to_plain(value: Any) -> Any:
    """Return dataclasses, and what has them in it, as what JSON has."""
    if type(value) in _PLAIN_TYPES:  # nearly all values: the checks below are slower
        return value
    if isinstance(value, Mapping):
        return {name: to_plain(inner) for name, inner in value.items()}
    if isinstance(value, list | tuple):
        return [to_plain(inner) for inner in value]
    return to_plain(field_values(value)) if is_dataclass(value) else _one_as_plain(value)


def field_values(value: Any) -> dict[str, Any]:
    """Return the fields of a dataclass under their keys, with the values as they are."""
    kind: Any = type(value)
    return _values_getter(kind)(value)


def _one_as_plain(value: Any) -> Any:
    """Return a value that JSON has not as one that it has, with what is in it as it is."""
    kind: Any = type(value)
    return _plain_of(kind)(value)


@cache
def _plain_of(kind: type) -> Callable[[Any], Any]:
    """Return what makes a value of a type one that JSON has."""
    if is_dataclass(kind):
        return _values_getter(kind)
    if issubclass(kind, Mapping):
        return dict
    if issubclass(kind, bytes):
        return lambda value: base64.b64encode(value).decode()
    return str if issubclass(kind, PurePath) else lambda value: value


@cache
def _values_getter(kind: Any) -> Callable[[Any], dict[str, Any]]:
    """Return what returns the fields of a dataclass under their keys."""
    json_fields = _json_fields(kind)
    if not json_fields[1:] or any(each.is_inline or each.is_omitted for each in json_fields):
        return partial(_some_values, json_fields)
    keys = [each.key for each in json_fields]
    values_of = attrgetter(*(each.name for each in json_fields))
    return lambda value: dict(zip(keys, values_of(value), strict=True))


def _some_values(json_fields: "Sequence[_JsonField]", value: Any) -> dict[str, Any]:
    values: dict[str, Any] = {}
    for each in json_fields:
        inner = getattr(value, each.name)
        if each.is_inline:
            values |= field_values(inner)
        elif not each.is_omitted or inner != each.default:
            values[each.key] = inner
    return values


@dataclass(frozen=True, slots=True, kw_only=True)
class _JsonField:
    """A field of a dataclass and its place in JSON."""

    name: str
    key: str
    kind: Any  # its declared type
    default: Any  # MISSING where it has none, or one that is made anew
    has_default: bool
    is_inline: bool  # whether its own fields stand among the outer ones
    is_omitted: bool  # whether it is not there where it has its default


@cache
def _json_fields(kind: Any) -> tuple[_JsonField, ...]:
    hints = get_type_hints(kind, include_extras=True)
    json_fields = []
    for each in fields(kind):
        marks = get_args(hints[each.name])[1:] if _is_annotated(hints[each.name]) else ()
        keys = [mark.name for mark in marks if isinstance(mark, Key)]
        json_fields.append(
            _JsonField(
                name=each.name,
                key=keys[0] if keys else each.name,
                kind=hints[each.name],
                default=each.default,
                has_default=(each.default, each.default_factory) != (MISSING, MISSING),
                is_inline=INLINE in marks,
                is_omitted=OMITTED in marks,
            )
        )
    return tuple(json_fields)


def _is_annotated(kind: Any) -> bool:
    return get_origin(kind) is Annotated


@cache
def _reader(kind: Any, *, is_whole: bool) -> Reader:
    """Return the cached reader function for values of a type. It is cached since a plan has a
    hundred thousand values.

    Args:
        is_whole: Whether a field of a dataclass has to be there although it has a default.
    """
    origin, kinds = get_origin(kind), get_args(kind)
    if origin is Annotated:
        readers = [mark for mark in kinds[1:] if callable(mark)]
        return readers[0] if readers else _reader(kinds[0], is_whole=is_whole)
    if origin in {types.UnionType, Union}:
        (some,) = (member for member in kinds if member is not types.NoneType)
        read_some = _reader(some, is_whole=is_whole)
        return lambda value: None if value is None else read_some(value)
    if origin is not None:
        if issubclass(origin, Mapping):
            return _mapping_reader(kinds[0], _reader(kinds[1], is_whole=is_whole))
        return _list_reader(origin, _reader(kinds[0], is_whole=is_whole))
    if is_dataclass(kind):
        return _fields_reader(kind, is_whole=is_whole)
    return _PLAIN_READERS[kind] if kind in _PLAIN_READERS else _enum_reader(kind)


# In Python a bool is an int, but not in JSON: compare types exactly.


def _read_integer(value: object) -> object:
    if type(value) is not int:
        raise _unexpected("int", value)
    if not -MAX_INTEGER - 1 <= value <= MAX_INTEGER:
        raise _unexpected("a number of 64 bits", value)
    return value


def _read_text(value: object) -> object:
    if type(value) is not str:
        raise _unexpected("str", value)
    if not value.isascii() and not is_text(value):
        raise _unexpected("text that is UTF-8", value)
    return value


def _read_truth(value: object) -> object:
    if type(value) is not bool:
        raise _unexpected("bool", value)
    return value


def _read_float(value: object) -> object:
    if type(value) not in {int, float} or math.isnan(value):  # type: ignore[arg-type]
        raise _unexpected("float", value)
    return value


def _read_system_text(value: object) -> str:
    # JSON can also spell surrogates; those that stand for a byte of a path are allowed.
    if type(value) is not str or "\0" in value:
        raise _unexpected("a text", value)
    try:
        os.fsencode(value)
    except UnicodeEncodeError:
        raise _unexpected("a text", value) from None
    return value


def _read_file_name(value: object) -> str:
    name = _read_system_text(value)
    if name in {"", ".", ".."} or "/" in name:
        raise _unexpected("the name of a file", value)
    return name


def _read_bytes(value: object) -> bytes:
    try:
        return base64.b64decode(_read_system_text(value), validate=True)
    except (binascii.Error, ValueError) as error:
        raise MismatchError(f"expected base64: {error}") from error


def _read_any(value: object) -> object:
    _require_shallow(value, _MAX_DEPTH)
    return value


def _require_shallow(value: object, levels: int) -> None:
    if levels == 0:
        raise MismatchError("is nested beyond reason")
    inner = value.values() if isinstance(value, dict) else value
    if isinstance(value, dict | list):
        for each in inner:  # type: ignore[attr-defined]
            _require_shallow(each, levels - 1)


_PLAIN_READERS: Final[Mapping[Any, Reader]] = {
    Any: _read_any,
    int: _read_integer,
    str: _read_text,
    bool: _read_truth,
    float: _read_float,
    bytes: _read_bytes,
    Path: lambda value: Path(_read_system_text(value)),
}


def whole(least: int = 0, most: int = MAX_INTEGER) -> Reader:
    """Return a reader of whole numbers between two bounds, both allowed."""

    def read(value: object) -> int:
        if type(value) is not int or not least <= value <= most:
            raise _unexpected(f"a whole number from {least} to {most}", value)
        return value

    return read


def word(pattern: str = r"[\x20-\x7e]*") -> Reader:
    """Return a reader of ASCII strings that match a pattern. A string has at most 1,024
    printable characters."""
    compiled = re.compile(pattern)

    def read(value: object) -> str:
        if type(value) is not str or len(value) > _MAX_WORD or not compiled.fullmatch(value):
            raise _unexpected(pattern, value)
        return value

    return read


Count = Annotated[int, whole()]
Word = Annotated[str, word()]
# A text without NUL, as in a path.
SystemText = Annotated[str, _read_system_text]
# A name that stays itself as the last part of a path.
FileName = Annotated[str, _read_file_name]


def _enum_reader(kind: type[enum.Enum]) -> Reader:
    members = {member.value: member for member in kind}

    def read(value: object) -> enum.Enum:
        if not isinstance(value, str) or value not in members:
            raise _unexpected(f"one of {', '.join(map(str, members))}", value)
        return members[value]

    return read


def _mapping_reader(key_kind: Any, read_inner: Reader) -> Reader:
    read_key = _reader(key_kind, is_whole=True) if _is_annotated(key_kind) else None

    def read(value: object) -> dict[str, Any]:
        if not isinstance(value, dict):
            raise _unexpected("an object", value)
        values = {}
        for name, inner in value.items():
            try:
                values[name if read_key is None else read_key(name)] = read_inner(inner)
            except MismatchError as error:
                raise error.within(f".{name[:_SHOWN]}") from None
        return values

    return read


def _list_reader(origin: Callable[[list[Any]], Any], read_inner: Reader) -> Reader:
    def read(value: object) -> Any:
        if not isinstance(value, list):
            raise _unexpected("a list", value)
        values: list[Any] = []
        for inner in value:
            try:
                values.append(read_inner(inner))
            except MismatchError as error:
                raise error.within(f"[{len(values)}]") from None
        return origin(values)

    return read


@cache
def _readers_by_key(kind: Any, *, is_whole: bool) -> dict[str, tuple[str, Reader]]:
    """Return the readers of a dataclass's fields, by key. Fields of inline dataclasses are
    included."""
    readers: dict[str, tuple[str, Reader]] = {}
    for json_field in _json_fields(kind):
        if json_field.is_inline:
            readers |= _readers_by_key(get_args(json_field.kind)[0], is_whole=is_whole)
        else:
            readers[json_field.key] = (json_field.name, _reader(json_field.kind, is_whole=is_whole))
    return readers


def _required(kind: Any, *, is_whole: bool) -> Iterable[str]:
    """Yield the keys that have to be there."""
    for json_field in _json_fields(kind):
        if json_field.is_inline:
            yield from _required(get_args(json_field.kind)[0], is_whole=is_whole)
        elif not (json_field.is_omitted if is_whole else json_field.has_default):
            yield json_field.key


def _fields_reader(kind: Any, *, is_whole: bool) -> Reader:
    readers = _readers_by_key(kind, is_whole=is_whole)
    required = tuple(_required(kind, is_whole=is_whole))
    inline = [
        (json_field.name, get_args(json_field.kind)[0])
        for json_field in _json_fields(kind)
        if json_field.is_inline
    ]

    def read(value: object) -> Any:
        if not isinstance(value, dict):
            raise _unexpected("an object", value)
        if value.keys() != readers.keys():
            _require_names(value, readers, required)
        values = {}
        for key, inner in value.items():
            name, read_inner = readers[key]
            try:
                values[name] = read_inner(inner)
            except MismatchError as error:
                raise error.within(f".{key}") from None
        for name, inner_kind in inline:
            parts = [part.name for part in _json_fields(inner_kind)]
            values[name] = inner_kind(**{part: values.pop(part) for part in parts})
        return kind(**values)

    return read


def _require_names(
    value: Mapping[str, object], names: Collection[str], required: Iterable[str]
) -> None:
    for name in value:
        if name not in names:
            raise MismatchError("is a field that nobody knows", f".{name[:_SHOWN]}")
    for name in required:
        if name not in value:
            raise MismatchError("is missing", f".{name}")


def _unexpected(expected: str, value: object) -> MismatchError:
    return MismatchError(f"expected {expected}, found {_show(value)}")


def _show(value: object) -> str:
    return type(value).__name__ if isinstance(value, dict | list) else repr(value)[:_SHOWN]
