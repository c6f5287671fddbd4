"""What retention and compaction would do, as far as a listing or a manifest tells: nothing is read.

A listing knows where segments begin, how large they are and when their files were written; a
manifest knows the largest timestamps, too. That decides by size exactly, and by age as well as the
files' times are those of their records. What only the records know is left open: how long the
active segment's log is, and where its transactions end.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from storage_core.config import LogConfig
from storage_core.filenames import LOG_SUFFIX, MAX_OFFSET, kind_of, offset_of
from storage_core.formats.batch_v2 import NO_TIMESTAMP
from storage_core.maintenance.compaction.candidates import CleanableRange, choose_range
from storage_core.maintenance.compaction.outlook import KnownSegment, log_as_known
from storage_core.maintenance.compaction.request import CleanRequest
from storage_core.maintenance.retention.plan import RetentionPlan, plan_retention
from storage_core.maintenance.retention.state import (
    RetentionRules,
    RetentionSegment,
    RetentionState,
)
from storage_core.store.base import FileInfo


@dataclass(frozen=True, slots=True, kw_only=True)
class SurveyState:
    """A partition as its listing or manifest shows it.

    Attributes:
        location: Path or URL of its directory.
        logs: Its ``.log`` files in order of base offsets, at least one.
        timestamps: Largest timestamps by base offset, where they are known; for the others the
            time of the file counts, as it does for Kafka where records have none.
        log_start_offset: Of the checkpoint, None without.
        high_watermark: Of the checkpoint; None for the log's end.
        cleaner_offset: Of the checkpoint, None without.
    """

    location: str
    logs: Sequence[FileInfo]
    timestamps: Mapping[int, int]
    log_start_offset: int | None
    high_watermark: int | None
    cleaner_offset: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Survey:
    """What would be done to a partition.

    Attributes:
        size_bytes: Of all segments.
        segments: How many there are.
        retention: What would go; of what is compacted after its round, as if that took nothing.
        cleanable: What would be cleaned; None where its topic is not compacted.
    """

    size_bytes: int
    segments: int
    retention: RetentionPlan
    cleanable: CleanableRange | None


def log_files(files: Iterable[FileInfo]) -> list[FileInfo]:
    """Return the segments of a listing in order of base offsets."""
    found = [file for file in files if kind_of(file.name) == LOG_SUFFIX]
    return sorted(found, key=lambda file: offset_of(file.name) or 0)


def survey_partition(state: SurveyState, config: LogConfig, *, now_ms: int) -> Survey:
    """Say what retention and compaction would do.

    Args:
        state: The partition.
        config: Of its topic, not tiered.
        now_ms: The run's clock, epoch milliseconds.
    """
    return Survey(
        size_bytes=sum(log.size_bytes for log in state.logs),
        segments=len(state.logs),
        retention=_survey_retention(state, config, now_ms),
        cleanable=_survey_compaction(state, config, now_ms) if config.is_compacted else None,
    )


def _survey_retention(state: SurveyState, config: LogConfig, now_ms: int) -> RetentionPlan:
    bases = [offset_of(log.name) or 0 for log in state.logs]
    start = max(state.log_start_offset or 0, bases[0])
    # The active segment ends above its base, nobody knows where; what is at its base is the least.
    end = max(bases[-1], state.high_watermark or 0)
    return plan_retention(
        RetentionState(
            location=state.location,
            segments=tuple(
                RetentionSegment(
                    base_offset=base,
                    size_bytes=log.size_bytes,
                    modified_ms=log.modified_ms,
                    files=(log.name,),
                    max_timestamp=state.timestamps.get(base, NO_TIMESTAMP),
                )
                for base, log in zip(bases, state.logs, strict=True)
            ),
            log_start_offset=start,
            log_end_offset=end,
            high_watermark=state.high_watermark,
            snapshot_offsets=frozenset(),
            leftovers=(),
            has_epoch_file=False,
        ),
        RetentionRules.of(config),
        now_ms=now_ms,
    )


def _survey_compaction(state: SurveyState, config: LogConfig, now_ms: int) -> CleanableRange:
    bases = [offset_of(log.name) or 0 for log in state.logs]
    start = max(state.log_start_offset or 0, bases[0])
    stable = bases[-1] if state.high_watermark is None else state.high_watermark
    log = log_as_known(
        state.location,
        [
            KnownSegment(
                base_offset=base,
                size_bytes=log.size_bytes,
                modified_ms=log.modified_ms,
                largest_timestamp=state.timestamps.get(base),
            )
            for base, log in zip(bases, state.logs, strict=True)
        ],
        log_start_offset=start,
        log_end_offset=MAX_OFFSET,
        stable_offset=stable,
    )
    return choose_range(
        log,
        config,
        CleanRequest(
            now_ms=now_ms,
            high_watermark=state.high_watermark,
            log_start_offset=state.log_start_offset,
            cleaner_checkpoint=state.cleaner_offset,
        ),
    )
