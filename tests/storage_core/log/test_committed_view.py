"""What is aborted and stable, where a read begins, and from a time to an offset."""

from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given
from hypothesis import strategies as st

from storage_core.errors import CorruptRecordError
from storage_core.formats.batch_v2 import TimestampType
from storage_core.log.batch_search import ListedSegment, find_end_offset, find_start_position
from storage_core.log.committed_view import (
    find_offset_for_time,
    load_committed_view,
    scan_committed_view,
)
from storage_core.records.payload import Limits
from storage_core.store import LocalStore
from tests.kit.builders import BatchSpec, RecordSpec, end_txn_marker, segment_bytes, some_batches
from tests.kit.directories import ProducerSpec, SegmentSpec, write_partition
from tests.kit.golden_data import Golden
from tests.kit.transaction_logs import TransactionLog, transaction_logs

NOW_MS = 1_700_000_000_000


@pytest.mark.item("RD-07")
@given(log=transaction_logs())
def test_indexes_and_headers_tell_the_same(log: TransactionLog):
    with TemporaryDirectory() as folder:
        whole = LocalStore(log.write(Path(folder) / "a-0", with_companions=True))
        bare = LocalStore(log.write(Path(folder) / "b-0", with_companions=False))
        by_index = load_committed_view(whole, now_ms=NOW_MS)
        by_headers = load_committed_view(bare, now_ms=NOW_MS)
    assert by_headers.last_stable_offset == log.last_stable_offset
    assert by_index.last_stable_offset == log.last_stable_offset
    for first in range(0, log.end_offset, 3):
        for end in range(first, log.end_offset, 4):
            aborted = by_headers.aborted_between(first, end)
            assert set(by_index.aborted_between(first, end)) == set(aborted)


@pytest.mark.item("RD-07")
@given(log=transaction_logs())
def test_between_two_offsets_stand_the_transactions_that_reach_in(log: TransactionLog):
    everything = {aborted for segment in log.segments for aborted in segment.aborted}
    with TemporaryDirectory() as folder:
        store = LocalStore(log.write(Path(folder) / "a-0", with_companions=True))
        view = load_committed_view(store, now_ms=NOW_MS)
    for first in range(log.end_offset):
        found = {(a.producer_id, a.first_offset) for a in view.aborted_between(first, first + 2)}
        reaching = {
            (a.producer_id, a.first_offset)
            for a in everything
            if a.last_offset >= first and a.first_offset < first + 2
        }
        assert found == reaching


@pytest.mark.parametrize("is_index_there", [True, False])
def test_the_markers_tell_what_aborted_whatever_became_of_the_indexes(tmp_path, is_index_there):
    directory = Golden("broker-dir").unpack(tmp_path) / "payments.txn-0"
    store = LocalStore(directory)
    expected = load_committed_view(store, now_ms=NOW_MS)
    assert expected.aborted_between(0, 200)
    if not is_index_there:
        (directory / "00000000000000000000.index").unlink()
    (directory / "00000000000000000000.txnindex").unlink()
    assert load_committed_view(store, now_ms=NOW_MS) == expected


def test_the_log_start_bounds_what_is_stable(tmp_path: Path):
    directory = write_partition(
        tmp_path / "t-0",
        [
            SegmentSpec(base_offset=0, batches=some_batches(count=4)),
            SegmentSpec(
                base_offset=4,
                batches=some_batches(count=1, base_offset=4),
                producers=[ProducerSpec(producer_id=1, current_txn_first_offset=0)],
            ),
        ],
    )
    view = load_committed_view(LocalStore(directory), now_ms=NOW_MS, log_start_checkpoint=2)
    assert view.last_stable_offset == 2


def test_a_log_without_transactions_is_stable_to_its_end(tmp_path: Path):
    batches = some_batches(count=3, records=2)
    directory = write_partition(tmp_path / "t-0", [SegmentSpec(base_offset=0, batches=batches)])
    view = scan_committed_view(LocalStore(directory))
    assert (view.last_stable_offset, view.aborted_between(0, 6)) == (6, [])


def test_damage_to_the_batches_themselves_is_an_error(tmp_path: Path):
    batches = some_batches(count=3)
    directory = write_partition(tmp_path / "t-0", [SegmentSpec(base_offset=0, batches=batches)])
    log = directory / "00000000000000000000.log"
    # Zeros alone would be the end of the log.
    log.write_bytes(log.read_bytes() + bytes(99) + b"\1")
    with pytest.raises(CorruptRecordError):
        load_committed_view(LocalStore(directory), now_ms=NOW_MS)


BATCHES = some_batches(count=20, records=2, base_offset=100)
BATCH_BYTES = len(segment_bytes(BATCHES[:1]))


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return write_partition(
        tmp_path / "t-0",
        [SegmentSpec(base_offset=100, batches=BATCHES)],
        index_interval_bytes=3 * BATCH_BYTES,
    )


