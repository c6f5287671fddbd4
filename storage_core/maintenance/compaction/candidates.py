"""Choose the cleanable range of a log; say whether it is due.

These are the decisions of Kafka's LogCleanerManager.
"""

import enum
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

from storage_core.config import LogConfig
from storage_core.errors import ConfigError
from storage_core.log.log_segment import SegmentState
from storage_core.maintenance.partition_state import FactLevel, ObservedSegment, PartitionState

SomeSegment = TypeVar("SomeSegment", ObservedSegment, SegmentState)

MAX_LAG_MS = 2**63 - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class CleanRequest:
    """The round's clock and the checkpoints' entries for the partition.

    The checkpoints are those of the log directory.

    Attributes:
        now_ms: The one clock of the run, epoch milliseconds.
        high_watermark: First offset not known to be on all in-sync replicas; None for the log end.
        log_start_offset: Entry of the log-start checkpoint; None without one.
        cleaner_checkpoint: Entry of the cleaner checkpoint; None if the log was never cleaned.
        first_dirty_offset: Range chosen by the caller instead of by ratio and lags; None for
            Kafka's own choice.
        first_uncleanable_offset: End of that range; None for the active segment's base offset.
    """

    now_ms: int
    high_watermark: int | None = None
    log_start_offset: int | None = None
    cleaner_checkpoint: int | None = None
    first_dirty_offset: int | None = None
    first_uncleanable_offset: int | None = None


class NotDue(enum.StrEnum):
    """Why a log is not cleaned; the values are stable."""

    NOT_COMPACTED = "NOT_COMPACTED"
    NOTHING_TO_CLEAN = "NOTHING_TO_CLEAN"
    RATIO_BELOW_MINIMUM = "RATIO_BELOW_MINIMUM"


@dataclass(frozen=True, slots=True, kw_only=True)
class CleanableRange:
    """The offsets that a round would clean.

    Attributes:
        first_dirty_offset: Where keys are collected from.
        first_uncleanable_offset: Base offset of the first segment that is left alone.
        clean_bytes: Bytes of the segments that begin below the first dirty offset.
        cleanable_bytes: Bytes of the segments from there to the first uncleanable one.
        max_compaction_delay_ms: By how much max.compaction.lag.ms is exceeded, 0 if it is not.
        checkpoint_is_invalid: Whether the cleaner checkpoint lies outside of the log, so that it
            is replaced by first_dirty_offset even if nothing is cleaned.
        not_due: Why the log is not to be cleaned now, None if it is.
    """

    first_dirty_offset: int
    first_uncleanable_offset: int
    clean_bytes: int
    cleanable_bytes: int
    max_compaction_delay_ms: int = 0
    checkpoint_is_invalid: bool = False
    not_due: NotDue | None = None

    @property
    def cleanable_ratio(self) -> float:
        """Share of the cleanable bytes, 0.0 for a log without any."""
        total = self.clean_bytes + self.cleanable_bytes
        return self.cleanable_bytes / total if total else 0.0

    @property
    def is_due(self) -> bool:
        """Whether Kafka would clean the log now."""
        return self.not_due is None


def choose_range(state: PartitionState, config: LogConfig, request: CleanRequest) -> CleanableRange:
    """Choose the range to clean, as Kafka's cleaner manager or the request.

    Args:
        state: The partition.
        config: Its topic's configuration.
        request: With a first dirty offset, that range is taken and is due.

    Raises:
        ConfigError: The range of the request ends below its start.
        UnobservedError: The state lacks a fact that the choice needs: where the log ends and is
            stable, largest timestamps for ``min.compaction.lag.ms``, and those of first batches for
            ``max.compaction.lag.ms``.
    """
    active = state.active_segment.base_offset
    first_dirty = request.first_dirty_offset
    if first_dirty is not None:
        asked_end = request.first_uncleanable_offset
        end = _round_down(state, active if asked_end is None else asked_end)
        if first_dirty > end:
            raise ConfigError(
                "first dirty offset",
                first_dirty,
                f"the range ends below it: at {end}, the base offset of the first segment that is "
                "left alone",
            )
        return CleanableRange(
            first_dirty_offset=first_dirty,
            first_uncleanable_offset=end,
            clean_bytes=_clean_bytes(state, first_dirty),
            cleanable_bytes=_cleanable_bytes(state, first_dirty, end),
        )
    checkpoint = request.cleaner_checkpoint
    is_invalid = checkpoint is not None and not (
        state.log_start_offset <= checkpoint <= state.log_end_offset
    )
    first_dirty = state.log_start_offset if checkpoint is None or is_invalid else checkpoint
    bounds = [state.last_stable_offset, active]
    if config.min_compaction_lag_ms > 0:
        young_after = request.now_ms - config.min_compaction_lag_ms
        bounds += [
            segment.base_offset
            for segment in _non_active_from(state.segments, first_dirty)
            if segment.largest_timestamp > young_after
        ][:1]
    end = _round_down(state, max(first_dirty, min(bounds)))
    clean_bytes = _clean_bytes(state, first_dirty)
    cleanable_bytes = _cleanable_bytes(state, first_dirty, end)
    delay_ms = _max_compaction_delay(state, config, first_dirty, request.now_ms)
    return CleanableRange(
        first_dirty_offset=first_dirty,
        first_uncleanable_offset=end,
        clean_bytes=clean_bytes,
        cleanable_bytes=cleanable_bytes,
        max_compaction_delay_ms=delay_ms,
        checkpoint_is_invalid=is_invalid,
        not_due=_reason(config, clean_bytes, cleanable_bytes, delay_ms),
    )


