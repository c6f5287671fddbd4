"""Observe partition directories and plan their compaction; write nothing. Each has one row of
``schemas.PLAN``.

A partition that is not due costs a listing, its indexes' tails and its newest producer snapshot; no
record is read.
"""

import enum
import json
import zlib
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, fields, replace
from functools import lru_cache, partial
from operator import attrgetter
from typing import Any, Final

import numpy as np

from pylog_spark.options import HighWatermarkSource
from pylog_spark.outcomes import Reason, Status
from pylog_spark.tasks.listing import (
    REASON_OF_KIND,
    REASON_OF_OTHER_KIND,
    OpenStore,
    left_alone,
    open_partition,
    reason_to_leave,
)
from pylog_spark.tasks.message import attempt_directory, needs_recovery
from pylog_spark.tasks.run_context import RunContext
from storage_core.catalog.off_switch import is_switched_off
from storage_core.catalog.roles import Role
from storage_core.catalog.topic_catalog import TopicConfigSource
from storage_core.checkpoint.checkpoints import Checkpoints, PartitionCheckpoints
from storage_core.commit.plan import digest_files
from storage_core.config import LogConfig
from storage_core.filenames import TopicPartition
from storage_core.formats.batch_v2 import HEADER_BYTES, HEADER_UP_TO_MAGIC_BYTES, MAGIC_AT, MAGIC_V2
from storage_core.index.segment_indexes import AbortedTxn
from storage_core.json_values import read_value, to_plain
from storage_core.kernels.batch_write import MAX_RECORD_GROWTH_BYTES
from storage_core.kernels.legacy_scan import MAX_RECORD_OVERHEAD_BYTES, MIN_ENTRY_BYTES
from storage_core.log.loaded_log import SegmentState
from storage_core.maintenance.compaction.commit import LoadWrites
from storage_core.maintenance.compaction.partition import (
    load_for_round,
    refuse_before_lag,
    refuse_negative_timestamps,
)
from storage_core.maintenance.compaction.plan import (
    CleanableRange,
    CleanRequest,
    CompactionPlan,
    UndueLogs,
    choose_range,
    group_segments,
    plan_compaction,
    rule_out_round,
)
from storage_core.maintenance.partition_state import PartitionState
from storage_core.roots.partition_facts import (
    has_expected_topic_id,
    manifest_checkpoints,
    manifest_recovery_point,
    manifest_timestamps,
    partition_checkpoints,
)
from storage_core.store import LogStore, one_look
from storage_core.store.base import held


def manifest_state(store: LogStore, checkpoints: PartitionCheckpoints) -> PartitionState | None:
    """Return a partition's state by its manifest; None without a manifest."""
    timestamps = manifest_timestamps(store)
    if timestamps is None:
        return None
    return PartitionState.of_listing(
        store.location,
        store.list_files(),
        checkpoints=checkpoints,
        max_timestamps=timestamps,
    )


# Say whether a step of a run concerns a partition.
#
# The questions are asked in the order of what they cost: the directory's name, its root, its
# topic's config, the partition's own small files, and the checkpoints.

REMOTE_KEY: Final = "remote.storage.enable"


class Step(enum.StrEnum):
    """A step of a run with a need for observations.

    The steps are in the order in which a night does them. As in a broker, partitions that are
    compacted are swept after their rounds, and all others apart from them.
    """

    RETAIN = "retain"  # sweeps what is not compacted
    COMPACT = "compact"
    SWEEP = "sweep"  # of what is compacted
    PURGE = "purge"


@dataclass(frozen=True, slots=True, kw_only=True)
class Admitted:
    """A partition that a step concerns."""

    store: LogStore
    config: LogConfig
    # What the checkpoint files, or its manifest, say of it; without a high watermark where the
    # log's end counts.
    checkpoints: PartitionCheckpoints
    checkpointed_mark: int | None  # the high watermark that they have, be it asked or not


