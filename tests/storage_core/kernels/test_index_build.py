"""Index entries batch by batch against lists that grow by Kafka's rules."""

import dataclasses

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from storage_core.kernels import index_build
from storage_core.kernels.index_build import (
    BAD_OFFSET,
    DONE,
    OFFSET_INDEX_FULL,
    OVERFLOW,
    STATE_BYTES_SINCE_ENTRY,
    STATE_LAST_INDEX_OFFSET,
    STATE_MAX_OFFSET_ENTRIES,
    STATE_MAX_TIME_ENTRIES,
    STATE_MAX_TIMESTAMP,
    STATE_MAX_TIMESTAMP_OFFSET,
    STATE_POSITION,
    TIME_INDEX_FULL,
)
from tests.storage_core.kernels.twins import in_both_ways

BASE = 100
MAX_RELATIVE_OFFSET = 2**31 - 1
MANY = 1000


class RuleBrokenError(Exception):
    """The status with which the kernel has to stop, and where."""


@dataclasses.dataclass
class Model:
    """The indexes of a segment: (offset, position) and (timestamp, offset)."""

    interval: int
    max_offsets: int = MANY
    max_times: int = MANY
    offsets: list[tuple[int, int]] = dataclasses.field(default_factory=list)
    times: list[tuple[int, int]] = dataclasses.field(default_factory=list)
    position: int = 0
    since_entry: int = 0
    largest: tuple[int, int] = (-1, BASE)

    def add(self, row: int, size: int, last_offset: int, timestamp: int) -> None:
        if not 0 <= last_offset - BASE <= MAX_RELATIVE_OFFSET:
            raise RuleBrokenError(row, OVERFLOW)
        if timestamp > self.largest[0]:
            self.largest = (timestamp, last_offset)
        if self.since_entry > self.interval:
            if len(self.offsets) >= self.max_offsets:
                raise RuleBrokenError(row, OFFSET_INDEX_FULL)
            if self.offsets and last_offset <= self.offsets[-1][0]:
                raise RuleBrokenError(row, BAD_OFFSET)
            self.offsets.append((last_offset, self.position))
            if len(self.times) >= self.max_times - 1:
                raise RuleBrokenError(row, TIME_INDEX_FULL)
            self.offer_time(row)
            self.since_entry = 0
        self.position += size
        self.since_entry += size

    def offer_time(self, row: int) -> None:
        if self.times and self.largest[1] < self.times[-1][1]:
            raise RuleBrokenError(row, BAD_OFFSET)
        if self.largest[0] > (self.times[-1][0] if self.times else -1):
            self.times.append(self.largest)


def new_state(*, interval: int = 0, max_offsets: int = MANY, max_times: int = MANY) -> np.ndarray:
    state = index_build.new_state(BASE, interval, 0)
    state[[STATE_MAX_OFFSET_ENTRIES, STATE_MAX_TIME_ENTRIES]] = max_offsets, max_times
    return state


def added(
    add_batches,
    state: np.ndarray,
    batches: list[tuple[int, int, int]],
) -> tuple[list[tuple[int, int]], list[tuple[int, int]], int, int]:
    """Return (offset entries, time entries, row, status); batches are (size, last offset, time)."""
    columns = [np.array([batch[i] for batch in batches], np.int64) for i in range(3)]
    before = state[[index_build.STATE_OFFSET_ENTRIES, index_build.STATE_TIME_ENTRIES]].tolist()
    offsets, times = (np.empty((len(batches) + 1, 2), np.int64) for _ in range(2))
    row, status = add_batches(state, *columns, offsets, times)
    after = state[[index_build.STATE_OFFSET_ENTRIES, index_build.STATE_TIME_ENTRIES]].tolist()
    new_offsets = [tuple(entry) for entry in offsets[: after[0] - before[0]].tolist()]
    new_times = [tuple(entry) for entry in times[: after[1] - before[1]].tolist()]
    return new_offsets, new_times, row, status


BATCHES = st.lists(
    st.tuples(st.integers(61, 130), st.integers(0, 3), st.sampled_from([-1, 5, 6, 7, 8, 9])),
    max_size=40,
).map(
    lambda steps: [
        (size, BASE + sum(step for _, step, _ in steps[: i + 1]), timestamp)
        for i, (size, _, timestamp) in enumerate(steps)
    ]
)


@pytest.mark.item("IDX-05", "IDX-06", "IDX-08")
@in_both_ways(add_batches=index_build.add_batches, offer_time_entry=index_build.offer_time_entry)
@given(
    batches=BATCHES,
    interval=st.sampled_from([0, 1, 60, 61, 130, 131, 260, 4096]),
    limits=st.sampled_from([(MANY, MANY), (3, MANY), (MANY, 3), (3, 2), (0, MANY), (MANY, 1)]),
    cut=st.integers(0, 40),
)
def test_entries_follow_the_rules_however_batches_are_chunked(
    add_batches, offer_time_entry, batches, interval, limits, cut
):
    model = Model(interval, *limits)
    expected = (len(batches), DONE)
    try:
        for row, batch in enumerate(batches):
            model.add(row, *batch)
    except RuleBrokenError as broken:
        expected = broken.args
    state = new_state(interval=interval, max_offsets=limits[0], max_times=limits[1])
    offsets, times, first = [], [], 0
    row, status = 0, DONE
    for part in (batches[:cut], batches[cut:]):
        new_offsets, new_times, row, status = added(add_batches, state, part)
        offsets += new_offsets
        times += new_times
        row += first
        first += len(part)
        if status != DONE:
            break
    assert (row, status) == expected
    assert (offsets, times) == (model.offsets, model.times)
    if status == DONE:
        assert state[STATE_POSITION] == sum(size for size, _, _ in batches)
        last = np.empty((1, 2), np.int64)
        count = len(times)
        assert offer_time_entry(state, last, count, True) == DONE
        model.offer_time(row)
        added_last = state[index_build.STATE_TIME_ENTRIES] - count
        assert times + [tuple(entry) for entry in last[:added_last].tolist()] == model.times


