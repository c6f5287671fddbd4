"""Which segments go: Kafka's deletion pass over partitions, as a pure function.

The pass itself is a loop over arrays (``kernels.retention_walk``). It decides about very many
partitions at once; one partition is an array of one.
"""

import enum
from dataclasses import dataclass
from typing import Final, Self, TypeVar

import numpy as np
from numpy.typing import NDArray

from storage_core.config import CleanupPolicy, LogConfig
from storage_core.config.values import LONG_MAX
from storage_core.errors import ConfigError
from storage_core.formats.batch_v2 import NO_TIMESTAMP
from storage_core.kernels import retention_walk as walk
from storage_core.maintenance.listings import (
    NO_END,
    NO_ENTRY,
    CheckpointColumns,
    Listings,
    Mask,
    Numbers,
)
from storage_core.maintenance.partition_state import (
    Fact,
    ObservedSegment,
    PartitionState,
    UnobservedError,
)


class Predicate(enum.StrEnum):
    """Why a segment goes; in Kafka's order, as the walk numbers them."""

    LOG_START = "LOG_START"
    SIZE = "SIZE"
    TIME = "TIME"


class Hold(enum.StrEnum):
    """Why a segment stays; the values are stable. They are in the order of the walk's numbers."""

    NOT_ASKED = "NOT_ASKED"
    LAST_SEGMENT = "LAST_SEGMENT"
    ABOVE_LOG_START = "ABOVE_LOG_START"
    WITHIN_SIZE = "WITHIN_SIZE"
    WITHIN_TIME = "WITHIN_TIME"
    FUTURE_TIMESTAMP = "FUTURE_TIMESTAMP"
    HIGH_WATERMARK = "HIGH_WATERMARK"


HOLDS: Final = tuple(Hold)
NO_LIMIT: Final = walk.NO_LIMIT
# Beyond this, sums of times do not fit in 64 bits.
_MOST_MS: Final = 2**61
_TimesT = TypeVar("_TimesT", int, Numbers)
_FACTS: Final = {walk.TIMESTAMP: Fact.TIMESTAMP, walk.LOG_END: Fact.LOG_END}


@dataclass(frozen=True, slots=True, kw_only=True)
class RetentionRules:
    """What a topic's configuration says about old segments."""

    # Whether size and age count: the policy has ``delete``. A log start counts always.
    deletes: bool
    retention_bytes: int  # ``retention.bytes``; negative for no limit
    retention_ms: int  # ``retention.ms``; negative for no limit

    @classmethod
    def of(cls, config: LogConfig) -> Self:
        """Return the rules of a topic."""
        if config.remote_storage_enable:
            raise ConfigError(
                "remote.storage.enable",
                "true",
                "only a broker deletes segments of a tiered topic, once they are in the tier",
            )
        return cls(
            deletes=CleanupPolicy.DELETE in config.cleanup_policy,
            retention_bytes=config.retention_bytes,
            retention_ms=config.retention_ms,
        )

    @property
    def size_limit(self) -> int | None:
        """The most bytes that the log should have, None for no limit."""
        return self.retention_bytes if self.deletes and self.retention_bytes >= 0 else None

    @property
    def age_limit_ms(self) -> int | None:
        """The age that no segment should exceed, None for no limit."""
        return self.retention_ms if self.deletes and self.retention_ms >= 0 else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Removal:
    """A segment that goes, and the predicate that says so."""

    segment: ObservedSegment
    predicate: Predicate


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """Where a predicate stopped, and why."""

    predicate: Predicate
    hold: Hold
    base_offset: int | None = None  # of the segment, None where nothing was asked
    timestamp: int | None = None  # its largest timestamp where age decides, epoch milliseconds
    # How long until it is too old, if nothing is appended; None where age does not decide.
    wait_ms: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RetentionPlan:
    """What retention does to a partition."""

    removals: tuple[Removal, ...]  # segments that go, oldest first
    old_log_start_offset: int  # first offset that may be read now
    log_start_offset: int  # the same afterwards
    # Base offset of a new, empty segment: all that there are go. None for no roll.
    roll_offset: int | None
    blocks: tuple[Block, ...]  # where each predicate stopped, in the order in which they were asked
    # Of these the one that a person should hear of first: the first that is not as the topic asks
    # for, else the last one that was asked.
    blocked_by: Block
    bytes_before: int
    retention_bytes: int | None  # the size limit, None without one

    @property
    def removed_bytes(self) -> int:
        """Bytes of records that go."""
        return sum(removal.segment.size_bytes for removal in self.removals)

    @property
    def removed(self) -> tuple[tuple[int, Predicate], ...]:
        """Base offsets of the segments that go, oldest first, and why."""
        return tuple((each.segment.base_offset, each.predicate) for each in self.removals)

    @property
    def removed_base_offsets(self) -> tuple[int, ...]:
        """Base offsets of the segments that go, oldest first."""
        return tuple(removal.segment.base_offset for removal in self.removals)

    @property
    def percent_of_retention_bytes(self) -> int:
        """Percent of the size limit used afterwards; 0 without a limit."""
        if not self.retention_bytes:
            return 0
        return (self.bytes_before - self.removed_bytes) * 100 // self.retention_bytes

    def counts(self, predicate: Predicate) -> tuple[int, int]:
        """Return how many segments, and bytes, a predicate takes."""
        sizes = [r.segment.size_bytes for r in self.removals if r.predicate is predicate]
        return len(sizes), sum(sizes)


