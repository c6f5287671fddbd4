"""The plan of one compaction round, as data for both passes. It has all that they need."""

import enum
from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import islice
from typing import Any, Final, Self

import numpy as np
from numpy.typing import NDArray

from storage_core.checkpoint.checkpoints import PartitionCheckpoints
from storage_core.config import CleanerConfig, LogConfig, OffsetMapHash, Recompression
from storage_core.config.log_config import AS_KAFKA
from storage_core.config.values import LONG_MAX
from storage_core.errors import ConfigError
from storage_core.index.segment_indexes import AbortedTxn, collect_aborted
from storage_core.kernels import compaction_walk as walk
from storage_core.log.loaded_log import LoadedLog, SegmentState
from storage_core.maintenance.listings import (
    NO_END,
    NO_ENTRY,
    CheckpointColumns,
    Listings,
    Mask,
    Numbers,
)
from storage_core.maintenance.partition_state import Fact, PartitionState, UnobservedError
from storage_core.records.payload import Limits
from storage_core.records.reader import LEAST_MAPPED_BYTES
from storage_core.threads import valid_at_once

# Choose the cleanable range of a log; say whether it is due.
#
# These are the decisions of Kafka's LogCleanerManager. They are a loop over arrays
# (``kernels.compaction_walk``), which decides about very many partitions at once; one partition is
# an array of one.

