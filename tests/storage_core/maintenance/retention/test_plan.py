"""Which segments go: the three predicates on the boundary."""

import pytest

from storage_core.config import LogConfig
from storage_core.config.values import LONG_MAX
from storage_core.errors import ConfigError
from storage_core.kernels import retention_walk as walk
from storage_core.maintenance.partition_state import Fact, UnobservedError
from storage_core.maintenance.retention.plan import (
    Hold,
    Predicate,
    RetentionRules,
    plan_retention,
)
from tests.storage_core.maintenance.retention.states import (
    NOW,
    decide,
    log_of,
    removed,
    rules,
    segment,
)

THREE = (segment(0, age_ms=30), segment(10, age_ms=20), segment(20, age_ms=10))


@pytest.mark.item("RET-01")
@pytest.mark.parametrize(
    ("policy", "expected"),
    [
        ("delete", [(0, "LOG_START"), (10, "SIZE"), (20, "TIME")]),
        ("compact,delete", [(0, "LOG_START"), (10, "SIZE"), (20, "TIME")]),
        ("compact", [(0, "LOG_START")]),
        ("", [(0, "LOG_START")]),
        ("delete,delete", [(0, "LOG_START"), (10, "SIZE"), (20, "TIME")]),
    ],
)
def test_the_policy_says_which_predicates_are_asked_each_on_what_the_one_before_left(
    policy, expected
):
    config = LogConfig.from_topic_overrides(
        {"cleanup.policy": policy, "retention.bytes": "200", "retention.ms": "5"}
    )
    log = log_of(
        segment(0), segment(10), segment(20, age_ms=6), segment(30, age_ms=0), log_start_offset=10
    )
    assert removed(plan_retention(log, RetentionRules.of(config), now_ms=NOW)) == expected


@pytest.mark.item("RET-02")
def test_a_young_segment_keeps_the_old_ones_behind_it():
    log = log_of(segment(0, age_ms=0), segment(10, age_ms=99), segment(20, age_ms=0))
    plan = decide(log, retention_ms=50)
    assert plan.removals == ()
    assert (plan.blocked_by.hold, plan.blocked_by.base_offset) == (Hold.WITHIN_TIME, 0)


@pytest.mark.item("RET-03")
@pytest.mark.parametrize(
    ("high_watermark", "count"), [(9, 0), (10, 1), (19, 1), (20, 2), (29, 2), (30, 3), (None, 3)]
)
def test_a_segment_goes_only_if_all_of_it_is_below_the_high_watermark(high_watermark, count):
    plan = decide(log_of(*THREE, high_watermark=high_watermark), retention_bytes=0)
    assert len(plan.removals) == count
    if count < len(THREE):
        assert plan.blocked_by.hold is Hold.HIGH_WATERMARK
        assert plan.log_start_offset <= max(high_watermark, 0)


@pytest.mark.item("RET-04")
@pytest.mark.parametrize(
    ("log_start", "count"), [(0, 0), (9, 0), (10, 1), (11, 1), (20, 2), (30, 2), (999, 2)]
)
def test_what_lies_below_the_log_start_goes_but_never_the_last_segment(log_start, count):
    plan = decide(log_of(*THREE, log_start_offset=log_start), deletes=False)
    assert len(plan.removals) == count
    assert plan.log_start_offset == log_start
    assert plan.roll_offset is None


@pytest.mark.item("RET-05")
@pytest.mark.parametrize(
    ("limit", "count"),
    [(301, 0), (300, 0), (201, 0), (200, 1), (199, 1), (101, 1), (100, 2), (1, 2), (0, 3), (-1, 0)],
)
def test_the_log_shrinks_to_its_limit_but_not_below_it(limit, count):
    assert len(decide(log_of(*THREE), retention_bytes=limit).removals) == count


@pytest.mark.item("RET-05")
def test_empty_segments_go_with_the_excess_around_them():
    log = log_of(segment(0, 0), segment(0 + 5, 100), segment(10, 0), segment(20, 100))
    assert len(decide(log, retention_bytes=100).removals) == 3
    assert decide(log, retention_bytes=201).removals == ()


@pytest.mark.item("RET-06")
@pytest.mark.parametrize(("limit_ms", "count"), [(30, 0), (29, 1), (19, 2), (10, 2), (9, 3)])
def test_only_what_is_older_than_the_limit_goes(limit_ms, count):
    assert len(decide(log_of(*THREE), retention_ms=limit_ms).removals) == count


@pytest.mark.item("RET-06", "RET-14")
def test_the_wait_ends_in_the_first_millisecond_in_which_it_goes():
    log = log_of(*THREE)
    block = decide(log, retention_ms=100).blocked_by
    assert (block.timestamp, block.wait_ms) == (NOW - 30, 71)
    assert len(decide(log, NOW + 70, retention_ms=100).removals) == 0
    assert len(decide(log, NOW + 71, retention_ms=100).removals) == 1


