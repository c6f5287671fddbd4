"""Commit a partition's cleaned groups, once per run. This holds however often the task runs.

Two ways lead here. Groups that were cleaned by other tasks come as manifests; a partition that is
not worth spreading, or too large to, is cleaned whole inside this task, by the same functions.

A small partition costs little but waiting for syncs or for an object store, so a task works on
several at once. Big ones are cleaned alone, since memory is for one of them.
"""

import uuid
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Final

from pylog_spark.operations.compact.pass_task import keep_group
from pylog_spark.outcomes import Action, Reason
from pylog_spark.rows import Number, Text, Truth, column
from pylog_spark.tasks.ahead import BYTES_AT_ONCE, Room, is_remote
from pylog_spark.tasks.message import (
    PartitionCommit,
    TaskMessage,
    attempt,
    described_steps,
    fill,
)
from pylog_spark.tasks.observe import decode_plan
from pylog_spark.tasks.run_context import PartitionRef, WriteContext
from storage_core.checkpoint.checkpoints import PartitionCheckpoints
from storage_core.commit.scratch import keep_scratch
from storage_core.errors import BadBytesError, OffsetOverflowError, describe_failure
from storage_core.log.loaded_log import LoadChanges
from storage_core.log.log_loader import load_changes
from storage_core.log.open_transactions import TransactionTracker
from storage_core.maintenance.compaction.commit import (
    changes_since_plan,
    plan_commit,
    plan_split,
    verify_inputs,
)
from storage_core.maintenance.compaction.partition import (
    CleanedPartition,
    CleanerStats,
    refuse_keyless,
    run_passes,
)
from storage_core.maintenance.compaction.pass_one import index_round
from storage_core.maintenance.compaction.plan import CompactionPlan, group_segments, map_slots
from storage_core.maintenance.compaction.rewrite import RewriteStats, measure_groups
from storage_core.records.payload import count_records_in
from storage_core.records.reader import Tail, read_whole, scan_headers
from storage_core.roots.root import Prepared, RootAccess
from storage_core.store import LogStore, one_look, open_store
from storage_core.store.generations import current_location
from storage_core.store.local import storage_errors
from storage_core.store.syncing import Unsynced, sync

# Measure the exact result of a compaction round on partitions. Both passes run, without output.

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


@dataclass(frozen=True, slots=True, kw_only=True)
class CompactionWork:
    """A partition to be cleaned, as the plan stage left it."""

    ref: PartitionRef
    log_start_checkpoint: int  # its entry in the log-start checkpoint, 0 without one
    plan: bytes  # the round, as ``encode_plan`` wrote it
    loaded_files: str | None  # as ``changes_since_plan`` takes it
    load_writes: str | None  # as it takes it, too


@dataclass(frozen=True, slots=True, kw_only=True)
class CompactionCommit(PartitionCommit):
    """A partition's commit after a round, or its clean in one task."""

    next_offset: Number = column("the cleaner point: first offset that is still dirty")
    records_before: Number = column("records of the partition")
    records_after: Number = column("the same afterwards")
    records_without_key: Number = column("records that went for they had no key, null for none")
    was_split: Truth = column("whether a segment was split, and nothing cleaned")
    statistics: Text = column("numbers of the round by Kafka's names, as JSON")


# Cleans a partition, or knows where the cleaned groups are; replaces nothing in the directory yet.
Clean = Callable[[LogStore, CompactionPlan, RootAccess], CleanedPartition]


def commit_partitions(
    items: Iterable[tuple[CompactionWork, CleanedPartition]], context: WriteContext
) -> Iterator[CompactionCommit]:
    """Commit groups cleaned by other tasks."""

    def commit(item: tuple[CompactionWork, CleanedPartition]) -> CompactionCommit:
        work, cleaned = item
        return _attempt(work, context, lambda *_: cleaned)

    return context.map_commits(commit, items)


def clean_partitions(
    items: Iterable[CompactionWork], context: WriteContext
) -> Iterator[CompactionCommit]:
    """Clean partitions whole, small ones side by side."""
    room = Room(BYTES_AT_ONCE)

    def clean(store: LogStore, plan: CompactionPlan, access: RootAccess) -> CleanedPartition:
        size_bytes = sum(s.size_bytes for s in plan.segments_below(plan.first_uncleanable_offset))
        if context.has_rate:
            # The rate is of one partition at a time.
            size_bytes = BYTES_AT_ONCE
        # Others are cleaned beside a small one.
        threads = 1 if size_bytes < BYTES_AT_ONCE else context.threads
        with Unsynced() as unsynced:
            with room.take(size_bytes):
                cleaned = clean_whole(
                    store, plan, access, replace(context, threads=threads), unsynced
                )
            # Another one is cleaned meanwhile.
            with storage_errors(Path(plan.location)):
                unsynced.sync()
        return cleaned

    return context.map_commits(partial(_attempt, context=context, clean=clean), items)


