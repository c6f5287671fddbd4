"""Find a time's offset in a log at rest."""

from collections.abc import Sequence
from contextlib import closing
from typing import NamedTuple

import numpy as np

from storage_core.filenames import TIME_INDEX_SUFFIX, log_file, segment_file
from storage_core.formats.index_entries import TIME_INDEX_ENTRY
from storage_core.index.segment_indexes import read_entries
from storage_core.log.batch_search import (
    MAX_INDEX_BYTES,
    ListedSegment,
    find_start_position,
)
from storage_core.records.columns import decode_records
from storage_core.records.payload import Limits
from storage_core.records.reader import Tail, scan_windows
from storage_core.store.base import FileReader, LogStore

_WINDOW_BYTES = 1 << 20


class TimedOffset(NamedTuple):
    """A record that a search by time found."""

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
        segments: In offset order.
        log_start_offset: Records below it do not count.
        limits: Bounds on a batch's decompressed size.

    Returns:
        Its offset, or None if every record is older.
    """
    for number, segment in enumerate(segments):
        newest, last_older = _look_up(store, segment, target_ms)
        is_active = number == len(segments) - 1
        if not is_active and newest is not None and newest < target_ms:
            continue
        # All records up to the last older entry's offset are older.
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
    """Return a time index's last timestamp and last older relative offset. Zeros at the end of a
    preallocated index do not count."""
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


def find_record_from(  # what to search, for what, and up to where
    reader: FileReader,
    *,
    start: int,
    end: int,
    target_ms: int,
    first_offset: int,
    with_control: bool,
    limits: Limits,
) -> TimedOffset | None:
    """Return a stretch's first record at or after a timestamp.

    Args:
        end: Where the stretch ends; a batch that reaches past it does not count.
        first_offset: Records below it do not count.
        with_control: Whether markers count, as they do to Kafka.
        limits: Bounds on a batch's decompressed size.
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
