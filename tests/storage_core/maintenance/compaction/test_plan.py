"""What may be cleaned, whether it is due, and the plan of a round."""

import dataclasses
import json
import time
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from storage_core.checkpoint.checkpoints import PartitionCheckpoints
from storage_core.config import CleanerConfig, LogConfig, OffsetMapHash
from storage_core.config.values import LONG_MAX
from storage_core.index.segment_indexes import AbortedTxn
from storage_core.json_values import from_json, to_json
from storage_core.kernels import compaction_walk as walk
from storage_core.log.loaded_log import SegmentState
from storage_core.log.open_transactions import TransactionRows
from storage_core.log.producer_snapshot import ProducerEntry
from storage_core.maintenance.compaction.merged import start_groups
from storage_core.maintenance.compaction.plan import (
    CACHED_BYTES,
    ActiveProducer,
    CleanableRange,
    CleanRequest,
    CompactionFacts,
    CompactionPlan,
    NotDue,
    choose_range,
    group_segments,
    map_capacity,
    segments_between,
)
from storage_core.maintenance.listings import NO_END, CheckpointColumns, Listings
from storage_core.maintenance.partition_state import PartitionState
from tests.kit.builders import SOME_TIME_MS
from tests.storage_core.maintenance.compaction.states import compacted, log_of, plan_of, segment

FAR = 2**31


def groups(plan: CompactionPlan, end_offset: int | None = None) -> list[list[int]]:
    end = plan.first_uncleanable_offset if end_offset is None else end_offset
    return [[s.base_offset for s in group] for group in group_segments(plan, end)]


# --- how many keys a map holds


@pytest.mark.item("CMP-09", "CMP-10")
@pytest.mark.parametrize(
    ("settings", "keys"),
    [
        pytest.param({"dedupe_buffer_bytes": None}, None, id="no size, no limit"),
        pytest.param({"dedupe_buffer_bytes": 134_217_728}, 5_033_164, id="Kafka's default"),
        pytest.param({"dedupe_buffer_bytes": 20 * 24}, 18, id="20 slots hold 18 keys"),
        pytest.param({"dedupe_buffer_bytes": 20 * 24 + 23}, 18, id="no part of a slot counts"),
        pytest.param({"dedupe_buffer_bytes": 34 * 24}, 30, id="34 slots hold 30 keys"),
        pytest.param({"dedupe_buffer_bytes": 24}, 0, id="one slot holds none"),
        pytest.param({"dedupe_buffer_bytes": 480, "threads": 2}, 9, id="threads share it"),
        pytest.param({"dedupe_buffer_bytes": 480, "load_factor": 0.5}, 10, id="half full"),
        pytest.param({"dedupe_buffer_bytes": 480, "load_factor": 1.0}, 20, id="every slot"),
        pytest.param(
            {"dedupe_buffer_bytes": 2**40, "load_factor": 1.0},
            (2**31 - 1) // 24,
            id="at most 2 GiB",
        ),
    ],
)
def test_a_map_holds_a_share_of_the_slots_that_its_memory_has(settings, keys):
    assert map_capacity(CleanerConfig(**settings)) == keys


# --- groups


@pytest.mark.item("CMP-16")
@pytest.mark.parametrize(
    ("sizes", "expected"),
    [
        pytest.param([50, 50, 1], [[0, 10], [20]], id="exactly segment.bytes, then one more"),
        pytest.param([51, 50, 50], [[0], [10, 20]], id="one byte too many"),
        pytest.param([101, 1, 1], [[0], [10, 20]], id="one segment alone is too large"),
        pytest.param([0, 0, 0], [[0, 10, 20]], id="empty segments"),
        pytest.param([40, 40, 40], [[0, 10], [20]], id="the third does not fit"),
    ],
)
def test_a_group_takes_segments_until_segment_bytes_is_reached(sizes, expected):
    segments = [segment(10 * i, size) for i, size in enumerate(sizes)] + [segment(30)]
    plan = dataclasses.replace(plan_of(segments), segment_bytes=100)
    assert groups(plan) == expected


@pytest.mark.item("CMP-16")
@pytest.mark.parametrize("field", ["offset_index_bytes", "time_index_bytes"])
def test_a_group_takes_segments_until_an_index_is_full(field):
    sizes = [40, 60, 1, 99, 2]
    segments = [segment(10 * i, **{field: size}) for i, size in enumerate(sizes)] + [segment(50)]
    plan = dataclasses.replace(plan_of(segments), segment_index_bytes=100)
    assert groups(plan) == [[0, 10], [20, 30], [40]]


