import sys
from pathlib import Path
from typing import Any

import pytest

from pylog_spark.engines.spark_engine import SparkEngine
from pylog_spark.operations.compact.driver import compact
from pylog_spark.options import Strategy
from tests.jobs.spark_programs import REPOSITORY, environment, standalone_cluster
from tests.kit.program import lines_of, run_to_end
from tests.pylog_spark.broker_roots import (
    FIRST_ROUNDS_MS,
    broker_directory,
    differences_from_kafka,
    expected_points,
    read_points,
)
from tests.pylog_spark.operations.failing_tasks import HERE

pytestmark = pytest.mark.spark

NAMES = ["clean-headers-none-s101", "clean-hw-none-s161", "clean-group-all-s211"]
# Of several segments, in sessions of their own, where every attempt costs a new worker.
WORKED_TWICE = NAMES[1:]


def played(folder: Path, master: str, *, timeout: float) -> dict[str, dict[str, Any]]:
    """Run the program; return what it said of each way, once that is what Kafka left."""
    program = "tests.pylog_spark.operations.failing_tasks"
    ended = run_to_end(
        [sys.executable, "-m", program, folder, master, *WORKED_TWICE],
        cwd=REPOSITORY,
        env=environment(),
        timeout=timeout,
    )
    assert ended.returncode == 0, ended.stderr
    runs = {said["way"]: said for said in lines_of(ended)}
    for way, said in runs.items():
        assert (said["exit"], said["rows"]) == (0, ["done"] * len(WORKED_TWICE))
        expected = folder / f"from-kafka-{way}"
        expected.mkdir()
        assert differences_from_kafka(folder / way, WORKED_TWICE, expected) == []
        assert read_points(folder / way) == expected_points(WORKED_TWICE)
    return runs


@pytest.mark.thorough
@pytest.mark.item("FLT-14")
def test_tasks_that_fail_after_their_work_and_run_again_leave_what_kafka_left(tmp_path):
    runs = played(tmp_path, HERE, timeout=240)
    # Both passes and the commit have at least one task each (those of an exchange fail in the first
    # of its stages); a clean in one task has that one.
    least = {"broadcast": 3, "shuffle": 2, "whole": 1}
    assert {way: run["units"] >= least[way] for way, run in runs.items()} == dict.fromkeys(
        least, True
    )
    assert all(run["attempts"] >= 2 * run["units"] for run in runs.values()), runs


class NoBroadcast(SparkEngine):
    """A session like Spark Connect's, which has no broadcast variables."""

    def __init__(self, spark, *, tag):
        super().__init__(spark, tag=tag)
        self.can_broadcast = False


@pytest.mark.thorough
def test_without_broadcasts_keys_are_exchanged_and_that_is_said(spark, tmp_path, monkeypatch):
    monkeypatch.setattr("pylog_spark.engines.spark_engine.SparkEngine", NoBroadcast)
    root = broker_directory(tmp_path / "log", NAMES)
    titles = []
    collect = SparkEngine.collect

    def note(self, rows, schema, description, **how):
        titles.append(description.rpartition(": ")[2])
        return collect(self, rows, schema, description, **how)

    monkeypatch.setattr(SparkEngine, "collect", note)
    report = compact(spark, [root.path], root.options(FIRST_ROUNDS_MS), strategy=Strategy.BROADCAST)
    assert "no broadcast variables" in report.notes[0]
    assert [title.partition(",")[0] for title in titles[-2:]] == ["both passes", "commit"]
    assert "clean" not in titles
    assert differences_from_kafka(root.path, NAMES, tmp_path) == []


@pytest.mark.long
@pytest.mark.item("FLT-14")
@pytest.mark.timeout(600)
def test_copies_of_slow_tasks_beside_failing_ones_leave_what_kafka_left(tmp_path):
    with standalone_cluster(tmp_path, hosts=("127.0.0.1", "127.0.0.2")) as url:
        runs = played(tmp_path, url, timeout=500)
    assert list(runs) == ["broadcast", "shuffle"]
    # Some attempts failed or were overtaken by a copy.
    assert all(run["attempts"] > run["units"] for run in runs.values()), runs