def admit_topic(step: Step, root: str, topic: str, run: RunContext) -> LogConfig | Reason:
    """Return a topic's config, or the reason against a step."""
    catalog = run.catalogs[root]
    config = catalog.config_for(topic)
    if config is None:
        return Reason.METADATA_UNKNOWN if catalog.metadata_problem else Reason.CONFIG_UNKNOWN
    if config.remote_storage_enable:
        return Reason.TIERED
    if step is Step.RETAIN:
        if config.is_compacted:
            return Reason.COMPACTED
    elif not config.is_compacted:
        return Reason.NOT_COMPACTED
    elif not run.options.cleaner.enabled:
        return Reason.CLEANER_DISABLED
    entry = catalog.find(topic)
    # Where a broker kept a cache of remote indexes, only the cluster itself, or somebody who says
    # it of the topic, knows that a topic is not tiered.
    may_be_tiered = (
        root in run.remote_roots
        and entry is not None
        and entry.source is not TopicConfigSource.CLUSTER_METADATA
        and REMOTE_KEY not in entry.config_overrides
    )
    return Reason.REMOTE_STORAGE if may_be_tiered else config


def is_only_replica(row: Mapping[str, Any], run: RunContext) -> bool:
    """Whether a broker's partition is known to have no other replica.

    Without an entry in the checkpoint its high watermark is then the log's end, as for the leader
    that its broker becomes.

    Args:
        row: Of ``schemas.PARTITION``.
    """
    partition = TopicPartition(row["topic"], row["partition"])
    is_alone = run.catalogs[row["root"]].has_other_replicas(partition) is False
    return is_alone and Role(row["role"]).facts.is_owned_by_broker


def observe_alone(
    step: Step,
    row: Mapping[str, Any],
    run: RunContext,
    checkpoints_of: Callable[[str], Checkpoints],
    observe: Callable[[Admitted], dict[str, Any]],
    *,
    excluded: frozenset[str] = frozenset(),
    open_store: OpenStore,
) -> dict[str, Any]:
    """Return a step's row of one directory, whatever is wrong with it.

    Args:
        row: Of ``schemas.PARTITION``.
        observe: Returns the columns of a partition that the step concerns.
        excluded: Partition directories that a sweep leaves alone: their compaction failed.
    """

    def work() -> dict[str, Any]:
        admitted = _admit(step, row, run, checkpoints_of, excluded=excluded, open_store=open_store)
        return left_alone(row, admitted) if isinstance(admitted, Reason) else observe(admitted)

    return attempt_directory(row, work, needs_recovery)


def _admit(
    step: Step,
    row: Mapping[str, Any],
    run: RunContext,
    checkpoints_of: Callable[[str], Checkpoints],
    *,
    excluded: frozenset[str],
    open_store: OpenStore,
) -> Admitted | Reason:
    """Admit a partition to a step, or return the reason against it."""
    root, topic, directory = row["root"], row["topic"], row["directory"]
    kinds = REASON_OF_KIND if step is Step.COMPACT else REASON_OF_OTHER_KIND
    reason = reason_to_leave(row, kinds)
    if reason is None and run.is_unclean(root, directory):
        reason = Reason.UNCLEAN_SHUTDOWN
    if reason is None and step is Step.COMPACT and is_switched_off(directory):
        reason = Reason.SWITCHED_OFF
    if reason is not None:
        return reason
    config = admit_topic(step, root, topic, run)
    if isinstance(config, Reason):
        return config
    if step is not Step.COMPACT and is_switched_off(directory):
        reason = Reason.SWITCHED_OFF
    elif directory in excluded:
        reason = Reason.COMPACTED
    if reason is not None:
        return reason
    store = open_store(row)
    if not has_expected_topic_id(store, run.catalogs[root].topic_id(topic)):
        return Reason.INCONSISTENT_TOPIC_ID
    partition = TopicPartition(topic, row["partition"])
    checkpoints = partition_checkpoints(store, partition, partial(checkpoints_of, root))
    mark = checkpoints.high_watermark
    if run.options.high_watermark is HighWatermarkSource.LOG_END:
        checkpoints = replace(checkpoints, high_watermark=None)
    elif mark is None and not is_only_replica(row, run):
        return Reason.NO_HIGH_WATERMARK
    return Admitted(store=store, config=config, checkpoints=checkpoints, checkpointed_mark=mark)


