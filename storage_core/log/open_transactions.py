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

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from storage_core.formats.batch_v2 import NO_TIMESTAMP
from storage_core.index.segment_indexes import AbortedTxn
from storage_core.kernels.batch_scan import HAS_TRANSACTION
from storage_core.kernels.transaction_scan import (
    DATA,
    NO_TXN,
    PENDING_COLUMNS,
    PENDING_ENTRY,
    PENDING_FIRST_OFFSET,
    PENDING_PRODUCER,
    PRODUCER_ABORTED_ENTRY,
    PRODUCER_COLUMNS,
    PRODUCER_HAS_ABORTED_DATA,
    PRODUCER_HAS_COMMITTED_DATA,
    ROW_COLUMNS,
    ROW_KIND,
    ROW_LAST_OFFSET,
    ROW_PRODUCER_ID,
    track_transactions,
)
from storage_core.log.producer_snapshot import ProducerEntry
from storage_core.records.batch_table import BatchTable

# Which batches belong to aborted transactions: Kafka's CleanedTransactionMetadata.
#
# A round of compaction and a read of committed records both use this. They say beforehand which
# transactions aborted, by transaction indexes or by markers (``open_transactions``).


@dataclass(frozen=True, slots=True)
class TransactionRows:
    """Consecutive batches of one stretch of a segment, for a tracker."""

    columns: NDArray[np.int64]  # int64[transaction_scan.ROW_COLUMNS, n]

    def __len__(self) -> int:
        return int(self.columns.shape[1])

    @classmethod
    def select(cls, batches: BatchTable) -> "tuple[NDArray[np.int64], TransactionRows]":
        """Return which rows matter, and those rows copied."""
        if not batches.kinds & HAS_TRANSACTION:
            return np.empty(0, np.int64), _NO_ROWS
        is_control = batches.is_control
        rows = np.flatnonzero(batches.is_transactional | is_control)
        columns = np.empty((ROW_COLUMNS, rows.size), np.int64)
        columns[ROW_PRODUCER_ID] = batches.producer_id[rows]
        columns[ROW_LAST_OFFSET] = batches.last_offset[rows]
        columns[ROW_KIND] = np.where(is_control, batches.control_type, DATA)[rows]
        return rows, cls(columns)

    @classmethod
    def concatenate(cls, parts: "Sequence[TransactionRows]") -> "TransactionRows":
        """Return the rows of consecutive stretches as one."""
        return cls(np.concatenate([part.columns for part in (_NO_ROWS, *parts)], axis=1))

    def rows_from(self, first: int) -> "TransactionRows":
        """Return the rows from number first on, without copying."""
        return TransactionRows(self.columns[:, first:])

    def of_producers(self, producer_ids: NDArray[np.int64]) -> "TransactionRows":
        """Return a copy of the rows of some producers."""
        return TransactionRows(
            self.columns[:, np.isin(self.columns[ROW_PRODUCER_ID], producer_ids)]
        )

    def to_arrays(self) -> dict[str, NDArray[Any]]:
        """Return the columns under a unique name, for packing with others."""
        return {_PACKED_NAME: self.columns}

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, NDArray[Any]]) -> "TransactionRows":
        """Return the rows that to_arrays put among others."""
        return cls(arrays[_PACKED_NAME])


_PACKED_NAME: Final = "transaction_rows"
_NO_ROWS: Final = TransactionRows(np.empty((ROW_COLUMNS, 0), np.int64))


