"""From a query's options to the ranges of its tasks, and what reading them yields."""

import gzip
import json
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pylog_spark.source.options import parse_options
from storage_core.errors import ConfigError, CorruptRecordError, OffsetOutOfRangeError
from storage_core.filenames import log_file
from storage_core.formats.batch_v2 import Codec
from storage_core.formats.control import ControlType
from storage_core.reading.planning import plan_ranges
from storage_core.reading.ranges import ReadRange, read_range
from tests.kit.builders import (
    SOME_TIME_MS,
    BatchSpec,
    RecordSpec,
    end_txn_marker,
    segment_bytes,
    some_batches,
)
from tests.kit.compare import read_tree
from tests.kit.directories import SegmentSpec, plain_segment, write_partition
from tests.kit.golden_data import GOLDEN, Golden
from tests.kit.transaction_logs import TransactionLog, transaction_logs

NOW_MS = 1_800_000_000_000
COMMITTED = {"kafka.isolation.level": "read_committed"}


def plan(path: Path, **options: str) -> list[ReadRange]:
    return plan_ranges(parse_options({"path": str(path), **options}).request, now_ms=NOW_MS)


def rows_of(path: Path, **options: str) -> list[dict[str, Any]]:
    wanted = plan(path, **options)
    return [row for part in wanted for batch in read_range(part) for row in batch.to_pylist()]


