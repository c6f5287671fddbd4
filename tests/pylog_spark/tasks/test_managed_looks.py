"""What looking at a managed root costs."""

import pytest

from pylog_spark.tasks.observation import Step
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
