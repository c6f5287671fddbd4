"""Plan retention for each partition, then let expired segments go. The second part is another
stage.

A partition that is not due costs its listing and a few tails of indexes. One that is due is looked
at again by the task that commits it: what goes then is what was planned, or nothing.
"""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import pyarrow as pa

from pylog_spark.outcomes import Action, Reason, Status
from pylog_spark.rows import rows_to_batches
from pylog_spark.schemas import NEWEST_RECORD
from pylog_spark.tasks.ahead import map_partitions
from pylog_spark.tasks.listing import (
    REASON_OF_OTHER_KIND,
    OpenStore,
    open_partition,
    reason_to_leave,
    rows_of,
)
from pylog_spark.tasks.message import (
    PartitionCommit,
    attempt,
    attempt_directory,
    described_steps,
    fill,
)
from pylog_spark.tasks.observe import Admitted, Step, observe_alone
from pylog_spark.tasks.run_context import PartitionRef, RunContext, WriteContext
from storage_core.catalog.roles import Role
from storage_core.checkpoint.checkpoints import Checkpoints, PartitionCheckpoints
from storage_core.commit.plan import CommitPlan, digest_files, digest_versions
from storage_core.config.log_config import UNLIMITED
from storage_core.errors import ChangedWhileReadError
from storage_core.maintenance.retention.partition import (
    Sweep,
    SweepRequest,
    newest_record_ms,
    newest_timestamp,
    plan_known,
    plan_sweep,
)
from storage_core.maintenance.retention.plan import Predicate, RetentionRules
from storage_core.roots.partition_facts import manifest_timestamps
from storage_core.roots.root import Prepared
from storage_core.store import LogStore, one_look
from storage_core.store.base import UnsharedStore, held
from storage_core.store.open_objects import names_manifest


@dataclass(frozen=True, slots=True, kw_only=True)
class RetentionContext:
    """The values that the tasks of a sweep share."""

    run: RunContext
    step: Step  # which partitions are swept: RETAIN or SWEEP
    # Partition directories that are left alone: their compaction failed.
    excluded: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepWork:
    """A partition of which something goes, as the plan stage left it."""

    ref: PartitionRef
    log_start_checkpoint: int | None  # its entry in the log-start checkpoint, None without one
    high_watermark: int | None  # nothing at or above it goes; None for the log's end
    removed: tuple[int, ...]
    loaded_files: str | None  # digest of the files of which all of this was found
    log_end: int | None  # offset of the next record
    log_start_offset: int
    first_base_offset: int
    is_replicated: bool  # whether all that goes lies below the checkpointed high watermark
    # How many of these are below the log start, are too much, and are too old.
    by_log_start_segments: int
    by_size_segments: int
    by_time_segments: int
    rolls: bool  # whether a new segment begins
    bytes_after: int
    segments_after: int

    @property
    def counts(self) -> tuple[int, ...]:
        """How many segments each predicate takes, in their order."""
        return self.by_log_start_segments, self.by_size_segments, self.by_time_segments


def observe_sweep(
    row: Mapping[str, Any],
    context: RetentionContext,
    checkpoints_of: Callable[[str], Checkpoints],
    open_store: OpenStore = open_partition,
) -> dict[str, Any]:
    """Return the row of ``schemas.RETENTION_PLAN`` of one partition directory, whatever is wrong.

    Args:
        row: Of ``schemas.PARTITION``.
    """
    return observe_alone(
        context.step,
        row,
        context.run,
        checkpoints_of,
        partial(_observe, row, context),
        excluded=context.excluded,
        open_store=open_store,
    )


