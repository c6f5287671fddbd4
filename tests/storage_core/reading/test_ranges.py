"""Records as Arrow, column by column; offsets and topics that are asked for."""

import logging
import shutil
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from storage_core import kafka_log
from storage_core.errors import (
    BadBytesError,
    CorruptRecordError,
    InvalidRecordError,
    OffsetsInTierError,
    StorageError,
)
from storage_core.filenames import LOG_START_FILE, TopicPartition
from storage_core.formats.batch_v2 import CRC_AT, Codec, TimestampType
from storage_core.log.batch_search import ListedSegment
from storage_core.reading import ranges
from storage_core.reading.key_history import find_history
from storage_core.reading.planning import find_offsets
from storage_core.reading.ranges import COLUMN_TYPES, ReadRange, read_range
from storage_core.reading.request import Bound, ReadRequest, TopicChoice
from storage_core.records.payload import Limits
from storage_core.store import LocalStore
from tests.kit import damage
from tests.kit.builders import (
    SOME_TIME_MS,
    BatchSpec,
    RecordSpec,
    encode_batch,
    end_txn_marker,
    segment_bytes,
    some_batches,
)
from tests.kit.directories import SegmentSpec, write_partition
from tests.kit.golden_data import GOLDEN, unpack_archive
from tests.kit.legacy import LegacyMessage, LegacySet, encode_entry

LOG = "00000000000000000000.log"
LIMITS = Limits(max_record_bytes=1 << 20, max_batch_bytes=1 << 20)


def range_of(directory: Path, **changes: Any) -> ReadRange:
    segment = ListedSegment(
        base_offset=0,
        size_bytes=(directory / LOG).stat().st_size,
        has_offset_index=False,
        has_time_index=False,
    )
    values = {
        "directory": str(directory),
        "partition": TopicPartition("orders", 3),
        "segments": (segment,),
        "files": {file.name: file for file in LocalStore(directory).list_files()},
        "growing": LOG,
        "next_base_offset": None,
        "start_offset": 0,
        "end_offset": None,
        "is_committed": False,
        "cleaned_to": None,
        "fail_on_data_loss": True,
        "columns": tuple(COLUMN_TYPES),
        "keys": None,
        "is_cut": False,
        "size_bytes": 0,
        "limits": LIMITS,
    }
    return ReadRange(**(values | changes))


def read(directory: Path, data: bytes, **changes: Any) -> list[dict[str, Any]]:
    (directory / LOG).write_bytes(data)
    return [row for b in read_range(range_of(directory, **changes)) for row in b.to_pylist()]


def test_every_column_is_that_of_sparks_kafka_source(tmp_path: Path):
    records = (
        RecordSpec(key=b"k", value=b"v", headers=(("a", b"1"), ("a", None))),
        RecordSpec(key=b"", value=None, timestamp=SOME_TIME_MS - 1),
        RecordSpec(key=None, value=b""),
    )
    first, second, third = read(tmp_path, encode_batch(BatchSpec(base_offset=7, records=records)))
    assert first["headers"] == [{"key": "a", "value": b"1"}, {"key": "a", "value": None}]
    assert second["headers"] is None
    assert [(row["key"], row["value"]) for row in (first, second, third)] == [
        (b"k", b"v"),
        (b"", None),
        (None, b""),
    ]
    assert [row["offset"] for row in (first, second, third)] == [7, 8, 9]
    assert (first["topic"], first["partition"], first["timestampType"]) == ("orders", 3, 0)
    times = [row["timestamp"].timestamp() * 1000 for row in (first, second)]
    assert times == [SOME_TIME_MS, SOME_TIME_MS - 1]


@pytest.mark.item("FMT-05")
def test_the_brokers_time_counts_where_the_batch_has_it(tmp_path: Path):
    batch = BatchSpec(
        records=(RecordSpec(timestamp=1), RecordSpec(timestamp=2)),
        timestamp_type=TimestampType.LOG_APPEND_TIME,
        max_timestamp=SOME_TIME_MS,
    )
    rows = read(tmp_path, encode_batch(batch))
    assert {row["timestamp"].timestamp() * 1000 for row in rows} == {SOME_TIME_MS}
    assert {row["timestampType"] for row in rows} == {1}


def test_times_that_spark_cannot_hold_are_null_and_all_others_exact(tmp_path: Path):
    largest = (2**63 - 1) // 1000
    times = (-1, 0, largest, largest + 1, 2**63 - 1)
    batches = [
        BatchSpec(base_offset=number, records=(RecordSpec(timestamp=time),))
        for number, time in enumerate(times)
    ]
    (tmp_path / LOG).write_bytes(segment_bytes(batches))
    (arrow,) = read_range(range_of(tmp_path, columns=("timestamp",)))
    micros = arrow.column(0).cast(pa.int64()).to_pylist()
    assert micros == [-1000, 0, largest * 1000, None, None]


