"""Fetches of a log at rest: ranges, bounds, sizes, aborted transactions."""

from pathlib import Path

import pytest

from storage_core.config import CleanerConfig, LogConfig
from storage_core.errors import OffsetOutOfRangeError
from storage_core.formats.control import ControlType
from storage_core.log.log_loader import load_log
from storage_core.store.local import LocalStore
from tests.kit.builders import BatchSpec, RecordSpec, encode_batch, end_txn_marker
from tests.kit.directories import (
    AbortedTxnSpec,
    ProducerSpec,
    SegmentSpec,
    write_partition,
)
from tests.kit.log_reader import Isolation, LogReader, consume

NOW_MS = 1_700_000_000_000
EVERYTHING = 1 << 20


def batch(base_offset: int, count: int = 2, **fields: object) -> BatchSpec:
    records = tuple(RecordSpec(key=b"k%d" % i, value=b"v" * 30) for i in range(count))
    return BatchSpec(base_offset=base_offset, records=records, **fields)  # type: ignore[arg-type]


def in_txn(base_offset: int, producer_id: int = 1, count: int = 2) -> BatchSpec:
    return batch(
        base_offset,
        count,
        producer_id=producer_id,
        producer_epoch=0,
        base_sequence=0,
        is_transactional=True,
    )


def marker(base_offset: int, producer_id: int, kind: ControlType) -> BatchSpec:
    return end_txn_marker(
        base_offset=base_offset, producer_id=producer_id, producer_epoch=0, control_type=kind
    )


SIZE = len(encode_batch(batch(0)))
# Offsets 10 to 13, a hole, 20 to 23 in one segment; 30 to 33 in the next.
PLAIN = [
    SegmentSpec(base_offset=10, batches=[batch(10), batch(12), batch(20), batch(22)]),
    SegmentSpec(base_offset=30, batches=[batch(30), batch(32)]),
]


def reader_of(
    directory: Path,
    segments: list[SegmentSpec],
    *,
    high_watermark: int | None = None,
    log_start: int = 0,
) -> LogReader:
    write_partition(directory, segments, index_interval_bytes=SIZE)
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


@pytest.mark.item("RD-01")
@pytest.mark.parametrize("offset", [-1, 0, 9, 35])
def test_an_offset_outside_of_the_log_is_refused(offset, tmp_path):
    reader = reader_of(tmp_path / "t-0", PLAIN)
    with pytest.raises(OffsetOutOfRangeError):
        reader.read(offset, max_bytes=EVERYTHING)


@pytest.mark.item("RD-01")
def test_the_log_start_bounds_reads_and_the_log_end_has_nothing(tmp_path):
    reader = reader_of(tmp_path / "t-0", PLAIN, log_start=12)
    with pytest.raises(OffsetOutOfRangeError):
        reader.read(11, max_bytes=EVERYTHING)
    assert reader.read(12, max_bytes=EVERYTHING).position == SIZE
    assert reader.read(34, max_bytes=EVERYTHING).size_bytes == 0


@pytest.mark.item("RD-03", "RD-04")
@pytest.mark.parametrize(
    ("offset", "base", "position", "size"),
    [
        pytest.param(10, 10, 0, 4 * SIZE, id="first of a batch"),
        pytest.param(13, 10, SIZE, 3 * SIZE, id="last of a batch"),
        pytest.param(17, 10, 2 * SIZE, 2 * SIZE, id="in a hole"),
        pytest.param(27, 30, 0, 2 * SIZE, id="behind the segment's last batch"),
    ],
)
def test_a_read_begins_with_the_batch_that_holds_or_follows_the_offset(
    offset, base, position, size, tmp_path
):
    reader = reader_of(tmp_path / "t-0", PLAIN)
    fetch = reader.read(offset, max_bytes=EVERYTHING)
    assert (fetch.segment_base_offset, fetch.position, fetch.size_bytes) == (base, position, size)
    assert len(reader.read_bytes(fetch)) == size


@pytest.mark.item("RD-02", "RD-05")
@pytest.mark.parametrize(
    ("high_watermark", "size"),
    [
        pytest.param(12, SIZE, id="between batches"),
        pytest.param(13, SIZE, id="in a batch, which is left out"),
        pytest.param(17, 2 * SIZE, id="in a hole"),
        pytest.param(30, 4 * SIZE, id="in the next segment"),
        pytest.param(34, 4 * SIZE, id="at the end"),
    ],
)
def test_an_uncommitted_read_ends_at_the_high_watermark(high_watermark, size, tmp_path):
    reader = reader_of(tmp_path / "t-0", PLAIN, high_watermark=high_watermark)
    fetch = reader.read(10, max_bytes=EVERYTHING, isolation=Isolation.READ_UNCOMMITTED)
    assert fetch.size_bytes == size
    assert reader.read(10, max_bytes=EVERYTHING, isolation=Isolation.LOG_END).size_bytes == 4 * SIZE
    beyond = reader.read(34, max_bytes=EVERYTHING, isolation=Isolation.READ_UNCOMMITTED)
    assert beyond.size_bytes == 0


