"""Forecasts retention and compaction from a listing or a manifest alone: no record is read.

A listing knows where segments begin, how large they are and when their files were written; a
manifest knows the largest timestamps, too. That decides by size exactly, and by age as well as the
files' times are those of their records. What only the records know is left open, and a bound stands
for it: how long the active segment's log is, where its transactions end, and since when the oldest
dirty record has waited.
"""

from dataclasses import dataclass, replace

from storage_core.config import LogConfig
from storage_core.filenames import MAX_OFFSET
from storage_core.formats.batch_v2 import NO_TIMESTAMP
from storage_core.maintenance.compaction.candidates import (
    CleanableRange,
    CleanRequest,
    choose_range,
    without_max_lag,
)
from storage_core.maintenance.partition_state import ObservedSegment, PartitionState
from storage_core.maintenance.retention.plan import RetentionPlan, RetentionRules, plan_retention


@dataclass(frozen=True, slots=True, kw_only=True)
class Survey:
    """The retention and compaction that a partition is due for.

    Attributes:
        retention: What would go; of what is compacted after its round, as if that took nothing.
        cleanable: What would be cleaned; None where its topic is not compacted.
    """

    retention: RetentionPlan
    cleanable: CleanableRange | None


def survey_partition(state: PartitionState, config: LogConfig, request: CleanRequest) -> Survey:
    """Return the retention and compaction that a partition is due for.

    Args:
        state: The partition as its listing or manifest shows it; at least one segment.
        config: Of its topic, not tiered.
        request: The run's clock, and the partition's checkpoints.
    """
    active = state.active_segment.base_offset
    aged = replace(state, segments=tuple(map(_with_age_of_file, state.segments)))
    # The active segment ends above its base, nobody knows where. Least of all goes if it ends
    # there; and no cleaner point lies beyond its end.
    shortest = replace(aged, log_end=max(active, state.high_watermark or 0))
    longest = replace(
        aged,
        log_end=MAX_OFFSET,
        stable_end=active if state.high_watermark is None else state.high_watermark,
    )
    return Survey(
        retention=plan_retention(shortest, RetentionRules.of(config), now_ms=request.now_ms),
        cleanable=(
            choose_range(longest, without_max_lag(config), request) if config.is_compacted else None
        ),
    )


def _with_age_of_file(segment: ObservedSegment) -> ObservedSegment:
    """Let the time of the file count where no other is known, as Kafka does without timestamps."""
    if segment.max_timestamp is not None:
        return segment
    return replace(segment, max_timestamp=NO_TIMESTAMP)
