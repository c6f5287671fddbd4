"""Lazy frames and datasets: the rows of a whole read and a filter, and how much is read."""

import gc
import re
from datetime import timedelta
from pathlib import Path

import pyarrow as pa
import pytest

from storage_core import kafka_log
from storage_core.errors import ConfigError
from storage_core.filenames import TopicPartition
from storage_core.kafka_log import open_logs
from storage_core.reading import ranges
from storage_core.reading.polars_source import arrow_filter
from tests.kit.builders import SOME_TIME_MS, BatchSpec, RecordSpec
from tests.kit.directories import SegmentSpec, write_partition
from tests.storage_core.test_kafka_log import SOME_TIME, write_root

duckdb = pytest.importorskip("duckdb")
pl = pytest.importorskip("polars")

OFFSET, PARTITION, TIME = pl.col("offset"), pl.col("partition"), pl.col("timestamp")
LATER = SOME_TIME + timedelta(milliseconds=7)


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two partitions of ``orders`` with offsets 5 to 24, one of ``other`` with 0 to 2."""
    return write_root(tmp_path_factory.mktemp("scanned") / "logs")


@pytest.fixture
def read_bytes(monkeypatch) -> list[int]:
    """How many bytes of files each read was going to read."""
    seen = []
    original = kafka_log.Logs.read

    def read(self, *arguments, **named):
        records = original(self, *arguments, **named)
        seen.append(records.size_bytes)
        return records

    monkeypatch.setattr(kafka_log.Logs, "read", read)
    return seen


@pytest.mark.parametrize(
    ("predicate", "most_of_all"),
    [
        (OFFSET >= 20, 0.5),
        (OFFSET < 10, 0.6),
        ((OFFSET > 6) & (OFFSET <= 8) & (PARTITION == 1), 0.25),
        (OFFSET == 17, 0.5),
        (pl.lit(21) <= OFFSET, 0.5),
        (pl.col("topic") == "other", 0.2),
        (PARTITION.is_in([1]) & pl.col("topic").str.starts_with("ord"), 0.5),
        (TIME >= LATER, 0.9),
        ((OFFSET < 2) | (OFFSET > 23), 1),
        (OFFSET + PARTITION > 24, 1),
        (pl.col("key").is_null() | (OFFSET % 2 == 0), 1),
        (OFFSET > 1_000_000, 0),
        (OFFSET.map_batches(lambda column: column == 7, return_dtype=pl.Boolean), 1),
        (OFFSET.is_between(6, 8) & PARTITION.eq(0), 0.25),
        (((OFFSET < 7) & (PARTITION == 0)) | (pl.col("topic") == "other"), 0.5),
        (OFFSET > 2**70, 1),
    ],
)
def test_a_filter_gives_the_rows_of_a_whole_read_and_reads_less(
    root, read_bytes, predicate, most_of_all
):
    whole = open_logs(root).read()
    expected = whole.to_polars().filter(predicate)
    read_bytes.clear()
    found = open_logs(root).scan().filter(predicate).collect()
    assert found.equals(expected)
    assert sum(read_bytes) <= most_of_all * whole.size_bytes


def test_a_predicate_that_is_nested_without_end_is_applied_all_the_same(root):
    predicate = OFFSET >= 20
    for number in range(2000):
        predicate &= OFFSET.ne(number + 1000)
    assert str(arrow_filter(predicate, [])) in {"None", "(offset >= 20)"}


def test_only_the_columns_that_a_query_needs_are_built(root, monkeypatch):
    asked = []
    original = kafka_log.Logs.read

    def read(self, *arguments, columns=None, **named):
        asked.append(set(columns))
        return original(self, *arguments, columns=columns, **named)

    monkeypatch.setattr(kafka_log.Logs, "read", read)
    found = open_logs(root).scan("orders").filter(OFFSET > 22).select("key").collect()
    assert found.columns == ["key"]
    assert asked == [{"key", "offset"}]


def test_head_ends_the_reading(root, monkeypatch):
    begun = []
    original = kafka_log.read_range

    def read_range(wanted):
        begun.append(wanted)
        return original(wanted)

    monkeypatch.setattr(kafka_log, "read_range", read_range)
    assert open_logs(root).scan("orders").head(2).collect()["offset"].to_list() == [5, 6]
    assert len(begun) == 1


def test_sql_of_polars_takes_the_frame(root):
    frame = open_logs(root).scan()
    query = "SELECT topic, count(*) AS n FROM logs WHERE offset BETWEEN 1 AND 6 GROUP BY topic"
    assert pl.SQLContext(logs=frame).execute(query).collect().sort("topic").rows() == [
        ("orders", 4),
        ("other", 2),
    ]


def test_a_topic_that_is_not_there_is_an_error_at_once(root):
    with pytest.raises(ConfigError, match="nowhere"):
        open_logs(root).scan("nowhere")


@pytest.fixture
def connection():
    with duckdb.connect(config={"python_enable_replacements": False}) as opened:
        opened.execute("SET TimeZone = 'UTC'")
        yield opened


@pytest.mark.parametrize(
    ("condition", "most_of_all"),
    [
        ('"offset" >= 20', 0.5),
        ('"offset" < 10', 0.6),
        ('"offset" BETWEEN 6 AND 8 AND partition = 1', 0.25),
        ('"offset" IN (6, 22)', 1),
        ("topic = 'other'", 0.2),
        ("topic LIKE 'ord%' AND partition IN (1)", 0.5),
        (f"timestamp >= '{LATER.isoformat()}' AND \"offset\" < 100", 1),
        (f"timestamp > '{(SOME_TIME + timedelta(days=1)).isoformat()}'", 0.6),
        ('"offset" < 2 OR "offset" > 23', 0.7),
        ('"offset" % 2 = 0 OR key IS NULL', 1),
        ("value IS NOT NULL AND octet_length(value) > 3", 1),
        ('"offset" > 1000000', 0),
    ],
)
def test_a_query_of_duckdb_gives_the_rows_of_a_whole_read_and_reads_less(
    root, connection, read_bytes, condition, most_of_all
):
    logs = open_logs(root)
    whole = logs.read().to_table()
    size = logs.read().size_bytes
    read_bytes.clear()
    connection.register("scanned", logs.dataset())
    connection.register("everything", whole)
    query = f'SELECT * FROM {{}} WHERE {condition} ORDER BY topic, partition, "offset"'  # noqa: S608  # the test's own
    found = connection.sql(query.format("scanned")).fetchall()
    assert found == connection.sql(query.format("everything")).fetchall()
    assert sum(read_bytes) <= most_of_all * size


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A segment of 24 MiB, of 6,000 records that are a second apart."""
    times = [SOME_TIME + timedelta(seconds=number) for number in range(6000)]
    table = pa.table(
        {
            "value": [bytes(4096)] * 6000,
            "timestamp": pa.array(times, pa.timestamp("us", "UTC")),
        }
    )
    root = tmp_path_factory.mktemp("large") / "written"
    kafka_log.write(root, table, topic="large", partitions=1, batch_bytes=1 << 16)
    return root


