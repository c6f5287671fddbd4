"""Forecast retention and compaction from listings and small files; read no record.

A listing knows where segments begin, how large they are and when their files were written; a
manifest knows the largest timestamps, too. That decides by size exactly, and by age as well as the
files' times are those of their records. What only the records know is left open, and a bound stands
for it: how long the active segment's log is, where its transactions end, and since when the oldest
dirty record has waited.
"""

import enum
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from storage_core.catalog.log_directories import SubDirectory
from storage_core.config import LogConfig
from storage_core.filenames import MAX_OFFSET, TopicPartition
from storage_core.formats.batch_v2 import NO_TIMESTAMP
from storage_core.maintenance.compaction.plan import (
    CleanableRange,
    CleanRequest,
    choose_range,
    without_max_lag,
)
from storage_core.maintenance.partition_state import ObservedSegment, PartitionState
from storage_core.maintenance.retention.plan import RetentionPlan, RetentionRules, plan_retention
from storage_core.reading.inspection import RootView, inspect_segments
from storage_core.roots.partition_facts import partition_checkpoints
from storage_core.store import FileInfo, open_store

Row = dict[str, Any]


class SegmentOutlook(enum.StrEnum):
    """What would become of a segment; the first that holds counts."""

    EXPIRED = "expired"  # retention would remove it now
    ACTIVE = "active"  # the last one: no cleaner touches it
    CLEAN = "clean"  # of a compacted topic, all of it below the first dirty offset
    DIRTY = "dirty"  # of a compacted topic, from the segment that holds that offset on
    KEPT = "kept"  # nothing is due, or nobody says what the topic's config is


@dataclass(frozen=True, slots=True, kw_only=True)
class Survey:
    """The retention and compaction that a partition is due for."""

    # What would go; of what is compacted after its round, as if that took nothing.
    retention: RetentionPlan
    cleanable: CleanableRange | None  # what would be cleaned; None where its topic is not compacted


def survey_partition(state: PartitionState, config: LogConfig, request: CleanRequest) -> Survey:
    """Return the retention and compaction that a partition is due for.

    Args:
        state: The partition as its listing or manifest shows it; at least one segment.
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
    """Use the file's time if no other is known, as Kafka."""
    if segment.max_timestamp is not None:
        return segment
    return replace(segment, max_timestamp=NO_TIMESTAMP)


def observe_segments(
    view: RootView,
    entry: SubDirectory,
    partition: TopicPartition,
    *,
    config: LogConfig | None,
    now_ms: int,
) -> list[Row]:
    """Return the segments of ``inspect_segments``, each with its ``state``.

    Args:
        config: Of its topic; None where nobody says it.
    """
    rows = list(inspect_segments(entry))
    if not rows:
        return []
    store = open_store(entry.path)
    checkpoints = partition_checkpoints(store, partition, lambda: view.checkpoints)
    request = CleanRequest(now_ms=now_ms, checkpoints=checkpoints)
    newest = {row["base_offset"]: row["newest_timestamp"] for row in rows}
    state = PartitionState.of_listing(
        store.location,
        [FileInfo(row["file"], row["size_bytes"], row["modified_ms"]) for row in rows],
        checkpoints=checkpoints,
        max_timestamps={base: NO_TIMESTAMP if at is None else at for base, at in newest.items()},
    )
    states = segment_states(state, config, request)
    identity = {
        "root": view.row["root"],
        "topic": partition.topic,
        "partition": partition.partition,
    }
    return [
        {**identity, **row, "state": segment_state.value}
        for row, segment_state in zip(rows, states, strict=True)
    ]


def segment_states(
    state: PartitionState, config: LogConfig | None, request: CleanRequest
) -> Sequence[SegmentOutlook]:
    """Return what would become of each segment, in their order.

    Args:
        state: At least one segment, with the last timestamps of time indexes.
        config: Of the topic; None where nobody says it. Of a tiered one it is not asked: only
            its brokers delete segments there.
        request: The run's clock, and the partition's checkpoints.
    """
    expired: frozenset[int] = frozenset()
    first_dirty = request.checkpoints.cleaner_offset
    if config is not None and not config.remote_storage_enable:
        survey = survey_partition(state, config, request)
        expired = frozenset(one.segment.base_offset for one in survey.retention.removals)
        cleanable = survey.cleanable
        first_dirty = None if cleanable is None else cleanable.first_dirty_offset
    ends = [segment.base_offset for segment in state.segments[1:]]
    below = [
        _state(segment.base_offset, end, expired=expired, first_dirty=first_dirty)
        for segment, end in zip(state.segments, ends, strict=False)
    ]
    active = state.active_segment.base_offset in expired
    return [*below, SegmentOutlook.EXPIRED if active else SegmentOutlook.ACTIVE]


def _state(
    base_offset: int, end_offset: int, *, expired: frozenset[int], first_dirty: int | None
) -> SegmentOutlook:
    if base_offset in expired:
        return SegmentOutlook.EXPIRED
    if first_dirty is None:
        return SegmentOutlook.KEPT
    return SegmentOutlook.CLEAN if end_offset <= first_dirty else SegmentOutlook.DIRTY