@dataclass(frozen=True, slots=True, kw_only=True)
class RetentionFacts:
    """The facts of some partitions that the deletion pass asks for."""

    segments: NDArray[np.int64]  # int64[SEGMENT_COLUMNS, m] of the walk, those of all partitions
    logs: NDArray[np.int64]  # int64[LOG_COLUMNS, n] of the walk

    @classmethod
    def of_state(cls, state: PartitionState, rules: RetentionRules) -> Self:
        """Return the facts of one partition, as far as it was observed."""
        segments = state.segments
        ages = [
            walk.NOT_OBSERVED if segment.max_timestamp is None else segment.largest_timestamp
            for segment in segments
        ]
        mark, end = state.high_watermark, state.log_end
        size_limit, age_limit_ms = rules.size_limit, rules.age_limit_ms
        log = (
            0,
            len(segments),
            state.log_start_offset,
            walk.AT_LOG_END if mark is None else mark,
            walk.NOT_OBSERVED if end is None else end,
            walk.NO_LIMIT if size_limit is None else size_limit,
            walk.NO_LIMIT if age_limit_ms is None else age_limit_ms,
        )
        bases = [segment.base_offset for segment in segments]
        sizes = [segment.size_bytes for segment in segments]
        return cls(
            segments=np.array((bases, sizes, ages), np.int64),
            logs=np.array([log], np.int64).T,
        )

    @classmethod
    def of_listings(
        cls,
        listings: Listings,
        checkpoints: CheckpointColumns,
        *,
        size_limits: Numbers,
        age_limits_ms: Numbers,
    ) -> Self:
        """Return the facts of very many partitions.

        Args:
            listings: The partitions; of segments only the oldest one's age is a fact, if at all.
            checkpoints: Of these; without a high watermark the log's end counts.
            size_limits: ``RetentionRules.size_limit``, NO_LIMIT for None.
            age_limits_ms: ``RetentionRules.age_limit_ms``, NO_LIMIT for None.
        """
        first = listings.starts
        segments = np.full((walk.SEGMENT_COLUMNS, len(listings.sizes)), walk.NOT_OBSERVED)
        segments[walk.BASE_OFFSET] = listings.base_offsets
        segments[walk.SIZE_BYTES] = listings.sizes
        entries = listings.oldest_timestamps
        ages = np.where(entries > NO_TIMESTAMP, entries, listings.times_ms[first])
        segments[walk.LARGEST_TIMESTAMP, first] = np.where(
            listings.has_age, ages, walk.NOT_OBSERVED
        )
        log_starts = np.maximum(checkpoints.log_start_offsets, listings.base_offsets[first])
        logs = np.empty((walk.LOG_COLUMNS, len(listings)), np.int64)
        logs[walk.FIRST_SEGMENT] = first
        logs[walk.SEGMENT_COUNT] = listings.counts
        logs[walk.LOG_START_OFFSET] = log_starts
        marks = checkpoints.high_watermarks
        logs[walk.HIGH_WATERMARK] = np.where(
            marks != NO_ENTRY, np.maximum(marks, log_starts), walk.AT_LOG_END
        )
        ends = listings.log_ends
        logs[walk.LOG_END_OFFSET] = np.where(ends != NO_END, ends, walk.NOT_OBSERVED)
        logs[walk.SIZE_LIMIT] = size_limits
        logs[walk.AGE_LIMIT_MS] = age_limits_ms
        return cls(segments=segments, logs=logs)

    def decide(self, *, now_ms: int) -> NDArray[np.int64]:
        """Return the answers of the walk: int64[ANSWER_COLUMNS, n]."""
        answers = np.empty((walk.ANSWER_COLUMNS, self.logs.shape[1]), np.int64)
        walk.walk_retention(self.segments, self.logs, now_ms, answers)
        return answers


