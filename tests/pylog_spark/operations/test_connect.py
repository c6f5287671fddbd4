"""The same jobs on a local Spark Connect server: the same bytes."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from pylog_spark.operations.nightly import run_nightly
from pylog_spark.source import register
from storage_core.kafka_log import open_logs
from tests.jobs.spark_programs import REPOSITORY, environment
from tests.kit.compare import read_tree
from tests.kit.program import run_to_end
from tests.pylog_spark.broker_roots import (
    differences_from_kafka,
    expected_points,
    read_points,
)
from tests.pylog_spark.operations.connect_side import EXPIRING, night_of
from tests.pylog_spark.source.connect_side import SOME_VIEWS, TOPIC, WITH_LOG, rows_of

pytestmark = pytest.mark.spark

NAMES = ["clean-hw-none-s161", "clean-group-all-s211"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("connect")


@pytest.fixture(scope="module")
def ended(folder: Path) -> subprocess.CompletedProcess[str]:
    """The program with the session, over; its directories are in the folder."""
    pytest.importorskip("grpc", reason="pyspark's own extra 'connect' is not installed")
    ended = run_to_end(
        [sys.executable, "-m", "tests.pylog_spark.operations.connect_side", folder, *NAMES],
        cwd=REPOSITORY,
        env=environment(),
        timeout=360,
    )
    assert ended.returncode == 0, ended.stderr
    return ended


@pytest.mark.thorough
@pytest.mark.timeout(400)
def test_a_connect_session_leaves_what_kafka_left_and_works_a_night_as_any_other(
    spark, ended, folder
):
    said = json.loads(ended.stdout.splitlines()[-1])
    for way in ("auto", "shuffle"):
        run = said[way]
        assert run["kind"].startswith("pyspark.sql.connect")
        assert (run["exit"], run["errors"]) == (0, [None] * len(NAMES))
        assert "offset maps are shuffled" in run["notes"][0]
        (folder / f"from-kafka-{way}").mkdir()
        expected = folder / f"from-kafka-{way}"
        assert differences_from_kafka(folder / way, NAMES, expected) == []
        assert read_points(folder / way) == expected_points(NAMES)
        assert list(folder.glob("pylog-scratch-*")) == []
    twin, options = night_of(folder / "twin", NAMES)
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
        assert read_tree(folder / "night" / f"{name}-0") == read_tree(twin.path / f"{name}-0")
    assert said["verify"] == {"exit": 0}
    # Two slots: not the 800 tasks of the default of spark.sql.shuffle.partitions.
    assert said["tasks"] <= 8
    assert said["ledger"] == {"exit": 0}
    assert (folder / "ledger" / "runs").is_dir()
    assert "this session has no Delta" in ended.stderr
    assert not (folder / "ledger" / "runs" / "_delta_log").exists()


@pytest.mark.thorough
@pytest.mark.timeout(400)
def test_the_format_reads_streams_and_writes_over_connect(spark, ended, folder):
    said = json.loads(ended.stdout.splitlines()[-1])["source"]
    register(spark)
    reader = spark.read.format("kafka-log")
    rows = rows_of(reader.options(**WITH_LOG).load(said["root"]))
    assert said["rows"] == rows
    assert len(rows) == said["streamed"] == said["counted"] == said["viewed"] == 1048
    assert said["triggers"] == 2
    for view in SOME_VIEWS:
        table = spark.read.format("kafka-log").option("view", view).load(said["root"])
        assert said["views"][view] == table.count() > 0
    written = open_logs(folder / "source" / "written").read(columns=["key", "value"]).to_table()
    columns = "key,value"
    read = spark.read.format("kafka-log").options(**TOPIC, columns=columns).load(said["root"])
    assert written.num_rows == 1048
    assert sorted(map(str, written.to_pylist())) == sorted(map(str, read.toArrow().to_pylist()))
