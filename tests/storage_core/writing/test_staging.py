"""What a task makes of its records: where they go, their times, their batches."""

import io
from datetime import UTC, datetime, timedelta
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from storage_core import kafka_log
from storage_core.errors import ConfigError, InvalidColumnError, InvalidNameError, StorageError
from storage_core.formats.batch_v2 import Codec
from storage_core.store.local import LocalStore
from storage_core.writing import staging
from storage_core.writing.publication import commit_write
from storage_core.writing.staging import extents_name, read_extents, stage_records
from tests.kit.builders import SOME_TIME_MS
from tests.kit.decode import decode_segment
from tests.reference.hashes import partition_for_key
from tests.storage_core.writing.writes import (
    begin,
    numbers_of,
    records_of,
    request_of,
    stage,
    values_of,
    write,
)

pytestmark = pytest.mark.usefixtures("unlocked")


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return tmp_path / "logs"


def rows_of(directory: Path) -> list[dict]:
    return list(kafka_log.open_logs(directory).read().rows())


def segment(directory: Path, name: str = "t-0") -> list:
    return decode_segment((directory / name / "00000000000000000000.log").read_bytes())[0]


def test_every_column_of_a_record_is_written(directory):
    values = [b"one", b"", None]
    keys = [b"k", b"", None]
    headers = [[{"key": "h", "value": None}, {"key": "", "value": b""}], [], None]
    batch = records_of([0, 1, 2], key=keys, value=values, headers=headers, partition=[0, 0, 0])
    write(request_of(directory), batch)
    found = rows_of(directory)
    assert [row["key"] for row in found] == keys
    assert [row["value"] for row in found] == values
    assert [row["timestamp"] for row in found] == [
        datetime.fromtimestamp(SOME_TIME_MS / 1000, UTC) + timedelta(milliseconds=n)
        for n in range(3)
    ]
    (only,) = segment(directory)
    assert [record.headers for record in only.records] == [
        ((b"h", None), (b"", b"")),
        (),
        (),
    ]


def test_a_value_is_all_that_has_to_be_there(directory):
    run = begin(request_of(directory, topic="t", partitions=1), now_ms=SOME_TIME_MS + 5)
    only = pa.RecordBatch.from_pydict({"value": pa.array(["a", "b"], pa.string())})
    commit_write(run, stage(run, [only]))
    (batch,) = segment(directory)
    assert [(r.key, r.value, r.timestamp) for r in batch.records] == [
        (None, b"a", SOME_TIME_MS + 5),
        (None, b"b", SOME_TIME_MS + 5),
    ]


@pytest.mark.parametrize(
    ("times", "expected"),
    [
        (pa.array([1_500, None], pa.int64()), 1_500),
        (pa.array([1_500_999, None], pa.timestamp("us")), 1_500),
        (pa.array([1_500_999_999, None], pa.timestamp("ns", "Europe/Berlin")), 1_500),
        (pa.array([2, None], pa.timestamp("s")), 2_000),
    ],
    ids=lambda value: str(getattr(value, "type", "")),
)
def test_times_are_milliseconds_and_those_that_are_missing_are_the_writes(
    directory, times, expected
):
    run = begin(request_of(directory, topic="t", partitions=1), now_ms=SOME_TIME_MS)
    batch = pa.RecordBatch.from_pydict({"value": pa.array([b"a", b"b"]), "timestamp": times})
    commit_write(run, stage(run, [batch]))
    (written,) = segment(directory)
    assert [record.timestamp for record in written.records] == [expected, SOME_TIME_MS]


def test_append_time_is_the_time_of_the_write(directory):
    config = {"message.timestamp.type": "LogAppendTime"}
    run = begin(request_of(directory, partitions=1, config=config), now_ms=SOME_TIME_MS + 9)
    commit_write(run, stage(run, [records_of(range(3))]))
    assert {row["timestampType"] for row in rows_of(directory)} == {1}
    (written,) = segment(directory)
    assert {record.timestamp for record in written.records} == {SOME_TIME_MS + 9}


@pytest.mark.parametrize(
    ("fields", "codec"),
    [
        ({}, Codec.NONE),
        ({"codec": Codec.LZ4}, Codec.LZ4),
        ({"codec": Codec.LZ4, "config": {"compression.type": "zstd"}}, Codec.ZSTD),
        ({"codec": Codec.LZ4, "config": {"compression.type": "uncompressed"}}, Codec.NONE),
    ],
    ids=["none", "the producer's", "the topic's before it", "none before it"],
)
def test_batches_are_compressed_as_topic_and_producer_say(directory, fields, codec):
    write(request_of(directory, partitions=1, batch_bytes=300, **fields), records_of(range(50)))
    batches = segment(directory)
    assert {batch.header["attributes"] & 7 for batch in batches} == {codec}
    assert len(batches) > 3
    assert numbers_of(directory) == list(range(50))