@pytest.mark.item("CMP-16")
@pytest.mark.parametrize(
    ("next_base", "expected"),
    [
        pytest.param(FAR, [[0, 10], [FAR]], id="its last possible offset is in reach"),
        pytest.param(FAR + 1, [[0], [10], [FAR + 1]], id="it is one too far"),
    ],
)
def test_a_segment_joins_only_if_its_last_possible_offset_is_in_reach(next_base, expected):
    segments = [segment(0), segment(10), segment(next_base), segment(next_base + 10)]
    plan = plan_of(segments)
    assert groups(plan) == expected


@pytest.mark.item("CMP-16")
def test_an_empty_segment_may_join_from_afar():
    segments = [segment(0), segment(FAR * 2, 0), segment(FAR * 3)]
    assert groups(plan_of(segments)) == [[0, FAR * 2]]


@pytest.mark.item("CMP-16")
@pytest.mark.parametrize(
    ("end", "expected"),
    [
        pytest.param(FAR, [[0, 10]], id="the range ends in reach"),
        pytest.param(FAR + 1, [[0], [10]], id="the range ends one too far"),
    ],
)
def test_the_last_segments_last_possible_offset_is_the_end_of_the_range(end, expected):
    segments = [segment(0), segment(10), segment(end)]
    assert groups(plan_of(segments, first_uncleanable_offset=end)) == expected


@pytest.mark.item("CMP-16")
def test_a_round_that_ended_early_groups_only_what_it_reached():
    segments = [segment(0), segment(10), segment(20), segment(30)]
    assert groups(plan_of(segments), end_offset=11) == [[0, 10]]
    assert groups(plan_of(segments), end_offset=10) == [[0]]
    assert groups(plan_of(segments), end_offset=0) == []


# --- what tasks read


def aborted(producer_id: int, first: int, last: int, stable: int | None = None) -> AbortedTxn:
    return AbortedTxn(
        producer_id=producer_id,
        first_offset=first,
        last_offset=last,
        last_stable_offset=last + 1 if stable is None else stable,
    )


WITH_ABORTED = [
    segment(0, aborted=(aborted(1, 2, 5),), has_txn_index=True),
    segment(10),
    segment(20, aborted=(aborted(2, 3, 21), aborted(3, 20, 24)), has_txn_index=True),
    segment(30),
]


@pytest.mark.parametrize(
    ("base", "producers"),
    [
        pytest.param(0, [1, 2], id="one that began there and ended later"),
        pytest.param(10, [2], id="one that spans it"),
        pytest.param(20, [2, 3], id="those that ended there"),
    ],
)
def test_aborted_transactions_that_reach_into_a_segment_are_found(base, producers):
    found = plan_of(WITH_ABORTED).aborted_near(base)
    assert [entry.producer_id for entry in found] == producers


def test_aborted_transactions_that_ended_before_the_log_start_do_not_count():
    plan = plan_of(WITH_ABORTED, log_start_offset=6)
    assert [entry.producer_id for entry in plan.aborted_near(0)] == [2]


def test_a_plan_survives_its_way_through_json():
    plan = plan_of(
        WITH_ABORTED,
        cleaner=CleanerConfig(dedupe_buffer_bytes=480, offset_map_hash=OffsetMapHash.MD5),
        overrides={"delete.retention.ms": 7},
        producers=(ProducerEntry(producer_id=5, producer_epoch=2, last_offset=9),),
        high_watermark=33,
    )
    again = from_json(CompactionPlan, to_json(plan))
    assert again == plan
    assert again.producers == (ActiveProducer(producer_id=5, producer_epoch=2, last_data_offset=9),)
    assert (again.delete_retention_ms, again.high_watermark, again.max_keys) == (7, 33, 18)
    assert set(json.loads(to_json(plan))) == {
        field.name for field in dataclasses.fields(CompactionPlan)
    }


def test_limits_are_those_of_topic_and_cleaner():
    plan = plan_of(
        [segment(0), segment(10)],
        overrides={"max.decompressed.message.bytes": 2000},
        cleaner=CleanerConfig(max_decompressed_batch_bytes=3000),
    )
    assert (plan.limits.max_record_bytes, plan.limits.max_batch_bytes) == (2000, 3000)


