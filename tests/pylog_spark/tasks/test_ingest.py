"""The executors' side of an ingest: one row a partition, whatever happens to its task."""

import pyarrow as pa
import pytest

from pylog_spark.operations.ingest_task import (
    IngestContext,
    compare_with_manifests,
    ingest_partitions,
)
from pylog_spark.options import HighWatermarkSource
from pylog_spark.schemas import INGEST
from pylog_spark.tasks.listing import list_run_partitions, list_runs, rows_of
from storage_core.catalog.topic_filter import TopicFilter
from storage_core.clock import ManualClock
from storage_core.filenames import TopicPartition, log_file
from storage_core.maintenance.ingest.partition import IngestRules
from storage_core.store import ManagedStore, open_object_store
from storage_core.store.generations import create_root
from storage_core.store.lease import acquire_lease
from tests.storage_core.maintenance.ingest.mirrors import segment, write_files

RULES = IngestRules(settle_ms=0)


@pytest.fixture
def roots(tmp_path):
    mirror, managed = tmp_path / "mirror", tmp_path / "managed"
    write_files(mirror, segment(0), segment(6), segment(12))
    write_files(mirror, segment(0), name="orders-1")
    (mirror / "replication-offset-checkpoint").write_text("0\n1\norders 0 17\n")
    create_root(open_object_store(str(managed)), now_ms=1)
    return mirror, managed


def context_of(roots, lease=None, **more):
    mirror, managed = roots
    defaults = {"run_id": "run-1", "rules": RULES, "high_watermark": HighWatermarkSource.CHECKPOINT}
    return IngestContext(mirror=str(mirror), root=str(managed), lease=lease, **defaults | more)


def leased(roots):
    return acquire_lease(open_object_store(str(roots[1])), holder="run-1")


def listed(roots):
    return list(list_run_partitions(list_runs((str(roots[0]), "mirror"), TopicFilter())))


def compared(roots, context):
    (batch,) = compare_with_manifests(iter(listed(roots)), context)
    assert batch.schema.names == INGEST.names
    return batch


def taken(batch, context):
    rows = [row for row in rows_of([batch]) if row["status"] == "planned"]
    planned = pa.RecordBatch.from_pylist(rows, schema=INGEST)
    return [
        row for found in ingest_partitions(iter([planned]), context) for row in rows_of([found])
    ]


def managed_store(roots, number=0):
    objects = open_object_store(str(roots[1]))
    return ManagedStore(objects, TopicPartition("orders", number), is_new=True)


def test_only_partitions_with_something_new_are_looked_at_twice(roots):
    rows = {row["directory"]: row for row in rows_of([compared(roots, context_of(roots))])}
    assert rows["orders-0"]["status"] == "planned"
    assert log_file(0) in rows["orders-0"]["file_names"]
    assert (rows["orders-1"]["status"], rows["orders-1"]["reason"]) == (
        "skipped",
        "NOTHING_TO_INGEST",
    )
    assert rows["orders-1"]["file_names"] is None


def test_a_partition_is_taken_up_to_the_high_watermark_that_the_mirror_attests(roots):
    with leased(roots) as lease:
        context = context_of(roots, lease.proof)
        (row,) = taken(compared(roots, context), context)
    assert (row["status"], row["taken_segments"], row["end_offset"]) == ("done", 2, 12)
    assert (row["high_watermark"], row["left_because"]) == (12, "OPEN")
    manifest = managed_store(roots).manifest
    assert manifest.fencing_token == 1
    assert manifest.checkpoints.high_watermark == 12


def test_a_task_that_runs_twice_commits_once_and_returns_the_same_row(roots):
    with leased(roots) as lease:
        context = context_of(roots, lease.proof)
        batch = compared(roots, context)
        (first,) = taken(batch, context)
        (second,) = taken(batch, context)
        # Nor does the look that comes before it, if a stage is repeated.
        (third,) = taken(compared(roots, context), context)
    for row in (second, third):
        assert {**row, "duration_ms": 0} | {"bytes_before": 0, "segments_before": 0} == {
            **first,
            "duration_ms": 0,
        }
    assert managed_store(roots).manifest.generation == 1


def test_a_zombie_whose_lease_has_ended_commits_nothing(roots):
    objects = open_object_store(str(roots[1]))
    lease = acquire_lease(objects, holder="zombie", ttl_ms=1000, clock=ManualClock(1_000))
    context = context_of(roots, lease.proof)
    with acquire_lease(objects, holder="somebody else"):
        (row,) = taken(compared(roots, context), context)
    assert row["status"] == "failed"
    assert row["error"].startswith("LEASE_LOST")
    assert managed_store(roots).manifest.generation == 0


def test_a_partition_that_its_owner_switched_off_is_left_alone(roots):
    (roots[1] / "orders-0").mkdir()
    (roots[1] / "orders-0" / "pylog-off").write_text("audit")
    rows = {row["directory"]: row for row in rows_of([compared(roots, context_of(roots))])}
    assert (rows["orders-0"]["status"], rows["orders-0"]["reason"]) == ("skipped", "SWITCHED_OFF")


def test_a_manifest_that_cannot_be_read_fails_its_partition_alone(roots):
    folder = roots[1] / "orders-0"
    folder.mkdir()
    (folder / "manifest.json").write_text("{")
    rows = {row["directory"]: row for row in rows_of([compared(roots, context_of(roots))])}
    assert rows["orders-0"]["error_class"] == "ManifestError"
    assert rows["orders-1"]["status"] == "skipped"


def test_a_torn_closed_segment_fails_its_partition(roots):
    write_files(roots[0], segment(0, torn_tail=b"x" * 30), segment(6), segment(12))
    context = context_of(roots)
    (row,) = taken(compared(roots, context), context)
    assert (row["status"], row["error_class"]) == ("failed", "CorruptRecordError")
