"""Truncate one partition to an offset, as a replica does."""

from dataclasses import dataclass
from typing import Annotated

from storage_core.config import CleanerConfig, LogConfig
from storage_core.errors import located
from storage_core.json_values import OMITTED
from storage_core.log.loaded_log import LoadedLog
from storage_core.log.log_loader import LogLoader
from storage_core.log.log_truncation import truncate_log
from storage_core.store.base import LogStore


@dataclass(frozen=True, slots=True, kw_only=True)
class TruncateResult:
    """The result of a truncation."""

    truncated: bool  # whether the log ended above the target
    log_end_offset: int
    # What the partition's entry in the cleaner checkpoint should be now; None where none was said.
    cleaner_checkpoint: Annotated[int | None, OMITTED] = None


def truncated_cleaner_point(point: int, *, to: int, active_before: int, active_after: int) -> int:
    """Return where compaction has to begin again after a truncation. Keys above the cut may have
    uncleaned records.

    Args:
        point: Entry of the cleaner checkpoint.
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
    cleaner_checkpoint: int | None = None,
) -> tuple[TruncateResult, LoadedLog]:
    """Load a cleanly closed log and cut it, without writing.

    Args:
        cleaner: For the expiry of producers, and limits of decompression.
        to: The log's new end. A batch that reaches it goes as a whole.
        log_start_offset: The partition's entry in the log-start checkpoint, 0 without one.
        cleaner_checkpoint: Its entry in the cleaner checkpoint, None without one.

    Returns:
        (result, log): what is different afterwards, and the log as it is then.
    """
    loader = LogLoader(
        store,
        config=config,
        cleaner=cleaner,
        now_ms=now_ms,
        log_start_checkpoint=log_start_offset,
        clean_shutdown=True,
    )
    loading = loader.load()
    active_before = loading.base_offsets[-1]
    truncated = truncate_log(loading, to)
    log = loading.close()
    if cleaner_checkpoint is not None:
        cleaner_checkpoint = truncated_cleaner_point(
            cleaner_checkpoint,
            to=to,
            active_before=active_before,
            active_after=log.active_segment.base_offset,
        )
    result = TruncateResult(
        truncated=truncated,
        log_end_offset=log.log_end_offset,
        cleaner_checkpoint=cleaner_checkpoint,
    )
    return result, log