_FACTS: Final = {
    walk.TIMESTAMP: Fact.TIMESTAMP,
    walk.LOG_END: Fact.LOG_END,
    walk.STABLE_OFFSET: Fact.STABLE_OFFSET,
    walk.FIRST_BATCH: Fact.FIRST_BATCH,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class CleanRequest:
    """The round's clock, and the checkpoints of the partition."""

    now_ms: int
    # Without a high watermark the log's end counts; without a cleaner offset the log was never
    # cleaned.
    checkpoints: PartitionCheckpoints = PartitionCheckpoints()
    # Range chosen by the caller instead of by ratio and lags; None for Kafka's own choice.
    first_dirty_offset: int | None = None
    # End of that range; None for the active segment's base offset.
    first_uncleanable_offset: int | None = None


class NotDue(enum.StrEnum):
    """Why a log is not cleaned; the values are stable. They are in the order of the walk's
    numbers."""

    NOT_COMPACTED = "NOT_COMPACTED"
    NOTHING_TO_CLEAN = "NOTHING_TO_CLEAN"
    RATIO_BELOW_MINIMUM = "RATIO_BELOW_MINIMUM"


# By verdict of the walk.
VERDICTS: Final = (None, *NotDue)


@dataclass(frozen=True, slots=True, kw_only=True)
class CleanableRange:
    """The offsets that a round would clean."""

    first_dirty_offset: int  # where keys are collected from
    first_uncleanable_offset: int  # base offset of the first segment that is left alone
    clean_bytes: int  # bytes of the segments that begin below the first dirty offset
    cleanable_bytes: int
    dirty_bytes: int = 0
    # Base offset of the first dirty segment that is younger than min.compaction.lag.ms, None
    # without one.
    first_young_offset: int | None = None
    # Of the first batches of dirty segments where max.compaction.lag.ms is limited; None without
    # one.
    oldest_dirty_timestamp: int | None = None
    max_compaction_delay_ms: int = 0  # by how much that limit is exceeded, 0 if it is not
    # Whether the cleaner checkpoint lies outside of the log, so that it is replaced by
    # first_dirty_offset even if nothing is cleaned.
    checkpoint_is_invalid: bool = False
    not_due: NotDue | None = None  # why the log is not to be cleaned now, None if it is

    @property
    def cleanable_ratio(self) -> float:
        """Share of the cleanable bytes, 0.0 for a log without any."""
        total = self.clean_bytes + self.cleanable_bytes
        return self.cleanable_bytes / total if total else 0.0

    @property
    def is_due(self) -> bool:
        """Whether Kafka would clean the log now."""
        return self.not_due is None


@dataclass(frozen=True, slots=True, kw_only=True)
class CompactionFacts:
    """Facts of some partitions for the choice of their ranges."""

    segments: Numbers  # int64[SEGMENT_COLUMNS, m] of the walk, those of all partitions
    logs: Numbers  # int64[LOG_COLUMNS, n] of the walk

    @classmethod
    def of_state(cls, state: PartitionState, config: LogConfig, request: CleanRequest) -> Self:
        """Return the facts of one partition, as far as it was observed."""
        listed = state.segments
        segments = np.full((walk.SEGMENT_COLUMNS, len(listed)), walk.NONE)
        segments[walk.BASE_OFFSET] = [segment.base_offset for segment in listed]
        segments[walk.SIZE_BYTES] = [segment.size_bytes for segment in listed]
        if config.min_compaction_lag_ms > 0:
            segments[walk.LARGEST_TIMESTAMP] = [
                _or_none(None if segment.max_timestamp is None else segment.largest_timestamp)
                for segment in listed
            ]
        if config.limits_compaction_lag:
            segments[walk.FIRST_TIMESTAMP] = [
                _or_none(segment.first_timestamp) for segment in listed
            ]
        log = (
            0,
            len(listed),
            state.log_start_offset,
            _or_none(state.log_end),
            _or_none(state.stable_end),
            _or_none(request.checkpoints.cleaner_offset),
            config.min_compaction_lag_ms,
            config.max_compaction_lag_ms,
            config.is_compacted,
            _or_none(request.first_dirty_offset),
            walk.LARGEST
            if request.first_uncleanable_offset is None
            else request.first_uncleanable_offset,
            np.float64(config.min_cleanable_dirty_ratio).view(np.int64),
        )
        return cls(
            segments=segments,
            logs=np.array([log], np.int64).T,
        )

    @classmethod
    def of_listings(
        cls,
        listings: Listings,
        configs: Sequence[LogConfig | None],
        checkpoints: CheckpointColumns,
    ) -> Self:
        """Return the facts of very many partitions, without ages of segments.

        Args:
            configs: Of their topics; None for one that is not compacted.
            checkpoints: Of the partitions; without a high watermark the log's end counts.
        """
        segments = np.full((walk.SEGMENT_COLUMNS, len(listings.sizes)), walk.NONE)
        segments[walk.BASE_OFFSET] = listings.base_offsets
        segments[walk.SIZE_BYTES] = listings.sizes
        log_starts = np.maximum(
            checkpoints.log_start_offsets, listings.base_offsets[listings.starts]
        )
        ends, has_end = listings.log_ends, listings.log_ends != NO_END
        # No transaction is open in a log whose end is known here: all below the watermark is
        # stable.
        marks, points = checkpoints.high_watermarks, checkpoints.cleaner_offsets
        stable = np.where(marks != NO_ENTRY, np.minimum(np.maximum(marks, log_starts), ends), ends)
        logs = np.empty((walk.LOG_COLUMNS, len(listings)), np.int64)
        logs[walk.FIRST_SEGMENT] = listings.starts
        logs[walk.SEGMENT_COUNT] = listings.counts
        logs[walk.LOG_START_OFFSET] = log_starts
        logs[walk.LOG_END_OFFSET] = np.where(has_end, ends, walk.NONE)
        logs[walk.LAST_STABLE_OFFSET] = np.where(has_end, stable, walk.NONE)
        logs[walk.CLEANER_CHECKPOINT] = np.where(points != NO_ENTRY, points, walk.NONE)
        logs[walk.MIN_LAG_MS] = [c.min_compaction_lag_ms if c else 0 for c in configs]
        logs[walk.MAX_LAG_MS] = [c.max_compaction_lag_ms if c else LONG_MAX for c in configs]
        logs[walk.IS_COMPACTED] = [c is not None and c.is_compacted for c in configs]
        logs[walk.REQUESTED_START] = walk.NONE
        logs[walk.REQUESTED_END] = walk.LARGEST
        least_ratios = [c.min_cleanable_dirty_ratio if c else 0.0 for c in configs]
        logs[walk.LEAST_RATIO] = np.array(least_ratios, np.float64).view(np.int64)
        return cls(segments=segments, logs=logs)

    def decide(self, *, now_ms: int) -> Numbers:
        """Return the answers of the walk: int64[ANSWER_COLUMNS, n]."""
        answers = np.empty((walk.ANSWER_COLUMNS, self.logs.shape[1]), np.int64)
        walk.walk_compaction(self.segments, self.logs, now_ms, answers)
        return answers


@dataclass(frozen=True, slots=True, kw_only=True)
class UndueLogs:
    """Which of some partitions no round is due of. Numbers count where ``is_undue``; they are
    named as in ``CleanableRange``."""

    is_undue: Mask  # whether no round is due, and that is sure
    verdicts: Numbers  # which of VERDICTS says why
    first_dirty_offset: Numbers
    first_uncleanable_offset: Numbers
    clean_bytes: Numbers
    cleanable_bytes: Numbers
    checkpoint_is_invalid: Mask
    max_compaction_delay_ms: int = 0  # where a maximum lag is limited, nothing here is sure

    @property
    def cleanable_ratio(self) -> NDArray[np.float64]:
        """Share of the cleanable bytes, 0.0 for a log without any."""
        total = np.maximum(self.clean_bytes + self.cleanable_bytes, 1)
        ratios: NDArray[np.float64] = self.cleanable_bytes / total
        return ratios


def find_undue_logs(facts: CompactionFacts, *, now_ms: int) -> UndueLogs:
    """Find the partitions of which no round is due. Where one is, or a fact is missing,
    ``choose_range`` decides about each."""
    answers = facts.decide(now_ms=now_ms)
    is_undue = (answers[walk.MISSING] == walk.NOTHING) & (answers[walk.VERDICT] != walk.DUE)
    return UndueLogs(
        is_undue=is_undue,
        verdicts=np.where(is_undue, answers[walk.VERDICT], walk.DUE),
        first_dirty_offset=answers[walk.FIRST_DIRTY_OFFSET],
        first_uncleanable_offset=answers[walk.FIRST_UNCLEANABLE_OFFSET],
        clean_bytes=answers[walk.CLEAN_BYTES],
        cleanable_bytes=answers[walk.CLEANABLE_BYTES],
        checkpoint_is_invalid=answers[walk.HAS_INVALID_CHECKPOINT] != 0,
    )


def _or_none(fact: int | None) -> int:
    """Return a fact for the walk, NONE for a missing one. A fact of the least int64, which NONE
    is, counts as one more."""
    return walk.NONE if fact is None else max(fact, walk.NONE + 1)


def choose_range(state: PartitionState, config: LogConfig, request: CleanRequest) -> CleanableRange:
    """Choose the range to clean, as Kafka's cleaner manager or the request.

    Args:
        state: The partition; at least one segment.
        request: With a first dirty offset, that range is taken and is due.
    """
    facts = CompactionFacts.of_state(state, config, request)
    answer = facts.decide(now_ms=request.now_ms)[:, 0].tolist()
    if answer[walk.MISSING] != walk.NOTHING:
        base = state.segments[answer[walk.MISSING_OF]].base_offset
        raise UnobservedError(base, _FACTS[answer[walk.MISSING]])
    first_dirty, end = answer[walk.FIRST_DIRTY_OFFSET], answer[walk.FIRST_UNCLEANABLE_OFFSET]
    if request.first_dirty_offset is not None and first_dirty > end:
        raise ConfigError(
            "first dirty offset",
            first_dirty,
            f"the range ends below it: at {end}, the base offset of the first segment that is "
            "left alone",
        )
    young, oldest = answer[walk.FIRST_YOUNG_OFFSET], answer[walk.OLDEST_DIRTY_TIMESTAMP]
    delay_ms = request.now_ms - oldest - config.max_compaction_lag_ms
    return CleanableRange(
        first_dirty_offset=first_dirty,
        first_uncleanable_offset=end,
        clean_bytes=answer[walk.CLEAN_BYTES],
        cleanable_bytes=answer[walk.CLEANABLE_BYTES],
        dirty_bytes=answer[walk.DIRTY_BYTES],
        first_young_offset=None if young == walk.NONE else young,
        oldest_dirty_timestamp=None if oldest == walk.LARGEST else oldest,
        max_compaction_delay_ms=max(0, delay_ms),
        checkpoint_is_invalid=bool(answer[walk.HAS_INVALID_CHECKPOINT]),
        not_due=VERDICTS[answer[walk.VERDICT]],
    )


def rule_out_round(
    state: PartitionState,
    config: LogConfig,
    request: CleanRequest,
    *,
    recovery_point: int | None,
) -> CleanableRange | None:
    """Return the range of a log surely not due, else None. None means that the log itself has to be
    asked.

    What only batches tell (how far committed data reaches, when a segment began) is taken as the
    case in which most would be cleaned: the range ends where it would if every record below the
    high watermark were stable. Where even that is not due, neither is the log.

    Args:
        state: The partition as a listing or a manifest shows it; at least one segment.
        recovery_point: Offset that the log is known to reach; None where nothing says so.
    """
    active = state.active_segment.base_offset
    reached = max(active, recovery_point or 0)
    checkpoint = request.checkpoints.cleaner_offset
    if checkpoint is not None and checkpoint > reached:
        return None  # it may lie beyond the log's end, which only the log tells
    watermark = state.high_watermark
    bounded = replace(
        state,
        log_end=max(reached, state.log_start_offset),
        stable_end=active if watermark is None else watermark,
    )
    try:
        cleanable = choose_range(bounded, without_max_lag(config), request)
    except UnobservedError:
        return None
    # Only the first batch of each segment tells since when one has waited.
    may_wait_too_long = config.limits_compaction_lag and cleanable.cleanable_bytes > 0
    return None if cleanable.is_due or may_wait_too_long else cleanable


def without_max_lag(config: LogConfig) -> LogConfig:
    """Return a configuration without a limit for the age of dirty records. No log is due for
    that age alone then."""
    return replace(config, max_compaction_lag_ms=LONG_MAX)


def weigh_dirt(
    log: LoadedLog, config: LogConfig, checkpoints: PartitionCheckpoints, now_ms: int
) -> dict[str, Any]:
    """Return ``dirty_bytes`` and ``dirty_ratio`` of a log, for ``inspect_partition``."""
    request = CleanRequest(now_ms=now_ms, checkpoints=checkpoints)
    cleanable = choose_range(PartitionState.of_log(log), config, request)
    return {
        "dirty_bytes": cleanable.cleanable_bytes,
        "dirty_ratio": round(cleanable.cleanable_ratio, 4),
    }


# A slot of Kafka's offset map: an MD5 digest and an offset.
MAP_SLOT_BYTES = 24
_MOST_OFFSET_DELTA = 2**31 - 1
# Most of what one thread copies of a segment at a time: the checksum then finds it in the CPU's
# cache. Of 8 MiB it took twice as long; below 1 MiB, calls for a window take more than is gained.
# Of a file that is mapped nothing is copied, and large windows cost nothing.
CACHED_BYTES = 2 * 1024 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class ActiveProducer:
    """A producer still in the log, and its last sequence's batch. The batch keeps the producer's
    sequence alive."""

    producer_id: int
    producer_epoch: int
    last_data_offset: int  # last offset of its last data batch, -1 if none is remembered


@dataclass(frozen=True, slots=True)
class ReadSettings:
    """How the segments of a round are read."""

    threads: int
    at_once: int  # how many windows are valid at the same time
    window_bytes: int  # how much each of them holds

    @property
    def run_bytes(self) -> int:
        """How many bytes of small segments are read as one window."""
        return min(self.window_bytes, CACHED_BYTES)


@dataclass(frozen=True, kw_only=True)  # no slots: what every segment asks for is kept
class CompactionPlan:
    """One round on one partition.

    A partition may have thousands of segments, and each of them asks its plan for these: nothing
    that is asked once a segment may cost as much as the partition has segments.
    """

    location: str
    now_ms: int
    first_dirty_offset: int  # keys are collected from here
    first_uncleanable_offset: int  # base offset of the first segment left alone
    high_watermark: int  # the batch that ends there stays, empty if need be
    log_start_offset: int  # for the search of aborted transactions
    # Every segment of the log, oldest first, the active one last.
    segments: tuple[SegmentState, ...]
    producers: tuple[ActiveProducer, ...]
    max_keys: int | None  # how many keys the offset map may hold; None for no limit
    offset_map_hash: OffsetMapHash  # how keys are known
    hash_key: str  # 16 bytes of key for SipHash, in hexadecimal; secret within a run
    segment_bytes: int
    segment_index_bytes: int
    index_interval_bytes: int
    delete_retention_ms: int
    max_record_bytes: int  # ``max.decompressed.message.bytes``
    max_batch_bytes: int  # limit of one decompressed batch
    window_bytes: int  # how much of a segment may be held at a time
    verify_crc: bool  # whether a batch with a wrong CRC stops the round
    # Codec of the batches that are rebuilt; control batches have none.
    recompression: Recompression = AS_KAFKA
    recompresses_all: bool = False  # whether all batches with records are rebuilt
    keeps_negative_timestamps: bool = False  # whether a batch with one can be rebuilt

    @cached_property
    def dirty_segments(self) -> tuple[SegmentState, ...]:
        """Segments whose keys are collected, oldest first."""
        return tuple(
            segments_between(self.segments, self.first_dirty_offset, self.first_uncleanable_offset)
        )

    @cached_property
    def number_of_dirty(self) -> Mapping[int, int]:
        """Number of each dirty segment among them, by its base offset."""
        return {segment.base_offset: number for number, segment in enumerate(self.dirty_segments)}

    @cached_property
    def round_segments(self) -> tuple[SegmentState, ...]:
        """All segments that the round may rewrite, oldest first."""
        return tuple(self.segments_below(self.first_uncleanable_offset))

    @property
    def end_offset(self) -> int:
        """The cleaner point after a round without a limit of keys. It is 0 if nothing is dirty."""
        return self.first_uncleanable_offset if self.dirty_segments else 0

    @cached_property
    def by_base_offset(self) -> Mapping[int, SegmentState]:
        """All segments, by their base offsets."""
        return {segment.base_offset: segment for segment in self.segments}

    @cached_property
    def aborted_of_round(self) -> tuple[AbortedTxn, ...]:
        """The aborted transactions that pass one has to know."""
        return tuple(
            collect_aborted(
                self._aborted_from(self.first_dirty_offset),
                fetch_offset=self.log_start_offset,
                upper_bound_offset=self.first_uncleanable_offset,
            )
        )

    @cached_property
    def aborted_producers(self) -> NDArray[np.int64]:
        """Ids of the producers of those transactions, sorted."""
        return np.array(sorted({txn.producer_id for txn in self.aborted_of_round}), np.int64)

    @cached_property
    def legacy_delete_horizon_ms(self) -> int:
        """File age limit for tombstones of legacy formats, epoch milliseconds. In a segment whose
        file is older they are dropped.

        It is what the last segment below the first dirty offset says; 0 without such a segment.
        """
        clean = segments_between(self.segments, 0, self.first_dirty_offset)
        return clean[-1].modified_ms - self.delete_retention_ms if clean else 0

    @property
    def limits(self) -> Limits:
        """What a batch may expand to."""
        return Limits(max_record_bytes=self.max_record_bytes, max_batch_bytes=self.max_batch_bytes)

    @cached_property
    def _bases(self) -> list[int]:
        return [segment.base_offset for segment in self.segments]

    @cached_property
    def _with_aborted(self) -> tuple[list[int], list[tuple[AbortedTxn, ...]]]:
        """Base offsets and transaction indexes of segments with aborted transactions."""
        segments = [segment for segment in self.segments if segment.aborted]
        return [s.base_offset for s in segments], [s.aborted for s in segments]

    def _aborted_from(self, base_offset: int) -> Iterator[tuple[AbortedTxn, ...]]:
        """Return the transaction indexes from the segment that holds base_offset on."""
        number = bisect_right(self._bases, base_offset)
        floor = self._bases[number - 1] if number else 0
        bases, indexes = self._with_aborted
        return islice(indexes, bisect_right(bases, floor - 1), None)

    def aborted_near(self, base_offset: int) -> list[AbortedTxn]:
        """Return the aborted transactions that reach into the segment at base_offset."""
        return collect_aborted(
            self._aborted_from(base_offset),
            fetch_offset=self.log_start_offset,
            upper_bound_offset=self.end_of(base_offset),
        )

    def end_of(self, base_offset: int) -> int:
        """Return the end of the segment at base_offset: the next base."""
        later = bisect_right(self._bases, base_offset)
        is_last = later == len(self._bases)
        return self.first_uncleanable_offset if is_last else self._bases[later]

    @cached_property
    def round_bytes(self) -> int:
        """Bytes of all segments that the round may rewrite."""
        return sum(segment.size_bytes for segment in self.round_segments)

    def pace(self, threads: int, *, is_mapped: bool = False) -> ReadSettings:
        """Return how to read segments: window size and windows at once. Several windows at once
        take the memory of two.

        That is theirs, and that of what is made of them; of a file that is mapped they take none,
        so that four are as large as one alone. One thread that copies has windows that stay in the
        CPU's cache. Several have larger ones: they wait for each other at every window, for the
        interpreter's lock, and that costs more.

        Both passes have the same windows, however many threads there are: only where they agree
        does the second one find what the first one has decompressed.

        Args:
            threads: How many there are to use; a round of one window is not worth a second one.
            is_mapped: Whether the files need not be copied.
        """
        at_once = valid_at_once(threads)
        whole = 4 if is_mapped else 2
        share = max(1, self.window_bytes * min(whole, at_once) // at_once)
        if threads == 1 or self.round_bytes <= share:
            return ReadSettings(1, 1, share if is_mapped else min(share, CACHED_BYTES))
        return ReadSettings(threads, at_once, share)

    def runs_of(
        self, segments: Sequence[SegmentState], most_bytes: int
    ) -> list[list[SegmentState]]:
        """Cut consecutive segments into runs, each of which is read as one window. One that is not
        small is a run of its own.

        Those of a run are alike: their keys are all collected, whole, or none of them are, and old
        tombstones go from all of them or from none. A segment into which an aborted transaction
        reaches is read alone, for it says of its own which these are.

        Args:
            segments: Those of one group, from its first one on: both passes have the same runs.
            most_bytes: How many bytes a run of several segments may have.
        """
        runs: list[list[SegmentState]] = []
        size_bytes, last_kind = 0, None
        has_aborted = bool(self._with_aborted[0])
        for segment in segments:
            starts_dirty = segment.base_offset >= self.first_dirty_offset
            is_small = segment.size_bytes < LEAST_MAPPED_BYTES and not (
                has_aborted and self.aborted_near(segment.base_offset)
            )
            kind = (
                is_small,
                starts_dirty or segment.base_offset in self.number_of_dirty,
                starts_dirty,
                self.keeps_legacy_tombstones(segment),
            )
            size_bytes += segment.size_bytes
            if is_small and size_bytes <= most_bytes and kind == last_kind:
                runs[-1].append(segment)
            else:
                runs.append([segment])
                size_bytes = segment.size_bytes
            last_kind = kind
        return runs

    def keeps_legacy_tombstones(self, segment: SegmentState) -> bool:
        """Whether the tombstones of older formats stay in a segment."""
        return segment.modified_ms > self.legacy_delete_horizon_ms

    def segments_below(self, end_offset: int) -> list[SegmentState]:
        """Return the segments that begin below end_offset, oldest first."""
        return [segment for segment in self.segments if segment.base_offset < end_offset]


def segments_between(
    segments: Sequence[SegmentState], first_offset: int, end_offset: int
) -> list[SegmentState]:
    """Return the segments from the one of first_offset to end_offset. All of them begin below
    end_offset."""
    if first_offset == end_offset:
        return []
    floor = max((s.base_offset for s in segments if s.base_offset <= first_offset), default=0)
    return [s for s in segments if floor <= s.base_offset < end_offset]


def plan_compaction(
    log: LoadedLog,
    config: LogConfig,
    cleaner: CleanerConfig,
    cleanable: CleanableRange,
    *,
    now_ms: int,
    hash_key: bytes,
) -> CompactionPlan:
    """Plan a round over the range that was chosen.

    Args:
        hash_key: 16 random bytes, fresh for each run.
    """
    return CompactionPlan(
        location=log.location,
        now_ms=now_ms,
        first_dirty_offset=cleanable.first_dirty_offset,
        first_uncleanable_offset=cleanable.first_uncleanable_offset,
        high_watermark=log.high_watermark,
        log_start_offset=log.log_start_offset,
        segments=log.segments,
        producers=tuple(
            ActiveProducer(
                producer_id=entry.producer_id,
                producer_epoch=entry.producer_epoch,
                last_data_offset=entry.last_offset,
            )
            for entry in log.producers
        ),
        max_keys=map_capacity(cleaner),
        offset_map_hash=cleaner.offset_map_hash,
        hash_key=hash_key.hex(),
        segment_bytes=config.segment_bytes,
        segment_index_bytes=config.segment_index_bytes,
        index_interval_bytes=config.index_interval_bytes,
        delete_retention_ms=config.delete_retention_ms,
        max_record_bytes=config.max_decompressed_message_bytes,
        max_batch_bytes=cleaner.max_decompressed_batch_bytes,
        window_bytes=cleaner.window_bytes,
        verify_crc=cleaner.verify_crc,
        recompression=cleaner.recompression,
        recompresses_all=cleaner.recompresses_all,
        keeps_negative_timestamps=cleaner.keeps_negative_timestamps,
    )


def map_slots(cleaner: CleanerConfig) -> int | None:
    """Return the slots of a map of configured size, None without one."""
    if cleaner.dedupe_buffer_bytes is None:
        return None
    per_thread = min(cleaner.dedupe_buffer_bytes // max(1, cleaner.threads), 2**31 - 1)
    return per_thread // MAP_SLOT_BYTES


def map_capacity(cleaner: CleanerConfig) -> int | None:
    """Return the key capacity of a map of configured size, or None. None without a configured
    size."""
    slots = map_slots(cleaner)
    return None if slots is None else int(slots * cleaner.load_factor)


def group_segments(plan: CompactionPlan, end_offset: int) -> list[list[SegmentState]]:
    """Group the segments below end_offset; each group becomes one segment.

    A group takes the next segment while the sums of log, offset index and time index sizes stay
    within the limits, and the last offset it could hold stays in reach of the group's base.
    """
    segments = plan.segments_below(end_offset)
    nexts = [segment.base_offset for segment in segments[1:]] + [plan.first_uncleanable_offset]
    groups: list[list[SegmentState]] = []
    log_bytes = offset_index_bytes = time_index_bytes = 0
    for segment, next_base in zip(segments, nexts, strict=False):
        log_bytes += segment.size_bytes
        offset_index_bytes += segment.offset_index_bytes
        time_index_bytes += segment.time_index_bytes
        fits = (
            bool(groups)
            and log_bytes <= plan.segment_bytes
            and offset_index_bytes <= plan.segment_index_bytes
            and time_index_bytes <= plan.segment_index_bytes
            and (
                segment.size_bytes == 0
                or next_base - 1 - groups[-1][0].base_offset <= _MOST_OFFSET_DELTA
            )
        )
        if fits:
            groups[-1].append(segment)
        else:
            groups.append([segment])
            log_bytes = segment.size_bytes
            offset_index_bytes = segment.offset_index_bytes
            time_index_bytes = segment.time_index_bytes
    return groups