def clean_whole(
    store: LogStore,
    plan: CompactionPlan,
    access: RootAccess,
    context: WriteContext,
    unsynced: Unsynced,
) -> CleanedPartition:
    """Run both passes over a partition in this process."""
    attempt_name = f"{context.run.run_id}-{uuid.uuid4().hex}"
    return run_passes(
        store,
        plan,
        sidecar_folder=context.run.options.cleaner.key_sidecars,
        scratch=partial(access.scratch, plan.location),
        attempt=attempt_name,
        keep=partial(keep_group, access, plan.location, attempt_name),
        throttler=context.throttler(),
        threads=context.threads,
        # What the root takes elsewhere is removed here, which frees no room while it is open.
        make_durable=sync if is_remote(plan.location) else unsynced.add,
    )


def _attempt(work: CompactionWork, context: WriteContext, clean: Clean) -> CompactionCommit:
    head = CompactionCommit(ordinal=work.ref.ordinal, touched=False)
    return attempt(head, partial(_commit, work, context, clean), work.ref.name)


def _commit(
    work: CompactionWork, context: WriteContext, clean: Clean, head: CompactionCommit
) -> CompactionCommit:
    """Commit a partition, or find that another attempt did."""
    plan = decode_plan(work.plan)
    access = context.roots[work.ref.root]
    done: list[CleanedPartition] = []

    def prepare(store: LogStore) -> Prepared:
        try:
            cleaned = clean(store, plan, access)
        except OffsetOverflowError as error:
            return _split(store, plan, error, context.run.options.ledger)
        if Reason.RECORDS_WITHOUT_KEY not in context.run.options.limits.overrides:
            refuse_keyless(
                plan.location,
                keyless=cleaned.stats.invalid_messages_read,
                records=cleaned.stats.messages_read,
            )
        with one_look(store):
            changes = changes_since_plan(store, work.loaded_files, work.load_writes)
            if changes is None:
                verify_inputs(store, plan)
                changes = _load(store, work, context)
            steps = plan_commit(changes, plan, cleaned.groups)
        done.append(cleaned)
        return Prepared(
            plan=steps,
            result=_describe(store, plan, cleaned)
            | {
                "statistics": _statistics(cleaned, context),
                "operations": described_steps(steps, context.run.options.ledger),
            },
            checkpoints=PartitionCheckpoints(cleaner_offset=cleaned.end_offset),
        )

    commit = fill(head, access.commit(plan.location, Action.COMPACT.value, prepare))
    for cleaned in done:
        if cleaned.sidecars is not None and not commit.failure:
            # Not the generation that was cleaned, but what became of it.
            cleaned.publish_sidecars(access.open(current_location(plan.location)), plan)
    return commit


def _split(
    store: LogStore, plan: CompactionPlan, error: OffsetOverflowError, ledger: str | None
) -> Prepared:
    """Split the segment with overflowing offsets. Another round cleans the partition."""
    steps = plan_split(store, plan, error.file)
    result = {"was_split": True, "operations": described_steps(steps, ledger)}
    return Prepared(plan=steps, result=describe_failure(error) | result)


def _load(store: LogStore, work: CompactionWork, context: WriteContext) -> LoadChanges:
    """Load the log again, for repairs due before the first swap."""
    run = context.run
    config = run.catalogs[work.ref.root].config_for(work.ref.partition.topic)
    if config is None:
        raise KeyError(f"{work.ref.partition}: the catalogue had a config when the plan was made")
    changes = load_changes(
        store,
        config=config,
        cleaner=run.options.cleaner,
        now_ms=run.options.now_ms,
        log_start_checkpoint=work.log_start_checkpoint,
    )
    return replace(changes, operations=keep_scratch(changes.operations, run.run_id))


def _describe(store: LogStore, plan: CompactionPlan, cleaned: CleanedPartition) -> dict[str, Any]:
    """Return the partition's row as of after the commit."""
    stats = cleaned.stats
    untouched = [s for s in plan.segments if s.base_offset >= cleaned.end_offset]
    others = count_if_readable(store, [segment.log_file for segment in untouched])
    return {
        "next_offset": cleaned.end_offset,
        "bytes_after": stats.bytes_written + sum(s.size_bytes for s in untouched),
        "segments_after": len(cleaned.groups) + len(untouched),
        "records_before": None if others is None else stats.source_records + others,
        "records_after": None if others is None else stats.messages_written + others,
        "records_without_key": stats.invalid_messages_read or None,
    }


def _statistics(cleaned: CleanedPartition, context: WriteContext) -> str:
    """Return the numbers of the round as JSON."""
    return CleanerStats.of(
        cleaned.index,
        cleaned.stats,
        slots=map_slots(context.run.options.cleaner),
        elapsed_secs=round(cleaned.spent_secs, 3),
        elapsed_index_secs=None if cleaned.index_secs is None else round(cleaned.index_secs, 3),
    ).to_json()