def steady(count: int, *, size: int = 100, timestamps: list[int] | None = None) -> list:
    times = timestamps or list(range(1, count + 1))
    return [(size, BASE + i, times[i]) for i in range(count)]


@pytest.mark.item("IDX-05")
@in_both_ways(add_batches=index_build.add_batches)
@pytest.mark.parametrize(
    ("interval", "indexed"),
    [(0, [1, 2, 3, 4, 5]), (1, [1, 2, 3, 4, 5]), (99, [1, 2, 3, 4, 5]), (100, [2, 4]), (4096, [])],
    ids=lambda value: f"interval {value}" if isinstance(value, int) else "",
)
def test_an_entry_needs_more_bytes_than_the_interval_before_it(add_batches, interval, indexed):
    offsets, *_ = added(add_batches, new_state(interval=interval), steady(6))
    assert offsets == [(BASE + i, 100 * i) for i in indexed]


@pytest.mark.item("IDX-03")
@in_both_ways(add_batches=index_build.add_batches)
def test_a_time_entry_names_the_last_offset_of_the_newest_batch(add_batches):
    # Offsets 0..9 with the newest record first; its batch ends at 9.
    batches = [(100, BASE + 9, 77), (100, BASE + 19, 50), (100, BASE + 29, 60)]
    offsets, times, *_ = added(add_batches, new_state(), batches)
    assert offsets == [(BASE + 19, 100), (BASE + 29, 200)]
    assert times == [(77, BASE + 9)]


@pytest.mark.item("IDX-06")
@in_both_ways(add_batches=index_build.add_batches)
def test_a_timestamp_that_is_not_larger_gets_no_entry(add_batches):
    batches = steady(7, timestamps=[5, 5, 5, 9, 8, 9, 10])
    _, times, *_ = added(add_batches, new_state(), batches)
    assert times == [(5, BASE), (9, BASE + 3), (10, BASE + 6)]


@in_both_ways(add_batches=index_build.add_batches)
def test_batches_without_timestamps_get_no_time_entries(add_batches):
    offsets, times, *_ = added(add_batches, new_state(), steady(4, timestamps=[-1] * 4))
    assert (len(offsets), times) == (3, [])


@pytest.mark.item("IDX-06")
@in_both_ways(offer_time_entry=index_build.offer_time_entry)
def test_a_smaller_offset_is_an_error(offer_time_entry):
    entries = np.empty((2, 2), np.int64)
    state = new_state()
    state[[STATE_MAX_TIMESTAMP, STATE_MAX_TIMESTAMP_OFFSET]] = 5, BASE + 9
    assert offer_time_entry(state, entries, 0, False) == DONE
    state[[STATE_MAX_TIMESTAMP, STATE_MAX_TIMESTAMP_OFFSET]] = 6, BASE + 8
    assert offer_time_entry(state, entries, 0, False) == BAD_OFFSET


@pytest.mark.item("IDX-08")
@in_both_ways(add_batches=index_build.add_batches, offer_time_entry=index_build.offer_time_entry)
@pytest.mark.parametrize("index_bytes", [12, 24, 36, 48])
def test_a_full_index_stops_and_the_time_index_keeps_one_slot_for_the_end(
    add_batches, offer_time_entry, index_bytes
):
    max_offsets, max_times = index_bytes // 8, index_bytes // 12
    state = index_build.new_state(BASE, 0, index_bytes)
    offsets, times, row, status = added(add_batches, state, steady(20))
    # The time index is the smaller one, and its last slot is not for it.
    assert (status, len(times), row) == (TIME_INDEX_FULL, max_times - 1, max_times)
    last = np.empty((1, 2), np.int64)
    assert offer_time_entry(state, last, max_times - 1, False) == TIME_INDEX_FULL
    assert offer_time_entry(state, last, max_times - 1, True) == DONE
    assert last.tolist() == [[max_times + 1, BASE + max_times]]
    # With timestamps that do not rise, the offset index fills up.
    flat = steady(20, timestamps=[7] * 20)
    offsets, times, row, status = added(add_batches, new_state(max_offsets=max_offsets), flat)
    assert (status, len(offsets), row) == (OFFSET_INDEX_FULL, max_offsets, max_offsets + 1)
    assert times == [(7, BASE)]


@pytest.mark.item("IDX-01")
@in_both_ways(add_batches=index_build.add_batches)
@pytest.mark.parametrize(
    ("relative", "status"),
    [(2**31 - 1, DONE), (2**31, OVERFLOW), (-1, OVERFLOW), (-(2**40), OVERFLOW)],
)
def test_an_offset_has_31_bits_above_the_base(add_batches, relative, status):
    batches = [(100, BASE, 1), (100, BASE + relative, 2)]
    _, _, row, found = added(add_batches, new_state(), batches)
    assert (row, found) == ((2, DONE) if status == DONE else (1, OVERFLOW))


@pytest.mark.item("IDX-01")
@in_both_ways(add_batches=index_build.add_batches)
def test_offsets_of_the_index_have_to_rise(add_batches):
    batches = [(100, BASE, 1), (100, BASE + 5, 2), (100, BASE + 5, 3)]
    state = new_state()
    assert added(add_batches, state, batches)[2:] == (2, BAD_OFFSET)
    assert state[STATE_LAST_INDEX_OFFSET] == BASE + 5
    assert state[STATE_BYTES_SINCE_ENTRY] == 100
