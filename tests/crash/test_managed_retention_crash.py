"""A sweep of a managed root, killed at every change of the store: the old log, or the new one.

What the manifest names is all that anybody sees of a partition, so a crash leaves it as it was or
as it is to be; then another run finishes. ``PYLOG_CRASH_ALL=1`` (``make crash``) takes every golden
pass that removes something.
"""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pylog_spark.run.plan_table import read_planned
from pylog_spark.tasks.observation import Step
from pylog_spark.tasks.retention import RetentionContext, SweepScope, SweepWork, commit_sweeps
from pylog_spark.tasks.run_context import WriteContext
from storage_core.roots import managed
from storage_core.store.open_objects import open_object_store
from tests.kit.compare import read_tree
from tests.kit.faulty_store import NEVER, Moment, SimulatedCrash
from tests.kit.golden_data import Golden, Side, goldens
from tests.kit.wrapped_objects import FaultyObjects, WrappedObjects
from tests.pylog_spark.broker_roots import broker_directory
from tests.pylog_spark.managed_roots import ManagedTwin, managed_twin
from tests.pylog_spark.tasks.managed_pipeline import ManagedPipeline
from tests.pylog_spark.tasks.observed import observed

ALL = os.environ.get("PYLOG_CRASH_ALL", "0") == "1"
SOME = ["retain-both-s501", "retain-time-all-s501"]
CASES = [
    golden.name
    for golden in goldens("retain-*")
    if golden.case["expected"]["deleted"]
    and not golden.case["params"].get("keep")
    and "compact" not in golden.case["config"]["cleanup.policy"]
    and (ALL or golden.name in SOME)
]
pytestmark = [pytest.mark.crash, pytest.mark.timeout(1800 if ALL else 300)]


@contextmanager
def through(wrapper: WrappedObjects) -> Iterator[None]:
    """Let every partition and lease that tasks open be reached through a wrapper."""
    with pytest.MonkeyPatch.context() as patch:
        # The module has the name of the function in it, which the package exports.
        for module in (managed, sys.modules["storage_core.store.open_store"]):
            patch.setattr(module, "open_object_store", lambda _url: wrapper)
        yield


def sweep(pipeline: ManagedPipeline, write: WriteContext) -> list[dict[str, Any]]:
    """Observe, plan and commit in this process; return the rows of the commits."""
    context = RetentionContext(run=pipeline.run, scope=SweepScope.DELETED)
    works = list(read_planned(SweepWork, observed(pipeline.listed(), pipeline.run, Step.RETAIN)))
    return [row for batch in commit_sweeps(works, context, write) for row in batch.to_pylist()]


def interrupted_run(twin: ManagedTwin, now_ms: int, stop_at: int, moment: Moment) -> FaultyObjects:
    """Sweep with a process that dies at one change; nothing is tidied up."""
    faulty = FaultyObjects(open_object_store(twin.location), stop_at=stop_at, moment=moment)
    pipeline = ManagedPipeline(twin, now_ms, run_id=f"killed-{stop_at}")
    with pipeline.held() as write, through(faulty):
        try:
            rows = sweep(pipeline, write)
        except SimulatedCrash:
            rows = []
    assert stop_at != NEVER or [row["error"] for row in rows] == [None]
    return faulty


@pytest.mark.item("FLT-08", "RET-10", "RET-11", "DIR-15")
@pytest.mark.parametrize("name", CASES)
def test_a_sweep_killed_at_any_change_leaves_the_old_or_the_new_and_a_rerun_ends_it(name, tmp_path):
    golden = Golden(name)
    now_ms = golden.case["clock_ms"]
    origin = broker_directory(tmp_path / "log", [name])
    whole = managed_twin(origin, f"memory://sweep-{name}")
    before = whole.tree(name)
    changes = interrupted_run(whole, now_ms, NEVER, Moment.BEFORE).changes
    after = whole.tree(name)
    assert after == read_tree(golden.unpack(Path(tmp_path / "kafka"), Side.AFTER))
    start = whole.store(name).checkpoints.log_start_offset
    assert start == golden.case["expected"]["log_start"]
    commit = next(n for n, (method, _) in enumerate(changes) if method == "put_if_match")
    for number in range(len(changes)):
        for moment in Moment:
            twin = managed_twin(origin, f"memory://sweep-{name}-{number}-{moment.value}")
            interrupted_run(twin, now_ms, number, moment)
            is_done = number > commit or (number == commit and moment is Moment.AFTER)
            assert twin.tree(name) == (after if is_done else before), (number, moment)
            rerun = ManagedPipeline(twin, now_ms, run_id="rerun")
            with rerun.held() as write:
                rows = sweep(rerun, write)
            assert [row["error"] for row in rows] == ([] if is_done else [None])
            assert twin.tree(name) == after, (number, moment)
            assert twin.store(name).checkpoints.log_start_offset == start


@pytest.mark.item("FLT-14")
def test_a_zombie_whose_lease_was_taken_over_cannot_commit(tmp_path):
    name = "retain-both-s501"
    now_ms = Golden(name).case["clock_ms"]
    origin = broker_directory(tmp_path / "log", [name])
    twin = managed_twin(origin, "memory://sweep-zombie")
    zombie = ManagedPipeline(twin, now_ms, run_id="zombie")
    with zombie.held() as stale:
        pass  # its lease has gone back; its task does not know
    other = ManagedPipeline(twin, now_ms, run_id="other")
    with other.held() as write:
        before = twin.tree(name)
        (row,) = sweep(zombie, replace(stale, run=zombie.run))
        assert row["error_class"] is not None
        assert twin.tree(name) == before
        assert [row["error"] for row in sweep(other, write)] == [None]
