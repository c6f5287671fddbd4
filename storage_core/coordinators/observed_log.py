"""A log's start, end and open transactions, for comparison with groups."""

from dataclasses import dataclass, replace

import numpy as np

from storage_core.checkpoint.checkpoints import PartitionCheckpoints
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
from storage_core.store.base import LogStore


@dataclass(frozen=True, slots=True, kw_only=True)
class ObservedLog:
    """A log beside which commits and transactions are looked at."""

    bounds: LogBounds
    # Transactions without an end marker, the oldest first.
    open_transactions: tuple[OpenTransaction, ...]


def observe_log(
    store: LogStore,
    *,
    now_ms: int,
    max_transaction_timeout_ms: int,
    checkpoints: PartitionCheckpoints,
    may_be_tiered: bool = True,
) -> ObservedLog:
    """Observe a log by its producer snapshots, else by batch headers.

    Args:
        max_transaction_timeout_ms: The cluster's ``transaction.max.timeout.ms``.
        checkpoints: The partition's entries in the checkpoints.
        may_be_tiered: Whether an earlier log start in them is no old entry.
    """
    log_start_checkpoint = checkpoints.log_start_offset or 0
    if not may_be_tiered:
        checkpoints = replace(checkpoints, log_start_offset=None)
    log = load_by_snapshots(store, now_ms=now_ms, log_start_checkpoint=log_start_checkpoint)
    if log is not None:
        return ObservedLog(
            bounds=_bounds(log.log_start_offset, log.log_end_offset, checkpoints),
            open_transactions=list_open_transactions(
                log.producers,
                now_ms=now_ms,
                max_transaction_timeout_ms=max_transaction_timeout_ms,
            ),
        )
    names = sorted_logs(file.name for file in store.list_files())
    bases = [offset_of(name) or 0 for name in names]
    log_start = max([log_start_checkpoint, *bases[:1]])
    log_end = max(bases, default=log_start)
    transactions = OpenTransactions(keeps_ended=False)
    epochs: dict[int, int] = {}
    for name in names:
        for batches in scan_batch_tables(store, name):
            # Only transactional batches are visited one by one.
            for row in np.flatnonzero(batches.is_transactional).tolist():
                producer_id = int(batches.producer_id[row])
                offset = int(batches.base_offset[row])
                epochs[producer_id] = int(batches.producer_epoch[row])
                if batches.is_control[row]:
                    transactions.end(producer_id, offset)
                else:
                    data = OpenSpan(offset, int(batches.max_timestamp[row]))
                    transactions.extend(producer_id, data)
            if len(batches):
                log_end = int(batches.last_offset[-1]) + 1
    oldest_first = sorted(transactions.spans.items(), key=lambda item: item[1].first_offset)
    return ObservedLog(
        bounds=_bounds(log_start, log_end, checkpoints),
        open_transactions=tuple(
            OpenTransaction(
                producer_id=producer_id,
                producer_epoch=epochs[producer_id],
                first_offset=span.first_offset,
                last_timestamp=span.newest_ms,
                age_ms=now_ms - span.newest_ms,
                is_late=is_late(
                    span.newest_ms,
                    now_ms=now_ms,
                    max_transaction_timeout_ms=max_transaction_timeout_ms,
                ),
            )
            for producer_id, span in oldest_first
        ),
    )


def _bounds(local_start: int, log_end: int, checkpoints: PartitionCheckpoints) -> LogBounds:
    in_tier = checkpoints.start_in_tier(local_start)
    return LogBounds(
        log_start=local_start if in_tier is None else in_tier,
        log_end=log_end,
        high_watermark=checkpoints.high_watermark,
        local_start=None if in_tier is None else local_start,
    )
