"""Find the logs not due for a round, from listings as arrays.

It is made for very many logs.

What `choose_range` says of such a log is said here without an object of it. Where a round is due,
or a lag asks for the ages of records, nothing is said: the log is loaded for that.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from storage_core.maintenance.listings import NO_END, Listings, Mask, Numbers


@dataclass(frozen=True, slots=True, kw_only=True)
class LogsNotDue:
    """Ranges of the logs not due, as `CleanableRange` has them.

    They count where ``is_sure``.

    Attributes:
        is_sure: Whether a log is not due.
        first_dirty_offsets: Where keys would be collected from.
        first_uncleanable_offsets: Base offsets of the first segments that are left alone.
        clean_bytes: Bytes of the segments that begin below the first dirty offset.
        cleanable_bytes: Bytes from there to the first uncleanable segment; 0 where there is nothing
            to clean.
        cleanable_ratios: Their share in both, 0.0 without any.
        has_invalid_checkpoint: Whether the cleaner checkpoint lies outside of the log.
    """

    is_sure: Mask
    first_dirty_offsets: Numbers
    first_uncleanable_offsets: Numbers
    clean_bytes: Numbers
    cleanable_bytes: Numbers
    cleanable_ratios: NDArray[np.float64]
    has_invalid_checkpoint: Mask


def find_logs_not_due(  # the inputs of Kafka's cleaner manager
    listings: Listings,
    *,
    least_ratios: NDArray[np.float64],
    has_lag: Mask,
    log_start_checkpoints: Numbers,
    cleaner_checkpoints: Numbers,
    has_cleaner_checkpoint: Mask,
    high_watermarks: Numbers,
    has_watermark: Mask,
) -> LogsNotDue:
    """Find the logs without a due round; all arguments go by partition.

    Args:
        listings: The partitions, at least one, of compacted topics.
        least_ratios: ``min.cleanable.dirty.ratio``.
        has_lag: Whether ``min.compaction.lag.ms`` or ``max.compaction.lag.ms`` is in force.
        log_start_checkpoints: Entries of the log-start checkpoint, 0 without.
        cleaner_checkpoints: Entries of the cleaner checkpoint.
        has_cleaner_checkpoint: Where there is one.
        high_watermarks: As the checkpoint has them.
        has_watermark: Where that counts; elsewhere the log's end does.
    """
    firsts, counts = listings.starts, listings.counts
    bases, sizes, ends = listings.base_offsets, listings.sizes, listings.log_ends
    owners = np.repeat(np.arange(len(listings)), counts)

    def last_base_up_to(offsets: Numbers) -> Numbers:
        """Return the base of the segment of each partition's offset.

        Beyond the active segment's base, it is that one's.
        """
        reached = np.where(bases <= offsets[owners], bases, bases[firsts][owners])
        floors: Numbers = np.maximum.reduceat(reached, firsts)
        return floors

    def total(is_counted: Mask) -> Numbers:
        sums: Numbers = np.add.reduceat(np.where(is_counted, sizes, 0), firsts)
        return sums

    log_starts = np.maximum(log_start_checkpoints, bases[firsts])
    active = bases[firsts + counts - 1]
    # No transaction is open in a log whose end is known here: all below the watermark is stable.
    marks = np.minimum(np.maximum(high_watermarks, log_starts), ends)
    stable = np.where(has_watermark, marks, ends)
    is_within = (log_starts <= cleaner_checkpoints) & (cleaner_checkpoints <= ends)
    first_dirty = np.where(has_cleaner_checkpoint & is_within, cleaner_checkpoints, log_starts)
    uncleanable = last_base_up_to(np.maximum(first_dirty, np.minimum(stable, active)))
    floors = last_base_up_to(first_dirty)[owners]
    clean_bytes = total(bases < first_dirty[owners])
    is_dirty = (floors <= bases) & (bases < uncleanable[owners])
    cleanable_bytes = total(is_dirty & (first_dirty < uncleanable)[owners])
    both = clean_bytes + cleanable_bytes
    ratios = cleanable_bytes / np.maximum(both, 1)
    is_due = (cleanable_bytes > 0) & (ratios > least_ratios)
    # A lag is about the ages of segments from the first dirty offset to the active one.
    asks_ages = has_lag & (first_dirty < active)
    return LogsNotDue(
        is_sure=(ends != NO_END) & ~is_due & ~asks_ages,
        first_dirty_offsets=first_dirty,
        first_uncleanable_offsets=uncleanable,
        clean_bytes=clean_bytes,
        cleanable_bytes=cleanable_bytes,
        cleanable_ratios=ratios,
        has_invalid_checkpoint=has_cleaner_checkpoint & ~is_within,
    )