class TransactionTracker:
    """Decides, batch by batch in offset order, what belongs to aborted transactions. The first
    batch must be the first one with an aborted transaction's records.

    Args:
        aborted: Transactions that later batches may belong to; `add_aborted` adds others.
    """

    def __init__(self, aborted: Iterable[AbortedTxn] = ()) -> None:
        self._numbers: dict[int, int] = {}
        self._entries: list[AbortedTxn] = []
        self._pending: list[int] = []
        self._pending_next = 0
        self._producers = np.empty((PRODUCER_COLUMNS, 0), np.int64)
        self.add_aborted(aborted)

    def state(self) -> dict[str, Any]:
        """Return where the tracker stands, as plain values for `from_state`."""
        names = {number: producer_id for producer_id, number in self._numbers.items()}
        producers = self._producers
        return {
            "pending": [asdict(self._entries[e]) for e in self._pending[self._pending_next :]],
            "aborted": [
                [names[number], asdict(self._entries[entry]), bool(has_data)]
                for number, (entry, has_data) in enumerate(
                    producers[[PRODUCER_ABORTED_ENTRY, PRODUCER_HAS_ABORTED_DATA]].T.tolist()
                )
                if entry != NO_TXN
            ],
            "committed": [
                names[number]
                for number in np.flatnonzero(producers[PRODUCER_HAS_COMMITTED_DATA]).tolist()
            ],
        }

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> "TransactionTracker":
        """Return a tracker that stands where another one stood."""
        tracker = cls()
        tracker.add_aborted(AbortedTxn(**entry) for entry in state["pending"])
        holders = [producer_id for producer_id, _, _ in state["aborted"]]
        tracker._number(np.array([], np.int64), [*holders, *state["committed"]])
        for producer_id, entry, has_data in state["aborted"]:
            number = tracker._numbers[producer_id]
            tracker._producers[PRODUCER_ABORTED_ENTRY, number] = len(tracker._entries)
            tracker._producers[PRODUCER_HAS_ABORTED_DATA, number] = has_data
            tracker._entries.append(AbortedTxn(**entry))
        for producer_id in state["committed"]:
            tracker._producers[PRODUCER_HAS_COMMITTED_DATA, tracker._numbers[producer_id]] = 1
        return tracker

    def add_aborted(self, transactions: Iterable[AbortedTxn]) -> None:
        """Take note of aborted transactions that later batches may belong to."""
        first = len(self._entries)
        self._entries.extend(transactions)
        if first == len(self._entries):
            return
        self._pending = self._pending[self._pending_next :] + list(range(first, len(self._entries)))
        self._pending.sort(key=lambda entry: self._entries[entry].first_offset)
        self._pending_next = 0

    def decide(self, rows: TransactionRows) -> tuple[NDArray[np.bool_], list[AbortedTxn]]:
        """Look at the next batches.

        Returns:
            (discard, ended): for each row whether nothing refers to it any more (data of an
            aborted transaction; a marker none of whose data was seen), and the aborted
            transactions whose markers passed and of which data was seen, in order.
        """
        count = len(rows)
        discard = np.zeros(count, np.uint8)
        if not count:
            return discard.astype(bool), []
        ended = np.empty(count, np.int64)
        transactions = [self._entries[entry] for entry in self._pending]
        producer_ids = rows.columns[ROW_PRODUCER_ID]
        self._number(producer_ids, [transaction.producer_id for transaction in transactions])
        pending = np.empty((PENDING_COLUMNS, len(transactions)), np.int64)
        pending[PENDING_FIRST_OFFSET] = [transaction.first_offset for transaction in transactions]
        pending[PENDING_PRODUCER] = [self._numbers[t.producer_id] for t in transactions]
        pending[PENDING_ENTRY] = self._pending
        self._pending_next = track_transactions(
            np.ascontiguousarray(rows.columns),
            self._dense(producer_ids),
            pending,
            self._pending_next,
            self._producers,
            discard,
            ended,
        )
        entries = ended[ended != NO_TXN].tolist()
        return discard.astype(bool), [self._entries[entry] for entry in entries]

    def visible(self, batches: BatchTable) -> NDArray[np.bool_]:
        """Return a mask of next batches visible to consumers of committed records.

        Control batches and those of aborted transactions are not. The caller stops at the last
        stable offset.
        """
        rows, transactions = TransactionRows.select(batches)
        discard, _ = self.decide(transactions)
        visible = ~batches.is_control
        visible[rows[discard]] = False
        return visible

    def _number(self, producer_ids: NDArray[np.int64], more: list[int]) -> None:
        """Give every new producer a dense number and room in the state."""
        for producer_id in [*np.unique(producer_ids).tolist(), *more]:
            self._numbers.setdefault(producer_id, len(self._numbers))
        room = len(self._numbers) - self._producers.shape[1]
        if room:
            more_producers = np.zeros((PRODUCER_COLUMNS, room), np.int64)
            more_producers[PRODUCER_ABORTED_ENTRY] = NO_TXN
            self._producers = np.concatenate([self._producers, more_producers], axis=1)

    def _dense(self, producer_ids: NDArray[np.int64]) -> NDArray[np.int64]:
        unique, inverse = np.unique(producer_ids, return_inverse=True)
        numbers = np.array(
            [self._numbers[producer_id] for producer_id in unique.tolist()], np.int64
        )
        return numbers[inverse]


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
