"""The ages of segments: what time indexes say of them, and whether their records agree."""

from collections.abc import Collection, Iterable
from contextlib import closing

from storage_core.errors import ContradictedAgeError
from storage_core.filenames import (
    OFFSET_INDEX_SUFFIX,
    TIME_INDEX_SUFFIX,
    log_file,
    segment_file,
)
from storage_core.formats.batch_v2 import NO_TIMESTAMP
from storage_core.formats.index_entries import TIME_INDEX_ENTRY
from storage_core.index.segment_indexes import TimeEntry, TimeIndex, read_last_entry
from storage_core.log.batch_search import ListedSegment, sample_times
from storage_core.maintenance.partition_state import ObservedSegment
from storage_core.store.base import LogStore


def read_last_time(
    store: LogStore, names: Collection[str], base_offset: int, *, is_closed: bool
) -> tuple[TimeEntry, int]:
    """Return a time index's last entry and the file's length."""
    time_name = segment_file(base_offset, TIME_INDEX_SUFFIX)
    tail, size_bytes = b"", 0
    # A missing time index counts as an empty one, as for Kafka's loader.
    if time_name in names:
        with closing(store.open_file(time_name)) as reader:
            tail = read_last_entry(reader, TIME_INDEX_ENTRY, is_closed=is_closed)
            size_bytes = reader.size_bytes
    return TimeIndex.parse(base_offset, tail).last_entry, size_bytes


def check_segment_ages(
    store: LogStore,
    names: Collection[str],
    segments: Iterable[ObservedSegment],
    *,
    limit_ms: int,
) -> None:
    """Refuse segments of which an age says more than their records.

    Args:
        segments: Taken for older than the limit.
        limit_ms: The time from which on a record is too young, epoch milliseconds.
    """
    for segment in segments:
        if segment.size_bytes:
            _check_age(store, names, segment, limit_ms)


def _check_age(
    store: LogStore, names: Collection[str], segment: ObservedSegment, limit_ms: int
) -> None:
    base = segment.base_offset
    last, index_bytes = read_last_time(store, names, base, is_closed=True)
    listed = ListedSegment(
        base_offset=base,
        size_bytes=segment.size_bytes,
        has_offset_index=segment_file(base, OFFSET_INDEX_SUFFIX) in names,
        has_time_index=index_bytes > 0,
    )
    times = sample_times(store, listed, last.offset)
    file, position = log_file(base), 0
    if index_bytes:
        file = segment_file(base, TIME_INDEX_SUFFIX)
        position = max(index_bytes // TIME_INDEX_ENTRY.itemsize - 1, 0) * TIME_INDEX_ENTRY.itemsize
    actual = f"the last entry, {last.timestamp} ms of offset {last.offset}"
    if last.timestamp <= NO_TIMESTAMP:
        actual = f"no entry, and a file of {segment.modified_ms} ms"
    elif last.timestamp != times.at_offset and times.newest > NO_TIMESTAMP:
        held = "no batch" if times.at_offset is None else f"a batch of {times.at_offset} ms"
        raise ContradictedAgeError(
            f"{store.location}/{file}", position, f"{held} at offset {last.offset}", actual
        )
    # Older than the limit, not as old as it.
    if times.newest >= limit_ms:
        raise ContradictedAgeError(
            f"{store.location}/{file}",
            position,
            f"an entry for a batch of {times.newest} ms",
            actual,
        )
