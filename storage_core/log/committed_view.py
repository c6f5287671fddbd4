"""Aborted transactions and last stable offset of a log at rest. Reads of committed records need
both.

What aborted is told by the markers: the headers of the batches have them, and every transaction's
data and marker are in the log. Transaction indexes are not asked. A segment has none unless a
transaction aborted in it, so that one which got lost looks like one that never was, and what it
named would come back as if it had been committed. Where committed data ends is asked of a directory
with producer snapshots as a broker does; a copy without them is read for that, too.
"""

from collections.abc import Iterable, Iterator
from contextlib import closing
from dataclasses import dataclass, replace

import numpy as np

from storage_core.config import CleanerConfig, LogConfig
from storage_core.errors import ChangedWhileReadError, PylogError, StorageError
from storage_core.filenames import SNAPSHOT_SUFFIX, kind_of, offset_of, sorted_logs
from storage_core.formats.control import ControlType
from storage_core.index.transaction_index import AbortedTxn, collect_aborted
from storage_core.log.loaded_log import LoadedLog
from storage_core.log.log_loader import load_log
from storage_core.log.open_transactions import OpenTransactions
from storage_core.records.batch_table import BatchTable
from storage_core.records.reader import Tail, scan_headers
from storage_core.store.base import LogStore


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
