"""Apply retention to one partition, at rest or loaded."""

from dataclasses import dataclass

from storage_core.commit import (
    CommitPlan,
    CreateEmptyFile,
    DeleteFile,
    Operation,
    RenameFile,
    SyncDirectory,
    WriteFile,
)
from storage_core.config import CleanerConfig, LogConfig
from storage_core.errors import OffsetOutOfRangeError, located
from storage_core.filenames import LEADER_EPOCH_FILE, LOG_SUFFIX, offset_of, snapshot_file
from storage_core.log.directory_view import DirectoryView
from storage_core.log.loaded_log import LoadedLog
from storage_core.log.loading_log import LoadingLog
from storage_core.log.log_loader import LogLoader, load_log
from storage_core.log.log_segment import describe_segment
from storage_core.maintenance.partition_state import ObservedSegment, PartitionState
from storage_core.maintenance.retention.observe import (
    SweepRequest,
    check_ages,
    observe_retention,
)
from storage_core.maintenance.retention.plan import RetentionPlan, RetentionRules, plan_retention
from storage_core.maintenance.retention.steps import plan_epochs, plan_steps
from storage_core.store.base import LogStore


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
        log_start_checkpoint=request.log_start_checkpoint,
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
            case DeleteFile():
                view.delete_now(step.name, step.reason)
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
        describe_segment(log.view, base, needs_first_timestamp=False) for base in log.base_offsets
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