@pytest.mark.item("RET-07")
def test_without_timestamps_the_time_of_the_file_counts():
    log = log_of(
        segment(0, age_ms=None, file_age_ms=51),
        segment(10, age_ms=None, file_age_ms=50),
        segment(20, age_ms=99, file_age_ms=0),
    )
    assert removed(decide(log, retention_ms=50)) == [(0, "TIME")]


@pytest.mark.item("RET-08")
def test_a_timestamp_in_the_future_holds_back_everything_behind_it_and_says_how_long():
    log = log_of(segment(0, age_ms=99), segment(10, age_ms=-1000), segment(20, age_ms=99))
    plan = decide(log, retention_ms=50)
    assert removed(plan) == [(0, "TIME")]
    block = plan.blocked_by
    assert (block.hold, block.base_offset) == (Hold.FUTURE_TIMESTAMP, 10)
    assert block.wait_ms == 1000 + 50 + 1
    assert len(decide(log, NOW + block.wait_ms, retention_ms=50).removals) == 3


@pytest.mark.item("RET-08")
def test_a_limit_that_stands_for_none_is_waited_for_within_64_bits():
    log = log_of(segment(0, age_ms=-1000), segment(10, age_ms=99))
    block = decide(log, retention_ms=LONG_MAX).blocked_by
    assert block.wait_ms == LONG_MAX - NOW


@pytest.mark.item("RET-09")
def test_an_empty_last_segment_stays_whatever_the_limits_are():
    log = log_of(segment(0, age_ms=99), segment(10, 0, age_ms=None, file_age_ms=99))
    for limits in ({"retention_ms": 0}, {"retention_bytes": 0}):
        plan = decide(log, **limits)
        assert plan.removed_base_offsets == (0,)
        assert (plan.roll_offset, plan.log_start_offset) == (None, 10)
        assert plan.blocked_by.hold is Hold.LAST_SEGMENT
    assert decide(log_of(segment(7, 0)), retention_bytes=0).removals == ()


@pytest.mark.item("RET-09", "RET-10")
@pytest.mark.parametrize("limits", [{"retention_ms": 5}, {"retention_bytes": 0}], ids=str)
def test_when_all_segments_go_an_empty_one_begins_at_the_log_end(limits):
    plan = decide(log_of(*THREE, log_end=33), **limits)
    assert plan.removed_base_offsets == (0, 10, 20)
    assert (plan.roll_offset, plan.log_start_offset) == (33, 33)
    assert [block.predicate for block in plan.blocks] == list(Predicate)


@pytest.mark.item("RET-10")
def test_the_log_start_rises_to_the_first_survivor_and_never_falls():
    assert decide(log_of(*THREE), retention_bytes=200).log_start_offset == 10
    inside = log_of(*THREE, log_start_offset=15)
    assert decide(inside, retention_bytes=250).log_start_offset == 15
    assert decide(inside, retention_bytes=100).log_start_offset == 20


@pytest.mark.item("RET-14")
def test_counts_bytes_and_percent_by_reason():
    log = log_of(
        segment(0, 50), segment(10, 100), segment(20, 100, age_ms=99), segment(30, 80, age_ms=1)
    )
    plan = decide(log_of(*log.segments, log_start_offset=10), retention_bytes=150, retention_ms=50)
    assert [plan.counts(predicate) for predicate in Predicate] == [(1, 50), (1, 100), (1, 100)]
    assert plan.removed_bytes == 250
    assert plan.percent_of_retention_bytes == 80 * 100 // 150
    assert [block.hold for block in plan.blocks] == [
        Hold.ABOVE_LOG_START,
        Hold.WITHIN_SIZE,
        Hold.WITHIN_TIME,
    ]
    unlimited = decide(log)
    assert unlimited.percent_of_retention_bytes == 0
    assert [block.hold for block in unlimited.blocks] == [
        Hold.ABOVE_LOG_START,
        Hold.NOT_ASKED,
        Hold.NOT_ASKED,
    ]


@pytest.mark.item("RET-15")
def test_the_rules_of_a_tiered_topic_are_refused():
    config = LogConfig.from_topic_overrides({"remote.storage.enable": "true"})
    with pytest.raises(ConfigError, match=r"remote\.storage\.enable"):
        RetentionRules.of(config)


def test_a_decision_asks_for_facts_only_where_it_gets_to_them():
    unknown = log_of(
        *(segment(base) for base in (0, 10)), segment(20), log_end=None, high_watermark=50
    )
    assert len(plan_retention(unknown, rules(retention_bytes=200), now_ms=NOW).removals) == 1
    with pytest.raises(UnobservedError) as caught:
        plan_retention(unknown, rules(retention_bytes=0), now_ms=NOW)
    assert (caught.value.base_offset, caught.value.fact) == (20, Fact.LOG_END)


def test_the_walk_over_arrays_numbers_predicates_and_holds_as_they_are_declared():
    assert list(range(len(Predicate))) == [walk.BY_LOG_START, walk.BY_SIZE, walk.BY_TIME]
    words = {Hold.HIGH_WATERMARK: "NOT_REPLICATED"}
    assert [getattr(walk, words.get(hold, hold.name)) for hold in Hold] == list(range(len(Hold)))
