"""Tables for a person: what stays where room is short, and what that costs."""

import io
import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

import pytest
from rich.console import Console

from pylog_spark.text_table import SHOWN_ROWS, write_blocks
from pylog_spark.view import (
    Block,
    Column,
    Figure,
    Sentence,
    Table,
    TableKind,
    Verbatim,
    has_several_roots,
)

TABLE = TableKind(
    columns=(
        Column(heading="name", cell=lambda row: row["name"], folds=True),
        Column(heading="code", cell=lambda row: row["code"]),
        Column(heading="first", cell=lambda row: row.get("first", "1" * 20), rank=2),
        Column(heading="second", cell=lambda row: row.get("second", "2" * 20), rank=1),
        Column(heading="never", cell=lambda _: "-", rank=3),
        Column(heading="size", cell=lambda row: row["size"], is_number=True),
    ),
    note=lambda row: row.get("note", ""),
)


def row(**values: Any) -> dict[str, Any]:
    return {"name": "orders-0", "code": "SOME_CODE", "size": "9", **values}


def lines(
    rows: list[dict[str, Any]], width: int = 80, *, is_wide: bool = False, total: int | None = None
) -> list[str]:
    return written(width, Table(kind=TABLE, rows=rows, total=total), is_wide=is_wide).splitlines()


def written(width: int, *blocks: Block, is_wide: bool = False) -> str:
    out = io.StringIO()
    write_blocks(Console(file=out, width=width), blocks, is_wide=is_wide)
    return out.getvalue()


def test_all_columns_that_have_a_value_are_shown_where_there_is_room():
    heading, line = lines([row()])
    assert heading.split() == ["name", "code", "first", "second", "size"]
    assert line.split() == ["orders-0", "SOME_CODE", "1" * 20, "2" * 20, "9"]


def test_the_column_of_the_highest_rank_goes_first_and_is_named():
    heading, _, left_out = lines([row()], 60)
    assert heading.split() == ["name", "code", "second", "size"]
    assert left_out == "not in 60 columns: first; --wide shows all"
    assert lines([row()], 40)[0].split() == ["name", "code", "size"]


def test_columns_stand_below_each_other_and_numbers_flush_right():
    _, one, two = lines([row(), row(name="x-10", size="1,000")])
    assert one.index("SOME_CODE") == two.index("SOME_CODE")
    assert len(one) == len(two)
    assert one.endswith("    9")


@pytest.mark.parametrize("width", [40, 60, 80, 120, 200])
@pytest.mark.parametrize("length", [1, 40, 249])
def test_no_line_is_wider_than_the_terminal(width: int, length: int):
    rows = [
        row(name="x" * length, note="a sentence of words " * 20, root=f"/data/{n}" * 9)
        for n in (1, 2)
    ]
    for line in lines(rows, width):
        assert len(line) <= width, line


def test_a_long_name_folds_before_it_costs_a_column_and_all_of_it_is_there():
    text = lines([row(name="y" * 249, second="2", first="1")])
    assert text[0].split() == ["name", "code", "first", "second", "size"]
    assert "".join(line.split()[0] for line in text[1:]) == "y" * 249


def test_a_wide_character_counts_as_the_two_cells_that_it_takes():
    text = lines([row(name="日本語" * 30, second="2", first="1")], 60)
    folded = [line.split()[0] for line in text[1:] if "日" in line or "語" in line or "本" in line]
    assert "".join(folded) == "日本語" * 30


def test_a_sentence_stands_behind_its_row_where_all_fit_and_below_it_elsewhere():
    short = lines([row(note="why")], 120)
    assert short[0].split()[-1] == "why"
    assert short[1].endswith("9  why")
    long = lines([row(note="because " * 20), row(name="b")])
    assert long[0].split()[-1] == "size"
    assert long[2].startswith("    because")
    assert long[-2 if long[-1].startswith("not in") else -1].startswith("b  ")