@pytest.mark.parametrize("codec", Codec)
def test_every_codec_is_read(tmp_path: Path, codec: Codec):
    rows = read(tmp_path, segment_bytes(some_batches(count=3, records=4, codec=codec)))
    assert [row["value"] for row in rows] == [b"value-%d" % number for number in range(12)]


@pytest.mark.parametrize("name", COLUMN_TYPES)
def test_each_column_can_be_read_by_itself(tmp_path: Path, name: str):
    (tmp_path / LOG).write_bytes(segment_bytes(some_batches(count=2, records=2)))
    (arrow,) = read_range(range_of(tmp_path, columns=(name,)))
    assert arrow.schema == pa.schema([(name, COLUMN_TYPES[name])])
    assert arrow.num_rows == 4
    arrow.validate(full=True)


def test_control_records_are_never_handed_out(tmp_path: Path):
    batches = [
        *some_batches(count=1),
        end_txn_marker(base_offset=1, producer_id=1, producer_epoch=0),
        *some_batches(count=1, base_offset=2),
    ]
    assert [row["offset"] for row in read(tmp_path, segment_bytes(batches))] == [0, 2]


def test_offsets_inside_of_batches_bound_the_range(tmp_path: Path):
    data = segment_bytes(some_batches(count=3, records=10))
    rows = read(tmp_path, data, start_offset=8, end_offset=12)
    assert [row["offset"] for row in rows] == [8, 9, 10, 11]


OLD = [
    LegacyMessage(offset=0, value=b"v0", magic=0),
    LegacySet(
        messages=tuple(LegacyMessage(offset=offset, value=b"set") for offset in (1, 4, 7)),
        timestamp_type=TimestampType.LOG_APPEND_TIME,
        timestamp=SOME_TIME_MS,
    ),
    LegacyMessage(offset=8, value=b"v1"),
    LegacySet(messages=tuple(LegacyMessage(offset=offset, magic=0) for offset in (9, 10)), magic=0),
]


@pytest.mark.item("FMT-21", "FMT-22")
def test_old_formats_are_read(tmp_path: Path):
    rows = read(tmp_path, b"".join(map(encode_entry, OLD)))
    assert [row["offset"] for row in rows] == [0, 1, 4, 7, 8, 9, 10]
    # As Spark's own source: no timestamp at all, the producer's, the broker's.
    assert [row["timestampType"] for row in rows] == [-1, 1, 1, 1, 0, -1, -1]
    times = [row["timestamp"].timestamp() * 1000 for row in rows]
    assert times == [-1, *[SOME_TIME_MS] * 4, -1, -1]
    assert {row["headers"] for row in rows} == {None}


@pytest.mark.thorough
@pytest.mark.parametrize("window_bytes", [1, 1 << 20])
def test_any_range_of_old_formats_is_read(tmp_path: Path, monkeypatch, window_bytes: int):
    monkeypatch.setattr(ranges, "_WINDOW_BYTES", window_bytes)
    data = b"".join(map(encode_entry, OLD))
    offsets = [0, 1, 4, 7, 8, 9, 10]
    for start in range(12):
        for end in range(start, 12):
            rows = read(tmp_path, data, start_offset=start, end_offset=end)
            assert [row["offset"] for row in rows] == [o for o in offsets if start <= o < end]


def test_large_batches_come_in_pieces(tmp_path: Path, monkeypatch):
    monkeypatch.setattr(ranges, "_ROWS_AT_A_TIME", 3)
    (tmp_path / LOG).write_bytes(segment_bytes(some_batches(count=1, records=8)))
    sizes = [arrow.num_rows for arrow in read_range(range_of(tmp_path))]
    assert sizes == [3, 3, 2]


def test_an_empty_segment_has_no_rows(tmp_path: Path):
    assert read(tmp_path, b"") == []


GOOD = encode_batch(BatchSpec(records=(RecordSpec(key=b"k", value=b"v"),)))


@pytest.mark.parametrize(
    ("batch", "error"),
    [
        (GOOD[:CRC_AT] + bytes([GOOD[CRC_AT] ^ 1]) + GOOD[CRC_AT + 1 :], CorruptRecordError),
        (damage.with_lying_length(GOOD, 5), CorruptRecordError),
        (damage.with_lying_count(GOOD, 2**31 - 1), InvalidRecordError),
        (damage.bad_record(damage.BadRecord.ENDLESS_LENGTH), InvalidRecordError),
        (damage.decompression_bomb(Codec.GZIP, value_bytes=1 << 22), InvalidRecordError),
    ],
    ids=["wrong CRC", "lying length", "lying count", "endless varint", "bomb"],
)
def test_bad_bytes_are_an_error_with_file_and_position(tmp_path: Path, batch: bytes, error):
    offsets, raised = read_to_damage(tmp_path, GOOD + at(1, GOOD) + at(2, batch) + at(3, GOOD))
    assert type(raised) is error
    where = (raised.file, raised.position, raised.directory)
    assert where == (str(tmp_path / LOG), 2 * len(GOOD), str(tmp_path))
    assert str(raised).startswith(f"{tmp_path / LOG}: position {2 * len(GOOD)}: ")
    assert offsets == [0, 1]