def test_keys_decide_but_for_records_that_ask_and_those_without_a_key_take_turns(directory):
    keys = [b"key-%d" % number for number in range(20)] + [None] * 10
    asked = [None] * 30
    asked[3] = asked[25] = 4
    batch = records_of(range(30), key=keys, partition=asked)
    write(request_of(directory, partitions=5), batch)
    expected: dict[str, list[int]] = {}
    turn = 0
    for number, key in enumerate(keys):
        if asked[number] is not None:
            place = asked[number]
        elif key is None:
            place, turn = turn % 5, turn + 1
        else:
            place = partition_for_key(key, 5)
        expected.setdefault(f"t-{place}", []).append(number)
    assert values_of(directory) == dict(sorted(expected.items()))


@pytest.mark.thorough
def test_many_topics_and_partitions_are_written_at_once(directory, monkeypatch):
    # What is held becomes batches again and again.
    monkeypatch.setattr(staging, "_HELD_BYTES", 3_000)
    topics = [f"topic-{number % 7}" for number in range(700)]
    tasks = [
        records_of(range(at, at + 100), topic=topics[at : at + 100]) for at in range(0, 700, 100)
    ]
    run = begin(request_of(directory, partitions=3))
    staged = [stage_records(run, tasks[:4], task_id=0), stage_records(run, tasks[4:], task_id=1)]
    assert [each.records for each in staged] == [400, 300]
    commit_write(run, staged)
    found = values_of(directory)
    assert sorted(number for numbers in found.values() for number in numbers) == list(range(700))
    assert all(numbers == sorted(numbers) for numbers in found.values())
    assert {number % 7 for number in found["topic-3-0"]} == {3}


def test_the_number_of_partitions_is_said_or_counted(directory):
    batch = records_of(range(5))
    with pytest.raises(ConfigError, match=r"t is not in .* say how many partitions"):
        stage(begin(request_of(directory, partitions=None)), [batch])
    # Who asks for partitions need not say how many there are.
    write(request_of(directory, partitions=None), records_of(range(3), partition=[2, 0, 1]))
    write(request_of(directory, partitions=None), batch)
    assert len(numbers_of(directory)) == 8
    with pytest.raises(ConfigError, match="t has 3 partitions in"):
        stage(begin(request_of(directory, partitions=4)), [batch])
    with pytest.raises(InvalidColumnError, match="row 1: 3 is no partition of t, which has 3"):
        stage(
            begin(request_of(directory, partitions=None)),
            [records_of([1, 2], partition=[0, 3])],
        )


@pytest.mark.parametrize(
    ("columns", "error", "words"),
    [
        ({"topic": ["a/b"]}, InvalidNameError, "a topic name has only"),
        ({"topic": [None]}, InvalidColumnError, "the option topic names one"),
        ({"topic": ["__cluster_metadata"]}, InvalidColumnError, "the cluster's own"),
        ({"partition": [-1]}, InvalidColumnError, "row 0: -1 is no partition of t"),
        ({"timestamp": [-(10**9)]}, InvalidColumnError, "epoch millisecond"),
    ],
    ids=["no name", "no topic", "metadata", "negative", "before 1970"],
)
def test_what_can_be_no_record_is_refused_by_name(directory, columns, error, words):
    run = begin(request_of(directory, partitions=1))
    with pytest.raises(error, match=words):
        stage(run, [records_of([1], **columns)])


@pytest.mark.parametrize(
    ("columns", "words"),
    [
        ({"key": [b"k"], "topic": ["t"]}, "value"),
        ({"value": [b"v"]}, "topic"),
        ({"value": [1], "topic": ["t"]}, "binary or string"),
        ({"value": [b"v"], "topic": ["t"], "partition": ["0"]}, "whole numbers"),
        ({"value": [b"v"], "topic": ["t"], "timestamp": ["now"]}, "timestamp or int64"),
        ({"value": [b"v"], "topic": ["t"], "headers": [["h"]]}, "list of structs"),
    ],
    ids=["no value", "no topic", "number", "text for a partition", "text for a time", "headers"],
)
def test_columns_of_another_type_are_refused_by_name(directory, columns, words):
    run = begin(request_of(directory, partitions=1))
    with pytest.raises(InvalidColumnError, match=words):
        stage(run, [pa.RecordBatch.from_pydict(columns)])


def test_extents_that_do_not_describe_the_file_are_not_believed(directory):
    run = begin(request_of(directory))
    (staged,) = stage(run, [records_of(range(5))])
    store = LocalStore(Path(run.staging))
    good = read_extents(store, staged)
    assert good[:, staging.RECORDS].sum() == 5

    def keep(extents: np.ndarray) -> None:
        content = io.BytesIO()
        np.save(content, extents)
        store.write_file(extents_name(staged.name), content.getvalue())

    moved, beyond, named = good.copy(), good.copy(), good.copy()
    moved[0, staging.POSITION] += 1
    beyond[-1, staging.SIZE] += 1
    named[0, staging.DESTINATION] = len(staged.destinations)
    for extents in (moved, beyond, named, -good, good[:, :3], good.astype(np.float64), good[:0]):
        keep(extents)
        with pytest.raises(StorageError, match="extents"):
            read_extents(store, staged)
    store.write_file(extents_name(staged.name), b"no array")
    with pytest.raises(StorageError, match="no list of extents"):
        read_extents(store, staged)