def listed(directory: Path, *, has_offset_index: bool = True) -> ListedSegment:
    return ListedSegment(
        base_offset=100,
        size_bytes=(directory / "00000000000000000100.log").stat().st_size,
        has_offset_index=has_offset_index,
        has_time_index=True,
    )


@pytest.mark.parametrize("offset", [0, 100, 101, 107, 120, 139, 140, 10_000])
def test_no_batch_that_reaches_the_offset_is_missed(directory: Path, offset: int):
    position = find_start_position(LocalStore(directory), listed(directory), offset)
    skipped, rest = divmod(position, BATCH_BYTES)
    assert rest == 0
    assert 100 + 2 * skipped <= max(offset, 100)


def test_the_index_spares_reading_what_lies_before(directory: Path):
    assert find_start_position(LocalStore(directory), listed(directory), 139) > 12 * BATCH_BYTES


def test_without_an_index_reading_begins_at_the_start(directory: Path):
    segment = listed(directory, has_offset_index=False)
    assert find_start_position(LocalStore(directory), segment, 139) == 0


@pytest.mark.parametrize(
    "index",
    [
        b"",
        b"\0\0",
        b"\0\0\0\x04\0\0\0\x01",  # not where a batch begins
        b"\0\0\0\x04\x7f\xff\xff\xff",  # past the end
        b"\0\0\0\x04\xff\xff\xff\xff",  # before the start
        (8).to_bytes(4, "big") + (10 * BATCH_BYTES).to_bytes(4, "big"),  # a batch of later offsets
        bytes(4096),  # preallocated
    ],
    ids=["empty", "ragged", "astray", "past the end", "negative", "too far", "zeros"],
)
def test_a_wrong_index_costs_time_and_never_records(directory: Path, index: bytes):
    (directory / "00000000000000000100.index").write_bytes(index)
    assert find_start_position(LocalStore(directory), listed(directory), 109) == 0


def test_the_end_is_found_behind_the_last_index_entry(directory: Path):
    assert find_end_offset(LocalStore(directory), listed(directory)) == 140


def test_a_torn_tail_does_not_count(directory: Path):
    log = directory / "00000000000000000100.log"
    log.write_bytes(log.read_bytes()[:-1])
    assert find_end_offset(LocalStore(directory), listed(directory)) == 138


def test_what_was_appended_after_the_listing_does_not_count(directory: Path):
    segment = listed(directory)
    log = directory / "00000000000000000100.log"
    log.write_bytes(log.read_bytes() + segment_bytes(some_batches(count=1, base_offset=140)))
    assert find_end_offset(LocalStore(directory), segment) == 140


def test_an_empty_segment_ends_where_it_begins(tmp_path: Path):
    directory = write_partition(tmp_path / "t-0", [SegmentSpec(base_offset=7)])
    segment = ListedSegment(base_offset=7, size_bytes=0, has_offset_index=True, has_time_index=True)
    assert find_end_offset(LocalStore(directory), segment) == 7


LIMITS = Limits(max_record_bytes=1 << 20, max_batch_bytes=1 << 20)


def search(timed: Path, target_ms: int, *, log_start: int = 0) -> int | None:
    logs = sorted(timed.glob("*.log"))
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
        LocalStore(timed),
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
def timed(tmp_path: Path) -> Path:
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
def test_the_first_record_at_or_after_a_time_is_found(timed: Path, target_ms, offset):
    assert search(timed, target_ms) == offset


def test_records_below_the_log_start_do_not_count(timed: Path):
    assert search(timed, 11, log_start=2) == 2
    assert search(timed, 11, log_start=5) == 5


def test_the_index_of_the_active_segment_need_not_be_complete(timed: Path):
    (timed / "00000000000000000007.timeindex").write_bytes(bytes(1200))
    (timed / "00000000000000000004.log").write_bytes(b"")
    assert search(timed, 41) == 7


def test_control_batches_are_no_answer(tmp_path: Path):
    marker = end_txn_marker(base_offset=1, producer_id=1, producer_epoch=0, timestamp=90)
    timed = write_partition(
        tmp_path / "t-0", [SegmentSpec(base_offset=0, batches=[batch(0, 10), marker])]
    )
    assert search(timed, 50) is None


def test_log_append_time_counts_where_the_batch_has_it(tmp_path: Path):
    appended = BatchSpec(
        records=(RecordSpec(timestamp=1), RecordSpec(timestamp=2)),
        timestamp_type=TimestampType.LOG_APPEND_TIME,
        max_timestamp=70,
    )
    timed = write_partition(tmp_path / "t-0", [SegmentSpec(base_offset=0, batches=[appended])])
    assert search(timed, 60) == 0


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
        timed = write_partition(Path(folder) / "t-0", specs, index_interval_bytes=70)
        if not has_time_index:
            for path in timed.glob("*.timeindex"):
                path.unlink()
        assert search(timed, target_ms) == truth
