"""Measure the exact result of a compaction round on partitions. Both passes run, without output."""

from collections.abc import Iterable, Iterator
from contextlib import closing
from dataclasses import dataclass, replace
from functools import partial
from typing import Final

from pylog_spark.rows import Number, column
from pylog_spark.tasks.message import TaskMessage, attempt
from pylog_spark.tasks.observe import decode_plan
from storage_core.errors import BadBytesError
from storage_core.log.transaction_tracker import TransactionTracker
from storage_core.maintenance.compaction.pass_one import index_round
from storage_core.maintenance.compaction.plan import group_segments
from storage_core.maintenance.compaction.rewrite import RewriteStats, measure_groups
from storage_core.records.payload import count_records_in
from storage_core.records.reader import Tail, read_whole, scan_headers
from storage_core.store import LogStore, open_store

_WINDOW_BYTES: Final = 8 * 1024 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundMeasurement(TaskMessage):
    """A round's effect on a partition, measured without writing."""

    bytes_after: int = column("bytes of all .log files")
    segments_after: int = column("segments of the partition")
    records_before: Number = column("records of the partition, null where some are damaged")
    records_after: Number = column("the same afterwards")
    messages_read: int = column("records looked at while cleaning")
    records_without_key: int = column("of these, records that go for they have no key")


def count_records(store: LogStore, files: Iterable[str]) -> int:
    """Return the number of records in .log files, control records included. What follows the
    last whole batch is not counted."""
    count = 0
    for name in files:
        with closing(store.open_file(name)) as reader:
            for window in scan_headers(reader, window_bytes=_WINDOW_BYTES, tail=Tail.ZEROS):
                is_opened = window.batches.is_message_set.any()
                count += count_records_in(read_whole(reader, window) if is_opened else window)
    return count


def count_if_readable(store: LogStore, files: Iterable[str]) -> int | None:
    """Count the records of segments outside a round; None if damaged.

    Damage there is no business of that round, and not known to it: the counts stay unknown then.
    """
    try:
        return count_records(store, files)
    except BadBytesError:
        return None


def measure_partitions(items: Iterable[tuple[int, bytes]]) -> Iterator[RoundMeasurement]:
    """Measure partitions, one after the other.

    Args:
        items: Ordinal of each, and its plan as ``encode_plan`` wrote it.
    """
    for ordinal, plan in items:
        yield attempt(RoundMeasurement(ordinal=ordinal), partial(_measure, plan))


def _measure(content: bytes, head: RoundMeasurement) -> RoundMeasurement:
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
    return replace(
        head,
        bytes_after=stats.bytes_written + sum(s.size_bytes for s in untouched),
        segments_after=len(groups) + len(untouched),
        messages_read=stats.messages_read,
        records_without_key=stats.invalid_messages_read,
        records_before=None if others is None else read + others,
        records_after=None if others is None else stats.messages_written + others,
    )
