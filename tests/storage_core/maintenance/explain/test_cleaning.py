"""Which bound holds a log back from cleaning: one state for each cause, and its numbers."""

from dataclasses import replace

import pytest

from storage_core.checkpoint.checkpoints import PartitionCheckpoints
from storage_core.log.producer_snapshot import ProducerEntry
from storage_core.maintenance.compaction.plan import CleanRequest, choose_range
from storage_core.maintenance.explain import Answer, PredicateResult, explain_cleaning
from storage_core.maintenance.partition_state import PartitionState
from tests.kit.builders import SOME_TIME_MS
from tests.storage_core.maintenance.compaction.states import compacted, log_of, segment

NOW = SOME_TIME_MS + 1_000_000
HOUR = 3_600_000
# Bases 0, 10, 20, 30 of 100 bytes each; the last one is active, and the log ends at 40.
FOUR = [segment(0), segment(10), segment(20), segment(30)]


def explained(segments=FOUR, *, overrides=None, checkpoint=None, **log):
    loaded = log_of(segments, **log)
    state, config = PartitionState.of_log(loaded), compacted(overrides)
    checkpoints = PartitionCheckpoints(cleaner_offset=checkpoint)
    request = CleanRequest(now_ms=NOW, checkpoints=checkpoints)
    chosen = choose_range(state, config, request)
    answer, statements = explain_cleaning(
        state, config, request, chosen, producers=loaded.producers
    )
    return answer, {statement.code: statement for statement in statements}


def open_transaction(first_offset: int, *, age_ms: int) -> ProducerEntry:
    return ProducerEntry(
        producer_id=7,
        producer_epoch=3,
        last_sequence=0,
        last_offset=first_offset,
        offset_delta=0,
        last_timestamp=NOW - age_ms,
        coordinator_epoch=0,
        current_txn_first_offset=first_offset,
    )


def test_a_log_that_is_due_says_so_with_its_range():
    answer, said = explained()
    assert answer == Answer(
        about=answer.about,
        is_due=True,
        held_by=None,
        text="due: 300 dirty bytes from offset 0 to 30",
    )
    assert said["DIRTY_RATIO"].verdict is PredicateResult.PASSES


@pytest.mark.item("FLT-16")
def test_a_ratio_below_the_threshold_says_how_many_bytes_are_missing():
    # 200 bytes clean, 100 dirty: a third; above a half with 101 more.
    answer, said = explained(checkpoint=20)
    assert (answer.is_due, answer.held_by) == (False, "DIRTY_RATIO")
    facts = said["DIRTY_RATIO"].facts
    assert (facts["clean_bytes"], facts["dirty_bytes"], facts["missing_bytes"]) == (200, 100, 101)
    more = [segment(0), segment(10), segment(20, 201), segment(30)]
    assert explained(more, checkpoint=20)[0].is_due
    almost = [segment(0), segment(10), segment(20, 200), segment(30)]
    assert not explained(almost, checkpoint=20)[0].is_due


def test_a_ratio_that_nothing_exceeds_is_a_reason_for_ever():
    answer, _ = explained(overrides={"min.cleanable.dirty.ratio": 1})
    assert answer.held_by == "DIRTY_RATIO"
    assert "lowered" in answer.condition
    assert answer.from_ms is None


def test_a_longest_wait_tells_from_when_on_the_ratio_does_not_count():
    limit = 2 * HOUR
    answer, said = explained(checkpoint=20, overrides={"max.compaction.lag.ms": limit})
    from_ms = SOME_TIME_MS + limit + 1
    assert (answer.held_by, answer.from_ms) == ("DIRTY_RATIO", from_ms)
    assert said["MAX_COMPACTION_LAG"].verdict is PredicateResult.BLOCKS
    late = [replace(s, first_batch_timestamp=NOW - limit - 1) for s in FOUR]
    assert explained(late, checkpoint=20, overrides={"max.compaction.lag.ms": limit})[0].is_due
    just = [replace(s, first_batch_timestamp=NOW - limit) for s in FOUR]
    answer, _ = explained(just, checkpoint=20, overrides={"max.compaction.lag.ms": limit})
    assert (answer.is_due, answer.from_ms) == (False, NOW + 1)


@pytest.mark.item("FLT-16")
def test_an_open_transaction_is_named_by_its_producer_its_offset_and_its_age():
    producers = (open_transaction(5, age_ms=2_000_000), open_transaction(12, age_ms=10))
    answer, said = explained(producers=producers, last_stable_offset=5)
    assert (answer.is_due, answer.held_by) == (False, "OPEN_TRANSACTION")
    for fact in (
        "producer 7",
        "epoch 3",
        "since offset 5",
        "33 minutes and 20 seconds old",
        "hang",
        "2 are open",
    ):
        assert fact in answer.text
    assert answer.condition == "the transaction of producer 7 is committed or aborted"
    assert said["OPEN_TRANSACTION"].facts == {"offset": 5, "ends_range": True}
    assert said["ACTIVE_SEGMENT"].facts == {"offset": 30, "ends_range": False}


@pytest.mark.item("FLT-16")
def test_a_huge_active_segment_that_holds_all_that_is_dirty_is_the_reason():
    segments = [segment(0, 100), segment(10, 1_000_000)]
    answer, _ = explained(segments, checkpoint=10, overrides={"segment.bytes": 1_073_741_824})
    assert (answer.is_due, answer.held_by) == (False, "ACTIVE_SEGMENT")
    assert "1000000 bytes are dirty, of these only 0 may be cleaned" in answer.text
    assert "has 1000000 of segment.bytes 1073741824" in answer.text
    assert "rolls the active segment" in answer.condition


def test_a_high_watermark_that_stands_still_is_the_reason():
    answer, _ = explained(high_watermark=4)
    assert (answer.is_due, answer.held_by) == (False, "HIGH_WATERMARK")
    assert answer.condition == "the high watermark rises above 4"


def test_records_that_are_too_young_say_from_when_on_they_are_not():
    answer, said = explained(overrides={"min.compaction.lag.ms": HOUR})
    assert (answer.is_due, answer.held_by) == (False, "MIN_COMPACTION_LAG")
    assert answer.from_ms == SOME_TIME_MS + HOUR
    assert said["MIN_COMPACTION_LAG"].facts["offset"] == 0
    old = [replace(s, max_timestamp=NOW - HOUR) for s in FOUR]
    assert explained(old, overrides={"min.compaction.lag.ms": HOUR})[0].is_due


def test_a_log_with_nothing_new_and_one_that_is_never_compacted():
    answer, _ = explained([segment(0), segment(10), segment(20, 0)], checkpoint=20)
    assert (answer.held_by, answer.condition) == ("NOTHING_TO_CLEAN", "something is appended")
    answer, _ = explained(overrides={"cleanup.policy": "delete"})
    assert (answer.held_by, answer.condition) == (
        "NOT_COMPACTED",
        "cleanup.policy has compact in it",
    )


def test_a_checkpoint_outside_of_the_log_is_said():
    _, said = explained(checkpoint=41)
    assert "41 lies outside of the log [0, 40]" in said["FIRST_DIRTY_OFFSET"].text
