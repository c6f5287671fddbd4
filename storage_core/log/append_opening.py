"""A partition directory made ready for appends: begun or loaded, and its active segment opened."""

import random
from dataclasses import dataclass
from pathlib import Path

from storage_core.clock import Clock
from storage_core.commit import Plan, commit
from storage_core.config import CleanerConfig, LogConfig
from storage_core.errors import StorageError
from storage_core.filenames import LOG_SUFFIX, kind_of
from storage_core.log.append_epochs import AppendEpochs
from storage_core.log.append_files import AppendFiles, LocalAppendFiles
from storage_core.log.append_snapshots import AppendSnapshots
from storage_core.log.batch_lookup import find_first_batch_timestamp
from storage_core.log.loaded_log import LoadedLog
from storage_core.log.local_log import LocalLog, plan_first_segment
from storage_core.log.log_loader import LogLoader
from storage_core.log.producer_append import ActiveProducers
from storage_core.store.local import PUBLIC_MODE, LocalStore, make_folder


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenedLog:
    """The parts of a log that takes appends.

    Attributes:
        store: Its directory.
        local: Its segments.
        epochs: Its leader epochs.
        producers: Its producers.
        snapshots: Their snapshots.
        log_start_offset: First offset that may be read.
        loaded_txns: Where transactions begin that were open when the log was loaded.
    """

    store: LocalStore
    local: LocalLog
    epochs: AppendEpochs
    producers: ActiveProducers
    snapshots: AppendSnapshots
    log_start_offset: int
    loaded_txns: frozenset[int]


def open_for_appends(  # noqa: PLR0913 - a broker says as much
    directory: Path,
    *,
    partition: str,
    config: LogConfig,
    cleaner: CleanerConfig,
    clock: Clock,
    log_start_offset: int,
    recovery_point: int,
    clean_shutdown: bool,
    files: AppendFiles | None,
    dice: random.Random,
) -> OpenedLog:
    """Load the log of a directory, or begin one; see UnifiedLog.open.

    Raises:
        RecoveryRequiredError: The log says that it was closed cleanly, and was not.
        PylogError: It cannot be loaded.
    """
    try:
        make_folder(directory, mode=PUBLIC_MODE)
    except OSError as error:
        raise StorageError(str(directory), error.strerror or str(error)) from error
    store = LocalStore(directory)
    is_new = not any(kind_of(file.name) == LOG_SUFFIX for file in store.list_files())
    if is_new:
        commit(plan_first_segment(store.location, log_start_offset), store)
    now_ms = clock.now_ms()
    loader = LogLoader(
        store,
        config=config,
        cleaner=cleaner,
        now_ms=now_ms,
        log_start_checkpoint=log_start_offset,
        recovery_point=recovery_point,
        clean_shutdown=clean_shutdown,
        may_repair=not clean_shutdown,
    )
    loaded = loader.load().close(high_watermark=0)
    commit(Plan(location=store.location, operations=loaded.operations), store)
    end = loaded.log_end_offset
    return OpenedLog(
        store=store,
        local=LocalLog(
            partition,
            store,
            LocalAppendFiles(store) if files is None else files,
            config,
            loaded,
            first_batch_timestamp=find_first_batch_timestamp(
                store, loaded.active_segment.base_offset
            ),
            recovery_point=_durable_end(
                loaded, recovery_point, is_new=is_new, clean_shutdown=clean_shutdown
            ),
            is_new=is_new,
            now_ms=now_ms,
            dice=dice,
        ),
        epochs=AppendEpochs(partition, store, loaded.epochs),
        producers=ActiveProducers(loaded.producers),
        snapshots=AppendSnapshots(
            store,
            loaded.snapshot_offsets,
            map_end=end,
            log_start_offset=loaded.log_start_offset,
        ),
        log_start_offset=loaded.log_start_offset,
        loaded_txns=frozenset(
            entry.current_txn_first_offset
            for entry in loaded.producers
            if entry.current_txn_first_offset >= 0
        ),
    )


def _durable_end(loaded: LoadedLog, checkpoint: int, *, is_new: bool, clean_shutdown: bool) -> int:
    """Return the offset up to which a log that was just loaded is on the disk."""
    if is_new:
        return max(min(checkpoint, loaded.log_end_offset), loaded.log_start_offset)
    # What was closed cleanly is durable whole.
    return loaded.log_end_offset if clean_shutdown else loaded.recovery_point
