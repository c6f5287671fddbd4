"""A stream over a directory that grows and changes: each offset once, whatever comes between.

A test plays Spark: it keeps the offsets as text, as a checkpoint does, and asks in Spark's order.
"""

import importlib
import json
import os
import shutil
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql.streaming.datasource import ReadAllAvailable

from pylog_spark.source.options import parse_options
from pylog_spark.source.stream import KafkaLogStreamReader, offsets_from_json, offsets_to_json
from storage_core.errors import (
    ChangedWhileReadError,
    ConfigError,
    MissingSegmentError,
    OffsetOutOfRangeError,
    PartitionNotFoundError,
)
from storage_core.filenames import LOG_START_FILE, TopicPartition
from storage_core.reading import planning as following
from tests.kit.builders import SOME_TIME_MS
from tests.kit.directories import SegmentSpec, plain_segment, write_partition
from tests.kit.golden_cleaning import prepare
from tests.kit.transaction_logs import TransactionLog, transaction_logs
from tests.pylog_spark.source.test_reads_during_commits import one_group, steps_of
from tests.storage_core.maintenance.compaction.hand_made import cleaning

COMMITTED = {"kafka.isolation.level": "read_committed"}
EARLIEST = {"startingOffsets": "earliest"}
AN_HOUR_S = 3600


class Stream:
    """A query with a checkpoint; ``restart`` is what a killed one does."""

    def __init__(self, path: Path, **options: str) -> None:
        self._options = {"path": str(path), **options}
        self.offset = ""
        self.reader = KafkaLogStreamReader(parse_options(self._options, is_stream=True))

    def restart(self, **options: str) -> None:
        self._options |= options
        self.reader = KafkaLogStreamReader(parse_options(self._options, is_stream=True))

    def plan(self) -> tuple[Sequence[Any], str]:
        """Return the tasks of the next trigger, and the offset that it ends at."""
        if not self.offset:
            self.offset = json.dumps(self.reader.initialOffset())
        limit = self.reader.getDefaultReadLimit()
        end = json.dumps(self.reader.latestOffset(json.loads(self.offset), limit))
        return self.tasks(end), end

    def tasks(self, end: str) -> Sequence[Any]:
        return self.reader.partitions(json.loads(self.offset), json.loads(end))

    def read(self, tasks: Sequence[Any]) -> list[dict[str, Any]]:
        return [
            row for task in tasks for batch in self.reader.read(task) for row in batch.to_pylist()
        ]

    def trigger(self) -> list[int]:
        """Do a trigger and commit it; returns its offsets."""
        tasks, end = self.plan()
        rows = self.read(tasks)
        self.offset = end
        return [row["offset"] for row in rows]

    def triggers(self) -> Iterator[list[int]]:
        """Do triggers until there is nothing more, as AvailableNow does."""
        for _ in range(200):
            before = self.offset
            found = self.trigger()
            if self.offset == before:
                return
            yield found
        raise AssertionError("the stream does not come to an end")


def make_old(directory: Path) -> None:
    """Let the files of a partition have come an hour ago."""
    for path in directory.iterdir():
        at = path.stat().st_mtime - AN_HOUR_S
        os.utime(path, (at, at))


@pytest.fixture
def orders(tmp_path: Path) -> Path:
    """A partition with offsets 0 to 9, alone in its log directory."""
    return write_partition(tmp_path / "kafka" / "orders-0", [plain_segment(0, 10)])


def test_a_stream_begins_at_the_end_unless_told_and_reads_what_comes(orders: Path):
    stream = Stream(orders.parent)
    assert stream.trigger() == []
    assert json.loads(stream.offset) == {"orders": {"0": 10}}
    write_partition(orders, [plain_segment(0, 15)])
    assert stream.trigger() == list(range(10, 15))
    before = stream.offset
    assert stream.trigger() == []
    assert stream.offset == before  # as text, for that is how Spark compares


