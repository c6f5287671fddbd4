"""Numbers of a round and of a run, defined as Kafka's cleaner defines them."""

import pytest

from storage_core.config import CleanerConfig
from storage_core.maintenance.compaction.index import IndexStats
from storage_core.maintenance.compaction.plan import map_slots
from storage_core.maintenance.compaction.rewrite import RewriteStats
from storage_core.maintenance.compaction.statistics import CleanedLog, CleanerStats, total_of

INDEX = IndexStats(bytes_read=900, messages_read=90, keys=30)
REWRITE = RewriteStats(
    messages_read=100,
    messages_written=25,
    bytes_read=1000,
    bytes_written=400,
    invalid_messages_read=3,
)


def stats(*, slots: int | None = 40, elapsed: float = 2.5) -> CleanerStats:
    return CleanerStats.of(INDEX, REWRITE, slots=slots, elapsed_secs=elapsed)


def log(
    ratio: float = 0.5, *, delay_ms: int = 0, failed: bool = False, of: CleanerStats | None = None
) -> CleanedLog:
    return CleanedLog(
        cleanable_ratio=ratio,
        cleanable_bytes=700,
        compaction_delay_ms=delay_ms,
        has_failed=failed,
        stats=of,
    )


@pytest.mark.item("CMP-46")
def test_both_passes_make_one_set_of_numbers():
    said = stats()
    assert (said.map_bytes_read, said.map_messages_read, said.keys) == (900, 90, 30)
    assert (said.bytes_read, said.bytes_written) == (1000, 400)
    assert (said.messages_read, said.messages_written, said.invalid_messages_read) == (100, 25, 3)
    assert said.buffer_utilization == 0.75
    assert (round(said.size_reduction, 3), said.message_reduction) == (0.6, 0.75)
    assert CleanerStats.from_json(said.to_json()) == said


@pytest.mark.item("CMP-46")
def test_a_map_without_a_limit_has_no_fill():
    assert stats(slots=None).buffer_utilization is None


@pytest.mark.item("CMP-46")
def test_slots_are_those_of_one_threads_share():
    # Kafka 4.4: 128 MiB over one thread, 24 bytes a slot.
    assert map_slots(CleanerConfig(dedupe_buffer_bytes=134_217_728)) == 5_592_405
    assert map_slots(CleanerConfig(dedupe_buffer_bytes=134_217_728, threads=2)) == 2_796_202
    assert map_slots(CleanerConfig()) is None


@pytest.mark.item("CMP-46")
def test_an_empty_round_divides_by_nothing():
    empty = CleanerStats.of(
        IndexStats(bytes_read=0, messages_read=0, keys=0), RewriteStats(), slots=1, elapsed_secs=0
    )
    assert (empty.size_reduction, empty.message_reduction) == (0.0, 0.0)


@pytest.mark.item("CMP-46", "CMP-43")
def test_the_totals_of_a_run_are_whole_percents_and_seconds_as_kafkas_gauges():
    totals = total_of(
        [
            log(0.999, of=stats(elapsed=61.9)),
            log(0.2, delay_ms=7999, of=stats(slots=31)),
            log(0.3, delay_ms=1, failed=True),
        ]
    )
    assert totals.max_dirty_percent == 99
    assert totals.cleaner_recopy_percent == 40
    assert totals.max_buffer_utilization_percent == 96
    assert totals.max_clean_time_secs == 61
    assert totals.max_compaction_delay_secs == 7
    assert (totals.cleanable_partitions, totals.delayed_partitions) == (3, 2)
    assert (totals.uncleanable_partitions_count, totals.uncleanable_bytes) == (1, 700)


@pytest.mark.item("CMP-46")
def test_a_run_with_nothing_due_has_totals_of_zero():
    totals = total_of([])
    assert (totals.max_dirty_percent, totals.cleaner_recopy_percent) == (0, 0)
    assert totals.uncleanable_partitions_count == 0
