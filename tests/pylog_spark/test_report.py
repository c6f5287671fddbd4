"""Result rows as a person and a program read them."""

import io
import json
import logging
from typing import Any

import pyarrow as pa
import pytest
from rich.console import Console

from pylog_spark.cli.error_text import escape_log_lines
from pylog_spark.cli.view_parts import FINDING_TABLE, count_blocks
from pylog_spark.report import (
    CUT_TABLE,
    PLAN_TABLE,
    RESULT_TABLE,
    RETENTION_TABLE,
    error_text,
    growth_note,
    is_notable_retention,
    json_line,
    number_text,
    partition_name,
    refusal_text,
    size_text,
    summary_line,
)
from pylog_spark.schemas import CUT, FINDING, PLAN, RESULT, RETENTION
from pylog_spark.text_table import write_blocks
from pylog_spark.view import Table


def row(**values: Any) -> dict[str, Any]:
    usual = {"topic": "orders", "partition": 0, "action": "compact", "status": "done"}
    return dict.fromkeys(RESULT.names) | usual | values


def written(rows: list[dict[str, Any]], footer: list[str] | None = None) -> str:
    out = io.StringIO()
    blocks = [Table(kind=RESULT_TABLE, rows=rows), *(footer or [])]
    write_blocks(Console(file=out), blocks, is_wide=True)
    return out.getvalue()


def test_a_row_shows_before_and_after():
    text = written(
        [
            row(
                bytes_before=4096,
                bytes_after=1024,
                records_before=1000,
                records_after=10,
                segments_before=3,
                segments_after=1,
                duration_ms=1234,
            )
        ]
    )
    line = text.splitlines()[1]
    assert "orders-0" in line
    for cell in ("done", "4.0 KiB", "1.0 KiB", "1,000", "10", "3 to 1", "1,234"):
        assert cell in line


def test_a_row_that_was_not_done_says_why():
    text = written(
        [
            row(status="skipped", reason="CONFIG_UNKNOWN"),
            row(status="failed", error_class="CorruptRecordError", error="0.log: position 7: bad"),
        ]
    )
    assert "CONFIG_UNKNOWN" in text
    assert "0.log: position 7: bad" in text


def test_lines_are_never_cut_in_a_wide_table():
    text = written([row(status="failed", error="x" * 500)])
    assert "x" * 500 in text


def test_errors_and_names_cannot_steer_the_terminal():
    text = written([row(topic="\x1b[31m", status="failed", error="a\x07b\nc")], ["d\x1be"])
    assert "\x1b" not in text
    assert "\x07" not in text
    assert r"\x1b[31m-0" in text
    assert r"a\x07b\nc" in text
    assert r"d\x1be" in text


def test_a_directory_without_a_topic_is_named_by_itself():
    assert partition_name(row(topic=None, partition=None) | {"directory": "lost+found"}) == (
        "lost+found"
    )
    assert partition_name(row(topic=None, partition=None, root="/logs")) == "/logs"


def test_what_is_on_its_way_out_is_named_as_its_directory_is():
    deleted = "x-0.0123456789abcdef0123456789abcdef-delete"
    named = {"topic": "x", "partition": 0}
    assert partition_name(row(**named, directory=f"/logs/{deleted}")) == deleted
    assert partition_name(row(**named, directory="/logs/x-0")) == "x-0"
    assert partition_name(row(**named, directory="managed+s3://b/x-0#generation=3")) == "x-0"


@pytest.mark.parametrize("table", [RESULT_TABLE, CUT_TABLE, RETENTION_TABLE, FINDING_TABLE])
def test_rows_of_several_roots_say_which_is_their_own(table):
    names = {*RETENTION.names, *CUT.names, *RESULT.names, *FINDING.names}
    said = {"topic": "t", "partition": 0, "status": "done", "action": "run", "severity": "warn"}
    said |= {"code": "C", "file": "f", "message": "m", "reason": "r"}

    def rendered(*roots: str) -> str:
        console = Console(width=400, file=io.StringIO())
        rows = [dict.fromkeys(names) | said | {"root": root} for root in roots]
        write_blocks(console, [Table(kind=table, rows=rows)])
        return console.file.getvalue()

    several = rendered("/disk1", "/disk2")
    assert {"root", "/disk1", "/disk2"} <= set(several.split())
    assert "/disk1" not in rendered("/disk1", "/disk1")