def plan_retention(state: PartitionState, rules: RetentionRules, *, now_ms: int) -> RetentionPlan:
    """Choose the oldest segments of a partition that go."""
    segments = state.segments
    answers = RetentionFacts.of_state(state, rules).decide(now_ms=now_ms)[:, 0].tolist()
    if answers[walk.MISSING] != walk.NOTHING:
        base = segments[answers[walk.MISSING_OF]].base_offset
        raise UnobservedError(base, _FACTS[answers[walk.MISSING]])
    removals: list[Removal] = []
    blocks = []
    for number, predicate in enumerate(Predicate):
        gone = answers[walk.GONE + number]
        removals += [
            Removal(segment=segment, predicate=predicate)
            for segment in segments[len(removals) : gone]
        ]
        hold = HOLDS[answers[walk.STOPPED_BY + number]]
        has_segment = hold is not Hold.NOT_ASKED and gone < len(segments)
        has_age = predicate is Predicate.TIME and has_segment and hold is not Hold.LAST_SEGMENT
        timestamp = segments[gone].largest_timestamp if has_age else None
        wait_ms = None
        if timestamp is not None and hold is not Hold.HIGH_WATERMARK:
            # A limit that stands for none, 2**63 - 1, is waited for beyond all times there are.
            latest_wait_ms = LONG_MAX - max(now_ms, 0)
            wait_ms = min(_time_to_wait(timestamp, rules.retention_ms, now_ms), latest_wait_ms)
        blocks.append(
            Block(
                predicate=predicate,
                hold=hold,
                base_offset=segments[gone].base_offset if has_segment else None,
                timestamp=timestamp,
                wait_ms=wait_ms,
            )
        )
    survivor = segments[len(removals)] if len(removals) < len(segments) else None
    start = state.log_start_offset
    if removals:
        first = state.log_end_offset if survivor is None else survivor.base_offset
        start = max(start, first)
    return RetentionPlan(
        removals=tuple(removals),
        old_log_start_offset=state.log_start_offset,
        log_start_offset=start,
        roll_offset=state.log_end_offset if survivor is None else None,
        blocks=tuple(blocks),
        blocked_by=blocks[answers[walk.BLOCKING]],
        bytes_before=state.size_bytes,
        retention_bytes=rules.size_limit,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class SweptLogs:
    """What retention takes of each partition, and what keeps the rest; numbers count where
    ``is_sure``."""

    is_sure: Mask  # whether it is known, and a segment stays
    removed: Numbers  # int64[PREDICATES, n], how many segments each predicate takes
    removed_bytes: Numbers  # int64[PREDICATES, n]
    first_base_offsets: Numbers  # of the first segment that stays
    old_log_starts: Numbers  # first offset that may be read now
    log_starts: Numbers  # the same afterwards
    holds: Numbers  # which of HOLDS a person should hear of first: ``RetentionPlan.blocked_by``
    blocked_offsets: Numbers  # base offset of the segment that it keeps
    # That segment's largest timestamp where age decides, epoch milliseconds.
    timestamps: Numbers
    has_timestamp: Mask
    waits_ms: Numbers  # how long until that is too old
    has_wait: Mask  # where age alone keeps it

    @property
    def is_due(self) -> Mask:
        """Where segments go."""
        is_due: Mask = self.is_sure & (self.removed.sum(axis=0) > 0)
        return is_due


def sweep_logs(facts: RetentionFacts, answers: Numbers, *, now_ms: int) -> SweptLogs:
    """Return what ``plan_retention`` decides about very many partitions. Where all segments go, or
    a fact is missing, nothing is sure.

    Args:
        answers: Of ``facts.decide``.
    """
    segments, logs = facts.segments, facts.logs
    first = logs[walk.FIRST_SEGMENT]
    is_sure = answers[walk.MISSING] == walk.NOTHING
    is_sure &= answers[walk.ALL_GONE] < logs[walk.SEGMENT_COUNT]
    # The answer for a log that lacks a fact is nothing else.
    gone = np.where(is_sure, answers[walk.GONE : walk.GONE + walk.PREDICATES], 0)
    blocking, every = np.where(is_sure, answers[walk.BLOCKING], 0), np.arange(len(first))
    holds = np.where(is_sure, answers[walk.STOPPED_BY + blocking, every], walk.NOT_ASKED)
    blocked = first + gone[blocking, every]
    bounds = np.vstack([first, first + gone])
    sums = np.append(0, np.cumsum(segments[walk.SIZE_BYTES]))[bounds]
    old_starts = logs[walk.LOG_START_OFFSET]
    stays = segments[walk.BASE_OFFSET, bounds[-1]]
    timestamps, limits_ms = segments[walk.LARGEST_TIMESTAMP, blocked], logs[walk.AGE_LIMIT_MS]
    has_timestamp = (blocking == walk.BY_TIME) & (holds != walk.LAST_SEGMENT)
    has_wait = has_timestamp & (holds != walk.NOT_REPLICATED)
    is_bounded = (abs(timestamps) < _MOST_MS) & (limits_ms < _MOST_MS) & (abs(now_ms) < _MOST_MS)
    return SweptLogs(
        is_sure=is_sure & (is_bounded | ~has_wait),
        removed=np.diff(bounds, axis=0),
        removed_bytes=np.diff(sums, axis=0),
        first_base_offsets=stays,
        old_log_starts=old_starts,
        log_starts=np.where(gone[-1] > 0, np.maximum(old_starts, stays), old_starts),
        holds=holds,
        blocked_offsets=segments[walk.BASE_OFFSET, blocked],
        timestamps=timestamps,
        has_timestamp=has_timestamp,
        waits_ms=_time_to_wait(timestamps, limits_ms, now_ms),
        has_wait=has_wait,
    )


def _time_to_wait(timestamp: _TimesT, retention_ms: _TimesT, now_ms: int) -> _TimesT:
    """Return how long until segments are too old."""
    # Older than the limit, not as old as it: one millisecond more.
    return timestamp + retention_ms + 1 - now_ms
