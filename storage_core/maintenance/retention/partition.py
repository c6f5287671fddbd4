"""Apply retention to one partition, at rest or loaded."""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from itertools import groupby
from typing import Final

from storage_core.checkpoint.checkpoints import (
    MAX_LEADER_EPOCH_BYTES,
    PartitionCheckpoints,
    encode_leader_epochs,
    parse_leader_epochs,
)
from storage_core.commit import (
    CommitPlan,
    CreateEmptyFile,
    DeleteFile,
    DeleteFiles,
    Operation,
    RenameFile,
    SyncDirectory,
    WriteFile,
)
from storage_core.commit.plan import changed_names
from storage_core.config import CleanerConfig, LogConfig
from storage_core.errors import (
    CheckpointError,
    OffsetOutOfRangeError,
    RecoveryRequiredError,
    RollError,
    located,
)
from storage_core.filenames import (
    CHECKPOINT_DELETED_SUFFIX,
    CLEANED_SUFFIX,
    DELETED_SUFFIX,
    INDEX_SUFFIXES,
    LEADER_EPOCH_FILE,
    LOG_SUFFIX,
    OFFSET_INDEX_SUFFIX,
    SEGMENT_SUFFIXES,
    SWAP_SUFFIX,
    TIME_INDEX_SUFFIX,
    kind_of,
    log_file,
    offset_of,
    segment_file,
    snapshot_file,
    sorted_logs,
)
from storage_core.formats.batch_v2 import NO_TIMESTAMP
from storage_core.kernels import retention_walk as walk
from storage_core.log.batch_search import ListedSegment, find_valid_end
from storage_core.log.directory_view import DirectoryView
from storage_core.log.leader_epoch_cache import LeaderEpochCache
from storage_core.log.loaded_log import LoadedLog, describe_segment
from storage_core.log.loading_log import LoadingLog
from storage_core.log.log_loader import LogLoader, find_clean_end, load_log
from storage_core.maintenance.partition_state import (
    ObservedSegment,
    PartitionState,
    check_segment_ages,
    read_last_time,
)
from storage_core.maintenance.retention.plan import (
    Predicate,
    RetentionFacts,
    RetentionPlan,
    RetentionRules,
    plan_retention,
)
from storage_core.store.base import FileInfo, LogStore

# Read only as much of a partition as retention needs.
#
# The listing tells where segments begin, how large they are and when they were last written. Only
# while the oldest segments are too old are their time indexes asked, for their last twelve bytes,
# one after the other, up to the first segment that stays. Before anything goes the log is loaded
# as a broker loads it: nothing is taken from one that a broker refuses.

_UNFINISHED: Final = (CLEANED_SUFFIX, SWAP_SUFFIX)


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepRequest:
    """Clock, checkpoints and kind of a partition at rest."""

    now_ms: int
    # Without a high watermark the log's end counts.
    checkpoints: PartitionCheckpoints = PartitionCheckpoints()
    # What the last entries of time indexes say, by base offset, where that is known already: these
    # are not read.
    max_timestamps: Mapping[int, int] | None = None
    # Whether the log was closed. One that was copied while a broker had it open is not loaded
    # cleanly by anybody: its active segment counts as far as it has batches, and the zeros at the
    # end of its indexes are no entries.
    is_closed: bool = True
    always_loads: bool = False  # whether a closed log is loaded even where nothing goes
    # Offset of the next record, where the same files were loaded, and their ages checked, before.
    verified_end: int | None = None


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
        checkpoints=request.checkpoints,
        max_timestamps=request.max_timestamps,
    )
    load = partial(
        find_clean_end,
        store,
        config=config,
        cleaner=cleaner,
        now_ms=request.now_ms,
        log_start_checkpoint=request.checkpoints.log_start_offset or 0,
    )
    if request.verified_end is not None:
        state = replace(state, log_end=request.verified_end)
    elif request.always_loads and request.is_closed:
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
        max_timestamps=max_timestamps,
    )
    return newest_timestamp(store, state, is_closed=False)


# Retention's changes of files, in an order safe to interrupt anywhere.
#
# The log start has risen before, in the checkpoint of the log directory. Then come the epochs, the
# new segment if all old ones go, and, oldest first, the segments: each file is deleted, or gets the
# suffix ``.deleted``, the records before their indexes. A loader that finds a part of this done
# drops the ``.deleted`` files and indexes without records, and what is left lies below the log
# start: the next sweep takes it. The next run of ours does both.

# The records last: a segment that has them has its indexes.
_NEW_SEGMENT_SUFFIXES = (TIME_INDEX_SUFFIX, OFFSET_INDEX_SUFFIX, LOG_SUFFIX)

