"""Logs of which no round is due, decided as arrays: what is said is what is said of each."""

from dataclasses import replace

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from storage_core.config import LogConfig
from storage_core.maintenance.compaction.candidates import MAX_LAG_MS, CleanRequest, choose_range
from storage_core.maintenance.compaction.not_due import find_logs_not_due
from storage_core.maintenance.listings import NO_END, Listings
from storage_core.maintenance.partition_state import ObservedSegment, PartitionState

NOW = 1_700_000_000_000
offsets = st.integers(0, 60)
sizes = st.sampled_from([0, 1, 50, 100, 2**31 - 1])
ratios = st.sampled_from([0.0, 0.25, 0.5, 2 / 3, 1.0])


@st.composite
def states(draw):
    """A log without open transactions, as a load of it is told."""
    bases = sorted(draw(st.sets(offsets, min_size=1, max_size=5)))
    segments = tuple(
        ObservedSegment(
            base_offset=base,
            size_bytes=draw(sizes),
            modified_ms=NOW,
            max_timestamp=NOW - draw(st.integers(0, 20)),
            first_timestamp=NOW - draw(st.integers(0, 20)),
        )
        for base in bases
    )
    end = bases[-1] + draw(st.integers(0, 10))
    start = max(bases[0], draw(st.integers(0, end)))
    mark = draw(st.none() | offsets)
    watermark = end if mark is None else min(max(mark, start), end)
    state = PartitionState(
        location="t-0",
        segments=segments,
        log_start_offset=start,
        high_watermark=watermark,
        log_end=end,
        stable_end=watermark,
    )
    return state, mark


lags = st.sampled_from([(0, MAX_LAG_MS), (0, MAX_LAG_MS), (10, MAX_LAG_MS), (0, 10)])
cases = st.tuples(states(), st.none() | st.integers(-2, 75), ratios, lags)


@given(st.lists(cases, min_size=1, max_size=6))
def test_what_is_not_due_is_not_due_of_each(cases):
    counts = np.array([len(state.segments) for (state, _), *_ in cases])
    segments = [segment for (state, _), *_ in cases for segment in state.segments]
    cleaned = [at for _, at, *_ in cases]
    marks = [mark for (_, mark), *_ in cases]
    logs = find_logs_not_due(
        Listings(
            places=np.arange(len(cases)),
            starts=np.cumsum(counts) - counts,
            base_offsets=np.array([segment.base_offset for segment in segments]),
            sizes=np.array([segment.size_bytes for segment in segments]),
            times_ms=np.array([segment.modified_ms for segment in segments]),
            oldest_timestamps=np.zeros(len(cases), np.int64),
            has_age=np.zeros(len(cases), np.bool_),
            log_ends=np.array([state.log_end_offset for (state, _), *_ in cases]),
        ),
        least_ratios=np.array([ratio for *_, ratio, _ in cases]),
        has_lag=np.array([lag != (0, MAX_LAG_MS) for *_, lag in cases]),
        log_start_checkpoints=np.array([state.log_start_offset for (state, _), *_ in cases]),
        cleaner_checkpoints=np.array([at or 0 for at in cleaned]),
        has_cleaner_checkpoint=np.array([at is not None for at in cleaned]),
        high_watermarks=np.array([mark or 0 for mark in marks]),
        has_watermark=np.array([mark is not None for mark in marks]),
    )
    for n, ((state, _), at, ratio, (least, most)) in enumerate(cases):
        config = replace(
            LogConfig.from_topic_overrides({"cleanup.policy": "compact"}),
            min_cleanable_dirty_ratio=ratio,
            min_compaction_lag_ms=least,
            max_compaction_lag_ms=most,
        )
        wanted = choose_range(state, config, CleanRequest(now_ms=NOW, cleaner_checkpoint=at))
        asks_ages = (least, most) != (0, MAX_LAG_MS)
        asks_ages &= wanted.first_dirty_offset < state.active_segment.base_offset
        assert logs.is_sure[n] == (not wanted.is_due and not asks_ages)
        if logs.is_sure[n]:
            assert wanted.max_compaction_delay_ms == 0
            assert logs.first_dirty_offsets[n] == wanted.first_dirty_offset
            assert logs.first_uncleanable_offsets[n] == wanted.first_uncleanable_offset
            assert logs.clean_bytes[n] == wanted.clean_bytes
            assert logs.cleanable_bytes[n] == wanted.cleanable_bytes
            assert logs.cleanable_ratios[n] == wanted.cleanable_ratio
            assert logs.has_invalid_checkpoint[n] == wanted.checkpoint_is_invalid


def test_of_a_log_without_a_known_end_nothing_is_said():
    one = np.array([0])
    logs = find_logs_not_due(
        Listings(
            places=one,
            starts=one,
            base_offsets=one,
            sizes=one,
            times_ms=one,
            oldest_timestamps=one,
            has_age=one > 0,
            log_ends=np.array([NO_END]),
        ),
        least_ratios=np.array([0.5]),
        has_lag=one > 0,
        log_start_checkpoints=one,
        cleaner_checkpoints=one,
        has_cleaner_checkpoint=one > 0,
        high_watermarks=one,
        has_watermark=one > 0,
    )
    assert not logs.is_sure[0]
