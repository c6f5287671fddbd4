"""What a round would make of partitions, exactly: both passes, without output."""

from collections.abc import Iterable, Iterator
from contextlib import closing
from functools import partial
from typing import Any

import pyarrow as pa

from pylog_spark.rows import rows_to_batches
from pylog_spark.schemas import MEASURED
from pylog_spark.tasks.failures import attempt
from pylog_spark.tasks.observe import decode_plan
from pylog_spark.tasks.record_count import count_if_readable, count_records
from storage_core.log.transaction_tracker import TransactionTracker
from storage_core.maintenance.compaction.pass_one import index_round
from storage_core.maintenance.compaction.plan import group_segments
from storage_core.maintenance.compaction.rewrite import RewriteStats, measure_groups
from storage_core.store import open_store


def measure_partitions(items: Iterable[tuple[int, bytes]]) -> Iterator[pa.RecordBatch]:
    """Measure partitions, one after the other: a row of ``schemas.MEASURED`` each.

    Args:
        items: Ordinal of each, and its plan as ``encode_plan`` wrote it.
    """
    yield from rows_to_batches(
        MEASURED,
        ({"ordinal": ordinal} | attempt(partial(_measure, plan)) for ordinal, plan in items),
    )


def _measure(content: bytes) -> dict[str, Any]:
    plan = decode_plan(content)
    store = open_store(plan.location)
    index = index_round(store, plan)
    tracker = TransactionTracker()
    groups = group_segments(plan, index.end_offset)
    with closing(measure_groups(store, plan, index, groups, tracker)) as measured:
        stats = sum(measured, RewriteStats())
    untouched = [s for s in plan.segments if s.base_offset >= index.end_offset]
    sources = [segment.log_file for group in groups for segment in group]
    read = count_records(store, sources)
    others = count_if_readable(store, [segment.log_file for segment in untouched])
    return {
        "bytes_after": stats.bytes_written + sum(s.size_bytes for s in untouched),
        "segments_after": len(groups) + len(untouched),
        "records_before": None if others is None else read + others,
        "records_after": None if others is None else stats.messages_written + others,
    }