_REASONS = {
    Predicate.LOG_START: "retention: below the log start offset",
    Predicate.SIZE: "retention: the log is larger than retention.bytes",
    Predicate.TIME: "retention: older than retention.ms",
}


def plan_steps(
    state: PartitionState, plan: RetentionPlan, *, unlink: bool = True
) -> tuple[Operation, ...]:
    """Return what happens to segments and snapshots; the epochs come before it.

    Args:
        unlink: Whether files are deleted, also those that an earlier deletion left with the suffix
            ``.deleted``. If not, they get it, and are left to the broker's next start.
    """
    return _steps(state.names, plan.removed, roll=_roll(state, plan), unlink=unlink)


def _steps(
    names: Collection[str],
    removed: Iterable[tuple[int, Predicate]],
    *,
    roll: Iterable[Operation] = (),
    unlink: bool,
) -> tuple[Operation, ...]:
    leftovers = [
        DeleteFile(name=name, reason="leftover of a deletion that was decided before")
        for name in sorted(names)
        if _is_leftover(name, names) and (unlink or not name.endswith(DELETED_SUFFIX))
    ]
    gone: list[Operation] = []
    for predicate, some in groupby(removed, key=lambda each: each[1]):
        files = tuple(name for base, _ in some for name in _files_of(base) if name in names)
        why = _REASONS[predicate]
        if unlink:
            gone.append(DeleteFiles(names=files, reason=why))
        else:
            gone += [
                RenameFile(source=name, target=name + DELETED_SUFFIX, reason=why) for name in files
            ]
    if gone:
        gone.append(SyncDirectory(reason="from here on the segments are gone"))
    return (*leftovers, *roll, *gone)


def _files_of(base: int) -> tuple[str, ...]:
    """Return the files of a segment in the order in which they go. The snapshot is the first one:
    nothing would tell a second run that it belonged to a segment."""
    return snapshot_file(base), *(segment_file(base, suffix) for suffix in SEGMENT_SUFFIXES)


def plan_known(
    store: LogStore,
    names: Collection[str],
    counts: Iterable[int],
    *,
    log_start_checkpoint: int | None,
    unlink: bool = True,
) -> tuple[CommitPlan, tuple[int, ...], int]:
    """Return what happens to a partition of which it is known how many segments go, not all.

    Args:
        names: Of its files.
        counts: How many of the oldest segments each predicate takes, in their order.

    Returns:
        (steps, removed, log_start_offset): base offsets of what goes, and the first offset that may
        be read afterwards.
    """
    bases = [offset_of(name) or 0 for name in sorted_logs(names)]
    reasons = [each for each, count in zip(Predicate, counts, strict=True) for _ in range(count)]
    start = max(log_start_checkpoint or 0, bases[len(reasons)])
    epochs = plan_epochs(store, start) if LEADER_EPOCH_FILE in names else ()
    removed = tuple(bases[: len(reasons)])
    steps = _steps(names, zip(removed, reasons, strict=True), unlink=unlink)
    return CommitPlan(location=store.location, operations=(*epochs, *steps)), removed, start


def plan_epochs(store: LogStore, log_start_offset: int) -> tuple[Operation, ...]:
    """Return the leader epoch file's change for a raised log start.

    Args:
        store: The partition; it has such a file.
    """
    data = store.read_file(LEADER_EPOCH_FILE, limit_bytes=MAX_LEADER_EPOCH_BYTES)
    try:
        cache = LeaderEpochCache(parse_leader_epochs(data, file=LEADER_EPOCH_FILE))
    except ValueError as error:
        raise CheckpointError(LEADER_EPOCH_FILE, 0, f"expected no negative numbers: {error}") from (
            error
        )
    is_changed = cache.truncate_from_start(log_start_offset)
    content = encode_leader_epochs(cache.entries)
    if not is_changed or content == data:
        return ()
    return (WriteFile(name=LEADER_EPOCH_FILE, content=content, reason="the log start has risen"),)


def _is_leftover(name: str, names: Collection[str]) -> bool:
    """Whether a file is left over from an interrupted deletion. A log loader removes such a file
    too."""
    if name.endswith(DELETED_SUFFIX):
        return not name.endswith(CHECKPOINT_DELETED_SUFFIX)
    base = offset_of(name) if name.endswith(INDEX_SUFFIXES) else None
    return base is not None and log_file(base) not in names