def _observe(
    row: Mapping[str, Any], context: RetentionContext, admitted: Admitted
) -> dict[str, Any]:
    run = context.run
    store, config, checkpoints = admitted.store, admitted.config, admitted.checkpoints
    facts = Role(row["role"]).facts
    request = SweepRequest(
        now_ms=run.options.now_ms,
        checkpoints=checkpoints,
        max_timestamps=manifest_timestamps(store),
        is_closed=facts.has_closed_logs,
        # Of what a broker does not load a look says the same, be something due or not.
        always_loads=facts.is_owned_by_broker,
    )
    unlink = _unlinks(run, row["directory"])
    with held(store):
        with one_look(store):
            sweep = plan_sweep(store, config, run.options.cleaner, request, unlink=unlink)
            loaded_files = digest_files(store) if sweep.is_due else None
        removals = _removals(store, sweep) if sweep.is_due else {}
    state, decision, block = sweep.state, sweep.decision, sweep.decision.blocked_by
    start, checkpointed = decision.log_start_offset, admitted.checkpointed_mark
    columns = kept_columns(
        {
            "bytes": state.size_bytes,
            "segments": len(state.segments),
            "first_base_offset": sweep.first_base_offset,
            "log_start_offset": start,
            "log_start_checkpoint": checkpoints.log_start_offset,
            "high_watermark": checkpoints.high_watermark,
            "is_replicated": checkpointed is not None and start <= checkpointed,
            "percent": decision.percent_of_retention_bytes,
            "blocked_by": block.hold,
            "blocked_offset": block.base_offset,
            "blocked_timestamp": block.timestamp,
            "wait_ms": block.wait_ms,
            **_limits(RetentionRules.of(config)),
        }
    )
    if run.options.dry_run:
        columns["operations"] = json.dumps(list(sweep.steps.describe()))
    if not sweep.is_due:
        return columns
    return columns | removals | {"loaded_files": loaded_files, "log_end": state.log_end}


def kept_columns(seen: Mapping[str, Any]) -> dict[str, Any]:
    """Return all columns of a partition of which nothing goes.

    Args:
        seen: Columns of ``schemas.RETENTION_PLAN``: its bytes, segments and offsets, its limits,
            and what keeps it. A value may also be an array, of those of many partitions.
    """
    nothing = [0] * len(Predicate)
    return {
        **seen,
        "status": Status.SKIPPED,
        "reason": Reason.NOTHING_TO_RETAIN,
        "old_log_start_offset": seen["log_start_offset"],
        "rolls": False,
        "bytes_after": seen["bytes"],
        "segments_after": seen["segments"],
        **removal_columns(nothing, nothing, []),
    }


def removal_columns(removed: Any, removed_bytes: Any, base_offsets: Any) -> dict[str, Any]:
    """Return the columns that differ where something goes.

    Args:
        removed, removed_bytes: How many segments and bytes each predicate takes, in their order. A
            value may also be an array, of those of many partitions.
    """
    row = {
        "deleted_bytes": sum(removed_bytes),
        "deleted_segments": sum(removed),
        "removed": base_offsets,
    }
    for predicate, count, size in zip(Predicate, removed, removed_bytes, strict=True):
        name = f"by_{predicate.value.lower()}"
        row |= {f"{name}_segments": count, f"{name}_bytes": size}
    return row


def describe_known(
    store: LogStore, counts: Iterable[int], log_start_checkpoint: int | None, run: RunContext
) -> str:
    """Return the steps of ``plan_known`` as JSON."""
    names = [file.name for file in store.list_files()]
    unlink = _unlinks(run, store.location)
    steps, *_ = plan_known(
        store, names, counts, log_start_checkpoint=log_start_checkpoint, unlink=unlink
    )
    return json.dumps(list(steps.describe()))


def _limits(rules: RetentionRules) -> dict[str, int]:
    """Return a topic's limits as columns; unlimited where not asked for."""
    limits = {"retention_ms": rules.age_limit_ms, "retention_bytes": rules.size_limit}
    return {name: UNLIMITED if limit is None else limit for name, limit in limits.items()}


def _unlinks(run: RunContext, directory: str) -> bool:
    """Return whether removed files go at once. In a managed root they do: nobody would look for
    ``.deleted`` there."""
    return not run.options.keep_deleted or names_manifest(directory)


def _removals(store: LogStore, sweep: Sweep) -> dict[str, Any]:
    """Return the columns that differ where something is done to a partition."""
    state, decision = sweep.state, sweep.decision
    counts, sizes = zip(*map(decision.counts, Predicate), strict=True)
    row = {
        "status": Status.PLANNED,
        "reason": None,
        "old_log_start_offset": decision.old_log_start_offset,
        "rolls": decision.roll_offset is not None,
        "bytes_after": state.size_bytes - decision.removed_bytes,
        "segments_after": sweep.segments_after,
        **removal_columns(counts, sizes, list(decision.removed_base_offsets)),
    }
    if row["by_time_segments"]:
        row["newest_timestamp"] = newest_timestamp(store, state)
    return row


