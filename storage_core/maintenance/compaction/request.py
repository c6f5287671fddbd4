"""What is asked of a round of compaction, and the log that it is asked of."""

from dataclasses import dataclass

from storage_core.config import CleanerConfig, LogConfig
from storage_core.log.loaded_log import LoadedLog
from storage_core.log.log_loader import load_log
from storage_core.store.base import LogStore


@dataclass(frozen=True, slots=True, kw_only=True)
class CleanRequest:
    """The round's clock and what the log directory's checkpoints say of the partition.

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


def load_for_round(
    store: LogStore, config: LogConfig, cleaner: CleanerConfig, request: CleanRequest
) -> LoadedLog:
    """Load the log that a round is asked for, by the clock and the checkpoints of the request.

    Raises:
        PylogError: It cannot be loaded, or has to be recovered first.
    """
    return load_log(
        store,
        config=config,
        cleaner=cleaner,
        now_ms=request.now_ms,
        log_start_checkpoint=request.log_start_offset or 0,
        high_watermark=request.high_watermark,
    )
