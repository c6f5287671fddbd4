"""Values of a file that somebody else may have written, read as what fields are declared to be.

A saved plan is applied by whoever is handed it. So each of its values has to be of the declared
type, whole numbers have 64 bits, and what no type describes is not nested beyond reason.
"""

import enum
import math
import types
from collections.abc import Mapping
from dataclasses import MISSING, fields, is_dataclass
from functools import lru_cache
from typing import Any, Final, get_args, get_origin, get_type_hints

from storage_core.filenames import is_text

_MAX_INTEGER: Final = 2**63 - 1
_MAX_DEPTH: Final = 50
_SHOWN: Final = 80


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
    origin = get_origin(kind)
    if origin is types.UnionType:
        (only,) = (member for member in get_args(kind) if member is not type(None))
        return None if value is None else read_value(only, value, where)
    if origin is not None:
        return _read_many(origin, get_args(kind), value, where)
    if is_dataclass(kind) and isinstance(kind, type):
        return _read_fields(kind, value, where)
    if kind is Any:
        _require_shallow(value, where, _MAX_DEPTH)
        return value
    if isinstance(kind, type) and issubclass(kind, enum.Enum):
        known = {member.value: member for member in kind}
        if not isinstance(value, str) or value not in known:
            raise _unexpected(where, f"one of {', '.join(map(str, known))}", value)
        return known[value]
    return _read_plain(kind, value, where)


def _read_plain(kind: type, value: object, where: str) -> Any:
    if kind is float and type(value) in {int, float} and not math.isnan(value):  # type: ignore[arg-type]
        return value
    # A truth is a whole number in Python, and nowhere else.
    if type(value) is not kind:
        raise _unexpected(where, kind.__name__, value)
    if isinstance(value, int) and abs(value) > _MAX_INTEGER:
        raise _unexpected(where, "a number of 64 bits", value)
    if isinstance(value, str) and not is_text(value):
        raise _unexpected(where, "text that is UTF-8", value)
    return value


def _read_many(origin: Any, kinds: tuple[Any, ...], value: object, where: str) -> Any:
    if issubclass(origin, Mapping):
        if not isinstance(value, dict):
            raise _unexpected(where, "an object", value)
        return {
            name: read_value(kinds[1], inner, f"{where}.{name}") for name, inner in value.items()
        }
    if not isinstance(value, list):
        raise _unexpected(where, "a list", value)
    return origin(
        read_value(kinds[0], inner, f"{where}[{number}]") for number, inner in enumerate(value)
    )


def _read_fields(kind: type, value: object, where: str) -> Any:
    if not isinstance(value, dict):
        raise _unexpected(where, "an object", value)
    hints, required = _hints(kind)
    for name in value:
        if name not in hints:
            raise ValueError(f"{where}.{name[:_SHOWN]}: is a field that nobody knows")
    for name in required:
        if name not in value:
            raise ValueError(f"{where}.{name}: is missing")
    return kind(
        **{name: read_value(hints[name], inner, f"{where}.{name}") for name, inner in value.items()}
    )


@lru_cache
def _hints(kind: Any) -> tuple[dict[str, Any], tuple[str, ...]]:
    """Return the types of a dataclass's fields, and which of them have no default."""
    required = tuple(
        field.name
        for field in fields(kind)
        if field.default is MISSING and field.default_factory is MISSING
    )
    return get_type_hints(kind), required


def _require_shallow(value: object, where: str, left: int) -> None:
    if left == 0:
        raise ValueError(f"{where}: is nested beyond reason")
    inner = value.values() if isinstance(value, dict) else value
    if isinstance(value, dict | list):
        for each in inner:  # type: ignore[attr-defined]
            _require_shallow(each, where, left - 1)


def _unexpected(where: str, expected: str, found: object) -> ValueError:
    shown = type(found).__name__ if isinstance(found, dict | list) else repr(found)[:_SHOWN]
    return ValueError(f"{where}: expected {expected}, found {shown}")
