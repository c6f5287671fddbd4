"""``pylog recover`` with a task for every segment, as ``jobs/recover.py`` runs it."""

import pytest

from storage_core.filenames import CLEAN_SHUTDOWN_FILE
from tests.jobs.spark_programs import write_config
from tests.pylog_spark.crashed_roots import (
    MARKER_OF_OURS,
    NOW_MS,
    crashed_directory,
    forget_high_watermarks,
    tear,
)

pytestmark = pytest.mark.spark

NAMES = ["clean-headers-none-s101", "clean-group-all-s211"]


@pytest.mark.thorough
def test_it_leaves_what_partition_recover_leaves(spark, pylog, tmp_path):
    root = crashed_directory(tmp_path / "log", NAMES)
    forget_high_watermarks(root.path)
    tear(root.path / f"{NAMES[1]}-0")
    twin = root.copy(tmp_path / "twin")
    twin.recover_one_by_one()
    config = write_config(root.facts, tmp_path / "conf.yaml")
    arguments = [root.path, "--role", "broker", "--config", config, "--now-ms", str(NOW_MS)]
    # One byte a task: every segment is a task of its own.
    tuning = ["--set", "unit.min.bytes=1", "--set", "unit.max.bytes=1"]
    lines = pylog.rows("recover", *arguments, *tuning)
    assert [line["type"] for line in lines] == ["result", "result", "cut", "run"]
    assert root.trees() == twin.trees()
    assert (root.path / CLEAN_SHUTDOWN_FILE).read_bytes() == MARKER_OF_OURS
