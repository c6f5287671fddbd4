"""Producers and transactions of a log, as in Kafka's ProducerStateManager.

A producer's batches carry sequence numbers and its epoch. Batches are first played against copies
of the producers that they name (``ProducerAppendInfo``): what contradicts those raises, and nothing
has changed. Only what is finished is taken over. A load, a recovery and an append do so alike; what
differs is who appends (``AppendOrigin``), and how many batches of a producer are remembered:

- A client's sequences have to follow each other, its epoch and its coordinator's may not fall. A
  follower and a load take what the leader let pass.
- A load plays a segment as one append, a recovery plays every event on its own.
- An append remembers a producer's last five batches, by which one that is sent again is recognised.
  Of those only the newest survives in a snapshot, and a load knows no other.
"""

import enum
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from storage_core.errors import (
    InvalidAppendError,
    InvalidProducerEpochError,
    InvalidRecordError,
    InvalidTxnStateError,
    OutOfOrderSequenceError,
    ProducerTxnStateError,
    PylogError,
    TransactionCoordinatorFencedError,
)
from storage_core.formats.batch_v2 import MAX_SEQUENCE, NO_PRODUCER_EPOCH, NO_SEQUENCE
from storage_core.formats.control import NO_CONTROL_RECORD, ControlType
from storage_core.index.transaction_index import AbortedTxn
from storage_core.kernels.producer_scan import NOT_A_MARKER
from storage_core.log.open_transactions import OpenTransactions
from storage_core.log.producer_events import ProducerEvent, iterate_events
from storage_core.log.producer_snapshot import NO_OFFSET, ProducerEntry

REMEMBERED_BATCHES: Final = 5
# A marker of an unknown transaction version is checked as one of version 0.
UNKNOWN_TRANSACTION_VERSION: Final = -1
_BUMPING_VERSION: Final = 2  # from this version on, markers have an epoch of their own
_LAST_EPOCH: Final = 2**15 - 1


class AppendOrigin(enum.Enum):
    """Who appends: it decides what is checked."""

    CLIENT = "client"
    COORDINATOR = "coordinator"
    REPLICATION = "replication"
    RAFT_LEADER = "raft leader"
    LOAD = "load"  # a log that is replayed; Kafka treats it as replication


class CompletedTxn(NamedTuple):
    """A transaction that a marker ends."""

    producer_id: int  # the transaction's producer
    first_offset: int
    last_offset: int
    is_aborted: bool  # whether the marker aborts it
    position: int  # position of the marker, in its file or in the appended bytes


