"""What a state knows on each level of observation, and that it guesses nothing above."""

from dataclasses import replace

import pytest

from storage_core.checkpoint.checkpoints import PartitionCheckpoints
from storage_core.config import LogConfig
from storage_core.config.values import LONG_MAX
from storage_core.filenames import log_file, segment_file
from storage_core.maintenance.compaction.plan import (
    CleanRequest,
    NotDue,
    choose_range,
    rule_out_round,
)
from storage_core.maintenance.partition_state import (
    Fact,
    ObservedSegment,
    PartitionState,
    UnobservedError,
)
from storage_core.maintenance.retention.plan import plan_retention
from storage_core.maintenance.survey import survey_partition
from storage_core.store.base import FileInfo
from tests.storage_core.maintenance.compaction.states import compacted
from tests.storage_core.maintenance.retention.states import rules

NOW = 1_800_000_000_000
BASES = (0, 10, 20)
FILES = [
    *(FileInfo(log_file(base), 100 + base, NOW - base) for base in BASES),
    *(FileInfo(segment_file(base, ".index"), 8, NOW) for base in BASES),
    FileInfo("00000000000000000000.log.deleted", 7, NOW),
    FileInfo("leader-epoch-checkpoint", 8, NOW),
]


def listed(
    *, log_start: int | None = None, high_watermark: int | None = None, **timestamps: int
) -> PartitionState:
    return PartitionState.of_listing(
        "/t-0",
        FILES,
        checkpoints=PartitionCheckpoints(log_start_offset=log_start, high_watermark=high_watermark),
        max_timestamps={int(base[1:]): at for base, at in timestamps.items()},
    )


def request(**checkpoints: int) -> CleanRequest:
    return CleanRequest(now_ms=NOW, checkpoints=PartitionCheckpoints(**checkpoints))


def test_a_listing_tells_sizes_and_times_of_segments_and_all_names():
    state = listed()
    assert state.segments == tuple(
        ObservedSegment(base_offset=base, size_bytes=100 + base, modified_ms=NOW - base)
        for base in BASES
    )
    assert state.names == {file.name for file in FILES}
    assert state.size_bytes == 330


@pytest.mark.parametrize(
    ("log_start", "high_watermark", "expected"),
    [
        pytest.param(None, None, (0, None), id="no checkpoints"),
        pytest.param(5, 15, (5, 15), id="in the log"),
        pytest.param(5, 3, (5, 5), id="a high watermark below the log start"),
    ],
)
def test_a_high_watermark_lies_in_the_log(log_start, high_watermark, expected):
    state = listed(log_start=log_start, high_watermark=high_watermark)
    assert (state.log_start_offset, state.high_watermark) == expected


def test_a_listing_without_segments_starts_at_the_checkpoint():
    checkpoints = PartitionCheckpoints(log_start_offset=7)
    state = PartitionState.of_listing("/t-0", [], checkpoints=checkpoints)
    assert (state.segments, state.log_start_offset) == ((), 7)


@pytest.mark.parametrize(
    ("question", "fact"),
    [
        (lambda state: state.log_end_offset, Fact.LOG_END),
        (lambda state: state.last_stable_offset, Fact.STABLE_OFFSET),
        (lambda state: state.segments[-1].largest_timestamp, Fact.TIMESTAMP),
        (lambda state: state.segments[-1].first_batch_timestamp, Fact.FIRST_BATCH),
        (lambda state: replace(state, file_names=None).names, Fact.NAMES),
    ],
    ids=lambda value: value.name if isinstance(value, Fact) else "",
)
def test_a_question_above_the_level_is_an_error_that_names_segment_and_level(question, fact):
    with pytest.raises(UnobservedError, match="of segment 20 was not observed") as caught:
        question(listed())
    assert caught.value.fact is fact
    assert fact.level.name.lower().replace("_", " ") in str(caught.value)


def test_a_segment_without_timestamps_is_as_old_as_its_file_once_that_was_observed():
    state = listed(_0=-1, _10=5, _20=-1)
    assert [one.largest_timestamp for one in state.segments] == [NOW, 5, NOW - 20]


