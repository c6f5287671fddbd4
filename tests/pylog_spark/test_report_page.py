"""A page is one file that fetches nothing and runs nothing but its own script."""

import base64
import hashlib
import html
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from pylog_spark import report_page
from pylog_spark.cli.view_parts import COUNT_TABLE, FINDING_TABLE, figures, finding_sections
from pylog_spark.pictures import (
    before_and_after,
    bytes_by_state,
    dirty_ratios,
    finding_counts,
    past_runs,
    segments_by_age,
    segments_by_size,
)
from pylog_spark.report import CUT_TABLE, PLAN_TABLE, RESULT_TABLE, RETENTION_TABLE
from pylog_spark.report_page import write_page
from pylog_spark.schemas import CUT, FINDING, PLAN, RESULT, RETENTION
from pylog_spark.view import (
    Column,
    Figure,
    Page,
    Section,
    Sentence,
    Table,
    TableKind,
    Verbatim,
)
from tests.pylog_spark.test_report import HOSTILE, SHOWN, hostile_row

NOW_MS = 1_800_000_000_000
NAMED = {"root": HOSTILE, "topic": HOSTILE, "partition": 0, "directory": HOSTILE}


class Tags(HTMLParser):
    """The tags and attributes of a page; every one that is opened has to be closed."""

    EMPTY = frozenset({"meta"})

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: dict[str, set[str | None]] = {}
        self._open: list[str] = []
        self.feed(text)
        self.close()
        assert self._open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        for name, value in attrs:
            self.attributes.setdefault(name, set()).add(value)
        if tag not in self.EMPTY:
            self._open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag


def page_text(tmp_path: Path, *blocks: Any, **parts: Any) -> str:
    path = tmp_path / "page.html"
    page = Page(title="a page", lead="one", sections=[Section(heading="h", blocks=blocks)], **parts)
    write_page(path, page)
    return path.read_text(encoding="utf-8")


def hostile_pictures() -> list[Any]:
    segment = NAMED | {"base_offset": 0, "size_bytes": 10, "state": "kept"}
    segment["newest_timestamp"] = NOW_MS
    result = NAMED | {"bytes_before": 10, "bytes_after": 1}
    run = {"run_id": HOSTILE, "action": HOSTILE, "started_ms": NOW_MS, "duration_ms": 1000}
    return [
        segments_by_size([segment, segment | {"root": "other"}]),
        segments_by_age([segment], now_ms=NOW_MS),
        before_and_after([result], is_planned=True),
        dirty_ratios([NAMED], lambda _: 0.5),
        bytes_by_state([NAMED], lambda _: {"dirty": 1}),
        finding_counts([("error", HOSTILE, 3)]),
        past_runs([run | {"bytes_before": 10, "bytes_after": 1}]),
    ]


def test_no_page_runs_what_a_name_or_an_error_says(tmp_path):
    tables = {
        RESULT: RESULT_TABLE,
        CUT: CUT_TABLE,
        PLAN: PLAN_TABLE,
        RETENTION: RETENTION_TABLE,
        FINDING: FINDING_TABLE,
    }
    anchored = Table(
        kind=COUNT_TABLE,
        rows=[{"severity": "error", "code": HOSTILE, "count": 1}],
        links={"code": lambda row: row["code"]},
        anchor=lambda row: row["code"],
    )
    sections = [
        Section(
            heading=HOSTILE,
            blocks=[HOSTILE, Sentence(HOSTILE), Verbatim(HOSTILE), *figures(*hostile_pictures())],
        ),
        Section(heading=HOSTILE, blocks=[anchored]),
        *(
            Section(heading=HOSTILE, blocks=[Table(kind=table, rows=[hostile_row(schema)])])
            for schema, table in tables.items()
        ),
        *finding_sections([("error", HOSTILE, 1)], [hostile_row(FINDING) | {"root": HOSTILE}]),
    ]
    path = tmp_path / "page.html"
    write_page(path, Page(title=HOSTILE, lead=HOSTILE, notes=[HOSTILE], sections=sections))
    text = path.read_bytes().decode("utf-8")
    assert text.count(html.escape(SHOWN)) > 20
    assert not {"\x1b", "\u202e"} & set(text)
    assert "hunter2" not in text
    found = Tags(text)
    assert found.tags.count("script") == 1
    assert found.tags.count("svg") == 8
    assert "could not be drawn" not in text
    assert not [name for name in found.attributes if name.startswith("on") or name == "style"]