class ProducerAppendInfo:
    """Check the batches of one producer in one append, in order.

    Attributes:
        data: The data batches so far that are of the newest epoch.
        started: Where transactions have begun so far.
    """

    __slots__ = (
        "_coordinator_epoch",
        "_current",
        "_origin",
        "_place",
        "_producer_epoch",
        "_timestamp",
        "_txn_first_offset",
        "data",
        "started",
    )

    def __init__(self, place: str, current: ProducerEntry, origin: AppendOrigin) -> None:
        self._place = place
        self._current = current
        self._origin = origin
        self._producer_epoch = current.producer_epoch
        self._coordinator_epoch = current.coordinator_epoch
        self._timestamp = current.last_timestamp
        self._txn_first_offset = current.current_txn_first_offset
        self.data: list[ProducerEvent] = []
        self.started: list[int] = []

    @property
    def keeps_epoch(self) -> bool:
        """Whether the epoch is the one from before the append. Older batches then count."""
        return self._producer_epoch == self._current.producer_epoch

    def entry(self) -> ProducerEntry:
        """Return the producer as it is after the append."""
        last: ProducerEvent | ProducerEntry | None = self._current if self.keeps_epoch else None
        if self.data:
            last = self.data[-1]
        return ProducerEntry(
            producer_id=self._current.producer_id,
            producer_epoch=self._producer_epoch,
            last_sequence=last.last_sequence if last else NO_SEQUENCE,
            last_offset=last.last_offset if last else NO_OFFSET,
            offset_delta=last.offset_delta if last else 0,
            last_timestamp=self._timestamp,
            coordinator_epoch=self._coordinator_epoch,
            current_txn_first_offset=self._txn_first_offset,
        )

    def append(
        self, event: ProducerEvent, transaction_version: int = UNKNOWN_TRANSACTION_VERSION
    ) -> CompletedTxn | None:
        """Check and add a batch or marker; return the transaction it ends.

        Args:
            event: The batch. Of data, events that several batches were reduced to will do, but
                where a client appends.
            transaction_version: Version of a marker's transaction: 0 to 2, or
                UNKNOWN_TRANSACTION_VERSION.
        """
        if event.control_type == NOT_A_MARKER:
            self._append_data(event)
            return None
        if event.control_type == NO_CONTROL_RECORD:
            return None
        return self._append_marker(event, transaction_version)

    def _append_data(self, batch: ProducerEvent) -> None:
        self._check_epoch(batch, UNKNOWN_TRANSACTION_VERSION)
        if self._origin is AppendOrigin.CLIENT:
            self._check_sequence(batch)
        if self._txn_first_offset >= 0 and not batch.is_transactional:
            raise self._contradiction(batch)
        self._take_epoch(batch.producer_epoch)
        self.data.append(batch)
        self._timestamp = batch.timestamp
        if self._txn_first_offset < 0 and batch.is_transactional:
            self._txn_first_offset = batch.first_offset
            self.started.append(batch.first_offset)

    def _append_marker(self, marker: ProducerEvent, version: int) -> CompletedTxn | None:
        producer_id = self._current.producer_id
        if marker.control_type not in {ControlType.ABORT, ControlType.COMMIT}:
            raise InvalidRecordError(
                self._place,
                marker.position,
                f"expected an end-transaction marker of producer {producer_id}, "
                f"found a control record of type {marker.control_type}",
            )
        if version == UNKNOWN_TRANSACTION_VERSION:
            if not self._is_trusted:
                raise InvalidAppendError(
                    self._place, f"a marker of a {self._origin.value} needs a version"
                )
            version = 0
        self._check_epoch(marker, version)
        if self._coordinator_epoch > marker.coordinator_epoch and not self._is_trusted:
            raise TransactionCoordinatorFencedError(
                self._place,
                producer_id,
                marker.first_offset,
                f"expected coordinator epoch {self._coordinator_epoch} or later, "
                f"found {marker.coordinator_epoch}",
            )
        completed = None
        if self._txn_first_offset >= 0:
            completed = CompletedTxn(
                producer_id=producer_id,
                first_offset=self._txn_first_offset,
                last_offset=marker.first_offset,
                is_aborted=marker.control_type == ControlType.ABORT,
                position=marker.position,
            )
        self._take_epoch(marker.producer_epoch)
        self._coordinator_epoch = marker.coordinator_epoch
        self._timestamp = marker.timestamp
        self._txn_first_offset = NO_OFFSET
        return completed

    @property
    def _is_trusted(self) -> bool:
        """Whether a leader let the batches pass before."""
        return self._origin is AppendOrigin.LOAD or self._origin is AppendOrigin.REPLICATION

    def _take_epoch(self, producer_epoch: int) -> None:
        if producer_epoch != self._producer_epoch:
            self.data.clear()
            self._producer_epoch = producer_epoch

    def _check_epoch(self, event: ProducerEvent, transaction_version: int) -> None:
        if self._is_trusted:
            return
        current, epoch = self._producer_epoch, event.producer_epoch
        must_rise = transaction_version >= _BUMPING_VERSION
        if epoch > current or (epoch == current and not must_rise):
            return
        if must_rise and epoch == current:
            # A repeated marker of a transaction that has ended.
            is_closed = self._txn_first_offset < 0
            if is_closed or epoch == _LAST_EPOCH:
                return
        raise InvalidProducerEpochError(
            self._place,
            self._current.producer_id,
            event.first_offset,
            f"expected an epoch {'above' if must_rise else 'of at least'} {current}, found {epoch}",
        )

    def _check_sequence(self, batch: ProducerEvent) -> None:
        current, first = self._current, batch.first_sequence
        if batch.producer_epoch != self._producer_epoch:
            if first != 0 and self._producer_epoch != NO_PRODUCER_EPOCH:
                raise self._out_of_order(batch, f"epoch {batch.producer_epoch} begins with 0")
            return
        last = NO_SEQUENCE
        if self.data:
            last = self.data[-1].last_sequence
        elif batch.producer_epoch == current.producer_epoch:
            last = current.last_sequence
        is_next = first == last + 1 or (first == 0 and last == MAX_SEQUENCE)
        if current.producer_epoch != NO_PRODUCER_EPOCH and not is_next:
            raise self._out_of_order(batch, f"the last one was {last}")

    def _out_of_order(self, batch: ProducerEvent, why: str) -> OutOfOrderSequenceError:
        return OutOfOrderSequenceError(
            self._place,
            self._current.producer_id,
            batch.first_offset,
            f"found sequence {batch.first_sequence}, but {why}",
        )

    def _contradiction(self, batch: ProducerEvent) -> PylogError:
        producer_id, since = self._current.producer_id, self._txn_first_offset
        if self._origin is not AppendOrigin.LOAD:
            return ProducerTxnStateError(
                self._place,
                producer_id,
                batch.first_offset,
                "the batch is not transactional, but a transaction has been open since "
                f"offset {since}",
            )
        return InvalidTxnStateError(
            self._place,
            batch.position,
            f"the batch at offset {batch.first_offset} is not transactional, but its producer "
            f"{producer_id} has had a transaction open since offset {since}",
        )