def _roll(state: PartitionState, plan: RetentionPlan) -> tuple[Operation, ...]:
    """Return what makes a new active segment, if every segment goes."""
    base = plan.roll_offset
    if base is None:
        return ()
    if base in plan.removed_base_offsets:
        raise RollError(state.location, base, "a segment with bytes, but no records, begins there")
    reason = "every segment goes: the log goes on in an empty one"
    files = [segment_file(base, suffix) for suffix in _NEW_SEGMENT_SUFFIXES]
    return (
        *(CreateEmptyFile(name=name, reason=reason) for name in files),
        SyncDirectory(reason=reason),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Sweep:
    """The retention of a partition at rest: decision and file operations."""

    state: PartitionState
    decision: RetentionPlan  # what goes, and what keeps the rest
    steps: CommitPlan  # operations on files; none where there is nothing to do

    @property
    def is_due(self) -> bool:
        """Whether anything is to be done."""
        return not self.steps.is_empty

    @property
    def first_base_offset(self) -> int:
        """Base offset of the first segment afterwards."""
        decision = self.decision
        if decision.roll_offset is not None:
            return decision.roll_offset
        return self.state.segments[len(decision.removals)].base_offset

    @property
    def segments_after(self) -> int:
        """How many segments the log has afterwards."""
        return max(1, len(self.state.segments) - len(self.decision.removals))


def plan_sweep(
    store: LogStore,
    config: LogConfig,
    cleaner: CleanerConfig,
    request: SweepRequest,
    *,
    unlink: bool = True,
) -> Sweep:
    """Observe a partition at rest and plan its retention.

    Nothing is written, and nothing but tails of indexes is read, unless something goes: then what a
    broker's load reads.

    Args:
        store: The partition; it was closed cleanly.
        cleaner: For the expiry of producers, where they have to be written down.
    """
    rules = RetentionRules.of(config)
    state = observe_retention(store, config, cleaner, request)
    decision = plan_retention(state, rules, now_ms=request.now_ms)
    if request.verified_end is None:
        check_ages(
            store,
            state.names,
            rules,
            decision,
            now_ms=request.now_ms,
            is_closed=request.is_closed,
        )
    steps = plan_steps(state, decision, unlink=unlink)
    before: tuple[Operation, ...] = ()
    if decision.removals and LEADER_EPOCH_FILE in state.names:
        before = plan_epochs(store, decision.log_start_offset)
    roll = decision.roll_offset
    if roll is not None and snapshot_file(roll) not in state.names:
        # The records that the producers would be known from are about to go.
        before += _plan_snapshot(store, config, cleaner, request, end_offset=roll)
    return Sweep(
        state=state,
        decision=decision,
        steps=CommitPlan(location=store.location, operations=(*before, *steps)),
    )


def _plan_snapshot(
    store: LogStore,
    config: LogConfig,
    cleaner: CleanerConfig,
    request: SweepRequest,
    *,
    end_offset: int,
) -> tuple[Operation, ...]:
    """Load the log; return what writes a producer snapshot at its end."""
    log = load_log(
        store,
        config=config,
        cleaner=cleaner,
        now_ms=request.now_ms,
        log_start_checkpoint=request.checkpoints.log_start_offset or 0,
    )
    if not log.producers:
        # A snapshot of nobody has nothing to keep; whether there is one, Kafka's next load decides.
        return ()
    name = snapshot_file(end_offset)
    return tuple(
        step for step in log.operations if isinstance(step, WriteFile) and step.name == name
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class RetainResult:
    """What a deletion pass did."""

    deleted_segments: int
    log_start_offset: int  # first offset that may be read
    log_end_offset: int
    segments: int
    size: int

    @classmethod
    def of(cls, decision: RetentionPlan, log: LoadedLog) -> "RetainResult":
        """Return the result of a pass."""
        return cls(
            deleted_segments=len(decision.removals),
            log_start_offset=log.log_start_offset,
            log_end_offset=log.log_end_offset,
            segments=len(log.segments),
            size=log.size_bytes,
        )


@located
def plan_retain(  # the inputs of Kafka's deletion pass
    store: LogStore,
    *,
    config: LogConfig,
    cleaner: CleanerConfig,
    now_ms: int,
    log_start_checkpoint: int = 0,
    high_watermark: int | None = None,
    log_start_offset: int | None = None,
) -> tuple[RetentionPlan, LoadedLog]:
    """Load a log, make Kafka's deletion pass over it, and close it. It was closed cleanly; nothing
    is written.

    Args:
        cleaner: For the expiry of producers, and limits of decompression.
        log_start_checkpoint: The partition's entry in the log-start checkpoint, 0 without one.
        high_watermark: Brought into the log; None for its end.
        log_start_offset: Where the log is to start, as after DeleteRecords; None for where it does.

    Returns:
        (decision, log): what goes, and the log afterwards.
    """
    rules = RetentionRules.of(config)
    loader = LogLoader(
        store,
        config=config,
        cleaner=cleaner,
        now_ms=now_ms,
        log_start_checkpoint=log_start_checkpoint,
        clean_shutdown=True,
    )
    log = loader.load()
    watermark = log.log_end_offset if high_watermark is None else high_watermark
    watermark = min(max(watermark, log.log_start_offset), log.log_end_offset)
    if log_start_offset is not None:
        if log_start_offset > watermark:
            raise OffsetOutOfRangeError(
                log.directory_name, log_start_offset, log.log_start_offset, watermark + 1
            )
        _raise_log_start(log, log_start_offset)
    names = frozenset(log.view.names)
    decision = retain_log(log, rules, now_ms=now_ms, high_watermark=watermark)
    check_ages(store, names, rules, decision, now_ms=now_ms)
    return decision, log.close(high_watermark=watermark)


def retain_log(
    log: LoadingLog,
    rules: RetentionRules,
    *,
    now_ms: int,
    high_watermark: int,
    unlink: bool = True,
) -> RetentionPlan:
    """Make Kafka's deletion pass over the view of a loaded log."""
    state = _state_of(log, high_watermark)
    decision = plan_retention(state, rules, now_ms=now_ms)
    if not decision.removals:
        return decision
    _raise_log_start(log, decision.log_start_offset)
    log.write_epochs()
    apply_steps(log.view, plan_steps(state, decision, unlink=unlink))
    removed = set(decision.removed_base_offsets)
    base_offsets = [base for base in log.base_offsets if base not in removed]
    log.base_offsets = base_offsets or [decision.log_start_offset]
    log.producers.forget_swept(removed)
    return decision


def apply_steps(view: DirectoryView, steps: tuple[Operation, ...]) -> None:
    """Plan the steps of a sweep on a loaded log's view."""
    for step in steps:
        match step:
            case CreateEmptyFile():
                view.write(step.name, b"", step.reason)
            case RenameFile():
                view.rename(step.source, step.target, step.reason)
            case DeleteFile() | DeleteFiles():
                for name in changed_names(step):
                    view.delete_now(name, step.reason)
            case SyncDirectory():
                view.sync(step.reason)
            case _:
                raise TypeError(f"no step of a sweep: {type(step).__name__}")


@located
def plan_retain_loaded(
    store: LogStore, loaded: LoadedLog, *, config: LogConfig, cleaner: CleanerConfig, now_ms: int
) -> tuple[RetentionPlan, LoadedLog]:
    """Make the deletion pass over a log loaded for a former change. Nothing is written.

    Args:
        store: The partition; what was done before is on the disk.
        loaded: The log as it was loaded then. A second load would see another one where the log
            starts at its end.

    Returns:
        (decision, log): as `plan_retain`.
    """
    log = LoadingLog(store, config=config, cleaner=cleaner, now_ms=now_ms)
    log.base_offsets = sorted(
        offset
        for name in log.view.names
        if name.endswith(LOG_SUFFIX) and (offset := offset_of(name)) is not None
    )
    log.log_start_offset = loaded.log_start_offset
    log.log_end_offset = loaded.log_end_offset
    log.recovery_point = loaded.recovery_point
    watermark, rules, names = loaded.high_watermark, RetentionRules.of(config), set(log.view.names)
    decision = retain_log(log, rules, now_ms=now_ms, high_watermark=watermark)
    check_ages(store, names, rules, decision, now_ms=now_ms)
    return decision, log.close(high_watermark=watermark)


def _raise_log_start(log: LoadingLog, offset: int) -> None:
    if offset > log.log_start_offset:
        log.log_start_offset = offset
        log.recovery_point = max(log.recovery_point, offset)
        log.truncate_epochs(start=offset)


def _state_of(log: LoadingLog, high_watermark: int) -> PartitionState:
    """Return a loaded log as retention sees it."""
    described = [
        describe_segment(log.view, base, needs_max_timestamp=True, needs_first_timestamp=False)
        for base in log.base_offsets
    ]
    return PartitionState(
        location=log.location,
        segments=tuple(
            ObservedSegment(
                base_offset=segment.base_offset,
                size_bytes=segment.size_bytes,
                modified_ms=segment.modified_ms,
                max_timestamp=segment.max_timestamp,
            )
            for segment in described
        ),
        log_start_offset=log.log_start_offset,
        high_watermark=high_watermark,
        file_names=frozenset(log.view.names),
        log_end=log.log_end_offset,
    )
