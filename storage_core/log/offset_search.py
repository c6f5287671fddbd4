"""Offsets for points in time, and Kafka's special targets, of a log at rest."""

import enum
from collections.abc import Sequence
from contextlib import closing
from typing import NamedTuple

import numpy as np

from storage_core.errors import OffsetNotAvailableError
from storage_core.filenames import TIME_INDEX_SUFFIX, log_file, segment_file
from storage_core.formats.batch_v2 import NO_LEADER_EPOCH, NO_TIMESTAMP
from storage_core.formats.index_entries import TIME_INDEX_ENTRY
from storage_core.formats.legacy import MAGIC_V0
from storage_core.index.segment_indexes import read_entries
from storage_core.log.batch_search import (
    MAX_INDEX_BYTES,
    ListedSegment,
    checked_start,
    find_start_position,
)
from storage_core.log.log_reader import Isolation, LogReader
from storage_core.records.columns import decode_records
from storage_core.records.payload import Limits
from storage_core.records.reader import Tail, read_whole, scan_headers, scan_windows
from storage_core.store.base import FileReader, LogStore

_WINDOW_BYTES = 1 << 20
NO_TIERED_OFFSET = -1


class TimedOffset(NamedTuple):
    """A record that a search by time found.

    Attributes:
        timestamp: Its timestamp, epoch milliseconds; NO_TIMESTAMP for an offset that was not
            found by one.
        offset: Its offset.
        leader_epoch: Of its batch, NO_LEADER_EPOCH if that says none.
    """

    timestamp: int
    offset: int
    leader_epoch: int


def find_offset_for_time(
    store: LogStore,
    segments: Sequence[ListedSegment],
    *,
    target_ms: int,
    log_start_offset: int,
    limits: Limits,
) -> int | None:
    """Find the first record at or after a point in time.

    As Kafka does, a segment whose time index says that it is older is passed over. One without a
    time index is read, and so is the active one: a broker that died has not finished its index.
    Unlike in Kafka, a segment that turns out to hold no such record does not end the search.

    Args:
        store: The partition directory.
        segments: In offset order.
        target_ms: Epoch milliseconds.
        log_start_offset: Records below it do not count.
        limits: What a batch may expand to.

    Returns:
        Its offset, or None if every record is older.

    Raises:
        PylogError: A batch that had to be read is corrupt, or the store failed.
    """
    for number, segment in enumerate(segments):
        newest, last_older = _look_up(store, segment, target_ms)
        is_active = number == len(segments) - 1
        if not is_active and newest is not None and newest < target_ms:
            continue
        # All records up to the offset of the last entry that is older are older.
        offset = log_start_offset
        if last_older is not None:
            offset = max(offset, segment.base_offset + last_older)
        record = _scan(store, segment, offset, target_ms, log_start_offset, limits)
        if record is not None:
            return record
    return None


def _look_up(
    store: LogStore, segment: ListedSegment, target_ms: int
) -> tuple[int | None, int | None]:
    """Return a time index's last timestamp, and the relative offset of its last older entry.

    The zeros in which a preallocated one ends do not count.
    """
    newest = older = last_seen = None
    if not segment.has_time_index:
        return newest, older
    name = segment_file(segment.base_offset, TIME_INDEX_SUFFIX)
    for entries in read_entries(
        store, name, TIME_INDEX_ENTRY, limit_bytes=MAX_INDEX_BYTES, with_hole=False
    ):
        timestamps, offsets = entries["timestamp"], entries["relative_offset"]
        used = np.flatnonzero(timestamps > 0)
        is_older = np.flatnonzero(timestamps < target_ms)
        if used.size:
            newest = int(timestamps[used[-1]])
            counted = is_older[is_older <= used[-1]]
            older = int(offsets[counted[-1]]) if counted.size else last_seen
        if is_older.size:
            last_seen = int(offsets[is_older[-1]])
    return newest, older


def find_record_from(  # noqa: PLR0913  # where, what and how far
    reader: FileReader,
    *,
    start: int,
    end: int,
    target_ms: int,
    first_offset: int,
    with_control: bool,
    limits: Limits,
) -> TimedOffset | None:
    """Return the first record of a stretch of a segment that is not older than a point in time.

    Args:
        reader: The open .log file.
        start: Position of a batch.
        end: Where the stretch ends; a batch that reaches past it does not count.
        target_ms: Epoch milliseconds.
        first_offset: Records below it do not count.
        with_control: Whether markers count, as they do to Kafka.
        limits: What a batch may expand to.

    Raises:
        PylogError: A batch that had to be read is corrupt, or the store failed.
    """
    for window in scan_windows(
        reader, start=start, end=end, window_bytes=_WINDOW_BYTES, tail=Tail.ZEROS
    ):
        batches = window.batches
        wanted = batches.max_timestamp >= target_ms
        if not with_control:
            wanted &= ~batches.is_control
        for records in decode_records(window, wanted, limits):
            is_match = (records.timestamp >= target_ms) & (records.offset >= first_offset)
            matches = np.flatnonzero(is_match)
            if matches.size:
                row = int(matches[0])
                return TimedOffset(
                    timestamp=int(records.timestamp[row]),
                    offset=int(records.offset[row]),
                    leader_epoch=int(batches.leader_epoch[records.batch[row]]),
                )
    return None


def _scan(
    store: LogStore,
    segment: ListedSegment,
    offset: int,
    target_ms: int,
    log_start_offset: int,
    limits: Limits,
) -> int | None:
    position = find_start_position(store, segment, offset)
    with closing(store.open_file(log_file(segment.base_offset))) as reader:
        record = find_record_from(
            reader,
            start=position,
            end=segment.size_bytes,
            target_ms=target_ms,
            first_offset=log_start_offset,
            with_control=False,
            limits=limits,
        )
    return None if record is None else record.offset


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
        reader: The log.
        target: Epoch milliseconds, or an OffsetTarget.
        limits: What a batch may expand to.

    Raises:
        PylogError: A batch that had to be read is corrupt, or the store failed.
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
        reader: The log.
        target: Epoch milliseconds, or an OffsetTarget.
        isolation: Of the client; LOG_END for a replica.
        limits: What a batch may expand to.
        epoch_start_offset: Where the leader's epoch began, None if that is not known.

    Raises:
        OffsetNotAvailableError: The answer lies beyond the high watermark, which has not reached
            the start of the leader's epoch yet and so may still be behind what clients have seen.
        PylogError: A batch that had to be read is corrupt, or the store failed.
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
        reader: The log.
        target: Segments modified at or before it count, epoch milliseconds; or LATEST, EARLIEST.
        max_count: The most that are returned.
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
    for segment in reader.log.segments:
        if segment.largest_timestamp < target_ms:
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
    segment = max(reader.log.segments, key=lambda each: each.max_timestamp)
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