@pytest.mark.parametrize(
    ("config", "fact"),
    [
        pytest.param(compacted(), Fact.STABLE_OFFSET, id="where it is stable"),
        pytest.param(
            compacted({"min.compaction.lag.ms": 1}), Fact.TIMESTAMP, id="how young its records are"
        ),
        pytest.param(
            compacted({"max.compaction.lag.ms": 1}), Fact.FIRST_BATCH, id="how old they are"
        ),
    ],
)
def test_compaction_asks_only_what_its_config_asks(config: LogConfig, fact: Fact):
    state = listed()
    if fact is not Fact.STABLE_OFFSET:
        state = replace(state, stable_end=20)
    with pytest.raises(UnobservedError) as caught:
        choose_range(state, config, request())
    assert caught.value.fact is fact
    enough = replace(listed(), stable_end=20)
    assert choose_range(enough, compacted(), request()).cleanable_bytes == 210


def test_compaction_asks_where_the_log_ends_only_for_a_checkpoint():
    with pytest.raises(UnobservedError) as caught:
        choose_range(listed(), compacted(), request(cleaner_offset=10))
    assert caught.value.fact is Fact.LOG_END


def test_retention_asks_no_age_where_none_counts():
    state = listed(log_start=20)
    assert plan_retention(state, rules(), now_ms=NOW).removed_base_offsets == (0, 10)
    with pytest.raises(UnobservedError):
        plan_retention(state, rules(retention_ms=1), now_ms=NOW)


# --- what stands in for what was not observed


@pytest.mark.parametrize(
    ("overrides", "fields", "recovery_point", "answer"),
    [
        pytest.param({}, {"cleaner_offset": 20}, None, NotDue.NOTHING_TO_CLEAN, id="all clean"),
        pytest.param({}, {"high_watermark": 9}, None, NotDue.NOTHING_TO_CLEAN, id="not replicated"),
        pytest.param({}, {}, None, None, id="all dirty"),
        pytest.param({}, {"cleaner_offset": 25}, None, None, id="a point above the last base"),
        pytest.param(
            {},
            {"cleaner_offset": 25},
            25,
            NotDue.NOTHING_TO_CLEAN,
            id="a point that the log is known to reach",
        ),
        pytest.param(
            {"min.compaction.lag.ms": 1}, {"cleaner_offset": 10}, None, None, id="ages unknown"
        ),
        pytest.param(
            {"min.compaction.lag.ms": 1},
            {"cleaner_offset": 20},
            None,
            NotDue.NOTHING_TO_CLEAN,
            id="no age counts",
        ),
        pytest.param(
            {"max.compaction.lag.ms": 9, "min.cleanable.dirty.ratio": 1},
            {"cleaner_offset": 10},
            None,
            None,
            id="it may have waited too long",
        ),
        pytest.param(
            {"min.cleanable.dirty.ratio": 1},
            {"cleaner_offset": 10},
            None,
            NotDue.RATIO_BELOW_MINIMUM,
            id="nothing waits too long",
        ),
    ],
)
def test_a_round_is_ruled_out_only_where_no_record_could_change_that(
    overrides, fields, recovery_point, answer
):
    wanted = request(**fields)
    state = listed(high_watermark=wanted.checkpoints.high_watermark)
    found = rule_out_round(state, compacted(overrides), wanted, recovery_point=recovery_point)
    assert (None if found is None else found.not_due) is answer


def test_a_survey_lets_the_time_of_a_file_stand_for_its_records():
    config = LogConfig.from_topic_overrides({"cleanup.policy": "delete", "retention.ms": "9"})
    found = survey_partition(listed(_20=NOW), config, request())
    assert found.cleanable is None
    # The oldest file was written now, the next one ten milliseconds ago.
    assert found.retention.removals == ()
    known = survey_partition(listed(_0=1, _20=NOW), config, request())
    assert known.retention.removed_base_offsets == (0, 10)


def test_a_survey_leaves_open_how_long_records_have_waited_and_where_the_log_ends():
    config = compacted({"max.compaction.lag.ms": 1, "min.cleanable.dirty.ratio": 1})
    assert config.max_compaction_lag_ms < LONG_MAX
    found = survey_partition(listed(), config, request(cleaner_offset=500)).cleanable
    assert found is not None
    assert (found.first_dirty_offset, found.checkpoint_is_invalid) == (500, False)
    assert found.not_due is NotDue.NOTHING_TO_CLEAN
    dirty = survey_partition(listed(), config, request()).cleanable
    assert dirty is not None
    assert (dirty.cleanable_bytes, dirty.max_compaction_delay_ms) == (210, 0)
    assert dirty.not_due is NotDue.RATIO_BELOW_MINIMUM
