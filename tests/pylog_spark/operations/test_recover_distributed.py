"""Recovery on the two executors of a real cluster; processes that die in it change nothing."""

import sys
from dataclasses import replace

import pytest

from storage_core.filenames import CLEAN_SHUTDOWN_FILE, RECOVERY_POINT_FILE
from tests.jobs.spark_programs import REPOSITORY, environment, standalone_cluster
from tests.kit.program import lines_of, run_to_end
from tests.pylog_spark.broker_roots import read_points
from tests.pylog_spark.crashed_roots import (
    MARKER_OF_OURS,
    crashed_directory,
    forget_high_watermarks,
    logs_of,
    tear,
)

pytestmark = [pytest.mark.spark, pytest.mark.thorough, pytest.mark.timeout(500)]

# By run: whether a process was killed while segments were read, and in the middle of a commit.
RUNS = {
    "spread": [False, False],
    "worker-executor": [True, True],
    "executor-worker": [True, True],
    "whole-executor": [False, True],
}
MANY_SEGMENTS = "clean-group-all-s211"
NAMES = [
    *("clean-epochs-mixed-s151", MANY_SEGMENTS, "clean-legacy0-gzip-s301"),
    *("clean-txn-none-s101-3", "clean-txn-open-mixed-s151", "clean-upgrade-s321"),
]


@pytest.fixture(scope="module")
def played(tmp_path_factory):
    """Run the program once; what it said, by run, and its folder."""
    folder = tmp_path_factory.mktemp("played")
    program = "tests.pylog_spark.operations.killed_executors"
    with standalone_cluster(tmp_path_factory.mktemp("cluster")) as url:
        ended = run_to_end(
            [sys.executable, "-m", program, url, folder, *NAMES],
            cwd=REPOSITORY,
            env=environment(),
            timeout=400,
        )
    assert ended.returncode == 0, ended.stderr
    said = lines_of(ended)
    return {line["run"]: line for line in said}, folder


@pytest.fixture(scope="module")
def one_by_one(tmp_path_factory):
    """The same directory, each partition recovered as ``pylog partition recover`` does it."""
    root = crashed_directory(tmp_path_factory.mktemp("twin") / "log", NAMES)
    forget_high_watermarks(root.path)
    for directory in root.partitions():
        tear(directory)
    assert len(logs_of(root.path / f"{MANY_SEGMENTS}-0")) > 4
    ends = {name: result.log_end_offset for name, result in root.recover_one_by_one().items()}
    return root, ends


@pytest.mark.item("REC-30", "FLT-14")
@pytest.mark.parametrize("run", RUNS)
def test_two_executors_leave_what_partition_recover_leaves_whoever_dies(played, one_by_one, run):
    said, folder = played
    root, ends = one_by_one
    assert said[run]["exit"] == 0
    assert set(said[run]["rows"]) == {"done"}
    assert said[run]["killed"] == RUNS[run]
    assert replace(root, path=folder / run).trees() == root.trees()
    points = read_points(folder / run, RECOVERY_POINT_FILE)
    assert {str(partition): end for partition, end in points.items()} == ends
    assert (folder / run / CLEAN_SHUTDOWN_FILE).read_bytes() == MARKER_OF_OURS
    assert [path.name for path in folder.glob("*scratch*")] == []


def test_the_cluster_had_two_executors(played):
    assert played[0]["spread"]["executors"] == 2
