"""What benches keep: rates a round, medians and ratios of them, a table in a page."""

import json

import pytest

from tests.bench.bench_growth import Growth, Point
from tests.bench.figures import FOLDER, PAGE, Figure, keep, with_tables

EMPTY = "".join(
    f"before {table}\n<!-- {table}: written by make bench -->\nold\n"
    "<!-- end of figures -->\nafter\n"
    for table in ("rates", "growth")
)
FIGURE = Figure(
    work="reading",
    unit="MB/s",
    ours=(300.0, 100.0, 200.0),
    theirs={"Kafka": (50.0, 50.0, 10.0), "other": (1.0, 1.0, 1.0)},
    targets={"Kafka": 5},
    least=150,
)


def test_a_ratio_is_the_median_of_the_rounds_own():
    assert (FIGURE.rate, FIGURE.ratio("Kafka"), FIGURE.ratio("other")) == (200, 6, 200)


def test_rounds_that_do_not_belong_together_have_no_ratio():
    with pytest.raises(ValueError, match="zip"):
        Figure(work="w", unit="u", ours=(1.0,), theirs={"k": (1.0, 2.0)}).ratio("k")


def test_a_row_says_medians_ratios_and_targets():
    assert FIGURE.line() == (
        "| reading | 200 MB/s | Kafka 50, other 1.0 | 6.0 / 200.0 | 5 times Kafka or 150 MB/s |"
    )


def test_a_bench_replaces_its_own_rows_and_leaves_those_of_others(tmp_path):
    (tmp_path / PAGE).write_text(EMPTY)
    keep("b", [FIGURE], docs=tmp_path)
    keep("a", [Figure(work="first", unit="x", ours=(1.0,))], docs=tmp_path)
    keep("b", [Figure(work="again", unit="x", ours=(2000.0,))], docs=tmp_path)
    page = (tmp_path / PAGE).read_text()
    rates, growth = page.split("before growth")
    assert rates.startswith("before rates\n")
    assert rates.endswith("\nafter\n")
    rows = [line for line in rates.splitlines() if line.startswith("| ")]
    assert rows[2:] == ["| first | 1.0 x |  |  |  |", "| again | 2,000 x |  |  |  |"]
    assert "old" not in rates
    assert "old" in growth
    kept = json.loads((tmp_path / FOLDER / "b.json").read_text())
    assert kept["measured"][0]["ours"] == [2000.0]


def test_each_table_has_its_place(tmp_path):
    (tmp_path / PAGE).write_text(EMPTY)
    points = [Point(size=n, seconds=n, memory_bytes=1 << 20) for n in (1, 2)]
    keep("a", [FIGURE], docs=tmp_path)
    keep("b", [Growth(work="w", of="GB", points=points)], table="growth", docs=tmp_path)
    rates, growth = (tmp_path / PAGE).read_text().split("before growth")
    assert FIGURE.line() in rates
    assert "| w | GB | 1.00, 2.00 | 1.00 | 1, 1 | 0.00 |" in growth


def test_a_page_without_a_place_for_a_table_is_left(tmp_path):
    (tmp_path / PAGE).write_text("nothing")
    with pytest.raises(ValueError, match="no place"):
        keep("a", [FIGURE], docs=tmp_path)
    assert (tmp_path / PAGE).read_text() == "nothing"
    assert with_tables("nothing", []) == "nothing"


def test_a_slope_is_one_where_time_follows_size_and_zero_where_it_does_not():
    points = [Point(size=n, seconds=0.3 * n, memory_bytes=70) for n in (1, 3, 10)]
    growth = Growth(work="w", of="GB", points=points)
    assert growth.time_slope == pytest.approx(1)
    assert growth.memory_slope == pytest.approx(0)
