"""The list of planted mistakes fits the product, and a mistake is taken out again."""

import pytest

from tests.planted.__main__ import ROOT, MistakeError, find_place, planted, read_product
from tests.planted.mistakes import MISTAKES, Mistake

SUM = Mistake("sums", "Sums are differences.", "a + b", "a - b", ())


@pytest.fixture
def tree(tmp_path):
    for folder in ("jobs", "pylog_spark", "storage_core"):
        (tmp_path / folder).mkdir()
    return tmp_path


def test_each_mistake_has_its_one_place_in_the_product():
    modules = read_product(ROOT)
    for mistake in MISTAKES:
        find_place(modules, mistake)
        assert mistake.instead != mistake.text


def test_the_likeliest_tests_of_each_mistake_are_there():
    assert all(each.tests for each in MISTAKES)
    tests = {test for each in MISTAKES for test in each.tests}
    assert [test for test in tests if not (ROOT / "tests" / test).is_file()] == []


def test_there_are_forty():
    assert len(MISTAKES) == len({each.breaks for each in MISTAKES}) == 40


def test_a_mistake_is_in_the_tree_for_the_block(tree):
    file = tree / "jobs" / "sums.py"
    file.write_text("def f(a, b):\n    return a + b\n")
    with planted(tree, SUM):
        assert file.read_text() == "def f(a, b):\n    return a - b\n"
    assert file.read_text() == "def f(a, b):\n    return a + b\n"


def test_a_mistake_whose_text_is_gone_is_refused(tree):
    with pytest.raises(MistakeError, match="found: nowhere"):
        find_place(read_product(tree), SUM)


def test_a_mistake_whose_text_stands_in_two_files_is_refused(tree):
    for name in ("first", "second"):
        (tree / "storage_core" / f"{name}.py").write_text("a + b")
    with (
        pytest.raises(MistakeError, match=r"first.py, .*second.py|second.py, .*first.py"),
        planted(tree, SUM),
    ):
        pass


def test_a_mistake_whose_text_stands_in_one_file_twice_is_refused(tree):
    (tree / "jobs" / "sums.py").write_text("a + b, a + b")
    with pytest.raises(MistakeError, match=r"sums.py, .*sums.py"):
        find_place(read_product(tree), SUM)