@pytest.mark.parametrize(
    ("options", "first"),
    [
        ({"startingOffsets": "earliest"}, 0),
        ({"startingOffsets": '{"orders":{"0":-2}}'}, 0),
        ({"startingOffsets": '{"orders":{"0":7}}'}, 7),
        ({"startingOffsets": '{"orders":{"0":-1}}'}, 10),
        ({"startingTimestamp": str(SOME_TIME_MS + 4)}, 4),
        ({"startingOffsetsByTimestamp": f'{{"orders":{{"0":{SOME_TIME_MS + 5}}}}}'}, 5),
        (
            {
                "startingTimestamp": str(SOME_TIME_MS * 2),
                "startingOffsetsByTimestampStrategy": "latest",
            },
            10,
        ),
    ],
    ids=str,
)
def test_a_stream_begins_where_it_is_told(orders: Path, options: dict[str, str], first: int):
    assert Stream(orders.parent, **options).trigger() == list(range(first, 10))


@pytest.mark.parametrize("name", ["endingOffsets", "endingTimestamp", "endingOffsetsByTimestamp"])
def test_an_end_is_refused(name: str):
    with pytest.raises(ConfigError, match=f"{name}=.*a stream has no end"):
        parse_options({"path": "/logs", name: "7"}, is_stream=True)


@pytest.mark.thorough
@given(
    log=transaction_logs(),
    cuts=st.lists(st.integers(0, 3000), max_size=6),
    is_committed=st.booleans(),
    restarts=st.booleans(),
)
def test_a_copy_that_grows_by_any_number_of_bytes_is_read_once(
    log: TransactionLog, cuts: list[int], is_committed: bool, restarts: bool
):
    """The copy may end within a batch at any time, and a producer's transaction is open or not."""
    options = EARLIEST | (COMMITTED if is_committed else {})
    with TemporaryDirectory() as folder:
        source = log.write(Path(folder) / "source" / "t-0", with_companions=False)
        copy = Path(folder) / "copy" / "t-0"
        copy.mkdir(parents=True)
        logs = sorted(source.glob("*.log"))
        (copy / logs[0].name).touch()
        stream = Stream(copy.parent, **options)
        found = []
        total = sum(path.stat().st_size for path in logs)
        for cut in [*sorted(cuts), total]:
            left = cut
            for number, path in enumerate(logs):
                if left > 0 or number == 0:
                    (copy / path.name).write_bytes(path.read_bytes()[: max(left, 0)])
                left -= path.stat().st_size
            if restarts:
                stream.restart()
            found += stream.trigger()
    assert found == list(log.committed if is_committed else log.everything)


def test_a_trigger_that_was_killed_is_done_again_with_the_same_records(orders: Path):
    stream = Stream(orders.parent, **EARLIEST)
    tasks, end = stream.plan()
    first = stream.read(tasks)
    write_partition(orders, [plain_segment(0, 10), plain_segment(10, 7)])
    stream.restart()
    assert stream.read(stream.tasks(end)) == first
    stream.offset = end
    assert stream.trigger() == list(range(10, 17))


def test_records_come_with_the_columns_and_keys_that_were_asked_for(orders: Path):
    stream = Stream(orders.parent, columns="key,offset", keys="key-3", **EARLIEST)
    assert stream.read(stream.plan()[0]) == [{"key": b"key-3", "offset": 3}]


def test_a_new_partition_is_read_from_its_start(orders: Path):
    stream = Stream(orders.parent)
    assert stream.trigger() == []
    (orders.parent / "orders-1").mkdir()
    assert stream.trigger() == []
    write_partition(orders.parent / "orders-1", [plain_segment(0, 3)])
    assert stream.trigger() == [0, 1, 2]
    assert json.loads(stream.offset) == {"orders": {"0": 10, "1": 3}}


def test_a_new_partition_without_its_first_records_is_a_loss(orders: Path):
    stream = Stream(orders.parent)
    stream.trigger()
    write_partition(orders.parent / "orders-1", [plain_segment(5, 3)])
    with pytest.raises(OffsetOutOfRangeError, match="orders-1: offset 0 is out of range"):
        stream.trigger()
    stream.restart(failOnDataLoss="false")
    assert stream.trigger() == [5, 6, 7]


