"""Where a log begins and ends, and which transactions are open in it, for who compares groups."""

from dataclasses import dataclass

import numpy as np

from storage_core.coordinators.offsets_audit import LogBounds
from storage_core.filenames import offset_of, sorted_logs
from storage_core.log.committed_view import load_by_snapshots, scan_batch_tables
from storage_core.log.open_transactions import (
    OpenSpan,
    OpenTransaction,
    OpenTransactions,
    is_late,
    list_open_transactions,
)
from storage_core.records.batch_table import BatchTable
from storage_core.store.base import LogStore


@dataclass(frozen=True, slots=True, kw_only=True)
class ObservedLog:
    """A log beside which commits and transactions are looked at.

    Attributes:
        bounds: Where it begins and ends.
        open_transactions: Those that no marker has ended, the oldest first.
    """

    bounds: LogBounds
    open_transactions: tuple[OpenTransaction, ...]


def observe_log(
    store: LogStore,
    *,
    now_ms: int,
    max_transaction_timeout_ms: int,
    log_start_checkpoint: int = 0,
    high_watermark: int | None = None,
) -> ObservedLog:
    """Observe a log: by its producer snapshots where it has some, else by all batches' headers.

    Args:
        store: The partition directory, settled.
        now_ms: The run's clock, epoch milliseconds.
        max_transaction_timeout_ms: The cluster's ``transaction.max.timeout.ms``.
        log_start_checkpoint: The partition's entry in the log-start checkpoint, 0 without one.
        high_watermark: Its entry in the replication checkpoint, None without one.

    Raises:
        PylogError: The log cannot be read.
    """
    log = load_by_snapshots(store, now_ms=now_ms, log_start_checkpoint=log_start_checkpoint)
    if log is not None:
        return ObservedLog(
            bounds=LogBounds(
                log_start=log.log_start_offset,
                log_end=log.log_end_offset,
                high_watermark=high_watermark,
            ),
            open_transactions=list_open_transactions(
                log.producers,
                now_ms=now_ms,
                max_transaction_timeout_ms=max_transaction_timeout_ms,
            ),
        )
    scan = _Scan()
    names = sorted_logs(file.name for file in store.list_files())
    bases = [offset_of(name) or 0 for name in names]
    log_start = max([log_start_checkpoint, *bases[:1]])
    scan.end_offset = max(bases, default=log_start)
    for name in names:
        for batches in scan_batch_tables(store, name):
            scan.add(batches)
    return ObservedLog(
        bounds=LogBounds(
            log_start=log_start, log_end=scan.end_offset, high_watermark=high_watermark
        ),
        open_transactions=scan.open_transactions(now_ms, max_transaction_timeout_ms),
    )


class _Scan:
    """Open transactions and the log end, batch by batch."""

    def __init__(self) -> None:
        self.end_offset = 0
        self._transactions = OpenTransactions(keeps_ended=False)
        self._epochs: dict[int, int] = {}

    def add(self, batches: BatchTable) -> None:
        """Look at the next batches; only those of transactions cost a turn each."""
        for row in np.flatnonzero(batches.is_transactional).tolist():
            producer_id = int(batches.producer_id[row])
            offset = int(batches.base_offset[row])
            self._epochs[producer_id] = int(batches.producer_epoch[row])
            if batches.is_control[row]:
                self._transactions.end(producer_id, offset)
            else:
                data = OpenSpan(offset, int(batches.max_timestamp[row]))
                self._transactions.extend(producer_id, data)
        if len(batches):
            self.end_offset = int(batches.last_offset[-1]) + 1

    def open_transactions(
        self, now_ms: int, max_transaction_timeout_ms: int
    ) -> tuple[OpenTransaction, ...]:
        """Return what is open after all batches, the oldest first."""
        return tuple(
            OpenTransaction(
                producer_id=producer_id,
                producer_epoch=self._epochs[producer_id],
                first_offset=span.first_offset,
                last_timestamp=span.newest_ms,
                age_ms=now_ms - span.newest_ms,
                is_late=is_late(
                    span.newest_ms,
                    now_ms=now_ms,
                    max_transaction_timeout_ms=max_transaction_timeout_ms,
                ),
            )
            for producer_id, span in sorted(
                self._transactions.spans.items(), key=lambda item: item[1].first_offset
            )
        )
