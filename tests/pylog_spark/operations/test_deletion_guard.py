"""How much retention may take at once, and whose clock is believed."""

import pyarrow as pa
import pytest

from pylog_spark.config import RunLimits
from pylog_spark.operations.deletion_guard import refuse_deletions
from pylog_spark.schemas import RETENTION_PLAN, rows_to_batch

ALL = RunLimits(max_delete_ratio=1.0)


def plan_of(topic, partition=0, *, size=100, by_time=0, by_size=0, by_log_start=0, **others):
    row = {
        "root": "/log",
        "topic": topic,
        "partition": partition,
        "status": "planned" if by_time + by_size + by_log_start else "skipped",
        "reason": None if by_time + by_size + by_log_start else "NOTHING_TO_RETAIN",
        "bytes": size,
        "by_time_bytes": by_time,
        "by_size_bytes": by_size,
        "by_log_start_bytes": by_log_start,
        "blocked_by": "WITHIN_TIME",
        "newest_timestamp": 5,
    }
    return {**row, **others}


def refused(rows, limits=None):
    table = pa.Table.from_batches([rows_to_batch(RETENTION_PLAN, rows)], schema=RETENTION_PLAN)
    after = refuse_deletions(table, limits or RunLimits())
    assert after.schema == table.schema
    assert after.num_rows == table.num_rows
    return {
        (row["topic"], row["partition"]): row["reason"]
        for row, before in zip(after.to_pylist(), rows, strict=True)
        if row["status"] != before["status"]
    }


def test_half_of_a_partition_may_go_but_not_more():
    rows = [plan_of("a", by_time=50), plan_of("b", by_time=30, by_size=21), plan_of("c", size=900)]
    assert refused(rows) == {("b", 0): "DELETES_TOO_MUCH"}
    assert refused(rows, ALL) == {}


def test_a_topic_and_a_run_count_as_well():
    a = [plan_of("a", 0, size=1000, by_time=500), plan_of("a", 1, size=1, by_time=1)]
    others = [plan_of("b", size=5000)]
    assert refused(a + others) == {
        ("a", 0): "DELETES_TOO_MUCH",
        ("a", 1): "DELETES_TOO_MUCH",
    }
    most = [plan_of("a", size=100, by_time=90), plan_of("b", size=10, by_time=4)]
    assert set(refused(most)) == {("a", 0), ("b", 0)}


def test_what_an_operator_deleted_counts_for_nothing():
    assert refused([plan_of("a", by_log_start=100)]) == {}


def test_why_says_how_much_of_what():
    table = pa.Table.from_batches(
        [rows_to_batch(RETENTION_PLAN, [plan_of("a", by_time=80), plan_of("b", size=900)])]
    )
    (why, _) = refuse_deletions(table, RunLimits())["error"].to_pylist()
    assert "80 of the 100 bytes of" in why
    assert "80%" in why
    assert "--max-delete-ratio 0.5" in why


@pytest.mark.item("FLT-13")
def test_a_clock_for_which_every_record_is_too_old_is_not_believed():
    late = {"blocked_by": "LAST_SEGMENT"}
    rows = [plan_of("a", by_time=100, **late), plan_of("b", by_time=40, **late)]
    assert set(refused(rows, ALL).values()) == {"CLOCK_PAST_RETENTION"}
    overridden = RunLimits(max_delete_ratio=1, overrides=frozenset({"CLOCK_PAST_RETENTION"}))
    assert refused(rows, overridden) == {}


@pytest.mark.item("FLT-13")
@pytest.mark.parametrize("witness", ["WITHIN_TIME", "FUTURE_TIMESTAMP"])
def test_one_log_that_was_written_to_lately_shows_that_the_clock_is_right(witness):
    rows = [
        plan_of("idle", by_time=100, blocked_by="LAST_SEGMENT"),
        plan_of("busy", size=900, blocked_by=witness),
    ]
    assert refused(rows, ALL) == {}
    elsewhere = [rows[0], {**rows[1], "root": "/other"}]
    assert refused(elsewhere, ALL) == {("idle", 0): "CLOCK_PAST_RETENTION"}


def test_what_goes_for_its_size_needs_no_clock():
    assert refused([plan_of("a", by_size=100, blocked_by="LAST_SEGMENT")], ALL) == {}
