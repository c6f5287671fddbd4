"""Which segments go: Kafka's three predicates, one after the other, as a pure function.

Each predicate walks over the segments that the one before it left, oldest first, and stops at the
first that stays. Source: ``UnifiedLog.deleteOldSegments`` and ``deletableSegments`` of Kafka 4.4.
"""

import enum
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Self

from storage_core.config import CleanupPolicy, LogConfig
from storage_core.errors import ConfigError
from storage_core.maintenance.partition_state import ObservedSegment, PartitionState


class Predicate(enum.StrEnum):
    """Why a segment goes; in the order in which Kafka asks."""

    LOG_START = "LOG_START"
    SIZE = "SIZE"
    TIME = "TIME"


class Hold(enum.StrEnum):
    """Why a segment stays; the values are stable."""

    NOT_ASKED = "NOT_ASKED"
    LAST_SEGMENT = "LAST_SEGMENT"
    ABOVE_LOG_START = "ABOVE_LOG_START"
    WITHIN_SIZE = "WITHIN_SIZE"
    WITHIN_TIME = "WITHIN_TIME"
    FUTURE_TIMESTAMP = "FUTURE_TIMESTAMP"
    HIGH_WATERMARK = "HIGH_WATERMARK"


@dataclass(frozen=True, slots=True, kw_only=True)
class RetentionRules:
    """What a topic's configuration says about old segments.

    Attributes:
        deletes: Whether size and age count: the policy has ``delete``. A log start counts always.
        retention_bytes: ``retention.bytes``; negative for no limit.
        retention_ms: ``retention.ms``; negative for no limit.
    """

    deletes: bool
    retention_bytes: int
    retention_ms: int

    @classmethod
    def of(cls, config: LogConfig) -> Self:
        """Return the rules of a topic.

        Raises:
            ConfigError: The topic is tiered: which of its segments were uploaded is not known here.
        """
        if config.remote_storage_enable:
            raise ConfigError(
                "remote.storage.enable",
                "true",
                "only segments that were uploaded may go from a tiered topic, and which these are "
                "cannot be seen in its files",
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
    """Where a predicate stopped, and why.

    Attributes:
        predicate: Which one.
        hold: What keeps the segment.
        base_offset: Of the segment, None where nothing was asked.
        timestamp: Its largest timestamp where age decides, epoch milliseconds.
        wait_ms: How long until it is too old, if nothing is appended; None where age does not
            decide.
    """

    predicate: Predicate
    hold: Hold
    base_offset: int | None = None
    timestamp: int | None = None
    wait_ms: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RetentionPlan:
    """What retention does to a partition.

    Attributes:
        removals: Segments that go, oldest first.
        old_log_start_offset: First offset that may be read now.
        log_start_offset: The same afterwards.
        roll_offset: Base offset of a new, empty segment: all that there are go. None for no roll.
        blocks: Where each predicate stopped, in the order in which they were asked.
        bytes_before: Of all segments' records.
        retention_bytes: The size limit, None without one.
    """

    removals: tuple[Removal, ...]
    old_log_start_offset: int
    log_start_offset: int
    roll_offset: int | None
    blocks: tuple[Block, ...]
    bytes_before: int
    retention_bytes: int | None

    @property
    def removed_bytes(self) -> int:
        """Bytes of records that go."""
        return sum(removal.segment.size_bytes for removal in self.removals)

    @property
    def removed_base_offsets(self) -> tuple[int, ...]:
        """Base offsets of the segments that go, oldest first."""
        return tuple(removal.segment.base_offset for removal in self.removals)

    @property
    def percent_of_retention_bytes(self) -> int:
        """What the log has afterwards of its size limit, whole percents; 0 without a limit."""
        if not self.retention_bytes:
            return 0
        return (self.bytes_before - self.removed_bytes) * 100 // self.retention_bytes

    @property
    def blocked_by(self) -> Block:
        """The block that a person should hear of first: one that is not as the topic asks for."""
        for block in self.blocks:
            if block.hold in {Hold.HIGH_WATERMARK, Hold.FUTURE_TIMESTAMP}:
                return block
        asked = [block for block in self.blocks if block.hold is not Hold.NOT_ASKED]
        return asked[-1]

    def counts(self, predicate: Predicate) -> tuple[int, int]:
        """Return how many segments, and bytes, a predicate takes."""
        sizes = [r.segment.size_bytes for r in self.removals if r.predicate is predicate]
        return len(sizes), sum(sizes)


class _Answer(NamedTuple):
    """What a predicate says of one segment; hold None for one that goes."""

    hold: Hold | None
    timestamp: int | None = None
    wait_ms: int | None = None


_Test = Callable[[ObservedSegment, ObservedSegment | None], _Answer]


def plan_retention(state: PartitionState, rules: RetentionRules, *, now_ms: int) -> RetentionPlan:
    """Choose the oldest segments that go.

    Args:
        state: The partition.
        rules: Its topic's.
        now_ms: The run's clock, epoch milliseconds.

    Raises:
        UnobservedError: The state lacks a fact that the decision needs.
    """
    removals: list[Removal] = []
    blocks = []
    left = list(state.segments)
    for predicate in Predicate:
        test = _test_of(predicate, left, state, rules, now_ms)
        if test is None:
            blocks.append(Block(predicate=predicate, hold=Hold.NOT_ASKED))
            continue
        count, block = _walk(predicate, left, state, test)
        removals += [Removal(segment=s, predicate=predicate) for s in left[:count]]
        blocks.append(block)
        left = left[count:]
    roll_offset = None if left else state.log_end_offset
    first = left[0].base_offset if left else roll_offset
    start = state.log_start_offset
    if removals and first is not None:
        start = max(start, first)
    return RetentionPlan(
        removals=tuple(removals),
        old_log_start_offset=state.log_start_offset,
        log_start_offset=start,
        roll_offset=roll_offset,
        blocks=tuple(blocks),
        bytes_before=state.size_bytes,
        retention_bytes=rules.size_limit,
    )


def is_expired(largest_timestamp: int, *, retention_ms: int, now_ms: int) -> bool:
    """Whether a segment is older than its topic keeps it."""
    return now_ms - largest_timestamp > retention_ms


def _test_of(
    predicate: Predicate,
    left: Sequence[ObservedSegment],
    state: PartitionState,
    rules: RetentionRules,
    now_ms: int,
) -> _Test | None:
    """Return the test of a predicate, None if the topic does not ask for it."""
    if predicate is Predicate.LOG_START:
        return _log_start_test(state.log_start_offset)
    if predicate is Predicate.SIZE and rules.size_limit is not None:
        return _size_test(sum(segment.size_bytes for segment in left) - rules.size_limit)
    if predicate is Predicate.TIME and rules.age_limit_ms is not None:
        return _time_test(rules.age_limit_ms, now_ms)
    return None


def _log_start_test(log_start_offset: int) -> _Test:
    def test(_: ObservedSegment, following: ObservedSegment | None) -> _Answer:
        if following is None:
            return _Answer(Hold.LAST_SEGMENT)
        is_below = following.base_offset <= log_start_offset
        return _Answer(None if is_below else Hold.ABOVE_LOG_START)

    return test


def _size_test(excess_bytes: int) -> _Test:
    """Return the test that lets segments go as long as that leaves the log at its limit or above.

    Args:
        excess_bytes: What the log has above its limit; negative if it is below.
    """
    left = excess_bytes

    def test(segment: ObservedSegment, _: ObservedSegment | None) -> _Answer:
        nonlocal left
        if left - segment.size_bytes < 0:
            return _Answer(Hold.WITHIN_SIZE)
        left -= segment.size_bytes
        return _Answer(None)

    return test


def _time_test(retention_ms: int, now_ms: int) -> _Test:
    def test(segment: ObservedSegment, _: ObservedSegment | None) -> _Answer:
        timestamp = segment.largest_timestamp
        if is_expired(timestamp, retention_ms=retention_ms, now_ms=now_ms):
            return _Answer(None, timestamp)
        hold = Hold.FUTURE_TIMESTAMP if timestamp > now_ms else Hold.WITHIN_TIME
        # Older than the limit, not as old as it: one millisecond more.
        return _Answer(hold, timestamp, timestamp + retention_ms + 1 - now_ms)

    return test


def _walk(
    predicate: Predicate, left: Sequence[ObservedSegment], state: PartitionState, test: _Test
) -> tuple[int, Block]:
    """Return how many of the oldest segments go, and what stopped the walk."""
    for number, segment in enumerate(left):
        following = left[number + 1] if number + 1 < len(left) else None
        if following is None and segment.size_bytes == 0:
            answer = _Answer(Hold.LAST_SEGMENT)
        else:
            answer = test(segment, following)
            if answer.hold is None and not _is_replicated(state, following):
                answer = answer._replace(hold=Hold.HIGH_WATERMARK)
        if answer.hold is not None:
            return number, Block(
                predicate=predicate,
                hold=answer.hold,
                base_offset=segment.base_offset,
                timestamp=answer.timestamp,
                wait_ms=answer.wait_ms,
            )
    return len(left), _rolled(predicate)


def _rolled(predicate: Predicate) -> Block:
    """Return the block of a predicate that met nothing but the new, empty segment."""
    return Block(predicate=predicate, hold=Hold.LAST_SEGMENT)


def _is_replicated(state: PartitionState, following: ObservedSegment | None) -> bool:
    """Whether the high watermark lies above a segment, which another or none follows."""
    end = state.log_end_offset if following is None else following.base_offset
    return state.high_watermark is None or state.high_watermark >= end
