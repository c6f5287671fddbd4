import pyarrow as pa
import pytest

from pylog_spark.operations.compact.driver import outcome_of_commit
from pylog_spark.operations.compact.task import CompactionCommit
from pylog_spark.options import Order
from pylog_spark.outcomes import Reason
from pylog_spark.rows import rows_to_batch
from pylog_spark.run.plan_table import Outcome, refuse_duplicates, result_rows, sort_plans
from pylog_spark.run.run import exit_code_of
from pylog_spark.run.run_report import summarise
from pylog_spark.schemas import PLAN, RESULT, Failure


def plans_of(*rows: dict) -> pa.Table:
    filled = [{"root": "/a", "partition": 0, "duration_ms": 1} | row for row in rows]
    return pa.Table.from_batches([rows_to_batch(PLAN, filled)])


def planned(topic: str, ratio: float, **more) -> dict:
    sizes = {"bytes": 100, "bytes_after": 120, "segments": 3}
    return {"topic": topic, "status": "planned", "cleanable_ratio": ratio, **sizes} | more


def skipped(topic: str | None, reason: str, **more) -> dict:
    return {"topic": topic, "status": "skipped", "reason": reason, **more}


def results_of(plans: pa.Table, outcomes: dict[int, Outcome]) -> list[dict]:
    return result_rows(plans, outcomes, run_id="r", action="compact").to_pylist()


@pytest.mark.item("CMP-08")
def test_the_dirtiest_partition_is_first_and_equal_ones_follow_by_name():
    table = plans_of(
        skipped("z", "NOTHING_TO_CLEAN", cleanable_ratio=0.9),
        planned("b", 0.6),
        planned("c", 0.9),
        planned("a", 0.6, partition=10),
        planned("a", 0.6, partition=9),
        skipped(None, "INVALID_DIRECTORY_NAME"),
        skipped("y", "CONFIG_UNKNOWN"),
    )
    order = sort_plans(table).select(["topic", "partition"]).to_pylist()
    assert [(row["topic"], row["partition"]) for row in order] == [
        ("c", 0),
        ("a", 9),
        ("a", 10),
        ("b", 0),
        ("y", 0),
        ("z", 0),
        (None, 0),
    ]


def test_a_table_without_rows_stays_one():
    assert sort_plans(plans_of()).num_rows == 0


@pytest.mark.parametrize(
    ("order", "topics"),
    [
        (Order.URGENCY, ["b", "a", "c", "idle"]),
        (Order.LARGEST, ["c", "a", "b", "idle"]),
        (Order.SMALLEST, ["b", "a", "c", "idle"]),
        (Order.NAME, ["a", "b", "c", "idle"]),
    ],
)
def test_an_owner_may_ask_for_another_order(order, topics):
    table = plans_of(
        planned("a", 0.5, cleanable_bytes=20),
        planned("b", 0.9, cleanable_bytes=10),
        planned("c", 0.1, cleanable_bytes=30),
        skipped("idle", "RATIO_BELOW_MINIMUM", cleanable_ratio=1.0, cleanable_bytes=99),
    )
    assert sort_plans(table, order)["topic"].to_pylist() == topics
    assert results_of(plans_of(), {}) == []


@pytest.mark.item("DIR-09")
def test_a_partition_in_two_directories_of_a_broker_is_failed_and_both_are_named():
    table = plans_of(
        planned("t", 1.0, root="/a", directory="/a/t-0", plan=b"x"),
        planned("t", 1.0, root="/b", directory="/b/t-0", plan=b"x"),
        planned("u", 1.0, root="/b", directory="/b/u-0", plan=b"x"),
    )
    rows = refuse_duplicates(table, {"/a": (1,), "/b": (1,)}).to_pylist()
    assert [row["status"] for row in rows] == ["failed", "failed", "planned"]
    assert rows[0]["plan"] is None
    assert "/a/t-0, /b/t-0" in rows[0]["error"]


@pytest.mark.item("DIR-07")
def test_a_future_copy_beside_the_partition_is_no_duplicate():
    table = plans_of(
        planned("t", 1.0, root="/a", directory="/a/t-0"),
        skipped("t", "FUTURE_DIRECTORY", root="/b", directory=f"/b/t-0.{32 * '0'}-future"),
    )
    assert refuse_duplicates(table, {"/a": (1,), "/b": (1,)}) is table


def test_the_same_partition_of_two_brokers_is_no_duplicate():
    table = plans_of(
        planned("t", 1.0, root="/a", directory="/a/t-0"),
        planned("t", 1.0, root="/b", directory="/b/t-0"),
    )
    assert refuse_duplicates(table, {"/a": (1,), "/b": (2,)}) is table


def commit(**more) -> CompactionCommit:
    row = {"touched": False, "operations": "[]", "duration_ms": 1, "next_offset": 7}
    sizes = {"bytes_after": 60, "segments_after": 2, "records_before": 9, "records_after": 5}
    return CompactionCommit(ordinal=0, **row | sizes | more)


def test_a_planned_row_shows_its_bound_and_a_skipped_one_its_size():
    table = plans_of(planned("a", 1.0), skipped("b", "NOTHING_TO_CLEAN", bytes=5, segments=1))
    first, second = results_of(table, {})
    assert [first[name] for name in ("status", "bytes_after", "segments_after")] == [
        *("planned", 120, None)
    ]
    assert [second[name] for name in ("status", "bytes_after", "segments_after")] == [
        *("skipped", 5, 1)
    ]


