"""Let dataclasses of this program compile their methods when these are first called.

A short command imports hundreds of dataclasses and makes objects of few of them. To compile
``__init__``, ``__repr__``, ``__eq__`` and the others of all of them takes a third of its start.
"""

import dataclasses
from collections.abc import Callable
from typing import Any, Final

_OUR_MODULES: Final = ("pylog_spark.", "storage_core.")
# Compiles one method in Python 3.11 and 3.12; later ones compile all of a class at once.
_MAKER: Final = "_create_fn"


def make_methods_late() -> None:
    """Let this process, which is ours, spare the methods that nobody calls."""
    make = getattr(dataclasses, _MAKER, None)
    if make is not None and make.__module__ == dataclasses.__name__:
        setattr(dataclasses, _MAKER, _late(make))


def _late(make: Callable[..., Any]) -> Callable[..., Any]:
    """Return what makes methods of our modules when they are called, and others at once."""

    def make_late(name: str, *source: Any, **scope: Any) -> Any:
        if not (scope.get("globals") or {}).get("__name__", "").startswith(_OUR_MODULES):
            return make(name, *source, **scope)

        def method(self: Any, /, *values: Any, **named: Any) -> Any:
            made = make(name, *source, **scope)
            made.__qualname__ = method.__qualname__
            for kind in type(self).__mro__:
                if vars(kind).get(name) is method:
                    setattr(kind, name, made)
            return made(self, *values, **named)

        method.__name__ = name
        return method

    return make_late
