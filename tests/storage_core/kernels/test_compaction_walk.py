"""The choice of ranges over logs in arrays, against Kafka's predicates one by one."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from storage_core.kernels import compaction_walk as walk
from tests.storage_core.kernels.twins import in_both_ways

NOW = 1000
MAX = walk.LARGEST

offsets = st.integers(0, 60)
ages = st.integers(NOW - 30, NOW + 5) | st.sampled_from([walk.NONE, MAX, -3])
starts = st.integers(-1, 1) | st.integers(NOW - 30, NOW + 5) | st.sampled_from([walk.NONE, MAX])
columns = {
    walk.LOG_START_OFFSET: offsets,
    walk.LOG_END_OFFSET: offsets | st.just(walk.NONE),
    walk.LAST_STABLE_OFFSET: offsets | st.just(walk.NONE),
    walk.CLEANER_CHECKPOINT: st.integers(-2, 75) | st.just(walk.NONE),
    walk.MIN_LAG_MS: st.sampled_from([0, 0, 10, MAX]),
    walk.MAX_LAG_MS: st.sampled_from([MAX, MAX, 10, 1]),
    walk.IS_COMPACTED: st.sampled_from([1, 1, 0]),
    walk.REQUESTED_START: st.just(walk.NONE) | offsets,
    walk.REQUESTED_END: st.just(MAX) | offsets,
}
ratios = st.sampled_from([0.0, 0.25, 0.5, 2 / 3, 1.0])


@st.composite
def logs(draw):
    """(segments, log, least ratio): four numbers each, and columns by number."""
    bases = sorted(draw(st.sets(offsets, min_size=1, max_size=5)))
    segments = [
        (base, draw(st.sampled_from([0, 1, 50, 100, 2**31 - 1])), draw(ages), draw(starts))
        for base in bases
    ]
    return segments, {column: draw(values) for column, values in columns.items()}, draw(ratios)


def walked(walk_compaction, cases, now_ms=NOW) -> list[list[int]]:
    """The answers of a call, a list a log."""
    table = np.zeros((walk.LOG_COLUMNS, len(cases)), np.int64)
    counts = [len(segments) for segments, *_ in cases]
    for number, (_, log, _) in enumerate(cases):
        table[walk.FIRST_SEGMENT, number] = sum(counts[:number])
        table[walk.SEGMENT_COUNT, number] = counts[number]
        table[list(log), number] = list(log.values())
    table[walk.LEAST_RATIO] = np.array([ratio for *_, ratio in cases], np.float64).view(np.int64)
    segments = [segment for each, *_ in cases for segment in each]
    answers = np.full((walk.ANSWER_COLUMNS, len(cases)), 99, np.int64)
    walk_compaction(
        np.array(segments, np.int64).reshape(-1, walk.SEGMENT_COLUMNS).T.copy(),
        table,
        now_ms,
        answers,
    )
    return answers.T.tolist()


def between(segments, first, end):
    """The segments from the one of an offset to another one."""
    if first >= end:
        return []
    floor = max((base for base, *_ in segments if base <= first), default=0)
    return [segment for segment in segments if floor <= segment[0] < end]


def expected(segments, log, least_ratio):  # noqa: C901, PLR0912  # Kafka's predicates in a row
    """What the walk should answer, column by column; of a log that lacks a fact only which."""
    active = segments[-1][0]

    def base_of(offset: int) -> int:
        closed = between(segments, offset, active)
        return closed[0][0] if closed else active

    def lacks(fact: int, segment: tuple[int, ...] = segments[-1]) -> dict[int, int]:
        return {walk.MISSING: fact, walk.MISSING_OF: segments.index(segment)}

    is_requested = log[walk.REQUESTED_START] != walk.NONE
    start, checkpoint = log[walk.LOG_START_OFFSET], log[walk.CLEANER_CHECKPOINT]
    is_invalid, young, oldest, verdict = False, walk.NONE, MAX, walk.DUE
    if is_requested:
        first_dirty, bound = log[walk.REQUESTED_START], log[walk.REQUESTED_END]
    else:
        if checkpoint >= start and log[walk.LOG_END_OFFSET] == walk.NONE:
            return lacks(walk.LOG_END)
        is_valid = start <= checkpoint <= log[walk.LOG_END_OFFSET]
        is_invalid = checkpoint != walk.NONE and not is_valid
        first_dirty = checkpoint if is_valid else start
        bound = log[walk.LAST_STABLE_OFFSET]
        if bound == walk.NONE:
            return lacks(walk.STABLE_OFFSET)
    closed = between(segments, first_dirty, active)
    if not is_requested:
        for segment in closed if log[walk.MIN_LAG_MS] else ():
            if segment[2] == walk.NONE:
                return lacks(walk.TIMESTAMP, segment)
            if segment[2] > NOW - log[walk.MIN_LAG_MS]:
                young = segment[0]
                bound = min(bound, young)
                break
        bound = max(first_dirty, bound)
    end = base_of(bound)
    clean = sum(size for base, size, *_ in segments if base < first_dirty)
    cleanable = sum(size for _, size, *_ in between(segments, first_dirty, end))
    if not is_requested:
        for segment in closed if log[walk.MAX_LAG_MS] < MAX else ():
            if segment[3] == walk.NONE:
                return lacks(walk.FIRST_BATCH, segment)
            oldest = min(oldest, segment[3]) if segment[3] > 0 else oldest
        is_late = oldest < NOW - log[walk.MAX_LAG_MS]
        if not log[walk.IS_COMPACTED]:
            verdict = walk.NOT_COMPACTED
        elif not cleanable:
            verdict = walk.NOTHING_TO_CLEAN
        elif not is_late and cleanable / (clean + cleanable) <= least_ratio:
            verdict = walk.RATIO_BELOW_MINIMUM
    return {
        walk.FIRST_DIRTY_OFFSET: first_dirty,
        walk.FIRST_UNCLEANABLE_OFFSET: end,
        walk.CLEAN_BYTES: clean,
        walk.CLEANABLE_BYTES: cleanable,
        walk.DIRTY_BYTES: sum(size for _, size, *_ in [*closed, segments[-1]]),
        walk.HAS_INVALID_CHECKPOINT: is_invalid,
        walk.FIRST_YOUNG_OFFSET: young,
        walk.OLDEST_DIRTY_TIMESTAMP: oldest,
        walk.VERDICT: verdict,
        walk.MISSING: walk.NOTHING,
    }


@in_both_ways(walk_compaction=walk.walk_compaction)
@given(cases=st.lists(logs(), max_size=4))
def test_each_log_has_the_range_that_the_predicates_give_it_alone(walk_compaction, cases):
    for case, answer in zip(cases, walked(walk_compaction, cases), strict=True):
        wanted = expected(*case)
        assert {column: answer[column] for column in wanted} == wanted


@in_both_ways(walk_compaction=walk.walk_compaction)
@pytest.mark.parametrize(
    ("newest", "min_lag", "now_ms", "is_young"),
    [
        pytest.param(-(2**62), MAX, -(2**62), True, id="a clock before 1970"),
        pytest.param(-(2**62), MAX, MAX, False, id="a difference beyond 63 bits"),
        pytest.param(MAX, 1, -1, True, id="a time beyond every clock"),
        pytest.param(0, MAX, MAX, False, id="as old as the largest lag"),
        pytest.param(1, MAX, MAX, True, id="a millisecond younger"),
    ],
)
def test_no_time_is_too_large_to_be_compared(walk_compaction, newest, min_lag, now_ms, is_young):
    log = {
        walk.LOG_END_OFFSET: 20,
        walk.LAST_STABLE_OFFSET: 20,
        walk.CLEANER_CHECKPOINT: walk.NONE,
        walk.MIN_LAG_MS: min_lag,
        walk.MAX_LAG_MS: MAX,
        walk.REQUESTED_START: walk.NONE,
    }
    (answer,) = walked(walk_compaction, [([(0, 1, newest, 0), (10, 1, 0, 0)], log, 0.5)], now_ms)
    assert answer[walk.FIRST_YOUNG_OFFSET] == (0 if is_young else walk.NONE)
