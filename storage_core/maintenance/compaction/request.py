"""What is asked of a round of compaction."""

from dataclasses import dataclass


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
