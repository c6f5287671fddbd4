"""``df.write.format("kafka-log")`` in a Spark session."""

import re
import signal
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from py4j.protocol import Py4JJavaError
from pyspark.errors import AnalysisException, PySparkException
from pyspark.sql import DataFrame
from pyspark.sql import functions as sf

from pylog_spark.source import register
from pylog_spark.source.writer import KafkaLogWriter
from storage_core import kafka_log
from storage_core.clock import ManualClock
from storage_core.writing.publication import begin_write
from tests.jobs.spark_programs import REPOSITORY, environment
from tests.kit.builders import SOME_TIME_MS
from tests.kit.golden_data import Golden
from tests.kit.program import run_to_end
from tests.kit.spark_classes import FEW_ROWS
from tests.storage_core.writing.writes import (
    begin,
    numbers_of,
    records_of,
    request_of,
    values_of,
)

pytestmark = pytest.mark.spark


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    (tmp_path / "disk").mkdir()
    return tmp_path / "disk" / "logs"


@pytest.fixture
def numbers(spark: Any) -> Any:
    """Return frames of records: ``numbers(0, 100)`` has value-0 to value-99, in four tasks."""
    register(spark)

    def frame(first: int, end: int) -> DataFrame:
        return (
            spark.range(first, end, numPartitions=4)
            .withColumn("topic", sf.lit("t"))
            .withColumn("key", sf.concat(sf.lit("key-"), sf.col("id") % 10))
            .withColumn("value", sf.concat(sf.lit("value-"), sf.col("id")))
            .drop("id")
        )

    return frame


def save(frame: DataFrame, directory: Path, mode: str = "append", **options: Any) -> None:
    frame.write.format("kafka-log").mode(mode).options(**options).save(str(directory))


def beside(directory: Path) -> list[Path]:
    return [path for path in directory.parent.iterdir() if path != directory]


@pytest.mark.thorough
def test_records_are_appended_and_overwritten_in_the_order_of_tasks(numbers, directory):
    save(numbers(0, 1000), directory, partitions=3)
    save(numbers(1000, 1500), directory)
    found = values_of(directory)
    assert sorted(found) == ["t-0", "t-1", "t-2"]
    assert all(each == sorted(each) for each in found.values())
    assert numbers_of(directory) == list(range(1500))
    save(numbers(0, 20), directory, mode="overwrite")
    assert sorted(values_of(directory)) == ["t-0", "t-1", "t-2"]
    assert numbers_of(directory) == list(range(20))
    assert beside(directory) == []


@pytest.mark.thorough
def test_what_was_read_is_written_back_as_it_was(spark, directory, tmp_path):
    register(spark)
    root = Golden("broker-dir").unpack(tmp_path / "broker")
    reader = spark.read.format("kafka-log").option("subscribe", "events,compacted,payments.txn")
    source = reader.option("includeHeaders", "true").load(str(root))
    save(source, directory, **{"kafka.compression.type": "zstd"})
    columns = ["topic", "partition", "key", "value", "timestamp", "headers"]

    def table(path: Path) -> pa.Table:
        logs = kafka_log.open_logs(path)
        read = logs.read(["events", "compacted", "payments.txn"], columns=columns).to_table()
        return read.sort_by([("topic", "ascending"), ("partition", "ascending")])

    assert table(directory).num_rows > 1_000
    assert table(directory).equals(table(root))


# A session that repeats its tasks, which the tests' own does not: the first write loses a worker in
# the middle of a task, the second one its driver.
KILLED_PROGRAM = """
import os, signal, sys
from pylog_spark.session import build_session
from pylog_spark.source import register
from pyspark.sql import functions as sf

directory, marker, settings = sys.argv[1], sys.argv[2], eval(sys.argv[3])
spark = build_session("local[2,3]", settings)
register(spark)
driver = os.getpid()


def frame(first, end, victim):
    def die_once(batches):
        for batch in batches:
            yield batch.slice(0, 10)
            if f"value-{first + 250}" in batch.column("value").to_pylist():
                try:
                    os.close(os.open(f"{marker}-{first}", os.O_CREAT | os.O_EXCL))
                except FileExistsError:
                    pass
                else:
                    os.kill(victim or os.getpid(), signal.SIGKILL)
            yield batch.slice(10)

    records = (
        spark.range(first, end, numPartitions=4)
        .select(sf.lit("t").alias("topic"), sf.concat(sf.lit("value-"), "id").alias("value"))
    )
    return records.mapInArrow(die_once, records.schema)


def save(records, version):
    writer = records.write.format("kafka-log").mode("append").option("partitions", "2")
    writer.options(txnAppId="app", txnVersion=version).save(directory)


save(frame(0, 400, None), 0)
save(frame(400, 800, driver), 1)
"""


