"""Choose the cleanable range of a log; say whether it is due.

These are the decisions of Kafka's LogCleanerManager. They are a loop over arrays
(``kernels.compaction_walk``), which decides about very many partitions at once; one partition is an
array of one.
"""

import enum
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, Self

import numpy as np

from storage_core.config import LogConfig
from storage_core.config.values import LONG_MAX
from storage_core.errors import ConfigError
from storage_core.kernels import compaction_walk as walk
from storage_core.log.loaded_log import LoadedLog
from storage_core.maintenance.listings import (
    NO_END,
    NO_ENTRY,
    CheckpointColumns,
    Listings,
    Numbers,
)
from storage_core.maintenance.partition_state import Fact, PartitionState, UnobservedError

_FACTS: Final = {
    walk.TIMESTAMP: Fact.TIMESTAMP,
    walk.LOG_END: Fact.LOG_END,
    walk.STABLE_OFFSET: Fact.STABLE_OFFSET,
    walk.FIRST_BATCH: Fact.FIRST_BATCH,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class CleanRequest:
    """The round's clock and the checkpoints' entries for the partition. The checkpoints are
    those of the log directory."""

    now_ms: int
    # First offset not known to be on all in-sync replicas; None for the log end.
    high_watermark: int | None = None
    log_start_offset: int | None = None  # entry of the log-start checkpoint; None without one
    # Entry of the cleaner checkpoint; None if the log was never cleaned.
    cleaner_checkpoint: int | None = None
    # Range chosen by the caller instead of by ratio and lags; None for Kafka's own choice.
    first_dirty_offset: int | None = None
    # End of that range; None for the active segment's base offset.
    first_uncleanable_offset: int | None = None


class NotDue(enum.StrEnum):
    """Why a log is not cleaned; the values are stable. They are in the order of the walk's
    numbers."""

    NOT_COMPACTED = "NOT_COMPACTED"
    NOTHING_TO_CLEAN = "NOTHING_TO_CLEAN"
    RATIO_BELOW_MINIMUM = "RATIO_BELOW_MINIMUM"


# By verdict of the walk.
VERDICTS: Final = (None, *NotDue)


@dataclass(frozen=True, slots=True, kw_only=True)
class CleanableRange:
    """The offsets that a round would clean."""

    first_dirty_offset: int  # where keys are collected from
    first_uncleanable_offset: int  # base offset of the first segment that is left alone
    clean_bytes: int  # bytes of the segments that begin below the first dirty offset
    cleanable_bytes: int
    dirty_bytes: int = 0
    # Base offset of the first dirty segment that is younger than min.compaction.lag.ms, None
    # without one.
    first_young_offset: int | None = None
    # Of the first batches of dirty segments where max.compaction.lag.ms is limited; None without
    # one.
    oldest_dirty_timestamp: int | None = None
    max_compaction_delay_ms: int = 0  # by how much that limit is exceeded, 0 if it is not
    # Whether the cleaner checkpoint lies outside of the log, so that it is replaced by
    # first_dirty_offset even if nothing is cleaned.
    checkpoint_is_invalid: bool = False
    not_due: NotDue | None = None  # why the log is not to be cleaned now, None if it is

    @property
    def cleanable_ratio(self) -> float:
        """Share of the cleanable bytes, 0.0 for a log without any."""
        total = self.clean_bytes + self.cleanable_bytes
        return self.cleanable_bytes / total if total else 0.0

    @property
    def is_due(self) -> bool:
        """Whether Kafka would clean the log now."""
        return self.not_due is None


@dataclass(frozen=True, slots=True, kw_only=True)
class CompactionFacts:
    """Facts of some partitions for the choice of their ranges."""

    segments: Numbers  # int64[SEGMENT_COLUMNS, m] of the walk, those of all partitions
    logs: Numbers  # int64[LOG_COLUMNS, n] of the walk

    @classmethod
    def of_state(cls, state: PartitionState, config: LogConfig, request: CleanRequest) -> Self:
        """Return the facts of one partition, as far as it was observed."""
        listed = state.segments
        segments = np.full((walk.SEGMENT_COLUMNS, len(listed)), walk.NONE)
        segments[walk.BASE_OFFSET] = [segment.base_offset for segment in listed]
        segments[walk.SIZE_BYTES] = [segment.size_bytes for segment in listed]
        if config.min_compaction_lag_ms > 0:
            segments[walk.LARGEST_TIMESTAMP] = [
                _or_none(None if segment.max_timestamp is None else segment.largest_timestamp)
                for segment in listed
            ]
        if config.limits_compaction_lag:
            segments[walk.FIRST_TIMESTAMP] = [
                _or_none(segment.first_timestamp) for segment in listed
            ]
        log = (
            0,
            len(listed),
            state.log_start_offset,
            _or_none(state.log_end),
            _or_none(state.stable_end),
            _or_none(request.cleaner_checkpoint),
            config.min_compaction_lag_ms,
            config.max_compaction_lag_ms,
            config.is_compacted,
            _or_none(request.first_dirty_offset),
            walk.LARGEST
            if request.first_uncleanable_offset is None
            else request.first_uncleanable_offset,
            np.float64(config.min_cleanable_dirty_ratio).view(np.int64),
        )
        return cls(
            segments=segments,
            logs=np.array([log], np.int64).T,
        )

    @classmethod
    def of_listings(
        cls,
        listings: Listings,
        configs: Sequence[LogConfig | None],
        checkpoints: CheckpointColumns,
    ) -> Self:
        """Return the facts of very many partitions, without ages of segments.

        Args:
            configs: Of their topics; None for one that is not compacted.
            checkpoints: Of the partitions; without a high watermark the log's end counts.
        """
        segments = np.full((walk.SEGMENT_COLUMNS, len(listings.sizes)), walk.NONE)
        segments[walk.BASE_OFFSET] = listings.base_offsets
        segments[walk.SIZE_BYTES] = listings.sizes
        log_starts = np.maximum(
            checkpoints.log_start_offsets, listings.base_offsets[listings.starts]
        )
        ends, has_end = listings.log_ends, listings.log_ends != NO_END
        # No transaction is open in a log whose end is known here: all below the watermark is
        # stable.
        marks, points = checkpoints.high_watermarks, checkpoints.cleaner_offsets
        stable = np.where(marks != NO_ENTRY, np.minimum(np.maximum(marks, log_starts), ends), ends)
        logs = np.empty((walk.LOG_COLUMNS, len(listings)), np.int64)
        logs[walk.FIRST_SEGMENT] = listings.starts
        logs[walk.SEGMENT_COUNT] = listings.counts
        logs[walk.LOG_START_OFFSET] = log_starts
        logs[walk.LOG_END_OFFSET] = np.where(has_end, ends, walk.NONE)
        logs[walk.LAST_STABLE_OFFSET] = np.where(has_end, stable, walk.NONE)
        logs[walk.CLEANER_CHECKPOINT] = np.where(points != NO_ENTRY, points, walk.NONE)
        logs[walk.MIN_LAG_MS] = [c.min_compaction_lag_ms if c else 0 for c in configs]
        logs[walk.MAX_LAG_MS] = [c.max_compaction_lag_ms if c else LONG_MAX for c in configs]
        logs[walk.IS_COMPACTED] = [c is not None and c.is_compacted for c in configs]
        logs[walk.REQUESTED_START] = walk.NONE
        logs[walk.REQUESTED_END] = walk.LARGEST
        least_ratios = [c.min_cleanable_dirty_ratio if c else 0.0 for c in configs]
        logs[walk.LEAST_RATIO] = np.array(least_ratios, np.float64).view(np.int64)
        return cls(segments=segments, logs=logs)

    def decide(self, *, now_ms: int) -> Numbers:
        """Return the answers of the walk: int64[ANSWER_COLUMNS, n]."""
        answers = np.empty((walk.ANSWER_COLUMNS, self.logs.shape[1]), np.int64)
        walk.walk_compaction(self.segments, self.logs, now_ms, answers)
        return answers


def _or_none(fact: int | None) -> int:
    """Return a fact for the walk, NONE for a missing one. A fact of the least int64, which NONE
    is, counts as one more."""
    return walk.NONE if fact is None else max(fact, walk.NONE + 1)


def choose_range(state: PartitionState, config: LogConfig, request: CleanRequest) -> CleanableRange:
    """Choose the range to clean, as Kafka's cleaner manager or the request.

    Args:
        state: The partition; at least one segment.
        request: With a first dirty offset, that range is taken and is due.
    """
    facts = CompactionFacts.of_state(state, config, request)
    answer = facts.decide(now_ms=request.now_ms)[:, 0].tolist()
    if answer[walk.MISSING] != walk.NOTHING:
        base = state.segments[answer[walk.MISSING_OF]].base_offset
        raise UnobservedError(base, _FACTS[answer[walk.MISSING]])
    first_dirty, end = answer[walk.FIRST_DIRTY_OFFSET], answer[walk.FIRST_UNCLEANABLE_OFFSET]
    if request.first_dirty_offset is not None and first_dirty > end:
        raise ConfigError(
            "first dirty offset",
            first_dirty,
            f"the range ends below it: at {end}, the base offset of the first segment that is "
            "left alone",
        )
    young, oldest = answer[walk.FIRST_YOUNG_OFFSET], answer[walk.OLDEST_DIRTY_TIMESTAMP]
    delay_ms = request.now_ms - oldest - config.max_compaction_lag_ms
    return CleanableRange(
        first_dirty_offset=first_dirty,
        first_uncleanable_offset=end,
        clean_bytes=answer[walk.CLEAN_BYTES],
        cleanable_bytes=answer[walk.CLEANABLE_BYTES],
        dirty_bytes=answer[walk.DIRTY_BYTES],
        first_young_offset=None if young == walk.NONE else young,
        oldest_dirty_timestamp=None if oldest == walk.LARGEST else oldest,
        max_compaction_delay_ms=max(0, delay_ms),
        checkpoint_is_invalid=bool(answer[walk.HAS_INVALID_CHECKPOINT]),
        not_due=VERDICTS[answer[walk.VERDICT]],
    )


def rule_out_round(
    state: PartitionState,
    config: LogConfig,
    request: CleanRequest,
    *,
    recovery_point: int | None,
) -> CleanableRange | None:
    """Return the range of a log surely not due, else None. None means that the log itself has to be
    asked.

    What only batches tell (how far committed data reaches, when a segment began) is taken as the
    case in which most would be cleaned: the range ends where it would if every record below the
    high watermark were stable. Where even that is not due, neither is the log.

    Args:
        state: The partition as a listing or a manifest shows it; at least one segment.
        recovery_point: Offset that the log is known to reach; None where nothing says so.
    """
    active = state.active_segment.base_offset
    reached = max(active, recovery_point or 0)
    checkpoint = request.cleaner_checkpoint
    if checkpoint is not None and checkpoint > reached:
        return None  # it may lie beyond the log's end, which only the log tells
    watermark = state.high_watermark
    bounded = replace(
        state,
        log_end=max(reached, state.log_start_offset),
        stable_end=active if watermark is None else watermark,
    )
    try:
        cleanable = choose_range(bounded, without_max_lag(config), request)
    except UnobservedError:
        return None
    # Only the first batch of each segment tells since when one has waited.
    may_wait_too_long = config.limits_compaction_lag and cleanable.cleanable_bytes > 0
    return None if cleanable.is_due or may_wait_too_long else cleanable


def without_max_lag(config: LogConfig) -> LogConfig:
    """Return a configuration without a limit for the age of dirty records. No log is due for
    that age alone then."""
    return replace(config, max_compaction_lag_ms=LONG_MAX)


def weigh_dirt(
    log: LoadedLog, config: LogConfig, cleaner_checkpoint: int | None, now_ms: int
) -> dict[str, Any]:
    """Return ``dirty_bytes`` and ``dirty_ratio`` of a log, for ``inspect_partition``."""
    request = CleanRequest(now_ms=now_ms, cleaner_checkpoint=cleaner_checkpoint)
    cleanable = choose_range(PartitionState.of_log(log), config, request)
    return {
        "dirty_bytes": cleanable.cleanable_bytes,
        "dirty_ratio": round(cleanable.cleanable_ratio, 4),
    }