def observe_newest(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Turn rows of ``schemas.PARTITION`` into rows of ``schemas.NEWEST_RECORD``.

    Every partition is looked at, also those that no retention concerns: the clock of all of them
    is the same.
    """
    yield from rows_to_batches(NEWEST_RECORD, map_partitions(_newest_row, rows_of(batches)))


def _newest_row(row: Mapping[str, Any]) -> dict[str, Any]:
    return attempt_directory(row, partial(_newest, row))


def _newest(row: Mapping[str, Any]) -> dict[str, Any]:
    if reason_to_leave(row, REASON_OF_OTHER_KIND) is not None:
        return {}
    store = open_partition(row)
    return {"newest_timestamp": newest_record_ms(store, manifest_timestamps(store))}


def commit_sweeps(
    items: Iterable[SweepWork], context: RetentionContext, write: WriteContext
) -> Iterator[PartitionCommit]:
    """Remove segments of partitions, several at once."""

    def sweep(work: SweepWork) -> PartitionCommit:
        head = PartitionCommit(ordinal=work.ref.ordinal, touched=False)
        return attempt(head, partial(_commit, work, context, write), work.ref.name)

    return write.map_commits(sweep, items)


def _commit(
    work: SweepWork, context: RetentionContext, write: WriteContext, head: PartitionCommit
) -> PartitionCommit:
    """Sweep a partition, or find that another attempt did."""
    run, ledger = context.run, context.run.options.ledger
    unlink = _unlinks(run, work.ref.directory)

    def prepare(store: LogStore) -> Prepared:
        with one_look(store):
            seen = store.scan() if isinstance(store, UnsharedStore) else None
            is_as_seen = seen is not None and digest_versions(seen) == work.loaded_files
            if seen is not None and is_as_seen and not work.rolls:
                steps, removed, start = plan_known(
                    store,
                    seen.names,
                    work.counts,
                    log_start_checkpoint=work.log_start_checkpoint,
                    unlink=unlink,
                )
                _verify(store, work, removed, start)
                return _prepared(work, steps, work.bytes_after, work.segments_after, ledger)
            config = run.catalogs[work.ref.root].config_for(work.ref.partition.topic)
            if config is None:
                why = "the catalogue had a config when the plan was made"
                raise KeyError(f"{work.ref.partition}: {why}")
            request = SweepRequest(
                now_ms=run.options.now_ms,
                checkpoints=PartitionCheckpoints(
                    log_start_offset=work.log_start_checkpoint, high_watermark=work.high_watermark
                ),
                max_timestamps=manifest_timestamps(store),
                verified_end=work.log_end if is_as_seen else None,
            )
            sweep = plan_sweep(store, config, run.options.cleaner, request, unlink=unlink)
        decision = sweep.decision
        _verify(store, work, decision.removed_base_offsets, decision.log_start_offset)
        bytes_after = sweep.state.size_bytes - decision.removed_bytes
        return _prepared(work, sweep.steps, bytes_after, sweep.segments_after, ledger)

    access = write.roots[work.ref.root]
    return fill(head, access.commit(work.ref.directory, Action.RETAIN.value, prepare))


def _prepared(
    work: SweepWork, steps: CommitPlan, bytes_after: int, segments_after: int, ledger: str | None
) -> Prepared:
    return Prepared(
        plan=steps,
        result={
            "bytes_after": bytes_after,
            "segments_after": segments_after,
            "operations": described_steps(steps, ledger),
        },
        checkpoints=PartitionCheckpoints(log_start_offset=work.log_start_offset),
    )


def _verify(
    store: LogStore, work: SweepWork, removed: tuple[int, ...], log_start_offset: int
) -> None:
    """Refuse to remove anything but what was planned."""
    if removed != work.removed or log_start_offset != work.log_start_offset:
        raise ChangedWhileReadError(
            store.location,
            f"segments {list(work.removed)} to go, log start {work.log_start_offset}",
            f"segments {list(removed)}, log start {log_start_offset}",
        )
