"""Aborted transactions and last stable offset of a log at rest, for committed reads.

A directory with its companions (transaction indexes, producer snapshots) says it cheaply, as it
does to a broker. A copy that lacks them, or whose indexes are damaged, is read instead: the headers
of all batches tell the same, because every transaction's data and marker are in the log.
"""

from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass

import numpy as np

from storage_core.config import CleanerConfig, LogConfig
from storage_core.errors import PylogError, StorageError
from storage_core.filenames import LOG_SUFFIX, SNAPSHOT_SUFFIX, kind_of, offset_of
from storage_core.formats.control import ControlType
from storage_core.index.transaction_index import AbortedTxn, collect_aborted
from storage_core.log.log_loader import load_log
from storage_core.records.batch_table import BatchTable
from storage_core.records.reader import CrcCheck, Tail, scan_windows
from storage_core.store.base import LogStore


@dataclass(frozen=True, slots=True, kw_only=True)
class CommittedView:
    """What a committed read of a log needs to know.

    Attributes:
        aborted: Aborted transactions by the base offset of the segment with their marker, in
            offset order; a segment without any may be missing.
        last_stable_offset: Where a committed read ends.
    """

    aborted: tuple[tuple[int, tuple[AbortedTxn, ...]], ...]
    last_stable_offset: int

    def aborted_between(self, first_offset: int, end_offset: int) -> list[AbortedTxn]:
        """Return the aborted transactions that reach into [first_offset, end_offset).

        Args:
            first_offset: At least the base offset of the segment that is read first.
            end_offset: Just past the last offset that is read.
        """
        # A transaction's marker lies at or above the offset of interest, so its index does not
        # lie below the segment of that offset.
        bases = [base for base, _ in self.aborted if base <= first_offset]
        floor = max(bases, default=0)
        indexes = [transactions for base, transactions in self.aborted if base >= floor]
        return collect_aborted(indexes, fetch_offset=first_offset, upper_bound_offset=end_offset)


def load_committed_view(
    store: LogStore, *, now_ms: int, log_start_checkpoint: int = 0
) -> CommittedView:
    """Find out which transactions of a log were aborted, and where committed data ends.

    Args:
        store: The partition directory.
        now_ms: The run's clock, epoch milliseconds.
        log_start_checkpoint: The partition's entry in the log-start checkpoint, 0 without one.

    Raises:
        PylogError: The log's batches themselves cannot be read, or the store failed.
    """
    has_snapshot = any(kind_of(file.name) == SNAPSHOT_SUFFIX for file in store.list_files())
    if has_snapshot:
        try:
            log = load_log(
                store,
                config=LogConfig(),
                cleaner=CleanerConfig(),
                now_ms=now_ms,
                log_start_checkpoint=log_start_checkpoint,
            )
        except StorageError:
            raise
        except PylogError:
            return scan_committed_view(store)
        return CommittedView(
            aborted=tuple((segment.base_offset, segment.aborted) for segment in log.segments),
            last_stable_offset=log.last_stable_offset,
        )
    return scan_committed_view(store)


def scan_committed_view(store: LogStore) -> CommittedView:
    """Find the same from the headers of all batches.

    Raises:
        PylogError: A segment is damaged, or the store failed.
    """
    names = [file.name for file in store.list_files() if kind_of(file.name) == LOG_SUFFIX]
    scan = _TransactionScan()
    aborted = []
    for name in sorted(names, key=lambda name: offset_of(name) or 0):
        found: list[AbortedTxn] = []
        with closing(store.open_file(name)) as reader:
            for window in scan_windows(reader, crc=CrcCheck.SKIP, tail=Tail.STOP):
                found.extend(scan.add(window.batches))
        aborted.append((offset_of(name) or 0, tuple(found)))
    return CommittedView(aborted=tuple(aborted), last_stable_offset=scan.last_stable_offset)


class _TransactionScan:
    """The transactions that are open, batch by batch in offset order."""

    def __init__(self) -> None:
        self._first_offsets: dict[int, int] = {}
        self._end_offset = 0

    @property
    def last_stable_offset(self) -> int:
        """Where the oldest open transaction began, else the end of what was seen."""
        return min(self._first_offsets.values(), default=self._end_offset)

    def add(self, batches: BatchTable) -> Iterator[AbortedTxn]:
        """Look at the next batches and yield the aborted transactions that end in them."""
        for row in np.flatnonzero(batches.is_transactional).tolist():
            producer_id = int(batches.producer_id[row])
            offset = int(batches.base_offset[row])
            if not batches.is_control[row]:
                self._first_offsets.setdefault(producer_id, offset)
                continue
            first_offset = self._first_offsets.pop(producer_id, None)
            if first_offset is not None and batches.control_type[row] == ControlType.ABORT:
                yield AbortedTxn(
                    producer_id=producer_id,
                    first_offset=first_offset,
                    last_offset=offset,
                    last_stable_offset=min(self._first_offsets.values(), default=offset + 1),
                )
        if len(batches):
            self._end_offset = int(batches.last_offset[-1]) + 1
