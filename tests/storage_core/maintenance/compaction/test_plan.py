"""Plans of rounds: capacity, groups, and what tasks get to read."""

import dataclasses
import json
import time

import pytest

from storage_core.config import CleanerConfig, OffsetMapHash
from storage_core.index.segment_indexes import AbortedTxn
from storage_core.json_values import from_json, to_json
from storage_core.log.open_transactions import TransactionRows
from storage_core.log.producer_snapshot import ProducerEntry
from storage_core.maintenance.compaction.merged import start_groups
from storage_core.maintenance.compaction.plan import (
    CACHED_BYTES,
    ActiveProducer,
    CompactionPlan,
    group_segments,
    map_capacity,
)
from tests.storage_core.maintenance.compaction.states import plan_of, segment

FAR = 2**31


def groups(plan: CompactionPlan, end_offset: int | None = None) -> list[list[int]]:
    end = plan.first_uncleanable_offset if end_offset is None else end_offset
    return [[s.base_offset for s in group] for group in group_segments(plan, end)]


# --- how many keys a map holds


@pytest.mark.item("CMP-09")
@pytest.mark.item("CMP-10")
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
