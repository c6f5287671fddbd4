"""Choose the cleanable range of many logs, as Kafka's cleaner manager does.

Where a fact is missing that the choice needs, the answer is only which one. Source:
``LogCleanerManager.grabFilthiestCompactedLog`` and ``cleanableOffsets`` of Kafka 4.4.
"""

from typing import Final

import numpy as np
from numpy.typing import NDArray

from storage_core.kernels._jit import kernel

# In place of a fact that nobody has observed, and of an offset that nobody has said.
NONE: Final = -(2**63)
# In place of an offset or a time beyond all others.
LARGEST: Final = 2**63 - 1

# Columns of segments, oldest first within a log; the last one is active.
BASE_OFFSET: Final = 0
SIZE_BYTES: Final = 1
LARGEST_TIMESTAMP: Final = 2  # or NONE
FIRST_TIMESTAMP: Final = 3  # of the first batch, or NONE
SEGMENT_COLUMNS: Final = 4

# Columns of logs.
FIRST_SEGMENT: Final = 0
SEGMENT_COUNT: Final = 1
LOG_START_OFFSET: Final = 2
LOG_END_OFFSET: Final = 3  # or NONE
LAST_STABLE_OFFSET: Final = 4  # or NONE
CLEANER_CHECKPOINT: Final = 5  # or NONE
MIN_LAG_MS: Final = 6
MAX_LAG_MS: Final = 7  # LARGEST for no limit
IS_COMPACTED: Final = 8
REQUESTED_START: Final = 9  # NONE for Kafka's own choice
REQUESTED_END: Final = 10
LEAST_RATIO: Final = 11  # bits of a float64
LOG_COLUMNS: Final = 12

# Columns of answers.
FIRST_DIRTY_OFFSET: Final = 0
FIRST_UNCLEANABLE_OFFSET: Final = 1
CLEAN_BYTES: Final = 2  # of the segments that begin below the first dirty offset
CLEANABLE_BYTES: Final = 3  # of the segments from there to the first uncleanable one
DIRTY_BYTES: Final = 4  # of the segments from there on
HAS_INVALID_CHECKPOINT: Final = 5
FIRST_YOUNG_OFFSET: Final = 6  # base of the first dirty segment within the minimum lag, or NONE
OLDEST_DIRTY_TIMESTAMP: Final = 7  # where the maximum lag is limited, or LARGEST
VERDICT: Final = 8
MISSING: Final = 9  # which fact the choice needs, and does not have
MISSING_OF: Final = 10  # of which of the log's segments
ANSWER_COLUMNS: Final = 11

# Of VERDICT.
DUE: Final = 0
NOT_COMPACTED: Final = 1
NOTHING_TO_CLEAN: Final = 2
RATIO_BELOW_MINIMUM: Final = 3

# Of MISSING.
NOTHING: Final = 0
TIMESTAMP: Final = 1
LOG_END: Final = 2
STABLE_OFFSET: Final = 3
FIRST_BATCH: Final = 4


