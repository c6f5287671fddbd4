"""What benches found, kept: a file of JSON a bench below ``docs/performance``, and tables.

A bench hands over its figures, and `keep` writes them down and draws the tables in
``docs/performance.md`` anew from all files there are. So the page says what was measured last, of
each bench, on which machine and when. Rates of one round stand at the same place of every side's
list: a ratio is the median of the rounds' own ratios, which an uneven machine hardly moves.
"""

import json
import os
import platform
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, ClassVar, Final, Protocol

from storage_core.clock import SystemClock

DOCS: Final = Path(__file__).resolve().parents[2] / "docs"
PAGE: Final = "performance.md"
FOLDER: Final = "performance"
# Columns of each table.
TABLES: Final = {
    "rates": ("what", "this project", "beside it", "ratio", "target"),
    "commits": ("partitions", "place", "one by one, s", "together, s", "ratio", "requests each"),
    "growth": ("what", "over", "processor seconds", "slope", "MiB at most", "slope"),
    "many": (
        "a night in which",
        "partitions",
        "seconds",
        "processor seconds",
        "a partition more: by the clock, of processors",
        "a file more",
        "MiB of all processes",
    ),
    "looks": (
        "a look",
        "partitions",
        "seconds",
        "processor seconds",
        "of the program's start",
        "of `find`",
        "times `find` (without the start)",
    ),
    "audits": (
        "three brokers",
        "partitions of each",
        "seconds",
        "processor seconds",
        "a partition more",
        "of processor time, beside",
        "MiB of all processes",
    ),
    "memory": ("a command", "MiB at most", "beside it"),
    "costs": ("what", "seconds", "processor seconds", "more than without", "target"),
}
_END: Final = "<!-- end of figures -->"
_FEW: Final = 20  # below, a digit behind the point says something
_VERY_FEW: Final = 0.1  # likewise two


class Row(Protocol):
    """What a bench found, a dataclass: one row of a table."""

    __dataclass_fields__: ClassVar[dict[str, Any]]

    def line(self) -> str:
        """Return the row as the page has it."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """One row: rates of the same work, higher is better."""

    work: str  # what was done, for the table
    unit: str  # of all rates, such as ``MB/s``
    ours: Sequence[float]  # one rate a round
    # The same of each other side, by its name; rounds as in ours
    theirs: Mapping[str, Sequence[float]] = field(default_factory=dict)
    # The smallest ratio that is wanted, by the name of the other side
    targets: Mapping[str, float] = field(default_factory=dict)
    least: float | None = None  # the smallest rate of ours that is wanted, None for none

    @property
    def rate(self) -> float:
        """The median rate of ours."""
        return statistics.median(self.ours)

    def ratio(self, side: str) -> float:
        """Return how many times as fast ours is: the median of the rounds' own ratios."""
        pairs = zip(self.ours, self.theirs[side], strict=True)
        return statistics.median(ours / theirs for ours, theirs in pairs)

    def line(self) -> str:
        """Return the row of the table."""
        beside = [f"{name} {_number(statistics.median(r))}" for name, r in self.theirs.items()]
        ratios = [f"{self.ratio(name):.1f}" for name in self.theirs]
        wanted = [f"{ratio:g} times {name}" for name, ratio in self.targets.items()]
        if self.least is not None:
            wanted.append(f"{_number(self.least)} {self.unit}")
        return table_row(
            self.work,
            f"{_number(self.rate)} {self.unit}",
            ", ".join(beside),
            " / ".join(ratios),
            " or ".join(wanted),
        )


def keep(bench: str, rows: Sequence[Row], *, table: str = "rates", docs: Path = DOCS) -> None:
    """Keep what a bench found, and draw the tables of all benches anew.

    Args:
        bench: Its name, of letters: its file is named after it.
        rows: In the order of the table's rows.
        table: The one of TABLES that they belong to.
        docs: Folder with the page; a place in it is marked for each table.
    """
    folder = docs / FOLDER
    folder.mkdir(exist_ok=True)
    content = {
        "machine": _machine(),
        "day": datetime.fromtimestamp(SystemClock().now_ms() / 1000, UTC).date().isoformat(),
        "table": table,
        "rows": [row.line() for row in rows],
        "measured": [asdict(row) for row in rows],
    }
    (folder / f"{bench}.json").write_text(json.dumps(content, indent=1) + "\n")
    page = docs / PAGE
    page.write_text(with_tables(page.read_text(), _kept(folder)))


def with_tables(page: str, kept: Sequence[Mapping[str, Any]]) -> str:
    """Return a page with the tables of what was kept in their places."""
    for table in sorted({bench["table"] for bench in kept}):
        begin = f"<!-- {table}: written by make bench -->"
        before, found, rest = page.partition(begin)
        _, end, after = rest.partition(_END)
        if not found or not end:
            raise ValueError(f"the page has no place between {begin!r} and {_END!r}")
        lines = _lines(table, [bench for bench in kept if bench["table"] == table])
        page = "\n".join([before + begin, "", *lines, "", end + after])
    return page


def table_row(*cells: str) -> str:
    """Return a row of a table of Markdown."""
    return f"| {' | '.join(cells)} |"


def _lines(table: str, kept: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    columns = TABLES[table]
    yield table_row(*columns)
    yield table_row(*("---" for _ in columns))
    for bench in kept:
        yield from bench["rows"]
    yield ""
    measured = sorted({f"{bench['day']} on {bench['machine']}" for bench in kept})
    yield f"Measured {'; '.join(measured)}."


def _kept(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(path.read_text()) for path in sorted(folder.glob("*.json"))]


def _number(rate: float) -> str:
    digits = 2 if rate < _VERY_FEW else 1
    return f"{rate:.{digits}f}" if rate < _FEW else f"{rate:,.0f}"


def _machine() -> str:
    names = [
        line.partition(":")[2].strip()
        for line in Path("/proc/cpuinfo").read_text().splitlines()
        if line.startswith("model name")
    ]
    name = names[0] if names else platform.machine()
    return f"{name}, {len(os.sched_getaffinity(0))} cores"
