"""Producers and transactions of a log, as Kafka's ProducerStateManager keeps them.

Only what survives on disk or bounds compaction is kept: of a producer's last five batches, which
a broker remembers to recognise duplicates, the newest.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from storage_core.errors import InvalidRecordError, InvalidTxnStateError
from storage_core.formats.batch_v2 import NO_SEQUENCE
from storage_core.formats.control import NO_CONTROL_RECORD, ControlType
from storage_core.index.transaction_index import AbortedTxn
from storage_core.log.producer_events import NOT_A_MARKER
from storage_core.log.producer_snapshot import NO_OFFSET, ProducerEntry


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenTxn:
    """A transaction that has begun and, as far as the log tells, not ended."""

    producer_id: int
    first_offset: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CompletedTxn:
    """A transaction that has ended, with the offset of its marker and where that lies."""

    producer_id: int
    first_offset: int
    last_offset: int
    is_aborted: bool
    file: str
    position: int


class ProducerState:
    """The producers that are alive, and the transactions that hold the last stable offset back."""

    def __init__(self) -> None:
        self.producers: dict[int, ProducerEntry] = {}
        self._ongoing: dict[int, OpenTxn] = {}
        self._unreplicated: dict[int, CompletedTxn] = {}

    def load(self, entries: Iterable[ProducerEntry], *, now_ms: int, expiration_ms: int) -> None:
        """Take over a snapshot; producers without an open transaction that expired stay away."""
        for entry in entries:
            has_txn = entry.current_txn_first_offset >= 0
            if not has_txn and now_ms - entry.last_timestamp >= expiration_ms:
                continue
            if entry.last_offset < 0:
                # Kafka remembers no batch then, whatever else the entry says of one.
                entry = replace(  # noqa: PLW2901  # the entry as it is from here on
                    entry, last_sequence=NO_SEQUENCE, last_offset=NO_OFFSET, offset_delta=0
                )
            self.producers[entry.producer_id] = entry
            if has_txn:
                first = entry.current_txn_first_offset
                self._ongoing[first] = OpenTxn(producer_id=entry.producer_id, first_offset=first)

    def replay(self, file: str, events: NDArray[np.int64]) -> None:
        """Learn from a stretch of one segment, as a broker does when it loads a log.

        Args:
            file: Name of the segment's file, for messages.
            events: The producer events of the stretch; see ``producer_events``.

        Raises:
            InvalidTxnStateError: A batch outside of a transaction comes from a producer that has
                one open, or a marker ends one that is not. Kafka does not load such a log.
            InvalidRecordError: A marker cannot be read.
        """
        seen: dict[int, ProducerEntry] = {}
        started: list[OpenTxn] = []
        completed: list[CompletedTxn] = []
        for event in _events(file, events):
            entry = seen.get(event.producer_id) or self._without_batch(event.producer_id)
            entry, begun, ended = event.apply_to(entry)
            started += begun
            completed += ended
            seen[event.producer_id] = entry
        for entry in seen.values():
            self._merge(entry)
        for transaction in started:
            self._ongoing[transaction.first_offset] = transaction
        for ended_transaction in completed:
            self._complete(ended_transaction)

    def recover(self, file: str, events: NDArray[np.int64]) -> list[AbortedTxn]:
        """Learn from a segment batch by batch, as segment recovery does.

        Args:
            file: Name of the segment's file, for messages.
            events: The producer events of the segment.

        Returns:
            The transactions that were aborted in it, for its transaction index.

        Raises:
            InvalidTxnStateError: As `replay`.
            InvalidRecordError: As `replay`.
        """
        aborted = []
        for event in _events(file, events):
            entry, begun, ended = event.apply_to(self._without_batch(event.producer_id))
            self._merge(entry)
            for transaction in begun:
                self._ongoing[transaction.first_offset] = transaction
            for completed in ended:
                if completed.is_aborted:
                    aborted.append(self._aborted(completed))
                self._complete(completed)
        return aborted

    def _aborted(self, transaction: CompletedTxn) -> AbortedTxn:
        others = [
            first
            for first, other in self._ongoing.items()
            if other.producer_id != transaction.producer_id
        ]
        return AbortedTxn(
            producer_id=transaction.producer_id,
            first_offset=transaction.first_offset,
            last_offset=transaction.last_offset,
            last_stable_offset=min(others, default=transaction.last_offset + 1),
        )

    @property
    def is_empty(self) -> bool:
        """Whether no producer is known and no ended transaction waits for the high watermark."""
        return not self.producers and not self._unreplicated

    def advance_high_watermark(self, high_watermark: int) -> None:
        """Forget the ended transactions whose marker lies below the high watermark."""
        self._unreplicated = {
            first: transaction
            for first, transaction in self._unreplicated.items()
            if transaction.last_offset >= high_watermark
        }

    @property
    def first_unstable_offset(self) -> int | None:
        """Where the oldest transaction began that is open, or ended above the high watermark."""
        return min([*self._ongoing, *self._unreplicated], default=None)

    def _without_batch(self, producer_id: int) -> ProducerEntry:
        known = self.producers.get(producer_id)
        if known is None:
            return ProducerEntry(producer_id=producer_id)
        return replace(known, last_sequence=NO_SEQUENCE, last_offset=NO_OFFSET, offset_delta=0)

    def _merge(self, entry: ProducerEntry) -> None:
        known = self.producers.get(entry.producer_id)
        keeps_batch = (
            known is not None
            and known.producer_epoch == entry.producer_epoch
            and entry.last_offset == NO_OFFSET
        )
        if known is not None and keeps_batch:
            entry = replace(
                entry,
                last_sequence=known.last_sequence,
                last_offset=known.last_offset,
                offset_delta=known.offset_delta,
            )
        self.producers[entry.producer_id] = entry

    def _complete(self, transaction: CompletedTxn) -> None:
        if self._ongoing.pop(transaction.first_offset, None) is None:
            raise InvalidTxnStateError(
                transaction.file,
                transaction.position,
                f"the marker of producer {transaction.producer_id} ends a transaction at offset "
                f"{transaction.first_offset} that is not open",
            )
        self._unreplicated[transaction.first_offset] = transaction


@dataclass(frozen=True, slots=True)
class _Event:
    """One column of an event table."""

    file: str
    producer_id: int
    producer_epoch: int
    control_type: int
    is_transactional: int
    position: int
    first_offset: int
    last_offset: int
    offset_delta: int
    last_sequence: int
    timestamp: int
    coordinator_epoch: int

    def apply_to(
        self, entry: ProducerEntry
    ) -> tuple[ProducerEntry, list[OpenTxn], list[CompletedTxn]]:
        """Return what the producer is afterwards, and the transactions begun and ended."""
        if self.control_type == NOT_A_MARKER:
            entry, begun = self._apply_data(entry)
            return entry, begun, []
        entry, ended = self._apply_marker(entry)
        return entry, [], ended

    def _apply_data(self, entry: ProducerEntry) -> tuple[ProducerEntry, list[OpenTxn]]:
        first_offset = entry.current_txn_first_offset
        if first_offset >= 0 and not self.is_transactional:
            raise InvalidTxnStateError(
                self.file,
                self.position,
                f"the batch at offset {self.first_offset} is not transactional, but its producer "
                f"{entry.producer_id} has had a transaction open since offset {first_offset}",
            )
        begun = []
        if first_offset < 0 and self.is_transactional:
            first_offset = self.first_offset
            begun.append(OpenTxn(producer_id=entry.producer_id, first_offset=first_offset))
        after = ProducerEntry(
            producer_id=entry.producer_id,
            producer_epoch=self.producer_epoch,
            last_sequence=self.last_sequence,
            last_offset=self.last_offset,
            offset_delta=self.offset_delta,
            last_timestamp=self.timestamp,
            coordinator_epoch=entry.coordinator_epoch,
            current_txn_first_offset=first_offset,
        )
        return after, begun

    def _apply_marker(self, entry: ProducerEntry) -> tuple[ProducerEntry, list[CompletedTxn]]:
        if self.control_type == NO_CONTROL_RECORD:
            return entry, []
        if self.control_type not in {ControlType.ABORT, ControlType.COMMIT}:
            raise InvalidRecordError(
                self.file,
                self.position,
                f"expected an end-transaction marker of producer {entry.producer_id}, "
                f"found a control record of type {self.control_type}",
            )
        ended = []
        if entry.current_txn_first_offset >= 0:
            ended.append(
                CompletedTxn(
                    producer_id=entry.producer_id,
                    first_offset=entry.current_txn_first_offset,
                    last_offset=self.first_offset,
                    is_aborted=self.control_type == ControlType.ABORT,
                    file=self.file,
                    position=self.position,
                )
            )
        if self.producer_epoch != entry.producer_epoch:
            entry = replace(entry, last_sequence=NO_SEQUENCE, last_offset=NO_OFFSET, offset_delta=0)
        entry = replace(
            entry,
            producer_epoch=self.producer_epoch,
            coordinator_epoch=self.coordinator_epoch,
            last_timestamp=self.timestamp,
            current_txn_first_offset=NO_OFFSET,
        )
        return entry, ended


def _events(file: str, table: NDArray[np.int64]) -> Iterator[_Event]:
    for column in table.T.tolist():
        yield _Event(file, *column)
