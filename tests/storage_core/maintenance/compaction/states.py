"""Loaded logs and segments from plain values, without files."""

from collections.abc import Mapping, Sequence
from typing import Any

from storage_core.config import CleanerConfig, LogConfig
from storage_core.log.loaded_log import LoadedLog, SegmentState
from storage_core.maintenance.compaction.plan import CleanableRange, CompactionPlan, plan_compaction
from tests.kit.builders import SOME_TIME_MS

HASH_KEY = bytes(range(16))


def segment(base_offset: int, size_bytes: int = 100, **fields: Any) -> SegmentState:
    """A segment without anything but a size."""
    defaults: dict[str, Any] = {
        "log_file": f"{base_offset:020d}.log",
        "offset_index_file": f"{base_offset:020d}.index",
        "modified_ms": SOME_TIME_MS,
        "offset_index_bytes": 0,
        "time_index_bytes": 0,
        "max_timestamp": SOME_TIME_MS,
        "first_batch_timestamp": SOME_TIME_MS,
        "aborted": (),
        "has_txn_index": False,
    }
    return SegmentState(base_offset=base_offset, size_bytes=size_bytes, **defaults | fields)


def log_of(segments: Sequence[SegmentState], **fields: Any) -> LoadedLog:
    """A log of these segments, which ends ten offsets above the last one's base."""
    end = segments[-1].base_offset + 10
    defaults: dict[str, Any] = {
        "location": "/t-0",
        "log_start_offset": segments[0].base_offset,
        "log_end_offset": end,
        "recovery_point": end,
        "high_watermark": end,
        "last_stable_offset": fields.get("high_watermark", end),
        "producers": (),
        "epochs": (),
        "snapshot_offsets": frozenset(),
        "operations": (),
    }
    return LoadedLog(segments=tuple(segments), **defaults | fields)


def compacted(overrides: Mapping[str, object] | None = None) -> LogConfig:
    """The configuration of a compacted topic."""
    settings = {"cleanup.policy": "compact"} | {k: str(v) for k, v in (overrides or {}).items()}
    return LogConfig.from_topic_overrides(settings)


def plan_of(
    segments: Sequence[SegmentState],
    *,
    overrides: Mapping[str, object] | None = None,
    first_dirty_offset: int = 0,
    first_uncleanable_offset: int | None = None,
    cleaner: CleanerConfig | None = None,
    **fields: Any,
) -> CompactionPlan:
    """The plan of a round up to the active segment."""
    end = segments[-1].base_offset
    cleanable = CleanableRange(
        first_dirty_offset=first_dirty_offset,
        first_uncleanable_offset=(
            end if first_uncleanable_offset is None else first_uncleanable_offset
        ),
        clean_bytes=0,
        cleanable_bytes=1,
        max_compaction_delay_ms=0,
        checkpoint_is_invalid=False,
        not_due=None,
    )
    return plan_compaction(
        log_of(segments, **fields),
        compacted(overrides),
        cleaner or CleanerConfig(),
        cleanable,
        now_ms=SOME_TIME_MS,
        hash_key=HASH_KEY,
    )