def rule_out_round(
    state: PartitionState,
    config: LogConfig,
    request: CleanRequest,
    *,
    recovery_point: int | None,
) -> CleanableRange | None:
    """Return the range of a log surely not due, else None.

    None means that the log itself has to be asked.

    What only batches tell (how far committed data reaches, when a segment began) is taken as the
    case in which most would be cleaned: the range ends where it would if every record below the
    high watermark were stable. Where even that is not due, neither is the log.

    Args:
        state: The partition as a listing or a manifest shows it; at least one segment.
        config: Its topic's configuration.
        request: Clock and checkpoints.
        recovery_point: Offset that the log is known to reach; None where nothing says so.
    """
    active = state.active_segment.base_offset
    reached = max(active, recovery_point or 0)
    checkpoint = request.cleaner_checkpoint
    if checkpoint is not None and checkpoint > reached:
        return None  # it may lie beyond the log's end, which only the log tells
    if config.min_compaction_lag_ms > 0 and state.level < FactLevel.INDEX_TAILS:
        return None
    watermark = state.high_watermark
    bounded = replace(
        state,
        log_end=max(reached, state.log_start_offset),
        stable_end=active if watermark is None else watermark,
    )
    chosen = choose_range(bounded, without_max_lag(config), request)
    # Only the first batch of each segment tells since when one has waited.
    may_wait_too_long = config.limits_compaction_lag and chosen.cleanable_bytes > 0
    return None if chosen.is_due or may_wait_too_long else chosen


def without_max_lag(config: LogConfig) -> LogConfig:
    """Return a configuration without a limit for the age of dirty records.

    No log is due for that age alone then.
    """
    return replace(config, max_compaction_lag_ms=MAX_LAG_MS)


def _reason(
    config: LogConfig, clean_bytes: int, cleanable_bytes: int, delay_ms: int
) -> NotDue | None:
    """Return why Kafka would not clean now, None if it would."""
    if not config.is_compacted:
        return NotDue.NOT_COMPACTED
    if cleanable_bytes == 0:
        # A ratio of zero is above no minimum: none is negative.
        return NotDue.NOTHING_TO_CLEAN
    ratio = cleanable_bytes / (clean_bytes + cleanable_bytes)
    is_due = delay_ms > 0 or ratio > config.min_cleanable_dirty_ratio
    return None if is_due else NotDue.RATIO_BELOW_MINIMUM


def segments_between(
    segments: Sequence[SomeSegment], first_offset: int, end_offset: int
) -> list[SomeSegment]:
    """Return the segments from the one of first_offset to end_offset.

    All of them begin below end_offset.
    """
    if first_offset == end_offset:
        return []
    floor = max((s.base_offset for s in segments if s.base_offset <= first_offset), default=0)
    return [s for s in segments if floor <= s.base_offset < end_offset]


def _non_active_from(segments: Sequence[ObservedSegment], offset: int) -> list[ObservedSegment]:
    """Return the segments from an offset on, without the active one.

    The first of them is the one that holds the offset.
    """
    active = segments[-1].base_offset
    if offset > active:
        return []
    return segments_between(segments, offset, active)


def _round_down(state: PartitionState, offset: int) -> int:
    """Round an offset down to the base of a segment.

    A range that may reach up to the offset ends there.
    """
    left_alone = _non_active_from(state.segments, offset)
    return (left_alone[0] if left_alone else state.active_segment).base_offset


def _clean_bytes(state: PartitionState, first_dirty: int) -> int:
    return sum(s.size_bytes for s in state.segments if s.base_offset < first_dirty)


def _cleanable_bytes(state: PartitionState, first_dirty: int, end: int) -> int:
    between = segments_between(state.segments, min(first_dirty, end), end)
    return sum(segment.size_bytes for segment in between)


def _max_compaction_delay(
    state: PartitionState, config: LogConfig, first_dirty: int, now_ms: int
) -> int:
    """Return by how much ``max.compaction.lag.ms`` is exceeded, 0 if it is not."""
    if not config.limits_compaction_lag:
        return 0
    dirty = _non_active_from(state.segments, first_dirty)
    timestamps = [s.first_batch_timestamp for s in dirty if s.first_batch_timestamp > 0]
    clean_until = now_ms - config.max_compaction_lag_ms
    return max(0, clean_until - min(timestamps, default=MAX_LAG_MS))
