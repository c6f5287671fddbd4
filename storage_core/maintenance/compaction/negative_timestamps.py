"""Refuse a round before it ends at a negative timestamp. Kafka's cleaner ends there, too.

Brokers take timestamps below -1. The cleaner cannot write such a record anew, and gives the log up
where a batch that has one loses other records. Only a round tells; so one is made without output
where the first batch of a segment shows such a timestamp, and nowhere else.
"""

from contextlib import closing

from storage_core.errors import BadBytesError, NegativeTimestampError
from storage_core.log.transaction_tracker import TransactionTracker
from storage_core.maintenance.compaction.pass_one import index_round
from storage_core.maintenance.compaction.plan import CompactionPlan, group_segments
from storage_core.maintenance.compaction.rewrite import measure_groups
from storage_core.records.reader import scan_headers
from storage_core.store.base import LogStore


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
