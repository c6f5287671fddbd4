"""Rounds that are refused: before their lag, of records without keys, of negative timestamps.

Kafka's cleaner makes the first two. It gives a log up where a batch with a timestamp below -1 loses
other records, for it cannot write such a batch anew. Only a round tells; so one is made without
output where the first batch of a segment shows such a timestamp, and nowhere else.
"""

from contextlib import closing

from storage_core.config import LogConfig
from storage_core.errors import BadBytesError, KeylessRecordsError, NegativeTimestampError
from storage_core.log.transaction_tracker import TransactionTracker
from storage_core.maintenance.compaction.candidates import CleanableRange
from storage_core.maintenance.compaction.pass_one import index_round
from storage_core.maintenance.compaction.plan import CompactionPlan, group_segments
from storage_core.maintenance.compaction.rewrite import measure_groups
from storage_core.maintenance.partition_state import PartitionState
from storage_core.maintenance.segment_ages import check_segment_ages
from storage_core.records.reader import scan_headers
from storage_core.store.base import LogStore


def refuse_before_lag(
    store: LogStore,
    state: PartitionState,
    cleanable: CleanableRange,
    config: LogConfig,
    *,
    now_ms: int,
) -> None:
    """Refuse segments that are old enough only by an age that their records contradict. Records
    younger than ``min.compaction.lag.ms`` stay, whatever a time index says of them."""
    if config.min_compaction_lag_ms > 0:
        first, end = cleanable.first_dirty_offset, cleanable.first_uncleanable_offset
        check_segment_ages(
            store,
            {file.name for file in store.list_files()},
            [each for each in state.segments if first <= each.base_offset < end],
            limit_ms=now_ms - config.min_compaction_lag_ms + 1,
        )


def refuse_keyless(location: str, *, keyless: int, records: int) -> None:
    """Refuse a round that would drop most records for lacking a key.

    Kafka drops records without a key. A log that was written under the policy delete consists of
    them.

    Args:
        keyless: Records without a key that the round drops.
        records: Records that the round reads.
    """
    if 2 * keyless > records:
        raise KeylessRecordsError(location, keyless, records)


def refuse_negative_timestamps(store: LogStore, plan: CompactionPlan) -> None:
    """Refuse a round with a negative timestamp, if cheaply visible. The round would end at it."""
    sources = plan.segments_below(plan.first_uncleanable_offset)
    if plan.keeps_negative_timestamps or not any(
        _begins_negative(store, segment.log_file) for segment in sources
    ):
        return
    try:
        index = index_round(store, plan)
        groups = group_segments(plan, index.end_offset)
        with closing(measure_groups(store, plan, index, groups, TransactionTracker())) as measured:
            for _ in measured:
                pass
    except NegativeTimestampError:
        raise
    except BadBytesError:
        return  # the round itself tells of it


def _begins_negative(store: LogStore, name: str) -> bool:
    """Whether the header of a segment's first batch shows a negative timestamp."""
    with closing(store.open_file(name)) as reader:
        try:
            first = next(scan_headers(reader, window_bytes=1), None)
        except BadBytesError:
            return False
        return first is not None and bool(first.batches.has_negative_timestamp[0])
