"""A limit of tasks at one disk: never more, whatever the operation, and the same bytes."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from pylog_spark.engines.spark_engine import SparkEngine, SparkRows
from pylog_spark.operations.compact.driver import compact
from pylog_spark.operations.recover.driver import recover
from pylog_spark.operations.retain.driver import retain
from pylog_spark.operations.verify.driver import VerifyRequest, verify
from pylog_spark.options import JobOptions, RunLimits, Strategy, Tuning
from pylog_spark.run import planning
from pylog_spark.run import planning as disks
from pylog_spark.run.planning import Disks, find_disks
from storage_core.catalog.roles import Role
from storage_core.roots.open_root import LogRoot
from tests.kit.compare import read_tree
from tests.pylog_spark.broker_roots import FIRST_ROUNDS_MS, broker_directory, differences_from_kafka
from tests.pylog_spark.crashed_roots import crashed_directory
from tests.pylog_spark.operations.disk_watch import most_at_once, visits, watch

pytestmark = pytest.mark.spark

# What lies in each of two directories: logs to be cleaned, logs of which something goes.
CLEANED = (
    ["clean-headers-none-s101", "clean-group-all-s211"],
    ["clean-hw-none-s161", "clean-nullkeys-none-s101"],
)
SWEPT = (
    ["retain-size-s501", "retain-size-small-s501"],
    ["retain-logstart-mid-s501", "retain-size-zero-s501"],
)
# Every segment is a task of its own, where nothing else is said.
SPREAD = Tuning(unit_min_bytes=1, unit_max_bytes=1)
ANYTHING = RunLimits(max_delete_ratio=1.0, overrides=frozenset({"CLOCK_PAST_RETENTION"}))


@dataclass(frozen=True)
class Watched:
    """Two log directories of one broker, each on a disk of its own, and who is where when.

    Attributes:
        spark: The session.
        folder: Of the test.
        monkeypatch: Of the test.
    """

    spark: Any
    folder: Path
    monkeypatch: Any

    def run(self, operation: Callable, paths: list[Path], options: JobOptions, per_disk) -> int:
        """Run an operation; return how many tasks were at one disk at once, at most."""
        devices = {str(path): number for number, path in enumerate(paths)}
        notes = self.folder / f"notes-{per_disk}"
        notes.mkdir()
        limits = replace(ANYTHING, per_disk=per_disk)
        with self.monkeypatch.context() as patched:
            patched.setattr(disks, "device_of", lambda path: devices[str(path)])
            # Two tasks have to be there for a watch that is to see two.
            patched.setattr(planning, "LOOKS_PER_TASK", 1)
            watch(patched, notes, paths, may_meet=per_disk is None)
            told = replace(options, tuning=SPREAD, limits=limits)
            report = operation(self.spark, paths, told)
        assert report.exit_code == 0
        found = visits(notes)
        assert {visit.place for visit in found} == set(devices)
        return most_at_once(found)


@pytest.fixture
def watched(spark, tmp_path, monkeypatch) -> Watched:
    # Where there are few partitions the driver looks, and only tasks of the session are watched.
    monkeypatch.setattr(planning, "MOST_LOOKS_HERE", 0)
    return Watched(spark, tmp_path, monkeypatch)


def two_roots(folder: Path, names) -> tuple[list[Path], JobOptions]:
    folder.mkdir()
    roots = [broker_directory(folder / str(n), each) for n, each in enumerate(names)]
    configs = {**roots[0].configs, **roots[1].configs}
    return [root.path for root in roots], roots[0].options(FIRST_ROUNDS_MS, topic_configs=configs)


def trees(paths: list[Path]) -> dict[str, dict[str, bytes]]:
    return {
        each.name: read_tree(each) for path in paths for each in path.iterdir() if each.is_dir()
    }


@pytest.mark.thorough
def test_a_limit_of_tasks_at_a_disk_holds_and_changes_no_byte(watched):
    found = {}
    for per_disk in (None, 1):
        paths, options = two_roots(watched.folder / f"log-{per_disk}", SWEPT)
        most = watched.run(retain, paths, options, per_disk)
        found[most] = trees(paths)
    # Without the limit more than one task is there: the watch sees them.
    assert list(found) == [2, 1]
    assert found[2] == found[1]


@pytest.mark.thorough
@pytest.mark.parametrize("strategy", [Strategy.BROADCAST, Strategy.SHUFFLE])
def test_it_holds_in_a_compaction_that_is_spread(watched, strategy):
    paths, options = two_roots(watched.folder / "log", CLEANED)
    assert watched.run(partial(compact, strategy=strategy), paths, options, 1) == 1
    for number, path in enumerate(paths):
        folder = watched.folder / f"kafka-{number}"
        folder.mkdir()
        assert differences_from_kafka(path, CLEANED[number], folder) == []


@pytest.mark.thorough
def test_it_holds_in_a_recovery_whose_segments_are_read_apart(watched):
    roots = [crashed_directory(watched.folder / str(n), CLEANED[n]) for n in range(2)]
    twins = [root.copy(watched.folder / f"twin-{n}") for n, root in enumerate(roots)]
    configs = {**roots[0].options.topic_configs, **roots[1].options.topic_configs}
    options = roots[0].with_options(topic_configs=configs)
    assert watched.run(recover, [root.path for root in roots], options, 1) == 1
    for root, twin in zip(roots, twins, strict=True):
        twin.recover_one_by_one()
        assert root.trees() == twin.trees()


@pytest.mark.thorough
def test_it_holds_in_a_verification(watched):
    paths, options = two_roots(watched.folder / "log", CLEANED)
    deep = VerifyRequest(is_deep=True)
    assert watched.run(lambda *said: verify(*said, deep), paths, options, 1) == 1


@pytest.mark.thorough
def test_rows_of_one_disk_are_in_as_many_tasks_as_may_be_there(spark):
    rows = [(root, f"{root}/t-{n}") for root in ("/a", "/b", "s3://c") for n in range(40)]
    frame = spark.createDataFrame(rows, "root STRING, directory STRING")
    known = Disks(per_disk=3, by_root={"/a": 7, "/b": 7})
    dealt = known.deal_out(SparkEngine(spark, tag="disks"), SparkRows(frame)).frame
    assert dealt.columns == ["root", "directory"]
    tasks = dealt.selectExpr("root", "directory", "spark_partition_id() AS task").collect()
    assert sorted(row["directory"] for row in tasks) == sorted(directory for _, directory in rows)
    here = {row["task"] for row in tasks if row["root"] != "s3://c"}
    assert len(here) == 3
    assert here.isdisjoint(row["task"] for row in tasks if row["root"] == "s3://c")


def test_a_disk_is_what_the_filesystem_says_and_a_url_has_none(tmp_path):
    roots = [
        LogRoot(location=str(tmp_path), role=Role.BROKER, is_said=True),
        LogRoot(location="s3://bucket/kafka", role=Role.MIRROR, is_said=True),
    ]
    assert find_disks(roots, 4).by_root == {str(tmp_path): tmp_path.stat().st_dev}
    assert find_disks(roots, None) == Disks()
