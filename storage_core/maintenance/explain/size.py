"""Why a partition is so big: which bytes there are, and which rule each part waits for."""

from collections.abc import Iterable

from storage_core.config import LogConfig
from storage_core.filenames import DELETED_SUFFIX, LOG_SUFFIX, kind_of
from storage_core.log.loaded_log import LoadedLog
from storage_core.maintenance.explain.answers import About, Statement, tells
from storage_core.store.base import FileInfo

_ABOUT = About.SIZE


def explain_size(
    files: Iterable[FileInfo],
    log: LoadedLog,
    config: LogConfig,
    *,
    first_dirty_offset: int | None,
    removable_bytes: int,
) -> list[Statement]:
    """Say what the bytes of a partition directory are.

    Args:
        files: Its listing.
        log: The partition, loaded.
        config: Its topic's configuration.
        first_dirty_offset: Where its dirty section begins, None for a log that is not compacted.
        removable_bytes: What retention would remove now.
    """
    listed = list(files)
    records = sum(file.size_bytes for file in listed if kind_of(file.name) == LOG_SUFFIX)
    waiting = sum(file.size_bytes for file in listed if file.name.endswith(DELETED_SUFFIX))
    others = sum(file.size_bytes for file in listed) - records - waiting
    active = log.active_segment
    statements = [
        tells(
            _ABOUT,
            "RECORDS",
            f"{records} bytes of records in {len(log.segments)} segments, {others} bytes of "
            "indexes and small files beside them",
            records_bytes=records,
            other_bytes=others,
            segments=len(log.segments),
        ),
        tells(
            _ABOUT,
            "ACTIVE_SEGMENT",
            f"{active.size_bytes} bytes are in the active segment: compaction never takes them, "
            "retention only with all others",
            active_bytes=active.size_bytes,
            segment_bytes=config.segment_bytes,
        ),
    ]
    if first_dirty_offset is not None:
        closed = [s for s in log.segments if s is not active]
        clean = sum(s.size_bytes for s in closed if s.base_offset < first_dirty_offset)
        dirty = sum(s.size_bytes for s in closed) - clean
        text = (
            f"{clean} bytes were cleaned before: one record of each key is left; {dirty} bytes in "
            "closed segments were not"
        )
        statements.append(tells(_ABOUT, "DIRTY", text, clean_bytes=clean, dirty_bytes=dirty))
    if removable_bytes:
        text = f"{removable_bytes} bytes would go by retention now"
        statements.append(tells(_ABOUT, "REMOVABLE", text, removable_bytes=removable_bytes))
    below = [
        s
        for s, following in zip(log.segments, log.segments[1:], strict=False)
        if following.base_offset <= log.log_start_offset
    ]
    if below:
        size = sum(s.size_bytes for s in below)
        text = f"{size} bytes lie below the log start offset {log.log_start_offset}, unreadable"
        statements.append(tells(_ABOUT, "BELOW_LOG_START", text, unreadable_bytes=size))
    if waiting:
        text = (
            f"{waiting} bytes are in .deleted files, which a broker's start or `pylog purge` "
            "removes"
        )
        statements.append(tells(_ABOUT, "WAITING_FOR_PURGE", text, deleted_bytes=waiting))
    return statements
