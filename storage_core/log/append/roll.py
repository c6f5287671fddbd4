"""When a log begins a new segment."""

import random
from dataclasses import dataclass

from storage_core.formats.batch_v2 import NO_TIMESTAMP
from storage_core.formats.index_entries import MAX_RELATIVE_OFFSET


@dataclass(frozen=True, slots=True, kw_only=True)
class RollParams:
    """What an append brings to the decision."""

    max_segment_ms: int  # age at which a segment is closed
    max_segment_bytes: int  # size that no segment exceeds
    max_timestamp: int  # largest timestamp of the append, NO_TIMESTAMP for none
    last_offset: int
    append_bytes: int
    now_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentAge:
    """What the active segment brings to the decision."""

    base_offset: int
    size_bytes: int
    first_batch_timestamp: int  # largest timestamp of its first batch, NO_TIMESTAMP for none
    created_ms: int  # when it was created or, since, opened
    jitter_ms: int  # by how much its age limit is cut
    is_index_full: bool  # whether the offset or the time index takes no further entry


def time_waited_for_roll_ms(segment: SegmentAge, params: RollParams) -> int:
    """Return the age of a segment at an append.

    It is measured in the records' time, from the segment's first batch to the append; where the
    first batch has no timestamp, by the clock.
    """
    if segment.first_batch_timestamp > NO_TIMESTAMP:
        return params.max_timestamp - segment.first_batch_timestamp
    return params.now_ms - segment.created_ms


def should_roll(segment: SegmentAge, params: RollParams) -> bool:
    """Whether an append has to go to a new segment."""
    waited_ms = time_waited_for_roll_ms(segment, params)
    relative_offset = params.last_offset - segment.base_offset
    return (
        segment.size_bytes > params.max_segment_bytes - params.append_bytes
        or (segment.size_bytes > 0 and waited_ms > params.max_segment_ms - segment.jitter_ms)
        or segment.is_index_full
        or not 0 <= relative_offset <= MAX_RELATIVE_OFFSET
    )


def choose_segment_jitter_ms(
    dice: random.Random, *, segment_jitter_ms: int, segment_ms: int
) -> int:
    """Return a random part of ``segment.jitter.ms`` below ``segment.ms``; 0 without jitter."""
    if segment_jitter_ms == 0:
        return 0
    return dice.randrange(2**31) % min(segment_jitter_ms, segment_ms)


def choose_roll_offset(*, first_offset: int | None, last_offset: int) -> int:
    """Return the base offset that an append wants for its segment.

    Of legacy entries that bring their own offsets the first is not known before they are opened:
    then the base is as low as the last offset allows. A roll never goes below the log's end.
    """
    return last_offset - MAX_RELATIVE_OFFSET if first_offset is None else first_offset
