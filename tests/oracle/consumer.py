"""What a consumer gets from a partition: Kafka reads, this applies the consumer's two rules.

A consumer never sees control batches. With ``read_committed`` it gets only what lies below the
last stable offset, and the broker hands it the aborted transactions: from such a transaction's
first offset until its producer's abort marker, that producer's transactional batches are skipped.
"""

import heapq
from collections.abc import Iterator
from typing import Any, Final

import jpype

from tests.oracle.jvm import java, kafka_failures
from tests.oracle.partition import OpenPartition
from tests.oracle.records import INTERNAL, ReadRecord, read_record

FETCH_BYTES: Final = 64 * 1024 * 1024


def consume(partition: OpenPartition, *, read_committed: bool) -> list[ReadRecord]:
    """Return every record from the log start on that a consumer of that isolation level gets.

    The high watermark bounds both levels; it has to be set.
    """
    with kafka_failures():
        return list(_consumed(partition.log, read_committed))


def _consumed(log: Any, read_committed: bool) -> Iterator[ReadRecord]:
    isolation = java("org.apache.kafka.server.storage.log.FetchIsolation").valueOf(
        "TXN_COMMITTED" if read_committed else "HIGH_WATERMARK"
    )
    position = int(log.logStartOffset())
    while True:
        fetched = log.read(jpype.JLong(position), FETCH_BYTES, isolation, True)
        aborted = _aborted_transactions(fetched)
        aborting: set[int] = set()
        batches = 0
        for batch in fetched.records.batches():
            batches += 1
            for record in _visible(batch, aborted, aborting):
                if record.offset >= position:
                    yield record
            position = max(position, int(batch.nextOffset()))
        if not batches:
            return


def _aborted_transactions(fetched: Any) -> list[tuple[int, int]]:
    """Return a heap of (first offset, producer id)."""
    if not fetched.abortedTransactions.isPresent():
        return []
    transactions = [
        (int(t.firstOffset()), int(t.producerId())) for t in fetched.abortedTransactions.get()
    ]
    heapq.heapify(transactions)
    return transactions


def _visible(
    batch: Any, aborted: list[tuple[int, int]], aborting: set[int]
) -> Iterator[ReadRecord]:
    producer_id = int(batch.producerId())
    while aborted and aborted[0][0] <= int(batch.lastOffset()):
        aborting.add(heapq.heappop(aborted)[1])
    if batch.isControlBatch():
        if _is_abort_marker(batch):
            aborting.discard(producer_id)
        return
    if batch.isTransactional() and producer_id in aborting:
        return
    yield from (read_record(record) for record in batch)


def _is_abort_marker(batch: Any) -> bool:
    kinds = java(INTERNAL + "ControlRecordType")
    return any(kinds.parse(record.key()) == kinds.ABORT for record in batch)
