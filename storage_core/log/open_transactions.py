"""Transactions that have begun in a log and not ended: what holds committed reads back."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from storage_core.log.producer_snapshot import ProducerEntry

# Kafka's defaults: the longest that a producer may ask for, and what its coordinator gets on top
# to end a transaction that is over.
MAX_TRANSACTION_TIMEOUT_MS: Final = 900_000
LATE_TRANSACTION_BUFFER_MS: Final = 300_000


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenTransaction:
    """One open transaction of a partition.

    Attributes:
        producer_id: Whose it is.
        producer_epoch: The producer's epoch.
        first_offset: Where it began: no committed read goes beyond the smallest of these.
        last_timestamp: Of its newest batch, epoch milliseconds.
        age_ms: Time since then; negative if the producer's clock is ahead.
        is_late: Whether its coordinator should have ended it by now. Such a transaction may hang:
            nobody will end it, unless a person does.
    """

    producer_id: int
    producer_epoch: int
    first_offset: int
    last_timestamp: int
    age_ms: int
    is_late: bool


def list_open_transactions(
    producers: Iterable[ProducerEntry],
    *,
    now_ms: int,
    max_transaction_timeout_ms: int = MAX_TRANSACTION_TIMEOUT_MS,
) -> tuple[OpenTransaction, ...]:
    """Return the open transactions of a log, the oldest first.

    Args:
        producers: Of a loaded log (``LoadedLog.producers``).
        now_ms: The run's clock, epoch milliseconds.
        max_transaction_timeout_ms: The cluster's ``transaction.max.timeout.ms``.
    """
    limit_ms = max_transaction_timeout_ms + LATE_TRANSACTION_BUFFER_MS
    found = [
        OpenTransaction(
            producer_id=producer.producer_id,
            producer_epoch=producer.producer_epoch,
            first_offset=producer.current_txn_first_offset,
            last_timestamp=producer.last_timestamp,
            age_ms=now_ms - producer.last_timestamp,
            is_late=producer.last_timestamp > 0 and now_ms - producer.last_timestamp > limit_ms,
        )
        for producer in producers
        if producer.current_txn_first_offset >= 0
    ]
    return tuple(sorted(found, key=lambda transaction: transaction.first_offset))


def has_late_transaction(transactions: Iterable[OpenTransaction]) -> bool:
    """Return whether the oldest open transaction is late, which a broker counts the partition by.

    Args:
        transactions: As `list_open_transactions` returns them.
    """
    oldest = min(transactions, key=lambda transaction: transaction.first_offset, default=None)
    return oldest is not None and oldest.is_late
