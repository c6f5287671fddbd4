"""What producers may append next: Kafka's ProducerAppendInfo, and the producers that it knows.

A producer's batches carry sequence numbers and its epoch. An append is first played against a copy
of the state (``ProducerAppendInfo``): what contradicts it raises, and nothing has changed. Only the
finished append is taken over. Of each producer the last five batches are remembered, by which one
that is sent again is recognised.
"""

import enum
from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

from storage_core.errors import (
    InvalidAppendError,
    InvalidProducerEpochError,
    OutOfOrderSequenceError,
    ProducerTxnStateError,
    TransactionCoordinatorFencedError,
)
from storage_core.formats.batch_v2 import (
    MAX_SEQUENCE,
    NO_PRODUCER_EPOCH,
    NO_SEQUENCE,
    NO_TIMESTAMP,
)
from storage_core.log.producer_snapshot import NO_COORDINATOR_EPOCH, NO_OFFSET, ProducerEntry

REMEMBERED_BATCHES: Final = 5
# A marker of an unknown transaction version is checked as one of version 0.
UNKNOWN_TRANSACTION_VERSION: Final = -1
_BUMPING_VERSION: Final = 2  # from here on a marker carries an epoch of its own
_LAST_EPOCH: Final = 2**15 - 1


class AppendOrigin(enum.Enum):
    """Who appends: it decides what is checked."""

    CLIENT = "client"
    COORDINATOR = "coordinator"
    REPLICATION = "replication"
    RAFT_LEADER = "raft leader"


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchMetadata:
    """A batch that a producer wrote.

    Attributes:
        last_sequence: Sequence of its last record.
        last_offset: Offset of its last record.
        offset_delta: Last offset minus first offset.
        timestamp: Its largest timestamp.
    """

    last_sequence: int
    last_offset: int
    offset_delta: int
    timestamp: int

    @property
    def first_sequence(self) -> int:
        """Sequence of its first record; sequences wrap past MAX_SEQUENCE to 0."""
        return (self.last_sequence - self.offset_delta) & MAX_SEQUENCE

    @property
    def first_offset(self) -> int:
        """Offset of its first record."""
        return self.last_offset - self.offset_delta


@dataclass(frozen=True, slots=True, kw_only=True)
class TxnMetadata:
    """A transaction that has begun.

    Attributes:
        producer_id: Whose it is.
        first_offset: Of its first batch.
        last_offset: Of its marker, NO_OFFSET while it is open.
    """

    producer_id: int
    first_offset: int
    last_offset: int = NO_OFFSET


@dataclass(frozen=True, slots=True, kw_only=True)
class CompletedAppendTxn:
    """A transaction that an append ends."""

    producer_id: int
    first_offset: int
    last_offset: int
    is_aborted: bool