def at(offset: int, batch: bytes) -> bytes:
    """Return a batch at another offset, which no checksum covers."""
    return offset.to_bytes(8, "big") + batch[8:]


def read_to_damage(directory: Path, data: bytes, **changes: Any) -> tuple[list[int], BadBytesError]:
    (directory / LOG).write_bytes(data)
    offsets: list[int] = []
    try:
        for batch in read_range(range_of(directory, **changes)):
            offsets += batch.column("offset").to_pylist()
    except BadBytesError as error:
        return offsets, error
    pytest.fail("nothing was refused")


@pytest.mark.parametrize("window_bytes", [1, 1 << 20])
@pytest.mark.parametrize("is_committed", [False, True])
def test_offsets_that_do_not_rise_are_an_error_behind_those_before(
    tmp_path: Path, monkeypatch, window_bytes: int, is_committed: bool
):
    monkeypatch.setattr(ranges, "_WINDOW_BYTES", window_bytes)
    data = b"".join(at(offset, GOOD) for offset in (5, 6, 6, 7))
    offsets, error = read_to_damage(tmp_path, data, is_committed=is_committed)
    assert offsets == [5, 6]
    assert (error.file, error.position) == (str(tmp_path / LOG), 2 * len(GOOD))
    assert "expected 7 or more, found 6" in str(error)


def test_damage_behind_the_end_of_the_range_is_none_of_its_errors(tmp_path: Path):
    damaged = bytearray(at(2, GOOD))
    damaged[-1] ^= 1
    data = GOOD + at(1, GOOD) + bytes(damaged)
    assert [row["offset"] for row in read(tmp_path, data, end_offset=2)] == [0, 1]
    offsets, _ = read_to_damage(tmp_path, data, end_offset=3)
    assert offsets == [0, 1]


ORDERS = TopicPartition("orders", 0)


def test_a_segment_whose_name_kafka_would_not_write_is_an_error_of_its_file(tmp_path):
    batch = BatchSpec(base_offset=0, records=(RecordSpec(key=b"k", value=b"a"),))
    write_partition(tmp_path / "orders-0", [SegmentSpec(base_offset=0, batches=[batch])])
    request = ReadRequest(
        paths=(str(tmp_path),), choice=TopicChoice(), starting=Bound(), ending=Bound(), columns=()
    )
    assert find_offsets(request, {}, now_ms=SOME_TIME_MS)[ORDERS].end == 1
    log = tmp_path / "orders-0" / "00000000000000000000.log"
    shutil.copy(log, log.with_name("7.log"))
    with pytest.raises(StorageError, match=r"00000000000000000007\.log"):
        find_offsets(request, {}, now_ms=SOME_TIME_MS)


NOW_MS = 1_795_902_000_000
# Local segments of each topic hold 1,251 to 1,499; the log of tiered-0 starts at 151.
LOCAL = [1_251, 1_499, 249]


@pytest.fixture
def disk(tmp_path: Path) -> Path:
    return unpack_archive(GOLDEN / "group-tiered" / "before.tar.gz", tmp_path) / "d1"


def extent(logs: kafka_log.Logs, topic: str, **more: object) -> list[int]:
    offsets = logs.read(topic, columns=["offset"], **more).to_table()["offset"].to_pylist()
    return [min(offsets), max(offsets), len(offsets)]


@pytest.mark.parametrize(
    ("topic", "words"), [("longer", "offsets 0 to 1250"), ("tiered", "offsets 151 to 1250")]
)
@pytest.mark.parametrize("isolation", ["read_uncommitted", "read_committed"])
def test_a_read_from_the_log_start_says_what_lies_in_the_tier(
    disk, topic, words, isolation, caplog
):
    logs = kafka_log.open_logs(disk)
    for start in (None, kafka_log.EARLIEST, 0, 1_250):
        with pytest.raises(OffsetsInTierError, match="to 1250") as raised:
            logs.read(topic, start=start, isolation=isolation)
        assert (words in str(raised.value)) == (start != 1_250)
    with caplog.at_level(logging.WARNING):
        assert extent(logs, topic, isolation=isolation, fail_on_data_loss=False) == LOCAL
    assert words in caplog.text


