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
from bisect import bisect_left, bisect_right, insort
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from storage_core.errors import (
    CorruptSnapshotError,
    InvalidAppendError,
    InvalidProducerEpochError,
    InvalidRecordError,
    InvalidTxnStateError,
    OutOfOrderSequenceError,
    ProducerTxnStateError,
    PylogError,
    TransactionCoordinatorFencedError,
)
from storage_core.filenames import OFFSET_INDEX_SUFFIX, log_file, segment_file, snapshot_file
from storage_core.formats.batch_v2 import MAX_SEQUENCE, NO_PRODUCER_EPOCH, NO_SEQUENCE
from storage_core.formats.control import NO_CONTROL_RECORD, ControlType
from storage_core.index.segment_indexes import AbortedTxn
from storage_core.kernels.producer_scan import (
    COLUMN_COUNT,
    CONTROL_TYPE,
    IS_TRANSACTIONAL,
    LAST_OFFSET,
    NOT_A_MARKER,
    PRODUCER_EPOCH,
    PRODUCER_ID,
    list_events,
)
from storage_core.log.batch_search import find_position, read_offset_index
from storage_core.log.directory_view import DirectoryView
from storage_core.log.loaded_log import segments_from
from storage_core.log.open_transactions import OpenTransactions
from storage_core.log.producer_snapshot import (
    MAX_SNAPSHOT_BYTES,
    NO_OFFSET,
    ProducerEntry,
    encode_producer_snapshot,
    parse_producer_snapshot,
)
from storage_core.records.batch_table import BatchTable
from storage_core.records.reader import Window, scan_headers

# Reduce the batches of a segment to changes of producer state.
#
# A producer's batches between two of its markers, of one epoch and all in or all out of a
# transaction, leave the same state as one event that has the first one's offset and the last one's
# sequence. So a segment of a million batches becomes as many events as it has transactions and
# producers.

_FIRST_COLUMNS: Final = slice(PRODUCER_ID, LAST_OFFSET)


class ProducerEvent(NamedTuple):
    """One column of an event table, field by field; see ``kernels.producer_scan``."""

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

    @property
    def first_sequence(self) -> int:
        """First sequence of the last batch; sequences wrap past MAX_SEQUENCE to 0."""
        return (self.last_sequence - self.offset_delta) & MAX_SEQUENCE


def iterate_events(table: NDArray[np.int64]) -> Iterator[ProducerEvent]:
    """Yield the events of a table in their order."""
    return map(ProducerEvent._make, table.T.tolist())


def no_events() -> NDArray[np.int64]:
    """Return a table without events."""
    return np.empty((COLUMN_COUNT, 0), np.int64)


def events_of(batches: BatchTable, file_position: int) -> NDArray[np.int64]:
    """Return the reduced events of batches that stand side by side."""
    return _collapse(batch_events(batches, file_position))


def batch_events(batches: BatchTable, file_position: int = 0) -> NDArray[np.int64]:
    """Return batches that stand side by side as one event each.

    Args:
        batches: In file order; legacy ones have no producer and count for nothing.

    Returns:
        int64[COLUMN_COUNT, n], columns as in ``kernels.producer_scan``.
    """
    events = np.empty((COLUMN_COUNT, len(batches)), np.int64)
    if not batches.has_producer_id.any():
        return events[:, :0]
    count = list_events(np.ascontiguousarray(batches.columns), file_position, events)
    return events[:, :count]


def join_events(parts: Iterable[NDArray[np.int64]]) -> NDArray[np.int64]:
    """Return the events of stretches of one file, in their order."""
    return _collapse(np.concatenate([no_events(), *parts], axis=1))


def events_of_windows(windows: Iterable[Window]) -> NDArray[np.int64]:
    """Return the events of one file's windows."""
    return join_events(events_of(window.batches, window.file_position) for window in windows)


def _collapse(table: NDArray[np.int64]) -> NDArray[np.int64]:
    """Merge what belongs to one event; columns must be in file order."""
    count = table.shape[1]
    if count <= 1:
        return table
    order = np.argsort(table[PRODUCER_ID], kind="stable")
    by_producer = table[:, order]
    same = by_producer[:, 1:] == by_producer[:, :-1]
    is_data = by_producer[CONTROL_TYPE] == NOT_A_MARKER
    joins = (
        same[PRODUCER_ID]
        & same[PRODUCER_EPOCH]
        & same[IS_TRANSACTIONAL]
        & is_data[1:]
        & is_data[:-1]
    )
    starts = np.flatnonzero(np.concatenate([[True], ~joins]))
    ends = np.append(starts[1:], count) - 1
    merged = by_producer[:, ends]
    merged[_FIRST_COLUMNS] = by_producer[_FIRST_COLUMNS, starts]
    return merged[:, np.argsort(order[starts], kind="stable")]


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


# Producer snapshots of a directory and the state they give. The state follows from the newest
# snapshot and the log behind it.
#
# The counterpart of Kafka's ProducerStateManager while a log is loaded, recovered or truncated.
# All changes go to a directory view; nothing is written.

_REPLAY_WINDOW_BYTES = 8 << 20


