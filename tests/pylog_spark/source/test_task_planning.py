"""Ranges of tasks: small ones packed, large segments cut; the records stay the same, each once."""

import random
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pylog_spark.source.options import parse_options
from pylog_spark.source.task_planning import plan_tasks
from storage_core.errors import (
    ConfigError,
    CorruptRecordError,
    MissingSegmentError,
    OffsetsInTierError,
)
from storage_core.formats.batch_v2 import BATCH_LENGTH_AT
from storage_core.formats.index_entries import OFFSET_INDEX_ENTRY
from storage_core.log.batch_search import ListedSegment, find_cut_offsets
from storage_core.reading.ranges import ReadRange, read_range
from storage_core.store import LocalStore
from tests.kit.builders import SOME_TIME_MS, segment_bytes, some_batches
from tests.kit.directories import SegmentSpec, plain_segment, write_partition
from tests.kit.golden_data import GOLDEN, Golden, unpack_archive
from tests.pylog_spark.source.test_ranges import as_consumed, consumed_from

NOW_MS = 1_800_000_000_000
COMMITTED = {"kafka.isolation.level": "read_committed"}
LOG, INDEX = "00000000000000000000.log", "00000000000000000000.index"


def tasks_of(path: Path, **options: str) -> list[tuple[ReadRange, ...]]:
    return plan_tasks(parse_options({"path": str(path), **options}), now_ms=NOW_MS)


def rows_of(path: Path, **options: str) -> list[dict[str, Any]]:
    return [
        row
        for task in tasks_of(path, **options)
        for wanted in task
        for batch in read_range(wanted)
        for row in batch.to_pylist()
    ]


def offsets_of(path: Path, **options: str) -> list[int]:
    return [row["offset"] for row in rows_of(path, **options)]


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return Golden("broker-dir").unpack(tmp_path_factory.mktemp("tasks"))


@pytest.fixture
def one_segment(tmp_path: Path) -> Path:
    """One segment of 300 batches of 2 records, with an entry of its index for each."""
    batches = some_batches(count=300, records=2)
    return write_partition(
        tmp_path / "t-0", [SegmentSpec(base_offset=0, batches=batches)], index_interval_bytes=1
    )


SIZES: list[dict[str, str]] = [
    {},
    {"maxPartitionBytes": "1"},
    {"maxPartitionBytes": "4096"},
    {"maxPartitionBytes": "3m"},
    {"minPartitions": "7"},
    {"minPartitions": "100"},
    {"maxRecordsPerPartition": "1"},
    {"maxRecordsPerPartition": "97"},
    {"maxRecordsPerPartition": "50", "minPartitions": "40", "maxPartitionBytes": "2k"},
]


@pytest.mark.sampled(1)
@pytest.mark.item("RD-07", "RD-08")
@pytest.mark.parametrize("isolation", [{}, COMMITTED], ids=["everything", "committed"])
@pytest.mark.parametrize("size", SIZES, ids=str)
def test_records_are_the_same_however_they_are_packed_and_cut(
    broker: Path, size: dict[str, str], isolation: dict[str, str]
):
    choice = {"subscribePattern": "[^_].*", "includeHeaders": "true", **isolation}
    rows = rows_of(broker, **choice, **size)
    whole = rows_of(broker, **choice, maxPartitionBytes="1t")
    assert rows == whole
    for _, of_partition in groupby(rows, key=lambda row: (row["topic"], row["partition"])):
        offsets = [row["offset"] for row in of_partition]
        assert offsets == sorted(set(offsets))
    if isolation:
        assert as_consumed(rows) == consumed_from("broker-dir")


@pytest.mark.thorough
def test_a_task_has_many_small_partitions(tmp_path: Path):
    for number in range(300):
        write_partition(tmp_path / f"t-{number}", [plain_segment(0, 1)])
    tasks = tasks_of(tmp_path)
    assert len(tasks) == 3  # of 128 MiB, where to open one counts as 1 MiB
    assert sum(map(len, tasks)) == 300
    assert len(tasks_of(tmp_path, maxPartitionBytes="16m")) == 20
    assert len(tasks_of(tmp_path, minPartitions="60")) == 60


