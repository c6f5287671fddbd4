"""The two passes of a compaction and the merge between them: they read, and write scratch files.

An item of pass one is a segment, an item of pass two a group of segments. Each yields one row;
what is wrong with a partition becomes an error in the rows of its items, and the partition goes no
further.
"""

import json
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

import pyarrow as pa

from pylog_spark.schemas import (
    GROUP_MANIFEST,
    MERGED_INDEX,
    PARTIAL_INDEX,
    rows_to_batch,
    rows_to_batches,
)
from pylog_spark.tasks.failures import attempt
from pylog_spark.tasks.observe import decode_plan
from pylog_spark.tasks.record_count import count_records
from pylog_spark.tasks.run_context import WriteContext
from pylog_spark.tasks.scratch import scratch_folder
from storage_core.checkpoint.lock import validate_on_holder_host
from storage_core.log.transaction_tracker import TransactionTracker
from storage_core.maintenance.compaction.partial import (
    MergedIndex,
    PartialIndex,
    index_segment,
    merge_indexes,
    segments_of_round,
)
from storage_core.maintenance.compaction.plan import CompactionPlan
from storage_core.maintenance.compaction.rewrite import clean_group
from storage_core.store import LocalStore

# (ordinal of the partition, number of the segment or group in it)
Item = tuple[int, int]


def index_segments(items: Iterable[Item], plans: Mapping[int, bytes]) -> Iterator[pa.RecordBatch]:
    """Pass one: yield a row of ``schemas.PARTIAL_INDEX`` for each segment of a round.

    Args:
        items: Partitions and numbers of segments in their rounds.
        plans: The plans, as ``encode_plan`` wrote them.
    """
    for ordinal, number in items:
        key = {"ordinal": ordinal, "segment": number}
        row = attempt(partial(_index_segment, plans[ordinal], number))
        yield rows_to_batch(PARTIAL_INDEX, [key | row])


def _index_segment(encoded: bytes, number: int) -> dict[str, Any]:
    plan = decode_plan(encoded)
    segment = segments_of_round(plan)[number]
    return {"index": index_segment(LocalStore(Path(plan.location)), plan, segment).to_bytes()}


def merge_partition(
    rows: pa.Table, plans: Mapping[int, bytes], limits: Mapping[int, int]
) -> pa.Table:
    """Merge the partial indexes of one partition into a row of ``schemas.MERGED_INDEX``.

    An error in any of them is the partition's; that of the first segment counts.

    Args:
        rows: Every row of ``schemas.PARTIAL_INDEX`` of one partition, in any order.
        plans: As for ``index_segments``.
        limits: Bytes that the merged index of a partition may have; a larger one is left out.
    """
    ordered = rows.sort_by("segment")
    ordinal = ordered["ordinal"][0].as_py()
    spent_ms = sum(ordered["duration_ms"].to_pylist())
    errors = [row for row in ordered.drop(["index"]).to_pylist() if row["error_class"] is not None]
    if errors:
        row = {name: errors[0][name] for name in ("error_class", "error")}
    else:
        row = attempt(partial(_merge, plans[ordinal], ordered["index"], limits[ordinal]))
    row = {"ordinal": ordinal} | row | {"duration_ms": spent_ms + row.get("duration_ms", 0)}
    return pa.Table.from_batches([rows_to_batch(MERGED_INDEX, [row])])


def _merge(encoded: bytes, partials: pa.ChunkedArray, limit_bytes: int) -> dict[str, Any]:
    plan = decode_plan(encoded)
    merged = merge_indexes(plan, [PartialIndex.from_bytes(part.as_py()) for part in partials])
    sizes = {segment.base_offset: segment.size_bytes for segment in plan.segments}
    content = merged.to_bytes()
    return {
        "index": content if len(content) <= limit_bytes else None,
        "group_bytes": [sum(sizes[base] for base in g.base_offsets) for g in merged.groups],
        "end_offset": merged.index.end_offset,
    }


def rewrite_groups(
    items: Iterable[Item],
    plans: Mapping[int, bytes],
    index_of: Callable[[int], bytes],
    context: WriteContext,
) -> Iterator[pa.RecordBatch]:
    """Pass two: yield a row of ``schemas.GROUP_MANIFEST`` for each group of segments.

    What it writes lies outside of the log directory, under names that no other attempt has.

    Args:
        items: Partitions and numbers of groups in their merged indexes.
        plans: As for ``index_segments``.
        index_of: The merged index of a partition.
        context: What tasks need to write.
    """

    @lru_cache(maxsize=1)
    def opened(ordinal: int) -> tuple[CompactionPlan, MergedIndex]:
        return decode_plan(plans[ordinal]), MergedIndex.from_bytes(index_of(ordinal))

    def rows() -> Iterator[dict[str, Any]]:
        for ordinal, number in sorted(items):
            row = attempt(partial(_rewrite_group, partial(opened, ordinal), number, context))
            yield {"ordinal": ordinal, "group": number} | row

    yield from rows_to_batches(GROUP_MANIFEST, rows())


def _rewrite_group(
    opened: Callable[[], tuple[CompactionPlan, MergedIndex]], number: int, context: WriteContext
) -> dict[str, Any]:
    plan, merged = opened()
    directory = Path(plan.location)
    root = str(directory.parent)
    validate_on_holder_host(context.locks[root])
    start = merged.groups[number]
    group = [segment for segment in plan.segments if segment.base_offset in start.base_offsets]
    store = LocalStore(directory)
    cleaned = clean_group(
        store,
        plan,
        merged.index,
        group,
        TransactionTracker.from_state(json.loads(start.tracker)),
        scratch=scratch_folder(context.scratch[root], directory),
        attempt=f"{context.run.run_id}-{uuid.uuid4().hex}",
    )
    return {
        "manifest": cleaned.to_json(),
        "records": count_records(store, [segment.log_file for segment in group]),
    }
