"""Let dataclasses of this program compile their methods when these are first called.

A short command imports hundreds of dataclasses and makes objects of few of them. To compile
``__init__``, ``__repr__``, ``__eq__`` and the others of all of them takes a third of its start.

A frozen object with slots is made in two thirds of the time where each field is set by its slot:
``object.__setattr__``, by which others set it, looks for the slot by its name each time. A task
makes a thousand such objects for a partition of fifty segments. So they are pickled, too, and read:
what a task is given has some for each partition.
"""

import dataclasses
import functools
import re
from collections.abc import Callable, Sequence
from types import MemberDescriptorType
from typing import Any, Final

_OUR_MODULES: Final = ("pylog_spark.", "storage_core.")
# Compiles one method in Python 3.11 and 3.12; later ones compile all of a class at once.
_MAKER: Final = "_create_fn"
# How a line of ``__init__`` sets a field of a frozen object.
_FROZEN_LINE: Final = re.compile(
    r"__dataclass_builtins_object__\.__setattr__\((\w+),'(\w+)',(.*)\)", re.DOTALL
)


def make_methods_late() -> None:
    """Let this process, which is ours, spare the methods that nobody calls."""
    make = getattr(dataclasses, _MAKER, None)
    if make is not None and make.__module__ == dataclasses.__name__:
        setattr(dataclasses, _MAKER, _late(make))
    for name, method in (("_dataclass_getstate", _state), ("_dataclass_setstate", _set_state)):
        if hasattr(dataclasses, name):
            setattr(dataclasses, name, method)


@functools.cache
def _setters(kind: Any) -> dict[str, Callable[[Any, Any], None]]:
    """Return how each field of a class is set, by its name: by its slot if it has one.

    A class that is pickled by value comes back without slots.
    """
    setters: dict[str, Callable[[Any, Any], None]] = {}
    for each in dataclasses.fields(kind):
        slot = getattr(kind, each.name, None)
        if isinstance(slot, MemberDescriptorType):
            setters[each.name] = slot.__set__
        else:
            setters[each.name] = functools.partial(_set_attribute, each.name)
    return setters


def _set_attribute(name: str, self: Any, value: Any) -> None:
    object.__setattr__(self, name, value)


def _state(self: Any) -> list[Any]:
    """Return what a pickle has of a frozen object with slots: its values, as dataclasses do."""
    kind: Any = type(self)
    return [getattr(self, name) for name in _setters(kind)]


def _set_state(self: Any, state: Sequence[Any]) -> None:
    kind: Any = type(self)
    for set_field, value in zip(_setters(kind).values(), state, strict=True):
        set_field(self, value)


def _late(make: Callable[..., Any]) -> Callable[..., Any]:
    """Return what makes methods of our modules when they are called, and others at once."""

    def make_late(name: str, *source: Any, **scope: Any) -> Any:
        if not (scope.get("globals") or {}).get("__name__", "").startswith(_OUR_MODULES):
            return make(name, *source, **scope)

        def method(self: Any, /, *values: Any, **named: Any) -> Any:
            kinds = [each for each in type(self).__mro__ if vars(each).get(name) is method]
            arguments, body = source
            if kinds and name == "__init__":
                body = _set_by_slots(kinds[0], body, scope["locals"])
            made = make(name, arguments, body, **scope)
            made.__qualname__ = method.__qualname__
            for kind in kinds:
                setattr(kind, name, made)
            return made(self, *values, **named)

        method.__name__ = name
        return method

    return make_late


def _set_by_slots(kind: type, body: Sequence[str], scope: dict[str, Any]) -> list[str]:
    """Return the lines of a frozen class's ``__init__`` with fields set by their slots.

    Args:
        scope: The names that the lines use; gets those of the slots.
    """
    lines = []
    for line in body:
        found = _FROZEN_LINE.fullmatch(line)
        slot = getattr(kind, found[2], None) if found else None
        if found and isinstance(slot, MemberDescriptorType):
            scope[f"_set_{found[2]}"] = slot.__set__
            lines.append(f"_set_{found[2]}({found[1]},{found[3]})")
        else:
            lines.append(line)
    return lines
