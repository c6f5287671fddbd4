"""Index files against those that Kafka wrote, and against the obvious builder."""

import itertools
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from storage_core.errors import CorruptIndexError, IndexFullError, OffsetOverflowError
from storage_core.formats.index_entries import OFFSET_INDEX_ENTRY, TIME_INDEX_ENTRY
from storage_core.index.segment_indexes import IndexBuilder
from tests.kit.decode import decode_segment
from tests.kit.directories import index_files
from tests.kit.golden_data import Golden, Side, goldens

FILE = "00000000000000001000.log"
BASE = 1000
PREALLOCATED = 10 * 1024 * 1024
Batches = list[tuple[int, int, int]]  # last offset, largest timestamp, size

BATCHES = st.lists(
    st.tuples(st.integers(1, 3), st.sampled_from([-1, 5, 6, 7, 8]), st.integers(61, 5000)),
    max_size=30,
).map(
    lambda steps: [
        (BASE - 1 + sum(step for step, _, _ in steps[: i + 1]), timestamp, size)
        for i, (_, timestamp, size) in enumerate(steps)
    ]
)


def added(builder: IndexBuilder, batches: Batches) -> IndexBuilder:
    last_offset, timestamp, size = (
        np.array([batch[i] for batch in batches], np.int64) for i in range(3)
    )
    builder.add(size, last_offset, timestamp)
    return builder


def builder_of(*, interval: int = 4096, index_bytes: int = PREALLOCATED) -> IndexBuilder:
    return IndexBuilder(FILE, BASE, interval_bytes=interval, max_index_bytes=index_bytes)


@pytest.mark.item("IDX-01", "IDX-02", "IDX-05", "IDX-06", "IDX-07")
@given(
    batches=BATCHES,
    interval=st.sampled_from([0, 1, 4096]),
    cuts=st.lists(st.integers(0, 30), max_size=3),
)
def test_files_are_those_of_the_obvious_builder_however_batches_are_chunked(
    batches, interval, cuts
):
    builder = builder_of(interval=interval)
    edges = [0, *sorted(min(cut, len(batches)) for cut in cuts), len(batches)]
    for first, end in itertools.pairwise(edges):
        added(builder, batches[first:end])
    assert builder.size_bytes == sum(size for _, _, size in batches)
    assert builder.finish() == index_files(BASE, batches, index_interval_bytes=interval)


def closed_segments(golden: Golden, into: Path) -> list[Path]:
    """Return the segments that Kafka's cleaner wrote, or that were rolled while it appended."""
    case = golden.case
    if case["operation"] == "clean":
        logs = sorted(golden.unpack(into, Side.AFTER).glob("*.log"))
        return [log for log in logs if int(log.stem) < case["expected"]["next"]]
    return sorted(golden.unpack(into).glob("*.log"))


@pytest.mark.item("IDX-01", "IDX-02", "IDX-05", "IDX-07")
@pytest.mark.parametrize(
    "golden",
    [g for g in goldens("clean-*") if not g.case["expected"].get("nothing_to_clean")]
    + goldens("dump-*"),
    ids=lambda golden: golden.name,
)
def test_files_are_kafkas_byte_for_byte(golden: Golden, tmp_path: Path):
    config = golden.case["config"]
    for log in closed_segments(golden, tmp_path):
        base_offset = int(log.stem)
        builder = IndexBuilder(
            log.name,
            base_offset,
            interval_bytes=config["index.interval.bytes"],
            max_index_bytes=config.get("segment.index.bytes", PREALLOCATED),
        )
        found = [
            (batch.last_offset, batch.header["max_timestamp"], batch.size)
            for batch in decode_segment(log.read_bytes())[0]
        ]
        assert added(builder, found).finish() == (
            log.with_suffix(".index").read_bytes(),
            log.with_suffix(".timeindex").read_bytes(),
        )


