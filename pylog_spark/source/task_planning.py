"""The tasks of a query: small ranges of many partitions together, large segments in pieces."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from pylog_spark.source.options import SourceOptions
from storage_core.reading.planning import plan_ranges
from storage_core.reading.ranges import ReadRange

# To open a partition takes about as long as to read this much of one.
_OPEN_COST_BYTES: Final = 1 << 20


def plan_tasks(options: SourceOptions, *, now_ms: int) -> list[tuple[ReadRange, ...]]:
    """Return the ranges of each task, in the order of partitions and offsets; none for no records.

    Args:
        options: What the query asks for.
        now_ms: The query's clock, epoch milliseconds.

    Raises:
        PylogError: As of ``plan_ranges``.
    """
    request = options.request
    ranges = plan_ranges(request, now_ms=now_ms)
    tasks = pack_ranges(ranges, task_bytes=request.range_bytes, task_offsets=request.range_offsets)
    if options.min_partitions is None or not 0 < len(tasks) < options.min_partitions:
        return tasks
    # Smaller ones, once: it is a hint, as in Spark.
    total = sum(wanted.size_bytes for wanted in ranges)
    smaller = replace(request, range_bytes=max(1, total // options.min_partitions))
    ranges = plan_ranges(smaller, now_ms=now_ms)
    share = sum(map(_cost, ranges)) // options.min_partitions
    task_bytes = max(1, min(request.range_bytes, share))
    return pack_ranges(ranges, task_bytes=task_bytes, task_offsets=request.range_offsets)


def pack_ranges(
    ranges: Sequence[ReadRange], *, task_bytes: int, task_offsets: int | None
) -> list[tuple[ReadRange, ...]]:
    """Return ranges that follow each other as the work of tasks.

    Args:
        ranges: In the order in which they are to be read.
        task_bytes: How much a task reads, what it takes to open a partition included, unless one
            range is more.
        task_offsets: How many offsets a task's ranges have at most; they have ends then. None for
            no such bound.
    """
    tasks: list[tuple[ReadRange, ...]] = []
    task: list[ReadRange] = []
    size = offsets = 0
    for wanted in ranges:
        cost = _cost(wanted)
        span = 0 if wanted.end_offset is None else wanted.end_offset - wanted.start_offset
        is_full = size + cost > task_bytes
        if task and (is_full or (task_offsets is not None and offsets + span > task_offsets)):
            tasks.append(tuple(task))
            task, size, offsets = [], 0, 0
        task.append(wanted)
        size += cost
        offsets += span
    return [*tasks, tuple(task)] if task else tasks


def _cost(wanted: ReadRange) -> int:
    return wanted.size_bytes + _OPEN_COST_BYTES
