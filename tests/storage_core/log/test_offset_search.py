"""What tests/oracle cannot ask Kafka 4.4 for: offsets before a time, and a leader that lags."""

from pathlib import Path

import pytest

from storage_core.config import CleanerConfig, LogConfig
from storage_core.errors import OffsetNotAvailableError
from storage_core.log.log_loader import load_log
from storage_core.records.payload import Limits
from storage_core.store.local import LocalStore
from tests.kit.builders import BatchSpec, RecordSpec
from tests.kit.directories import SegmentSpec, write_partition
from tests.kit.log_reader import Isolation, LogReader
from tests.kit.offset_queries import OffsetTarget, list_offset, offsets_before

NOW_MS = 1_700_000_000_000
LIMITS = Limits(max_record_bytes=1 << 20, max_batch_bytes=1 << 20)


def batch(base_offset: int, *timestamps: int, **fields: object) -> BatchSpec:
    records = tuple(RecordSpec(key=b"k", timestamp=time) for time in timestamps)
    return BatchSpec(base_offset=base_offset, records=records, **fields)  # type: ignore[arg-type]


# Two segments share the largest timestamp; the batch that has it carries it in the middle.
SEGMENTS = [
    SegmentSpec(base_offset=0, batches=[batch(0, 10, 20, leader_epoch=3)], modified_ms=1_000),
    SegmentSpec(base_offset=2, batches=[batch(2, 15, 90, 30, leader_epoch=3)], modified_ms=2_000),
    SegmentSpec(base_offset=5, batches=[batch(5, 90, leader_epoch=5)], modified_ms=3_000),
]


def reader_of(
    directory: Path,
    segments: list[SegmentSpec] = SEGMENTS,
    *,
    high_watermark: int | None = None,
    log_start: int = 0,
) -> LogReader:
    write_partition(directory, segments, index_interval_bytes=0)
    store = LocalStore(directory)
    log = load_log(
        store,
        config=LogConfig(),
        cleaner=CleanerConfig(),
        now_ms=NOW_MS,
        log_start_checkpoint=log_start,
        high_watermark=high_watermark,
    )
    return LogReader(store, log)


@pytest.mark.item("RD-12")
def test_while_the_high_watermark_lags_behind_the_epoch_no_end_is_told(tmp_path):
    reader = reader_of(tmp_path / "t-0", high_watermark=2)
    level = Isolation.READ_UNCOMMITTED

    def answer(target: int, isolation: Isolation = level, start: int = 5) -> int | None:
        found = list_offset(
            reader, target, isolation=isolation, limits=LIMITS, epoch_start_offset=start
        )
        return None if found is None else found.offset

    for target in (OffsetTarget.LATEST, OffsetTarget.MAX_TIMESTAMP, 25):
        with pytest.raises(OffsetNotAvailableError):
            answer(target)
    assert answer(OffsetTarget.EARLIEST) == 0
    assert answer(11) == 1
    assert answer(OffsetTarget.LATEST, Isolation.LOG_END) == 6
    assert answer(OffsetTarget.LATEST, start=2) == 2
    assert answer(25, start=2) is None


@pytest.mark.item("RD-13")
@pytest.mark.parametrize(
    ("target", "max_count", "expected"),
    [
        pytest.param(OffsetTarget.LATEST, 1, (6,), id="latest"),
        pytest.param(OffsetTarget.LATEST, 9, (6, 5, 2, 1), id="all, newest first"),
        pytest.param(OffsetTarget.EARLIEST, 9, (1,), id="earliest"),
        pytest.param(2_000, 9, (2, 1), id="at a modification time"),
        pytest.param(1_999, 9, (1,), id="just before it"),
        pytest.param(999, 9, (), id="before all"),
        pytest.param(3_000, 2, (5, 2), id="no more than asked for"),
        pytest.param(NOW_MS, 1, (6,), id="now"),
    ],
)
def test_offsets_before_a_time_in_the_old_style(target, max_count, expected, tmp_path):
    reader = reader_of(tmp_path / "t-0", log_start=1)
    found = offsets_before(reader, target, max_count=max_count, now_ms=NOW_MS)
    assert found == expected


@pytest.mark.item("RD-13")
def test_an_empty_active_segment_stands_for_the_log_end(tmp_path):
    segments = [SEGMENTS[0], SegmentSpec(base_offset=2, modified_ms=5_000)]
    reader = reader_of(tmp_path / "t-0", segments)
    assert offsets_before(reader, OffsetTarget.LATEST, max_count=9, now_ms=NOW_MS) == (2, 0)
