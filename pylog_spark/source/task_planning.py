"""The tasks of a query: small ranges together, large segments in pieces. One task may read small
ranges of many partitions.

Views of files are a task for some dozens of partitions; those of whole roots one for all of them.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from pylog_spark.source.options import SourceOptions
from pylog_spark.tasks.views import ViewPart
from storage_core.filenames import TopicPartition
from storage_core.reading.planning import choose_places, find_places, plan_ranges
from storage_core.reading.ranges import ReadRange
from storage_core.reading.request import ReadRequest
from storage_core.roots.root import Root
from storage_core.store.open_objects import name_root

# Opening a partition takes about as long as reading this much of one.
_OPEN_COST_BYTES: Final = 1 << 20
# Each task lists its root anew, which costs as much as reading some partitions.
_PARTITIONS_A_TASK: Final = 64


def plan_tasks(options: SourceOptions, *, now_ms: int) -> list[tuple[ReadRange, ...]]:
    """Return each task's ranges, in the order of partitions and offsets. The result is empty if
    there are no records.

    Args:
        options: The query's options.
        now_ms: The query's clock, epoch milliseconds.

    Raises:
        PylogError: The errors of ``plan_ranges``.
    """
    request = options.request
    ranges = plan_ranges(request, now_ms=now_ms)
    tasks = pack_ranges(ranges, task_bytes=request.range_bytes, task_offsets=request.range_offsets)
    if options.min_partitions is None or not 0 < len(tasks) < options.min_partitions:
        return tasks
    # Smaller ones are cut once: it is a hint, as in Spark.
    total = sum(wanted.size_bytes for wanted in ranges)
    smaller = replace(request, range_bytes=max(1, total // options.min_partitions))
    ranges = plan_ranges(smaller, now_ms=now_ms)
    share = sum(map(_cost, ranges)) // options.min_partitions
    task_bytes = max(1, min(request.range_bytes, share))
    return pack_ranges(ranges, task_bytes=task_bytes, task_offsets=request.range_offsets)


def plan_parts(request: ReadRequest, *, is_of_roots: bool, now_ms: int) -> list[ViewPart]:
    """Return each task's part of a view, in order of partitions.

    Args:
        is_of_roots: Whether the view is of roots as a whole, whatever partitions are chosen.
        now_ms: The query's clock, epoch milliseconds.

    Raises:
        ConfigError: A topic or partition is not there, or a partition is there several times.
        StorageError: A directory cannot be listed.
    """
    place_of = choose_places(request)
    topics = None if request.choice.is_everything else frozenset(p.topic for p in place_of)
    if is_of_roots:
        places = find_places(request.paths).values()
        roots = dict.fromkeys(_path_of(place.root) for several in places for place in several)
        return [ViewPart(roots=tuple(roots), partitions=(), topics=topics, now_ms=now_ms)]
    by_root: dict[str, list[tuple[TopicPartition, str]]] = {}
    for partition, place in place_of.items():
        by_root.setdefault(_path_of(place.root), []).append((partition, place.location))
    return [
        ViewPart(
            roots=(root,),
            partitions=tuple(partitions[first : first + _PARTITIONS_A_TASK]),
            topics=topics,
            now_ms=now_ms,
        )
        for root, partitions in by_root.items()
        for first in range(0, len(partitions), _PARTITIONS_A_TASK)
    ]


def _path_of(root: Root) -> str:
    """Return what names a root wherever it is opened again."""
    return name_root(root.location, has_manifests=root.has_manifests)


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
