"""Result rows as a person and a program read them."""

import io
import json
from typing import Any

import pytest
from rich.console import Console

from pylog_spark.report import (
    error_text,
    is_notable_retention,
    json_line,
    number_text,
    partition_name,
    refusal_text,
    result_table,
    retention_table,
    size_text,
    summary_line,
    write_table,
)
from pylog_spark.schemas import RESULT, RETENTION


def row(**values: Any) -> dict[str, Any]:
    usual = {"topic": "orders", "partition": 0, "action": "compact", "status": "done"}
    return dict.fromkeys(RESULT.names) | usual | values


def written(rows: list[dict[str, Any]], footer: list[str] | None = None) -> str:
    out = io.StringIO()
    write_table(Console(file=out), result_table(rows), footer=footer or [])
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


def test_lines_are_never_cut_where_no_terminal_is():
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


@pytest.mark.parametrize(
    ("rows", "line"),
    [
        ([], "no partitions"),
        ([row(status="skipped")], "1 skipped"),
        (
            [row(bytes_before=1000, bytes_after=250), row(status="failed", bytes_before=9)],
            "1 done, 1 failed; 1000 Bytes became 250 Bytes (-75.0%)",
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
    assert [size_text(0), number_text(0)] == ["0 Bytes", "0"]


@pytest.mark.item("RET-08", "RET-14")
@pytest.mark.parametrize(
    ("hold", "wait_ms", "kept_by"),
    [
        ("WITHIN_TIME", 21_817_836, "WITHIN_TIME, for 6 hours more"),
        ("FUTURE_TIMESTAMP", 2_928_610_576, "FUTURE_TIMESTAMP, for a month more"),
        ("WITHIN_SIZE", None, "WITHIN_SIZE"),
    ],
)
def test_a_retention_row_says_what_goes_and_what_keeps_the_rest(hold, wait_ms, kept_by):
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
    write_table(Console(file=out), retention_table([found]), footer=[])
    assert "clicks-0" in out.getvalue()
    assert "0 to 94" in out.getvalue()
    assert kept_by in out.getvalue()
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
