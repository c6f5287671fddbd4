"""The picture of growth names what it shows, and the same figures make the same file."""

from pathlib import Path

import pytest

from tests.bench.bench_growth import Growth, Point

GROWTHS = [
    Growth(
        work=work,
        of=of,
        points=[Point(size=n, seconds=0.1 * n, memory_bytes=200 << 20) for n in (1, 10, 100)],
    )
    for of in ("GB", "segments")
    for work in ("verify", "compact")
]


@pytest.mark.thorough
def test_a_picture_has_a_line_a_kind_of_work_and_its_slope(tmp_path: Path) -> None:
    # Matplotlib, which may be missing, takes a second to import.
    draw_growth = pytest.importorskip("tests.bench.growth_picture").draw_growth
    drawn = draw_growth(GROWTHS, tmp_path).read_text()
    for text in ("verify (1.00)", "compact (1.00)", ">GB<", ">segments<", "MiB at most"):
        assert text in drawn
    (tmp_path / "again").mkdir()
    assert draw_growth(GROWTHS, tmp_path / "again").read_text() == drawn