@pytest.mark.thorough
def test_a_killed_task_is_repeated_and_a_killed_write_too_and_all_is_there_once(
    numbers, directory, tmp_path
):
    marker = tmp_path / "killed"
    ended = run_to_end(
        [sys.executable, "-c", KILLED_PROGRAM, directory, marker, repr(FEW_ROWS)],
        cwd=REPOSITORY,
        env=environment(),
    )
    assert ended.returncode == -signal.SIGKILL, ended.stderr
    # One worker was killed and one driver, each once.
    assert {path.name for path in tmp_path.glob("killed-*")} == {"killed-0", "killed-400"}
    assert numbers_of(directory) == list(range(400))
    for _ in range(2):
        save(numbers(400, 800), directory, partitions=2, txnAppId="app", txnVersion=1)
    assert numbers_of(directory) == list(range(800))
    assert beside(directory) == []


@pytest.mark.thorough
def test_a_write_that_fails_leaves_the_directory_as_it_was(numbers, directory):
    save(numbers(0, 50), directory, partitions=2)
    broken = numbers(50, 90).withColumn(
        "value", sf.expr("if(value = 'value-80', raise_error('no such record'), value)")
    )
    # PySpark makes an exception of its own of some of Java's, and leaves others as they are.
    with pytest.raises((PySparkException, Py4JJavaError), match="no such record"):
        save(broken, directory)
    assert numbers_of(directory) == list(range(50))
    assert beside(directory) == []


@pytest.mark.thorough
def test_a_transaction_is_written_once(numbers, directory):
    for version in (0, 0, 1, 0):
        save(
            numbers(version * 100, version * 100 + 100),
            directory,
            partitions=2,
            txnAppId="backfill",
            txnVersion=version,
        )
    assert numbers_of(directory) == list(range(200))
    assert beside(directory) == []


@pytest.mark.thorough
def test_batches_of_a_stream_are_written_once_each(spark, numbers, directory, tmp_path):
    """``foreachBatch`` is called again with the batch at whose end a stream was killed."""
    numbers(0, 30).write.parquet(str(tmp_path / "in"))
    stream = spark.readStream.schema(numbers(0, 1).schema).parquet(str(tmp_path / "in"))

    def twice(frame: DataFrame, batch: int) -> None:
        for _ in range(2):
            save(frame, directory, partitions=1, txnAppId="stream", txnVersion=batch)

    query = stream.writeStream.foreachBatch(twice).trigger(availableNow=True).start()
    assert query.awaitTermination(120)
    assert numbers_of(directory) == list(range(30))


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("mode", "options", "words"),
    [
        ("append", {"partition": "1"}, "did you mean partitions"),
        ("append", {"partitions": "x"}, "expected a number"),
        ("append", {}, "say how many partitions the topic has"),
        ("append", {"partitions": "1", "max.message.bytes": "50"}, "exceed max.message.bytes, 50"),
        ("errorifexists", {}, 'either the "Append" or "Overwrite" mode|errorifexists is not supp'),
        ("ignore", {}, 'either the "Append" or "Overwrite" mode'),
    ],
    ids=["unknown", "malformed", "no partitions", "too large", "mode", "another mode"],
)
def test_what_cannot_be_written_is_refused_by_name(numbers, directory, mode, options, words):
    with pytest.raises(PySparkException) as caught:
        save(numbers(0, 10), directory, mode=mode, **options)
    assert re.search(words, str(caught.value), re.IGNORECASE)
    assert beside(directory) == []


def test_a_column_that_is_none_of_a_record_is_refused_by_name(numbers, directory):
    with pytest.raises(AnalysisException, match="colour"):
        save(numbers(0, 10).withColumn("colour", sf.lit("red")), directory)
    assert not directory.exists()


@pytest.mark.thorough
def test_a_writer_outside_of_a_session_does_the_same(directory):
    """What Spark calls, called by hand: a stage twice, a commit twice, an abort at the end."""
    run = begin(request_of(directory))
    writer = KafkaLogWriter(run, ("topic", "partition", "key", "value"))
    attempts = [
        [writer.write(iter([records_of(range(at, at + 50))])) for at in (0, 50)] for _ in range(2)
    ]
    for _ in range(2):
        writer.commit(attempts[1])
    writer.abort([None, None])
    assert numbers_of(directory) == list(range(100))


def test_a_write_that_was_committed_before_reads_no_record(directory):
    request = request_of(directory)
    run = begin_write(request, clock=ManualClock(SOME_TIME_MS))
    done = replace(run, is_done=True)
    writer = KafkaLogWriter(done, ("value",))

    def never() -> Any:
        raise AssertionError
        yield

    writer.commit([writer.write(never())])
    writer.abort([])
    assert not list(directory.glob("t-*"))
