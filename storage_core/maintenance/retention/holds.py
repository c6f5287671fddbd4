"""Which of very many partitions keep all they have, decided over their listings as arrays.

Each of Kafka's predicates walks from the oldest segment on, and each stops there where nothing
goes: so the oldest segment decides. What `plan_retention` says of such a partition is said here
without an object of it. Where something goes, or only the log tells, nothing is said.
"""

from dataclasses import dataclass
from typing import Final

import numpy as np

from storage_core.formats.batch_v2 import NO_TIMESTAMP
from storage_core.maintenance.listings import Listings, Mask, Numbers
from storage_core.maintenance.retention.plan import Hold

# In place of None.
NO_LIMIT: Final = -1
HOLDS: Final = tuple(Hold)
_CODES: Final = {hold: np.int8(code) for code, hold in enumerate(HOLDS)}
_STANDS_OUT: Final = (_CODES[Hold.HIGH_WATERMARK], _CODES[Hold.FUTURE_TIMESTAMP])
# Beyond this, sums of times would not fit in 64 bits.
_MOST_MS: Final = 2**61


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptLogs:
    """What keeps the oldest segment of each partition; numbers count where ``is_kept``.

    Attributes:
        is_kept: Whether everything stays, and that is sure.
        log_starts: First offset that may be read.
        holds: Which of HOLDS a person should hear of first: ``RetentionPlan.blocked_by``.
        timestamps: The oldest segment's largest timestamp where age decides, epoch milliseconds.
        has_timestamp: Where it does.
        waits_ms: How long until that is too old.
        has_wait: Where age alone keeps it.
    """

    is_kept: Mask
    log_starts: Numbers
    holds: np.ndarray[tuple[int], np.dtype[np.int8]]
    timestamps: Numbers
    has_timestamp: Mask
    waits_ms: Numbers
    has_wait: Mask


def find_kept_logs(  # the inputs of Kafka's deletion pass
    listings: Listings,
    *,
    size_limits: Numbers,
    age_limits_ms: Numbers,
    log_start_checkpoints: Numbers,
    high_watermarks: Numbers,
    has_watermark: Mask,
    now_ms: int,
) -> KeptLogs:
    """Find the partitions of which retention takes nothing; all arguments go by partition.

    Args:
        listings: The partitions.
        size_limits: ``RetentionRules.size_limit``, NO_LIMIT for None.
        age_limits_ms: ``RetentionRules.age_limit_ms``, NO_LIMIT for None; where there is one, the
            age of the oldest segment counts if the listing has it.
        log_start_checkpoints: Entries of the log-start checkpoint, 0 without.
        high_watermarks: As the checkpoint has them.
        has_watermark: Where that counts; elsewhere the log's end does.
        now_ms: The run's clock, epoch milliseconds.
    """
    counts, first = listings.counts, listings.starts
    base, size = listings.base_offsets[first], listings.sizes[first]
    is_alone = counts == 1
    is_empty = is_alone & (size == 0)
    following = listings.base_offsets[np.where(is_alone, first, first + 1)]
    log_starts = np.maximum(log_start_checkpoints, base)
    is_replicated = ~has_watermark | (np.maximum(high_watermarks, log_starts) >= following)

    def stop(goes: Mask, other: Mask | np.int8) -> Numbers:
        """Return what stops a predicate at the oldest segment: the mark where it would go."""
        held = np.where(goes, _CODES[Hold.HIGH_WATERMARK], other)
        return np.where(is_empty, _CODES[Hold.LAST_SEGMENT], held)

    # Of the only segment the log's end tells whether it is replicated: it counts as if it were, and
    # is looked at alone.
    may_lose = ~is_empty & is_replicated

    goes = ~is_alone & (following <= log_starts)
    above = np.where(is_alone, _CODES[Hold.LAST_SEGMENT], _CODES[Hold.ABOVE_LOG_START])
    by_start, is_kept = stop(goes, above), ~(goes & may_lose)

    asks_size = size_limits >= 0
    goes = asks_size & (listings.total_bytes - size_limits - size >= 0)
    by_size = np.where(asks_size, stop(goes, _CODES[Hold.WITHIN_SIZE]), by_start)
    is_kept &= ~(goes & may_lose)

    asks_age = age_limits_ms >= 0
    known = listings.oldest_timestamps
    timestamps = np.where(known > NO_TIMESTAMP, known, listings.times_ms[first])
    is_bounded = (timestamps < _MOST_MS) & (age_limits_ms < _MOST_MS) & (abs(now_ms) < _MOST_MS)
    is_bounded &= (timestamps > -_MOST_MS) & listings.has_age
    is_kept &= ~asks_age | is_bounded
    ages, limits = np.where(is_bounded, timestamps, 0), np.where(is_bounded, age_limits_ms, 0)
    goes = asks_age & (now_ms - ages > limits)
    young = np.where(ages > now_ms, _CODES[Hold.FUTURE_TIMESTAMP], _CODES[Hold.WITHIN_TIME])
    by_age = np.where(asks_age, stop(goes, young), by_size)
    is_kept &= ~(goes & may_lose)

    # The first that stands out, else the last one that was asked.
    is_early = np.isin(by_start, _STANDS_OUT)
    is_second = ~is_early & asks_size & np.isin(by_size, _STANDS_OUT)
    is_by_age = asks_age & ~is_early & ~is_second
    holds = np.where(is_early, by_start, np.where(is_second, by_size, by_age))
    has_timestamp = is_by_age & ~is_empty
    return KeptLogs(
        is_kept=is_kept,
        log_starts=log_starts,
        holds=holds.astype(np.int8),
        timestamps=ages,
        has_timestamp=has_timestamp,
        # Older than the limit, not as old as it: one millisecond more.
        waits_ms=ages + limits + 1 - now_ms,
        has_wait=has_timestamp & ~goes,
    )