def test_a_wide_table_has_every_column_and_sentence_on_one_line():
    heading, line = lines([row(note="because " * 40)], 40, is_wide=True)
    assert heading.split() == ["name", "code", "first", "second", "never", "size", "why"]
    assert line.count("because") == 40


def test_roots_have_a_column_where_there_are_several_without_what_they_share():
    one = [row(root="/data/disk1/kafka"), row(root="/data/disk1/kafka")]
    assert not has_several_roots(one)
    assert lines(one)[0].split()[0] == "name"
    two = [row(root="/data/disk1/kafka"), row(root="/data/disk2/kafka")]
    heading, first, second, *_, below = lines(two)
    assert heading.split()[0] == "root"
    assert [first.split()[0], second.split()[0]] == ["disk1/kafka", "disk2/kafka"]
    assert below == "roots are below /data/"
    assert "/data/disk1/kafka" in lines(two, is_wide=True)[1]


@pytest.mark.parametrize(
    "roots", [("/a", "/b"), ("s3://one/k", "s3://two/k"), ("/a/x", "s3://b/x")]
)
def test_roots_that_share_no_folder_are_whole(roots: tuple[str, str]):
    text = "\n".join(lines([row(root=root) for root in roots]))
    assert all(root in text for root in roots)
    assert "below" not in text


def test_a_sentence_does_not_repeat_the_root():
    note = lines([row(root="/data/kafka", note="/data/kafka/orders-0/0.log: bad " + "x " * 40)])[2]
    assert note.startswith("    orders-0/0.log: bad")


@pytest.mark.parametrize("others", [(), ("/srv/b",)], ids=["one root", "several"])
def test_the_path_of_a_root_inside_of_another_path_stays(others: tuple[str, ...]):
    saved = "/srv/a-salvage/20260102T030405Z-0a1b2c3d/srv/a/orders-0"
    note = f"/srv/a/orders-0/7.log: torn; salvaged to {saved}"
    printed = " ".join(lines([row(root=root, note=note) for root in ("/srv/a", *others)], 200))
    assert "orders-0/7.log: torn" in printed
    assert saved.removeprefix("/srv/" if others else "") in printed


def test_of_many_rows_the_first_are_shown_and_all_in_a_wide_table():
    rows = [row(name=str(number)) for number in range(SHOWN_ROWS + 5)]
    text = lines(rows)
    assert len(text) == 1 + SHOWN_ROWS + 1
    assert text[-1] == "and 5 more; --wide or --output json shows all of them"
    assert len(lines(rows, is_wide=True)) == 1 + len(rows)
    assert lines(rows[:3], total=7)[-1].startswith("and 4 more")


def test_sentences_are_broken_between_words_but_for_commands():
    command = "run `pylog recover /a/very/long/path/indeed` " * 3
    text = written(80, Table(kind=TABLE, rows=[]), Sentence("word " * 30), command).splitlines()
    assert len(text) == 3
    assert text[1].startswith("  word")
    assert f"/{'long' * 20}/path" in written(20, f"see /{'long' * 20}/path there")


def test_what_is_verbatim_is_never_broken_and_steers_no_terminal():
    assert written(20, Verbatim("\x1bword " * 9)) == "\\x1bword " * 9 + "\n"


def test_a_terminal_shows_no_figure():
    assert written(80, Figure(svg="<svg/>", caption="a picture")) == ""


def calls_of(work: Callable[[], Any]) -> int:
    count = 0

    def trace(frame: FrameType, event: str, _: Any) -> Any:
        nonlocal count
        count += event in {"line", "call"}
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        work()
    finally:
        sys.settrace(before)
    return count


def test_four_times_as_many_rows_are_four_times_the_work():
    def work(count: int) -> Callable[[], Any]:
        rows = [row(name=f"orders-{n}", note="because " * 20) for n in range(count)]
        return lambda: lines(rows)

    work(10)()
    few, many = calls_of(work(50)), calls_of(work(200))
    assert many < 4.5 * few
    # A row of six cells and a sentence: some hundred lines of Python, not thousands.
    assert many / 200 < 1500