class ProducerStateManager:
    """Producers of one partition, and the snapshots on its disk.

    Attributes:
        snapshots: Offsets of the snapshots that this manager knows of, ascending.
    """

    def __init__(self, view: DirectoryView, *, now_ms: int, expiration_ms: int) -> None:
        self._view = view
        self._now_ms = now_ms
        self._expiration_ms = expiration_ms
        self._last_snapshot = 0
        self.state = ProducerState()
        self.map_end = 0
        self.snapshots = view.snapshot_offsets()

    def remove_strays(self, base_offsets: Sequence[int]) -> None:
        """Keep the newest snapshot at no segment's base, unless buried."""
        self.snapshots = self._view.snapshot_offsets()
        strays = sorted(set(self.snapshots) - set(base_offsets))
        for offset in strays[:-1]:
            self._remove(offset, "stray: no segment begins here, and a newer one is there")
        if strays and base_offsets and strays[-1] < base_offsets[-1]:
            self._remove(strays[-1], "stray: no segment begins here")

    def forget_segment(self, base_offset: int) -> None:
        """Remove the snapshot of a segment that is removed."""
        if self._knows(base_offset):
            self._remove(base_offset, "its segment is removed")

    def forget_swept(self, base_offsets: Collection[int]) -> None:
        """Take note that the snapshots of some segments went with them."""
        self.snapshots = [offset for offset in self.snapshots if offset not in base_offsets]

    def truncate_fully_and_start_at(self, offset: int) -> None:
        """Start over, without producers, at an offset."""
        for snapshot in self.snapshots.copy():
            self._remove(snapshot, f"the log starts over at {offset}")
        self.state = ProducerState()
        self._last_snapshot = 0
        self.map_end = offset

    def take_snapshot(self) -> None:
        """Write the state down unless a snapshot reaches as far already."""
        if self.map_end <= self._last_snapshot:
            return
        content = encode_producer_snapshot(self.state.producers.values())
        self._view.write(snapshot_file(self.map_end), content, "producers as of this offset")
        if not self._knows(self.map_end):
            insort(self.snapshots, self.map_end)
        self._last_snapshot = self.map_end

    def rebuild(
        self,
        base_offsets: Sequence[int],
        *,
        log_start_offset: int,
        end_offset: int,
        after_clean_shutdown: bool,
    ) -> None:
        """Bring the state to an offset by newest snapshot and replay.

        Args:
            log_start_offset: Snapshots at or below it go.
            end_offset: Where the state has to be complete; snapshots above it go.
            after_clean_shutdown: Whether a log without any snapshot counts as one without
                producers.
        """
        snapshot_at = [*base_offsets[-2:], end_offset]
        if after_clean_shutdown and not self.snapshots:
            for offset in snapshot_at:
                self.map_end = offset
                self.take_snapshot()
            return
        is_new_log = self.state.is_empty and self.map_end >= end_offset
        self._truncate_and_reload(log_start_offset, end_offset)
        if end_offset > self.map_end and not is_new_log:
            self._replay(base_offsets, log_start_offset, end_offset, set(snapshot_at))
        self.map_end = end_offset
        self.take_snapshot()

    def _truncate_and_reload(self, log_start_offset: int, end_offset: int) -> None:
        kept_from = bisect_right(self.snapshots, log_start_offset)
        kept_to = max(kept_from, bisect_right(self.snapshots, end_offset))
        for offset in (*self.snapshots[:kept_from], *self.snapshots[kept_to:]):
            self._remove(offset, f"outside of the log, which is {log_start_offset} to {end_offset}")
        if end_offset != self.map_end:
            self._load_newest(log_start_offset)
        else:
            self.state.transactions.advance_high_watermark(log_start_offset)
            self.map_end = max(self.map_end, log_start_offset)
            self._last_snapshot = self.snapshots[-1] if self.snapshots else log_start_offset

    def _load_newest(self, log_start_offset: int) -> None:
        self.state = ProducerState()
        while self.snapshots:
            offset = self.snapshots[-1]
            name = snapshot_file(offset)
            try:
                data = self._view.read(name, limit_bytes=MAX_SNAPSHOT_BYTES)
                entries = parse_producer_snapshot(name, data)
            except CorruptSnapshotError as error:
                self._remove(offset, str(error))
                continue
            self.state.load(entries, now_ms=self._now_ms, expiration_ms=self._expiration_ms)
            self._last_snapshot = self.map_end = offset
            return
        self._last_snapshot = self.map_end = log_start_offset

    def _remove(self, offset: int, reason: str) -> None:
        if self._knows(offset):
            del self.snapshots[bisect_left(self.snapshots, offset)]
        if snapshot_file(offset) in self._view:
            self._view.delete(snapshot_file(offset), reason)

    def _knows(self, offset: int) -> bool:
        place = bisect_left(self.snapshots, offset)
        return place < len(self.snapshots) and self.snapshots[place] == offset

    def _replay(
        self,
        base_offsets: Sequence[int],
        log_start_offset: int,
        end_offset: int,
        snapshot_at: set[int],
    ) -> None:
        place = bisect_right(base_offsets, end_offset)
        holder = base_offsets[place - 1] if place else None
        for base in segments_from(base_offsets, self.map_end):
            if base >= end_offset:
                break
            begin = max(base, self.map_end, log_start_offset)
            self.map_end = begin
            if base in snapshot_at:
                self.take_snapshot()
            name = log_file(base)
            index = read_offset_index(self._view, base, segment_file(base, OFFSET_INDEX_SUFFIX))
            position = find_position(self._view, name, begin, index.look_up(begin))
            if position is None:
                continue
            stop = None
            if base == holder:
                stop = find_position(self._view, name, end_offset, index.look_up(end_offset))
            with closing(self._view.open(name)) as reader:
                windows = scan_headers(
                    reader, start=position, end=stop, window_bytes=_REPLAY_WINDOW_BYTES
                )
                self.state.replay(name, events_of_windows(windows))
