"""When a segment is rolled: every trigger alone, on its boundary."""

import dataclasses
import random

import pytest

from storage_core.log.append.segment import (
    RollParams,
    SegmentAge,
    choose_roll_offset,
    choose_segment_jitter_ms,
    should_roll,
    time_waited_for_roll_ms,
)

AGE = SegmentAge(
    base_offset=100,
    size_bytes=500,
    first_batch_timestamp=1_000,
    created_ms=50_000,
    jitter_ms=0,
    is_index_full=False,
)
PARAMS = RollParams(
    max_segment_ms=10_000,
    max_segment_bytes=600,
    max_timestamp=11_000,
    last_offset=200,
    append_bytes=100,
    now_ms=55_000,
)


@pytest.mark.item("APP-13", "APP-14")
@pytest.mark.parametrize(
    ("age", "params", "expected"),
    [
        pytest.param({}, {}, False, id="on every boundary"),
        pytest.param({}, {"append_bytes": 101}, True, id="too large by a byte"),
        pytest.param({}, {"max_timestamp": 11_001}, True, id="too old by a millisecond"),
        pytest.param({"size_bytes": 0}, {"max_timestamp": 99_000}, False, id="old but empty"),
        pytest.param({"jitter_ms": 1}, {}, True, id="jitter makes it older"),
        pytest.param({"is_index_full": True}, {}, True, id="an index is full"),
        pytest.param({}, {"last_offset": 100 + 2**31 - 1}, False, id="last offset in reach"),
        pytest.param({}, {"last_offset": 100 + 2**31}, True, id="offset out of reach"),
        pytest.param({}, {"last_offset": 99}, True, id="offset below the base"),
        pytest.param(
            {"first_batch_timestamp": -1}, {"max_timestamp": 99_000}, False, id="by the clock"
        ),
        pytest.param({"first_batch_timestamp": -1}, {"now_ms": 60_001}, True, id="clock too old"),
        pytest.param({}, {"now_ms": 999_999}, False, id="a clock far ahead does not count"),
        pytest.param({}, {"max_timestamp": -1}, False, id="an append without timestamps"),
    ],
)
def test_a_segment_is_rolled_beyond_a_limit_and_not_on_it(age, params, expected):
    segment, append = dataclasses.replace(AGE, **age), dataclasses.replace(PARAMS, **params)
    assert should_roll(segment, append) is expected


@pytest.mark.item("APP-14")
def test_time_waited_is_that_of_the_records_and_may_be_negative():
    assert time_waited_for_roll_ms(AGE, PARAMS) == 10_000
    old = dataclasses.replace(PARAMS, max_timestamp=400)
    assert time_waited_for_roll_ms(AGE, old) == -600
    unknown = dataclasses.replace(AGE, first_batch_timestamp=-1)
    assert time_waited_for_roll_ms(unknown, PARAMS) == 5_000


@pytest.mark.item("APP-15")
def test_jitter_is_below_its_limit_and_the_segments_age():
    dice = random.Random(3)

    def draw(jitter_ms, segment_ms):
        return [
            choose_segment_jitter_ms(dice, segment_jitter_ms=jitter_ms, segment_ms=segment_ms)
            for _ in range(500)
        ]

    assert set(draw(0, 10)) == {0}
    assert set(draw(7, 1_000)) == set(range(7))
    assert set(draw(1_000, 5)) == set(range(5))


@pytest.mark.item("APP-16")
def test_a_legacy_append_wants_a_base_from_which_it_can_be_reached():
    assert choose_roll_offset(first_offset=5, last_offset=9) == 5
    assert choose_roll_offset(first_offset=None, last_offset=2**31) == 1
