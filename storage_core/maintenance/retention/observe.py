"""Read only as much of a partition as retention needs.

The listing tells where segments begin, how large they are and when they were last written. Only
while the oldest segments are too old are their time indexes asked, for their last twelve bytes,
one after the other, up to the first segment that stays. Before anything goes the log is loaded as a
broker loads it: nothing is taken from one that a broker refuses.
"""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Final

from storage_core.config import CleanerConfig, LogConfig
from storage_core.errors import RecoveryRequiredError
from storage_core.filenames import (
    CLEANED_SUFFIX,
    LOG_SUFFIX,
    OFFSET_INDEX_SUFFIX,
    SWAP_SUFFIX,
    kind_of,
    log_file,
    offset_of,
    segment_file,
)
from storage_core.formats.batch_v2 import NO_TIMESTAMP
from storage_core.kernels import retention_walk as walk
from storage_core.log.batch_search import ListedSegment, find_valid_end
from storage_core.log.log_loader import find_clean_end
from storage_core.maintenance.partition_state import ObservedSegment, PartitionState
from storage_core.maintenance.retention.plan import (
    Predicate,
    RetentionFacts,
    RetentionPlan,
    RetentionRules,
)
from storage_core.maintenance.segment_ages import check_segment_ages, read_last_time
from storage_core.store.base import FileInfo, LogStore

_UNFINISHED: Final = (CLEANED_SUFFIX, SWAP_SUFFIX)


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepRequest:
    """Clock, checkpoints and kind of a partition at rest."""

    now_ms: int
    # The partition's entry in the log-start checkpoint, 0 without one.
    log_start_checkpoint: int = 0
    high_watermark: int | None = None  # as the checkpoint has it; None for the log's end
    # What the last entries of time indexes say, by base offset, where that is known already: these
    # are not read.
    max_timestamps: Mapping[int, int] | None = None
    # Whether the log was closed. One that was copied while a broker had it open is not loaded
    # cleanly by anybody: its active segment counts as far as it has batches, and the zeros at the
    # end of its indexes are no entries.
    is_closed: bool = True
    always_loads: bool = False  # whether a closed log is loaded even where nothing goes


def observe_retention(
    store: LogStore, config: LogConfig, cleaner: CleanerConfig, request: SweepRequest
) -> PartitionState:
    """Return what `plan_retention` needs to decide about a partition at rest."""
    rules = RetentionRules.of(config)
    files = store.list_files()
    refuse_repairs(store.location, files)
    state = PartitionState.of_listing(
        store.location,
        files,
        log_start_checkpoint=request.log_start_checkpoint,
        high_watermark=request.high_watermark,
        max_timestamps=request.max_timestamps,
    )
    load = partial(
        find_clean_end,
        store,
        config=config,
        cleaner=cleaner,
        now_ms=request.now_ms,
        log_start_checkpoint=request.log_start_checkpoint,
    )
    if request.always_loads and request.is_closed:
        state = replace(state, log_end=load())
    while True:
        facts = RetentionFacts.of_state(state, rules)
        segments = list(state.segments)
        # Ages are read oldest first, up to the first segment that stays.
        while True:
            answers = facts.decide(now_ms=request.now_ms)[:, 0]
            if answers[walk.MISSING] != walk.TIMESTAMP:
                break
            number = int(answers[walk.MISSING_OF])
            segments[number] = _with_timestamp(
                store, state.names, segments[number], is_closed=request.is_closed
            )
            facts.segments[walk.LARGEST_TIMESTAMP, number] = segments[number].largest_timestamp
        state = replace(state, segments=tuple(segments))
        is_due = answers[walk.MISSING] == walk.LOG_END or answers[walk.ALL_GONE] > 0
        if not is_due or state.log_end is not None:
            return state
        # Something goes: is this a log that a broker would delete from?
        if request.is_closed:
            state = replace(state, log_end=load())
        else:
            state = with_recovered_end(store, state)


