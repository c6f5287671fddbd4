"""Whether a log can be due for compaction at all, by what a manifest says of it.

Nothing of the log is read. What only its batches tell (how far committed data reaches, when a
segment began) is taken as the case in which most would be cleaned: where even that is not due,
neither is the log. Where it would be due, the log has to be loaded.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from storage_core.config import LogConfig
from storage_core.formats.batch_v2 import NO_TIMESTAMP
from storage_core.log.loaded_log import LoadedLog
from storage_core.log.log_segment import SegmentState
from storage_core.maintenance.compaction.candidates import (
    MAX_LAG_MS,
    CleanableRange,
    choose_range,
)
from storage_core.maintenance.compaction.request import CleanRequest


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownSegment:
    """A segment as a manifest, or a listing, shows it.

    Attributes:
        base_offset: Lower bound of its offsets.
        size_bytes: Length of its records file.
        modified_ms: Modification time of that, epoch milliseconds.
        largest_timestamp: By its time index; None where nothing says it.
    """

    base_offset: int
    size_bytes: int
    modified_ms: int
    largest_timestamp: int | None


def rule_out_round(
    location: str,
    segments: Sequence[KnownSegment],
    config: LogConfig,
    request: CleanRequest,
    *,
    recovery_point: int | None,
) -> CleanableRange | None:
    """Return the range of a log that is not due, None where the log has to be asked.

    The range ends where it would if every record below the high watermark were stable.

    Args:
        location: The partition, for messages.
        segments: Oldest first; at least one.
        config: Its topic's configuration.
        request: Clock and checkpoints.
        recovery_point: Offset that the log is known to reach; None where nothing says so.
    """
    active = segments[-1].base_offset
    reached = max(active, recovery_point or 0)
    log_start = max(request.log_start_offset or 0, segments[0].base_offset)
    checkpoint = request.cleaner_checkpoint
    if checkpoint is not None and checkpoint > reached:
        return None  # it may lie beyond the log's end, which only the log tells
    if config.min_compaction_lag_ms > 0 and any(s.largest_timestamp is None for s in segments):
        return None
    watermark = request.high_watermark
    stable = active if watermark is None else max(watermark, log_start)
    log = log_as_known(
        location,
        segments,
        log_start_offset=log_start,
        log_end_offset=max(reached, log_start),
        stable_offset=stable,
    )
    chosen = choose_range(log, config, request)
    # Only the first batch of each segment tells since when one has waited.
    may_wait_too_long = config.max_compaction_lag_ms < MAX_LAG_MS and chosen.cleanable_bytes > 0
    return None if chosen.is_due or may_wait_too_long else chosen


def log_as_known(
    location: str,
    segments: Sequence[KnownSegment],
    *,
    log_start_offset: int,
    log_end_offset: int,
    stable_offset: int,
) -> LoadedLog:
    """Return a log of which nothing was read, for ``choose_range``.

    Args:
        location: The partition, for messages.
        segments: Oldest first; at least one.
        log_start_offset: Where it starts.
        log_end_offset: Where it ends, or a bound of that.
        stable_offset: How far its records are taken for committed.
    """
    return LoadedLog(
        location=location,
        segments=tuple(_segment(segment) for segment in segments),
        log_start_offset=log_start_offset,
        log_end_offset=log_end_offset,
        recovery_point=log_start_offset,
        high_watermark=stable_offset,
        last_stable_offset=stable_offset,
        producers=(),
        epochs=(),
        snapshot_offsets=frozenset(),
        operations=(),
    )


def _segment(known: KnownSegment) -> SegmentState:
    timestamp = NO_TIMESTAMP if known.largest_timestamp is None else known.largest_timestamp
    return SegmentState(
        base_offset=known.base_offset,
        log_file="",
        offset_index_file="",
        size_bytes=known.size_bytes,
        modified_ms=known.modified_ms,
        offset_index_bytes=0,
        time_index_bytes=0,
        max_timestamp=timestamp,
        first_batch_timestamp=NO_TIMESTAMP,
        aborted=(),
        has_txn_index=False,
    )
