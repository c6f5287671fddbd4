"""Dataclasses whose methods are compiled when they are called do what others do."""

import dataclasses
import pickle
import subprocess
import sys
from collections.abc import Callable
from dataclasses import FrozenInstanceError, dataclass, field, replace
from functools import partial
from types import FunctionType
from typing import Any

import pytest

from pylog_spark.late_methods import make_methods_late

HAS_MAKER = hasattr(dataclasses, "_create_fn")
needs_maker = pytest.mark.skipif(not HAS_MAKER, reason="this Python compiles classes at once")


@pytest.fixture(autouse=True)
def late(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make methods late for the time of a test."""
    for name in ("_create_fn", "_dataclass_getstate", "_dataclass_setstate"):
        if hasattr(dataclasses, name):
            monkeypatch.setattr(dataclasses, name, getattr(dataclasses, name))
    make_methods_late()


def _classes(module: str) -> tuple[Any, Any]:
    """Return a frozen class and one that inherits it, as a module of that name has them."""
    scope: dict[str, Any] = {"__name__": module}
    sources = {"dataclass": dataclass, "field": field}
    text = """
@dataclass(frozen=True, slots=True, order=True)
class Point:
    x: int
    y: list = field(default_factory=list)
    name: str = "p"

    def __post_init__(self):
        if self.x < 0:
            raise ValueError(self.x)


@dataclass(frozen=True, slots=True, kw_only=True)
class Named(Point):
    title: str
"""
    exec(text, scope | sources, made := scope | sources)  # noqa: S102  # our own text
    return made["Point"], made["Named"]


def _module_classes(module: str, monkeypatch: pytest.MonkeyPatch) -> tuple[Any, Any]:
    monkeypatch.setitem(sys.modules, module, type(sys)(module))
    vars(sys.modules[module]).update({"dataclass": dataclass, "field": field})
    point, named = _classes(module)
    vars(sys.modules[module]).update({"Point": point, "Named": named})
    return point, named


def _says(work: Callable[[], object]) -> str:
    """Return what work answers, or how it fails, without the module's name."""
    try:
        return repr(work())
    except Exception as error:  # noqa: BLE001  # of either side
        return f"{type(error).__name__}: {error}"


def test_late_methods_answer_as_those_that_are_compiled_at_once(monkeypatch):
    works = {
        "made": lambda point, _: point(1),
        "all given": lambda point, _: point(1, [2], name="q"),
        "compared": lambda point, _: (point(1) == point(1), point(1) < point(2), point(1) == 1),
        "hashed": lambda point, _: hash(point(1, (), "n")) == hash(point(1, (), "n")),
        "without hash": lambda point, _: hash(point(1)),
        "own lists": lambda point, _: point(1).y is point(1).y,
        "refused": lambda point, _: point(-1),
        "too few": lambda point, _: point(),
        "unknown": lambda point, _: point(1, z=1),
        "replaced": lambda point, _: replace(point(1), name="r"),
        "inherited": lambda _, named: named(1, title="t"),
        "inherited, compared": lambda _, named: named(1, title="t") == named(1, title="u"),
        "inherited, too few": lambda _, named: named(1),
    }
    for what, work in works.items():
        # Classes of their own each time: the first call of a method is the one that makes it.
        late = _module_classes("storage_core.late", monkeypatch)
        others = _module_classes("elsewhere", monkeypatch)
        assert _says(partial(work, *late)) == _says(partial(work, *others)), what
        assert _says(partial(work, *late)) == _says(partial(work, *others)), f"{what}, again"


def test_late_classes_stay_frozen_and_can_be_pickled(monkeypatch):
    point, named = _module_classes("storage_core.late", monkeypatch)
    for each in (point(1), named(2, title="t")):
        with pytest.raises(FrozenInstanceError):
            each.x = 3
        with pytest.raises(FrozenInstanceError):
            del each.x
        assert pickle.loads(pickle.dumps(each)) == each


def test_what_one_process_pickles_another_reads_that_has_no_late_methods(monkeypatch):
    point, named = _module_classes("storage_core.late", monkeypatch)
    late = [pickle.dumps(each) for each in (point(1), named(2, title="t"))]
    assert vars(point)["__getstate__"].__module__ == make_methods_late.__module__
    monkeypatch.undo()
    point, named = _module_classes("storage_core.late", monkeypatch)
    plain = [point(1), named(2, title="t")]
    assert [pickle.loads(each) for each in late] == plain
    assert [pickle.dumps(each) for each in plain] == late


def test_a_class_that_came_back_without_slots_is_read_as_well():
    point, _ = _classes("storage_core.points")
    names = ("__dataclass_fields__", "__setstate__")
    read: Any = type("Point", (), {name: getattr(point, name) for name in names})()
    read.__setstate__([1, [], "p"])
    assert vars(read) == {"x": 1, "y": [], "name": "p"}


@needs_maker
def test_a_method_is_compiled_once_and_others_stay_as_they_are(monkeypatch):
    point, named = _module_classes("pylog_spark.late", monkeypatch)
    waiting = vars(point)["__init__"]
    named(1, title="t")
    point(1)
    made = vars(point)["__init__"]
    assert made is not waiting
    assert isinstance(made, FunctionType)
    assert made.__code__.co_varnames[: made.__code__.co_argcount] == ("self", "x", "y", "name")
    # Each field is set by its slot, not by its name.
    assert {"_set_x", "_set_y", "_set_name"} <= set(made.__code__.co_freevars)
    point(2)
    assert vars(point)["__init__"] is made
    assert vars(point)["__eq__"].__code__ is vars(point)["__lt__"].__code__  # not called yet


@pytest.mark.thorough
@needs_maker
def test_a_program_compiles_no_method_before_its_call():
    program = (
        "from pylog_spark.late_methods import make_methods_late as late; late(); late();"
        "from storage_core.commit.plan import DeleteFile as kind;"
        "waits = vars(kind)['__init__'].__code__.co_name == 'method';"
        "step = kind(name='a', reason='b');"
        "assert waits and vars(kind)['__init__'].__code__.co_argcount == 1;"
        "assert repr(step) == \"DeleteFile(name='a', reason='b')\""
    )
    subprocess.run([sys.executable, "-c", program], check=True)