@pytest.mark.item("RD-06")
@pytest.mark.parametrize("whole", [True, False], ids=["at least one", "cut"])
@pytest.mark.parametrize("max_bytes", [0, 1, SIZE - 1, SIZE, SIZE + 1])
def test_the_size_may_cut_a_batch_but_not_the_first_one_if_that_is_asked(
    max_bytes, whole, tmp_path
):
    reader = reader_of(tmp_path / "t-0", PLAIN)
    fetch = reader.read(10, max_bytes=max_bytes, min_one_message=whole)
    assert fetch.size_bytes == (max(max_bytes, SIZE) if whole else max_bytes)
    assert fetch.is_first_batch_incomplete is (not whole and 0 < max_bytes < SIZE)


# An aborted transaction over two segments, one that is open from offset 8 on.
TXN = [
    SegmentSpec(base_offset=0, batches=[in_txn(0), batch(2), in_txn(4, producer_id=2)]),
    SegmentSpec(
        base_offset=6,
        batches=[
            marker(6, 1, ControlType.ABORT),
            marker(7, 2, ControlType.COMMIT),
            in_txn(8),
            batch(10),
        ],
        aborted=[
            AbortedTxnSpec(producer_id=1, first_offset=0, last_offset=6, last_stable_offset=4)
        ],
        producers=[
            ProducerSpec(producer_id=1, current_txn_first_offset=0, last_timestamp=NOW_MS),
            ProducerSpec(producer_id=2, current_txn_first_offset=4, last_timestamp=NOW_MS),
        ],
    ),
]


@pytest.mark.item("RD-02", "RD-07")
def test_a_committed_read_ends_at_the_open_transaction_and_names_the_aborted_ones(tmp_path):
    reader = reader_of(tmp_path / "t-0", TXN)
    assert reader.log.last_stable_offset == 8
    level = Isolation.READ_COMMITTED
    first = reader.read(0, max_bytes=EVERYTHING, isolation=level)
    assert [t.producer_id for t in first.aborted] == [1]
    second = reader.read(6, max_bytes=EVERYTHING, isolation=level)
    assert [t.first_offset for t in second.aborted] == [0]
    assert reader.read(7, max_bytes=EVERYTHING, isolation=level).aborted == ()
    assert reader.read(8, max_bytes=EVERYTHING, isolation=level).size_bytes == 0
    assert reader.read(0, max_bytes=EVERYTHING).aborted == ()


@pytest.mark.item("RD-08")
@pytest.mark.parametrize("max_bytes", [1, SIZE, EVERYTHING])
@pytest.mark.parametrize(
    ("isolation", "offsets"),
    [
        (Isolation.READ_COMMITTED, [2, 4]),
        (Isolation.READ_UNCOMMITTED, [0, 2, 4, 8, 10]),
        (Isolation.LOG_END, [0, 2, 4, 8, 10]),
    ],
    ids=lambda value: value.value if isinstance(value, Isolation) else "",
)
def test_a_consumer_sees_what_its_isolation_lets_it(isolation, offsets, max_bytes, tmp_path):
    reader = reader_of(tmp_path / "t-0", TXN)
    seen = [
        offset
        for part in consume(reader, 0, isolation=isolation, max_bytes=max_bytes)
        for offset in part.window.batches.base_offset[part.visible].tolist()
    ]
    assert seen == offsets


@pytest.mark.item("IDX-22")
def test_a_log_that_is_only_loaded_and_listed_opens_no_index(tmp_path):
    reader = reader_of(tmp_path / "t-0", PLAIN)
    assert sum(segment.size_bytes for segment in reader.log.segments) == 6 * SIZE
    assert reader.indexes.opened == 0
    reader.read(31, max_bytes=1)
    assert reader.indexes.opened == 1


def test_a_wrong_index_costs_time_but_no_records(tmp_path):
    reader = reader_of(tmp_path / "t-0", PLAIN)
    index = tmp_path / "t-0" / "00000000000000000010.index"
    index.write_bytes(index.read_bytes()[:-1] + b"\x07")
    assert reader.read(22, max_bytes=EVERYTHING).position == 3 * SIZE
