"""Answers of a log at rest to requests for offsets, as a partition's leader gives them."""

import enum
from contextlib import closing

import numpy as np

from storage_core.errors import OffsetNotAvailableError
from storage_core.formats.batch_v2 import NO_LEADER_EPOCH, NO_TIMESTAMP
from storage_core.formats.legacy import MAGIC_V0
from storage_core.log.batch_search import checked_start
from storage_core.log.committed_view import TimedOffset, find_record_from
from storage_core.maintenance.partition_state import PartitionState
from storage_core.records.payload import Limits, decode_records
from storage_core.records.reader import read_whole, scan_headers
from tests.kit.log_reader import Isolation, LogReader

_WINDOW_BYTES = 1 << 20
NO_TIERED_OFFSET = -1


class OffsetTarget(enum.IntEnum):
    """What may stand in a request for an offset instead of a time."""

    LATEST = -1
    EARLIEST = -2
    MAX_TIMESTAMP = -3
    EARLIEST_LOCAL = -4
    LATEST_TIERED = -5
    EARLIEST_PENDING_UPLOAD = -6


def find_offset(reader: LogReader, target: int, *, limits: Limits) -> TimedOffset | None:
    """Return the offset for a time or a special target, as the log itself knows it.

    A time is looked for in the first segment that says that it is young enough, by its time index
    or else by its modification time, and nowhere else: if that holds no such record, the answer is
    none. Nothing is tiered here, so that the targets for that answer NO_TIERED_OFFSET.

    Args:
        target: Epoch milliseconds, or an OffsetTarget.
    """
    log = reader.log
    match target:
        case OffsetTarget.EARLIEST | OffsetTarget.EARLIEST_LOCAL:
            first = log.epochs[0] if log.epochs else None
            covers = first is not None and first.start_offset <= log.log_start_offset
            epoch = first.epoch if first is not None and covers else NO_LEADER_EPOCH
            return TimedOffset(NO_TIMESTAMP, log.log_start_offset, epoch)
        case OffsetTarget.LATEST:
            epoch = log.epochs[-1].epoch if log.epochs else NO_LEADER_EPOCH
            return TimedOffset(NO_TIMESTAMP, log.log_end_offset, epoch)
        case OffsetTarget.LATEST_TIERED | OffsetTarget.EARLIEST_PENDING_UPLOAD:
            return TimedOffset(NO_TIMESTAMP, NO_TIERED_OFFSET, NO_LEADER_EPOCH)
        case OffsetTarget.MAX_TIMESTAMP:
            return _find_newest(reader, limits)
    return _find_by_time(reader, target, limits)


def list_offset(
    reader: LogReader,
    target: int,
    *,
    isolation: Isolation,
    limits: Limits,
    epoch_start_offset: int | None = None,
) -> TimedOffset | None:
    """Return what a partition's leader answers a client that asks for an offset.

    The latest offset is where reads of the isolation end, and an answer at or beyond that is none.

    Args:
        target: Epoch milliseconds, or an OffsetTarget.
        isolation: Of the client; LOG_END for a replica.
        epoch_start_offset: Where the leader's epoch began, None if that is not known.

    Raises:
        OffsetNotAvailableError: The answer lies beyond the high watermark, which has not reached
            the start of the leader's epoch yet and so may still be behind what clients have seen.
    """
    log = reader.log
    end = {
        Isolation.LOG_END: log.log_end_offset,
        Isolation.READ_UNCOMMITTED: log.high_watermark,
        Isolation.READ_COMMITTED: log.last_stable_offset,
    }[isolation]
    is_lagging = (
        isolation is not Isolation.LOG_END
        and epoch_start_offset is not None
        and epoch_start_offset > log.high_watermark
    )
    answer = find_offset(reader, target, limits=limits)
    if target in {OffsetTarget.EARLIEST, OffsetTarget.EARLIEST_LOCAL}:
        return answer
    if target == OffsetTarget.LATEST and answer is not None:
        answer = TimedOffset(NO_TIMESTAMP, end, answer.leader_epoch)
    if answer is None or answer.offset < end:
        return answer
    if is_lagging:
        raise OffsetNotAvailableError(
            log.location, answer.offset, log.high_watermark, epoch_start_offset or 0
        )
    return answer if target == OffsetTarget.LATEST else None


def offsets_before(
    reader: LogReader, target: int, *, max_count: int, now_ms: int
) -> tuple[int, ...]:
    """Return offsets of segments by the modification times of their files, newest first.

    This is what brokers answered version 0 of the request; tools of that age compare with it.

    Args:
        target: Segments modified at or before it count, epoch milliseconds; or LATEST, EARLIEST.
        now_ms: The age of the log end offset, which stands before the segments.
    """
    log = reader.log
    starts = [
        (max(segment.base_offset, log.log_start_offset), segment.modified_ms)
        for segment in log.segments
    ]
    if log.active_segment.size_bytes > 0:
        starts.append((log.log_end_offset, now_ms))
    match target:
        case OffsetTarget.LATEST:
            count = len(starts)
        case OffsetTarget.EARLIEST:
            count = 1
        case _:
            young = [number for number, (_, time) in enumerate(starts, 1) if time <= target]
            count = young[-1] if young else 0
    offsets = [offset for offset, _ in reversed(starts[:count])][:max_count]
    return tuple(sorted(offsets, reverse=True))


def _find_by_time(reader: LogReader, target_ms: int, limits: Limits) -> TimedOffset | None:
    first_offset = reader.log.log_start_offset
    observed = PartitionState.of_log(reader.log).segments
    for segment, seen in zip(reader.log.segments, observed, strict=True):
        if seen.largest_timestamp < target_ms:
            continue
        older = reader.indexes.time_index(segment.base_offset).look_up(target_ms)
        offset = max(older.offset, first_offset)
        with closing(reader.open_segment(segment)) as file:
            position = reader.indexes.offset_index(segment.base_offset).look_up(offset)
            start = checked_start(file, segment.base_offset, segment.size_bytes, position, offset)
            return find_record_from(
                file,
                start=start,
                end=segment.size_bytes,
                target_ms=target_ms,
                first_offset=first_offset,
                with_control=True,
                limits=limits,
            )
    return None


def _find_newest(reader: LogReader, limits: Limits) -> TimedOffset | None:
    """Find the first record with the largest timestamp, by what the time indexes say of it."""
    segment = max(reader.log.segments, key=lambda each: each.max_timestamp or NO_TIMESTAMP)
    newest = reader.indexes.time_index(segment.base_offset).last_entry
    with closing(reader.open_segment(segment)) as file:
        position = reader.indexes.offset_index(segment.base_offset).look_up(newest.offset)
        start = checked_start(
            file, segment.base_offset, segment.size_bytes, position, newest.offset
        )
        for window in scan_headers(
            file, start=start, end=segment.size_bytes, window_bytes=_WINDOW_BYTES
        ):
            batches = window.batches
            rows = np.flatnonzero(batches.max_timestamp == newest.timestamp)
            if not rows.size:
                continue
            row = int(rows[0])
            if int(batches.magic[row]) == MAGIC_V0:
                return None
            wanted = np.zeros(len(batches), np.bool_)
            wanted[row] = True
            for records in decode_records(read_whole(file, window), wanted, limits):
                matches = np.flatnonzero(records.timestamp == newest.timestamp)
                if matches.size:
                    offset = int(records.offset[matches[0]])
                    epoch = int(batches.leader_epoch[row])
                    return TimedOffset(newest.timestamp, offset, epoch)
            return None
    return None
