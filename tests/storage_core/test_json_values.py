import enum
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pytest

from storage_core.json_values import from_json, read_value, to_json


class Kind(enum.StrEnum):
    ONE = "one"


@dataclass(frozen=True, kw_only=True)
class Inner:
    number: int
    kind: Kind = Kind.ONE


@dataclass(frozen=True, kw_only=True)
class Outer:
    name: str
    share: float
    is_it: bool
    inner: Inner | None
    several: tuple[Inner, ...] = ()
    by_name: Mapping[str, int]
    free: Any = None


WHOLE = Outer(
    name="é",
    share=0.5,
    is_it=True,
    inner=Inner(number=2**40),
    several=(Inner(number=2**63 - 1), Inner(number=-(2**63))),
    by_name={"a": 1},
    free=[{"x": None}],
)


def test_what_becomes_json_comes_back():
    assert from_json(Outer, to_json(WHOLE)) == WHOLE
    assert "\n" not in to_json(WHOLE)


def test_fields_with_defaults_may_be_missing():
    fields = {"name": "a", "share": 1, "is_it": False, "inner": None, "by_name": {}}
    assert read_value(Outer, fields, "x").several == ()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"name": 5}, "x.name: expected str, found 5"),
        ({"name": "\ud800"}, "x.name: expected text that is UTF-8"),
        ({"is_it": 1}, "x.is_it: expected bool, found 1"),
        ({"share": True}, "x.share: expected float, found True"),
        ({"share": float("nan")}, "x.share: expected float, found nan"),
        ({"inner": []}, "x.inner: expected an object, found list"),
        ({"inner": {"number": 2**63}}, "x.inner.number: expected a number of 64 bits"),
        ({"inner": {"number": -(2**63) - 1}}, "x.inner.number: expected a number of 64 bits"),
        ({"inner": {"number": True}}, "x.inner.number: expected int, found True"),
        ({"inner": {"number": 1, "kind": "two"}}, "x.inner.kind: expected one of one, found 'two'"),
        ({"inner": {}}, "x.inner.number: is missing"),
        ({"several": {}}, "x.several: expected a list, found dict"),
        ({"several": [{"number": 1}, {"number": ""}]}, "x.several[1].number: expected int"),
        ({"by_name": {"a": "b"}}, "x.by_name.a: expected int, found 'b'"),
        ({"more": 1}, "x.more: is a field that nobody knows"),
        ({"free": json.loads("[" * 60 + "]" * 60)}, "x.free: is nested beyond reason"),
    ],
)
def test_what_is_not_as_declared_is_refused_with_its_place(changes, message):
    fields = json.loads(to_json(WHOLE)) | changes
    with pytest.raises(ValueError, match=f"^{re.escape(message)}"):
        read_value(Outer, fields, "x")