def refuse_repairs(location: str, files: Iterable[FileInfo]) -> None:
    """Refuse a log in need of repair by its loader. A loader changes such a log before anything
    else may be decided."""
    names = {file.name for file in files}
    unfinished = sorted(name for name in names if name.endswith(_UNFINISHED))
    if unfinished:
        raise RecoveryRequiredError(location, f"a swap was not finished: {unfinished[0]} is left")
    logs = {
        base: name
        for name in names
        if kind_of(name) == LOG_SUFFIX and (base := offset_of(name)) is not None
    }
    if not logs:
        raise RecoveryRequiredError(location, "the directory has no segment")
    for base, name in sorted(logs.items()):
        if name != log_file(base):
            raise RecoveryRequiredError(location, f"{name}: expected the name {log_file(base)}")
        index_name = segment_file(base, OFFSET_INDEX_SUFFIX)
        if index_name not in names:
            raise RecoveryRequiredError(
                location, f"segment {base} has to be recovered: {index_name} is missing"
            )


def _with_timestamp(
    store: LogStore,
    names: Collection[str],
    segment: ObservedSegment,
    *,
    is_closed: bool = True,
) -> ObservedSegment:
    """Read the age of a segment, unless it is known."""
    if segment.max_timestamp is not None:
        return segment
    last, _ = read_last_time(store, names, segment.base_offset, is_closed=is_closed)
    return replace(segment, max_timestamp=max(last.timestamp, NO_TIMESTAMP))


def check_ages(
    store: LogStore,
    names: Collection[str],
    rules: RetentionRules,
    plan: RetentionPlan,
    *,
    now_ms: int,
    is_closed: bool = True,
) -> None:
    """Refuse to delete segments for an age that their records contradict.

    Kafka believes the last entry of a time index, and the file's time where there is none. Zeros
    behind the entries make every record of 1970. Only segments that go by age are looked at.

    Args:
        is_closed: As `SweepRequest`; the time index of an active segment that was not closed lacks
            its newest records, and a report alone is made of it.
    """
    aged = [each.segment for each in plan.removals if each.predicate is Predicate.TIME]
    if not is_closed and plan.roll_offset is not None:
        aged = aged[:-1]
    check_segment_ages(store, names, aged, limit_ms=now_ms - rules.retention_ms)


def with_recovered_end(store: LogStore, state: PartitionState) -> PartitionState:
    """Return a log's state with its end after a recovery.

    The log was not closed; a recovery would give it this end. Bytes behind the last good batch do
    not count: they are a torn batch, or preallocated zeros.

    Args:
        store: The partition; the active segment has an offset index.
    """
    active = state.active_segment
    end, size_bytes = find_valid_end(
        store,
        ListedSegment(
            base_offset=active.base_offset,
            size_bytes=active.size_bytes,
            has_offset_index=True,
            has_time_index=True,
        ),
    )
    if end < state.log_start_offset:
        raise RecoveryRequiredError(
            state.location,
            f"the log ends at offset {end}, below its log start offset {state.log_start_offset}: "
            "Kafka would delete every segment of it",
        )
    segments = (*state.segments[:-1], replace(active, size_bytes=size_bytes))
    return replace(state, segments=segments, log_end=end)


def newest_timestamp(
    store: LogStore, state: PartitionState, *, is_closed: bool = True
) -> int | None:
    """Return the largest timestamp of the newest segment with records.

    The result is None without records. It tells a clock that is ahead by years: everything is too
    old then, the newest too.
    """
    for segment in reversed(state.segments):
        if segment.size_bytes:
            observed = _with_timestamp(store, state.names, segment, is_closed=is_closed)
            return observed.largest_timestamp
    return None


def newest_record_ms(
    store: LogStore, max_timestamps: Mapping[int, int] | None = None
) -> int | None:
    """Return the largest timestamp of a partition's newest segment with records.

    The result is None without records. The partition may be in order or not: a listing and twelve
    bytes are read.
    """
    state = PartitionState.of_listing(
        store.location,
        store.list_files(),
        log_start_checkpoint=None,
        high_watermark=None,
        max_timestamps=max_timestamps,
    )
    return newest_timestamp(store, state, is_closed=False)