def test_a_log_start_that_went_beyond_what_was_read_is_a_loss(orders: Path):
    stream = Stream(orders.parent, **EARLIEST)
    assert len(stream.trigger()) == 10
    write_partition(orders, [plain_segment(0, 30)])
    (orders.parent / LOG_START_FILE).write_text("0\n1\norders 0 20\n")
    with pytest.raises(OffsetOutOfRangeError, match=r"offset 10 is out of range; .* 20 up to"):
        stream.trigger()
    stream.restart(failOnDataLoss="false")
    assert stream.trigger() == list(range(20, 30))


@pytest.mark.parametrize("choice", [{}, {"subscribe": "orders,other"}], ids=["all", "by name"])
@pytest.mark.parametrize("what", ["directory", "files", "records"])
def test_what_is_gone_is_a_loss_and_never_read_twice(
    orders: Path, what: str, choice: dict[str, str]
):
    write_partition(orders.parent / "other-0", [plain_segment(0, 1)])
    stream = Stream(orders.parent, **EARLIEST, **choice)
    assert len(stream.trigger()) == 11
    kept = shutil.copytree(orders, orders.parent.parent / "kept")
    shutil.rmtree(orders)
    if what != "directory":
        orders.mkdir()
    if what == "records":
        write_partition(orders, [plain_segment(0, 4)])
    expected = OffsetOutOfRangeError if what == "records" else PartitionNotFoundError
    with pytest.raises(expected, match="orders-0"):
        stream.trigger()
    stream.restart(failOnDataLoss="false")
    assert stream.trigger() == []
    shutil.rmtree(orders, ignore_errors=True)
    shutil.copytree(kept, orders)
    assert stream.trigger() == []
    write_partition(orders, [plain_segment(0, 12)])
    assert stream.trigger() == [10, 11]


def test_a_replayed_trigger_whose_log_is_gone_is_a_loss(orders: Path):
    stream = Stream(orders.parent, **EARLIEST)
    stream.offset = '{"orders": {"0": 6}}'
    end = '{"orders": {"0": 9}}'
    for path in orders.iterdir():
        path.unlink()
    with pytest.raises(OffsetOutOfRangeError, match="orders-0: offset 6"):
        stream.tasks(end)
    shutil.rmtree(orders)
    with pytest.raises(ConfigError, match="no such partition"):
        stream.tasks(end)
    stream.restart(failOnDataLoss="false")
    assert stream.tasks(end) == []


def test_a_segment_that_came_before_the_rest_of_the_one_before_it_is_waited_for(orders: Path):
    """Copies bring several files at a time; after a quarter of an hour it is a loss."""
    stream = Stream(orders.parent, **EARLIEST)
    assert len(stream.trigger()) == 10
    write_partition(orders, [plain_segment(0, 10), plain_segment(20, 5)])
    assert stream.trigger() == []
    write_partition(orders, [plain_segment(0, 15), plain_segment(20, 5)])
    assert stream.trigger() == list(range(10, 15))
    make_old(orders)
    tasks, end = stream.plan()
    with pytest.raises(MissingSegmentError, match="offsets 15 to 19 are missing"):
        stream.read(tasks)
    # The rest comes: the same trigger is done again, and whole.
    write_partition(orders, [plain_segment(0, 20), plain_segment(20, 5)])
    stream.restart()
    assert [row["offset"] for row in stream.read(stream.tasks(end))] == list(range(15, 25))


def test_a_hole_that_the_cleaner_made_is_not_waited_for(orders: Path):
    stream = Stream(orders.parent, **EARLIEST)
    write_partition(orders, [plain_segment(0, 10), plain_segment(20, 5)])
    (orders.parent / "cleaner-offset-checkpoint").write_text("0\n1\norders 0 20\n")
    assert stream.trigger() == [*range(10), *range(20, 25)]