def test_what_is_asked_once_a_segment_does_not_cost_as_much_as_there_are_segments():
    """20,000 segments, some of them with an aborted transaction: this took minutes."""
    many, each = 20_000, 1_000

    def aborted(base: int) -> tuple[AbortedTxn, ...]:
        offsets = {"first_offset": base, "last_offset": base + 5, "last_stable_offset": base + 6}
        return (AbortedTxn(producer_id=7, **offsets),)

    segments = [segment(10 * n, aborted=() if n % each else aborted(10 * n)) for n in range(many)]
    plan = plan_of(segments, overrides={"internal.segment.bytes": 1_000_000_000})
    nothing = TransactionRows.concatenate([])
    began = time.process_time()
    (start,) = start_groups(
        plan, 10 * (many - 1), {known.base_offset: nothing for known in plan.round_segments}
    )
    assert len(start.base_offsets) == many - 1
    assert len(plan.aborted_of_round) == many // each
    assert [plan.number_of_dirty[base] for base in (0, 10, 199_980)] == [0, 1, 19_998]
    assert time.process_time() - began < 5
    # A task asks for these once a segment or a group.
    for name in ("round_segments", "number_of_dirty", "by_base_offset", "aborted_of_round"):
        assert getattr(plan, name) is getattr(plan, name)
    assert plan.round_bytes == vars(plan)["round_bytes"]


# --- how segments are read


@pytest.mark.parametrize("threads", [1, 2, 5])
@pytest.mark.parametrize("window_bytes", [6_000, CACHED_BYTES, 8 * CACHED_BYTES])
def test_one_thread_has_windows_in_the_cache_and_several_those_of_two_or_four_that_are_mapped(
    threads, window_bytes
):
    large = segment(0, 1 << 30)
    plan = plan_of([large, segment(100)], cleaner=CleanerConfig(window_bytes=window_bytes))
    pace = plan.pace(threads)
    assert pace.threads == threads
    assert pace.at_once * pace.window_bytes <= (1 if threads == 1 else 2) * window_bytes
    mapped = plan.pace(threads, is_mapped=True)
    if threads == 1:
        assert pace.window_bytes == min(window_bytes, CACHED_BYTES)
        assert mapped.window_bytes == window_bytes
    else:
        assert pace.window_bytes == 2 * window_bytes // pace.at_once
        assert mapped.window_bytes == min(4, pace.at_once) * window_bytes // pace.at_once


NOW = SOME_TIME_MS
# Bases 0, 10, 20, 30; the last one is active, and the log ends at 40.
FOUR = [segment(0), segment(10), segment(20), segment(30)]


def chosen(
    segments: Sequence[SegmentState] = FOUR,
    *,
    config: LogConfig | None = None,
    checkpoint: int | None = None,
    log: dict[str, Any] | None = None,
    **request: Any,
) -> CleanableRange:
    return choose_range(
        PartitionState.of_log(log_of(segments, **log or {})),
        config or compacted(),
        CleanRequest(
            now_ms=NOW, checkpoints=PartitionCheckpoints(cleaner_offset=checkpoint), **request
        ),
    )


def span(cleanable: CleanableRange) -> tuple[int, int]:
    return cleanable.first_dirty_offset, cleanable.first_uncleanable_offset


def weights(cleanable: CleanableRange) -> tuple[int, int]:
    return cleanable.clean_bytes, cleanable.cleanable_bytes


# --- first dirty offset


@pytest.mark.item("CMP-02")
@pytest.mark.parametrize(
    ("checkpoint", "first_dirty", "is_invalid"),
    [
        pytest.param(None, 5, False, id="never cleaned"),
        pytest.param(-(2**63), 5, True, id="below every offset"),
        pytest.param(4, 5, True, id="below the log start"),
        pytest.param(5, 5, False, id="at the log start"),
        pytest.param(17, 17, False, id="inside a segment"),
        pytest.param(40, 40, False, id="at the log end"),
        pytest.param(41, 5, True, id="above the log end"),
    ],
)
def test_a_checkpoint_outside_of_the_log_is_replaced_by_the_log_start(
    checkpoint, first_dirty, is_invalid
):
    cleanable = chosen(checkpoint=checkpoint, log={"log_start_offset": 5})
    assert cleanable.first_dirty_offset == first_dirty
    assert cleanable.checkpoint_is_invalid == is_invalid


# --- first uncleanable offset


