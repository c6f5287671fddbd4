"""The two passes of a compaction and the merge between them. They read, and write only scratch
files.

An item of pass one is a segment, an item of pass two a group of segments. Each yields one row;
what is wrong with a partition becomes an error in the rows of its items, and the partition goes no
further. Keys travel in the rows, or in scratch files that all tasks of the host see; a key set
that is too large for both goes another way (``exchange.py``).
"""

import json
import uuid
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from itertools import groupby
from operator import attrgetter
from pathlib import Path
from typing import TypeVar

from pylog_spark.operations.compact.key_folder import new_prefix, remove_files
from pylog_spark.rows import Binary, Int32, Text, column
from pylog_spark.tasks.message import TaskMessage, attempt
from pylog_spark.tasks.observe import decode_plan
from pylog_spark.tasks.run_context import WriteContext
from storage_core.json_values import to_json
from storage_core.log.transaction_tracker import TransactionTracker
from storage_core.maintenance.compaction.index import CompactionIndex
from storage_core.maintenance.compaction.merged import (
    GroupStart,
    MergedIndex,
    merge_files,
    merge_indexes,
)
from storage_core.maintenance.compaction.partial import PartialIndex, index_segment
from storage_core.maintenance.compaction.plan import CompactionPlan
from storage_core.maintenance.compaction.rewrite import CleanedGroup, clean_groups
from storage_core.roots.root import RootAccess, root_of