def test_a_hole_behind_the_stream_is_not_waited_for(orders: Path):
    write_partition(orders, [plain_segment(0, 10), plain_segment(20, 5)])
    stream = Stream(orders.parent, startingOffsets='{"orders":{"0":20}}')
    assert stream.trigger() == list(range(20, 25))


@pytest.mark.thorough
@pytest.mark.parametrize("most", [1, 7, 1000])
def test_a_trigger_reads_so_many_offsets(tmp_path: Path, most: int):
    """In shares by how much of each partition there is, and one at least."""
    write_partition(tmp_path / "a-0", [plain_segment(0, 90)])
    write_partition(tmp_path / "a-1", [plain_segment(0, 10)])
    write_partition(tmp_path / "b-0", [plain_segment(3, 1)])
    stream = Stream(tmp_path, maxOffsetsPerTrigger=str(most), **EARLIEST)
    found = list(stream.triggers())
    assert sum(map(len, found)) == 101
    assert max(map(len, found)) <= max(most + 2, 3)
    assert sorted(offset for part in found for offset in part) == sorted(
        [*range(90), *range(10), 3]
    )
    if most == 7:
        assert found[0] == [*range(6), 0, 3]


def test_a_new_partition_has_its_share_from_its_log_start_on(orders: Path):
    options = {"maxOffsetsPerTrigger": "2", "failOnDataLoss": "false"}
    stream = Stream(orders.parent, **options)
    stream.trigger()
    write_partition(orders.parent / "orders-1", [plain_segment(1000, 3)])
    assert list(stream.triggers()) == [[1000, 1001], [1002]]


def test_equal_offsets_are_equal_as_text():
    """That is how Spark compares them."""
    offsets = {TopicPartition(topic, n): n for topic in "ba" for n in (10, 9, 0)}
    text = json.dumps(offsets_to_json(offsets))
    assert text == '{"a": {"0": 0, "9": 9, "10": 10}, "b": {"0": 0, "9": 9, "10": 10}}'
    assert offsets_from_json(json.loads(text)) == offsets


def test_pyspark_before_4_2_reads_all_that_there_is(orders: Path, monkeypatch):
    """It says neither where a trigger begins nor how much it may read."""
    monkeypatch.setitem(sys.modules, "pyspark.sql.streaming.datasource", None)
    name = "pylog_spark.source.stream"
    monkeypatch.delitem(sys.modules, name)
    older = importlib.import_module(name)
    reader = older.KafkaLogStreamReader(
        parse_options({"path": str(orders.parent), **EARLIEST}, is_stream=True)
    )
    start, end = reader.initialOffset(), reader.latestOffset()
    assert end == {"orders": {"0": 10}}
    assert len(reader.partitions(start, end)) == 1
    options = {"path": str(orders.parent), "maxOffsetsPerTrigger": "5"}
    with pytest.raises(ConfigError, match=r"maxOffsetsPerTrigger=5: needs pyspark 4\.2"):
        older.KafkaLogStreamReader(parse_options(options, is_stream=True))
    monkeypatch.undo()
    importlib.import_module("pylog_spark.source").stream = sys.modules[name]


def test_a_trigger_that_is_to_read_everything_does(orders: Path):
    stream = Stream(orders.parent, maxOffsetsPerTrigger="2", **EARLIEST)
    start = stream.reader.initialOffset()
    everything = stream.reader.latestOffset(start, ReadAllAvailable())
    assert everything == {"orders": {"0": 10}}


def test_available_now_ends_at_what_was_there_when_it_began(orders: Path):
    stream = Stream(orders.parent, maxOffsetsPerTrigger="4", **EARLIEST)
    stream.reader.prepareForTriggerAvailableNow()
    found = []
    for number, part in enumerate(stream.triggers()):
        found += part
        write_partition(orders, [plain_segment(0, 20 + number)])
        write_partition(orders.parent / "orders-1", [plain_segment(0, 2)])
    assert found == list(range(10))
    assert stream.reader.reportLatestOffset() == {"orders": {"0": 10}}
    stream.restart()
    stream.reader.prepareForTriggerAvailableNow()
    assert sorted(o for part in stream.triggers() for o in part) == sorted([*range(10, 22), 0, 1])