_SEGMENTS: Final = "segments"
_ABORTED: Final = "aborted"
_SEGMENT_NAMES: Final = tuple(field.name for field in fields(SegmentState))
_SEGMENT_VALUES: Final = attrgetter(*_SEGMENT_NAMES)
_AbortedColumn = tuple[tuple[AbortedTxn, ...], ...]
# Length, attributes, two deltas, key length, value length, count of headers: a byte each.
_LEAST_RECORD_BYTES: Final = 7
_OLD_MESSAGE_GROWTH_BYTES: Final = HEADER_BYTES + MAX_RECORD_OVERHEAD_BYTES - MIN_ENTRY_BYTES


def observe_partition(
    row: Mapping[str, Any],
    context: RunContext,
    checkpoints_of: Callable[[str], Checkpoints],
    open_store: OpenStore = open_partition,
) -> dict[str, Any]:
    """Return the row of one partition directory, whatever is wrong with it.

    Args:
        row: Of ``schemas.PARTITION``.
    """
    observe = partial(_observe, context)
    return observe_alone(Step.COMPACT, row, context, checkpoints_of, observe, open_store=open_store)


def _observe(context: RunContext, admitted: Admitted) -> dict[str, Any]:
    store, config = admitted.store, admitted.config
    request = CleanRequest(now_ms=context.options.now_ms, checkpoints=admitted.checkpoints)
    with held(store):
        return _rule_out(store, config, request) or _plan(store, config, context, request)


def _rule_out(store: LogStore, config: LogConfig, request: CleanRequest) -> dict[str, Any] | None:
    """Return the row of a log not due by its manifest. None where the manifest alone does not
    show that."""
    state = manifest_state(store, request.checkpoints)
    if state is None or not state.segments:
        return None
    point = manifest_recovery_point(store)
    cleanable = rule_out_round(state, config, request, recovery_point=point)
    if cleanable is None or cleanable.not_due is None:
        return None
    observed = range_columns(
        cleanable,
        size_bytes=state.size_bytes,
        segments=len(state.segments),
        log_start_checkpoint=request.checkpoints.log_start_offset or 0,
    )
    return observed | _skipped(Reason(cleanable.not_due.value))


def _skipped(reason: Reason) -> dict[str, Any]:
    return {"status": Status.SKIPPED, "reason": reason}


def _plan(
    store: LogStore, config: LogConfig, context: RunContext, request: CleanRequest
) -> dict[str, Any]:
    with one_look(store):
        log = load_for_round(store, config, context.options.cleaner, request)
        state = PartitionState.of_log(log)
        cleanable = choose_range(state, config, request)
        loaded_files = digest_files(store) if cleanable.is_due else None
    observed = range_columns(
        cleanable,
        size_bytes=log.size_bytes,
        segments=len(log.segments),
        log_start_checkpoint=request.checkpoints.log_start_offset or 0,
    )
    if cleanable.not_due is not None:
        return observed | _skipped(Reason(cleanable.not_due.value))
    refuse_before_lag(store, state, cleanable, config, now_ms=request.now_ms)
    plan = plan_compaction(
        log,
        config,
        context.options.cleaner,
        cleanable,
        now_ms=context.options.now_ms,
        hash_key=context.hash_key,
    )
    if context.options.dry_run:  # or else the round itself says it
        refuse_negative_timestamps(store, plan)
    if manifest_checkpoints(store) is not None:
        observed["checkpoint_reset"] = False  # the round's own commit says where the next begins
    observed |= {"loaded_files": loaded_files, "load_writes": LoadWrites.encode(log)}
    return observed | _describe_plan(store, plan, log.size_bytes)


