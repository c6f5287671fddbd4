"""``docs/security.md`` makes no promise that no test holds."""

import ast
import re
from pathlib import Path

import pytest

TESTS = Path(__file__).parent
DOCUMENT = TESTS.parent / "docs" / "security.md"
NAME = re.compile(r"`(test_[a-z0-9_]+)`")
MODULE = re.compile(r"`(test_[a-z0-9_]+\.py)`")


@pytest.mark.thorough
def test_every_test_that_it_names_is_there():
    text = DOCUMENT.read_text()
    modules = list(TESTS.rglob("test_*.py"))
    named = set(NAME.findall(text))
    assert len(named) > 30
    defined = {
        node.name
        for path in modules
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.FunctionDef)
    }
    assert named - defined == set()
    assert set(MODULE.findall(text)) - {path.name for path in modules} == set()


def test_every_row_of_an_attack_names_what_holds_it():
    rows = [row for row in DOCUMENT.read_text().splitlines() if row.startswith("| ")]
    attacks = [row.split(" | ") for row in rows if row.count(" | ") == 2 and "---" not in row]
    held = [row for row in attacks if row[2].startswith("`test_")]
    titles = {"held by |", "must not |"}
    rest = [row for row in attacks if row not in held and row[2] not in titles]
    assert len(held) >= 20
    # The table of who they are, at the beginning.
    assert len(rest) == 6
