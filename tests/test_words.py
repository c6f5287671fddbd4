"""``make lint`` refuses a name or a docstring that breaks a rule."""

import ast

import pytest

from docs.mass import Module, read_modules
from docs.words import RULES, broken_rules

BROKEN = {
    "first docstring lines above 12 words": (
        'def f():\n    """One two three four five six seven eight nine ten eleven twelve more."""\n'
    ),
    "names that are participles": "kept = 1\n",
    "class names with two meanings": "class Gap:\n    pass\n",
}


def modules(text: str) -> list[Module]:
    """Return two modules, of which the second has a class of the name of one in the first."""
    texts = {"a.py": text, "b.py": "class _Gap:\n    pass\n"}
    return [
        Module(path=path, name=path[0], text=text, tree=ast.parse(text))
        for path, text in texts.items()
    ]


@pytest.mark.parametrize("rule", RULES)
def test_a_rule_that_is_broken_once_is_named_with_the_place(rule):
    *places, last = broken_rules(modules(BROKEN[rule]))
    assert len(places) == 1
    assert last.startswith(f"{rule}: 1: ")


@pytest.mark.parametrize(
    "text",
    [
        "def f(found):\n    pass\n",
        "def f(*, _known=None):\n    pass\n",
        "for taken in ():\n    pass\n",
        "x = [left for left in ()]\n",
        "class C:\n    chosen: int\n",
        "with open() as given:\n    pass\n",
    ],
)
def test_a_participle_is_refused_wherever_it_names_a_value(text):
    place, _ = broken_rules(modules(text))
    assert place.startswith("a.py:")


@pytest.mark.thorough
def test_the_product_keeps_every_rule():
    assert broken_rules(read_modules()) == []