def test_a_record_whose_time_no_calendar_has_is_found(connection, tmp_path):
    times_ms = [SOME_TIME_MS, -(2**62), SOME_TIME_MS + 1]
    records = [RecordSpec(key=None, value=b"", timestamp=each) for each in times_ms]
    batches = [BatchSpec(base_offset=n, records=[each]) for n, each in enumerate(records)]
    segments = [SegmentSpec(base_offset=n, batches=[batch]) for n, batch in enumerate(batches)]
    write_partition(tmp_path / "strange-0", segments)
    connection.register("strange", open_logs(tmp_path).dataset())
    for condition, offsets in (
        ("timestamp IS NULL", [1]),
        ("timestamp IS NULL OR timestamp > TIMESTAMPTZ '2200-01-01 00:00:00+00'", [1]),
        ("timestamp > TIMESTAMPTZ '2000-01-01 00:00:00+00'", [0, 2]),
    ):
        rows = connection.sql(f'SELECT "offset" FROM strange WHERE {condition} ORDER BY 1')  # noqa: S608
        assert [offset for (offset,) in rows.fetchall()] == offsets


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("condition", "most_of_all"),
    [
        ('"offset" = 3333', 0.4),
        ('"offset" < 100 OR "offset" > 5900', 0.7),
        ("timestamp >= TIMESTAMPTZ '2023-11-14 23:50:00+00'", 0.1),
        ("timestamp >= TIMESTAMPTZ '2023-11-14 23:50:00+00' AND \"offset\" % 2 = 0", 0.1),
        ("timestamp < TIMESTAMPTZ '2023-11-14 22:20:00+00'", 1.3),
        ("timestamp > TIMESTAMPTZ '2300-01-01 00:00:00+00'", 0.1),
    ],
)
def test_a_large_segment_is_read_in_part(large, connection, monkeypatch, condition, most_of_all):
    logs = open_logs(large)
    whole = logs.read(columns=["offset", "timestamp"]).to_table()
    size = logs.read().size_bytes
    read = []

    def scan_windows(*arguments, **named):
        for window in original(*arguments, **named):
            read.append(window.data.size)
            yield window

    original = ranges.scan_windows
    monkeypatch.setattr(ranges, "scan_windows", scan_windows)
    connection.register("scanned", logs.dataset())
    connection.register("everything", whole)
    query = f'SELECT "offset" FROM {{}} WHERE {condition} ORDER BY 1'  # noqa: S608  # as above
    found = connection.sql(query.format("scanned")).fetchall()
    assert found == connection.sql(query.format("everything")).fetchall()
    assert sum(read) <= most_of_all * size


