"""Where to begin reading a segment: by the index if it is right, and right if it is not."""

from pathlib import Path

import pytest

from storage_core.log.batch_search import ListedSegment, find_end_offset, find_start_position
from storage_core.store import LocalStore
from tests.kit.builders import segment_bytes, some_batches
from tests.kit.directories import SegmentSpec, write_partition

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
