"""Which batches belong to aborted transactions: Kafka's CleanedTransactionMetadata.

A round of compaction and a read of committed records both use this. They say beforehand which
transactions aborted, by transaction indexes or by markers (``open_transactions``).
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from storage_core.index.transaction_index import AbortedTxn
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
from storage_core.records.batch_table import BatchTable


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
