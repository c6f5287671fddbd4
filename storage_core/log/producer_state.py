"""Producers and transactions of a log, as Kafka's ProducerStateManager keeps them.

Only what survives on disk or bounds compaction is kept: of a producer's last five batches, which
a broker remembers to recognise duplicates, the newest.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace

import numpy as np

from storage_core.errors import InvalidRecordError, InvalidTxnStateError
from storage_core.formats.batch_v2 import NO_SEQUENCE
from storage_core.formats.control import NO_CONTROL_RECORD, ControlType
from storage_core.log.producer_snapshot import NO_OFFSET, ProducerEntry
from storage_core.records.reader import Window


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

    def replay(self, windows: Iterable[Window]) -> None:
        """Learn from the batches of one segment, as a broker does when it loads a log.

        Raises:
            InvalidTxnStateError: A batch outside of a transaction comes from a producer that has
                one open, or a marker ends one that is not. Kafka does not load such a log.
            InvalidRecordError: A marker cannot be read.
        """
        seen: dict[int, ProducerEntry] = {}
        started: list[OpenTxn] = []
        completed: list[CompletedTxn] = []
        for window in windows:
            batches = window.batches
            for row in np.flatnonzero(batches.has_producer_id).tolist():
                producer_id = int(batches.producer_id[row])
                entry = seen.get(producer_id) or self._without_batch(producer_id)
                if batches.is_control[row]:
                    entry, ended = _apply_marker(window, row, entry)
                    completed.extend(ended)
                else:
                    entry, begun = _apply_data(window, row, entry)
                    started.extend(begun)
                seen[producer_id] = entry
        for entry in seen.values():
            self._merge(entry)
        for transaction in started:
            self._ongoing[transaction.first_offset] = transaction
        for ended_transaction in completed:
            self._complete(ended_transaction)

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


def _apply_data(
    window: Window, row: int, entry: ProducerEntry
) -> tuple[ProducerEntry, list[OpenTxn]]:
    batches = window.batches
    base_offset = int(batches.base_offset[row])
    last_offset = int(batches.last_offset[row])
    is_transactional = bool(batches.is_transactional[row])
    if entry.current_txn_first_offset >= 0 and not is_transactional:
        raise InvalidTxnStateError(
            window.file,
            window.position_of(row),
            f"the batch at offset {base_offset} is not transactional, but its producer "
            f"{entry.producer_id} has had a transaction open since offset "
            f"{entry.current_txn_first_offset}",
        )
    begun = []
    first_offset = entry.current_txn_first_offset
    if first_offset < 0 and is_transactional:
        first_offset = base_offset
        begun.append(OpenTxn(producer_id=entry.producer_id, first_offset=first_offset))
    entry = replace(
        entry,
        producer_epoch=int(batches.producer_epoch[row]),
        last_sequence=int(batches.last_sequence[row]),
        last_offset=last_offset,
        offset_delta=last_offset - base_offset,
        last_timestamp=int(batches.max_timestamp[row]),
        current_txn_first_offset=first_offset,
    )
    return entry, begun


def _apply_marker(
    window: Window, row: int, entry: ProducerEntry
) -> tuple[ProducerEntry, list[CompletedTxn]]:
    batches = window.batches
    kind = int(batches.control_type[row])
    if kind == NO_CONTROL_RECORD:
        return entry, []
    if kind not in {ControlType.ABORT, ControlType.COMMIT}:
        raise InvalidRecordError(
            window.file,
            window.position_of(row),
            f"expected an end-transaction marker of producer {entry.producer_id}, "
            f"found a control record of type {kind}",
        )
    ended = []
    offset = int(batches.base_offset[row])
    if entry.current_txn_first_offset >= 0:
        ended.append(
            CompletedTxn(
                producer_id=entry.producer_id,
                first_offset=entry.current_txn_first_offset,
                last_offset=offset,
                is_aborted=kind == ControlType.ABORT,
                file=window.file,
                position=window.position_of(row),
            )
        )
    epoch = int(batches.producer_epoch[row])
    if epoch != entry.producer_epoch:
        entry = replace(entry, last_sequence=NO_SEQUENCE, last_offset=NO_OFFSET, offset_delta=0)
    entry = replace(
        entry,
        producer_epoch=epoch,
        coordinator_epoch=int(batches.coordinator_epoch[row]),
        last_timestamp=int(batches.max_timestamp[row]),
        current_txn_first_offset=NO_OFFSET,
    )
    return entry, ended