@dataclass(slots=True, kw_only=True)
class ProducerStateEntry:
    """What is known of one producer, the batches oldest first."""

    producer_id: int
    producer_epoch: int = NO_PRODUCER_EPOCH
    coordinator_epoch: int = NO_COORDINATOR_EPOCH
    last_timestamp: int = NO_TIMESTAMP
    current_txn_first_offset: int = NO_OFFSET
    batches: deque[BatchMetadata] = field(default_factory=lambda: deque(maxlen=REMEMBERED_BATCHES))

    @classmethod
    def load(cls, entry: ProducerEntry) -> "ProducerStateEntry":
        """Return the entry of a snapshot: with the one batch that it has, or none."""
        state = cls(
            producer_id=entry.producer_id,
            producer_epoch=entry.producer_epoch,
            coordinator_epoch=entry.coordinator_epoch,
            last_timestamp=entry.last_timestamp,
            current_txn_first_offset=max(entry.current_txn_first_offset, NO_OFFSET),
        )
        if entry.last_offset >= 0:
            state.batches.append(
                BatchMetadata(
                    last_sequence=entry.last_sequence,
                    last_offset=entry.last_offset,
                    offset_delta=entry.offset_delta,
                    timestamp=entry.last_timestamp,
                )
            )
        return state

    @property
    def last_sequence(self) -> int:
        """Sequence of the last record, NO_SEQUENCE if no batch is remembered."""
        return self.batches[-1].last_sequence if self.batches else NO_SEQUENCE

    @property
    def next_sequence(self) -> int:
        """The sequence that is expected next."""
        return (self.last_sequence + 1) & MAX_SEQUENCE

    def snapshot(self) -> ProducerEntry:
        """Return what a snapshot keeps."""
        last = self.batches[-1] if self.batches else None
        return ProducerEntry(
            producer_id=self.producer_id,
            producer_epoch=self.producer_epoch,
            last_sequence=last.last_sequence if last else NO_SEQUENCE,
            last_offset=last.last_offset if last else NO_OFFSET,
            offset_delta=last.offset_delta if last else 0,
            last_timestamp=self.last_timestamp,
            coordinator_epoch=self.coordinator_epoch,
            current_txn_first_offset=self.current_txn_first_offset,
        )

    def without_batches(self) -> "ProducerStateEntry":
        """Return a copy to which the batches of one append are added."""
        return ProducerStateEntry(
            producer_id=self.producer_id,
            producer_epoch=self.producer_epoch,
            coordinator_epoch=self.coordinator_epoch,
            last_timestamp=self.last_timestamp,
            current_txn_first_offset=self.current_txn_first_offset,
        )

    def take_epoch(self, producer_epoch: int) -> None:
        """Change the epoch; a new one forgets the batches."""
        if producer_epoch != self.producer_epoch:
            self.batches.clear()
            self.producer_epoch = producer_epoch

    def update(self, other: "ProducerStateEntry") -> None:
        """Take over what an append has made of a copy."""
        self.take_epoch(other.producer_epoch)
        self.batches.extend(other.batches)
        self.coordinator_epoch = other.coordinator_epoch
        self.last_timestamp = other.last_timestamp
        self.current_txn_first_offset = other.current_txn_first_offset

    def find_duplicate(
        self, producer_epoch: int, first_sequence: int, last_sequence: int
    ) -> BatchMetadata | None:
        """Return the remembered batch with just these sequences."""
        if producer_epoch != self.producer_epoch:
            return None
        for batch in self.batches:
            if (batch.first_sequence, batch.last_sequence) == (first_sequence, last_sequence):
                return batch
        return None


@dataclass(frozen=True, slots=True, kw_only=True)
class DataBatch:
    """What counts of a data batch that a producer with an id appends."""

    producer_epoch: int
    first_sequence: int
    last_sequence: int
    first_offset: int
    last_offset: int
    max_timestamp: int
    is_transactional: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class EndTxnMarker:
    """What counts of an end-transaction marker.

    Attributes:
        producer_epoch: Of the batch.
        coordinator_epoch: Of the marker.
        is_abort: Whether it aborts.
        offset: Of the marker.
        timestamp: Of the marker.
        transaction_version: 0 to 2, or UNKNOWN_TRANSACTION_VERSION.
    """

    producer_epoch: int
    coordinator_epoch: int
    is_abort: bool
    offset: int
    timestamp: int
    transaction_version: int