@pytest.fixture(scope="module")
def late(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """200 records a second apart in segments of one each, but for record 150, which is as old as
    the tenth."""
    times = [SOME_TIME_MS + 1000 * (10 if number == 150 else number) for number in range(200)]
    segments = [
        SegmentSpec(
            base_offset=number,
            batches=[
                BatchSpec(
                    base_offset=number,
                    records=[RecordSpec(key=None, value=bytes(500), timestamp=time)],
                )
            ],
        )
        for number, time in enumerate(times)
    ]
    folder = tmp_path_factory.mktemp("late") / "logs"
    write_partition(folder / "late-0", segments)
    return folder


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("lateness", "expected", "most_of_all"),
    [
        (None, [9, 10, 11, 150], 1),
        (timedelta(seconds=130), [9, 10, 11], 0.8),
        (timedelta(seconds=139), [9, 10, 11, 150], 0.9),
        (timedelta(), [9, 10, 11], 0.1),
        (timedelta(days=36_500), [9, 10, 11, 150], 1),
    ],
)
def test_a_latest_time_ends_the_reading_where_records_are_never_so_late(
    late, connection, caplog, lateness, expected, most_of_all
):
    first, last = (SOME_TIME + timedelta(seconds=number) for number in (9, 11))
    logs = open_logs(late)
    dataset = logs.dataset(lateness=lateness)
    connection.register("late", dataset)
    query = f"SELECT \"offset\" FROM late WHERE timestamp BETWEEN '{first}' AND '{last}' ORDER BY 1"  # noqa: S608  # the test's own
    assert [offset for (offset,) in connection.sql(query).fetchall()] == expected
    whole = sum(path.stat().st_size for path in late.rglob("*.log"))
    assert dataset.size_bytes == whole
    assert 0 < dataset.read_bytes <= most_of_all * whole
    assert dataset.doubtful_bytes == 0  # a record a batch has its time in the header
    caplog.set_level("INFO", "storage_core.reading")
    frame = logs.scan(lateness=lateness).filter(TIME.is_between(first, last))
    assert frame.collect()["offset"].to_list() == expected
    assert f"read {dataset.read_bytes} of {whole} bytes" in caplog.text


def test_a_lateness_that_is_none_is_refused(late):
    for lateness in (timedelta(microseconds=-1), timedelta(days=36_501)):
        with pytest.raises(ConfigError, match="lateness"):
            open_logs(late).dataset(lateness=lateness)


@pytest.mark.thorough
def test_head_of_a_filter_reads_one_window(large, caplog):
    caplog.set_level("INFO", "storage_core.reading")
    frame = open_logs(large).scan().filter(OFFSET > 1000).head(10)
    assert frame.collect()["offset"].to_list() == list(range(1001, 1011))
    gc.collect()  # Polars lets go of what it reads when it is collected
    read, size = re.search(r"read (\d+) of (\d+) bytes", caplog.text).groups()
    assert int(read) <= 0.2 * int(size)


def test_offsets_are_where_a_read_starts_and_ends(root):
    logs = open_logs(root)
    place = TopicPartition("orders", 0)
    assert logs.offsets(partitions=[place]) == {place: (5, 25)}
    assert logs.offsets(partitions=[place], start=LATER, end=20) == {place: (12, 20)}
    nothing = SOME_TIME + timedelta(days=1)
    assert logs.offsets(partitions=[place], start=nothing, end=nothing) == {place: (25, 25)}


def test_limit_ends_the_reading_of_duckdb(root, connection, monkeypatch):
    begun = []
    original = kafka_log.read_range

    def read_range(wanted):
        begun.append(wanted)
        return original(wanted)

    monkeypatch.setattr(kafka_log, "read_range", read_range)
    connection.register("orders", open_logs(root).dataset("orders"))
    assert len(connection.sql("SELECT key FROM orders LIMIT 2").fetchall()) == 2
    assert len(begun) == 1
    ((count,),) = connection.sql("SELECT count(*) FROM orders").fetchall()
    assert count == 40


def test_a_dataset_without_a_query_is_a_table(root):
    dataset = open_logs(root).dataset("orders")
    assert dataset.scanner().to_table().equals(open_logs(root).read("orders").to_table())
    assert dataset.scanner(columns=["offset"]).projected_schema.names == ["offset"]
    with pytest.raises(ConfigError, match="nowhere"):
        open_logs(root).dataset("nowhere")
