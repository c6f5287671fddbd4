"""The two passes of a compaction and the merge between them.

They read, and write only scratch files.

An item of pass one is a segment, an item of pass two a group of segments. Each yields one row;
what is wrong with a partition becomes an error in the rows of its items, and the partition goes no
further. Keys travel in the rows, or in scratch files that all tasks of the host see; a key set
that is too large for both goes another way (``exchange.py``).
"""

import json
import uuid
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from functools import lru_cache, partial
from itertools import groupby
from pathlib import Path
from typing import Any

import pyarrow as pa

from pylog_spark.rows import rows_to_batch, rows_to_batches
from pylog_spark.schemas import GROUP_MANIFEST, MERGED_INDEX, PARTIAL_INDEX
from pylog_spark.tasks.cells import join_rows
from pylog_spark.tasks.failures import attempt
from pylog_spark.tasks.key_folder import new_prefix, remove_files
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

# (ordinal of the partition, number of the segment or group in it)
Item = tuple[int, int]


def index_segments(
    items: Iterable[Item],
    plans: Mapping[int, bytes],
    units: Mapping[int, int],
    context: WriteContext,
    *,
    filed: Collection[int] = (),
) -> Iterator[pa.RecordBatch]:
    """Run pass one; yield a row per segment of a round.

    The rows are of ``schemas.PARTIAL_INDEX``.

    Args:
        items: Partitions and numbers of segments in their rounds.
        plans: The plans, as ``encode_plan`` wrote them.
        units: Which task merges each partition.
        context: How tasks read and write.
        filed: Partitions whose keys are put into scratch files.
    """
    # By partition: its plan is decoded once.
    for ordinal, number in sorted(items):
        index = partial(_index, plans[ordinal], number, context, is_filed=ordinal in filed)
        head = {"ordinal": ordinal, "unit": units[ordinal], "segment": number}
        yield rows_to_batch(PARTIAL_INDEX, [head | attempt(index)])


def _index(encoded: bytes, number: int, context: WriteContext, *, is_filed: bool) -> dict[str, Any]:
    """Index a segment; return where its keys are: in the row, or in files."""
    plan = decode_plan(encoded)
    access = context.roots[root_of(plan.location)]
    if is_filed:
        access.validate()
    read = partial(
        index_segment,
        access.open(plan.location),
        plan,
        plan.round_segments[number],
        throttler=context.throttler(),
        threads=context.threads,
    )
    if not is_filed:
        return {"index": read().to_bytes()}
    prefix = new_prefix(access, plan.location, context)
    try:
        read(prefix=prefix)
    except BaseException:
        remove_files(prefix)
        raise
    return {"path": str(prefix)}


def merge_partitions(
    batches: Iterable[pa.RecordBatch],
    plans: Mapping[int, bytes],
    limits: Mapping[int, int | None],
    context: WriteContext,
) -> Iterator[pa.RecordBatch]:
    """Merge the partial indexes of each partition into a row of ``schemas.MERGED_INDEX``.

    An error in any of them is the partition's; that of the first segment counts.

    Args:
        batches: Pieces of rows of ``schemas.PARTIAL_INDEX``, ordered by partition and segment; all
            of a partition are there.
        plans: As for ``index_segments``.
        limits: Bytes that the merged index of a partition may have; a larger one is left out.
            None where partial indexes and merged ones lie in scratch files.
        context: How tasks read and write.
    """
    for ordinal, rows in groupby(join_rows(batches), key=lambda row: int(row["ordinal"])):
        row = _merge_rows(list(rows), plans[ordinal], limits[ordinal], context)
        yield rows_to_batch(MERGED_INDEX, [{"ordinal": ordinal} | row])


def _merge_rows(
    rows: Sequence[dict[str, Any]], encoded: bytes, limit: int | None, context: WriteContext
) -> dict[str, Any]:
    spent_ms = sum(row["duration_ms"] for row in rows)
    failed = next((row for row in rows if row["error_class"] is not None), None)
    if failed is not None:
        merged = {name: failed[name] for name in ("error_class", "error")}
    else:
        merged = attempt(partial(_merge, encoded, rows, limit, context))
    return merged | {"duration_ms": spent_ms + merged.get("duration_ms", 0)}


def _merge(
    encoded: bytes, rows: Sequence[dict[str, Any]], limit: int | None, context: WriteContext
) -> dict[str, Any]:
    """Merge partial indexes where they are: in rows, or in files without a limit."""
    plan = decode_plan(encoded)
    place: dict[str, Any]
    if limit is None:
        access = context.roots[root_of(plan.location)]
        access.validate()
        target = new_prefix(access, plan.location, context)
        try:
            file, table = merge_files(plan, [Path(row["path"]) for row in rows], target)
        except BaseException:
            remove_files(target)
            raise
        merged = MergedIndex.from_file(file, table)
        place = {"path": str(file), "table_path": None if table is None else str(table)}
    else:
        merged = merge_indexes(plan, [PartialIndex.from_bytes(row["index"]) for row in rows])
        content = merged.to_bytes()
        place = {"index": content if len(content) <= limit else None}
    sizes = {segment.base_offset: segment.size_bytes for segment in plan.segments}
    return place | {
        "group_bytes": [sum(sizes[base] for base in g.base_offsets) for g in merged.groups],
        "end_offset": merged.index.end_offset,
        "numbers": to_json(merged.index.stats),
    }


def rewrite_groups(
    items: Iterable[Item],
    plans: Mapping[int, bytes],
    index_of: Callable[[int], MergedIndex],
    context: WriteContext,
) -> Iterator[pa.RecordBatch]:
    """Pass two: yield a row of ``schemas.GROUP_MANIFEST`` for each group of segments.

    What it writes lies outside of the log directory, under names that no other attempt has.

    Args:
        items: Partitions and numbers of groups in their merged indexes.
        plans: As for ``index_segments``.
        index_of: The merged index of a partition.
        context: How tasks read and write.
    """

    @lru_cache(maxsize=1)
    def opened(ordinal: int) -> tuple[CompactionPlan, MergedIndex]:
        return decode_plan(plans[ordinal]), index_of(ordinal)

    def rewrite(ordinal: int, number: int) -> dict[str, Any]:
        plan, merged = opened(ordinal)
        return rewrite_group(plan, merged.index, merged.groups[number], context)

    def rows() -> Iterator[dict[str, Any]]:
        for ordinal, number in sorted(items):
            row = attempt(partial(rewrite, ordinal, number))
            yield {"ordinal": ordinal, "group": number} | row

    yield from rows_to_batches(GROUP_MANIFEST, rows())


def rewrite_group(
    plan: CompactionPlan, index: CompactionIndex, start: GroupStart, context: WriteContext
) -> dict[str, Any]:
    """Clean one group of segments; return columns of its row.

    The new files are this attempt's own.

    Raises:
        PylogError: It cannot be cleaned, or this run may not write there.
    """
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
    return {"manifest": to_json(cleaned)}


def keep_group(access: RootAccess, location: str, name: str, cleaned: CleanedGroup) -> CleanedGroup:
    """Give a group's files to the root to keep, for its commit.

    Args:
        access: To the root.
        location: Of the partition.
        name: Of the attempt.
        cleaned: The group.
    """
    first = cleaned.base_offsets[0]
    return cleaned.moved(access.keep(location, name, first, cleaned.places, cleaned.gaps))
