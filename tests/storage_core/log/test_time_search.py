"""From a point in time to an offset, with and without time indexes."""

from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given
from hypothesis import strategies as st

from storage_core.formats.batch_v2 import TimestampType
from storage_core.log.batch_search import ListedSegment
from storage_core.log.committed_view import find_offset_for_time
from storage_core.records.payload import Limits
from storage_core.store import LocalStore
from tests.kit.builders import BatchSpec, RecordSpec, end_txn_marker
from tests.kit.directories import SegmentSpec, write_partition

LIMITS = Limits(max_record_bytes=1 << 20, max_batch_bytes=1 << 20)


def search(directory: Path, target_ms: int, *, log_start: int = 0) -> int | None:
    logs = sorted(directory.glob("*.log"))
    segments = [
        ListedSegment(
            base_offset=int(log.stem),
            size_bytes=log.stat().st_size,
            has_offset_index=log.with_suffix(".index").exists(),
            has_time_index=log.with_suffix(".timeindex").exists(),
        )
        for log in logs
    ]
    return find_offset_for_time(
        LocalStore(directory),
        segments,
        target_ms=target_ms,
        log_start_offset=log_start,
        limits=LIMITS,
    )


def batch(base_offset: int, *timestamps: int) -> BatchSpec:
    return BatchSpec(
        base_offset=base_offset,
        records=tuple(RecordSpec(key=b"k", timestamp=time) for time in timestamps),
    )


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return write_partition(
        tmp_path / "t-0",
        [
            SegmentSpec(base_offset=0, batches=[batch(0, 10, 30, 20), batch(3, 25)]),
            SegmentSpec(base_offset=4, batches=[batch(4, 40), batch(5, 35, 50)]),
            SegmentSpec(base_offset=7, batches=[batch(7, 45)]),
        ],
        index_interval_bytes=1,
    )


@pytest.mark.parametrize(
    ("target_ms", "offset"),
    [(0, 0), (10, 0), (11, 1), (30, 1), (31, 4), (40, 4), (41, 6), (50, 6), (51, None)],
)
def test_the_first_record_at_or_after_a_time_is_found(directory: Path, target_ms, offset):
    assert search(directory, target_ms) == offset


def test_records_below_the_log_start_do_not_count(directory: Path):
    assert search(directory, 11, log_start=2) == 2
    assert search(directory, 11, log_start=5) == 5


def test_the_index_of_the_active_segment_need_not_be_complete(directory: Path):
    (directory / "00000000000000000007.timeindex").write_bytes(bytes(1200))
    (directory / "00000000000000000004.log").write_bytes(b"")
    assert search(directory, 41) == 7


def test_control_batches_are_no_answer(tmp_path: Path):
    marker = end_txn_marker(base_offset=1, producer_id=1, producer_epoch=0, timestamp=90)
    directory = write_partition(
        tmp_path / "t-0", [SegmentSpec(base_offset=0, batches=[batch(0, 10), marker])]
    )
    assert search(directory, 50) is None


def test_log_append_time_counts_where_the_batch_has_it(tmp_path: Path):
    appended = BatchSpec(
        records=(RecordSpec(timestamp=1), RecordSpec(timestamp=2)),
        timestamp_type=TimestampType.LOG_APPEND_TIME,
        max_timestamp=70,
    )
    directory = write_partition(tmp_path / "t-0", [SegmentSpec(base_offset=0, batches=[appended])])
    assert search(directory, 60) == 0


@given(
    parts=st.lists(
        st.lists(st.lists(st.integers(0, 50), min_size=1, max_size=3), min_size=1, max_size=4),
        min_size=1,
        max_size=3,
    ),
    target_ms=st.integers(0, 55),
    has_time_index=st.booleans(),
)
def test_it_is_what_a_linear_search_finds(parts, target_ms: int, has_time_index: bool):
    offset, specs, truth = 0, [], None
    for part in parts:
        batches, base_offset = [], offset
        for timestamps in part:
            batches.append(batch(offset, *timestamps))
            matches = [i for i, time in enumerate(timestamps) if time >= target_ms]
            if truth is None and matches:
                truth = offset + matches[0]
            offset += len(timestamps)
        specs.append(SegmentSpec(base_offset=base_offset, batches=batches))
    with TemporaryDirectory() as folder:
        directory = write_partition(Path(folder) / "t-0", specs, index_interval_bytes=70)
        if not has_time_index:
            for path in directory.glob("*.timeindex"):
                path.unlink()
        assert search(directory, target_ms) == truth
