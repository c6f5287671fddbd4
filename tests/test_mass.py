"""What ``make mass`` counts, on modules with planted concepts."""

import ast
import json

import pytest

from docs.mass import KEPT, LISTINGS, Module, count, read_modules


def module(path: str, text: str) -> Module:
    name = path.removesuffix(".py").replace("/", ".")
    return Module(path=path, name=name, text=text, tree=ast.parse(text))


PLANTED = {
    "questions of roles outside roots/": [
        module("storage_core/a.py", "def f(x):\n    return x.role is Role.BROKER\n"),
        module("storage_core/roots/b.py", "def f(x):\n    return x.role is Role.BROKER\n"),
    ],
    "kernels of more than 10 arguments": [
        module("storage_core/kernels/a.py", "@kernel\ndef f(a,b,c,d,e,f,g,h,i,j,k):\n    pass\n"),
        module("storage_core/kernels/b.py", "@kernel\ndef f(a,b,c,d,e,f,g,h,i,j):\n    pass\n"),
    ],
    "private helpers of 4 lines used once": [
        module("a.py", "def _f():\n    return 1\n\n\ndef g():\n    return _f()\n"),
        module("b.py", "def _f():\n    return 1\n\n\ndef g():\n    return _f() + _f()\n"),
    ],
    "small modules of one caller": [
        module("one.py", "x = 1\n"),
        module("two.py", "import one, three\n"),
        module("four.py", "import three\n"),
        module("three.py", "x = 1\n"),
    ],
    "definitions that nothing reaches": [
        module("a.py", "def zz_reached():\n    pass\n\n\ndef zz_lonely():\n    zz_reached()\n")
    ],
    "class names with two meanings": [
        module("a.py", "class Gap:\n    pass\n"),
        module("b.py", "class _Gap:\n    pass\n\n\nclass Other:\n    pass\n"),
    ],
    "pairs of dataclasses with equal fields": [
        module("a.py", "@dataclass\nclass A:\n    x: int\n    y: int\n    z: int\n"),
        module("b.py", "@dataclass\nclass B:\n    x: int\n    y: int\n    z: int\n    t: int\n"),
        module("c.py", "@dataclass\nclass C:\n    x: int\n    u: int\n    v: int\n"),
    ],
    "names that are participles": [
        module("a.py", "def f(given):\n    wanted = 1\n    return wanted\n")
    ],
    "first docstring lines above 12 words": [
        module(
            "a.py", '"""One two three four five six seven eight nine ten eleven twelve more."""'
        ),
        module("b.py", '"""Short."""'),
    ],
}


@pytest.mark.parametrize("name", PLANTED)
def test_a_planted_concept_is_counted_once(name):
    assert len(LISTINGS[name](PLANTED[name])) == 1


@pytest.mark.thorough
def test_the_numbers_of_the_product_are_kept_by_name():
    assert list(json.loads(KEPT.read_text())) == list(count(read_modules()))