@pytest.mark.item("CMP-03")
def test_the_active_segment_is_left_alone():
    assert span(chosen()) == (0, 30)


@pytest.mark.item("CMP-03", "CMP-04")
@pytest.mark.parametrize(
    ("last_stable_offset", "end"),
    [
        pytest.param(40, 30, id="above the active segment's base"),
        pytest.param(30, 30, id="at the active segment's base"),
        pytest.param(29, 20, id="in the middle of a segment"),
        pytest.param(20, 20, id="at a segment's base"),
        pytest.param(19, 10, id="just below a segment's base"),
        pytest.param(3, 0, id="in the first segment"),
    ],
)
def test_nothing_from_the_segment_of_the_last_stable_offset_on_is_cleaned(last_stable_offset, end):
    cleanable = chosen(log={"last_stable_offset": last_stable_offset})
    assert span(cleanable) == (0, end)


@pytest.mark.item("CMP-03")
@pytest.mark.parametrize(
    ("age_ms", "end"),
    [
        pytest.param(60_000, 30, id="as old as the lag"),
        pytest.param(59_999, 10, id="a millisecond younger"),
    ],
)
def test_a_segment_younger_than_the_lag_ends_the_range(age_ms, end):
    segments = [
        segment(0, max_timestamp=NOW - 100_000),
        segment(10, max_timestamp=NOW - age_ms),
        segment(20, max_timestamp=NOW - 100_000),
        segment(30),
    ]
    config = compacted({"min.compaction.lag.ms": 60_000})
    assert span(chosen(segments, config=config)) == (0, end)


@pytest.mark.item("CMP-03")
def test_without_a_lag_the_age_does_not_count():
    segments = [segment(0, max_timestamp=NOW + 10**9), segment(10), segment(20), segment(30)]
    assert span(chosen(segments)) == (0, 30)


@pytest.mark.item("CMP-03")
def test_the_lag_of_clean_segments_does_not_count():
    segments = [segment(0), segment(10, max_timestamp=0), segment(20, max_timestamp=0), segment(30)]
    config = compacted({"min.compaction.lag.ms": 60_000})
    assert span(chosen(segments, config=config, checkpoint=10)) == (10, 30)
    assert span(chosen(segments, config=config, checkpoint=9)) == (9, 0)


@pytest.mark.item("CMP-03")
def test_a_segment_without_timestamps_is_as_old_as_its_file():
    segments = [segment(0, max_timestamp=-1, modified_ms=NOW - 10), segment(10), segment(30)]
    config = compacted({"min.compaction.lag.ms": 11})
    assert span(chosen(segments, config=config)) == (0, 0)


@pytest.mark.item("CMP-03")
def test_the_end_is_not_below_the_first_dirty_offset_before_it_is_rounded():
    cleanable = chosen(checkpoint=25, log={"last_stable_offset": 3})
    assert span(cleanable) == (25, 20)
    assert weights(cleanable) == (300, 0)
    assert cleanable.not_due is NotDue.NOTHING_TO_CLEAN


# --- weights and ratio


@pytest.mark.item("CMP-05")
@pytest.mark.parametrize(
    ("checkpoint", "clean", "cleanable"),
    [
        pytest.param(0, 0, 700, id="all dirty"),
        pytest.param(10, 100, 600, id="at a base"),
        pytest.param(11, 300, 600, id="inside a segment, which counts twice"),
        pytest.param(29, 700, 400, id="inside the last one"),
        pytest.param(30, 700, 0, id="all clean"),
    ],
)
def test_both_sides_of_the_first_dirty_offset_are_weighed(checkpoint, clean, cleanable):
    segments = [segment(0, 100), segment(10, 200), segment(20, 400), segment(30, 9999)]
    weighed = chosen(segments, checkpoint=checkpoint)
    assert weights(weighed) == (clean, cleanable)
    assert weighed.cleanable_ratio == cleanable / (clean + cleanable)


@pytest.mark.item("CMP-06")
@pytest.mark.parametrize(
    ("dirty_bytes", "is_due"),
    [(99, False), (100, False), (101, True)],
    ids=["less", "half", "more"],
)
def test_half_dirty_at_a_half_is_not_enough(dirty_bytes, is_due):
    segments = [segment(0, 100), segment(10, dirty_bytes), segment(20)]
    cleanable = chosen(
        segments, checkpoint=10, config=compacted({"min.cleanable.dirty.ratio": 0.5})
    )
    assert cleanable.is_due == is_due
    assert cleanable.not_due == (None if is_due else NotDue.RATIO_BELOW_MINIMUM)