@dataclass(slots=True, kw_only=True)
class ProducerChanges:
    """What an append does to producers; nothing has been done yet."""

    place: str
    origin: AppendOrigin
    infos: dict[int, ProducerAppendInfo] = field(default_factory=dict)
    completed: list[CompletedTxn] = field(default_factory=list)
    # The batch that was written before; then nothing else counts.
    duplicate: ProducerEvent | None = None


class ProducerState:
    """Producers that are alive, and transactions below the last stable offset.

    Args:
        remembered_batches: How many batches of a producer are known again when they are repeated.

    Attributes:
        producers: The producers by id, in the order in which the log met them.
    """

    def __init__(
        self, entries: Iterable[ProducerEntry] = (), *, remembered_batches: int = 1
    ) -> None:
        self.producers: dict[int, ProducerEntry] = {}
        self.transactions = OpenTransactions(keeps_ended=True)
        self._remembered_batches = remembered_batches
        self._batches: dict[int, tuple[ProducerEvent, ...]] = {}
        for entry in entries:
            self._load(entry)

    def load(self, entries: Iterable[ProducerEntry], *, now_ms: int, expiration_ms: int) -> None:
        """Take over a snapshot, without expired producers. A producer with an open transaction
        does not expire."""
        for entry in entries:
            is_expired = now_ms - entry.last_timestamp >= expiration_ms
            if entry.current_txn_first_offset >= 0 or not is_expired:
                self._load(entry)

    def _load(self, entry: ProducerEntry) -> None:
        if entry.last_offset < 0:
            # Kafka then remembers no batch, whatever the rest of the entry says.
            entry = replace(entry, last_sequence=NO_SEQUENCE, last_offset=NO_OFFSET, offset_delta=0)
        if entry.current_txn_first_offset < NO_OFFSET:
            entry = replace(entry, current_txn_first_offset=NO_OFFSET)
        self.producers[entry.producer_id] = entry
        if entry.current_txn_first_offset >= 0:
            self.transactions.begin(entry.producer_id, entry.current_txn_first_offset)
        if self._remembered_batches > 1 and entry.last_offset >= 0:
            self._batches[entry.producer_id] = (_last_batch(entry),)

    @property
    def is_empty(self) -> bool:
        """Whether there are no producers and no transactions awaiting the high watermark."""
        return not self.producers and not self.transactions.has_unreplicated

    def replay(self, file: str, events: NDArray[np.int64]) -> None:
        """Replay a stretch of one segment, as a broker's load does.

        Args:
            file: Name of the segment's file, for messages.
            events: The producer events of the stretch; see ``producer_events``.
        """
        self.take(self.play(file, iterate_events(events), AppendOrigin.LOAD))

    def recover(self, file: str, events: NDArray[np.int64]) -> list[AbortedTxn]:
        """Learn from a segment batch by batch, as segment recovery does.

        Args:
            file: Name of the segment's file, for messages.

        Returns:
            The transactions that were aborted in it, for its transaction index.
        """
        aborted = []
        for event in iterate_events(events):
            aborted += self.take_indexed(self.play(file, (event,), AppendOrigin.LOAD))
        return aborted

    def play(
        self,
        place: str,
        events: Iterable[ProducerEvent],
        origin: AppendOrigin,
        transaction_version: int = UNKNOWN_TRANSACTION_VERSION,
    ) -> ProducerChanges:
        """Play an append's batches on copies of producers; return the changes.

        Args:
            events: The batches, in order.
        """
        changes = ProducerChanges(place=place, origin=origin)
        is_client = origin is AppendOrigin.CLIENT
        begins_transactions = is_client or origin is AppendOrigin.COORDINATOR
        infos = changes.infos
        for event in events:
            producer_id = event.producer_id
            if is_client:
                changes.duplicate = self.find_duplicate(event)
                if changes.duplicate is not None:
                    return changes
            if begins_transactions and event.is_transactional:
                self._check_new_transaction(place, event)
            info = infos.get(producer_id)
            if info is None:
                current = self.producers.get(producer_id)
                if current is None:
                    current = ProducerEntry(producer_id=producer_id)
                info = infos[producer_id] = ProducerAppendInfo(place, current, origin)
            completed = info.append(event, transaction_version)
            if completed is not None:
                changes.completed.append(completed)
        return changes

    def take(self, changes: ProducerChanges) -> None:
        """Take over what an append has done."""
        self._update(changes)
        for completed in changes.completed:
            self._complete(changes, completed)

    def take_indexed(self, changes: ProducerChanges) -> list[AbortedTxn]:
        """Take over an append's changes; return entries of the transaction index."""
        self._update(changes)
        aborted = []
        for completed in changes.completed:
            producer_id, first_offset, last_offset, is_aborted, _ = completed
            if is_aborted:
                aborted.append(self.transactions.abort(producer_id, first_offset, last_offset))
            self._complete(changes, completed)
        return aborted

    def find_duplicate(self, event: ProducerEvent) -> ProducerEvent | None:
        """Return the remembered batch of equal epoch and sequences."""
        entry = self.producers.get(event.producer_id)
        if entry is None or entry.producer_epoch != event.producer_epoch:
            return None
        sequences = (event.first_sequence, event.last_sequence)
        for batch in self._batches.get(event.producer_id, ()):
            if (batch.first_sequence, batch.last_sequence) == sequences:
                return batch
        return None

    def clear(self) -> None:
        """Forget everything."""
        self.producers.clear()
        self.transactions = OpenTransactions(keeps_ended=True)
        self._batches.clear()

    def _update(self, changes: ProducerChanges) -> None:
        for producer_id, info in changes.infos.items():
            self.producers[producer_id] = info.entry()
            for first_offset in info.started:
                self.transactions.begin(producer_id, first_offset)
            if self._remembered_batches > 1:
                before = self._batches.get(producer_id, ()) if info.keeps_epoch else ()
                batches = (*before, *info.data)
                self._batches[producer_id] = batches[-self._remembered_batches :]

    def _complete(self, changes: ProducerChanges, completed: CompletedTxn) -> None:
        producer_id, first_offset, last_offset, _, position = completed
        if self.transactions.complete(producer_id, first_offset, last_offset):
            return
        if changes.origin is not AppendOrigin.LOAD:
            raise InvalidAppendError(
                f"producer {producer_id}", f"the transaction at offset {first_offset} is not open"
            )
        raise InvalidTxnStateError(
            changes.place,
            position,
            f"the marker of producer {producer_id} ends a transaction at offset {first_offset} "
            "that is not open",
        )

    def _check_new_transaction(self, place: str, event: ProducerEvent) -> None:
        """Refuse a fenced producer's batch outside its open transaction."""
        producer = self.producers.get(event.producer_id)
        if producer is not None and event.producer_epoch < producer.producer_epoch:
            raise InvalidProducerEpochError(
                place,
                event.producer_id,
                event.first_offset,
                f"expected an epoch of at least {producer.producer_epoch}, "
                f"found {event.producer_epoch}",
            )


def _last_batch(entry: ProducerEntry) -> ProducerEvent:
    """Return the one batch that a snapshot remembers."""
    return ProducerEvent(
        producer_id=entry.producer_id,
        producer_epoch=entry.producer_epoch,
        control_type=NOT_A_MARKER,
        is_transactional=entry.current_txn_first_offset >= 0,
        position=-1,
        first_offset=entry.last_offset - entry.offset_delta,
        last_offset=entry.last_offset,
        offset_delta=entry.offset_delta,
        last_sequence=entry.last_sequence,
        timestamp=entry.last_timestamp,
        coordinator_epoch=entry.coordinator_epoch,
    )