@kernel
def walk_compaction(
    segments: NDArray[np.int64],
    logs: NDArray[np.int64],
    now_ms: int,
    answers: NDArray[np.int64],
) -> None:
    """Choose each log's range, or say which fact is missing.

    Args:
        segments: int64[SEGMENT_COLUMNS, m], those of all logs.
        logs: int64[LOG_COLUMNS, n]; each has a segment.
        answers: int64[ANSWER_COLUMNS, n], out.
    """
    clock = np.uint64(np.int64(now_ms))
    for log in range(logs.shape[1]):
        first = logs[FIRST_SEGMENT, log]
        active = first + logs[SEGMENT_COUNT, log] - 1
        log_end = logs[LOG_END_OFFSET, log]
        checkpoint = logs[CLEANER_CHECKPOINT, log]
        is_requested = logs[REQUESTED_START, log] != NONE
        answers[HAS_INVALID_CHECKPOINT, log] = 0
        answers[FIRST_YOUNG_OFFSET, log] = NONE
        answers[OLDEST_DIRTY_TIMESTAMP, log] = LARGEST
        answers[MISSING, log] = NOTHING
        answers[MISSING_OF, log] = active - first

        first_dirty = logs[LOG_START_OFFSET, log]
        end_bound = logs[REQUESTED_END, log]
        if is_requested:
            first_dirty = logs[REQUESTED_START, log]
        else:
            if checkpoint >= first_dirty and log_end == NONE:
                answers[MISSING, log] = LOG_END
                continue
            if first_dirty <= checkpoint <= log_end:
                first_dirty = checkpoint
            elif checkpoint != NONE:
                answers[HAS_INVALID_CHECKPOINT, log] = 1
            end_bound = logs[LAST_STABLE_OFFSET, log]
            if end_bound == NONE:
                answers[MISSING, log] = STABLE_OFFSET
                continue

        # The segment of the first dirty offset; the oldest one where that lies before the log.
        dirty = first
        clean_bytes = np.int64(0)
        while dirty < active and segments[BASE_OFFSET, dirty + 1] <= first_dirty:
            clean_bytes += segments[SIZE_BYTES, dirty]
            dirty += 1
        dirty_bytes = np.int64(0)
        for segment in range(dirty, active + 1):
            dirty_bytes += segments[SIZE_BYTES, segment]
        if segments[BASE_OFFSET, dirty] < first_dirty:
            clean_bytes += segments[SIZE_BYTES, dirty]

        if not is_requested:
            min_lag = logs[MIN_LAG_MS, log]
            for segment in range(dirty, active if min_lag > 0 else dirty):
                timestamp = segments[LARGEST_TIMESTAMP, segment]
                if timestamp == NONE:
                    answers[MISSING, log] = TIMESTAMP
                    answers[MISSING_OF, log] = segment - first
                    break
                # The difference of two signed numbers fits in an unsigned one.
                if timestamp > now_ms or clock - np.uint64(timestamp) < np.uint64(min_lag):
                    answers[FIRST_YOUNG_OFFSET, log] = segments[BASE_OFFSET, segment]
                    end_bound = min(end_bound, segments[BASE_OFFSET, segment])
                    break
            if answers[MISSING, log] != NOTHING:
                continue
            end_bound = max(first_dirty, end_bound)

        # A range ends at the base of a segment.
        end = first
        cleanable_bytes = np.int64(0)
        while end < active and segments[BASE_OFFSET, end + 1] <= end_bound:
            if end >= dirty:
                cleanable_bytes += segments[SIZE_BYTES, end]
            end += 1
        answers[FIRST_DIRTY_OFFSET, log] = first_dirty
        answers[FIRST_UNCLEANABLE_OFFSET, log] = segments[BASE_OFFSET, end]
        answers[CLEAN_BYTES, log] = clean_bytes
        answers[CLEANABLE_BYTES, log] = cleanable_bytes
        answers[DIRTY_BYTES, log] = dirty_bytes
        answers[VERDICT, log] = DUE
        if is_requested:
            continue

        max_lag = logs[MAX_LAG_MS, log]
        oldest = np.int64(LARGEST)
        for segment in range(dirty, active if max_lag < LARGEST else dirty):
            timestamp = segments[FIRST_TIMESTAMP, segment]
            if timestamp == NONE:
                answers[MISSING, log] = FIRST_BATCH
                answers[MISSING_OF, log] = segment - first
                break
            if timestamp > 0:
                oldest = min(oldest, timestamp)
        answers[OLDEST_DIRTY_TIMESTAMP, log] = oldest
        least_ratio = np.int64(logs[LEAST_RATIO, log]).view(np.float64)
        is_late = oldest < now_ms and now_ms - oldest > max_lag
        if logs[IS_COMPACTED, log] == 0:
            answers[VERDICT, log] = NOT_COMPACTED
        elif cleanable_bytes == 0:
            # A ratio of zero is above no minimum: none is negative.
            answers[VERDICT, log] = NOTHING_TO_CLEAN
        elif not is_late and cleanable_bytes / (clean_bytes + cleanable_bytes) <= least_ratio:
            answers[VERDICT, log] = RATIO_BELOW_MINIMUM
