"""The same jobs on a local Spark Connect server: the same bytes."""

import json
import subprocess
import sys

import pytest

from pylog_spark.operations.nightly import run_nightly
from tests.jobs.spark_programs import REPOSITORY, environment
from tests.kit.compare import read_tree
from tests.pylog_spark.broker_roots import (
    differences_from_kafka,
    expected_points,
    read_points,
)
from tests.pylog_spark.operations.connect_side import EXPIRING, night_of

pytestmark = pytest.mark.spark

NAMES = ["clean-hw-none-s161", "clean-group-all-s211"]


@pytest.mark.timeout(400)
def test_a_connect_session_leaves_what_kafka_left_and_works_a_night_as_any_other(spark, tmp_path):
    pytest.importorskip("grpc", reason="pyspark's own extra 'connect' is not installed")
    ended = subprocess.run(
        [sys.executable, "-m", "tests.pylog_spark.operations.connect_side", tmp_path, *NAMES],
        cwd=REPOSITORY,
        env=environment(),
        capture_output=True,
        text=True,
        timeout=360,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    said = json.loads(ended.stdout.splitlines()[-1])
    for way in ("auto", "shuffle"):
        run = said[way]
        assert run["kind"].startswith("pyspark.sql.connect")
        assert (run["exit"], run["errors"]) == (0, [None] * len(NAMES))
        assert "scratch files or shuffled" in run["notes"][0]
        (tmp_path / f"from-kafka-{way}").mkdir()
        expected = tmp_path / f"from-kafka-{way}"
        assert differences_from_kafka(tmp_path / way, NAMES, expected) == []
        assert read_points(tmp_path / way) == expected_points(NAMES)
        assert list(tmp_path.glob("pylog-scratch-*")) == []
    twin, options = night_of(tmp_path / "twin", NAMES)
    assert run_nightly(spark, [twin.path], options).exit_code == 0
    names = [*NAMES, EXPIRING]
    assert said["night"] == {
        "exit": 0,
        "steps": sorted(
            [name, step, "done"]
            for name in names
            for step in ("recover", "retain" if name == EXPIRING else "compact")
        ),
    }
    for name in names:
        assert read_tree(tmp_path / "night" / f"{name}-0") == read_tree(twin.path / f"{name}-0")
    assert said["verify"] == {"exit": 0}
    # Two slots: not the 800 tasks of the default of spark.sql.shuffle.partitions.
    assert said["tasks"] <= 8
    assert said["ledger"] == {"exit": 0}
    assert (tmp_path / "ledger" / "runs").is_dir()
    assert "this session has no Delta" in ended.stderr
    assert not (tmp_path / "ledger" / "runs" / "_delta_log").exists()
