"""Explain one partition directory: cleaning, deletion and size."""

import secrets
from collections.abc import Iterable, Mapping
from dataclasses import replace

from storage_core.config import CleanerConfig, LogConfig
from storage_core.errors import (
    ContradictedAgeError,
    NegativeTimestampError,
    PylogError,
    RecoveryRequiredError,
    StorageError,
)
from storage_core.filenames import DELETED_SUFFIX, LOG_SUFFIX, kind_of
from storage_core.log.log_loader import LogLoader
from storage_core.log.settled_store import PlannedStore, settle
from storage_core.maintenance.compaction.candidates import CleanRequest, choose_range
from storage_core.maintenance.compaction.guards import refuse_negative_timestamps
from storage_core.maintenance.compaction.partition import load_for_round
from storage_core.maintenance.compaction.plan import plan_compaction
from storage_core.maintenance.explain.answers import (
    About,
    Explanation,
    Statement,
    blocks,
    held_back,
    tells,
    unknowable,
)
from storage_core.maintenance.explain.cleaning import explain_cleaning
from storage_core.maintenance.explain.deletion import explain_deletion
from storage_core.maintenance.partition_state import PartitionState
from storage_core.maintenance.retention.observe import (
    SweepRequest,
    check_ages,
    observe_retention,
)
from storage_core.maintenance.retention.plan import RetentionRules, plan_retention
from storage_core.store.base import FileInfo, LogStore
from storage_core.wording import count_text


def explain_partition(
    store: LogStore,
    *,
    config: LogConfig,
    cleaner: CleanerConfig,
    request: CleanRequest,
    max_timestamps: Mapping[int, int] | None = None,
    is_closed: bool = True,
) -> Explanation:
    """Explain a partition; nothing is written, no record is read.

    Args:
        cleaner: Settings of compaction that do not belong to a topic.
        max_timestamps: Largest timestamps, as for `SweepRequest`.
        is_closed: Whether the log is closed, as for `SweepRequest`.
    """
    if config.remote_storage_enable:
        text = "remote.storage.enable is true: which segments were uploaded cannot be seen here"
        return unknowable("TIERED", text, "the topic is not tiered any more")
    listing = store.list_files()
    try:
        store = settle(store)
        log = load_for_round(store, config, cleaner, request)
    except RecoveryRequiredError as error:
        return unknowable("RECOVERY_REQUIRED", str(error), "the partition is recovered")
    except PylogError as error:
        text = f"the log cannot be loaded: {error}"
        return unknowable("UNCLEANABLE", text, "what is wrong with its files is mended")
    loaded = PartitionState.of_log(log)
    cleanable = choose_range(loaded, config, request)
    cleaning, statements = explain_cleaning(
        loaded, config, request, cleanable, producers=log.producers
    )
    if cleanable.is_due and cleaner.enabled:
        round_ = plan_compaction(
            log, config, cleaner, cleanable, now_ms=request.now_ms, hash_key=secrets.token_bytes(16)
        )
        try:
            refuse_negative_timestamps(store, round_)
        except NegativeTimestampError as error:
            negative = blocks(
                About.CLEANING,
                "NEGATIVE_TIMESTAMP",
                f"{error}; Kafka's cleaner gives the log up there",
                until="the record is gone, or --set keep.negative.timestamps=true is said",
            )
            cleaning, statements = held_back(negative), [negative, *statements]
    if config.is_compacted and not cleaner.enabled:
        off = blocks(
            About.CLEANING,
            "CLEANER_DISABLED",
            "log.cleaner.enable is false: nothing is compacted",
            until="log.cleaner.enable is true",
        )
        cleaning, statements = held_back(off), [off, *statements]
    rules = RetentionRules.of(config)
    sweep = SweepRequest(
        now_ms=request.now_ms,
        log_start_checkpoint=request.log_start_offset or 0,
        high_watermark=request.high_watermark,
        max_timestamps=max_timestamps,
        is_closed=is_closed,
    )
    state = observe_retention(store, config, cleaner, sweep)
    plan = plan_retention(state, rules, now_ms=request.now_ms)
    deletion, more = explain_deletion(state, plan, rules, now_ms=request.now_ms)
    removable_bytes = plan.removed_bytes
    try:
        check_ages(store, state.names, rules, plan, now_ms=request.now_ms, is_closed=is_closed)
    except ContradictedAgeError as error:
        age = blocks(
            About.DELETION,
            "AGE_CONTRADICTED",
            f"{error}; a broker deletes the segment all the same",
            until="its time index is rebuilt",
        )
        # What would go is no statement then.
        more = [age, *(each for each in more if each.code != "REMOVABLE")]
        deletion, removable_bytes = held_back(age), 0
    sizes = _explain_size(
        listing,
        loaded,
        config,
        first_dirty_offset=cleanable.first_dirty_offset if config.is_compacted else None,
        removable_bytes=removable_bytes,
    )
    return Explanation(answers=(cleaning, deletion), statements=(*statements, *more, *sizes))


