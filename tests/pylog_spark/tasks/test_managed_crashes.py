"""Work on a managed root, killed at every change of the store; and what looking at it costs."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from pylog_spark.tasks.observation import Step
from pylog_spark.tasks.run_context import WriteContext
from storage_core.roots import managed
from storage_core.store.open_objects import open_object_store
from tests.kit.faulty_store import NEVER, Moment, SimulatedCrash
from tests.kit.golden_data import Golden
from tests.kit.wrapped_objects import CountingObjects, FaultyObjects, WrappedObjects
from tests.pylog_spark.broker_roots import FIRST_ROUNDS_MS, BrokerDirectory, broker_directory
from tests.pylog_spark.managed_roots import ManagedTwin, managed_twin
from tests.pylog_spark.tasks.managed_pipeline import ManagedPipeline, clean
from tests.pylog_spark.tasks.observed import observed

COMPACTED = ["clean-group-all-s211", "clean-hw-none-s161", "clean-epochs-mixed-s151"]
RETAINED = ["retain-size-s501", "retain-size-zero-s501", "retain-logstart-mid-s501"]
MOMENTS = (Moment.BEFORE, Moment.TORN, Moment.AFTER)


@contextmanager
def through(wrapper: WrappedObjects) -> Iterator[None]:
    """Let every partition and lease that tasks open be reached through a wrapper."""
    with pytest.MonkeyPatch.context() as patch:
        # The module has the name of the function in it, which the package exports.
        for module in (managed, sys.modules["storage_core.store.open_store"]):
            patch.setattr(module, "open_object_store", lambda _url: wrapper)
        yield


def work_once(pipeline: ManagedPipeline, context: WriteContext) -> list[str | None]:
    """Do what is due and return each partition's error, None for none."""
    rows = clean(pipeline.works(), context)
    rows += pipeline.sweep(pipeline.sweeps(), context)
    return [row["error"] for row in rows]


def interrupted_run(twin: ManagedTwin, *, stop_at: int, moment: Moment) -> FaultyObjects:
    """Work with a process that dies at one change; nothing is tidied up."""
    faulty = FaultyObjects(open_object_store(twin.location), stop_at=stop_at, moment=moment)
    pipeline = ManagedPipeline(twin, FIRST_ROUNDS_MS, run_id=f"killed-{stop_at}")
    with pipeline.held() as context, through(faulty):
        try:
            errors = work_once(pipeline, context)
        except SimulatedCrash:
            errors = []
    assert stop_at != NEVER or errors == [None]
    return faulty


@pytest.mark.item("DIR-15")
@pytest.mark.parametrize("name", [*COMPACTED, *RETAINED])
def test_a_run_killed_at_any_change_leaves_the_old_or_the_new_and_a_rerun_ends_it(tmp_path, name):
    origin = broker_directory(tmp_path / "log", [name])
    undisturbed = managed_twin(origin, f"memory://crash-{name}")
    before = undisturbed.tree(name)
    changes = interrupted_run(undisturbed, stop_at=NEVER, moment=Moment.BEFORE).changes
    after, points = undisturbed.tree(name), undisturbed.store(name).checkpoints
    assert (after, points) != (before, undisturbed.store(name, generation=1).checkpoints)
    commit = next(n for n, (method, _) in enumerate(changes) if method == "put_if_match")
    for number in range(len(changes)):
        for moment in MOMENTS:
            twin = managed_twin(origin, f"memory://crash-{name}-{number}-{moment.value}")
            interrupted_run(twin, stop_at=number, moment=moment)
            is_done = number > commit or (number == commit and moment is Moment.AFTER)
            assert twin.tree(name) == (after if is_done else before), (number, moment)
            rerun = ManagedPipeline(twin, FIRST_ROUNDS_MS, run_id="rerun")
            with rerun.held() as context:
                assert work_once(rerun, context) == ([] if is_done else [None])
            assert (twin.tree(name), twin.store(name).checkpoints) == (after, points)


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