def test_a_done_row_has_what_the_commit_said():
    outcome = outcome_of_commit(commit())
    (row,) = results_of(plans_of(planned("a", 1.0)), {0: outcome})
    assert row["status"] == "done"
    assert (row["bytes_before"], row["bytes_after"]) == (100, 60)
    assert (row["segments_before"], row["segments_after"]) == (3, 2)
    assert (row["records_before"], row["records_after"]) == (9, 5)
    assert row["duration_ms"] == 2
    assert outcome.next_offset == 7


@pytest.mark.parametrize("touched", [False, True])
def test_a_failed_row_keeps_its_size_unless_files_were_touched(touched):
    failure = Failure(error_class="StorageError", error="disk")
    outcome = outcome_of_commit(commit(failure=failure, touched=touched))
    (row,) = results_of(plans_of(planned("a", 1.0)), {0: outcome})
    assert (row["status"], row["error"]) == ("failed", "disk")
    assert row["bytes_after"] == (None if touched else 100)
    assert outcome.was_touched is touched
    assert outcome.next_offset is None


def table_of(*rows: tuple[str, str, str | None]) -> pa.Table:
    named = [{"root": root, "status": status, "reason": reason} for root, status, reason in rows]
    return pa.Table.from_batches([rows_to_batch(RESULT, named)])


DONE, NOTHING = ("/a", "done", None), ("/a", "skipped", Reason.NOTHING_TO_CLEAN.value)
UNKNOWN = ("/a", "skipped", Reason.CONFIG_UNKNOWN.value)
UNCLEAN = ("/b", "skipped", Reason.UNCLEAN_SHUTDOWN.value)
TIERED = ("/a", "skipped", Reason.TIERED.value)
OTHER_ID = ("/a", "skipped", Reason.INCONSISTENT_TOPIC_ID.value)
METADATA = ("/b", "skipped", Reason.INTERNAL_METADATA.value)
FAILED = ("/a", "failed", None)


@pytest.mark.parametrize(
    ("rows", "code"),
    [
        ([], 0),
        ([DONE, NOTHING], 0),
        ([DONE, UNKNOWN], 0),
        ([NOTHING, UNKNOWN], 0),
        ([UNKNOWN], 3),
        ([UNCLEAN, METADATA], 3),
        ([DONE, UNCLEAN, METADATA], 3),
        ([TIERED, TIERED], 3),
        ([OTHER_ID, UNKNOWN], 3),
        ([OTHER_ID], 3),
        ([DONE, TIERED, OTHER_ID], 0),
        ([METADATA], 0),
        ([DONE, FAILED], 4),
        ([FAILED, UNCLEAN], 4),
    ],
    ids=[
        "no partitions",
        "done",
        "one refused among others",
        "one refused, the others up to date",
        "all refused",
        "a root that needs recovery",
        "one root done, one refused",
        "nothing but tiered topics",
        "another topic's directory and an unknown one",
        "nothing but another topic's directory",
        "tiered and another topic's among others",
        "nothing to work on",
        "one failed",
        "failed and refused",
    ],
)
def test_the_exit_status_follows_from_the_rows(rows, code):
    assert exit_code_of(table_of(*rows), action="compact") == code


@pytest.mark.parametrize(
    ("action", "reason", "code"),
    [
        ("ingest", Reason.INCONSISTENT_TOPIC_ID, 3),
        ("materialize", Reason.TARGET_IS_OLDER, 3),
        ("retain", Reason.INCONSISTENT_TOPIC_ID, 0),
        ("recover", Reason.CUTS_WHOLE_LOG, 3),
        ("run", Reason.CUTS_TOO_MUCH, 3),
        ("compact", Reason.CUTS_TOO_MUCH, 0),
        ("undo", Reason.RUN_NOT_ENDED, 3),
        ("purge", Reason.RUN_NOT_ENDED, 0),
        ("compact", Reason.INPUTS_CHANGED, 3),
        ("retain", Reason.INPUTS_CHANGED, 3),
    ],
)
def test_a_single_refusal_is_enough_where_a_person_has_to_decide(action, reason, code):
    results = table_of(DONE, ("/a", "skipped", reason.value))
    assert exit_code_of(results, action=action) == code


@pytest.mark.parametrize(
    ("rows", "failures", "code"),
    [([DONE], (), 1), ([UNKNOWN], (), 3), ([DONE, FAILED], (), 4), ([DONE], ("/a",), 4)],
    ids=["done", "refused", "failed", "a failed disk"],
)
def test_findings_count_where_nothing_worse_is_said(rows, failures, code):
    results = table_of(*rows)
    found = exit_code_of(results, action="run", failures=failures, has_findings=True)
    assert found == code


def test_the_summary_counts_rows_and_the_bytes_of_what_was_done():
    rows = [
        {"status": "done", "bytes_before": 100, "bytes_after": 60},
        {"status": "skipped", "bytes_before": 7, "bytes_after": 7},
        {"status": "failed", "bytes_before": 9},
    ]
    summary = summarise(pa.Table.from_batches([rows_to_batch(RESULT, rows)]), duration_ms=12)
    assert (summary.done, summary.skipped, summary.failed, summary.planned) == (1, 1, 1, 0)
    assert (summary.bytes_before, summary.bytes_after, summary.duration_ms) == (100, 60, 12)