def test_a_stream_begins_in_the_tier_only_if_it_may_lose_that(disk):
    place = TopicPartition("longer", 0)
    request = ReadRequest(
        paths=(str(disk),),
        choice=TopicChoice(names=frozenset({"longer"})),
        starting=Bound(),
        ending=Bound(),
        columns=("offset",),
    )
    with pytest.raises(OffsetsInTierError, match="offsets 0 to 1250"):
        find_offsets(request, {}, now_ms=NOW_MS)
    # It goes on where it was.
    assert find_offsets(request, {place: 1_300}, now_ms=NOW_MS)[place].end == 1_500
    lossy = replace(request, fail_on_data_loss=False)
    assert find_offsets(lossy, {}, now_ms=NOW_MS)[place].start == 1_251


def test_a_start_in_the_local_log_asks_for_less(disk):
    logs = kafka_log.open_logs(disk)
    assert extent(logs, "longer", start=1_251) == LOCAL
    assert logs.read("longer", start=kafka_log.LATEST).to_table().num_rows == 0
    place = TopicPartition("longer", 0)
    assert extent(logs, "longer", start={place: 1_400}) == [1_400, 1_499, 100]
    times = logs.read("longer", start=1_251, columns=["timestamp"]).to_table()["timestamp"]
    newest, oldest = max(times.to_pylist()), min(times.to_pylist())
    if newest > oldest:
        assert logs.read("longer", start=newest).to_table().num_rows
    with pytest.raises(OffsetsInTierError):
        logs.read("longer", start=datetime(2020, 1, 1, tzinfo=UTC))


def test_a_topic_that_is_not_tiered_is_whole_from_where_it_begins(disk):
    logs = kafka_log.open_logs(disk)
    assert extent(logs, "plain") == LOCAL
    # A line older than the files, as beside a broker that deletes segments right now.
    file = disk / LOG_START_FILE
    lines = file.read_text().splitlines()
    file.write_text("\n".join(["0", "3", *lines[2:], "plain 0 700"]) + "\n")
    assert extent(logs, "plain") == LOCAL


def test_without_a_log_start_the_config_or_the_tiers_records_say_that_there_is_a_tier(disk):
    (disk / LOG_START_FILE).unlink()
    logs = kafka_log.open_logs(disk)
    with pytest.raises(OffsetsInTierError, match=r"offsets 151 to 1250 .* in 11 segments by"):
        logs.read("tiered")
    assert extent(logs, "plain") == LOCAL
    shutil.rmtree(disk / "__cluster_metadata-0")
    with pytest.raises(OffsetsInTierError, match=r"offsets 151 to 1250 .* in 11 segments by"):
        logs.read("tiered")
    assert extent(logs, "plain") == LOCAL
    # Without any of them nothing says it of any topic.
    for folder in disk.glob("__remote_log_metadata-*"):
        shutil.rmtree(folder)
    assert extent(logs, "tiered") == LOCAL


def test_the_metadata_partition_that_lists_the_tiers_segments_may_be_elsewhere(disk):
    for folder in disk.glob("__remote_log_metadata-*"):
        shutil.rmtree(folder)
    logs = kafka_log.open_logs(disk)
    reason = "__remote_log_metadata-[01], which lists its segments, is in none of these"
    with pytest.raises(OffsetsInTierError, match=reason):
        logs.read("tiered")
    # No checkpoint: the config alone says that there is a tier, and nothing where it begins.
    (disk / LOG_START_FILE).unlink()
    with pytest.raises(OffsetsInTierError, match="offsets 0 to 1250"):
        logs.read("tiered")


def test_offsets_that_the_tier_lacks_too_are_named(disk):
    for log in disk.glob("__remote_log_metadata-*/*.log"):
        log.write_bytes(b"")
    reason = "but __remote_log_metadata-[01] has no segment for 151 to 1250"
    with pytest.raises(OffsetsInTierError, match=reason):
        kafka_log.open_logs(disk).read("tiered")


def test_versions_of_a_key_may_lie_in_the_tier(disk):
    (history,) = find_history(str(disk), "longer", [b"none"], now_ms=NOW_MS)
    assert [error["error_class"] for error in history.errors] == ["OffsetsInTierError"]
    (plain,) = find_history(str(disk), "plain", [b"none"], now_ms=NOW_MS)
    assert plain.errors == ()


def test_partitions_have_the_log_start_of_the_checkpoint(disk):
    rows = {row["topic"]: row for row in kafka_log.open_logs(disk).partitions().to_pylist()}
    starts = {
        topic: (row["log_start_offset"], row["local_log_start_offset"])
        for topic, row in rows.items()
    }
    assert starts["longer"] == (0, 1_251)
    assert starts["tiered"] == (151, 1_251)
    assert starts["plain"] == (1_251, None)