class ProducerAppendInfo:
    """The batches of one producer in one append, checked one after the other.

    Args:
        partition: Name of the partition, for messages.
        current: The producer as it is before the append; not changed.
        origin: Who appends.
    """

    def __init__(self, partition: str, current: ProducerStateEntry, origin: AppendOrigin) -> None:
        self._partition = partition
        self._current = current
        self._origin = origin
        self.updated = current.without_batches()
        self.started: list[TxnMetadata] = []

    def append_data(self, batch: DataBatch) -> None:
        """Check and note a data batch.

        Raises:
            InvalidProducerEpochError: Its epoch was fenced; replication may bring such a batch.
            OutOfOrderSequenceError: Its sequence is not the next one (clients only).
            ProducerTxnStateError: It is not transactional, but a transaction is open.
        """
        self._check_epoch(batch.producer_epoch, batch.first_offset, UNKNOWN_TRANSACTION_VERSION)
        if self._origin is AppendOrigin.CLIENT:
            self._check_sequence(batch)
        updated = self.updated
        updated.take_epoch(batch.producer_epoch)
        updated.batches.append(
            BatchMetadata(
                last_sequence=batch.last_sequence,
                last_offset=batch.last_offset,
                offset_delta=batch.last_offset - batch.first_offset,
                timestamp=batch.max_timestamp,
            )
        )
        updated.last_timestamp = batch.max_timestamp
        if updated.current_txn_first_offset >= 0:
            if not batch.is_transactional:
                raise ProducerTxnStateError(
                    self._partition,
                    updated.producer_id,
                    batch.first_offset,
                    "the batch is not transactional, but a transaction has been open since "
                    f"offset {updated.current_txn_first_offset}",
                )
        elif batch.is_transactional:
            updated.current_txn_first_offset = batch.first_offset
            self.started.append(
                TxnMetadata(producer_id=updated.producer_id, first_offset=batch.first_offset)
            )

    def append_marker(self, marker: EndTxnMarker) -> CompletedAppendTxn | None:
        """Check and note a marker; return the transaction that it ends, None if none is open.

        Raises:
            InvalidAppendError: No transaction version is given, and this is no replication.
            InvalidProducerEpochError: Its epoch is too low.
            TransactionCoordinatorFencedError: Its coordinator was replaced.
        """
        version = marker.transaction_version
        is_replication = self._origin is AppendOrigin.REPLICATION
        if version == UNKNOWN_TRANSACTION_VERSION:
            if not is_replication:
                raise InvalidAppendError(
                    self._partition, f"a marker of a {self._origin.value} needs a version"
                )
            version = 0
        self._check_epoch(marker.producer_epoch, marker.offset, version)
        updated = self.updated
        if updated.coordinator_epoch > marker.coordinator_epoch and not is_replication:
            raise TransactionCoordinatorFencedError(
                self._partition,
                updated.producer_id,
                marker.offset,
                f"expected coordinator epoch {updated.coordinator_epoch} or later, "
                f"found {marker.coordinator_epoch}",
            )
        completed = None
        if updated.current_txn_first_offset >= 0:
            completed = CompletedAppendTxn(
                producer_id=updated.producer_id,
                first_offset=updated.current_txn_first_offset,
                last_offset=marker.offset,
                is_aborted=marker.is_abort,
            )
        updated.take_epoch(marker.producer_epoch)
        updated.coordinator_epoch = marker.coordinator_epoch
        updated.last_timestamp = marker.timestamp
        updated.current_txn_first_offset = NO_OFFSET
        return completed

    def _check_epoch(self, producer_epoch: int, offset: int, transaction_version: int) -> None:
        current = self.updated.producer_epoch
        must_rise = transaction_version >= _BUMPING_VERSION
        if producer_epoch > current or (producer_epoch == current and not must_rise):
            return
        if must_rise and producer_epoch == current:
            # The marker of a transaction that has ended, sent again.
            is_closed = self.updated.current_txn_first_offset < 0
            if is_closed or producer_epoch == _LAST_EPOCH:
                return
        if self._origin is AppendOrigin.REPLICATION:
            return  # the leader let it pass
        raise InvalidProducerEpochError(
            self._partition,
            self.updated.producer_id,
            offset,
            f"expected an epoch {'above' if must_rise else 'of at least'} {current}, "
            f"found {producer_epoch}",
        )

    def _check_sequence(self, batch: DataBatch) -> None:
        current, updated = self._current, self.updated
        first = batch.first_sequence
        if batch.producer_epoch != updated.producer_epoch:
            if first != 0 and updated.producer_epoch != NO_PRODUCER_EPOCH:
                raise self._out_of_order(batch, f"epoch {batch.producer_epoch} begins with 0")
            return
        last = NO_SEQUENCE
        if updated.batches:
            last = updated.last_sequence
        elif batch.producer_epoch == current.producer_epoch:
            last = current.last_sequence
        is_next = first == last + 1 or (first == 0 and last == MAX_SEQUENCE)
        if current.producer_epoch != NO_PRODUCER_EPOCH and not is_next:
            raise self._out_of_order(batch, f"the last one was {last}")

    def _out_of_order(self, batch: DataBatch, why: str) -> OutOfOrderSequenceError:
        return OutOfOrderSequenceError(
            self._partition,
            self.updated.producer_id,
            batch.first_offset,
            f"found sequence {batch.first_sequence}, but {why}",
        )


