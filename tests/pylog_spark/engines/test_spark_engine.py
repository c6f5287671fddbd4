import os
import sys
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from pylog_spark.engines import spark_engine
from pylog_spark.engines.spark_engine import SparkEngine
from pylog_spark.rows import rows_to_batch
from storage_core.store.requests import REQUESTS, Requests

NUMBER = pa.schema([("number", pa.int64())])
PROCESS = pa.schema([("process", pa.int64())])
TAG = "pylog-prepared"


def tell_process(_unit: int) -> Iterator[pa.RecordBatch]:
    yield rows_to_batch(PROCESS, [{"process": os.getpid()}])


def ask(unit: int) -> Iterator[pa.RecordBatch]:
    """Count so many requests as the process of a task does, not as a copy of ours."""
    sys.modules["storage_core.store.requests"].REQUESTS.add(Requests(reads=unit, read_bytes=9))
    for _ in range(unit):
        yield rows_to_batch(NUMBER, [{"number": unit}])
    yield rows_to_batch(NUMBER, [])


def ask_for_all(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    sys.modules["storage_core.store.requests"].REQUESTS.add(Requests(listings=1))
    yield from batches


def tasks_of(spark: SparkSession) -> list[int]:
    """Return the number of tasks of each job of the run."""
    context: Any = spark.sparkContext
    tracker = context.statusTracker()
    jobs = sorted(context._jsc.sc().statusTracker().getJobIdsForTag(TAG))
    stages = [stage for job in jobs for stage in tracker.getJobInfo(job).stageIds]
    return [tracker.getStageInfo(stage).numTasks for stage in stages]


def test_workers_are_started_by_one_job_of_a_run(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch
):
    with SparkEngine(spark, tag=TAG) as engine:
        before = len(tasks_of(spark))
        with monkeypatch.context() as patches:
            patches.setattr(engine, "alongside", lambda work: work())
            for _ in range(2):
                engine.prepare()
        assert tasks_of(spark)[before:] == [engine.slots]
        rows = engine.each(range(3), tell_process, PROCESS)
        assert engine.collect(rows, PROCESS, "tell").num_rows == 3
        assert tasks_of(spark)[before:] == [engine.slots, 3]


def test_elsewhere_no_workers_are_started(spark: SparkSession, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(spark_engine, "is_local", lambda _: False)
    with SparkEngine(spark, tag=TAG) as engine:
        before = tasks_of(spark)
        engine.prepare()
        assert tasks_of(spark) == before


def test_what_tasks_ask_of_a_bucket_is_counted_once_however_often_rows_are_read(
    spark: SparkSession,
):
    before = REQUESTS.copy()
    with SparkEngine(spark, tag=TAG) as engine:
        kept = engine.keep(engine.each([1, 2, 3], ask, NUMBER), "ask")
        rows = kept.deal_out(1).map(ask_for_all, NUMBER)
        assert sorted(engine.collect(rows, NUMBER, "ask")["number"].to_pylist()) == [
            *(1, 2, 2, 3, 3, 3)
        ]
        # Through the rows of a later stage, too.
        assert REQUESTS.since(before) == Requests(listings=1, reads=6, read_bytes=27)
        assert engine.collect(kept, NUMBER, "look").num_rows == 6
        assert REQUESTS.since(before) == Requests(listings=1, reads=6, read_bytes=27)
        # They are made again, and ask again.
        assert engine.collect(rows.union(rows), NUMBER, "ask").num_rows == 12
        assert REQUESTS.since(before).listings == 3
        assert kept.frame.columns == NUMBER.names
        streamed = list(engine.stream(rows, NUMBER, "stream"))
        assert pa.Table.from_batches(streamed).num_rows == 6