def replace_by_rename(directory: Path, segments: list[SegmentSpec]) -> None:
    """Bring files as rsync does: whole new ones, each renamed over the one before."""
    staged = write_partition(directory.parent.parent / "staged-0", segments)
    for path in sorted(staged.iterdir()):
        path.rename(directory / path.name)
    staged.rmdir()


def test_files_that_a_sync_replaces_under_a_task_are_read_on(orders: Path):
    stream = Stream(orders.parent, maxPartitionBytes="100", **EARLIEST)
    tasks, end = stream.plan()
    for _ in range(2):
        replace_by_rename(orders, [plain_segment(0, 12)])
        rows = stream.read(tasks)
        assert [row["offset"] for row in rows] == list(range(10))
    stream.offset = end
    assert stream.trigger() == [10, 11]


def test_files_that_are_replaced_while_a_task_is_within_them_are_read_on(orders: Path):
    segments = [plain_segment(0, 10), plain_segment(10, 10), plain_segment(20, 10)]
    write_partition(orders, segments)
    stream = Stream(orders.parent, **EARLIEST)
    tasks, _ = stream.plan()
    assert len(tasks) == 1
    found: list[int] = []
    for batch in stream.reader.read(tasks[0]):
        if not found:
            replace_by_rename(orders, segments)
        found += batch.column("offset").to_pylist()
    assert found == list(range(30))


def test_files_that_change_again_and_again_are_refused(orders: Path, monkeypatch):
    stream = Stream(orders.parent, **EARLIEST)
    tasks, _ = stream.plan()
    attempts = []

    def never_the_same(wanted: object) -> Iterator[Any]:
        attempts.append(wanted)
        raise ChangedWhileReadError("a.log", "this", "that")
        yield

    monkeypatch.setattr(following, "read_on", never_the_same)
    with pytest.raises(ChangedWhileReadError):
        stream.read(tasks)
    assert 2 <= len(attempts) <= 10


def test_a_compaction_beneath_a_stream_leaves_the_newest_of_each_key(tmp_path: Path):
    """As a consumer of a broker sees it: what it had not read yet may be compacted by then."""
    directory = one_group(tmp_path / "t-0")
    before = len(Stream(tmp_path, **EARLIEST).trigger())
    plan = prepare(directory, cleaning()).commit_of()
    stream = Stream(tmp_path, maxOffsetsPerTrigger="3", columns="key,value,offset", **EARLIEST)
    rows = []
    for _ in steps_of(plan, directory):
        tasks, end = stream.plan()
        rows += stream.read(tasks)
        stream.offset = end
    for _ in range(20):
        tasks, end = stream.plan()
        rows += stream.read(tasks)
        stream.offset = end
    found = [row["offset"] for row in rows]
    assert found == sorted(set(found))
    assert len(found) <= before == 40
    newest = {row["key"]: row["value"] for row in rows}
    left = Stream(tmp_path, columns="key,value", **EARLIEST)
    after = left.read(left.plan()[0])
    assert newest == newest | {row["key"]: row["value"] for row in after}


@pytest.mark.parametrize(
    "stored", ["7", "[]", '{"orders": 7}', '{"orders": {"0": -1}}', '{"orders": {"x": 1}}']
)
def test_a_checkpoint_of_another_source_is_refused_by_name(orders: Path, stored: str):
    stream = Stream(orders.parent)
    with pytest.raises(ConfigError, match="the checkpoint of another source"):
        stream.reader.latestOffset(json.loads(stored), ReadAllAvailable())


def test_an_end_below_the_start_is_refused(orders: Path):
    """Where Spark does not say the start, before 4.2, an end may be below it."""
    stream = Stream(orders.parent, failOnDataLoss="false")
    stream.offset = '{"orders": {"0": 9}}'
    for end in ('{"orders": {"0": 8}}', "{}"):
        with pytest.raises(OffsetOutOfRangeError):
            stream.tasks(end)