@pytest.mark.item("CMP-06")
@pytest.mark.parametrize(
    ("size", "not_due"), [(1, None), (0, NotDue.NOTHING_TO_CLEAN)], ids=["a byte", "no byte"]
)
def test_at_a_minimum_of_zero_something_has_to_be_dirty(size, not_due):
    segments = [segment(0, 100), segment(10, size), segment(20)]
    config = compacted({"min.cleanable.dirty.ratio": 0})
    assert chosen(segments, checkpoint=10, config=config).not_due is not_due


def test_an_empty_log_has_nothing_to_clean():
    cleanable = chosen([segment(0, 0), segment(10, 0)])
    assert cleanable.not_due is NotDue.NOTHING_TO_CLEAN
    assert cleanable.cleanable_ratio == 0.0


def test_a_topic_that_is_not_compacted_is_not_due():
    config = LogConfig.from_topic_overrides({"cleanup.policy": "delete"})
    assert chosen(config=config).not_due is NotDue.NOT_COMPACTED


def test_a_topic_that_is_compacted_and_deleted_is_compacted():
    assert chosen(config=compacted({"cleanup.policy": "compact,delete"})).is_due


def test_only_the_active_segment_is_nothing_to_clean():
    cleanable = chosen([segment(0)])
    assert span(cleanable) == (0, 0)
    assert cleanable.not_due is NotDue.NOTHING_TO_CLEAN


# --- max.compaction.lag.ms


@pytest.mark.item("CMP-07")
@pytest.mark.parametrize(
    ("age_ms", "delay_ms"),
    [
        pytest.param(59_999, 0, id="younger"),
        pytest.param(60_000, 0, id="as old as the lag"),
        pytest.param(60_001, 1, id="a millisecond older"),
    ],
)
def test_a_record_older_than_the_maximum_lag_forces_a_round(age_ms, delay_ms):
    segments = [
        segment(0, 900, first_batch_timestamp=1),
        segment(10, 1, first_batch_timestamp=NOW),
        segment(20, 1, first_batch_timestamp=NOW - age_ms),
        segment(30, first_batch_timestamp=1),
    ]
    config = compacted({"max.compaction.lag.ms": 60_000, "min.cleanable.dirty.ratio": 1})
    cleanable = chosen(segments, checkpoint=10, config=config)
    assert cleanable.max_compaction_delay_ms == delay_ms
    assert cleanable.is_due == (delay_ms > 0)


@pytest.mark.item("CMP-07")
def test_the_maximum_lag_forces_nothing_where_no_byte_may_be_cleaned():
    config = compacted({"max.compaction.lag.ms": 1, "min.cleanable.dirty.ratio": 1})
    segments = [segment(0, first_batch_timestamp=1), segment(10)]
    cleanable = chosen(segments, config=config, log={"last_stable_offset": 0})
    assert cleanable.max_compaction_delay_ms > 0
    assert cleanable.not_due is NotDue.NOTHING_TO_CLEAN


@pytest.mark.item("CMP-07")
@pytest.mark.parametrize("timestamp", [-(2**63), -1, 0], ids=["least", "none", "zero"])
def test_a_first_batch_without_a_timestamp_does_not_count(timestamp):
    segments = [segment(0, first_batch_timestamp=timestamp), segment(10)]
    config = compacted({"max.compaction.lag.ms": 1})
    assert chosen(segments, config=config).max_compaction_delay_ms == 0


def test_without_a_maximum_lag_nothing_is_late():
    segments = [segment(0, first_batch_timestamp=1), segment(10)]
    assert chosen(segments).max_compaction_delay_ms == 0


# --- a range of the caller's own choice


@pytest.mark.parametrize(
    ("first", "end", "expected"),
    [
        pytest.param(0, None, (0, 30), id="up to the active segment"),
        pytest.param(12, 25, (12, 20), id="the end goes down to a base"),
        pytest.param(0, 10, (0, 10), id="the end is a base"),
        pytest.param(20, 20, (20, 20), id="nothing"),
        pytest.param(0, 1000, (0, 30), id="the end is above the log"),
    ],
)
def test_a_range_that_was_asked_for_is_due_whatever_the_ratio(first, end, expected):
    cleanable = chosen(
        config=compacted({"min.cleanable.dirty.ratio": 1}),
        log={"last_stable_offset": 0},
        first_dirty_offset=first,
        first_uncleanable_offset=end,
    )
    assert span(cleanable) == expected
    assert cleanable.is_due