class ActiveProducers:
    """The producers of a log, and the transactions that hold the last stable offset back.

    Args:
        entries: Of the newest snapshot, and what followed it.
    """

    def __init__(self, entries: Iterable[ProducerEntry] = ()) -> None:
        self._producers: dict[int, ProducerStateEntry] = {}
        self._ongoing: dict[int, TxnMetadata] = {}
        self._unreplicated: dict[int, TxnMetadata] = {}
        for entry in entries:
            state = ProducerStateEntry.load(entry)
            self._producers[entry.producer_id] = state
            if state.current_txn_first_offset >= 0:
                self._ongoing[state.current_txn_first_offset] = TxnMetadata(
                    producer_id=entry.producer_id, first_offset=state.current_txn_first_offset
                )

    @property
    def producers(self) -> Mapping[int, ProducerStateEntry]:
        """The producers by id, in the order in which the log met them."""
        return self._producers

    def snapshot(self) -> list[ProducerEntry]:
        """Return what a snapshot holds."""
        return [entry.snapshot() for entry in self._producers.values()]

    def find_duplicate(self, producer_id: int, batch: DataBatch) -> BatchMetadata | None:
        """Return the remembered batch that this one repeats."""
        entry = self._producers.get(producer_id)
        if entry is None:
            return None
        return entry.find_duplicate(batch.producer_epoch, batch.first_sequence, batch.last_sequence)

    def has_ongoing_transaction(self, producer_id: int, producer_epoch: int) -> bool:
        """Whether the producer has a transaction open, in this epoch."""
        entry = self._producers.get(producer_id)
        return (
            entry is not None
            and entry.current_txn_first_offset >= 0
            and entry.producer_epoch == producer_epoch
        )

    def prepare(self, partition: str, producer_id: int, origin: AppendOrigin) -> ProducerAppendInfo:
        """Return what an append of this producer is played against."""
        current = self._producers.get(producer_id)
        if current is None:
            current = ProducerStateEntry(producer_id=producer_id)
        return ProducerAppendInfo(partition, current, origin)

    def update(self, info: ProducerAppendInfo) -> None:
        """Take over what an append has made of a producer."""
        known = self._producers.get(info.updated.producer_id)
        if known is None:
            self._producers[info.updated.producer_id] = info.updated
        else:
            known.update(info.updated)
        for transaction in info.started:
            self._ongoing[transaction.first_offset] = transaction

    def last_stable_offset_after(self, completed: CompletedAppendTxn) -> int:
        """Return the last stable offset once a transaction, open still, has ended.

        It is where the oldest open transaction of another producer began, or just past the marker.
        """
        others = [
            transaction.first_offset
            for transaction in self._ongoing.values()
            if transaction.producer_id != completed.producer_id
        ]
        return min(others, default=completed.last_offset + 1)

    def complete(self, completed: CompletedAppendTxn) -> None:
        """Take note that a transaction has ended.

        Raises:
            InvalidAppendError: It was not open.
        """
        transaction = self._ongoing.pop(completed.first_offset, None)
        if transaction is None:
            raise InvalidAppendError(
                f"producer {completed.producer_id}",
                f"the transaction at offset {completed.first_offset} is not open",
            )
        self._unreplicated[completed.first_offset] = TxnMetadata(
            producer_id=transaction.producer_id,
            first_offset=transaction.first_offset,
            last_offset=completed.last_offset,
        )

    def forget_completed_below(self, offset: int) -> None:
        """Forget the ended transactions whose marker lies below an offset."""
        self._unreplicated = {
            first: transaction
            for first, transaction in self._unreplicated.items()
            if transaction.last_offset >= offset
        }

    def clear(self) -> None:
        """Forget everything."""
        self._producers.clear()
        self._ongoing.clear()
        self._unreplicated.clear()

    def expire(self, *, now_ms: int, expiration_ms: int) -> None:
        """Forget the producers without an open transaction that were last heard of too long ago."""
        self._producers = {
            producer_id: entry
            for producer_id, entry in self._producers.items()
            if entry.current_txn_first_offset >= 0 or now_ms - entry.last_timestamp < expiration_ms
        }

    @property
    def first_unstable_offset(self) -> int | None:
        """Where the oldest transaction began that is open, or ended above the high watermark."""
        return min([*self._ongoing, *self._unreplicated], default=None)
