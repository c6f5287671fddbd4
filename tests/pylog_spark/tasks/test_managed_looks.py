"""What looking at a managed root costs."""

import pyarrow as pa
import pytest

from pylog_spark.operations.observation_task import ObservationContext, decode_steps, observe_steps
from pylog_spark.rows import rows_to_batch
from pylog_spark.schemas import OBSERVED, PARTITION
from pylog_spark.tasks.observe import Step
from storage_core.store.open_objects import open_object_store
from tests.kit.golden_data import Golden
from tests.kit.wrapped_objects import CountingObjects
from tests.pylog_spark.broker_roots import FIRST_ROUNDS_MS, BrokerDirectory, broker_directory
from tests.pylog_spark.managed_roots import managed_twin
from tests.pylog_spark.tasks.managed_pipeline import ManagedPipeline, clean, through
from tests.pylog_spark.tasks.observed import observed


def many(tmp_path, count: int, name: str = "clean-headers-none-s101") -> BrokerDirectory:
    origin = broker_directory(tmp_path / f"log-{name}-{count}", [])
    for number in range(count):
        origin.add(Golden(name), topic=f"t{number}")
    origin.write_files()
    return origin


@pytest.mark.item("IDX-22")
def test_a_look_at_what_is_not_due_reads_one_manifest_a_partition_and_no_data(tmp_path):
    counts = {}
    for partitions in (2, 6):
        twin = managed_twin(many(tmp_path, partitions), f"memory://idle-{partitions}")
        pipeline = ManagedPipeline(twin, FIRST_ROUNDS_MS)
        with pipeline.held() as context:
            assert len(clean(pipeline.works(), context)) == partitions
        counting = CountingObjects(open_object_store(twin.location))
        with through(counting):
            rows = pipeline.observe()
        assert {row["reason"] for row in rows} == {"NOTHING_TO_CLEAN"}
        assert all(row["bytes"] > 0 and row["segments"] > 0 for row in rows)
        counts[partitions] = dict(counting.requests)
    assert counts == {2: {("get", "manifest"): 2}, 6: {("get", "manifest"): 6}}


@pytest.mark.thorough
def test_a_look_at_what_has_not_expired_reads_one_manifest_a_partition(tmp_path):
    counts = {}
    for partitions in (2, 6):
        origin = many(tmp_path, partitions, "retain-time-hw-s501")
        twin = managed_twin(origin, f"memory://fresh-{partitions}")
        # Nothing in it is as old as that.
        pipeline = ManagedPipeline(twin, 0)
        counting = CountingObjects(open_object_store(twin.location))
        with through(counting):
            found = observed(pipeline.listed(), pipeline.run, Step.RETAIN).to_pylist()
        assert {row["reason"] for row in found} == {"NOTHING_TO_RETAIN"}
        assert min(row["segments"] for row in found) > 1
        counts[partitions] = dict(counting.requests)
    assert counts == {2: {("get", "manifest"): 2}, 6: {("get", "manifest"): 6}}


def test_a_look_for_all_steps_of_a_night_reads_one_manifest_a_partition(tmp_path):
    origin = broker_directory(tmp_path / "log", [])
    for number in range(3):
        origin.add(Golden("clean-headers-none-s101"), topic=f"t{number}")
        origin.configs[f"t{number}"]["cleanup.policy"] = "compact,delete"
    origin.write_files()
    twin = managed_twin(origin, "memory://all-steps")
    pipeline = ManagedPipeline(twin, 0)
    context = ObservationContext(
        run=pipeline.run, steps=frozenset({Step.RETAIN, Step.COMPACT, Step.SWEEP})
    )
    apart = {
        step: observed(pipeline.listed(), pipeline.run, step).to_pylist() for step in context.steps
    }
    counting = CountingObjects(open_object_store(twin.location))
    with through(counting):
        batch = rows_to_batch(PARTITION, pipeline.listed())
        found = pa.Table.from_batches(observe_steps(iter([batch]), context), OBSERVED)
    assert counting.count("get", "manifest") == 3
    for step, rows in apart.items():
        told = decode_steps(found, step).to_pylist()
        assert [timeless(row) for row in told] == [timeless(row) for row in rows]


def timeless(row):
    return row | {"duration_ms": 0}


def test_a_commit_asks_for_each_thing_once(tmp_path):
    twin = managed_twin(many(tmp_path, 1), "memory://commit-requests")
    pipeline = ManagedPipeline(twin, FIRST_ROUNDS_MS)
    works = pipeline.works()
    counting = CountingObjects(open_object_store(twin.location))
    with pipeline.held() as context, through(counting):
        (row,) = clean(works, context)
    assert row["error"] is None
    assert counting.count("get", "manifest") == 1
    # Before the work, and right before the PUT that counts.
    assert counting.count("get", "lease") == 2
    assert counting.count("put_if_match", "manifest") == 1
    assert counting.count("put_if_absent", "history") == 1
    small = counting.count("get", "data") + counting.count("get", "companions")
    assert small <= len(twin.store("t0", generation=1).list_files())
