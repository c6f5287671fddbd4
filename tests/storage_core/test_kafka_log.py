"""Python's public face: what is there, and which records, as Arrow."""

import re
import subprocess
import sys
import tracemalloc
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from deltalake import DeltaTable, write_deltalake

from storage_core import kafka_log
from storage_core.clock import ManualClock
from storage_core.config import LogConfig
from storage_core.errors import (
    ChangedWhileReadError,
    ConfigError,
    CorruptRecordError,
    MissingSegmentError,
    OffsetOutOfRangeError,
)
from storage_core.kafka_log import EARLIEST, LATEST, TopicPartition, open_logs
from storage_core.log.unified_log import UnifiedLog
from storage_core.reading import ranges
from storage_core.records.new_records import NewRecords
from tests.kit.builders import SOME_TIME_MS, BatchSpec, RecordSpec, some_batches
from tests.kit.compare import read_tree
from tests.kit.directories import SegmentSpec, write_partition
from tests.kit.golden_data import Golden
from tests.pylog_spark.broker_roots import broker_directory
from tests.pylog_spark.managed_roots import managed_twin
from tests.pylog_spark.source.test_ranges import as_consumed, consumed_from

FIRST, SECOND = TopicPartition("orders", 0), TopicPartition("orders", 1)
SOME_TIME = datetime.fromtimestamp(SOME_TIME_MS / 1000, UTC)
PUBLIC = (
    "COLUMNS EARLIEST LATEST ConfigError Logs PylogError Records TopicPartition open_logs write"
)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Two partitions of ``orders`` with offsets 5 to 24, one of ``other`` with 0 to 2."""
    return write_root(tmp_path / "logs")


def write_root(root: Path) -> Path:
    for number in (0, 1):
        write_partition(
            root / f"orders-{number}",
            [
                SegmentSpec(base_offset=b, batches=some_batches(count=5, records=2, base_offset=b))
                for b in (5, 15)
            ],
        )
    write_partition(root / "other-0", [SegmentSpec(base_offset=0, batches=some_batches(count=3))])
    return root


def offsets(records: kafka_log.Records) -> list[int]:
    return records.to_table()["offset"].to_pylist()


def test_the_public_names_are_these():
    assert kafka_log.__all__ == PUBLIC.split()


def test_a_path_with_nothing_is_an_error_at_once(tmp_path: Path):
    with pytest.raises(ConfigError, match="no such directory"):
        open_logs(tmp_path / "nowhere")
    with pytest.raises(ConfigError, match="at least one"):
        open_logs()


@pytest.mark.thorough
@pytest.mark.item("RD-07", "RD-08")
def test_committed_records_of_a_broker_are_those_that_a_consumer_got(tmp_path: Path):
    logs = open_logs(Golden("broker-dir").unpack(tmp_path))
    records = logs.read(re.compile("[^_].*"), isolation="read_committed")
    assert as_consumed(list(records.rows())) == consumed_from("broker-dir")


def test_topics_are_chosen_by_name_by_names_by_pattern_or_by_partition(root: Path):
    logs = open_logs(root)
    assert logs.topics() == ["orders", "other"]
    sizes = {
        "all": len(offsets(logs.read())),
        "name": len(offsets(logs.read("other"))),
        "names": len(offsets(logs.read(["orders", "other"]))),
        "pattern": len(offsets(logs.read(re.compile("o.*s")))),
        "partition": len(offsets(logs.read(partitions=[SECOND]))),
    }
    assert sizes == {"all": 43, "name": 3, "names": 43, "pattern": 40, "partition": 20}


@pytest.mark.parametrize(
    ("start", "end", "expected"),
    [
        (None, None, range(5, 25)),
        (8, 12, range(8, 12)),
        (EARLIEST, 7, range(5, 7)),
        (LATEST, None, range(0)),
        ({FIRST: 24}, {FIRST: LATEST}, range(24, 25)),
        (SOME_TIME, SOME_TIME + timedelta(days=1), range(5, 25)),
        (SOME_TIME + timedelta(days=1), None, range(0)),
        (None, SOME_TIME, range(0)),
    ],
    ids=str,
)
def test_start_is_inclusive_and_end_exclusive(root: Path, start, end, expected):
    records = open_logs(root).read(partitions=[FIRST], start=start, end=end)
    assert offsets(records) == list(expected)


def test_a_time_between_two_milliseconds_begins_with_the_later_one(root: Path):
    logs = open_logs(root)
    table = logs.read(partitions=[FIRST]).to_table()
    at_ms = table["timestamp"].to_pylist()[3]
    whole = logs.read(partitions=[FIRST], start=at_ms).to_table()["timestamp"].to_pylist()
    later = logs.read(partitions=[FIRST], start=at_ms + timedelta(microseconds=1)).to_table()
    assert whole[0] == at_ms
    assert later["timestamp"].to_pylist()[0] == at_ms + timedelta(milliseconds=1)


def test_times_far_from_ours_are_taken(root: Path):
    logs = open_logs(root)
    assert offsets(logs.read("other", start=datetime(1, 1, 1, tzinfo=UTC))) == [0, 1, 2]
    assert offsets(logs.read("other", start=datetime(9999, 1, 1, tzinfo=UTC))) == []


@pytest.mark.parametrize(
    "keys", [["k1"], "k1", [b"k1", "k2", "absent"], [None], [b""], []], ids=str
)
def test_keys_leave_out_all_other_records(tmp_path: Path, keys):
    there = [b"k1", None, b"k2", b"", b"k1", b"k", b"k11"]
    batches = [
        BatchSpec(
            base_offset=3 * number,
            records=tuple(
                RecordSpec(offset_delta=delta, key=there[(3 * number + delta) % 7], value=b"v")
                for delta in range(3)
            ),
        )
        for number in range(7)
    ]
    write_partition(tmp_path / "t-0", [SegmentSpec(base_offset=0, batches=batches)])
    asked = {
        key.encode() if isinstance(key, str) else key
        for key in ([keys] if isinstance(keys, str) else keys)
    }
    rows = list(open_logs(tmp_path).read(keys=keys).rows())
    assert [row["offset"] for row in rows] == [n for n in range(21) if there[n % 7] in asked]
    assert all(row["key"] in asked and row["value"] == b"v" for row in rows)


def test_columns_come_in_the_order_that_is_asked(root: Path):
    logs = open_logs(root)
    assert logs.read().schema.names == list(kafka_log.COLUMNS)
    records = logs.read("other", columns=["offset", "topic"])
    assert records.schema.names == ["offset", "topic"]
    assert list(records.rows()) == [{"offset": n, "topic": "other"} for n in range(3)]
    assert logs.read("other", columns="offset").to_table().num_columns == 1


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"topics": "nothing"}, "topics=nothing: no such topic in"),
        ({"topics": []}, "topics: expected at least one"),
        ({"topics": "other", "partitions": [FIRST]}, "not both"),
        ({"partitions": [TopicPartition("orders", 7)]}, "partitions=orders-7: no such partition"),
        ({"partitions": [("orders", 0)]}, "expected TopicPartition"),
        (
            {"start": datetime.fromisoformat("2026-01-01")},
            "start=2026-01-01 00:00:00: expected a time",
        ),
        ({"start": {FIRST: 5}}, "start=orders-1, other-0: read, but no offset"),
        ({"topics": "other", "end": {("other", 0): 5}}, "expected TopicPartition"),
        ({"end": "latest"}, "end=latest: expected an offset or a datetime"),
        ({"start": -3}, "start=-3: expected an offset"),
        ({"start": True}, "start=True: expected an offset"),
        ({"columns": ["offset", "keys"]}, "columns=keys: expected names from: key, value"),
        ({"columns": []}, "columns: expected names"),
        ({"keys": [7]}, "keys=7: expected bytes"),
        ({"isolation": "committed"}, "isolation=committed: expected read_"),
    ],
    ids=str,
)
def test_a_wrong_argument_is_named(root: Path, arguments, text: str):
    with pytest.raises(ConfigError) as refused:
        open_logs(root).read(**arguments)
    assert text in str(refused.value)


def test_an_offset_that_is_not_there_is_data_loss(root: Path):
    logs = open_logs(root)
    with pytest.raises(OffsetOutOfRangeError, match="orders-0: offset 0 is out of range"):
        logs.read("orders", start=0)
    assert len(offsets(logs.read("orders", start=0, fail_on_data_loss=False))) == 40


def test_a_missing_segment_is_an_error_unless_loss_is_accepted(tmp_path: Path, caplog):
    directory = Golden("recover-middle-segment-missing-none-s400").unpack(tmp_path)
    with pytest.raises(MissingSegmentError):
        open_logs(directory).read().to_table()
    assert open_logs(directory).read(fail_on_data_loss=False).to_table().num_rows > 0
    assert "are missing" in caplog.text


def test_several_directories_are_read_as_one(root: Path, tmp_path: Path):
    second = tmp_path / "disk2"
    write_partition(
        second / "orders-2", [SegmentSpec(base_offset=0, batches=some_batches(count=4))]
    )
    (second / "log-start-offset-checkpoint").write_text("0\n1\norders 2 1\n")
    (root / "log-start-offset-checkpoint").write_text("0\n1\norders 0 20\n")
    logs = open_logs(root, second)
    table = logs.read("orders").to_table()
    counts = table.group_by("partition").aggregate([([], "count_all")]).sort_by("partition")
    assert counts["count_all"].to_pylist() == [5, 20, 3]
    assert logs.partitions("orders")["partition"].to_pylist() == [0, 1, 2]


def test_a_partition_in_two_directories_is_refused_unless_it_is_not_read(root: Path, tmp_path):
    replica = write_partition(
        tmp_path / "replica" / "other-0",
        [SegmentSpec(base_offset=0, batches=some_batches(count=1))],
    )
    logs = open_logs(root, replica.parent)
    with pytest.raises(ConfigError, match="each has other-0") as refused:
        logs.read()
    assert str(replica) in str(refused.value)
    assert len(offsets(logs.read("orders"))) == 40
    # The same directory by two paths is one.
    assert offsets(open_logs(root, root / "other-0").read("other")) == [0, 1, 2]


def test_partitions_have_sizes_offsets_and_times(root: Path):
    (root / "log-start-offset-checkpoint").write_text("0\n1\norders 0 18\n")
    table = open_logs(root).partitions()
    assert table["topic"].to_pylist() == ["orders", "orders", "other"]
    assert table["log_start_offset"].to_pylist() == [18, 5, 0]
    assert table["log_end_offset"].to_pylist() == [25, 25, 3]
    assert table["segments"].to_pylist() == [2, 2, 1]
    sizes = [
        sum(log.stat().st_size for log in Path(location).glob("*.log"))
        for location in table["location"].to_pylist()
    ]
    assert table["size_bytes"].to_pylist() == sizes
    times = open_logs(root).read("other").to_table()["timestamp"].to_pylist()
    assert table["oldest_timestamp"].to_pylist()[2] == min(times)
    assert table["newest_timestamp"].to_pylist()[2] == max(times)
    assert table["error"].null_count == 3
    assert open_logs(root).partitions(["other"]).num_rows == 1
    with pytest.raises(ConfigError, match="no such topic"):
        open_logs(root).partitions("nothing")


def test_a_broken_partition_is_a_row_with_its_error(root: Path):
    log = root / "other-0" / "00000000000000000000.log"
    (root / "other-0" / "00000000000000000000.index").unlink()
    log.write_bytes(bytes(100) + log.read_bytes())
    table = open_logs(root).partitions()
    assert table["error"].to_pylist()[:2] == [None, None]
    assert "00000000000000000000.log" in table["error"].to_pylist()[2]
    assert table["size_bytes"].to_pylist()[2] == log.stat().st_size


def test_a_broken_checkpoint_of_the_root_is_told_beside_each_partition(root: Path):
    (root / "log-start-offset-checkpoint").write_text("garbage")
    errors = open_logs(root).partitions()["error"].to_pylist()
    assert len(errors) == 3
    assert all("log-start-offset-checkpoint" in error for error in errors)


def test_segments_have_sizes_and_times(root: Path):
    table = open_logs(root).segments("orders")
    assert table["partition"].to_pylist() == [0, 0, 1, 1]
    assert table["base_offset"].to_pylist() == [5, 15, 5, 15]
    assert table["is_active"].to_pylist() == [False, True, False, True]
    newest = open_logs(root).read(partitions=[FIRST], end=15).to_table()["timestamp"]
    assert table["newest_timestamp"].to_pylist()[0] == pc.max(newest).as_py()
    log = root / "orders-0" / "00000000000000000005.log"
    assert table["size_bytes"].to_pylist()[0] == log.stat().st_size


def test_managed_roots_are_opened_like_others(tmp_path: Path):
    name = "clean-headers-none-s101"
    origin = broker_directory(tmp_path / "log", [name])
    twin = managed_twin(origin, tmp_path / "managed")
    expected = open_logs(origin.path).read().to_table()
    assert expected.num_rows > 50
    assert open_logs(twin.location).read().to_table() == expected
    assert open_logs(twin.location).partitions()["segments"].to_pylist()[0] > 0


def test_what_speaks_arrows_protocol_takes_records_as_they_are(root: Path, tmp_path: Path):
    records = open_logs(root).read("orders")
    expected = records.to_table()
    assert pa.table(records) == expected
    assert pa.RecordBatchReader.from_stream(records).read_all() == expected
    assert records.reader().read_all() == expected
    write_deltalake(str(tmp_path / "delta"), open_logs(root).read("orders", columns=["offset"]))
    there = DeltaTable(str(tmp_path / "delta")).to_pyarrow_table()
    assert sorted(there["offset"].to_pylist()) == sorted(expected["offset"].to_pylist())
    frame = records.to_pandas()
    assert frame["offset"].tolist() == expected["offset"].to_pylist()


def test_polars_takes_records_where_it_is_installed(root: Path):
    pytest.importorskip("polars")
    records = open_logs(root).read("orders")
    assert records.to_polars()["offset"].to_list() == records.to_table()["offset"].to_pylist()


@pytest.mark.parametrize("package", ["pandas", "polars"])
def test_a_library_that_is_not_installed_is_named(root: Path, monkeypatch, package: str):
    monkeypatch.setitem(sys.modules, package, None)
    records = open_logs(root).read()
    with pytest.raises(ConfigError, match=f"{package}: is not installed: pip install {package}"):
        getattr(records, f"to_{package}")()


def test_records_can_be_read_again_and_nothing_is_read_before(root: Path, monkeypatch):
    records = open_logs(root).read("orders")
    begun = []
    original = ranges.read_range
    monkeypatch.setattr(
        kafka_log, "read_range", lambda wanted: begun.append(wanted) or original(wanted)
    )
    first = iter(records)
    assert begun == []
    next(first)
    assert len(begun) == 1  # of two partitions
    assert records.to_table() == records.to_table()


def test_files_that_were_replaced_since_are_an_error(root: Path):
    records = open_logs(root).read("other")
    log = root / "other-0" / "00000000000000000000.log"
    content = log.read_bytes()
    other = log.with_suffix(".new")
    other.write_bytes(content)
    other.replace(log)
    with pytest.raises(ChangedWhileReadError):
        records.to_table()


def test_bad_bytes_are_an_error_with_file_and_position(root: Path):
    log = root / "other-0" / "00000000000000000000.log"
    data = bytearray(log.read_bytes())
    data[30] ^= 1
    log.write_bytes(data)
    records = open_logs(root).read("other")
    with pytest.raises(CorruptRecordError, match=rf"^{re.escape(str(log))}: position 0"):
        records.to_table()
    with pytest.raises(Exception, match=rf"{re.escape(str(log))}: position 0"):
        pa.table(records)


def test_memory_is_bounded_by_windows_not_by_the_log(tmp_path: Path):
    value = pa.array([b"x" * 1000] * 4096, pa.binary())
    table = pa.table({"value": value})
    with UnifiedLog.open(
        tmp_path / "t-0", config=LogConfig(segment_bytes=1 << 24), clock=ManualClock(SOME_TIME_MS)
    ) as log:
        for _ in range(12):
            log.append_columns(NewRecords.from_arrow(table), batch_records=512)
    records = open_logs(tmp_path).read()
    next(iter(records))  # kernels are loaded
    tracemalloc.start()  # NumPy tells it of its arrays, which Arrow's buffers are
    try:
        total = sum(batch.nbytes for batch in records)
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert total > 48_000_000
    assert most < 30_000_000


@pytest.mark.thorough
def test_reading_writes_nothing_and_needs_no_spark(root: Path):
    before = {path: read_tree(path) for path in root.iterdir() if path.is_dir()}
    program = (
        "import sys\n"
        "sys.modules['pyspark'] = None\n"  # whoever imports it fails
        "from storage_core import kafka_log\n"
        f"logs = kafka_log.open_logs({str(root)!r})\n"
        "logs.partitions(), logs.segments()\n"
        "print(logs.read(isolation='read_committed').to_table().num_rows)\n"
        "print('pylog_spark' in sys.modules)\n"
    )
    answer = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        check=True,
        cwd=Path(__file__).resolve().parents[2],
    )
    assert answer.stdout == "43\nFalse\n"
    assert {path: read_tree(path) for path in root.iterdir() if path.is_dir()} == before