@pytest.mark.parametrize(
    ("rows", "line"),
    [
        ([], "no partitions"),
        ([row(status="skipped")], "1 skipped"),
        (
            [row(bytes_before=1000, bytes_after=250), row(status="failed", bytes_before=9)],
            "1 done, 1 failed; 1000 B became 250 B (-75.0%)",
        ),
        ([row(bytes_before=0, bytes_after=0)], "1 done"),
    ],
)
def test_the_summary_counts_and_weighs_what_was_done(rows, line: str):
    assert summary_line(rows) == line


def test_refused_deletions_are_counted_with_what_allows_them():
    rows = [row(status="skipped", reason="DELETES_TOO_MUCH")] * 2
    rows += [row(status="skipped", reason="CLOCK_PAST_RETENTION"), row(reason="COMPACTED")]
    assert refusal_text(rows) == (
        "; 2 refused to delete: DELETES_TOO_MUCH, --max-delete-ratio 1 allows it"
        "; 1 refused to delete: CLOCK_PAST_RETENTION, --override CLOCK_PAST_RETENTION allows it"
    )
    assert refusal_text([row()]) == ""


def test_json_is_one_line_with_every_column():
    text = json_line("result", row(error="a\nb"))
    assert "\n" not in text
    parsed = json.loads(text)
    assert list(parsed) == ["type", *RESULT.names]


def test_nothing_is_a_dash_and_zero_is_zero():
    assert [size_text(None), number_text(None)] == ["-", "-"]
    assert [size_text(0), number_text(0)] == ["0 B", "0"]


@pytest.mark.item("RET-08", "RET-14")
@pytest.mark.parametrize(
    ("hold", "wait_ms", "kept_for"),
    [
        ("WITHIN_TIME", 21_817_836, "6 hours"),
        ("FUTURE_TIMESTAMP", 2_928_610_576, "a month"),
        ("WITHIN_SIZE", None, ""),
    ],
)
def test_a_retention_row_says_what_goes_and_what_keeps_the_rest(hold, wait_ms, kept_for):
    found = dict.fromkeys(RETENTION.names, 0) | {
        "topic": "clicks",
        "status": "planned",
        "deleted_segments": 2,
        "deleted_bytes": 3505,
        "log_start_offset": 94,
        "percent": 154,
        "blocked_by": hold,
        "wait_ms": wait_ms,
    }
    out = io.StringIO()
    write_blocks(Console(file=out), [Table(kind=RETENTION_TABLE, rows=[found])])
    assert "clicks-0" in out.getvalue()
    assert "0 to 94" in out.getvalue()
    assert hold in out.getvalue()
    assert kept_for in out.getvalue()
    # Where nothing goes, only what holds back what should go is worth a line.
    idle = found | {"deleted_segments": 0}
    assert is_notable_retention(found)
    assert is_notable_retention(idle) == (hold == "FUTURE_TIMESTAMP")


@pytest.mark.item("ERR-16")
def test_what_kafka_knows_too_is_told_with_its_number_and_name():
    bad = row(status="failed", error_class="CorruptRecordError", error="0.log: position 7: bad")
    told = json.loads(json_line("result", bad))
    assert (told["kafka_code"], told["kafka_error"]) == (2, "CORRUPT_MESSAGE")
    assert error_text(bad) == "0.log: position 7: bad (CORRUPT_MESSAGE, 2)"
    own = row(status="failed", error_class="CorruptIndexError", error="0.index: position 8: bad")
    assert "kafka_code" not in json.loads(json_line("result", own))
    assert error_text(own) == "0.index: position 8: bad"
    assert error_text(row()) == ""


