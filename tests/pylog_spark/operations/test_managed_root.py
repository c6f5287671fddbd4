"""Compaction of managed roots: what it does to a broker's directory, by manifest and under a lease."""

import pytest

from pylog_spark.operations.compact import compact
from pylog_spark.planning import Strategy
from storage_core.filenames import TopicPartition
from storage_core.testing.compare import read_tree
from tests.pylog_spark.broker_roots import (
    FIRST_ROUNDS,
    FIRST_ROUNDS_MS,
    LATER_ROUNDS,
    LATER_ROUNDS_MS,
    broker_directory,
    read_points,
)
from tests.pylog_spark.managed_roots import managed_twin

pytestmark = pytest.mark.spark


@pytest.mark.parametrize("strategy", [Strategy.BROADCAST, Strategy.WHOLE])
@pytest.mark.parametrize(
    ("names", "now_ms"),
    [(FIRST_ROUNDS, FIRST_ROUNDS_MS), (LATER_ROUNDS, LATER_ROUNDS_MS)],
    ids=["first rounds", "later rounds, compressed, with transactions"],
)
def test_a_managed_root_ends_with_the_bytes_of_a_brokers_directory(
    spark, tmp_path, names, now_ms, strategy
):
    root = broker_directory(tmp_path / "log", names)
    twin = managed_twin(root, tmp_path / "managed")
    expected = compact(spark, [root.path], root.options(now_ms), strategy=strategy)
    report = compact(spark, [twin.location], twin.options(now_ms), strategy=strategy)

    assert [row["error"] for row in report.results.to_pylist() if row["error"]] == []
    assert (report.exit_code, expected.exit_code) == (0, 0)
    points = read_points(root.path)
    for name in names:
        assert twin.tree(name) == read_tree(root.path / f"{name}-0"), name
        point = twin.store(name).checkpoints.cleaner_offset
        assert point == points.get(TopicPartition(name, 0)), name
    columns = ["topic", "status", "reason", "bytes_after", "records_after", "segments_after"]
    found, wanted = (r.results.select(columns).to_pylist() for r in (report, expected))
    key = lambda row: row["topic"]  # noqa: E731
    assert sorted(found, key=key) == sorted(wanted, key=key)