@pytest.mark.parametrize(
    ("first", "end", "bases"),
    [
        (0, 30, [0, 10, 20]),
        (10, 30, [10, 20]),
        (15, 30, [10, 20]),
        (0, 11, [0, 10]),
        (10, 10, []),
        (30, 10, []),
    ],
)
def test_segments_between_begin_with_the_one_that_holds_the_first_offset(first, end, bases):
    assert [s.base_offset for s in segments_between(FOUR, first, end)] == bases


# --- very many partitions at once


def test_listings_are_decided_about_as_each_log_is_alone():
    # Bases 0, 10, 20 of 100 bytes, where each log ends, its marks, and its lags.
    rows = [
        (25, 0, None, None, 0, LONG_MAX),
        (25, 0, 20, None, 0, LONG_MAX),
        (25, 12, 10, None, 0, LONG_MAX),
        (25, 0, 10, 15, 0, LONG_MAX),
        (25, 0, 99, None, 0, LONG_MAX),
        (25, 0, 20, None, 9, 9),
    ]
    ends, log_starts, cleaned, marks, min_lags, max_lags = zip(*rows, strict=True)
    configs = [lagging(*lags) for lags in zip(min_lags, max_lags, strict=True)]
    answers = CompactionFacts.of_listings(
        listings(ends), configs, checkpoints(log_starts, cleaned, marks)
    ).decide(now_ms=NOW)
    assert not answers[walk.MISSING].any()
    for (end, start, checkpoint, mark, *_), config, answer in zip(
        rows, configs, answers.T.tolist(), strict=True
    ):
        wanted = chosen(
            [segment(0), segment(10), segment(20)],
            config=config,
            checkpoint=checkpoint,
            log={
                "log_start_offset": start,
                "log_end_offset": end,
                "last_stable_offset": end if mark is None else mark,
            },
        )
        assert (answer[walk.FIRST_DIRTY_OFFSET], answer[walk.FIRST_UNCLEANABLE_OFFSET]) == span(
            wanted
        )
        assert (answer[walk.CLEAN_BYTES], answer[walk.CLEANABLE_BYTES]) == weights(wanted)
        assert answer[walk.HAS_INVALID_CHECKPOINT] == wanted.checkpoint_is_invalid
        assert (answer[walk.VERDICT] == walk.DUE) == wanted.is_due


@pytest.mark.parametrize(
    ("end", "lags", "missing"),
    [
        pytest.param(NO_END, (0, LONG_MAX), walk.LOG_END, id="where the log ends"),
        pytest.param(25, (1, LONG_MAX), walk.TIMESTAMP, id="how young its records are"),
        pytest.param(25, (0, 1), walk.FIRST_BATCH, id="how old they are"),
    ],
)
def test_a_listing_says_which_fact_it_lacks(end, lags, missing):
    answers = CompactionFacts.of_listings(
        listings([end]), [lagging(*lags)], checkpoints([0], [10], [None])
    ).decide(now_ms=NOW)
    assert answers[walk.MISSING, 0] == missing


def listings(ends: Sequence[int]) -> Listings:
    """Logs with segments at 0, 10 and 20, of 100 bytes each."""
    count = len(ends)
    return Listings(
        places=np.arange(count),
        starts=np.arange(count) * 3,
        base_offsets=np.tile([0, 10, 20], count),
        sizes=np.full(count * 3, 100),
        times_ms=np.full(count * 3, NOW),
        oldest_timestamps=np.zeros(count, np.int64),
        has_age=np.zeros(count, np.bool_),
        log_ends=np.array(ends),
    )


def lagging(min_lag_ms: int, max_lag_ms: int) -> LogConfig:
    return compacted({"min.compaction.lag.ms": min_lag_ms, "max.compaction.lag.ms": max_lag_ms})


def checkpoints(log_starts, cleaned, marks) -> CheckpointColumns:
    """What the checkpoints say of some logs."""
    return CheckpointColumns.of(
        [
            PartitionCheckpoints(log_start_offset=start, cleaner_offset=at, high_watermark=mark)
            for start, at, mark in zip(log_starts, cleaned, marks, strict=True)
        ]
    )
