"""Whole runs on Spark; Apache Kafka's own results and the in-process cleaner are the referees."""

import pytest

from pylog_spark.operations.compact import compact
from pylog_spark.planning import Strategy
from storage_core.maintenance.compaction.partition import clean_partition
from storage_core.testing.compare import read_tree
from tests.pylog_spark.broker_roots import (
    FIRST_ROUNDS,
    FIRST_ROUNDS_MS,
    LATER_ROUNDS,
    LATER_ROUNDS_MS,
    broker_directory,
    cleaner,
    differences_from_kafka,
    expected_points,
    read_points,
)

pytestmark = pytest.mark.spark


@pytest.mark.parametrize("strategy", [Strategy.BROADCAST, Strategy.WHOLE])
@pytest.mark.parametrize(
    ("names", "now_ms"),
    [(FIRST_ROUNDS, FIRST_ROUNDS_MS), (LATER_ROUNDS, LATER_ROUNDS_MS)],
    ids=["first rounds", "later rounds, with checkpoints, compressed"],
)
def test_every_partition_ends_as_apache_kafka_left_it(spark, tmp_path, names, now_ms, strategy):
    root = broker_directory(tmp_path / "log", names)
    report = compact(spark, [root.path], root.options(now_ms), strategy=strategy)
    assert report.exit_code == 0
    assert differences_from_kafka(root.path, names, tmp_path) == []
    assert read_points(root.path) == expected_points(names)
