"""What a plan says about requests, held against what is really asked."""

import sys

import pyarrow as pa

from pylog_spark.run.upkeep import (
    StoreCost,
    bucket_notes,
    compaction_notes,
    cost_of_round,
    describe_cost,
)
from storage_core.catalog.roles import Role
from storage_core.roots import managed
from storage_core.roots.open_root import LogRoot
from storage_core.store.open_objects import open_object_store
from tests.kit.wrapped_objects import CountingObjects
from tests.pylog_spark.broker_roots import FIRST_ROUNDS_MS, broker_directory
from tests.pylog_spark.managed_roots import managed_twin
from tests.pylog_spark.tasks.managed_pipeline import ManagedPipeline, clean

NAME = "clean-hw-none-s161"


def test_the_costs_of_large_segments_are_those_of_their_ranges_and_parts():
    cost = cost_of_round([1 << 30] * 4, 1 << 30, groups=4)
    assert (cost.read_bytes, cost.written_bytes) == (5 << 30, 4 << 30)
    assert 5 * 64 <= cost.gets < 5 * 64 + 40
    assert 4 * 64 <= cost.puts < 4 * 64 + 20
    assert cost + cost == StoreCost(
        partitions=2,
        gets=2 * cost.gets,
        puts=2 * cost.puts,
        heads=2 * cost.heads,
        read_bytes=2 * cost.read_bytes,
        written_bytes=2 * cost.written_bytes,
    )
    assert "compacting 1 partition takes about" in describe_cost(cost)


def test_what_a_small_partition_really_takes_is_near_what_was_said(tmp_path, monkeypatch):
    twin = managed_twin(broker_directory(tmp_path / "log", [NAME]), f"memory://{tmp_path.name}")
    pipeline = ManagedPipeline(twin, FIRST_ROUNDS_MS)
    counting = CountingObjects(open_object_store(twin.location))
    with pipeline.held() as context:
        for module in (managed, sys.modules["storage_core.store.open_store"]):
            monkeypatch.setattr(module, "open_object_store", lambda _url: counting)
        (row,) = [row for row in pipeline.observe() if row["status"] == "planned"]
        assert [r["error"] for r in clean(pipeline.works(), context)] == [None]
    said = cost_of_round(row["segment_bytes"], row["cleanable_bytes"], row["groups"])
    puts = sum(n for (method, _), n in counting.requests.items() if method.startswith("put"))
    # The partition was observed twice here.
    assert said.gets <= counting.count("get") <= 2 * said.gets
    assert puts <= said.puts <= 2 * puts
    assert counting.count("head") <= said.heads


def test_only_managed_roots_with_something_due_have_a_line():
    roots = [
        LogRoot(location="memory://managed", role=Role.MANAGED, is_said=True),
        LogRoot(location="memory://idle", role=Role.MANAGED, is_said=True),
        LogRoot(location="/var/lib/kafka", role=Role.BROKER, is_said=True),
    ]
    names = ("root", "status", "cleanable_bytes", "segments", "groups", "segment_bytes")
    rows = [
        ("memory://managed", "planned", 10, 2, 1, [10, 20]),
        ("memory://managed", "planned", 10, 1, 1, [10]),
        ("memory://idle", "skipped", None, 1, None, None),
        ("/var/lib/kafka", "planned", 10, 1, 1, [10]),
    ]
    plans = pa.Table.from_pylist([dict(zip(names, row, strict=True)) for row in rows])
    (line,) = compaction_notes(roots, plans)
    assert line.startswith("memory://managed: compacting 2 partitions takes about ")
    assert bucket_notes(roots) == ()
