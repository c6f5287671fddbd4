"""Which part of a log may be cleaned, and whether it is due: LogCleanerManager's decisions."""

import enum
from collections.abc import Sequence
from dataclasses import dataclass

from storage_core.config import LogConfig
from storage_core.errors import ConfigError
from storage_core.log.loaded_log import LoadedLog
from storage_core.log.log_segment import SegmentState
from storage_core.maintenance.compaction.request import CleanRequest

MAX_LAG_MS = 2**63 - 1


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
    max_compaction_delay_ms: int
    checkpoint_is_invalid: bool
    not_due: NotDue | None

    @property
    def cleanable_ratio(self) -> float:
        """Share of the cleanable bytes, 0.0 for a log without any."""
        total = self.clean_bytes + self.cleanable_bytes
        return self.cleanable_bytes / total if total else 0.0

    @property
    def is_due(self) -> bool:
        """Whether Kafka would clean the log now."""
        return self.not_due is None


def choose_range(log: LoadedLog, config: LogConfig, request: CleanRequest) -> CleanableRange:
    """Choose what to clean, as Kafka's cleaner manager does or as the request says.

    Args:
        log: The partition.
        config: Its topic's configuration.
        request: With a first dirty offset, that range is taken and is due.

    Raises:
        ConfigError: The range of the request ends below its start.
    """
    said = request.first_dirty_offset
    if said is not None:
        end = request.first_uncleanable_offset
        given = _measure(
            log,
            first_dirty=said,
            uncleanable=log.active_segment.base_offset if end is None else end,
        )
        if said > given.first_uncleanable_offset:
            raise ConfigError(
                "first dirty offset",
                said,
                f"the range ends below it: at {given.first_uncleanable_offset}, the base offset of "
                "the first segment that is left alone",
            )
        return given
    checkpoint = request.cleaner_checkpoint
    if checkpoint is None:
        checkpoint = log.log_start_offset
    is_invalid = not log.log_start_offset <= checkpoint <= log.log_end_offset
    first_dirty = log.log_start_offset if is_invalid else checkpoint
    bounds = [log.last_stable_offset, log.active_segment.base_offset]
    if config.min_compaction_lag_ms > 0:
        young_after = request.now_ms - config.min_compaction_lag_ms
        bounds += [
            segment.base_offset
            for segment in _non_active_from(log.segments, first_dirty)
            if segment.largest_timestamp > young_after
        ][:1]
    measured = _measure(
        log,
        first_dirty=first_dirty,
        uncleanable=max(first_dirty, min(bounds)),
        max_compaction_delay_ms=_max_compaction_delay(log, config, first_dirty, request.now_ms),
        checkpoint_is_invalid=is_invalid,
    )
    return _with_reason(measured, config)


def _with_reason(measured: CleanableRange, config: LogConfig) -> CleanableRange:
    if not config.is_compacted:
        reason: NotDue | None = NotDue.NOT_COMPACTED
    elif measured.clean_bytes + measured.cleanable_bytes == 0:
        reason = NotDue.NOTHING_TO_CLEAN
    elif (
        measured.max_compaction_delay_ms > 0 and measured.cleanable_bytes > 0
    ) or measured.cleanable_ratio > config.min_cleanable_dirty_ratio:
        reason = None
    else:
        reason = NotDue.RATIO_BELOW_MINIMUM if measured.cleanable_bytes else NotDue.NOTHING_TO_CLEAN
    return CleanableRange(
        first_dirty_offset=measured.first_dirty_offset,
        first_uncleanable_offset=measured.first_uncleanable_offset,
        clean_bytes=measured.clean_bytes,
        cleanable_bytes=measured.cleanable_bytes,
        max_compaction_delay_ms=measured.max_compaction_delay_ms,
        checkpoint_is_invalid=measured.checkpoint_is_invalid,
        not_due=reason,
    )


def _measure(
    log: LoadedLog,
    *,
    first_dirty: int,
    uncleanable: int,
    max_compaction_delay_ms: int = 0,
    checkpoint_is_invalid: bool = False,
) -> CleanableRange:
    """Round the end of a range down to a segment's base and weigh both sides of its start."""
    left_alone = _non_active_from(log.segments, uncleanable)
    end = (left_alone[0] if left_alone else log.active_segment).base_offset
    cleanable = segments_between(log.segments, min(first_dirty, end), end)
    return CleanableRange(
        first_dirty_offset=first_dirty,
        first_uncleanable_offset=end,
        clean_bytes=sum(s.size_bytes for s in log.segments if s.base_offset < first_dirty),
        cleanable_bytes=sum(s.size_bytes for s in cleanable),
        max_compaction_delay_ms=max_compaction_delay_ms,
        checkpoint_is_invalid=checkpoint_is_invalid,
        not_due=None,
    )


def segments_between(
    segments: Sequence[SegmentState], first_offset: int, end_offset: int
) -> list[SegmentState]:
    """Return the segments from the one that holds first_offset to those below end_offset."""
    if first_offset == end_offset:
        return []
    floor = max((s.base_offset for s in segments if s.base_offset <= first_offset), default=0)
    return [s for s in segments if floor <= s.base_offset < end_offset]


def _non_active_from(segments: Sequence[SegmentState], offset: int) -> list[SegmentState]:
    """Return the segments from the one that holds offset on, but for the active one."""
    active = segments[-1].base_offset
    if offset > active:
        return []
    return segments_between(segments, offset, active)


def _max_compaction_delay(log: LoadedLog, config: LogConfig, first_dirty: int, now_ms: int) -> int:
    timestamps = [
        segment.first_batch_timestamp
        for segment in _non_active_from(log.segments, first_dirty)
        if segment.first_batch_timestamp > 0
    ]
    clean_until = now_ms - config.max_compaction_lag_ms
    return max(0, clean_until - min(timestamps, default=MAX_LAG_MS))
