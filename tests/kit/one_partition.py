"""What the program does to a partition or a log directory in steps, as one call each."""

from pathlib import Path
from typing import Any

from storage_core.catalog.log_directories import LogDirectoryState
from storage_core.checkpoint.checkpoints import PartitionCheckpoints
from storage_core.commit import commit
from storage_core.config import CleanerConfig, LogConfig
from storage_core.errors import located
from storage_core.log.loaded_log import LoadedLog
from storage_core.log.log_loader import load_log
from storage_core.maintenance.compaction.partition import CleanResult, clean_and_load
from storage_core.maintenance.recovery.partition import (
    RecoverResult,
    TruncateResult,
    plan_recovery,
    plan_truncation,
)
from storage_core.maintenance.retention.partition import (
    RetainResult,
    Sweep,
    SweepRequest,
    plan_retain,
    plan_sweep,
)
from storage_core.maintenance.verification.files import sort_files
from storage_core.maintenance.verification.findings import DirectoryContext, Finding, VerifyOptions
from storage_core.maintenance.verification.partition import (
    PartitionFacts,
    fold_partition,
    verify_segments,
)
from storage_core.roots.broker import BrokerRoot
from storage_core.roots.open_root import observe_root
from storage_core.store.base import LogStore
from storage_core.store.local import LocalStore
from storage_core.threads import count_processors
from tests.kit.builders import SOME_TIME_MS


def observe_log_directory(path: Path) -> LogDirectoryState:
    """Return what lies in a log directory on this disk."""
    root = BrokerRoot(path)
    return observe_root(root, root.directories())


def load_partition(
    directory: Path,
    *,
    config: LogConfig = LogConfig(),  # noqa: B008 - it never changes
    now_ms: int = SOME_TIME_MS,
    **settings: Any,
) -> LoadedLog:
    """Load a log that was closed, and change nothing; settings are those of load_log."""
    return load_log(
        LocalStore(directory), config=config, cleaner=CleanerConfig(), now_ms=now_ms, **settings
    )


@located
def recover_partition(  # the inputs of Kafka's loader
    directory: Path,
    *,
    config: LogConfig,
    cleaner: CleanerConfig,
    now_ms: int,
    recovery_point: int = 0,
    log_start_offset: int = 0,
    clean_shutdown: bool = False,
    threads: int | None = None,
) -> RecoverResult:
    """Recover a partition and close it cleanly.

    Args:
        config: As `plan_recovery`, and so are the others.
        threads: How many threads scan a segment, None for as many as there are processors.

    Raises:
        PylogError: As `plan_recovery`; the partition is untouched then, unless the store itself
            failed while the result was put into place.
    """
    store = LocalStore(directory, is_ours=True)
    log = plan_recovery(
        store,
        config=config,
        cleaner=cleaner,
        now_ms=now_ms,
        recovery_point=recovery_point,
        log_start_offset=log_start_offset,
        clean_shutdown=clean_shutdown,
        threads=count_processors() if threads is None else threads,
    )
    commit(log.plan, store)
    return RecoverResult.of(log)


def clean_partition(directory: Path, **settings: Any) -> CleanResult:
    """Clean a partition once as Kafka does, and close it again; as `clean_and_load`."""
    return clean_and_load(directory, believes_ages=True, drops_keyless=True, **settings)[0]


def sweep_at_rest(
    store: LogStore,
    *,
    config: LogConfig,
    cleaner: CleanerConfig,
    log_start_checkpoint: int | None = None,
    high_watermark: int | None = None,
    unlink: bool = True,
    **request: Any,
) -> Sweep:
    """Plan retention of a partition at rest; as `plan_sweep`, with the fields of its request."""
    checkpoints = PartitionCheckpoints(
        log_start_offset=log_start_checkpoint, high_watermark=high_watermark
    )
    asked = SweepRequest(checkpoints=checkpoints, **request)
    return plan_sweep(store, config, cleaner, asked, unlink=unlink)


@located
def retain_partition(directory: Path, **settings: Any) -> RetainResult:
    """Make Kafka's deletion pass over a partition and close it cleanly; as `plan_retain`."""
    store = LocalStore(directory)
    decision, log = plan_retain(store, **settings)
    commit(log.plan, store)
    return RetainResult.of(decision, log)


@located
def truncate_partition(directory: Path, **settings: Any) -> TruncateResult:
    """Truncate a partition and close it cleanly; as `plan_truncation`."""
    store = LocalStore(directory)
    result, log = plan_truncation(store, **settings)
    commit(log.plan, store)
    return result


def verify_partition(
    store: LogStore,
    context: DirectoryContext,
    options: VerifyOptions,
    checkpoints: PartitionCheckpoints,
) -> tuple[PartitionFacts, list[Finding]]:
    """Verify a partition in this process: its segments one after the other, then the whole."""
    files = sort_files(store.list_files())
    facts, of_segments = verify_segments(store, files, files.segments, context, options)
    whole, of_whole = fold_partition(store, files, facts, context, options, checkpoints)
    return whole, [*of_segments, *of_whole]