def range_columns(
    ranges: CleanableRange | UndueLogs,
    *,
    size_bytes: Any,
    segments: Any,
    log_start_checkpoint: Any,
) -> dict[str, Any]:
    """Return what ``schemas.PLAN`` says of the range that a round would clean. Each value is one
    partition's, or an array of those of many."""
    return {
        "bytes": size_bytes,
        "segments": segments,
        "first_dirty_offset": ranges.first_dirty_offset,
        "first_uncleanable_offset": ranges.first_uncleanable_offset,
        "clean_bytes": ranges.clean_bytes,
        "cleanable_bytes": ranges.cleanable_bytes,
        "cleanable_ratio": ranges.cleanable_ratio,
        "compaction_delay_ms": ranges.max_compaction_delay_ms,
        "log_start_checkpoint": log_start_checkpoint,
        # Kafka corrects the entry of a log that has one, be the log cleaned or not.
        "checkpoint_reset": ranges.checkpoint_is_invalid,
    }


def _describe_plan(store: LogStore, plan: CompactionPlan, size_bytes: int) -> dict[str, Any]:
    sources = plan.segments_below(plan.first_uncleanable_offset)
    source_bytes = sum(segment.size_bytes for segment in sources)
    # A delete horizon makes the records of its batch longer, so a round may add bytes. Only what a
    # compressor makes of a filtered batch has no bound that could be known here.
    records = plan.first_uncleanable_offset - sources[0].base_offset
    growth_bytes = MAX_RECORD_GROWTH_BYTES * min(records, source_bytes // _LEAST_RECORD_BYTES)
    if _begins_with_old_format(store, sources):
        # Each message of an old format becomes a batch of its own.
        growth_bytes += _OLD_MESSAGE_GROWTH_BYTES * min(records, source_bytes // MIN_ENTRY_BYTES)
    return {
        "status": Status.PLANNED,
        "groups": len(group_segments(plan, plan.first_uncleanable_offset)),
        "bytes_after": size_bytes + growth_bytes,
        "peak_extra_bytes": source_bytes + growth_bytes,
        "plan": encode_plan(plan),
        "segment_bytes": [segment.size_bytes for segment in sources],
    }


def _begins_with_old_format(store: LogStore, segments: Sequence[SegmentState]) -> bool:
    """Return whether the oldest batch has a format before v2. Where there are any such batches,
    they come first."""
    head = np.zeros(HEADER_UP_TO_MAGIC_BYTES, np.uint8)
    for segment in segments:
        with closing(store.open_file(segment.log_file)) as reader:
            if reader.read_into(0, head) == head.size:
                return int(head[MAGIC_AT]) < MAGIC_V2
    return False


def encode_plan(plan: CompactionPlan) -> bytes:
    """Return a plan as compressed JSON, to travel in a row. That is ten times smaller.

    Its segments are columns: a plan may have thousands, and so no object is made for each.
    """
    values = zip(*map(_SEGMENT_VALUES, plan.segments), strict=True)
    columns: dict[str, Any] = dict(zip(_SEGMENT_NAMES, values, strict=True))
    columns[_ABORTED] = [aborted and to_plain(aborted) for aborted in columns[_ABORTED]]
    plain = {**to_plain(replace(plan, segments=())), _SEGMENTS: columns}
    return zlib.compress(json.dumps(plain).encode())


@lru_cache(maxsize=1)
def decode_plan(content: bytes) -> CompactionPlan:
    """Return the plan of a row.

    The last one is kept: a task asks for it once a segment, and a plan has all segments in it.
    """
    plain = json.loads(zlib.decompress(content))
    columns = plain[_SEGMENTS]
    columns[_ABORTED] = read_value(_AbortedColumn, columns[_ABORTED], _ABORTED)
    segments = tuple(map(SegmentState, *map(columns.__getitem__, _SEGMENT_NAMES)))
    plan: CompactionPlan = read_value(CompactionPlan, plain | {_SEGMENTS: []}, "plan")
    return replace(plan, segments=segments)