HOSTILE = "[red]\x1b[31m\u202e</td><script>\udcff[/nothing] s3://me:hunter2@b/x"
SHOWN = r"[red]\x1b[31m\u202e</td><script>\xff[/nothing] s3://me:***@b/x"


def hostile_row(schema: pa.Schema) -> dict[str, Any]:
    """Return a row whose texts are hostile, but for those that choose a style."""
    usual = {"status": "done", "severity": "error"}
    row: dict[str, Any] = {}
    for field in schema:
        if field.type == pa.string():
            row[field.name] = usual.get(field.name, HOSTILE)
        elif pa.types.is_integer(field.type) or pa.types.is_floating(field.type):
            row[field.name] = 0
        else:
            row[field.name] = None
    return row


@pytest.mark.parametrize(
    ("table", "schema"),
    [
        (RESULT_TABLE, RESULT),
        (RETENTION_TABLE, RETENTION),
        (CUT_TABLE, CUT),
        (PLAN_TABLE, PLAN),
        (FINDING_TABLE, FINDING),
    ],
    ids=["results", "retention", "cuts", "plans", "findings"],
)
def test_no_table_lets_a_name_or_an_error_through_as_it_is(table, schema):
    out = io.StringIO()
    rows = [hostile_row(schema)]
    write_blocks(Console(file=out), [Table(kind=table, rows=rows), HOSTILE], is_wide=True)
    text = out.getvalue()
    text.encode("utf-8")
    assert SHOWN in text.splitlines()[-1]
    assert text.count(SHOWN) >= 2
    assert not {"\x1b", "\u202e"} & set(text)
    assert "hunter2" not in text


def test_counts_of_findings_let_no_name_and_no_fix_through_as_it_is():
    out = io.StringIO()
    write_blocks(Console(file=out), count_blocks([("error", HOSTILE, 1)], [hostile_row(FINDING)]))
    text = out.getvalue()
    assert SHOWN in text.splitlines()[-1]
    assert text.count(SHOWN) >= 2
    assert not {"\x1b", "\u202e"} & set(text)
    assert "hunter2" not in text


def test_json_of_hostile_texts_is_utf8_and_keeps_whole_characters():
    line = json_line("result", {"error": HOSTILE, "topic": "😀\ud83d"})
    parsed = json.loads(line)
    assert parsed["topic"] == r"😀\ud83d"
    assert parsed["error"] == "[red]\x1b[31m\u202e</td><script>" + r"\xff[/nothing] s3://me:***@b/x"
    json.dumps(parsed, ensure_ascii=False).encode("utf-8")


def test_no_line_of_a_log_steers_the_terminal(monkeypatch):
    handler = logging.StreamHandler()
    monkeypatch.setattr(logging, "lastResort", handler)
    escape_log_lines()
    record = logging.LogRecord("x", logging.WARNING, "f", 1, "%s: gone", (HOSTILE,), None)
    assert handler.format(record) == f"{SHOWN}: gone"


def test_a_bound_is_never_printed_larger_than_the_size_before():
    planned = {"bytes": 1000, "bytes_after": 3048}
    (bound,) = [column for column in PLAN_TABLE.columns if column.heading == "after, at most"]
    assert bound.cell(planned) == "1000 B"
    (line,) = growth_note([planned, {"bytes": 10, "bytes_after": 10}])
    assert "up to 2.0 KiB" in line
    assert growth_note([{"bytes": 10, "bytes_after": 9}]) == []
    (after,) = [column for column in RESULT_TABLE.columns if column.heading == "bytes after"]
    row = {"action": "compact", "bytes_before": 1000, "bytes_after": 3048}
    assert after.cell({**row, "status": "planned"}) == "1000 B"
    assert after.cell({**row, "status": "done"}) == "3.0 KiB"
