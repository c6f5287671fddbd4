"""Writes of tests: their requests, records and tasks, and what a reader finds afterwards."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa

from storage_core import kafka_log
from storage_core.clock import ManualClock
from storage_core.config import LogConfig
from storage_core.writing.publication import begin_write, commit_write
from storage_core.writing.staging import StagedRecords, WriteRequest, WriteRun, stage_records
from tests.kit.builders import SOME_TIME_MS

SMALL = {"internal.segment.bytes": "2000", "index.interval.bytes": "100"}
HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
SCHEMA = pa.schema(
    [
        ("topic", pa.string()),
        ("partition", pa.int32()),
        ("key", pa.binary()),
        ("value", pa.binary()),
        ("timestamp", pa.timestamp("us", "UTC")),
        ("headers", HEADERS),
    ]
)


class NoLock:
    """In the place of Kafka's lock."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory

    def __enter__(self) -> "NoLock":
        return self

    def __exit__(self, *_: object) -> None:
        return

    def validate_held(self) -> None:
        """Nothing was taken."""


def request_of(directory: Path, **fields: Any) -> WriteRequest:
    """Return a request; ``config`` are a topic's settings beside small segments."""
    config = LogConfig.from_topic_overrides(SMALL | fields.pop("config", {}))
    return WriteRequest(
        directory=str(directory), config=config, **({"topic_ids": {}, "partitions": 2} | fields)
    )


def records_of(numbers: Sequence[int], **columns: Any) -> pa.RecordBatch:
    """Return a record for each number: its key and value say which; others as columns say."""
    count = len(numbers)
    values = {
        "topic": ["t"] * count,
        "partition": [None] * count,
        "key": [b"key-%d" % (number % 10) for number in numbers],
        "value": [b"value-%d" % number for number in numbers],
        "timestamp": [(SOME_TIME_MS + number) * 1000 for number in numbers],
        "headers": [[{"key": "n", "value": b"%d" % number}] for number in numbers],
    } | columns
    arrays = [pa.array(values[field.name], field.type) for field in SCHEMA]
    return pa.RecordBatch.from_arrays(arrays, schema=SCHEMA)


def begin(request: WriteRequest, *, now_ms: int = SOME_TIME_MS + 1_000_000) -> WriteRun:
    return begin_write(request, clock=ManualClock(now_ms))


def stage(run: WriteRun, tasks: Sequence[pa.RecordBatch]) -> list[StagedRecords]:
    """Do the tasks of a write, one record batch each."""
    return [stage_records(run, [batch], task_id=number) for number, batch in enumerate(tasks)]


def write(request: WriteRequest, *tasks: pa.RecordBatch) -> WriteRun:
    """Do a whole write."""
    run = begin(request)
    commit_write(run, [] if run.is_done else stage(run, tasks))
    return run


def values_of(directory: Path) -> dict[str, list[int]]:
    """Return the numbers of the records of each partition, in the order of their offsets."""
    found: dict[str, list[int]] = {}
    for row in kafka_log.open_logs(directory).read().rows():
        name = f"{row['topic']}-{row['partition']}"
        numbers = found.setdefault(name, [])
        assert row["offset"] == len(numbers)
        numbers.append(int(row["value"].removeprefix(b"value-")))
    return found


def numbers_of(directory: Path) -> list[int]:
    """Return the numbers of all records, sorted: each as often as it is there."""
    return sorted(number for numbers in values_of(directory).values() for number in numbers)
