"""What keeps segments from being deleted, and until when: a state for each hold."""

import pytest

from storage_core.maintenance.explain import explain_deletion
from tests.storage_core.maintenance.retention.states import NOW, decide, log_of, rules, segment

HOUR = 3_600_000


def explained(state, **limits):
    plan = decide(state, **limits)
    answer, statements = explain_deletion(state, plan, rules(**limits), now_ms=NOW)
    return answer, {statement.code: statement for statement in statements}


@pytest.mark.item("RET-14")
def test_what_goes_is_listed_by_reason_with_the_new_log_start():
    state = log_of(segment(0, age_ms=3 * HOUR), segment(10, age_ms=2 * HOUR), segment(20))
    answer, said = explained(state, retention_ms=HOUR)
    assert answer.is_due
    assert answer.text == "due: 2 segments of 200 bytes, the log start offset rises from 0 to 20"
    assert said["REMOVABLE"].facts == {"base_offset": 10, "size_bytes": 100, "predicate": "TIME"}
    assert said["TIME_WITHIN_TIME"].facts["base_offset"] == 20


def test_age_tells_the_millisecond_from_which_on_a_segment_goes():
    state = log_of(segment(0, age_ms=HOUR), segment(10))
    answer, said = explained(state, retention_ms=HOUR)
    assert (answer.is_due, answer.held_by, answer.from_ms) == (False, "TIME_WITHIN_TIME", NOW + 1)
    assert "1 hour old" in said["TIME_WITHIN_TIME"].text


@pytest.mark.item("RET-08")
def test_a_timestamp_in_the_future_is_reported_with_the_wait_before_all_else():
    state = log_of(segment(0, age_ms=-5 * HOUR), segment(10, age_ms=9 * HOUR), segment(20))
    answer, said = explained(state, retention_ms=HOUR, retention_bytes=10**6)
    assert (answer.is_due, answer.held_by) == (False, "TIME_FUTURE_TIMESTAMP")
    assert "5 hours in the future" in answer.text
    assert answer.from_ms == NOW + 6 * HOUR + 1
    assert said["TIME_FUTURE_TIMESTAMP"].facts["wait_ms"] == 6 * HOUR + 1


@pytest.mark.item("RET-14")
def test_size_says_how_many_percent_of_the_limit_and_what_is_missing():
    state = log_of(segment(0), segment(10), segment(20, 50))
    answer, said = explained(state, retention_bytes=200)
    assert (answer.is_due, answer.held_by) == (False, "SIZE_WITHIN_SIZE")
    assert "250 bytes, 125 % of retention.bytes 200" in answer.text
    assert answer.condition == "the log grows by 50 bytes"
    grown = log_of(segment(0), segment(10), segment(20, 100))
    assert explained(grown, retention_bytes=200)[0].is_due
    assert said["TIME_NOT_ASKED"].text == "retention.ms is -1: no limit"


def test_a_high_watermark_inside_of_a_segment_keeps_it():
    state = log_of(segment(0, age_ms=2 * HOUR), segment(10, age_ms=0), high_watermark=9)
    answer, _ = explained(state, retention_ms=HOUR)
    assert (answer.is_due, answer.held_by) == (False, "TIME_HIGH_WATERMARK")
    assert answer.condition == "the high watermark rises above the end of segment 0"


def test_a_topic_without_delete_only_loses_what_lies_below_its_log_start():
    state = log_of(segment(0), segment(10))
    answer, _ = explained(state, deletes=False, retention_ms=1)
    assert (answer.is_due, answer.held_by) == (False, "NOT_DELETED")
    below = log_of(segment(0), segment(10), log_start_offset=10)
    assert explained(below, deletes=False)[0].is_due
