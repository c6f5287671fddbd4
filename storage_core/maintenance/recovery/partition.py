"""Recovery of one partition directory, in process."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated

from storage_core.config import CleanerConfig, LogConfig
from storage_core.errors import located
from storage_core.json_values import OMITTED
from storage_core.log.loaded_log import LoadedLog
from storage_core.log.log_loader import LogLoader
from storage_core.log.log_truncation import follow_leader, truncate_log
from storage_core.log.segment_scan import SegmentScan
from storage_core.store.base import LogStore

# Truncate one partition to an offset, as a replica does.


@dataclass(frozen=True, slots=True, kw_only=True)
class TruncateResult:
    """The result of a truncation."""

    truncated: bool  # whether the log ended above the target
    log_end_offset: int
    # What the partition's entry in the cleaner checkpoint should be now; None where none was said.
    cleaner_checkpoint: Annotated[int | None, OMITTED] = None


def truncated_cleaner_point(point: int, *, to: int, active_before: int, active_after: int) -> int:
    """Return where compaction has to begin again after a truncation. Keys above the cut may have
    uncleaned records.

    Args:
        point: Entry of the cleaner checkpoint.
        active_after: The same afterwards.
    """
    # A cut inside of the active segment touches nothing that a cleaner ever reads.
    return min(point, active_after) if to < active_before else point


@located
def plan_truncation(
    store: LogStore,
    *,
    config: LogConfig,
    cleaner: CleanerConfig,
    now_ms: int,
    to: int,
    log_start_offset: int = 0,
    cleaner_offset: int | None = None,
) -> tuple[TruncateResult, LoadedLog]:
    """Load a cleanly closed log and cut it, without writing.

    Args:
        cleaner: For the expiry of producers, and limits of decompression.
        to: The log's new end. A batch that reaches it goes as a whole.
        log_start_offset: The partition's entry in the log-start checkpoint, 0 without one.
        cleaner_offset: Its entry in the cleaner checkpoint, None without one.

    Returns:
        (result, log): what is different afterwards, and the log as it is then.
    """
    loader = LogLoader(
        store,
        config=config,
        cleaner=cleaner,
        now_ms=now_ms,
        log_start_checkpoint=log_start_offset,
        clean_shutdown=True,
    )
    loading = loader.load()
    active_before = loading.base_offsets[-1]
    truncated = truncate_log(loading, to)
    log = loading.close()
    if cleaner_offset is not None:
        cleaner_offset = truncated_cleaner_point(
            cleaner_offset,
            to=to,
            active_before=active_before,
            active_after=log.active_segment.base_offset,
        )
    result = TruncateResult(
        truncated=truncated,
        log_end_offset=log.log_end_offset,
        cleaner_checkpoint=cleaner_offset,
    )
    return result, log


@dataclass(frozen=True, slots=True, kw_only=True)
class RecoverResult:
    """The result of a recovery."""

    log_end_offset: int
    log_start_offset: int  # first offset that may be read
    recovery_point: int
    segments: int
    truncated_bytes: int  # bytes that were cut, removed segments and zeros included
    deleted_segments: int  # segments that were removed whole
    rebuilt_indexes: int  # segments whose indexes were built anew

    @classmethod
    def of(cls, log: LoadedLog) -> "RecoverResult":
        """Return the result of loading a log."""
        return cls(
            log_end_offset=log.log_end_offset,
            log_start_offset=log.log_start_offset,
            recovery_point=log.recovery_point,
            segments=len(log.segments),
            truncated_bytes=log.repairs.truncated_bytes,
            deleted_segments=log.repairs.deleted_segments,
            rebuilt_indexes=len(log.repairs.rebuilt),
        )


@located
def plan_recovery(  # noqa: PLR0913  # the inputs of Kafka's loader
    store: LogStore,
    *,
    config: LogConfig,
    cleaner: CleanerConfig,
    now_ms: int,
    recovery_point: int = 0,
    log_start_offset: int = 0,
    clean_shutdown: bool = False,
    high_watermark: int | None = None,
    truncations: Sequence[int] = (),
    scans: Mapping[int, SegmentScan] | None = None,
    threads: int = 1,
    on_bytes: Callable[[int], None] | None = None,
) -> LoadedLog:
    """Load a log as a starting broker would; report changes, write nothing.

    Args:
        cleaner: For the expiry of producers, and limits of decompression.
        recovery_point: The partition's entry in the recovery-point checkpoint, 0 without one.
        log_start_offset: Its entry in the log-start checkpoint, 0 without one.
        clean_shutdown: Whether its log directory has the clean-shutdown marker.
        high_watermark: Clamped into the log; None for the log end offset.
        truncations: Where the log, once it is loaded, is cut to follow a leader, one after the
            other; as ``follow_leader``.
        scans: Segments that were scanned before, by base offset.
        on_bytes: Told how many bytes of segments were scanned, window by window.
    """
    loader = LogLoader(
        store,
        config=config,
        cleaner=cleaner,
        now_ms=now_ms,
        log_start_checkpoint=log_start_offset,
        recovery_point=recovery_point,
        clean_shutdown=clean_shutdown,
        scans=scans,
        threads=threads,
        on_bytes=on_bytes,
    )
    log = loader.load()
    if not truncations:
        return log.close(high_watermark=high_watermark)
    end = follow_leader(log, truncations)
    return replace(log.close(high_watermark=high_watermark), follower_end=end)
