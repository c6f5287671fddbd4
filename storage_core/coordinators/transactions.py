"""Transactions, from the records of ``__transaction_state``, beside what is open in logs.

A producer's transaction holds committed reads of a partition back until its coordinator has written
a marker there. The coordinator's records say whether it still will. Sources: ``TransactionLog``,
``TransactionState``, ``TransactionMetadata``, ``TransactionsCommand`` (find-hanging).
"""

import enum
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from shlex import quote
from typing import Final

from storage_core.coordinators.coordinator_log import (
    ReplayedRecord,
    TransactionEnd,
    replay_partition,
)
from storage_core.coordinators.undecoded import Undecoded, UndecodedRecords
from storage_core.filenames import TRANSACTION_STATE_TOPIC, TopicPartition
from storage_core.formats.batch_v2 import NO_PRODUCER_ID
from storage_core.log.open_transactions import OpenTransaction
from storage_core.messages.internal_records import Problem
from storage_core.store.base import LogStore

_NO_TIME: Final = -1
# Fields of a record: of a transaction that ends under a new id, the next one as well.
_PRODUCER_IDS: Final = frozenset({"producer_id", "previous_producer_id", "next_producer_id"})


class TransactionState(enum.Enum):
    """The state of a transactional id, by Kafka's number and name.

    The names are those in Kafka's tools.
    """

    EMPTY = (0, "Empty")
    ONGOING = (1, "Ongoing")
    PREPARE_COMMIT = (2, "PrepareCommit")
    PREPARE_ABORT = (3, "PrepareAbort")
    COMPLETE_COMMIT = (4, "CompleteCommit")
    COMPLETE_ABORT = (5, "CompleteAbort")
    DEAD = (6, "Dead")
    PREPARE_EPOCH_FENCE = (7, "PrepareEpochFence")

    @property
    def label(self) -> str:
        """Its name in Kafka's tools."""
        return self.value[1]


_STATES: Final = {state.value[0]: state for state in TransactionState}


def state_name(number: int) -> str | None:
    """Return the name of a state in Kafka's tools; None if unknown."""
    state = _STATES.get(number)
    return None if state is None else state.label


# States with work left for the coordinator.
_IN_FLIGHT: Final = frozenset(
    {
        TransactionState.ONGOING,
        TransactionState.PREPARE_COMMIT,
        TransactionState.PREPARE_ABORT,
        TransactionState.PREPARE_EPOCH_FENCE,
    }
)


@dataclass(frozen=True, slots=True, kw_only=True)
class TransactionEntry:
    """What a coordinator knows of a transactional id.

    Attributes:
        transactional_id: The id.
        producer_id: The producer's id.
        producer_epoch: Its epoch.
        state: The state.
        timeout_ms: How long it lets a transaction be open.
        partitions: Where the transaction has data, or a marker is still to be written; sorted.
        start_ms: When the transaction began, epoch milliseconds; None where there is none.
        update_ms: When the coordinator wrote this down, epoch milliseconds.
        record_offset: Offset of the record in its partition of ``__transaction_state``.
    """

    transactional_id: str
    producer_id: int
    producer_epoch: int
    state: TransactionState
    timeout_ms: int
    partitions: tuple[TopicPartition, ...]
    start_ms: int | None
    update_ms: int
    record_offset: int

    @property
    def is_in_flight(self) -> bool:
        """Whether there is a transaction that has not ended."""
        return self.state in _IN_FLIGHT

    def is_overdue(self, now_ms: int) -> bool:
        """Whether the transaction is open beyond its timeout.

        A running coordinator aborts it.
        """
        if self.state is not TransactionState.ONGOING or self.start_ms is None:
            return False
        return now_ms > self.start_ms + self.timeout_ms


class TransactionImage:
    """A transaction coordinator's knowledge after the records so far.

    ``apply`` takes the next record.
    """

    def __init__(self) -> None:
        self._entries: dict[str, TransactionEntry] = {}
        self._undecoded = UndecodedRecords()

    @property
    def entries(self) -> tuple[TransactionEntry, ...]:
        """The transactional ids, sorted."""
        return tuple(self._entries[name] for name in sorted(self._entries))

    @property
    def undecoded(self) -> tuple[Undecoded, ...]:
        """What was not understood, and left out."""
        return tuple(self._undecoded.all())

    def apply(self, event: ReplayedRecord | TransactionEnd) -> None:
        """Take the next record; there are no transactions in this topic."""
        if isinstance(event, TransactionEnd):
            return
        decoded = event.decoded
        if decoded.problem is not None:
            self._undecoded.add(event, decoded.problem)
        elif decoded.key is not None and decoded.value is None:
            self._entries.pop(decoded.key["transactional_id"], None)
        elif decoded.key is not None and decoded.value is not None:
            state = _STATES.get(decoded.value["transaction_status"])
            if state is None:
                self._undecoded.add(event, Problem.MALFORMED)
                return
            name = decoded.key["transactional_id"]
            self._entries[name] = _entry(name, state, event)


