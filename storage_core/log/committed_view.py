"""Aborted transactions and last stable offset of a log at rest. Reads of committed records need
both.

What aborted is told by the markers: the headers of the batches have them, and every transaction's
data and marker are in the log. Transaction indexes are not asked. A segment has none unless a
transaction aborted in it, so that one which got lost looks like one that never was, and what it
named would come back as if it had been committed. Where committed data ends is asked of a directory
with producer snapshots as a broker does; a copy without them is read for that, too.
"""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from storage_core.config import CleanerConfig, LogConfig
from storage_core.errors import ChangedWhileReadError, PylogError, StorageError
from storage_core.filenames import (
    SNAPSHOT_SUFFIX,
    TIME_INDEX_SUFFIX,
    kind_of,
    log_file,
    offset_of,
    segment_file,
    sorted_logs,
)
from storage_core.formats.control import ControlType
from storage_core.formats.index_entries import TIME_INDEX_ENTRY
from storage_core.index.segment_indexes import AbortedTxn, collect_aborted, read_entries
from storage_core.log.batch_search import MAX_INDEX_BYTES, ListedSegment, find_start_position
from storage_core.log.loaded_log import LoadedLog
from storage_core.log.log_loader import load_log
from storage_core.log.open_transactions import OpenTransactions
from storage_core.records.batch_table import BatchTable
from storage_core.records.payload import Limits, decode_records
from storage_core.records.reader import Tail, scan_headers, scan_windows
from storage_core.store.base import FileReader, LogStore

# Find a time's offset in a log at rest.

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


@dataclass(frozen=True, slots=True, kw_only=True)
class CommittedView:
    """What a committed read of a log needs to know."""

    # Aborted transactions by the base offset of the segment with their marker, in offset order; a
    # segment without any may be missing.
    aborted: tuple[tuple[int, tuple[AbortedTxn, ...]], ...]
    last_stable_offset: int

    def aborted_between(self, first_offset: int, end_offset: int) -> list[AbortedTxn]:
        """Return the aborted transactions that reach into [first_offset, end_offset)."""
        # A transaction's marker is at or above the wanted offset, so its index entry is not below
        # that offset's segment.
        bases = [base for base, _ in self.aborted if base <= first_offset]
        floor = max(bases, default=0)
        indexes = [transactions for base, transactions in self.aborted if base >= floor]
        return collect_aborted(indexes, fetch_offset=first_offset, upper_bound_offset=end_offset)


def load_committed_view(
    store: LogStore, *, now_ms: int, log_start_checkpoint: int = 0
) -> CommittedView:
    """Return the aborted transactions of a log and its last stable offset.

    Args:
        log_start_checkpoint: The partition's entry in the log-start checkpoint, 0 without one.
    """
    scanned = scan_committed_view(store)
    log = load_by_snapshots(store, now_ms=now_ms, log_start_checkpoint=log_start_checkpoint)
    return scanned if log is None else replace(scanned, last_stable_offset=log.last_stable_offset)


def find_last_stable_offset(store: LogStore, *, now_ms: int, log_start_checkpoint: int = 0) -> int:
    """Return where committed data ends; arguments and errors as of `load_committed_view`."""
    log = load_by_snapshots(store, now_ms=now_ms, log_start_checkpoint=log_start_checkpoint)
    return (scan_committed_view(store) if log is None else log).last_stable_offset


def scan_committed_view(store: LogStore) -> CommittedView:
    """Find the same from the headers of all batches."""
    scan = _StableOffsetScan()
    aborted = []
    for name in sorted_logs(file.name for file in store.list_files()):
        transactions: list[AbortedTxn] = []
        for batches in scan_batch_tables(store, name):
            transactions.extend(scan.add(batches))
        aborted.append((offset_of(name) or 0, tuple(transactions)))
    return CommittedView(aborted=tuple(aborted), last_stable_offset=scan.last_stable_offset)


def find_aborted(tables: Iterable[BatchTable], *, end_offset: int) -> tuple[list[AbortedTxn], int]:
    """Find the aborted transactions among batches that follow each other.

    Args:
        tables: The batches, in offset order, from any on, to the log's end if it comes to that: it
            is read on until every transaction with data below end_offset has ended.
        end_offset: Just past the last offset of interest.

    Returns:
        In the order of their markers, and up to where they are all of them: end_offset or more,
        or where the oldest transaction begins that is open at the log's end, else that end. A
        transaction that began before the first batch begins, as far as this tells, with its first
        data that was seen.
    """
    scan = _StableOffsetScan()
    aborted: list[AbortedTxn] = []
    for batches in tables:
        aborted.extend(scan.add(batches))
        if scan.last_stable_offset >= end_offset:
            break
    return aborted, scan.last_stable_offset


def scan_batch_tables(
    store: LogStore, name: str, *, start: int = 0, end: int | None = None
) -> Iterator[BatchTable]:
    """Yield the batch headers of a segment, a table at a time. A table is valid until the next one.

    Args:
        end: Where to stop; None for the end of the file.
    """
    with closing(store.open_file(name)) as reader:
        for window in scan_headers(reader, start=start, end=end, tail=Tail.ZEROS):
            yield window.batches


def has_snapshots(store: LogStore) -> bool:
    """Whether any producer snapshot is there that a load could begin with."""
    return any(kind_of(file.name) == SNAPSHOT_SUFFIX for file in store.list_files())


def load_by_snapshots(
    store: LogStore, *, now_ms: int, log_start_checkpoint: int
) -> LoadedLog | None:
    """Load a log by its producer snapshots.

    Args:
        log_start_checkpoint: The partition's entry in the log-start checkpoint, 0 without one.

    Returns:
        None where it has no snapshot, and where a broker would recover it first: such a log is read
        as far as its batches go.
    """
    if not has_snapshots(store):
        return None
    try:
        return load_log(
            store,
            config=LogConfig(),
            cleaner=CleanerConfig(),
            now_ms=now_ms,
            log_start_checkpoint=log_start_checkpoint,
        )
    except (StorageError, ChangedWhileReadError):
        raise
    except PylogError:
        return None


class _StableOffsetScan:
    """The transactions that are open, batch by batch in offset order."""

    def __init__(self) -> None:
        self._transactions = OpenTransactions(keeps_ended=False)
        self._end_offset = 0

    @property
    def last_stable_offset(self) -> int:
        """Start of the oldest open transaction, else the end seen so far."""
        first = self._transactions.first_unstable_offset
        return self._end_offset if first is None else first

    def add(self, batches: BatchTable) -> list[AbortedTxn]:
        """Add the next batches; return the aborted transactions that end there."""
        transactions, first_offsets = self._transactions, self._transactions.first_offsets
        rows = np.flatnonzero(batches.is_transactional)
        columns = (
            batches.producer_id[rows].tolist(),
            batches.base_offset[rows].tolist(),
            batches.is_control[rows].tolist(),
            (batches.control_type[rows] == ControlType.ABORT).tolist(),
        )
        aborted = []
        for producer_id, offset, is_control, is_abort in zip(*columns, strict=True):
            first_offset = first_offsets.get(producer_id)
            if not is_control:
                if first_offset is None:
                    transactions.begin(producer_id, offset)
            elif first_offset is not None:
                if is_abort:
                    aborted.append(transactions.abort(producer_id, first_offset, offset))
                transactions.complete(producer_id, first_offset, offset)
        if len(batches):
            self._end_offset = int(batches.last_offset[-1]) + 1
        return aborted
