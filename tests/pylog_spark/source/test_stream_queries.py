"""``spark.readStream.format("kafka-log")`` in a Spark session, with real checkpoints and kills."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from pylog_spark.source import register
from tests.jobs.spark_programs import REPOSITORY, environment
from tests.kit.builders import some_batches
from tests.kit.directories import SegmentSpec, write_partition
from tests.kit.golden_data import Golden
from tests.pylog_spark.source.stream_program import copy_stream

pytestmark = pytest.mark.spark

LONGEST_SECONDS = 240


def write_orders(root: Path, count: int) -> None:
    for number in (0, 1):
        batches = some_batches(count=count)
        write_partition(root / f"orders-{number}", [SegmentSpec(base_offset=0, batches=batches)])


def offsets_in(spark: Any, folder: Path) -> list[tuple[int, int]]:
    rows = spark.read.parquet(str(folder / "rows")).select("partition", "offset").collect()
    return sorted((row.partition, row.offset) for row in rows)


def each_once(count: int) -> list[tuple[int, int]]:
    return [(partition, offset) for partition in (0, 1) for offset in range(count)]


def test_a_query_that_goes_on_where_it_ended_has_each_record_once(spark, tmp_path):
    register(spark)
    root = tmp_path / "kafka"
    options = {"startingOffsets": "earliest", "maxOffsetsPerTrigger": "30"}
    batches = []
    for count in (50, 50, 80):
        write_orders(root, count)
        query = copy_stream(spark, root, tmp_path, **options)
        query.awaitTermination()
        batches.append([progress["numInputRows"] for progress in query.recentProgress])
        assert offsets_in(spark, tmp_path) == each_once(count)
    first, again, third = (sum(rows) for rows in batches)
    assert (first, again, third) == (100, 0, 60)
    assert max(batches[0]) == 30
    sources = query.recentProgress[-1]["sources"]
    assert '"orders": {"0": 80, "1": 80}' in sources[0]["endOffset"]


def test_a_query_that_runs_reads_what_comes(spark, tmp_path):
    register(spark)
    root = tmp_path / "kafka"
    write_orders(root, 5)
    rows = spark.readStream.format("kafka-log").option("columns", "partition,offset")
    query = rows.load(str(root)).writeStream.format("memory").queryName("orders").start()
    try:
        for count in (7, 9):
            query.processAllAvailable()
            write_orders(root, count)
        query.processAllAvailable()
        found = spark.table("orders").collect()
    finally:
        query.stop()
    assert sorted((row.partition, row.offset) for row in found) == [
        (partition, offset) for partition in (0, 1) for offset in range(5, 9)
    ]


def test_a_golden_directory_streams_as_it_reads(spark, tmp_path):
    register(spark)
    root = Golden("broker-dir").unpack(tmp_path)
    options = {"subscribe": "events,compacted", "kafka.isolation.level": "read_committed"}
    query = copy_stream(spark, root, tmp_path, startingOffsets="earliest", **options)
    query.awaitTermination()
    whole = spark.read.format("kafka-log").options(**options).load(str(root))
    streamed = spark.read.schema(whole.schema).parquet(str(tmp_path / "rows"))
    assert whole.exceptAll(streamed).count() == streamed.exceptAll(whole).count() == 0
    assert whole.count() == streamed.count() > 1000


def test_a_loss_ends_the_query_with_what_to_do(spark, tmp_path):
    register(spark)
    write_partition(
        tmp_path / "kafka" / "orders-0",
        [SegmentSpec(base_offset=5, batches=some_batches(count=3, base_offset=5))],
    )
    query = copy_stream(spark, tmp_path / "kafka", tmp_path, startingOffsets='{"orders":{"0":2}}')
    with pytest.raises(
        Exception, match="orders-0: offset 2 is out of range; the log has offsets 5"
    ):
        query.awaitTermination()


@pytest.mark.parametrize("option", ["endingOffsets", "subcribe"])
def test_a_wrong_option_is_said_in_sparks_error(spark, tmp_path, option: str):
    register(spark)
    write_orders(tmp_path / "kafka", 1)
    with pytest.raises(Exception, match=option):
        copy_stream(spark, tmp_path / "kafka", tmp_path, **{option: "7"}).awaitTermination()


def test_a_stream_that_is_killed_and_restarted_misses_and_repeats_nothing(spark, tmp_path):
    """The process is killed, with its JVM and workers, wherever it is then; the directory grows."""
    root = tmp_path / "kafka"
    write_orders(root, 300)
    assert _run_program(root, tmp_path, kill_after=2)
    before = offsets_in(spark, tmp_path)
    assert 0 < len(before) < 600
    write_orders(root, 310)
    assert not _run_program(root, tmp_path, kill_after=None)
    assert offsets_in(spark, tmp_path) == each_once(310)


def _run_program(root: Path, folder: Path, *, kill_after: int | None) -> bool:
    """Run the program; returns whether it was killed, after so many more triggers."""
    commits = folder / "checkpoint" / "commits"
    before = _count(commits)
    with (folder / "out").open("wb") as out:
        process = subprocess.Popen(
            [sys.executable, "-m", "tests.pylog_spark.source.stream_program", root, folder],
            cwd=REPOSITORY,
            env=environment(),
            stdout=out,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            deadline = time.monotonic() + LONGEST_SECONDS
            while process.poll() is None and time.monotonic() < deadline:
                if kill_after is not None and _count(commits) >= before + kill_after:
                    os.killpg(process.pid, signal.SIGKILL)
                    process.wait()
                    return True
                time.sleep(0.05)
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
    assert process.returncode == 0, (folder / "out").read_text()
    return False


def _count(folder: Path) -> int:
    return sum(not path.name.startswith(".") for path in folder.glob("*"))
