"""Why one partition directory is as it is: cleaning, deletion and size, put together."""

from collections.abc import Mapping
from dataclasses import replace

from storage_core.config import CleanerConfig, LogConfig
from storage_core.errors import PylogError, RecoveryRequiredError, StorageError
from storage_core.log.log_loader import LogLoader
from storage_core.log.settled_store import PlannedStore, settle
from storage_core.maintenance.compaction.request import CleanRequest, load_for_round
from storage_core.maintenance.explain.answers import (
    About,
    Answer,
    Explanation,
    Statement,
    blocks,
    tells,
    unknowable,
)
from storage_core.maintenance.explain.cleaning import explain_cleaning
from storage_core.maintenance.explain.deletion import explain_deletion
from storage_core.maintenance.explain.size import explain_size
from storage_core.maintenance.retention.observe import observe_retention
from storage_core.maintenance.retention.plan import plan_retention
from storage_core.maintenance.retention.state import RetentionRules
from storage_core.store.base import LogStore


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
        store: The partition.
        config: Its topic's configuration.
        cleaner: Settings of compaction that do not belong to a topic.
        request: Clock and checkpoints.
        max_timestamps: As `observe_retention`.
        is_closed: See there.

    Raises:
        StorageError: The store failed.
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
    cleaning, statements = explain_cleaning(log, config, request)
    if config.is_compacted and not cleaner.enabled:
        off = blocks(
            About.CLEANING,
            "CLEANER_DISABLED",
            "log.cleaner.enable is false: nothing is compacted",
            until="log.cleaner.enable is true",
        )
        cleaning, statements = _held(off), [off, *statements]
    rules = RetentionRules.of(config)
    state = observe_retention(
        store,
        rules,
        now_ms=request.now_ms,
        log_start_checkpoint=request.log_start_offset or 0,
        high_watermark=request.high_watermark,
        max_timestamps=max_timestamps,
        is_closed=is_closed,
    )
    plan = plan_retention(state, rules, now_ms=request.now_ms)
    deletion, more = explain_deletion(state, plan, rules, now_ms=request.now_ms)
    first_dirty = next(
        (s.facts.get("first_dirty_offset") for s in statements if "first_dirty_offset" in s.facts),
        None,
    )
    sizes = explain_size(
        listing,
        log,
        config,
        first_dirty_offset=first_dirty if isinstance(first_dirty, int) else None,
        removable_bytes=plan.removed_bytes,
    )
    return Explanation(answers=(cleaning, deletion), statements=(*statements, *more, *sizes))


def explain_after_recovery(
    store: LogStore,
    *,
    config: LogConfig,
    cleaner: CleanerConfig,
    request: CleanRequest,
    recovery_point: int,
) -> Explanation:
    """Explain a partition of an unclean log directory as it would be once a broker recovered it.

    The recovery is planned, as a broker makes it, and nothing of it written: the segments from the
    recovery point on are read.

    Args:
        store: The partition.
        config: Its topic's configuration.
        cleaner: Settings of compaction that do not belong to a topic.
        request: Clock and checkpoints.
        recovery_point: The partition's entry in the recovery-point checkpoint, 0 without one.

    Raises:
        StorageError: The store failed.
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
    found = explain_partition(
        PlannedStore(loading.view), config=config, cleaner=cleaner, request=request
    )
    text = (
        f"a recovery would read {repairs.scanned_bytes} bytes, rebuild the indexes of "
        f"{len(repairs.rebuilt)} segments and lose {repairs.truncated_bytes} bytes of records"
    )
    recovery = tells(
        About.SIZE,
        "RECOVERY",
        text,
        scanned_bytes=repairs.scanned_bytes,
        rebuilt_segments=len(repairs.rebuilt),
        lost_bytes=repairs.truncated_bytes,
    )
    return replace(found, statements=(*found.statements, recovery))


def _held(statement: Statement) -> Answer:
    return Answer(
        about=statement.about,
        is_due=False,
        held_by=statement.code,
        text=statement.text,
        condition=statement.until,
    )
