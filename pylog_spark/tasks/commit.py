"""Put a partition's cleaned groups into place: once per run, however often the task runs.

Two ways lead here. Groups that were cleaned by other tasks come as manifests; a partition that is
not worth spreading, or too large to, is cleaned whole inside this task, by the same functions.
"""

import json
import uuid
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa

from pylog_spark.schemas import COMMIT, rows_to_batches
from pylog_spark.tasks.commit_claim import hold_claim
from pylog_spark.tasks.failures import attempt, describe_failure
from pylog_spark.tasks.observe import decode_plan
from pylog_spark.tasks.record_count import count_records
from pylog_spark.tasks.run_context import WriteContext
from pylog_spark.tasks.scratch import claim_path, keep_scratch, scratch_folder
from storage_core.checkpoint.lock import validate_on_holder_host
from storage_core.errors import BadBytesError
from storage_core.log.loaded_log import LoadedLog
from storage_core.log.log_loader import load_log
from storage_core.log.transaction_tracker import TransactionTracker
from storage_core.maintenance.compaction.commit import plan_commit, verify_inputs
from storage_core.maintenance.compaction.index import CompactionIndexer
from storage_core.maintenance.compaction.plan import CompactionPlan, group_segments
from storage_core.maintenance.compaction.rewrite import CleanedGroup, RewriteStats, clean_group
from storage_core.plan import Plan
from storage_core.store import LocalStore


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionWork:
    """One partition of a run, as the plan stage left it.

    Attributes:
        ordinal: Its row in the table of plans.
        topic: Its topic.
        log_start_checkpoint: Its entry in the log-start checkpoint, 0 without one.
        plan: The round, as ``encode_plan`` wrote it.
    """

    ordinal: int
    topic: str
    log_start_checkpoint: int
    plan: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class CleanedPartition:
    """What both passes made of a partition.

    Attributes:
        end_offset: The next round begins there.
        groups: The cleaned groups, oldest first.
        records: Records of their source segments.
    """

    end_offset: int
    groups: tuple[CleanedGroup, ...]
    records: int


# Cleans a partition, or knows where the cleaned groups are; replaces nothing in the directory yet.
Clean = Callable[[LocalStore, CompactionPlan, WriteContext], CleanedPartition]


def commit_partitions(
    items: Iterable[tuple[PartitionWork, CleanedPartition]], context: WriteContext
) -> Iterator[pa.RecordBatch]:
    """Put groups that other tasks cleaned into place: a row of ``schemas.COMMIT`` a partition."""
    yield from rows_to_batches(
        COMMIT,
        (_row(work, context, partial(_already_cleaned, cleaned)) for work, cleaned in items),
    )


def clean_partitions(
    items: Iterable[PartitionWork], context: WriteContext
) -> Iterator[pa.RecordBatch]:
    """Clean partitions whole, one after the other: a row of ``schemas.COMMIT`` a partition."""
    yield from rows_to_batches(COMMIT, (_row(work, context, clean_whole) for work in items))


def _already_cleaned(
    cleaned: CleanedPartition, _store: LocalStore, _plan: CompactionPlan, _context: WriteContext
) -> CleanedPartition:
    return cleaned


def clean_whole(store: LocalStore, plan: CompactionPlan, context: WriteContext) -> CleanedPartition:
    """Run both passes over a partition in this process."""
    scratch = scratch_folder(context.scratch[str(store.directory.parent)], store.directory)
    name = f"{context.run.run_id}-{uuid.uuid4().hex}"
    index = CompactionIndexer(store, plan).run()
    tracker = TransactionTracker()
    groups = tuple(
        clean_group(store, plan, index, group, tracker, scratch=scratch, attempt=name)
        for group in group_segments(plan, index.end_offset)
    )
    sources = plan.segments_below(index.end_offset)
    return CleanedPartition(
        end_offset=index.end_offset,
        groups=groups,
        records=count_records(store, [segment.log_file for segment in sources]),
    )


def _row(work: PartitionWork, context: WriteContext, clean: Clean) -> dict[str, Any]:
    row = attempt(partial(_commit, work, context, clean))
    return {"ordinal": work.ordinal, "touched": False} | row


def _commit(work: PartitionWork, context: WriteContext, clean: Clean) -> dict[str, Any]:
    """Commit a partition, or find that another attempt did."""
    plan = decode_plan(work.plan)
    store = LocalStore(Path(plan.location))
    root = str(store.directory.parent)
    validate_on_holder_host(context.locks[root])
    path = claim_path(context.scratch[root], store.directory, context.run.run_id)
    with hold_claim(path) as claim:
        try:
            if not claim.is_begun:
                cleaned = clean(store, plan, context)
                verify_inputs(store, plan)
                log = _load(store, work, plan, context)
                steps = plan_commit(log, plan, cleaned.groups)
                claim.begin(steps, _describe(store, plan, cleaned, steps))
            return claim.finish(store)
        except Exception as error:  # noqa: BLE001  # the row carries it, and whether it touched files
            return {"touched": claim.is_begun, **describe_failure(error)}


def _load(
    store: LocalStore, work: PartitionWork, plan: CompactionPlan, context: WriteContext
) -> LoadedLog:
    """Load the log once more, for what has to be put in order before the first swap."""
    run = context.run
    config = run.catalogs[str(store.directory.parent)].config_for(work.topic)
    if config is None:
        raise KeyError(f"{work.topic}: the catalogue had a config when the plan was made")
    log = load_log(
        store,
        config=config,
        cleaner=run.cleaner,
        now_ms=run.now_ms,
        log_start_checkpoint=work.log_start_checkpoint,
        high_watermark=plan.high_watermark,
    )
    return replace(log, operations=keep_scratch(log.operations, run.run_id))


def _describe(
    store: LocalStore, plan: CompactionPlan, cleaned: CleanedPartition, steps: Plan
) -> dict[str, Any]:
    """Return the partition's row as it will be when the steps are done."""
    stats = sum((group.stats for group in cleaned.groups), RewriteStats())
    untouched = [s for s in plan.segments if s.base_offset >= cleaned.end_offset]
    others = _count_if_readable(store, [segment.log_file for segment in untouched])
    return {
        "next_offset": cleaned.end_offset,
        "bytes_after": stats.bytes_written + sum(s.size_bytes for s in untouched),
        "segments_after": len(cleaned.groups) + len(untouched),
        "records_before": None if others is None else cleaned.records + others,
        "records_after": None if others is None else stats.messages_written + others,
        "operations": json.dumps(list(steps.describe())),
    }


def _count_if_readable(store: LocalStore, files: list[str]) -> int | None:
    """Count the records of segments that the round did not read; None where they are damaged.

    Damage there is no business of this round, and not known to it: the counts stay unknown then.
    """
    try:
        return count_records(store, files)
    except BadBytesError:
        return None