def offsets_of(path: Path, **options: str) -> list[int]:
    return [row["offset"] for row in rows_of(path, **options)]


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Two partitions of ``orders`` with offsets 5 to 24, one of ``other`` with 0 to 2."""
    for number in (0, 1):
        write_partition(
            tmp_path / f"orders-{number}",
            [
                SegmentSpec(base_offset=5, batches=some_batches(count=5, records=2, base_offset=5)),
                SegmentSpec(
                    base_offset=15, batches=some_batches(count=5, records=2, base_offset=15)
                ),
            ],
        )
    write_partition(tmp_path / "other-0", [plain_segment(0, 3)])
    return tmp_path


def consumed_from(name: str) -> list[list[Any]]:
    """Return what a committed consumer got: topic, partition, offset, timestamp, key, value, ..."""
    with gzip.open(GOLDEN / name / "consumed.jsonl.gz", "rt") as lines:
        return sorted(map(json.loads, lines), key=lambda row: row[:3])


def as_consumed(rows: list[dict[str, Any]]) -> list[list[Any]]:
    def hexed(data: bytes | None) -> str | None:
        return None if data is None else data.hex()

    found = [
        [
            row["topic"],
            row["partition"],
            row["offset"],
            round(row["timestamp"].timestamp() * 1000),
            hexed(row["key"]),
            hexed(row["value"]),
            [[header["key"], hexed(header["value"])] for header in row["headers"] or []],
        ]
        for row in rows
    ]
    return sorted(found, key=lambda row: row[:3])


@pytest.mark.sampled(1)
@pytest.mark.item("RD-07", "RD-08")
@pytest.mark.parametrize("range_bytes", [1, 5000, 1 << 30], ids=["a segment each", "few", "one"])
def test_committed_records_of_a_broker_are_those_that_a_consumer_got(tmp_path, range_bytes: int):
    root = Golden("broker-dir").unpack(tmp_path)
    options = {"includeHeaders": "true", "maxPartitionBytes": str(range_bytes), **COMMITTED}
    rows = rows_of(root, subscribePattern="[^_].*", **options)
    assert as_consumed(rows) == consumed_from("broker-dir")


@pytest.mark.thorough
@pytest.mark.item("RD-07", "RD-08")
def test_committed_records_of_a_broker_that_was_killed_are_those_that_a_consumer_got(tmp_path):
    """But for two segments that retention had taken away since: they wait as .deleted files."""
    root = Golden("broker-dir-unclean").unpack(tmp_path)
    rows = rows_of(root, subscribePattern="[^_].*", includeHeaders="true", **COMMITTED)
    deleted = {
        (topic, int(number), int(log.name.partition(".")[0]))
        for log in root.glob("*/*.log.deleted")
        for topic, _, number in [log.parent.name.rpartition("-")]
    }
    assert {topic for topic, _, _ in deleted} == {"events"}
    first_kept = {
        (topic, number): min(int(log.stem) for log in (root / f"{topic}-{number}").glob("*.log"))
        for topic, number, _ in deleted
    }
    expected = [
        row
        for row in consumed_from("broker-dir-unclean")
        if row[2] >= first_kept.get((row[0], row[1]), 0)
    ]
    assert as_consumed(rows) == expected
    assert len(expected) > 1800


@pytest.mark.thorough
@pytest.mark.item("RD-08")
@given(
    log=transaction_logs(),
    with_companions=st.booleans(),
    bounds=st.tuples(st.integers(0, 60), st.integers(0, 60)),
    range_bytes=st.sampled_from([1, 200, 1 << 30]),
)
def test_a_committed_read_is_what_the_producers_meant(
    log: TransactionLog, with_companions: bool, bounds: tuple[int, int], range_bytes: int
):
    start, end = sorted(min(bound, log.last_stable_offset) for bound in bounds)
    options = {"maxPartitionBytes": str(range_bytes)}
    with TemporaryDirectory() as folder:
        # An entry a batch: segments are cut before each of them where ranges are small.
        directory = log.write(
            Path(folder) / "t-0", with_companions=with_companions, index_interval_bytes=1
        )
        said = {
            "startingOffsets": json.dumps({"t": {"0": start}}),
            "endingOffsets": json.dumps({"t": {"0": end}}),
        }
        assert offsets_of(directory, **COMMITTED, **options) == list(log.committed)
        assert offsets_of(directory, **options) == list(log.everything)
        part = [offset for offset in log.committed if start <= offset < end]
        assert offsets_of(directory, **COMMITTED, **options, **said) == part


@pytest.mark.item("RD-08")
@given(
    log=transaction_logs(),
    damage=st.sampled_from(["gone", "emptied", "half of it"]),
    range_bytes=st.sampled_from([1, 1 << 30]),
)
def test_what_aborted_is_left_out_whatever_is_left_of_the_transaction_indexes(
    log: TransactionLog, damage: str, range_bytes: int
):
    options = {"maxPartitionBytes": str(range_bytes)}
    with TemporaryDirectory() as folder:
        directory = log.write(Path(folder) / "t-0", with_companions=True)
        for index in directory.glob("*.txnindex"):
            entries = index.read_bytes()
            index.write_bytes(entries[: len(entries) // 68 * 34] if damage != "emptied" else b"")
            if damage == "gone":
                index.unlink()
        assert offsets_of(directory, **COMMITTED, **options) == list(log.committed)


def transactional_archive(directory: Path) -> Path:
    """Three .log files: 0, 1 aborted, 3, 4 of none, 5, 6 of an open transaction, 7, 8 of none."""
    data = (RecordSpec(value=b"v"), RecordSpec(value=b"w"))
    producer = {"producer_epoch": 0, "is_transactional": True, "base_sequence": 0}
    marker = {"producer_id": 1, "producer_epoch": 0, "control_type": ControlType.ABORT}
    directory.mkdir(parents=True)
    for batches in (
        [
            BatchSpec(base_offset=0, records=data, producer_id=1, **producer),
            end_txn_marker(base_offset=2, **marker),
            BatchSpec(base_offset=3, records=data),
        ],
        [
            BatchSpec(base_offset=5, records=data, producer_id=2, **producer),
        ],
        [BatchSpec(base_offset=7, records=data)],
    ):
        file = directory / log_file(batches[0].base_offset)
        file.write_bytes(segment_bytes(batches))
    return directory


@pytest.mark.item("RD-08")
@pytest.mark.parametrize("grows", [7, 9], ids=["the last log", "an empty one behind it"])
def test_who_reads_a_whole_archive_finds_the_stable_end_of_the_moment_of_planning(
    tmp_path: Path, grows: int
):
    directory = transactional_archive(tmp_path / "t-0")
    (directory / log_file(grows)).touch()
    (before,) = plan(directory, **COMMITTED)
    assert before.end_offset is None
    with (directory / log_file(grows)).open("ab") as log:
        marker = end_txn_marker(base_offset=9, producer_id=2, producer_epoch=0)
        log.write(segment_bytes([marker]))
    for _ in range(2):
        rows = [row for batch in read_range(before) for row in batch.to_pylist()]
        assert [row["offset"] for row in rows] == [3, 4]
    assert offsets_of(directory, **COMMITTED) == [3, 4, 5, 6, 7, 8]


@pytest.mark.item("RD-08")
@pytest.mark.parametrize("why", ["pieces", "log start", "offsets", "cut by offsets", "lost log"])
def test_whose_ranges_are_not_of_a_whole_log_are_planned_with_their_end(tmp_path: Path, why: str):
    """What holds the end, or decides if something is missing before it, may lie elsewhere."""
    directory = transactional_archive(tmp_path / "t-0")
    options, expected = {}, [3, 4]
    match why:
        case "pieces":
            options["maxPartitionBytes"] = "1"
        case "log start":
            lines = "0\n1\nt 0 6\n"
            (tmp_path / "log-start-offset-checkpoint").write_text(lines)
            expected = []  # what holds the end began before it
        case "offsets":
            options["startingOffsets"] = json.dumps({"t": {"0": 4}})
            expected = [4]
        case "cut by offsets":
            options["maxRecordsPerPartition"] = "100"
        case _:
            (directory / "00000000000000000500.index").touch()
    root = tmp_path if why == "log start" else directory
    assert all(wanted.end_offset is not None for wanted in plan(root, **options, **COMMITTED))
    assert offsets_of(root, **options, **COMMITTED) == expected


@given(bounds=st.tuples(st.integers(5, 25), st.integers(5, 25)))
def test_offsets_start_inclusive_and_end_exclusive(bounds: tuple[int, int]):
    with TemporaryDirectory() as folder:
        segments = [
            SegmentSpec(base_offset=b, batches=some_batches(count=5, records=2, base_offset=b))
            for b in (5, 15)
        ]
        directory = write_partition(Path(folder) / "t-0", segments, index_interval_bytes=100)
        found = offsets_of(
            directory,
            startingOffsets=json.dumps({"t": {"0": bounds[0]}}),
            endingOffsets=json.dumps({"t": {"0": bounds[1]}}),
        )
    assert found == list(range(*bounds))


def test_minus_two_is_the_log_start_and_minus_one_the_end(root: Path):
    found = offsets_of(
        root,
        assign='{"orders":[0]}',
        startingOffsets='{"orders":{"0":-2}}',
        endingOffsets='{"orders":{"0":-1}}',
    )
    assert found == list(range(5, 25))


def test_times_start_inclusive_and_end_exclusive(root: Path):
    found = offsets_of(
        root,
        assign='{"orders":[0]}',
        startingTimestamp=str(SOME_TIME_MS + 3),
        endingTimestamp=str(SOME_TIME_MS + 9),
    )
    times = {row["offset"]: row["timestamp"] for row in rows_of(root, subscribe="orders")}
    assert found[0] == min(
        offset for offset, time in times.items() if time.timestamp() * 1000 >= SOME_TIME_MS + 3
    )
    assert found == list(range(found[0], found[-1] + 1))
    assert times[found[-1] + 1].timestamp() * 1000 == SOME_TIME_MS + 9


def test_an_end_in_the_future_is_the_end_of_the_log(root: Path):
    found = offsets_of(root, subscribe="other", endingTimestamp=str(SOME_TIME_MS * 2))
    assert found == [0, 1, 2]


def test_a_start_in_the_future_is_an_error_as_in_spark(root: Path):
    with pytest.raises(ConfigError, match="no record at or after"):
        plan(root, subscribe="other", startingTimestamp=str(SOME_TIME_MS * 2))


@pytest.mark.item("RD-01")
@pytest.mark.parametrize("offset", [0, 4, 26, 1000])
def test_an_offset_that_is_not_there_is_data_loss(root: Path, offset: int):
    said = {"assign": '{"orders":[1]}', "startingOffsets": f'{{"orders":{{"1":{offset}}}}}'}
    with pytest.raises(OffsetOutOfRangeError, match=f"orders-1: offset {offset} is out of range"):
        plan(root, **said)
    found = offsets_of(root, **said, failOnDataLoss="false")
    assert found == (list(range(5, 25)) if offset < 5 else [])


@pytest.mark.parametrize("offset", [5, 25])
def test_the_ends_themselves_are_in_range(root: Path, offset: int):
    found = offsets_of(
        root, assign='{"orders":[1]}', startingOffsets=f'{{"orders":{{"1":{offset}}}}}'
    )
    assert found == list(range(offset, 25))


@pytest.mark.thorough
@pytest.mark.item("RD-01")
@pytest.mark.parametrize("offset", [108, 110, 118])
def test_a_committed_read_between_the_last_stable_offset_and_the_end_finds_nothing(
    tmp_path: Path, offset: int
):
    directory = Golden("broker-dir-unclean").unpack(tmp_path) / "payments.txn-0"
    said = {"startingOffsets": json.dumps({"payments.txn": {"0": offset}})}
    assert offsets_of(directory, **said, **COMMITTED) == []
    beyond = {"startingOffsets": json.dumps({"payments.txn": {"0": 119}})}
    with pytest.raises(OffsetOutOfRangeError, match="offset 119"):
        plan(directory, **beyond, **COMMITTED)


@pytest.mark.thorough
@pytest.mark.item("RD-03")
def test_an_offset_that_compaction_removed_leads_to_the_next_record(tmp_path: Path):
    directory = Golden("broker-dir").unpack(tmp_path) / "compacted-0"
    there = offsets_of(directory)
    removed = sorted(set(range(there[0], there[-1])) - set(there))
    assert removed
    for offset in [0, removed[0], removed[-1]]:
        said = {"startingOffsets": json.dumps({"compacted": {"0": offset}})}
        assert offsets_of(directory, **said) == [other for other in there if other >= offset]


@pytest.mark.item("RD-04")
@pytest.mark.parametrize("codec", Codec)
def test_an_offset_inside_of_a_batch_leaves_out_the_records_before_it(tmp_path: Path, codec):
    batches = some_batches(count=3, records=10, codec=codec)
    directory = write_partition(
        tmp_path / "t-0", [SegmentSpec(base_offset=0, batches=batches)], index_interval_bytes=1
    )
    said = {
        "startingOffsets": '{"t":{"0":14}}',
        "endingOffsets": '{"t":{"0":26}}',
    }
    assert offsets_of(directory, **said) == list(range(14, 26))


def test_records_below_the_log_start_are_gone(root: Path):
    (root / "log-start-offset-checkpoint").write_text("0\n1\norders 0 18\n")
    assert offsets_of(root, assign='{"orders":[0]}') == list(range(18, 25))
    assert offsets_of(root / "orders-0") == list(range(18, 25))


def test_a_partition_directory_can_be_read_by_itself(root: Path):
    rows = rows_of(root / "orders-1")
    assert {(row["topic"], row["partition"]) for row in rows} == {("orders", 1)}


@pytest.mark.thorough
def test_the_clusters_own_log_is_read_only_if_it_is_asked_for(tmp_path: Path):
    root = Golden("broker-dir").unpack(tmp_path)
    topics = {wanted.partition.topic for wanted in plan(root)}
    assert "__cluster_metadata" not in topics
    assert "__consumer_offsets" in topics
    assert rows_of(root, subscribe="__cluster_metadata")


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"subscribe": "orders,nothing"}, "subscribe=nothing: no such topic"),
        ({"assign": '{"orders":[0,7]}'}, "assign=orders-7: no such partition"),
        ({"subscribe": "orders", "startingOffsets": '{"orders":{"0":5}}'}, "orders-1"),
        ({"subscribe": "other", "endingOffsets": '{"other":{"0":1,"9":1}}'}, "other-9"),
    ],
    ids=str,
)
def test_what_is_not_there_is_refused_by_name(root: Path, options, said: str):
    with pytest.raises(ConfigError) as refused:
        plan(root, **options)
    assert said in str(refused.value)


def test_a_path_that_is_not_there_is_refused(tmp_path: Path):
    with pytest.raises(ConfigError, match="no such directory"):
        plan(tmp_path / "nowhere")


def test_an_empty_directory_has_no_ranges(tmp_path: Path):
    assert plan(tmp_path) == []


def test_segments_share_a_range_up_to_a_size(root: Path):
    assert [len(wanted.segments) for wanted in plan(root, subscribe="orders")] == [2, 2]
    wanted = plan(root, subscribe="orders", maxPartitionBytes="1")
    assert [len(part.segments) for part in wanted] == [1, 1, 1, 1]
    assert [part.next_base_offset for part in wanted] == [15, None, 15, None]


def test_segments_that_the_offsets_leave_out_are_not_read(root: Path):
    (root / "orders-0" / "00000000000000000005.log").write_bytes(b"garbage, not read")
    found = offsets_of(
        root,
        assign='{"orders":[0]}',
        startingOffsets='{"orders":{"0":15}}',
    )
    assert found == list(range(15, 25))


def test_a_torn_tail_ends_the_log_and_is_damage_elsewhere(root: Path):
    torn = segment_bytes(some_batches(count=1, base_offset=25))[:-1]
    last = root / "orders-0" / "00000000000000000015.log"
    last.write_bytes(last.read_bytes() + torn)
    assert offsets_of(root, assign='{"orders":[0]}') == list(range(5, 25))
    first = root / "orders-0" / "00000000000000000005.log"
    first.write_bytes(first.read_bytes() + torn)
    with pytest.raises(CorruptRecordError, match=r"00000000000000000005\.log: position"):
        offsets_of(root, assign='{"orders":[0]}')


def test_reading_changes_nothing(root: Path):
    before = read_tree(root / "orders-0")
    rows_of(root, **COMMITTED)
    assert read_tree(root / "orders-0") == before