@pytest.mark.thorough
def test_a_page_names_no_other_place(tmp_path):
    found = Tags(page_text(tmp_path, *figures(*hostile_pictures())))
    assert {"src", "action", "srcset", "data"} & set(found.attributes) == set()
    assert all(link.startswith("#") for link in found.attributes.get("href", ()))
    # Names of formats, which nobody fetches.
    namespaces = {"http://www.w3.org/2000/svg", "http://www.w3.org/1999/xlink"}
    values = {value for values in found.attributes.values() for value in values if value}
    assert {value for value in values if "://" in value and HOSTILE[:5] not in value} <= namespaces


def test_the_policy_knows_the_script_and_the_style_sheet_of_the_page_and_nothing_else(tmp_path):
    text = page_text(tmp_path, "x")
    (policy,) = re.findall(r'Content-Security-Policy" content="([^"]+)"', text)
    rules = dict(rule.split(" ", 1) for rule in policy.split("; "))
    for name, tag in (("script-src", "script"), ("style-src", "style")):
        (content,) = re.findall(rf"<{tag}>(.*?)</{tag}>", text, re.DOTALL)
        digest = base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()
        assert rules[name] == f"'sha256-{digest}'"
    assert {
        name: rules[name] for name in ("default-src", "base-uri", "form-action")
    } == dict.fromkeys(("default-src", "base-uri", "form-action"), "'none'")


@pytest.mark.thorough
def test_colours_of_pictures_are_those_of_the_page(tmp_path):
    text = page_text(tmp_path, *figures(*hostile_pictures()))
    used = set(re.findall(r"var\((--[a-z]+)\)", text))
    for scheme in re.findall(r":root \{(.*?)\n\}", text, re.DOTALL)[:1]:
        assert used <= set(re.findall(r"(--[a-z]+):", scheme))
    svg = "".join(re.findall(r"<svg.*?</svg>", text, re.DOTALL))
    assert {"--dirty", "--kept", "--error"} <= set(re.findall(r"var\((--[a-z]+)\)", svg))
    assert not re.findall(r'(?:fill|stroke)="(?:#|rgb)', svg)


TABLE = TableKind(
    columns=(
        Column(heading="name", cell=lambda row: row["name"]),
        Column(
            heading="size",
            cell=lambda row: f"{row['size']} KiB" if row["size"] else "-",
            value=lambda row: row["size"],
            rank=1,
            is_number=True,
        ),
        Column(heading="never", cell=lambda _: "-", rank=2),
    ),
    note=lambda row: row["why"],
    note_style=lambda _: "bold red",
)
ROWS = [
    {"root": "/a", "name": "x", "size": 10, "why": ""},
    {"root": "/b", "name": "y", "size": None, "why": "because"},
]


def test_a_table_has_all_columns_with_a_value_and_says_what_rows_are_sorted_by(tmp_path):
    text = page_text(tmp_path, Table(kind=TABLE, rows=ROWS))
    assert re.findall(r"<button>(.*?)</button>", text) == ["root", "name", "size"]
    assert '<td class="number" data-value="10">10 KiB</td>' in text
    assert '<td class="number" data-value="">-</td>' in text
    assert '<td class="below bold red" colspan="3">because</td>' in text
    assert text.count('colspan="3"') == 1


def test_more_rows_than_a_browser_shows_in_time_are_counted(tmp_path, monkeypatch):
    monkeypatch.setattr(report_page, "MOST_ROWS", 1)
    text = page_text(tmp_path, Table(kind=TABLE, rows=ROWS * 600))
    assert text.count("<tbody>") == 1
    assert "and 1,199 more rows; --output json has all of them" in text


def test_a_heading_without_anything_below_it_is_left_out(tmp_path):
    path = tmp_path / "page.html"
    sections = [
        Section(heading="here", blocks=["x"]),
        Section(heading="nothing", blocks=[]),
        Section(heading="nothing in a table", blocks=[Table(kind=TABLE, rows=[])]),
    ]
    write_page(path, Page(title="t", lead="l", sections=sections))
    assert "here" in path.read_text()
    assert "nothing" not in path.read_text()