def steady(count: int, *, timestamp: int | None = None) -> Batches:
    return [(BASE + i, i if timestamp is None else timestamp, 100) for i in range(count)]


@pytest.mark.item("IDX-08")
@pytest.mark.parametrize("index_bytes", [24, 36, 48])
def test_the_time_index_is_full_with_one_slot_left_for_the_close(index_bytes):
    slots = index_bytes // 12
    with pytest.raises(IndexFullError, match="one kept for the end") as caught:
        added(builder_of(interval=0, index_bytes=index_bytes), steady(20))
    # Batch 0 gets no entry, the entries of batches 1 to slots - 1 fit.
    assert (caught.value.file, caught.value.position) == (FILE, 100 * slots)
    _, times = added(builder_of(interval=0, index_bytes=index_bytes), steady(slots)).finish()
    assert len(times) == 12 * (slots - 1)
    # Not yet offered: the largest timestamp of a batch that no entry followed.
    late = [*steady(slots), (BASE + slots, 99, 0)]
    builder = builder_of(interval=100 * slots, index_bytes=index_bytes)
    assert len(added(builder, late).finish()[1]) == 12


@pytest.mark.item("IDX-08")
@pytest.mark.parametrize("index_bytes", [24, 36, 48])
def test_the_offset_index_takes_as_many_entries_as_it_has_room_for(index_bytes):
    slots = index_bytes // 8
    flat = steady(slots + 2, timestamp=-1)  # so that the time index stays empty
    offsets, _ = added(builder_of(interval=0, index_bytes=index_bytes), flat[:-1]).finish()
    assert len(offsets) == 8 * slots
    with pytest.raises(IndexFullError, match=f"{slots} entries") as caught:
        added(builder_of(interval=0, index_bytes=index_bytes), flat)
    assert caught.value.position == 100 * (slots + 1)


@pytest.mark.parametrize("offset", [BASE - 1, BASE + 2**31])
def test_an_offset_outside_of_the_segments_31_bits_is_refused(offset):
    with pytest.raises(OffsetOverflowError, match=f"offset {offset} .* base offset {BASE}"):
        added(builder_of(), [(offset, 5, 100)])


def test_offsets_that_do_not_rise_are_refused():
    with pytest.raises(CorruptIndexError, match=f"offset {BASE} does not rise"):
        added(builder_of(interval=0), [(BASE, 5, 100), (BASE + 1, 5, 100), (BASE, 5, 100)])


@pytest.mark.item("IDX-09")
@pytest.mark.parametrize(
    ("max_index_bytes", "offset_entries", "time_entries"),
    [(10_485_760, 1_310_720, 873_813), (4_099, 512, 341)],
)
def test_an_index_holds_as_many_entries_as_kafka_would_preallocate_and_no_padding(
    max_index_bytes, offset_entries, time_entries
):
    builder = IndexBuilder("f", 0, interval_bytes=0, max_index_bytes=max_index_bytes)
    # One batch more than entries, for the first gets none; equal times leave the time index free.
    count = offset_entries + 1
    numbers = np.arange(count, dtype=np.int64)
    builder.add(np.full(count, 100), numbers, np.full(count, 5))
    offsets, times = builder.finish()
    assert len(offsets) == offset_entries * OFFSET_INDEX_ENTRY.itemsize
    assert len(times) == TIME_INDEX_ENTRY.itemsize
    fresh = IndexBuilder("f", 0, interval_bytes=0, max_index_bytes=max_index_bytes)
    with pytest.raises(IndexFullError, match=f"{offset_entries} entries"):
        fresh.add(np.full(count + 1, 100), np.arange(count + 1), np.full(count + 1, 5))
    timed = IndexBuilder("f", 0, interval_bytes=0, max_index_bytes=max_index_bytes)
    with pytest.raises(IndexFullError):
        timed.add(np.full(time_entries + 2, 100), *[np.arange(time_entries + 2)] * 2)
