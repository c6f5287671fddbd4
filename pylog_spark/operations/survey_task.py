"""Survey partitions by their listings or manifests, a row of ``schemas.SURVEY`` each.

Of a mirror the listing is all that is used, and its root's checkpoint files; of a managed root
one manifest a partition. No file of a partition is opened, but for the end of a swap that is not
finished: it says which segments do not count any more. In a broker's own directory the end of a log
is looked at before the survey says that something would go.
"""

from collections.abc import Callable, Iterator, Mapping
from functools import cache, partial
from itertools import groupby
from typing import Any

import pyarrow as pa

from pylog_spark.outcomes import Reason, Status
from pylog_spark.rows import rows_to_batches
from pylog_spark.schemas import SURVEY
from pylog_spark.tasks.ahead import map_partitions
from pylog_spark.tasks.listing import (
    REASON_OF_KIND,
    left_alone,
    listed_files,
    open_partition,
    reason_to_leave,
    rows_of,
)
from pylog_spark.tasks.message import attempt_directory, needs_recovery
from pylog_spark.tasks.observe import manifest_state
from pylog_spark.tasks.run_context import RunContext
from storage_core.catalog.roles import Role, local_path
from storage_core.checkpoint.checkpoints import Checkpoints, PartitionCheckpoints
from storage_core.config import LogConfig
from storage_core.filenames import TopicPartition
from storage_core.log.log_loader import find_clean_end
from storage_core.log.settled_store import is_unfinished_name, settle, settled_files
from storage_core.maintenance.compaction.plan import CleanRequest
from storage_core.maintenance.listings import look_at
from storage_core.maintenance.partition_state import PartitionState
from storage_core.maintenance.retention.partition import refuse_repairs, with_recovered_end
from storage_core.maintenance.survey import Survey, survey_partition
from storage_core.roots.open_root import root_checkpoints
from storage_core.roots.partition_facts import partition_checkpoints
from storage_core.store import FileInfo, LogStore

CheckpointReader = Callable[[str], Checkpoints]


def survey_partitions(
    batches: Iterator[pa.RecordBatch],
    context: RunContext,
    read_checkpoints: CheckpointReader = root_checkpoints,
) -> Iterator[pa.RecordBatch]:
    """Turn rows of ``schemas.PARTITION`` into rows of ``schemas.SURVEY``."""
    checkpoints_of = cache(read_checkpoints)
    survey = partial(_survey_row, context=context, checkpoints_of=checkpoints_of)
    # Manifests are asked for ahead; a row that has its files costs nothing but its numbers.
    for has_files, rows in groupby(rows_of(batches), key=lambda row: row["file_names"] is not None):
        map_each = map if has_files else map_partitions
        yield from rows_to_batches(SURVEY, map_each(survey, rows))


def _survey_row(
    row: Mapping[str, Any], context: RunContext, checkpoints_of: CheckpointReader
) -> dict[str, Any]:
    work = partial(_survey, row, context, checkpoints_of)
    return attempt_directory(row, work, needs_recovery)


def _survey(
    row: Mapping[str, Any], context: RunContext, checkpoints_of: CheckpointReader
) -> dict[str, Any]:
    reason = reason_to_leave(row, REASON_OF_KIND)
    if reason is None and context.catalogs[row["root"]].metadata_problem:
        reason = Reason.METADATA_UNKNOWN
    config = None if reason else context.catalogs[row["root"]].config_for(row["topic"])
    if config is None:
        return left_alone(row, reason or Reason.CONFIG_UNKNOWN)
    if config.remote_storage_enable:
        return _skipped(Reason.TIERED)
    store = open_partition(row)
    partition = TopicPartition(row["topic"], row["partition"])
    checkpoints = partition_checkpoints(store, partition, partial(checkpoints_of, row["root"]))
    request = CleanRequest(now_ms=context.options.now_ms, checkpoints=checkpoints)
    state = manifest_state(store, checkpoints) or _listed_state(store, row, checkpoints)
    if not state.segments:
        return _skipped(Reason.NO_SEGMENTS)
    survey = survey_partition(state, config, request)
    if survey.retention.removals and Role(row["role"]).facts.is_owned_by_broker:
        if context.is_unclean(row["root"], row["directory"]):
            refuse_repairs(store.location, store.list_files())
            state = with_recovered_end(store, state)
            survey = survey_partition(state, config, request)
        else:
            find_clean_end(
                settle(store),
                config=config,
                cleaner=context.options.cleaner,
                now_ms=context.options.now_ms,
                log_start_checkpoint=checkpoints.log_start_offset or 0,
            )
    return _describe(state, survey, config)


def _listed_state(
    store: LogStore, row: Mapping[str, Any], checkpoints: PartitionCheckpoints
) -> PartitionState:
    """Return a partition's state by its listing. The row's listing is used, if it has one."""
    return PartitionState.of_listing(
        store.location, _settled_logs(store, row), checkpoints=checkpoints
    )


def _settled_logs(store: LogStore, row: Mapping[str, Any]) -> list[FileInfo]:
    """Return the files a load would leave; of a local directory perhaps only those in ``.log``."""
    listed = listed_files(row)
    if listed is not None:
        files = [FileInfo(file.name, file.size_bytes, file.modified_ms) for file in listed]
        return settled_files(store, files)
    path = local_path(row["directory"])
    # Of a usual directory the facts of other files are asked by nobody.
    look = path and look_at(path, needs_age=False, needs_topic_id=False)
    if look and look.are_files and not any(map(is_unfinished_name, look.others)):
        return [FileInfo(name, *facts) for name, facts in look.logs.items()]
    return settled_files(store, store.list_files())


def _describe(state: PartitionState, survey: Survey, config: LogConfig) -> dict[str, Any]:
    plan, cleanable = survey.retention, survey.cleanable
    columns: dict[str, Any] = {
        "policy": "+".join(sorted(policy.value for policy in config.cleanup_policy)),
        "bytes": state.size_bytes,
        "segments": len(state.segments),
        "bytes_after": state.size_bytes - plan.removed_bytes,
        "segments_after": len(state.segments) - len(plan.removals),
        "removable_bytes": plan.removed_bytes,
        "removable_segments": len(plan.removals),
        "blocked_by": plan.blocked_by.hold.value,
        "wait_ms": plan.blocked_by.wait_ms,
        "due_bytes": plan.removed_bytes,
        "status": Status.PLANNED if plan.removals else Status.SKIPPED,
        "reason": None if plan.removals else Reason.NOTHING_TO_RETAIN,
    }
    if cleanable is not None:
        columns |= {
            "clean_bytes": cleanable.clean_bytes,
            "cleanable_bytes": cleanable.cleanable_bytes,
            "cleanable_ratio": cleanable.cleanable_ratio,
        }
        if cleanable.is_due:
            columns |= {"status": Status.PLANNED, "reason": None}
            columns["due_bytes"] += cleanable.cleanable_bytes
        elif not plan.removals and cleanable.not_due is not None:
            columns["reason"] = Reason(cleanable.not_due.value)
    return columns


def _skipped(reason: Reason) -> dict[str, Any]:
    return {"status": Status.SKIPPED, "reason": reason}
