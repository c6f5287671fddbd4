"""The rows of several steps as one story a partition directory."""

import pyarrow as pa

from pylog_spark.rows import rows_to_batch
from pylog_spark.run.run_report import merge_steps, summarise_steps
from pylog_spark.schemas import RESULT

DELETED = "/log/x-0.0123456789abcdef0123456789abcdef-delete"


def table_of(*rows: dict) -> pa.Table:
    usual = {"root": "/log", "topic": "x", "partition": 0, "directory": "/log/x-0"}
    named = [usual | row for row in rows]
    return pa.Table.from_batches([rows_to_batch(RESULT, named)], schema=RESULT)


def facts(results: pa.Table) -> list[tuple]:
    names = ("directory", "action", "status", "reason")
    return [tuple(row[name] for name in names) for row in results.to_pylist()]


def test_a_partition_and_the_remains_of_another_of_its_name_are_two_stories():
    left = {"directory": DELETED, "status": "skipped", "reason": "DELETE_DIRECTORY"}
    retained = table_of(
        {"action": "retain", "status": "skipped", "reason": "COMPACTED"},
        left | {"action": "retain"},
    )
    compacted = table_of(
        {"action": "compact", "status": "done", "bytes_before": 10, "bytes_after": 4},
        left | {"action": "compact"},
    )
    purged = table_of(
        {"directory": DELETED, "action": "purge", "status": "done"}
        | {"bytes_before": 7, "bytes_after": 0}
    )
    merged = merge_steps([retained, compacted, purged])
    assert facts(merged) == [
        ("/log/x-0", "compact", "done", None),
        (DELETED, "purge", "done", None),
        (DELETED, "retain", "skipped", "DELETE_DIRECTORY"),
    ]
    summary = summarise_steps(merged, duration_ms=1)
    assert (summary.bytes_before, summary.bytes_after) == (17, 4)


def test_what_is_said_of_the_one_directory_is_no_word_about_the_other():
    one_step = table_of(
        {"action": "retain", "status": "skipped", "reason": "COMPACTED"},
        {"directory": DELETED}
        | {"action": "retain", "status": "skipped", "reason": "DELETE_DIRECTORY"},
    )
    assert facts(merge_steps([one_step])) == facts(one_step)


def test_the_generation_of_a_managed_partition_makes_no_other_partition():
    steps = [
        table_of(
            {"directory": f"managed+s3://b/x-0{generation}", "status": "done"}
            | {"action": "compact", "bytes_before": before, "bytes_after": after}
        )
        for generation, before, after in (("#generation=3", 9, 5), ("", 5, 2))
    ]
    summary = summarise_steps(merge_steps(steps), duration_ms=1)
    assert (summary.bytes_before, summary.bytes_after) == (9, 2)
