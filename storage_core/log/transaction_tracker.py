"""Which batches belong to aborted transactions: Kafka's CleanedTransactionMetadata.

A round of compaction asks this, and a read of committed records. Which transactions aborted is told
beforehand, by transaction indexes or by who read the markers (``open_transactions``).
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from storage_core.index.transaction_index import AbortedTxn
from storage_core.kernels.batch_scan import HAS_TRANSACTION
from storage_core.kernels.transaction_scan import NO_TXN, track_transactions
from storage_core.records.batch_table import BatchTable


@dataclass(frozen=True, slots=True)
class TransactionRows:
    """Consecutive batches of one stretch of a segment, for a tracker.

    Attributes:
        producer_id: int64[n].
        last_offset: int64[n].
        is_transactional: uint8[n].
        is_control: uint8[n].
        control_type: int64[n].
    """

    producer_id: NDArray[np.int64]
    last_offset: NDArray[np.int64]
    is_transactional: NDArray[np.uint8]
    is_control: NDArray[np.uint8]
    control_type: NDArray[np.int64]

    @classmethod
    def select(cls, batches: BatchTable) -> "tuple[NDArray[np.int64], TransactionRows]":
        """Return which rows matter, and those rows copied."""
        if not batches.kinds & HAS_TRANSACTION:
            return np.empty(0, np.int64), _NO_ROWS
        rows = np.flatnonzero(batches.is_transactional | batches.is_control)
        return rows, cls(
            batches.producer_id[rows],
            batches.last_offset[rows],
            batches.is_transactional[rows].astype(np.uint8),
            batches.is_control[rows].astype(np.uint8),
            batches.control_type[rows],
        )

    @classmethod
    def concatenate(cls, parts: "Sequence[TransactionRows]") -> "TransactionRows":
        """Return the rows of consecutive stretches as one."""
        parts = [_NO_ROWS, *parts]
        return cls(*(np.concatenate([getattr(part, name) for part in parts]) for name in _COLUMNS))

    def rows_from(self, first: int) -> "TransactionRows":
        """Return the rows from number first on, without copying."""
        return TransactionRows(*(getattr(self, name)[first:] for name in _COLUMNS))

    def pick(self, mask: NDArray[np.bool_]) -> "TransactionRows":
        """Return a copy of some of the rows."""
        return TransactionRows(*(getattr(self, name)[mask] for name in _COLUMNS))

    def to_arrays(self) -> dict[str, NDArray[Any]]:
        """Return the columns under unique names, for packing with others."""
        return {f"rows.{name}": getattr(self, name) for name in _COLUMNS}

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, NDArray[Any]]) -> "TransactionRows":
        """Return the rows that to_arrays put among others."""
        return cls(*(arrays[f"rows.{name}"] for name in _COLUMNS))


_COLUMNS: Final = tuple(field.name for field in fields(TransactionRows))
_NO_ROWS = TransactionRows(
    np.empty(0, np.int64),
    np.empty(0, np.int64),
    np.empty(0, np.uint8),
    np.empty(0, np.uint8),
    np.empty(0, np.int64),
)


class TransactionTracker:
    """Decides, batch by batch in offset order, what belongs to aborted transactions.

    The first batch must be the first one with an aborted transaction's records.

    Args:
        aborted: Transactions that later batches may belong to; `add_aborted` adds others.
    """

    def __init__(self, aborted: Iterable[AbortedTxn] = ()) -> None:
        self._numbers: dict[int, int] = {}
        self._entries: list[AbortedTxn] = []
        self._pending: list[int] = []
        self._pending_next = 0
        self._ongoing_aborted = np.empty(0, np.int64)
        self._was_seen = np.empty(0, np.uint8)
        self._ongoing_committed = np.empty(0, np.uint8)
        self.add_aborted(aborted)

    def state(self) -> dict[str, Any]:
        """Return where the tracker stands, as plain values for `from_state`."""
        names = {number: producer_id for producer_id, number in self._numbers.items()}
        return {
            "pending": [asdict(self._entries[e]) for e in self._pending[self._pending_next :]],
            "aborted": [
                [names[number], asdict(self._entries[entry]), bool(self._was_seen[number])]
                for number, entry in enumerate(self._ongoing_aborted.tolist())
                if entry != NO_TXN
            ],
            "committed": [
                names[number] for number in np.flatnonzero(self._ongoing_committed).tolist()
            ],
        }

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> "TransactionTracker":
        """Return a tracker that stands where another one stood."""
        tracker = cls()
        tracker.add_aborted(AbortedTxn(**entry) for entry in state["pending"])
        holders = [producer_id for producer_id, _, _ in state["aborted"]]
        tracker._number(np.array([], np.int64), [*holders, *state["committed"]])
        for producer_id, entry, was_seen in state["aborted"]:
            number = tracker._numbers[producer_id]
            tracker._ongoing_aborted[number] = len(tracker._entries)
            tracker._was_seen[number] = was_seen
            tracker._entries.append(AbortedTxn(**entry))
        for producer_id in state["committed"]:
            tracker._ongoing_committed[tracker._numbers[producer_id]] = 1
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
        count = len(rows.producer_id)
        discard = np.zeros(count, np.uint8)
        if not count:
            return discard.astype(bool), []
        ended = np.empty(count, np.int64)
        pending = [self._entries[entry] for entry in self._pending]
        self._number(rows.producer_id, [transaction.producer_id for transaction in pending])
        self._pending_next = track_transactions(
            self._dense(rows.producer_id),
            np.ascontiguousarray(rows.last_offset),
            rows.is_transactional,
            rows.is_control,
            np.ascontiguousarray(rows.control_type),
            np.array([transaction.first_offset for transaction in pending], np.int64),
            np.array([self._numbers[t.producer_id] for t in pending], np.int64),
            np.array(self._pending, np.int64),
            self._pending_next,
            self._ongoing_aborted,
            self._was_seen,
            self._ongoing_committed,
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
        room = len(self._numbers) - len(self._was_seen)
        if room:
            self._ongoing_aborted = np.append(
                self._ongoing_aborted, np.full(room, NO_TXN, np.int64)
            )
            self._was_seen = np.append(self._was_seen, np.zeros(room, np.uint8))
            self._ongoing_committed = np.append(self._ongoing_committed, np.zeros(room, np.uint8))

    def _dense(self, producer_ids: NDArray[np.int64]) -> NDArray[np.int64]:
        unique, inverse = np.unique(producer_ids, return_inverse=True)
        numbers = np.array(
            [self._numbers[producer_id] for producer_id in unique.tolist()], np.int64
        )
        return numbers[inverse]
