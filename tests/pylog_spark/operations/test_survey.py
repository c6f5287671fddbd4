"""Planning without the bytes: a thousand partitions that are not there, listed and in a file."""

import shutil

import pytest

from pylog_spark.operations.survey import survey
from pylog_spark.options import JobOptions
from pylog_spark.upkeep_directory import UpkeepDirectory
from storage_core.catalog.cluster_metadata import CLUSTER_METADATA_DIRECTORY
from storage_core.catalog.roles import Role
from tests.bench.bench_scale import plan_once
from tests.bench.synthetic_catalogue import NOW_MS, write_inventory
from tests.kit.builders import some_batches
from tests.kit.directories import SegmentSpec, plain_segment, write_partition
from tests.kit.golden_data import Golden

pytestmark = pytest.mark.spark

PARTITIONS = 1_000
SEGMENTS = 50


@pytest.fixture(scope="module")
def listed(spark):
    return plan_once(spark, PARTITIONS, segments=SEGMENTS, latency_seconds=0.002)


def columns(report):
    return report.details.drop_columns(["duration_ms"]).to_pylist()


@pytest.mark.thorough
def test_a_thousand_partitions_are_planned_from_their_listing_alone(listed):
    assert listed.details.num_rows == PARTITIONS
    assert set(listed.details["segments"].to_pylist()) == {SEGMENTS}
    assert listed.exit_code == 0
    expiring = [row for row in columns(listed) if row["policy"] == "delete"]
    assert len(expiring) == 700
    # A segment is half a day younger than the one before: those older than seven days go.
    assert {row["removable_segments"] for row in expiring} == {36}
    assert {row["status"] for row in expiring} == {"planned"}
    compacted = [row for row in columns(listed) if row["policy"] == "compact"]
    assert all(row["cleanable_bytes"] > 0 and row["cleanable_ratio"] == 1.0 for row in compacted)


@pytest.mark.thorough
def test_an_inventory_gives_the_same_plan(listed, spark, tmp_path):
    path = write_inventory(tmp_path / "files.parquet", PARTITIONS, SEGMENTS)
    found = plan_once(spark, PARTITIONS, segments=SEGMENTS, inventory=path)
    assert columns(found) == columns(listed)


def test_results_stand_in_the_order_of_what_is_due(listed):
    due = listed.details["due_bytes"].to_pylist()
    assert due == sorted(due, reverse=True)
    names = ("topic", "partition")
    assert listed.results.select(names).equals(listed.details.select(names))


def test_a_local_mirror_is_surveyed_without_opening_a_file(spark, tmp_path):
    root = Golden("broker-dir").unpack(tmp_path)
    for path in root.rglob("*.log"):
        if path.parent.name == CLUSTER_METADATA_DIRECTORY:
            continue  # configs behind damage decide nothing
        path.write_bytes(b"x" * path.stat().st_size)
    options = JobOptions(
        now_ms=NOW_MS,
        role=Role.MIRROR,
        topic_configs={
            "*": {"cleanup.policy": "delete", "retention.bytes": "1", "retention.ms": "-1"}
        },
    )
    rows = survey(spark, [root], options).details.to_pylist()
    by_name = {(row["topic"], row["partition"]): row for row in rows}
    assert by_name["events", 1]["removable_segments"] == by_name["events", 1]["segments"] - 1
    assert by_name["__cluster_metadata", 0]["reason"] == "INTERNAL_METADATA"


def test_a_partition_in_the_middle_of_a_swap_is_surveyed_as_a_load_would_leave_it(spark, tmp_path):
    for name in ("a-0", "b-0"):
        bases = range(0, 8, 2)
        segments = [plain_segment(base, 2) for base in bases]
        write_partition(tmp_path / name, segments)
    swap = write_partition(
        tmp_path / "new", [SegmentSpec(base_offset=0, batches=some_batches(count=1, base_offset=3))]
    )
    for path in swap.glob("0*"):
        path.rename(tmp_path / "b-0" / f"{path.name}.swap")
    shutil.rmtree(swap)
    options = JobOptions(
        now_ms=NOW_MS,
        role=Role.MIRROR,
        topic_configs={"*": {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0"}},
    )
    rows = survey(spark, [tmp_path], options).details.to_pylist()
    assert {row["topic"]: row["segments"] for row in rows} == {"a": 4, "b": 3}
    directory = UpkeepDirectory.for_path(spark, tmp_path, role=Role.MIRROR, options=options)
    listed = directory.inspect().segments.orderBy("base_offset").collect()
    assert [row["base_offset"] for row in listed if row["topic"] == "b"] == [0, 4, 6]
