import json
import subprocess
import sys

import pytest

from pylog_spark.operations import compact as operation
from pylog_spark.operations.compact import compact
from pylog_spark.operations.dispatch import Dispatcher
from pylog_spark.planning import Strategy
from tests.jobs.spark_programs import REPOSITORY, environment
from tests.pylog_spark.broker_roots import (
    FIRST_ROUNDS_MS,
    broker_directory,
    differences_from_kafka,
    expected_points,
    read_points,
)

pytestmark = pytest.mark.spark

NAMES = ["clean-headers-none-s101", "clean-hw-none-s161", "clean-group-all-s211"]


@pytest.mark.item("FLT-14")
def test_tasks_that_fail_after_their_work_and_run_again_leave_what_kafka_left(tmp_path):
    program = "tests.pylog_spark.operations.failing_tasks"
    ended = subprocess.run(
        [sys.executable, "-m", program, tmp_path, *NAMES],
        cwd=REPOSITORY,
        env=environment(),
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    spread, whole = [json.loads(line) for line in ended.stdout.splitlines()]
    # Both passes and the commit have at least one task each; a clean in one task has that one.
    assert spread["failed"] >= 3
    assert whole["failed"] >= 1
    for name, said in (("broadcast", spread), ("whole", whole)):
        assert (said["exit"], said["rows"]) == (0, ["done"] * len(NAMES))
        (tmp_path / f"from-kafka-{name}").mkdir()
        expected = tmp_path / f"from-kafka-{name}"
        assert differences_from_kafka(tmp_path / name, NAMES, expected) == []
        assert read_points(tmp_path / name) == expected_points(NAMES)


class NoBroadcast(Dispatcher):
    """A session like Spark Connect's, which has no broadcast variables."""

    def __init__(self, spark, *, tag):
        super().__init__(spark, tag=tag)
        self.can_broadcast = False


def test_without_broadcasts_each_partition_is_cleaned_whole_and_that_is_said(
    spark, tmp_path, monkeypatch
):
    monkeypatch.setattr(operation, "Dispatcher", NoBroadcast)
    root = broker_directory(tmp_path / "log", NAMES)
    report = compact(spark, [root.path], root.options(FIRST_ROUNDS_MS), strategy=Strategy.BROADCAST)
    assert "no broadcast variables" in report.notes[0]
    assert differences_from_kafka(root.path, NAMES, tmp_path) == []
