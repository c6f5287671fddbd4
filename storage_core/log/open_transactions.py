"""Open transactions of a log; they hold committed reads back.

Everything that follows the batches of a log keeps its transactions here, by the rules of Kafka's
ProducerStateManager. What differs lies with those who ask:

- A load, a recovery and an append (``producer_state``) know the producers, too, and refuse what
  contradicts them. A transaction that has ended counts until the high watermark passes its marker.
- A committed read of a directory without producer snapshots (``committed_view``) reads headers
  alone and refuses nothing; what has ended does not count any more.
- A verification (``maintenance.verification.transactions``) reads the segments apart from each
  other and folds what they say; it also wants to know how old an open transaction is.

Which batches belong to aborted transactions is the opposite question, asked by the cleaner and by
readers that know from the markers what aborted: ``transaction_tracker`` answers that one.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, NamedTuple

from storage_core.formats.batch_v2 import NO_TIMESTAMP
from storage_core.index.transaction_index import AbortedTxn
from storage_core.log.producer_snapshot import ProducerEntry

# Kafka's defaults: the longest timeout of a producer, and its coordinator's extra time to end a
# transaction beyond it.
MAX_TRANSACTION_TIMEOUT_MS: Final = 900_000
LATE_TRANSACTION_BUFFER_MS: Final = 300_000


class OpenSpan(NamedTuple):
    """Data of a transaction that no marker has ended yet."""

    first_offset: int
    newest_ms: int  # largest timestamp of its batches


class OpenTransactions:
    """The transactions of a log at one of its offsets.

    Args:
        keeps_ended: Whether one that has ended counts until the high watermark passes its marker.

    Attributes:
        first_offsets: By producer, where its open transaction began; for reading.
    """

    def __init__(self, *, keeps_ended: bool) -> None:
        self._keeps_ended = keeps_ended
        self.first_offsets: dict[int, int] = {}
        self._newest_ms: dict[int, int] = {}
        # By first offset: the producer, or the offset of the marker.
        self._ongoing: dict[int, int] = {}
        self._unreplicated: dict[int, int] = {}

    @property
    def spans(self) -> dict[int, OpenSpan]:
        """What is open, by producer, in the order in which it began."""
        return {
            producer_id: OpenSpan(first_offset, self._newest_ms.get(producer_id, NO_TIMESTAMP))
            for producer_id, first_offset in self.first_offsets.items()
        }

    def begin(self, producer_id: int, first_offset: int) -> None:
        """Take note that a producer's transaction begins."""
        self.first_offsets[producer_id] = first_offset
        self._ongoing[first_offset] = producer_id

    def extend(self, producer_id: int, data: OpenSpan) -> None:
        """Take note of data: a transaction begins with it, or goes on."""
        if producer_id not in self.first_offsets:
            self.begin(producer_id, data.first_offset)
        newest_ms = self._newest_ms.get(producer_id, data.newest_ms)
        self._newest_ms[producer_id] = max(newest_ms, data.newest_ms)

    def abort(self, producer_id: int, first_offset: int, marker_offset: int) -> AbortedTxn:
        """Return the index entry of a transaction about to be aborted.

        The last stable offset is the first one of another producer's oldest open transaction, or
        just past the marker.
        """
        others = [first for first, holder in self._ongoing.items() if holder != producer_id]
        return AbortedTxn(
            producer_id=producer_id,
            first_offset=first_offset,
            last_offset=marker_offset,
            last_stable_offset=min(others, default=marker_offset + 1),
        )

    def complete(self, producer_id: int, first_offset: int, marker_offset: int) -> bool:
        """Take note that a transaction has ended; return whether it was open."""
        was_open = self._ongoing.pop(first_offset, None) is not None
        # A replay notes beginnings before ends.
        if self.first_offsets.get(producer_id) == first_offset:
            del self.first_offsets[producer_id]
        if was_open and self._keeps_ended:
            self._unreplicated[first_offset] = marker_offset
        return was_open

    def end(self, producer_id: int, marker_offset: int) -> OpenSpan | None:
        """End a producer's transaction; return its data, None without any."""
        first_offset = self.first_offsets.get(producer_id)
        if first_offset is None:
            return None
        self.complete(producer_id, first_offset, marker_offset)
        return OpenSpan(first_offset, self._newest_ms.pop(producer_id, NO_TIMESTAMP))

    def advance_high_watermark(self, high_watermark: int) -> None:
        """Forget the ended transactions whose marker lies below the high watermark."""
        self._unreplicated = {
            first_offset: marker_offset
            for first_offset, marker_offset in self._unreplicated.items()
            if marker_offset >= high_watermark
        }

    @property
    def has_unreplicated(self) -> bool:
        """Whether an ended transaction waits for the high watermark."""
        return bool(self._unreplicated)

    @property
    def first_unstable_offset(self) -> int | None:
        """First offset of the oldest transaction undecided at the high watermark. The
        transaction is open, or ended above the high watermark."""
        return min([*self._ongoing, *self._unreplicated], default=None)


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenTransaction:
    """One open transaction of a partition."""

    producer_id: int
    producer_epoch: int
    first_offset: int  # where it began: no committed read goes beyond the smallest of these
    last_timestamp: int
    age_ms: int  # time since then; negative if the producer's clock is ahead
    # Whether its coordinator should have ended it by now. Such a transaction may hang: nobody will
    # end it, unless a person does.
    is_late: bool


def is_late(newest_ms: int, *, now_ms: int, max_transaction_timeout_ms: int) -> bool:
    """Whether its coordinator should have ended a transaction by now.

    Args:
        newest_ms: Timestamp of its newest batch; 0 and below say nothing.
        max_transaction_timeout_ms: The cluster's ``transaction.max.timeout.ms``.
    """
    limit_ms = max_transaction_timeout_ms + LATE_TRANSACTION_BUFFER_MS
    return newest_ms > 0 and now_ms - newest_ms > limit_ms


def list_open_transactions(
    producers: Iterable[ProducerEntry],
    *,
    now_ms: int,
    max_transaction_timeout_ms: int = MAX_TRANSACTION_TIMEOUT_MS,
) -> tuple[OpenTransaction, ...]:
    """Return the open transactions of a log, the oldest first.

    Args:
        producers: Producers of a loaded log (``LoadedLog.producers``).
        max_transaction_timeout_ms: The cluster's ``transaction.max.timeout.ms``.
    """
    transactions = [
        OpenTransaction(
            producer_id=producer.producer_id,
            producer_epoch=producer.producer_epoch,
            first_offset=producer.current_txn_first_offset,
            last_timestamp=producer.last_timestamp,
            age_ms=now_ms - producer.last_timestamp,
            is_late=is_late(
                producer.last_timestamp,
                now_ms=now_ms,
                max_transaction_timeout_ms=max_transaction_timeout_ms,
            ),
        )
        for producer in producers
        if producer.current_txn_first_offset >= 0
    ]
    return tuple(sorted(transactions, key=lambda transaction: transaction.first_offset))
