"""Kafka's deletion pass over the oldest segments of many logs.

The pass tells how many of these segments go, and what stops it. Each predicate walks over the
segments that the one before it left, oldest first, and stops at the first that stays. Source:
``UnifiedLog.deleteOldSegments`` and ``deletableSegments`` of Kafka 4.4.
"""

from typing import Final

import numpy as np
from numpy.typing import NDArray

from storage_core.kernels._jit import kernel

# In place of a fact that nobody has observed.
NOT_OBSERVED: Final = -(2**63)
# In place of a high watermark: the log's end counts.
AT_LOG_END: Final = 2**63 - 1
# In place of a limit.
NO_LIMIT: Final = -1

# Columns of segments, oldest first within a log.
BASE_OFFSET: Final = 0
SIZE_BYTES: Final = 1
LARGEST_TIMESTAMP: Final = 2  # or NOT_OBSERVED
SEGMENT_COLUMNS: Final = 3

# Columns of logs.
FIRST_SEGMENT: Final = 0
SEGMENT_COUNT: Final = 1
LOG_START_OFFSET: Final = 2
HIGH_WATERMARK: Final = 3  # or AT_LOG_END
LOG_END_OFFSET: Final = 4  # or NOT_OBSERVED
SIZE_LIMIT: Final = 5  # or NO_LIMIT
AGE_LIMIT_MS: Final = 6  # or NO_LIMIT
LOG_COLUMNS: Final = 7

# The predicates, in the order in which Kafka asks.
BY_LOG_START: Final = 0
BY_SIZE: Final = 1
BY_TIME: Final = 2
PREDICATES: Final = 3

# What stops a predicate.
NOT_ASKED: Final = 0
LAST_SEGMENT: Final = 1
ABOVE_LOG_START: Final = 2
WITHIN_SIZE: Final = 3
WITHIN_TIME: Final = 4
FUTURE_TIMESTAMP: Final = 5
NOT_REPLICATED: Final = 6

# Columns of answers.
GONE: Final = 0  # and the next two: how many segments are gone after each predicate
ALL_GONE: Final = 2  # after the last one
STOPPED_BY: Final = 3  # and the next two: what stopped each predicate
BLOCKING: Final = 6  # the predicate of which a person should hear first
MISSING: Final = 7  # the column of logs or segments that the walk needs, and does not have
MISSING_OF: Final = 8  # of which of the log's segments
ANSWER_COLUMNS: Final = 9

# Of MISSING.
NOTHING: Final = 0
TIMESTAMP: Final = 1
LOG_END: Final = 2


@kernel
def walk_retention(
    segments: NDArray[np.int64], logs: NDArray[np.int64], now_ms: int, answers: NDArray[np.int64]
) -> None:
    """Decide how many segments of each log go. The answer for a log that lacks a fact is only which
    fact.

    Args:
        segments: int64[SEGMENT_COLUMNS, m], those of all logs.
        logs: int64[LOG_COLUMNS, n].
        answers: int64[ANSWER_COLUMNS, n], out.
    """
    clock = np.uint64(np.int64(now_ms))
    for log in range(logs.shape[1]):
        first = logs[FIRST_SEGMENT, log]
        end = first + logs[SEGMENT_COUNT, log]
        age_limit = logs[AGE_LIMIT_MS, log]
        answers[MISSING, log] = NOTHING
        answers[BLOCKING, log] = BY_LOG_START
        stands_out = False
        at = first
        for predicate in range(PREDICATES):
            answers[GONE + predicate, log] = at - first
            answers[STOPPED_BY + predicate, log] = NOT_ASKED
            if predicate == BY_SIZE and logs[SIZE_LIMIT, log] < 0:
                continue
            if predicate == BY_TIME and age_limit < 0:
                continue
            # The log shrinks to its limit, not below it.
            excess = np.int64(0)
            if predicate == BY_SIZE:
                excess = -logs[SIZE_LIMIT, log]
                for segment in range(at, end):
                    excess += segments[SIZE_BYTES, segment]
            # Where all goes, a new and empty segment is what stops a predicate.
            stop = LAST_SEGMENT
            while at < end:
                is_last = at + 1 == end
                size = segments[SIZE_BYTES, at]
                next_offset = (
                    logs[LOG_END_OFFSET, log] if is_last else segments[BASE_OFFSET, at + 1]
                )
                if is_last and (size == 0 or predicate == BY_LOG_START):
                    break
                if predicate == BY_LOG_START:
                    if next_offset > logs[LOG_START_OFFSET, log]:
                        stop = ABOVE_LOG_START
                        break
                elif predicate == BY_SIZE:
                    if excess < size:
                        stop = WITHIN_SIZE
                        break
                    excess -= size
                else:
                    timestamp = segments[LARGEST_TIMESTAMP, at]
                    if timestamp == NOT_OBSERVED:
                        answers[MISSING, log] = TIMESTAMP
                        break
                    if timestamp > now_ms:
                        stop = FUTURE_TIMESTAMP
                        break
                    # The difference of two signed numbers fits in an unsigned one.
                    if clock - np.uint64(timestamp) <= np.uint64(age_limit):
                        stop = WITHIN_TIME
                        break
                if next_offset == NOT_OBSERVED:
                    answers[MISSING, log] = LOG_END
                    break
                if next_offset > logs[HIGH_WATERMARK, log]:
                    stop = NOT_REPLICATED
                    break
                at += 1
            if answers[MISSING, log] != NOTHING:
                answers[MISSING_OF, log] = at - first
                break
            answers[GONE + predicate, log] = at - first
            answers[STOPPED_BY + predicate, log] = stop
            # The first that is not as the topic asks for, else the last one that was asked.
            if not stands_out:
                answers[BLOCKING, log] = predicate
                stands_out = stop in (NOT_REPLICATED, FUTURE_TIMESTAMP)