def find_largest_producer_id(store: LogStore) -> int:
    """Return the largest producer id that a coordinator's records name, else -1.

    Args:
        store: A partition directory of ``__transaction_state``, settled.

    Raises:
        BadBytesError: A batch is damaged.
        StorageError: The store failed.
    """
    largest = NO_PRODUCER_ID
    for event in replay_partition(store, TRANSACTION_STATE_TOPIC):
        value = event.decoded.value if isinstance(event, ReplayedRecord) else None
        ids = [number for name, number in (value or {}).items() if name in _PRODUCER_IDS]
        largest = max(largest, *ids, NO_PRODUCER_ID)
    return largest


def _entry(name: str, state: TransactionState, event: ReplayedRecord) -> TransactionEntry:
    value = event.decoded.value or {}
    start_ms = value["transaction_start_timestamp_ms"]
    partitions = [
        TopicPartition(topic["topic"], number)
        for topic in value["transaction_partitions"] or ()
        for number in topic["partition_ids"]
    ]
    return TransactionEntry(
        transactional_id=name,
        producer_id=value["producer_id"],
        producer_epoch=value["producer_epoch"],
        state=state,
        timeout_ms=value["transaction_timeout_ms"],
        partitions=tuple(sorted(partitions)),
        start_ms=None if start_ms == _NO_TIME else start_ms,
        update_ms=value["transaction_last_update_timestamp_ms"],
        record_offset=event.offset,
    )


class TransactionEnding(enum.StrEnum):
    """Who ends a transaction that is open in a log."""

    ONGOING = "ongoing"  # its producer, or the coordinator when it takes too long
    ENDING = "ending"  # the coordinator: its outcome is decided, the marker is on its way
    OVERDUE = "overdue"  # the coordinator, as soon as it runs: it took too long
    HANGING = "hanging"  # nobody: no transactional id has it, so a person has to abort it
    UNKNOWN = "unknown"  # unknown: the coordinator's partition is missing


@dataclass(frozen=True, slots=True, kw_only=True)
class HoldingTransaction:
    """A transaction that is open in a partition's log.

    Attributes:
        partition: The partition.
        open: The transaction in its log.
        entry: A coordinator's entry of its producer, None without one.
        holds_stable_offset: Whether it is what committed reads stop at: it began before all other
            open ones of the partition.
        verdict: Who will end it.
        command: The command against it on the cluster; empty if none is needed.
    """

    partition: TopicPartition
    open: OpenTransaction
    entry: TransactionEntry | None
    holds_stable_offset: bool
    verdict: TransactionEnding
    command: str


def judge_open_transactions(
    open_transactions: Mapping[TopicPartition, tuple[OpenTransaction, ...]],
    entries: Iterable[TransactionEntry],
    *,
    now_ms: int,
    is_complete: bool,
) -> Iterator[HoldingTransaction]:
    """Yield who ends each open transaction, by partition and where it began.

    Args:
        open_transactions: The open transactions of each log with any.
        entries: The coordinators' entries.
        now_ms: The run's clock, epoch milliseconds.
        is_complete: Whether the entries are those of all partitions of ``__transaction_state``;
            else nobody can say of a producer that no coordinator knows it.
    """
    by_producer = {entry.producer_id: entry for entry in entries}
    for partition in sorted(open_transactions):
        some = sorted(open_transactions[partition], key=lambda each: each.first_offset)
        for each in some:
            entry = by_producer.get(each.producer_id)
            verdict = _verdict(partition, entry, now_ms=now_ms, is_complete=is_complete)
            yield HoldingTransaction(
                partition=partition,
                open=each,
                entry=entry,
                holds_stable_offset=each is some[0],
                verdict=verdict,
                command=_command(verdict, partition, each.first_offset),
            )


def _verdict(
    partition: TopicPartition, entry: TransactionEntry | None, *, now_ms: int, is_complete: bool
) -> TransactionEnding:
    if entry is None:
        return TransactionEnding.HANGING if is_complete else TransactionEnding.UNKNOWN
    if not entry.is_in_flight or partition not in entry.partitions:
        return TransactionEnding.HANGING
    if entry.state is not TransactionState.ONGOING:
        return TransactionEnding.ENDING
    return TransactionEnding.OVERDUE if entry.is_overdue(now_ms) else TransactionEnding.ONGOING


def _command(verdict: TransactionEnding, partition: TopicPartition, first_offset: int) -> str:
    place = f"--topic {quote(partition.topic)} --partition {partition.partition}"
    tool = "kafka-transactions.sh --bootstrap-server HOST:PORT"
    if verdict is TransactionEnding.HANGING:
        return f"{tool} abort {place} --start-offset {first_offset}"
    return f"{tool} find-hanging {place}" if verdict is TransactionEnding.UNKNOWN else ""
