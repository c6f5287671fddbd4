"""Observe partition directories and plan their compaction; write nothing. Each has one row of
``schemas.PLAN``.

A partition that is not due costs a listing, its indexes' tails and its newest producer snapshot; no
record is read.
"""

import zlib
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from functools import lru_cache, partial
from typing import Any, Final

import numpy as np

from pylog_spark.schemas import Reason, Status
from pylog_spark.tasks.admission import Admitted, Step, observe_alone
from pylog_spark.tasks.listing import OpenStore, open_partition
from pylog_spark.tasks.managed_view import clean_request, manifest_state
from pylog_spark.tasks.run_context import RunContext
from storage_core.checkpoint.checkpoints import Checkpoints
from storage_core.config import LogConfig
from storage_core.formats.batch_v2 import HEADER_BYTES, HEADER_UP_TO_MAGIC_BYTES, MAGIC_AT, MAGIC_V2
from storage_core.json_values import from_json, to_json
from storage_core.kernels.batch_write import MAX_RECORD_GROWTH_BYTES
from storage_core.kernels.legacy_scan import MAX_RECORD_OVERHEAD_BYTES, MIN_ENTRY_BYTES
from storage_core.log.log_segment import SegmentState
from storage_core.maintenance.compaction.candidates import (
    CleanableRange,
    CleanRequest,
    choose_range,
    rule_out_round,
)
from storage_core.maintenance.compaction.guards import (
    refuse_before_lag,
    refuse_negative_timestamps,
)
from storage_core.maintenance.compaction.partition import load_for_round
from storage_core.maintenance.compaction.plan import CompactionPlan, group_segments, plan_compaction
from storage_core.maintenance.partition_state import PartitionState
from storage_core.roots.partition_facts import manifest_checkpoints, manifest_recovery_point
from storage_core.store import LogStore

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
    request = clean_request(
        admitted.checkpoints, now_ms=context.options.now_ms, high_watermark=admitted.high_watermark
    )
    return _rule_out(store, config, request) or _plan(store, config, context, request)


def _rule_out(store: LogStore, config: LogConfig, request: CleanRequest) -> dict[str, Any] | None:
    """Return the row of a log not due by its manifest. None where the manifest alone does not
    show that."""
    state = manifest_state(store, request)
    if state is None or not state.segments:
        return None
    point = manifest_recovery_point(store)
    cleanable = rule_out_round(state, config, request, recovery_point=point)
    if cleanable is None or cleanable.not_due is None:
        return None
    observed = _describe_range(state.size_bytes, len(state.segments), cleanable, request)
    return observed | _skipped(Reason(cleanable.not_due.value))


def _skipped(reason: Reason) -> dict[str, Any]:
    return {"status": Status.SKIPPED, "reason": reason}


def _plan(
    store: LogStore, config: LogConfig, context: RunContext, request: CleanRequest
) -> dict[str, Any]:
    log = load_for_round(store, config, context.options.cleaner, request)
    state = PartitionState.of_log(log)
    cleanable = choose_range(state, config, request)
    observed = _describe_range(log.size_bytes, len(log.segments), cleanable, request)
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
    refuse_negative_timestamps(store, plan)
    if manifest_checkpoints(store) is not None:
        observed["checkpoint_reset"] = False  # the round's own commit says where the next begins
    return observed | _describe_plan(store, plan, log.size_bytes)


def _describe_range(
    size_bytes: int, segments: int, cleanable: CleanableRange, request: CleanRequest
) -> dict[str, Any]:
    has_entry = request.cleaner_checkpoint is not None
    return {
        "bytes": size_bytes,
        "segments": segments,
        "first_dirty_offset": cleanable.first_dirty_offset,
        "first_uncleanable_offset": cleanable.first_uncleanable_offset,
        "clean_bytes": cleanable.clean_bytes,
        "cleanable_bytes": cleanable.cleanable_bytes,
        "cleanable_ratio": cleanable.cleanable_ratio,
        "compaction_delay_ms": cleanable.max_compaction_delay_ms,
        "log_start_checkpoint": request.log_start_offset or 0,
        # Kafka corrects the entry of a log that has one, be the log cleaned or not.
        "checkpoint_reset": has_entry and cleanable.checkpoint_is_invalid,
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
    """Return a plan as compressed JSON, to travel in a row. That is ten times smaller."""
    return zlib.compress(to_json(plan).encode())


@lru_cache(maxsize=1)
def decode_plan(content: bytes) -> CompactionPlan:
    """Return the plan of a row.

    The last one is kept: a task asks for it once a segment, and a plan has all segments in it.
    """
    return from_json(CompactionPlan, zlib.decompress(content).decode())
