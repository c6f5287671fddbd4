"""Dataclasses as JSON and back: fields, and what they are declared to be, are all there is to say.

A value is read as its declared type or not at all, for somebody else may have written it: a saved
plan is applied by whoever is handed it. So whole numbers have 64 bits, texts are UTF-8, and what no
type describes is not nested beyond reason.
"""

import enum
import json
import math
import types
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import MISSING, asdict, fields, is_dataclass
from functools import cache
from typing import TYPE_CHECKING, Any, Final, TypeVar, get_args, get_origin, get_type_hints

from storage_core.filenames import is_text

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

_MAX_INTEGER: Final = 2**63 - 1
_MAX_DEPTH: Final = 50
_SHOWN: Final = 80

T = TypeVar("T")
Reader = Callable[[object], Any]


def to_json(value: "DataclassInstance") -> str:
    """Return a dataclass as one JSON object on one line."""
    return json.dumps(asdict(value))


def from_json(kind: type[T], text: str) -> T:
    """Return the dataclass that ``to_json`` wrote, in this program.

    Raises:
        ValueError: It is another one.
    """
    value: T = read_value(kind, json.loads(text), kind.__name__)
    return value


def read_value(kind: Any, value: object, where: str) -> Any:
    """Return a value of JSON as one of a type.

    Args:
        kind: A plain type, an enum, a dataclass, an optional one of these, or a tuple, a frozenset
            or a mapping of them; Any for what no type describes.
        value: As it was read.
        where: Dotted path of it, for messages.

    Raises:
        ValueError: It is none.
    """
    try:
        return _reader(kind)(value)
    except _MismatchError as error:
        raise ValueError(f"{where}{error.path}: {error.reason}") from None


class _MismatchError(Exception):
    """A value is not of its declared type; its path grows on the way out."""

    def __init__(self, reason: str, path: str = "") -> None:
        super().__init__(reason, path)
        self.reason, self.path = reason, path

    def within(self, step: str) -> "_MismatchError":
        """Return the same of the value that this one is in."""
        return _MismatchError(self.reason, step + self.path)


@cache
def _reader(kind: Any) -> Reader:
    """Return what reads values of a type: a plan has a hundred thousand of them."""
    origin, kinds = get_origin(kind), get_args(kind)
    if origin is types.UnionType:
        (only,) = (_reader(member) for member in kinds if member is not types.NoneType)
        return lambda value: None if value is None else only(value)
    if origin is not None:
        return _mapping_reader(kinds[1]) if issubclass(origin, Mapping) else _list_reader(kind)
    if kind is Any:
        return _read_any
    if is_dataclass(kind):
        return _fields_reader(kind)
    return _enum_reader(kind) if issubclass(kind, enum.Enum) else _PLAIN_READERS[kind]


# A truth is a whole number in Python, and nowhere else: types are compared, not asked for.


def _read_integer(value: object) -> object:
    if type(value) is not int:
        raise _unexpected("int", value)
    if not -_MAX_INTEGER - 1 <= value <= _MAX_INTEGER:
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


_PLAIN_READERS: Final[Mapping[type, Reader]] = {
    int: _read_integer,
    str: _read_text,
    bool: _read_truth,
    float: _read_float,
}


def _enum_reader(kind: type[enum.Enum]) -> Reader:
    members = {member.value: member for member in kind}

    def read(value: object) -> enum.Enum:
        if not isinstance(value, str) or value not in members:
            raise _unexpected(f"one of {', '.join(map(str, members))}", value)
        return members[value]

    return read


def _mapping_reader(kind: Any) -> Reader:
    read_inner = _reader(kind)

    def read(value: object) -> dict[str, Any]:
        if not isinstance(value, dict):
            raise _unexpected("an object", value)
        values = {}
        for name, inner in value.items():
            try:
                values[name] = read_inner(inner)
            except _MismatchError as error:
                raise error.within(f".{name}") from None
        return values

    return read


def _list_reader(kind: Any) -> Reader:
    origin, read_inner = get_origin(kind), _reader(get_args(kind)[0])

    def read(value: object) -> Any:
        if not isinstance(value, list):
            raise _unexpected("a list", value)
        values = []
        for inner in value:
            try:
                values.append(read_inner(inner))
            except _MismatchError as error:
                raise error.within(f"[{len(values)}]") from None
        return origin(values)

    return read


def _fields_reader(kind: Any) -> Reader:
    hints = get_type_hints(kind)
    readers = {each.name: _reader(hints[each.name]) for each in fields(kind)}
    required = [
        each.name
        for each in fields(kind)
        if each.default is MISSING and each.default_factory is MISSING
    ]

    def read(value: object) -> Any:
        if not isinstance(value, dict):
            raise _unexpected("an object", value)
        if value.keys() != readers.keys():
            _require_names(value, readers, required)
        values = {}
        for name, inner in value.items():
            try:
                values[name] = readers[name](inner)
            except _MismatchError as error:
                raise error.within(f".{name}") from None
        return kind(**values)

    return read


def _require_names(
    value: Mapping[str, object], names: Collection[str], required: Iterable[str]
) -> None:
    for name in value:
        if name not in names:
            raise _MismatchError("is a field that nobody knows", f".{name[:_SHOWN]}")
    for name in required:
        if name not in value:
            raise _MismatchError("is missing", f".{name}")


def _read_any(value: object) -> object:
    _require_shallow(value, _MAX_DEPTH)
    return value


def _require_shallow(value: object, left: int) -> None:
    if left == 0:
        raise _MismatchError("is nested beyond reason")
    inner = value.values() if isinstance(value, dict) else value
    if isinstance(value, dict | list):
        for each in inner:  # type: ignore[attr-defined]
            _require_shallow(each, left - 1)


def _unexpected(expected: str, found: object) -> _MismatchError:
    shown = type(found).__name__ if isinstance(found, dict | list) else repr(found)[:_SHOWN]
    return _MismatchError(f"expected {expected}, found {shown}")
