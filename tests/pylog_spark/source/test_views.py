"""The views of ``kafka-log`` beside records have what ``dump``, ``inspect`` and ``groups`` say."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from pylog_spark.rows import spark_ddl
from pylog_spark.source.options import parse_options
from pylog_spark.source.reader import KafkaLogReader
from pylog_spark.source.registration import register
from pylog_spark.tasks.views import VIEWS
from storage_core.errors import ConfigError, CorruptRecordError, CorruptSnapshotError
from storage_core.filenames import snapshot_file
from storage_core.kafka_log import open_logs
from storage_core.reading.ranges import BATCH_TYPES
from tests.kit.builders import SOME_TIME_MS, some_batches
from tests.kit.directories import ProducerSpec, SegmentSpec, plain_segment, write_partition
from tests.kit.file_damage import flip
from tests.kit.golden_data import Golden
from tests.kit.program import lines_of

INTERNAL = "__consumer_offsets", "__transaction_state"


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return Golden("broker-dir").unpack(tmp_path_factory.mktemp("views"))


def batches_of(path: Path, view: str, **options: str) -> Iterator[pa.RecordBatch]:
    parsed = parse_options({"path": str(path), "view": view, **options})
    reader = KafkaLogReader(parsed)
    for partition in reader.partitions():
        for batch in reader.read(partition):
            assert batch.schema.equals(parsed.schema)
            yield batch


def rows_of(path: Path, view: str, **options: str) -> list[dict[str, Any]]:
    return [row for batch in batches_of(path, view, **options) for row in batch.to_pylist()]


def as_ms(row: dict[str, Any], *names: str) -> dict[str, Any]:
    """Return a row with its times as epoch milliseconds, -1 for none."""
    times = {name: row[name] for name in names}
    return row | {
        name: -1 if time is None else round(time.timestamp() * 1000) for name, time in times.items()
    }


def dumped(pylog: Any, directory: Path, kind: str) -> list[dict[str, Any]]:
    """Return the lines of a kind that ``pylog dump`` has for a partition directory."""
    lines = pylog.rows("dump", directory)
    return [line for line in lines if line["type"] == kind]


@pytest.mark.parametrize("name", ["broker-dir", "clean-legacy1-mixed-s315-group"])
@pytest.mark.parametrize("size", ["1", "4096", "1g"])
def test_batches_are_those_that_dump_shows_each_once(pylog, tmp_path, name: str, size: str):
    place = Golden(name).unpack(tmp_path)
    path = place / "events-0" if name == "broker-dir" else place
    rows = rows_of(path, "batches", maxPartitionBytes=size, failOnDataLoss="false")
    lines = dumped(pylog, path, "batch")
    shared = set(BATCH_TYPES) - {"delete_horizon"}
    # Of a compressed message set a header tells the last offset alone.
    is_set = [line["magic"] < 2 and line["codec"] != "none" for line in lines]
    for row, line, is_message_set in zip(rows, lines, is_set, strict=True):
        found = as_ms(row, "max_timestamp", "delete_horizon")
        names = shared - {"base_offset"} if is_message_set else shared
        line["file"] = Path(line["file"]).name
        assert {name: found[name] for name in names} == {name: line[name] for name in names}
        horizon = line["delete_horizon_ms"]
        assert found["delete_horizon"] == (-1 if horizon is None else horizon)
    assert len(rows) > 5


def test_batches_of_a_range_are_those_that_reach_into_it(tmp_path):
    directory = write_partition(
        tmp_path / "t-0", [SegmentSpec(base_offset=0, batches=some_batches(count=10, records=3))]
    )
    bounds = {"startingOffsets": '{"t":{"0":4}}', "endingOffsets": '{"t":{"0":10}}'}
    rows = rows_of(directory, "batches", columns="base_offset,record_count", **bounds)
    assert rows == [{"base_offset": base, "record_count": 3} for base in (3, 6, 9)]


@pytest.mark.thorough
def test_records_say_where_they_stand_and_what_their_batches_say(root: Path):
    options = {"subscribePattern": "[^_].*", "columns": "partition,topic,offset,_log"}
    records = rows_of(root, "records", **options)
    batches = {
        (row["topic"], row["partition"], row["file"], row["position"]): row
        for row in rows_of(root, "batches", subscribePattern="[^_].*")
    }
    assert len(records) > 1800
    for record in records:
        log = record["_log"]
        batch = batches[record["topic"], record["partition"], log["file"], log["position"]]
        sequence = log.pop("sequence")
        assert log == {name: batch[name] for name in log}
        assert batch["base_offset"] <= record["offset"] <= batch["last_offset"]
        first = batch["base_sequence"]
        distance = record["offset"] - batch["base_offset"]
        assert sequence == (-1 if first < 0 else first + distance)
    assert {record["_log"]["is_transactional"] for record in records} == {True, False}
    whole = parse_options({"path": "/logs", "includeLogColumns": "true", "includeHeaders": "true"})
    assert whole.columns[-2:] == ("headers", "_log")


@pytest.mark.parametrize("view", ["segments", "partitions"])
def test_segments_and_partitions_are_those_of_the_python_module(root: Path, view: str):
    table = getattr(open_logs(root), view)()
    rows = [{name: row[name] for name in table.schema.names} for row in rows_of(root, view)]
    assert rows == table.to_pylist()
    assert len(rows) > 5


@pytest.mark.thorough
def test_many_partitions_are_several_tasks(tmp_path):
    for number in range(130):
        write_partition(tmp_path / f"t-{number}", [SegmentSpec(base_offset=0)])
    reader = KafkaLogReader(parse_options({"path": str(tmp_path), "view": "segments"}))
    assert len(reader.partitions()) == 3
    assert [row["partition"] for row in rows_of(tmp_path, "segments")] == list(range(130))


def test_index_entries_are_those_that_dump_shows(pylog, root: Path):
    for name in ("events-0", "compacted-0"):
        rows = rows_of(root / name, "indexes")
        offsets = [row for row in rows if row["file"].endswith(".index")]
        times = [as_ms(row, "timestamp") for row in rows if row["file"].endswith(".timeindex")]
        lines = dumped(pylog, root / name, "index")
        assert [(row["offset"], row["position"]) for row in offsets] == [
            (line["offset"], line["position"]) for line in lines
        ]
        lines = dumped(pylog, root / name, "timeindex")
        assert [(row["timestamp"], row["offset"]) for row in times] == [
            (line["timestamp"], line["offset"]) for line in lines
        ]
        assert times
        assert {row["timestamp"] for row in offsets} <= {None}


def test_zeros_at_the_end_of_a_preallocated_index_are_no_entries(tmp_path):
    batches = some_batches(count=20)
    directory = write_partition(
        tmp_path / "t-0", [SegmentSpec(base_offset=0, batches=batches)], index_interval_bytes=1
    )
    before = rows_of(directory, "indexes")
    for suffix in ("index", "timeindex"):
        index = directory / f"00000000000000000000.{suffix}"
        index.write_bytes(index.read_bytes() + bytes(240))
    assert rows_of(directory, "indexes") == before
    assert len(before) > 20


def test_an_index_may_begin_with_the_first_offset_of_its_segment(tmp_path):
    one = [plain_segment(7, 1)]
    (row,) = rows_of(write_partition(tmp_path / "t-0", one), "indexes")
    assert row["file"].endswith(".timeindex")
    assert as_ms(row, "timestamp")["timestamp"] == SOME_TIME_MS
    assert row["offset"] == 7


@pytest.mark.thorough
def test_producers_aborted_transactions_and_epochs_are_those_that_dump_shows(pylog, root: Path):
    found = {"producers": 0, "aborted_transactions": 0, "epochs": 0}
    for directory in sorted(root.glob("[a-z]*-[0-9]")):
        producers = [as_ms(row, "last_timestamp") for row in rows_of(directory, "producers")]
        aborted = rows_of(directory, "aborted_transactions")
        epochs = rows_of(directory, "epochs")
        for rows, kind, view in (
            (producers, "snapshot", "producers"),
            (aborted, "txnindex", "aborted_transactions"),
            (epochs, "checkpoint", "epochs"),
        ):
            lines = [line for line in dumped(pylog, directory, kind) if "topic_id" not in line]
            names = [name for name in lines[0] if name not in {"type", "file"}] if lines else []
            assert [{name: row[name] for name in names} for row in rows] == [
                {name: line[name] for name in names} for line in lines
            ]
            found[view] += len(rows)
    assert min(found.values()) > 0, found


@pytest.mark.thorough
@pytest.mark.item("REP-16", "REP-17")
@pytest.mark.parametrize(
    ("view", "command", "kind"),
    [
        ("groups", "groups", "group"),
        ("consumer_offsets", "groups", "commit"),
        ("transactions", "transactions", "transaction"),
        ("open_transactions", "transactions", "open_transaction"),
    ],
)
def test_groups_and_transactions_are_those_of_the_command(
    pylog, tmp_path, monkeypatch, view: str, command: str, kind: str
):
    name = "broker-dir-unclean" if kind == "open_transaction" else "broker-dir"
    path = Golden(name).unpack(tmp_path)
    now = int(Golden(name).case["clock_ms"])
    monkeypatch.setattr("storage_core.clock.SystemClock.now_ms", lambda _: now)
    result = pylog(command, path, "--output", "json", "--now-ms", now)
    lines = lines_of(result)
    expected = [
        {key: value for key, value in line.items() if key != "type"} | {"error": None}
        for line in lines
        if line["type"] == kind
    ]
    rows = [row for row in rows_of(path, view) if row["error"] is None]
    assert rows == expected
    if kind != "open_transaction":
        assert rows


def test_commits_of_chosen_topics_alone(root: Path):
    rows = rows_of(root, "consumer_offsets", subscribe="events")
    assert {row["topic"] for row in rows} == {"events"}


@pytest.mark.thorough
def test_a_coordinator_that_cannot_be_read_is_a_row_with_its_error(tmp_path):
    path = Golden("broker-dir").unpack(tmp_path)
    log = path / "__consumer_offsets-0" / "00000000000000000000.log"
    flip(log, 70)
    errors = [row["error"] for row in rows_of(path, "groups") if row["error"]]
    assert len(errors) == 1
    assert errors[0].startswith("__consumer_offsets-0: ")


def test_damage_is_an_error_with_its_file_or_a_row_with_its_error(tmp_path):
    directory = write_partition(
        tmp_path / "t-0",
        [
            plain_segment(0, 3),
            SegmentSpec(
                base_offset=3,
                batches=some_batches(count=3, base_offset=3),
                producers=[ProducerSpec(producer_id=7, last_timestamp=SOME_TIME_MS)],
            ),
        ],
    )
    snapshot = directory / snapshot_file(3)
    snapshot.write_bytes(snapshot.read_bytes()[:-1])
    with pytest.raises(CorruptSnapshotError, match=snapshot.name):
        rows_of(tmp_path, "producers")
    log = directory / "00000000000000000003.log"
    log.write_bytes(b"\xff" * 100 + log.read_bytes())
    with pytest.raises(CorruptRecordError, match=log.name):
        rows_of(tmp_path, "batches")
    (row,) = rows_of(tmp_path, "partitions")
    assert row["error"]


def test_a_stream_of_a_view_is_refused():
    with pytest.raises(ConfigError, match="a stream has records only"):
        parse_options({"path": "/logs", "view": "batches"}, is_stream=True)


@pytest.mark.thorough
@pytest.mark.spark
def test_every_view_is_a_table_in_spark(spark, root: Path):
    register(spark)
    counts = {}
    for view, declared in VIEWS.items():
        frame = spark.read.format("kafka-log").option("view", view).load(str(root))
        assert frame.columns == declared.schema.names
        assert spark_ddl(declared.schema)
        counts[view] = len(frame.collect())
    assert counts.pop("open_transactions") == 0
    assert min(counts.values()) > 0, counts