def _explain_size(
    files: Iterable[FileInfo],
    state: PartitionState,
    config: LogConfig,
    *,
    first_dirty_offset: int | None,
    removable_bytes: int,
) -> list[Statement]:
    """Return statements about the bytes of a partition directory.

    Args:
        first_dirty_offset: Where its dirty section begins, None for a log that is not compacted.
        removable_bytes: Bytes that retention would remove now.
    """
    listed = list(files)
    records = sum(file.size_bytes for file in listed if kind_of(file.name) == LOG_SUFFIX)
    waiting = sum(file.size_bytes for file in listed if file.name.endswith(DELETED_SUFFIX))
    others = sum(file.size_bytes for file in listed) - records - waiting
    active = state.active_segment
    statements = [
        tells(
            About.SIZE,
            "RECORDS",
            f"{records} bytes of records in {count_text(len(state.segments), 'segment')}, "
            f"{others} bytes of indexes and small files beside them",
            records_bytes=records,
            other_bytes=others,
            segments=len(state.segments),
        ),
        tells(
            About.SIZE,
            "ACTIVE_SEGMENT",
            f"{active.size_bytes} bytes are in the active segment: compaction never takes them, "
            "retention only with all others",
            active_bytes=active.size_bytes,
            segment_bytes=config.segment_bytes,
        ),
    ]
    if first_dirty_offset is not None:
        closed = [s for s in state.segments if s is not active]
        clean = sum(s.size_bytes for s in closed if s.base_offset < first_dirty_offset)
        dirty = sum(s.size_bytes for s in closed) - clean
        text = (
            f"{clean} bytes were cleaned before: one record of each key is left; {dirty} bytes in "
            "closed segments were not"
        )
        statements.append(tells(About.SIZE, "DIRTY", text, clean_bytes=clean, dirty_bytes=dirty))
    if removable_bytes:
        text = f"{removable_bytes} bytes would go by retention now"
        statements.append(tells(About.SIZE, "REMOVABLE", text, removable_bytes=removable_bytes))
    below = [
        s
        for s, following in zip(state.segments, state.segments[1:], strict=False)
        if following.base_offset <= state.log_start_offset
    ]
    if below:
        size = sum(s.size_bytes for s in below)
        text = f"{size} bytes lie below the log start offset {state.log_start_offset}, unreadable"
        statements.append(tells(About.SIZE, "BELOW_LOG_START", text, unreadable_bytes=size))
    if waiting:
        text = (
            f"{waiting} bytes are in .deleted files, which a broker's start or `pylog purge` "
            "removes"
        )
        statements.append(tells(About.SIZE, "WAITING_FOR_PURGE", text, deleted_bytes=waiting))
    return statements


def explain_after_recovery(
    store: LogStore,
    *,
    config: LogConfig,
    cleaner: CleanerConfig,
    request: CleanRequest,
    recovery_point: int,
) -> Explanation:
    """Explain an unclean log directory's partition as after the broker's recovery.

    The recovery is planned, as a broker makes it, and nothing of it written: the segments from the
    recovery point on are read.

    Args:
        cleaner: Settings of compaction that do not belong to a topic.
        recovery_point: The partition's entry in the recovery-point checkpoint, 0 without one.
    """
    loader = LogLoader(
        settle(store),
        config=config,
        cleaner=cleaner,
        now_ms=request.now_ms,
        log_start_checkpoint=request.log_start_offset or 0,
        recovery_point=recovery_point,
    )
    try:
        loading = loader.load()
        repairs = loading.close().repairs
    except StorageError:
        raise
    except PylogError as error:
        text = f"a recovery would fail: {error}"
        return unknowable("UNCLEANABLE", text, "what is wrong with its files is mended")
    explanation = explain_partition(
        PlannedStore(loading.view), config=config, cleaner=cleaner, request=request
    )
    text = (
        f"a recovery would read {repairs.scanned_bytes} bytes, rebuild the indexes of "
        f"{count_text(len(repairs.rebuilt), 'segment')} and lose {repairs.lost_bytes} bytes "
        "of records"
    )
    recovery = tells(
        About.SIZE,
        "RECOVERY",
        text,
        scanned_bytes=repairs.scanned_bytes,
        rebuilt_segments=len(repairs.rebuilt),
        lost_bytes=repairs.lost_bytes,
    )
    return replace(explanation, statements=(*explanation.statements, recovery))
