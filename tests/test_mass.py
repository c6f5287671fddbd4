"""What ``make mass`` counts, on planted modules."""

import pytest

from docs.mass import (
    Module,
    circles_of_files,
    circles_of_packages,
    crossings,
    house_of,
)

HOUSES = {
    "engine": ["storage_core"],
    "upkeep": ["pylog_spark", "storage_core/roots"],
    "cluster": ["storage_core/roots/cluster.py"],
}


def module(path: str, text: str) -> Module:
    return Module(path=path, text=text)


@pytest.mark.parametrize(
    ("path", "house"),
    [
        ("storage_core/kafka_log.py", "engine"),
        ("storage_core/roots/root.py", "upkeep"),
        ("storage_core/roots/cluster.py", "cluster"),
        ("storage_core/roots_of_all.py", "engine"),
    ],
)
def test_the_longest_path_decides_on_the_house(path, house):
    assert house_of(module(path, ""), HOUSES) == house


def test_docstrings_comments_blanks_and_imports_are_no_code():
    text = '''"""A module
of two lines."""

import a
from b import (
    c,
)


# A comment.
class C:
    """A class."""

    field: int  # what it is
    """said"""


def f(
    x,
):
    """A function."""
    import d

    return f"""
    {x}
    """
'''
    assert module("a.py", text).code_lines() == 8


def test_an_import_into_a_house_above_is_counted_where_it_stands():
    modules = [
        module("storage_core/a.py", "def f():\n    from storage_core.roots import b\n"),
        module("storage_core/roots/b.py", "import storage_core.a\n"),
    ]
    assert dict(crossings(modules, HOUSES)) == {
        "engine to upkeep": ["storage_core.a imports storage_core.roots.b"],
        "upkeep to engine": ["storage_core.roots.b imports storage_core.a"],
    }


def test_a_circle_of_files_is_named_once():
    modules = [
        module("storage_core/a.py", "from storage_core import b\n"),
        module("storage_core/b.py", "from storage_core.c import x\n"),
        module("storage_core/c.py", "from storage_core import a, d\n"),
        module("storage_core/d.py", ""),
    ]
    assert circles_of_files(modules) == ["storage_core.a and storage_core.b and storage_core.c"]


def test_packages_that_import_each_other_are_a_circle_unless_one_holds_the_other():
    modules = [
        module(
            "storage_core/a/x.py", "from storage_core.b import y\nfrom storage_core.a.c import z\n"
        ),
        module("storage_core/b/y.py", "from storage_core.a import w\n"),
        module("storage_core/a/w.py", ""),
        module("storage_core/a/c/z.py", "from storage_core.a import w\n"),
    ]
    assert circles_of_packages(modules) == ["storage_core/a and storage_core/b"]
