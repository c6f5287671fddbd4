"""Offsets for times and special targets of a log at rest."""

import os
from pathlib import Path

import pytest

from storage_core.config import CleanerConfig, LogConfig
from storage_core.errors import OffsetNotAvailableError
from storage_core.log.log_loader import load_log
from storage_core.records.payload import Limits
from storage_core.store.local import LocalStore
from tests.kit.builders import BatchSpec, RecordSpec
from tests.kit.directories import ProducerSpec, SegmentSpec, write_partition
from tests.kit.log_reader import Isolation, LogReader
from tests.kit.offset_queries import OffsetTarget, find_offset, list_offset, offsets_before

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


@pytest.mark.item("RD-09")
@pytest.mark.parametrize(
    ("target", "offset"), [(0, 0), (11, 1), (20, 1), (21, 3), (90, 3), (91, None)]
)
def test_the_first_record_of_the_first_segment_that_is_young_enough_is_found(
    target, offset, tmp_path
):
    found = find_offset(reader_of(tmp_path / "t-0"), target, limits=LIMITS)
    assert (None if found is None else found.offset) == offset


@pytest.mark.item("RD-09", "IDX-18")
def test_without_a_time_index_the_file_says_how_young_a_segment_is(tmp_path):
    directory = tmp_path / "t-0"
    reader_of(directory)
    (directory / "00000000000000000000.timeindex").write_bytes(b"")
    os.utime(directory / "00000000000000000000.log", (500, 500))
    store = LocalStore(directory)
    log = load_log(store, config=LogConfig(), cleaner=CleanerConfig(), now_ms=NOW_MS)
    # The first segment claims to be young enough, holds no such record, and ends the search.
    assert find_offset(LogReader(store, log), 50, limits=LIMITS) is None


@pytest.mark.item("RD-10")
@pytest.mark.parametrize(
    ("target", "expected"),
    [
        (OffsetTarget.LATEST, (-1, 6, 5)),
        (OffsetTarget.EARLIEST, (-1, 1, 3)),
        (OffsetTarget.MAX_TIMESTAMP, (90, 3, 3)),
        (OffsetTarget.EARLIEST_LOCAL, (-1, 1, 3)),
        (OffsetTarget.LATEST_TIERED, (-1, -1, -1)),
        (OffsetTarget.EARLIEST_PENDING_UPLOAD, (-1, -1, -1)),
    ],
    ids=lambda value: value.name if isinstance(value, OffsetTarget) else "",
)
def test_special_targets(target, expected, tmp_path):
    reader = reader_of(tmp_path / "t-0", log_start=1)
    assert find_offset(reader, target, limits=LIMITS) == expected


@pytest.mark.item("RD-11")
def test_an_empty_log_has_no_largest_timestamp(tmp_path):
    reader = reader_of(tmp_path / "t-0", [SegmentSpec(base_offset=0)])
    assert find_offset(reader, OffsetTarget.MAX_TIMESTAMP, limits=LIMITS) is None


OPEN_TXN = [
    SegmentSpec(
        base_offset=0,
        batches=[
            batch(0, 10),
            batch(1, 20, producer_id=1, producer_epoch=0, base_sequence=0, is_transactional=True),
            batch(2, 30),
        ],
        producers=[ProducerSpec(producer_id=9)],
    )
]


@pytest.mark.item("RD-10", "RD-12")
@pytest.mark.parametrize(
    ("isolation", "latest", "at_15"),
    [
        pytest.param(Isolation.LOG_END, 3, 1, id="log end"),
        pytest.param(Isolation.READ_UNCOMMITTED, 2, 1, id="read uncommitted"),
        pytest.param(Isolation.READ_COMMITTED, 1, None, id="read committed"),
    ],
)
def test_no_answer_lies_beyond_what_the_isolation_lets_a_client_read(
    isolation, latest, at_15, tmp_path
):
    reader = reader_of(tmp_path / "t-0", OPEN_TXN, high_watermark=2)

    def answer(target: int) -> int | None:
        found = list_offset(reader, target, isolation=isolation, limits=LIMITS)
        return None if found is None else found.offset

    assert answer(OffsetTarget.LATEST) == latest
    assert answer(OffsetTarget.EARLIEST) == 0
    assert answer(15) == at_15
    assert answer(25) == (2 if isolation is Isolation.LOG_END else None)
    assert answer(99) is None


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
