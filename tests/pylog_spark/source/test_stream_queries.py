"""``spark.readStream.format("kafka-log")`` in a Spark session, with real checkpoints and kills."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from pylog_spark.source import register
from pylog_spark.source.stream import HAS_LIMITS
from tests.jobs.spark_programs import REPOSITORY, environment
from tests.kit.directories import plain_segment, sync_partition, write_partition
from tests.kit.golden_data import Golden
from tests.pylog_spark.source.stream_program import copy_stream

pytestmark = [pytest.mark.spark, pytest.mark.thorough]

LONGEST_SECONDS = 240


def write_orders(root: Path, count: int) -> None:
    for number in (0, 1):
        spec = plain_segment(0, count)
        sync_partition(root / f"orders-{number}", [spec])


def offsets_in(spark: Any, folder: Path) -> list[tuple[int, int]]:
    rows = spark.read.parquet(str(folder / "rows")).select("partition", "offset").collect()
    return sorted((row.partition, row.offset) for row in rows)


def each_once(count: int) -> list[tuple[int, int]]:
    return [(partition, offset) for partition in (0, 1) for offset in range(count)]


def test_a_query_that_goes_on_where_it_ended_has_each_record_once(spark, tmp_path):
    register(spark)
    root = tmp_path / "kafka"
    limit = {"maxOffsetsPerTrigger": "60"} if HAS_LIMITS else {}
    triggers = []
    for count in (50, 50, 80):
        write_orders(root, count)
        query = copy_stream(spark, root, tmp_path, startingOffsets="earliest", **limit)
        query.awaitTermination()
        triggers.append(_count(tmp_path / "checkpoint" / "commits"))
        assert offsets_in(spark, tmp_path) == each_once(count)
    # 60 offsets a trigger of 100, of none and of 60 that are new.
    assert triggers == ([2, 2, 3] if HAS_LIMITS else [1, 1, 2])
    last = tmp_path / "checkpoint" / "offsets" / str(triggers[-1] - 1)
    reached = json.loads(last.read_text().splitlines()[-1])
    assert reached == {"orders": {"0": 80, "1": 80}}


@pytest.mark.thorough
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


@pytest.mark.thorough
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


@pytest.mark.thorough
def test_a_loss_ends_the_query_with_what_to_do(spark, tmp_path):
    register(spark)
    write_partition(tmp_path / "kafka" / "orders-0", [plain_segment(5, 3)])
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


@pytest.mark.thorough
def test_a_stream_that_is_killed_and_restarted_misses_and_repeats_nothing(spark, tmp_path):
    """The process is killed, with its JVM and workers, wherever it is then; the directory grows."""
    root = tmp_path / "kafka"
    write_orders(root, 120)
    if HAS_LIMITS:
        assert _run_program(root, tmp_path, kill_after=("commits", 2))
        assert 0 < len(offsets_in(spark, tmp_path)) < 240
    else:  # there is one trigger, whose offsets are in the checkpoint
        assert _run_program(root, tmp_path, kill_after=("offsets", 1))
    write_orders(root, 130)
    assert not _run_program(root, tmp_path, kill_after=None)
    if not HAS_LIMITS:  # Spark did what the killed one had begun, and ended
        assert not _run_program(root, tmp_path, kill_after=None)
    assert offsets_in(spark, tmp_path) == each_once(130)


def _run_program(root: Path, folder: Path, *, kill_after: tuple[str, int] | None) -> bool:
    """Run the program; returns whether it was killed, after so many files of its checkpoint."""
    kind, count = kill_after or ("commits", sys.maxsize)
    written = folder / "checkpoint" / kind
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
                if _count(written) >= count:
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


@pytest.mark.skipif(HAS_LIMITS, reason="this PySpark tells a source where a trigger begins")
def test_what_an_older_pyspark_cannot_do_is_one_clear_error(spark, tmp_path):
    register(spark)
    write_orders(tmp_path / "kafka", 1)
    query = copy_stream(spark, tmp_path / "kafka", tmp_path, maxOffsetsPerTrigger="7")
    with pytest.raises(Exception, match=r"maxOffsetsPerTrigger=7: needs pyspark 4\.2"):
        query.awaitTermination()


@pytest.mark.thorough
def test_a_stream_into_the_format_is_refused_with_what_to_do(spark, tmp_path):
    register(spark)
    write_orders(tmp_path / "kafka", 1)
    rows = spark.readStream.format("kafka-log").load(str(tmp_path / "kafka"))
    writer = rows.writeStream.format("kafka-log").option("checkpointLocation", str(tmp_path / "at"))
    with pytest.raises(Exception, match="use foreachBatch"):
        writer.start(str(tmp_path / "copy")).awaitTermination()