def test_a_large_segment_is_cut_into_parts_of_equal_size(one_segment: Path):
    size = (one_segment / LOG).stat().st_size
    tasks = tasks_of(one_segment, maxPartitionBytes=str(size // 4 + 1))
    assert len(tasks) == 4
    counts = [sum(batch.num_rows for batch in read_range(wanted)) for (wanted,) in tasks]
    assert sum(counts) == 600
    assert max(counts) - min(counts) <= 12
    # Before each cut a batch ends.
    assert [wanted.end_offset for (wanted,) in tasks[:-1]] == [
        wanted.start_offset for (wanted,) in tasks[1:]
    ]
    assert all(wanted.start_offset % 2 == 0 for (wanted,) in tasks)


@pytest.mark.parametrize(("start", "end"), [(0, 600), (250, 251), (149, 451), (599, 600)])
def test_pieces_that_the_offsets_leave_out_are_no_tasks(one_segment: Path, start: int, end: int):
    said = {
        "startingOffsets": f'{{"t":{{"0":{start}}}}}',
        "endingOffsets": f'{{"t":{{"0":{end}}}}}',
        "maxPartitionBytes": str((one_segment / LOG).stat().st_size // 6 + 1),
    }
    assert offsets_of(one_segment, **said) == list(range(start, end))
    assert len(tasks_of(one_segment, **said)) == end // 100 + (end % 100 > 0) - start // 100


def test_a_task_has_no_more_records_than_is_said(broker: Path):
    tasks = tasks_of(broker, subscribe="events", maxRecordsPerPartition="100")
    counts = [sum(b.num_rows for wanted in task for b in read_range(wanted)) for task in tasks]
    assert max(counts) <= 100
    assert sum(counts) == 1048


def test_absurdly_small_tasks_of_an_absurd_log_are_refused(tmp_path: Path):
    segments = [plain_segment(base, 1) for base in (0, 1 << 40)]
    write_partition(tmp_path / "t-0", segments)
    with pytest.raises(ConfigError, match="more than 1,000,000 ranges"):
        tasks_of(tmp_path, maxRecordsPerPartition="10")


@pytest.mark.parametrize("name", ["shuffled", "too large", "too small", "zeros", "half"])
def test_a_wrong_index_costs_no_records(one_segment: Path, name: str):
    index = one_segment / INDEX
    entries = np.frombuffer(index.read_bytes(), OFFSET_INDEX_ENTRY).copy()
    match name:
        case "shuffled":
            random.Random(7).shuffle(entries)
        case "too large":
            entries["relative_offset"] += 1_000_000
        case "too small":
            entries["relative_offset"] //= 3
        case "zeros":
            entries = np.append(entries, np.zeros(500, OFFSET_INDEX_ENTRY))
        case "half":
            entries = entries[: len(entries) // 2]
    index.write_bytes(entries.tobytes())
    for size in ("100", "2000", "1g"):
        assert offsets_of(one_segment, maxPartitionBytes=size) == list(range(600))


@pytest.mark.thorough
def test_a_torn_tail_is_the_end_of_a_log_in_pieces_too(one_segment: Path):
    torn = segment_bytes(some_batches(count=1, base_offset=600))[:-1]
    log = one_segment / LOG
    log.write_bytes(log.read_bytes() + torn)
    for size in ("1", "2000", "1g"):
        assert offsets_of(one_segment, maxPartitionBytes=size) == list(range(600))
    # Nor does an index that names offsets behind the end make a piece of it that is damaged.
    entries = np.frombuffer((one_segment / INDEX).read_bytes(), OFFSET_INDEX_ENTRY).copy()
    entries["relative_offset"] += 1_000_000
    (one_segment / INDEX).write_bytes(entries.tobytes())
    assert offsets_of(one_segment, maxPartitionBytes="2000") == list(range(600))


def test_a_batch_that_claims_to_end_behind_the_file_is_not_passed_over(one_segment: Path):
    """Of one piece it is the end of the log, as it is to Kafka; others would begin behind it."""
    log = one_segment / LOG
    data = bytearray(log.read_bytes())
    entries = np.frombuffer((one_segment / INDEX).read_bytes(), OFFSET_INDEX_ENTRY)
    position = int(entries["position"][100])
    data[position + BATCH_LENGTH_AT] = 0x7F
    log.write_bytes(data)
    first_lost = int(entries["relative_offset"][100]) - 1
    assert offsets_of(one_segment, maxPartitionBytes="1g") == list(range(first_lost))
    with pytest.raises(CorruptRecordError, match=f"position {position}: the batch says"):
        offsets_of(one_segment, maxPartitionBytes=str(len(data) // 6))


def test_traces_of_compaction_in_another_piece_explain_a_gap(tmp_path: Path):
    thinned = some_batches(count=100, records=2)
    del thinned[3]
    segments = [
        SegmentSpec(base_offset=0, batches=thinned),
        plain_segment(300, 3),
    ]
    write_partition(tmp_path / "t-0", segments, index_interval_bytes=1)
    expected = [*range(6), *range(8, 200), *range(300, 303)]
    for size in ("500", "1g"):
        assert offsets_of(tmp_path, maxPartitionBytes=size) == expected


def test_a_gap_without_such_traces_is_refused_from_a_piece_too(tmp_path: Path):
    segments = [
        SegmentSpec(base_offset=0, batches=some_batches(count=100, records=2)),
        plain_segment(300, 3),
    ]
    write_partition(tmp_path / "t-0", segments, index_interval_bytes=1)
    for size in ("500", "1g"):
        with pytest.raises(MissingSegmentError, match="offsets 200 to 299"):
            offsets_of(tmp_path, maxPartitionBytes=size)


def test_a_segment_without_an_index_is_not_cut(one_segment: Path):
    (one_segment / INDEX).unlink()
    assert len(tasks_of(one_segment, maxPartitionBytes="100")) == 1
    assert offsets_of(one_segment, maxPartitionBytes="100") == list(range(600))


def test_cuts_stand_behind_the_batches_of_index_entries(one_segment: Path):
    size = (one_segment / LOG).stat().st_size
    segment = ListedSegment(
        base_offset=0, size_bytes=size, has_offset_index=True, has_time_index=False
    )
    store = LocalStore(one_segment)
    assert find_cut_offsets(store, segment, part_bytes=size) == []
    (cut,) = find_cut_offsets(store, segment, part_bytes=size - 1)
    assert abs(cut - 300) <= 6
    every = find_cut_offsets(store, segment, part_bytes=1)
    assert len(every) > 290
    assert every == sorted(set(every))


def test_a_partition_whose_records_are_all_older_is_empty_if_that_is_said(tmp_path: Path):
    for number, first in ((0, 0), (1, 1000)):
        batches = some_batches(count=3, timestamp=SOME_TIME_MS + first)
        write_partition(tmp_path / f"t-{number}", [SegmentSpec(base_offset=0, batches=batches)])
    said = {"startingTimestamp": str(SOME_TIME_MS + 500)}
    with pytest.raises(ConfigError, match="t-0 has no record at or after it"):
        rows_of(tmp_path, **said)
    latest = rows_of(tmp_path, **said, startingOffsetsByTimestampStrategy="latest")
    assert [row["partition"] for row in latest] == [1, 1, 1]
    times = f'{{"t":{{"0":{SOME_TIME_MS},"1":{SOME_TIME_MS + 1000}}}}}'
    assert len(rows_of(tmp_path, startingOffsetsByTimestamp=times)) == 6
    ends = f'{{"t":{{"0":{SOME_TIME_MS},"1":{SOME_TIME_MS + 9999}}}}}'
    assert len(rows_of(tmp_path, endingOffsetsByTimestamp=ends)) == 3
    with pytest.raises(ConfigError, match="t-1: read, but no time is said"):
        rows_of(tmp_path, startingOffsetsByTimestamp='{"t":{"0":7}}')


def test_keys_choose_records(broker: Path):
    everything = rows_of(broker, subscribe="compacted")
    chosen = rows_of(broker, subscribe="compacted", keys="key-30,key-2", keysBase64="a2V5LTU=")
    wanted = {b"key-30", b"key-2", b"key-5"}
    assert chosen == [row for row in everything if row["key"] in wanted]
    assert {row["key"] for row in chosen} == wanted


@pytest.mark.thorough
def test_a_query_says_which_offsets_lie_in_a_tier(tmp_path: Path):
    disk = unpack_archive(GOLDEN / "group-tiered" / "before.tar.gz", tmp_path) / "d1"
    with pytest.raises(OffsetsInTierError, match="offsets 0 to 1250"):
        tasks_of(disk, subscribe="longer")
    with pytest.raises(OffsetsInTierError, match="offsets 700 to 1250"):
        tasks_of(disk, subscribe="longer", startingOffsets='{"longer": {"0": 700}}')
    local = list(range(1_251, 1_500))
    assert offsets_of(disk, subscribe="longer", failOnDataLoss="false") == local
    later = offsets_of(disk, subscribe="longer", startingOffsets='{"longer": {"0": 1300}}')
    assert later == local[49:]
    assert offsets_of(disk, subscribe="plain") == local