T = TypeVar("T")
# (ordinal of the partition, number of the segment or group in it)
Item = tuple[int, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentKeyIndex(TaskMessage):
    """Pass one: the keys of one segment with their last offsets."""

    unit: Int32 = column("number of the task that merges")
    segment: int = column("number of the segment in the plan")
    index: Binary = column("the partial index, null with an error or where it is filed")
    path: Text = column("its scratch files but for their endings, null where it is not")


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionKeyIndex(TaskMessage):
    """The merge: all keys of one partition. The duration is that of the merge and of the partial
    indexes before it."""

    index: Binary = column("the merged index; null if too large, filed, or an error")
    path: Text = column("its scratch file, null where it is in no file")
    table_path: Text = column("that of its offset map, null where pass two needs none")
    numbers: str = column("what pass one read and found, as JSON")
    group_bytes: tuple[int, ...] = column("source bytes of each group, in group order")
    end_offset: int = column("the cleaner point after the round")


@dataclass(frozen=True, slots=True, kw_only=True)
class RewrittenGroup(TaskMessage):
    """Pass two: the attempt-private files that one group became."""

    group: int = column("number of the group in the merged index")
    manifest: str = column("the group's scratch files, sizes and counts, as JSON")
    numbers: Text = column("what pass one read and found; on one row of an exchange")


def index_segments(
    items: Iterable[Item],
    plans: Mapping[int, bytes],
    units: Mapping[int, int],
    context: WriteContext,
    *,
    filed: Collection[int] = (),
) -> Iterator[SegmentKeyIndex]:
    """Run pass one over segments of rounds.

    Args:
        plans: The plans, as ``encode_plan`` wrote them.
        filed: Partitions whose keys are put into scratch files.
    """
    # By partition: its plan is decoded once.
    for ordinal, number in sorted(items):
        head = SegmentKeyIndex(ordinal=ordinal, unit=units[ordinal], segment=number)
        index = partial(_index, plans[ordinal], context, ordinal in filed)
        yield attempt(head, index)


def _index(
    encoded: bytes,
    context: WriteContext,
    is_filed: bool,  # noqa: FBT001  # ``partial`` gives it
    head: SegmentKeyIndex,
) -> SegmentKeyIndex:
    """Index a segment, into its message or into files."""
    plan = decode_plan(encoded)
    access = context.roots[root_of(plan.location)]
    if is_filed:
        access.validate()
    read = partial(
        index_segment,
        access.open(plan.location),
        plan,
        plan.round_segments[head.segment],
        throttler=context.throttler(),
        threads=context.threads,
    )
    if not is_filed:
        return replace(head, index=read().to_bytes())
    prefix = new_prefix(access, plan.location, context)
    try:
        read(prefix=prefix)
    except BaseException:
        remove_files(prefix)
        raise
    return replace(head, path=str(prefix))


def merge_partitions(
    indexes: Iterable[SegmentKeyIndex],
    plans: Mapping[int, bytes],
    limits: Mapping[int, int | None],
    context: WriteContext,
) -> Iterator[PartitionKeyIndex]:
    """Merge the partial indexes of each partition. An error in any of them is the partition's; that
    of the first segment counts.

    Args:
        indexes: Ordered by partition and segment; all of a partition are there.
        limits: Bytes that the merged index of a partition may have; a larger one is left out. None
            where partial indexes and merged ones lie in scratch files.
    """
    for ordinal, some in groupby(indexes, key=attrgetter("ordinal")):
        segments = list(some)
        failure = next((each.failure for each in segments if each.failure), None)
        merged = PartitionKeyIndex(ordinal=ordinal, duration_ms=0)
        if failure is not None:
            merged = replace(merged, failure=failure)
        else:
            merge = partial(_merge, plans[ordinal], segments, limits[ordinal], context)
            merged = attempt(merged, merge)
        spent_ms = sum(each.duration_ms for each in segments)
        yield replace(merged, duration_ms=merged.duration_ms + spent_ms)


def _merge(
    encoded: bytes,
    segments: Sequence[SegmentKeyIndex],
    limit: int | None,
    context: WriteContext,
    head: PartitionKeyIndex,
) -> PartitionKeyIndex:
    """Merge the indexes of messages, or of files where no limit is."""
    plan = decode_plan(encoded)
    if limit is None:
        access = context.roots[root_of(plan.location)]
        access.validate()
        target = new_prefix(access, plan.location, context)
        try:
            paths = [Path(require(each.path)) for each in segments]
            file, table = merge_files(plan, paths, target)
        except BaseException:
            remove_files(target)
            raise
        merged = MergedIndex.from_file(file, table)
        head = replace(head, path=str(file), table_path=None if table is None else str(table))
    else:
        merged = merge_indexes(
            plan, [PartialIndex.from_bytes(require(each.index)) for each in segments]
        )
        content = merged.to_bytes()
        head = replace(head, index=content if len(content) <= limit else None)
    sizes = {segment.base_offset: segment.size_bytes for segment in plan.segments}
    return replace(
        head,
        group_bytes=tuple(sum(sizes[base] for base in g.base_offsets) for g in merged.groups),
        end_offset=merged.index.end_offset,
        numbers=to_json(merged.index.stats),
    )


def require(keys: T | None) -> T:
    """Return the keys of a message, or the path to them."""
    if keys is None:
        raise ValueError("the keys are not where the strategy of the round has them")
    return keys


def rewrite_groups(
    items: Iterable[Item],
    plans: Mapping[int, bytes],
    index_of: Callable[[int], MergedIndex],
    context: WriteContext,
) -> Iterator[RewrittenGroup]:
    """Pass two: rewrite groups of segments. What it writes lies outside of the log directory, under
    names that no other attempt has.

    Args:
        items: Partitions and numbers of groups in their merged indexes.
    """

    @lru_cache(maxsize=1)
    def opened(ordinal: int) -> tuple[CompactionPlan, MergedIndex]:
        return decode_plan(plans[ordinal]), index_of(ordinal)

    def rewrite(head: RewrittenGroup) -> RewrittenGroup:
        plan, merged = opened(head.ordinal)
        return rewrite_group(plan, merged.index, merged.groups[head.group], context, head)

    for ordinal, number in sorted(items):
        yield attempt(RewrittenGroup(ordinal=ordinal, group=number), rewrite)


def rewrite_group(
    plan: CompactionPlan,
    index: CompactionIndex,
    start: GroupStart,
    context: WriteContext,
    head: RewrittenGroup,
) -> RewrittenGroup:
    """Clean one group of segments. The new files are this attempt's own."""
    access = context.roots[root_of(plan.location)]
    access.validate()
    group = [plan.by_base_offset[base_offset] for base_offset in start.base_offsets]
    store = access.open(plan.location)
    name = f"{context.run.run_id}-{uuid.uuid4().hex}"
    cleaning = clean_groups(
        store,
        plan,
        index,
        [group],
        TransactionTracker.from_state(json.loads(start.tracker)),
        scratch=partial(access.scratch, plan.location),
        attempt=name,
        throttler=context.throttler(),
        threads=context.threads,
    )
    with closing(cleaning):
        cleaned = keep_group(access, plan.location, name, next(cleaning))
    return replace(head, manifest=to_json(cleaned))


def keep_group(access: RootAccess, location: str, name: str, cleaned: CleanedGroup) -> CleanedGroup:
    """Give a group's files to the root to keep, for its commit."""
    first = cleaned.base_offsets[0]
    return cleaned.moved(access.keep(location, name, first, cleaned.places, cleaned.gaps))
