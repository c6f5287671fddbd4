"""Truncation of one partition directory to an offset, as a replica does it."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from storage_core.commit import Plan, commit
from storage_core.config import CleanerConfig, LogConfig
from storage_core.errors import located
from storage_core.filenames import LOG_SUFFIX, kind_of, offset_of
from storage_core.json_values import OMITTED
from storage_core.log.loaded_log import LoadedLog
from storage_core.log.log_loader import LogLoader
from storage_core.log.log_truncation import truncate_log
from storage_core.store.base import LogStore
from storage_core.store.local import LocalStore


@dataclass(frozen=True, slots=True, kw_only=True)
class TruncateResult:
    """The result of a truncation.

    Attributes:
        truncated: Whether the log ended above the target.
        log_end_offset: Where it ends now.
        cleaner_checkpoint: What the partition's entry in the cleaner checkpoint should be now; None
            where none was said.
    """

    truncated: bool
    log_end_offset: int
    cleaner_checkpoint: Annotated[int | None, OMITTED] = None


def truncated_cleaner_point(point: int, *, to: int, active_before: int, active_after: int) -> int:
    """Return where compaction has to begin again after a truncation.

    What is written above the cut may hold keys of which nothing was cleaned.

    Args:
        point: Entry of the cleaner checkpoint.
        to: Where the log was cut.
        active_before: Base offset of the active segment until then.
        active_after: The same afterwards.
    """
    # A cut inside of the active segment touches nothing that a cleaner ever reads.
    return min(point, active_after) if to < active_before else point


@located
def plan_truncation(
    store: LogStore,
    *,
    config: LogConfig,
    cleaner: CleanerConfig,
    now_ms: int,
    to: int,
    log_start_offset: int = 0,
) -> tuple[bool, LoadedLog]:
    """Load a log that was closed cleanly and cut it; nothing is written.

    Args:
        store: The partition directory.
        config: The topic's configuration.
        cleaner: For the expiry of producers, and limits of decompression.
        now_ms: The run's clock, epoch milliseconds.
        to: The log's new end. A batch that reaches it goes as a whole.
        log_start_offset: The partition's entry in the log-start checkpoint, 0 without one.

    Returns:
        (truncated, log): whether the log ended above the target, and the log afterwards.

    Raises:
        PylogError: As ``LogLoader.load``.
    """
    loader = LogLoader(
        store,
        config=config,
        cleaner=cleaner,
        now_ms=now_ms,
        log_start_checkpoint=log_start_offset,
        clean_shutdown=True,
    )
    log = loader.load()
    truncated = truncate_log(log, to)
    return truncated, log.close()


@located
def truncate_partition(  # where, how, to where, and the checkpoints
    directory: Path,
    *,
    config: LogConfig,
    cleaner: CleanerConfig,
    now_ms: int,
    to: int,
    log_start_offset: int = 0,
    cleaner_checkpoint: int | None = None,
) -> TruncateResult:
    """Truncate a partition and close it cleanly.

    Args:
        directory: The partition directory.
        config: As `plan_truncation`, and so are all others.
        cleaner: See there.
        now_ms: See there.
        to: See there.
        log_start_offset: See there.
        cleaner_checkpoint: The partition's entry in the cleaner checkpoint, None without one.

    Raises:
        PylogError: As `plan_truncation`; the partition is untouched then, unless the store itself
            failed while the result was put into place.
    """
    store = LocalStore(directory)
    names = [file.name for file in store.list_files() if kind_of(file.name) == LOG_SUFFIX]
    active_before = max((offset_of(name) or 0 for name in names), default=0)
    truncated, log = plan_truncation(
        store,
        config=config,
        cleaner=cleaner,
        now_ms=now_ms,
        to=to,
        log_start_offset=log_start_offset,
    )
    commit(Plan(location=store.location, operations=log.operations), store)
    if cleaner_checkpoint is not None:
        cleaner_checkpoint = truncated_cleaner_point(
            cleaner_checkpoint,
            to=to,
            active_before=active_before,
            active_after=log.active_segment.base_offset,
        )
    return TruncateResult(
        truncated=truncated,
        log_end_offset=log.log_end_offset,
        cleaner_checkpoint=cleaner_checkpoint,
    )
