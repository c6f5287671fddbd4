"""From a point in time to an offset: Kafka's search, for logs that may lack their time indexes."""

from collections.abc import Sequence
from contextlib import closing

import numpy as np
from numpy.typing import NDArray

from storage_core.filenames import TIME_INDEX_SUFFIX, log_file, segment_file
from storage_core.formats.index_entries import TIME_INDEX_ENTRY
from storage_core.log.end_offset import MAX_INDEX_BYTES
from storage_core.log.position_search import ListedSegment, find_start_position
from storage_core.records.columns import decode_records
from storage_core.records.payload import Limits
from storage_core.records.reader import Tail, scan_windows
from storage_core.store.base import LogStore

_WINDOW_BYTES = 1 << 20


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
        times = _read_times(store, segment)
        is_active = number == len(segments) - 1
        if not is_active and len(times) and int(times["timestamp"][-1]) < target_ms:
            continue
        # All records up to the offset of the last entry that is older are older.
        older = np.flatnonzero(times["timestamp"] < target_ms)
        offset = log_start_offset
        if older.size:
            last_older = segment.base_offset + int(times["relative_offset"][older[-1]])
            offset = max(offset, last_older)
        found = _scan(store, segment, offset, target_ms, log_start_offset, limits)
        if found is not None:
            return found
    return None


def _read_times(store: LogStore, segment: ListedSegment) -> NDArray[np.void]:
    """Return the entries of a time index, without the zeros of one that is preallocated."""
    if not segment.has_time_index:
        return np.empty(0, TIME_INDEX_ENTRY)
    name = segment_file(segment.base_offset, TIME_INDEX_SUFFIX)
    data = store.read_file(name, limit_bytes=MAX_INDEX_BYTES)
    entries = np.frombuffer(data, TIME_INDEX_ENTRY, len(data) // TIME_INDEX_ENTRY.itemsize)
    used = np.flatnonzero(entries["timestamp"] > 0)
    return entries[: used[-1] + 1 if used.size else 0]


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
        for window in scan_windows(
            reader,
            start=position,
            end=segment.size_bytes,
            window_bytes=_WINDOW_BYTES,
            tail=Tail.STOP,
        ):
            wanted = (window.batches.max_timestamp >= target_ms) & ~window.batches.is_control
            for records in decode_records(window, wanted, limits):
                matches = np.flatnonzero(
                    (records.timestamp >= target_ms) & (records.offset >= log_start_offset)
                )
                if matches.size:
                    return int(records.offset[matches[0]])
    return None