def test_codes_lead_to_what_they_mean(tmp_path):
    finding = hostile_row(FINDING) | {"root": "/logs", "code": "TORN_TAIL", "severity": "warn"}
    path = tmp_path / "page.html"
    counts = [("warn", "TORN_TAIL", 1), ("warn", "NO_SUCH_CODE", 1)]
    write_page(path, Page(title="t", lead="l", sections=finding_sections(counts, [finding])))
    text = path.read_text()
    assert text.count('<a href="#TORN_TAIL">TORN_TAIL</a>') == 2
    assert '<tbody id="TORN_TAIL">' in text
    assert "its writer died, or a copy is still running" in text
    assert "#NO_SUCH_CODE" not in text


def test_a_picture_that_cannot_be_drawn_costs_no_page(monkeypatch):
    picture = dirty_ratios([NAMED], lambda _: 0.5)
    picture.specification["mark"] = "no such mark"
    (block,) = figures(picture)
    assert str(block).startswith("A picture could not be drawn: ")


def values_of(picture: Any) -> list[dict[str, Any]]:
    return picture.specification["data"]["values"]


def segment(base: int, state: str, **changes: Any) -> dict[str, Any]:
    named = {"root": "/logs", "topic": "t", "partition": 0, "directory": "t-0"}
    return (
        named
        | {
            "base_offset": base,
            "size_bytes": 1 << 30,
            "state": state,
            "newest_timestamp": NOW_MS,
        }
        | changes
    )


def test_bytes_are_shown_in_a_unit_that_fits():
    picture = segments_by_size([segment(0, "clean"), segment(1, "dirty", size_bytes=1 << 29)])
    assert picture.specification["encoding"]["x"]["title"] == "GiB"
    assert [value["size"] for value in values_of(picture)] == [1.0, 0.5]
    assert picture.specification["encoding"]["color"]["scale"] == {
        "domain": ["dirty", "clean"],
        "range": ["var(--dirty)", "var(--clean)"],
    }


def test_many_segments_are_joined_and_none_is_lost():
    rows = [segment(number, "clean" if number < 777 else "dirty") for number in range(1000)]
    values = values_of(segments_by_size(rows))
    assert len(values) <= 152
    assert sum(value["size"] for value in values if value["state"] == "clean") == 777
    assert sum(value["size"] for value in values) == 1000
    assert values[0]["text"] == "t-0, segments 0 to 6: 7.0 GiB, clean"


def test_times_that_nobody_wrote_are_counted_and_not_drawn():
    rows = [segment(0, "clean"), segment(1, "dirty", newest_timestamp=NOW_MS + 10**9)]
    picture = segments_by_age(rows, now_ms=NOW_MS)
    assert len(values_of(picture)) == 1
    assert "Left out: 1 of other years, or of the future." in picture.caption


def test_a_partition_of_several_steps_has_its_first_size_and_its_last():
    row = {"root": "/logs", "topic": "t", "partition": 0, "directory": "t-0"}
    picture = before_and_after(
        [row | {"bytes_before": 9, "bytes_after": 5}, row | {"bytes_before": 5, "bytes_after": 2}],
        is_planned=False,
    )
    assert [(value["when"], value["size"]) for value in values_of(picture)] == [
        ("before", 9),
        ("after", 2),
    ]


@pytest.mark.parametrize(
    "picture",
    [
        segments_by_size([]),
        segments_by_age([segment(0, "kept", newest_timestamp=None)], now_ms=NOW_MS),
        before_and_after([], is_planned=False),
        dirty_ratios([{}], lambda _: None),
        bytes_by_state([{}], lambda _: {"kept": 0}),
        finding_counts([]),
        past_runs([{"duration_ms": None, "started_ms": 1}]),
    ],
)
def test_where_there_is_nothing_to_show_there_is_no_picture(picture):
    assert picture is None


def test_a_figure_stands_below_its_caption(tmp_path):
    text = page_text(tmp_path, Figure(svg="<svg></svg>", caption="a < b"))
    assert "<figcaption>a &lt; b</figcaption><svg></svg>" in text
