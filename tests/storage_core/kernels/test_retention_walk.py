"""The deletion pass over logs in arrays, against Kafka's predicates one by one."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from storage_core.kernels import retention_walk as walk
from tests.storage_core.kernels.twins import in_both_ways

NOW = 1000
MAX = 2**63 - 1
NONE = -1

offsets = st.integers(0, 50) | st.just(MAX)
limits = st.integers(0, 400) | st.sampled_from([NONE, MAX])
ages = st.integers(NOW - 60, NOW + 20) | st.sampled_from([walk.NOT_OBSERVED, MAX, -3])


@st.composite
def logs(draw):
    """(segments, log): (base offset, size, timestamp) each, and the columns behind their number."""
    bases = sorted(draw(st.sets(st.integers(0, 50), min_size=1, max_size=5)))
    segments = [(base, draw(st.integers(0, 200)), draw(ages)) for base in bases]
    mark = draw(offsets | st.just(walk.AT_LOG_END))
    end = bases[-1] + draw(st.integers(0, 9))
    end = draw(st.sampled_from([walk.NOT_OBSERVED, end]))
    return segments, (draw(offsets), mark, end, draw(limits), draw(limits))


def walked(walk_retention, cases, now_ms=NOW) -> list[list[int]]:
    """The answers of a call, a list a log."""
    counts = [len(segments) for segments, _ in cases]
    table = [(sum(counts[:number]), counts[number], *log) for number, (_, log) in enumerate(cases)]
    segments = [segment for each, _ in cases for segment in each]
    answers = np.full((walk.ANSWER_COLUMNS, len(cases)), 99, np.int64)
    walk_retention(
        np.array(segments, np.int64).reshape(-1, walk.SEGMENT_COLUMNS).T.copy(),
        np.array(table, np.int64).reshape(-1, walk.LOG_COLUMNS).T.copy(),
        now_ms,
        answers,
    )
    return answers.T.tolist()


def expected(segments, log) -> tuple[list[int], list[int]] | tuple[int, int]:
    """(gone, stops) after each predicate, or (which fact is missing, of which segment)."""
    log_start, mark, end, size_limit, age_limit = log
    gone, stops, at = [], [], 0
    for predicate in range(walk.PREDICATES):
        is_asked = (True, size_limit >= 0, age_limit >= 0)[predicate]
        stop = walk.LAST_SEGMENT if is_asked else walk.NOT_ASKED
        while is_asked and at < len(segments):
            _, size, timestamp = segments[at]
            is_last = at + 1 == len(segments)
            following = end if is_last else segments[at + 1][0]
            bytes_without = sum(size for _, size, _ in segments[at + 1 :])
            if is_last and (size == 0 or predicate == walk.BY_LOG_START):
                break
            if predicate == walk.BY_TIME and timestamp == walk.NOT_OBSERVED:
                return walk.TIMESTAMP, at
            goes, other = (
                (following <= log_start, walk.ABOVE_LOG_START),
                (bytes_without >= size_limit, walk.WITHIN_SIZE),
                (
                    NOW - timestamp > age_limit,
                    walk.FUTURE_TIMESTAMP if timestamp > NOW else walk.WITHIN_TIME,
                ),
            )[predicate]
            if not goes:
                stop = other
                break
            if following == walk.NOT_OBSERVED:
                return walk.LOG_END, at
            if following > mark:
                stop = walk.NOT_REPLICATED
                break
            at += 1
        gone.append(at)
        stops.append(stop)
    return gone, stops


@in_both_ways(walk_retention=walk.walk_retention)
@given(cases=st.lists(logs(), max_size=4))
def test_each_log_loses_what_the_predicates_take_of_it_alone(walk_retention, cases):
    for case, answer in zip(cases, walked(walk_retention, cases), strict=True):
        wanted = expected(*case)
        if isinstance(wanted[0], int):
            assert (answer[walk.MISSING], answer[walk.MISSING_OF]) == wanted
            continue
        gone, stops = wanted
        assert answer[walk.MISSING] == walk.NOTHING
        assert answer[walk.GONE : walk.GONE + walk.PREDICATES] == gone
        assert answer[walk.ALL_GONE] == gone[-1]
        assert answer[walk.STOPPED_BY : walk.STOPPED_BY + walk.PREDICATES] == stops
        odd = [p for p, s in enumerate(stops) if s in {walk.NOT_REPLICATED, walk.FUTURE_TIMESTAMP}]
        asked = [p for p, stop in enumerate(stops) if stop != walk.NOT_ASKED]
        assert answer[walk.BLOCKING] == (odd or asked[-1:])[0]


@in_both_ways(walk_retention=walk.walk_retention)
@pytest.mark.parametrize(
    ("timestamp", "age_limit", "now_ms", "count"),
    [
        pytest.param(-(2**62), MAX, -(2**62), 0, id="a clock before 1970"),
        pytest.param(-(2**62), MAX, MAX, 1, id="a difference beyond 63 bits"),
        pytest.param(MAX, 0, -1, 0, id="a time beyond every clock"),
        pytest.param(0, MAX, MAX, 0, id="as old as the largest limit"),
        pytest.param(-1, MAX, MAX, 1, id="a millisecond older"),
    ],
)
def test_no_time_is_too_large_to_be_compared(walk_retention, timestamp, age_limit, now_ms, count):
    case = ([(0, 1, timestamp)], (0, walk.AT_LOG_END, 5, NONE, age_limit))
    (answer,) = walked(walk_retention, [case], now_ms)
    assert answer[walk.ALL_GONE] == count
