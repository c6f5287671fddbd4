"""Transactions, from the records of ``__transaction_state``, beside what is open in logs.

A producer's transaction holds committed reads of a partition back until its coordinator has written
a marker there. The coordinator's records say whether it still will. Sources: ``TransactionLog``,
``TransactionState``, ``TransactionMetadata``, ``TransactionsCommand`` (find-hanging).
"""

import enum
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from shlex import quote
from typing import Final, NamedTuple

from storage_core.coordinators.coordinator_log import (
    ReplayedRecord,
    TransactionEnd,
    Undecoded,
    UndecodedRecords,
    replay_partition,
)
from storage_core.filenames import TRANSACTION_STATE_TOPIC, TopicPartition
from storage_core.formats.batch_v2 import NO_PRODUCER_ID
from storage_core.log.open_transactions import OpenTransaction
from storage_core.messages.internal_records import Problem
from storage_core.store.base import LogStore
from storage_core.wording import count_text

_NO_TIME: Final = -1
_MOST_NAMED: Final = 3
# From this version of transactions on, each end of a transaction is one epoch later than its data.
_EPOCH_BUMP_VERSION: Final = 2
# A producer gets another id where the next epoch would be the last one.
_LAST_EPOCH: Final = 2**15 - 2
# The timeout of a transaction that an outside coordinator ends (KIP-939).
_TWO_PHASE_TIMEOUT_MS: Final = 2**31 - 1
# Fields of a record: of a transaction that ends under a new id, the next one as well.
_PRODUCER_IDS: Final = frozenset({"producer_id", "previous_producer_id", "next_producer_id"})


class TransactionState(enum.Enum):
    """The state of a transactional id, by Kafka's number and name. The names are those in
    Kafka's tools."""

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
_ABORTING: Final = frozenset({TransactionState.PREPARE_ABORT, TransactionState.PREPARE_EPOCH_FENCE})


@dataclass(frozen=True, slots=True, kw_only=True)
class TransactionEntry:
    """What a coordinator knows of a transactional id."""

    transactional_id: str
    producer_id: int
    producer_epoch: int
    state: TransactionState
    timeout_ms: int  # how long it lets a transaction be open
    # Where the transaction has data, or a marker is still to be written; sorted.
    partitions: tuple[TopicPartition, ...]
    start_ms: int | None  # when the transaction began, epoch milliseconds; None where there is none
    update_ms: int  # when the coordinator wrote this down, epoch milliseconds
    record_offset: int
    # The producer's id in the transaction before; NO_PRODUCER_ID if the record has none.
    previous_producer_id: int = NO_PRODUCER_ID
    # Version of transactions that its client used, 0 if the record has none.
    client_version: int = 0

    @property
    def is_in_flight(self) -> bool:
        """Whether there is a transaction that has not ended."""
        return self.state in _IN_FLIGHT

    def is_overdue(self, now_ms: int) -> bool:
        """Whether the transaction is open beyond its timeout. A running coordinator aborts it."""
        if self.state is not TransactionState.ONGOING or self.start_ms is None:
            return False
        return now_ms > self.start_ms + self.timeout_ms


class TransactionImage:
    """A transaction coordinator's knowledge after the records so far. ``apply`` takes the next
    record.

    Attributes:
        last_offset: Offset of the last record, -1 before the first.
    """

    def __init__(self) -> None:
        self.last_offset = -1
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
        self.last_offset = event.offset
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
        previous_producer_id=value.get("previous_producer_id", NO_PRODUCER_ID),
        client_version=value.get("client_transaction_version", 0),
    )


class TransactionOutcome(enum.StrEnum):
    """The outcome of an open transaction, by its coordinator's records."""

    COMMIT = "commit"  # its producer had the answer, or may have had it
    ABORT = "abort"  # no commit of it was ever decided
    UNDECIDED = "undecided"  # the records that decide it are not here, or do not tell


class DecidedTransaction(NamedTuple):
    """The outcome of an open transaction."""

    outcome: TransactionOutcome
    reason: str  # why, in words


@dataclass(frozen=True, slots=True, kw_only=True)
class TransactionCoordinators:
    """What the coordinators' records that are here say of transactions."""

    entries: Mapping[int, TransactionEntry] = field(default_factory=dict)  # by producer id
    absent: str = ""  # why there may be further ones, in words; empty where these are all

    @classmethod
    def of(cls, entries: Iterable[TransactionEntry], *, absent: str) -> "TransactionCoordinators":
        """Return entries by producer id, also by those that were given up."""
        some = list(entries)
        former = {each.previous_producer_id: each for each in some}
        former.pop(NO_PRODUCER_ID, None)
        return cls(entries=former | {each.producer_id: each for each in some}, absent=absent)

    def decide(
        self, partition: TopicPartition, producer_id: int, producer_epoch: int
    ) -> DecidedTransaction:
        """Return the outcome of a transaction that is open in a log. A coordinator answers a
        commit when PrepareCommit is in its log; the markers come later."""
        entry = self.entries.get(producer_id)
        if entry is None and self.absent:
            return DecidedTransaction(TransactionOutcome.UNDECIDED, self.absent)
        if entry is None:
            reason = f"no transactional id has producer {producer_id}"
            return DecidedTransaction(TransactionOutcome.ABORT, reason)
        reason = (
            f"transactional id {entry.transactional_id} is {entry.state.label} with producer "
            f"{entry.producer_id} epoch {entry.producer_epoch}"
        )
        return DecidedTransaction(_outcome(entry, partition, producer_id, producer_epoch), reason)


def name_absent_coordinators(whole: Collection[int], partition_count: int | None) -> str:
    """Say which partitions of ``__transaction_state`` are not here; empty if all are.

    A transactional id is in one of them by its hash: all of them are needed to say that there is
    no such id.

    Args:
        partition_count: How many the topic has; None where that is not known.
    """
    topic = TRANSACTION_STATE_TOPIC
    if partition_count is None:
        of_those = f"only {count_text(len(whole), 'partition')}" if whole else "no partition"
        return f"{of_those} of {topic} is given, and how many it has is not known"
    absent = sorted(set(range(partition_count)).difference(whole))
    if not absent:
        return ""
    count = f"{len(absent)} of {count_text(partition_count, 'partition')}"
    numbers = ", ".join(
        [*map(str, absent[:_MOST_NAMED]), *(["..."] if absent[_MOST_NAMED:] else [])]
    )
    return f"{count} of {topic} are not given ({numbers})"


def _outcome(
    entry: TransactionEntry, partition: TopicPartition, producer_id: int, producer_epoch: int
) -> TransactionOutcome:
    """Return the outcome of a transaction, by its coordinator's newest record.

    Another transaction of the same producer decides nothing: a log that is behind may have open
    data of an earlier one.
    """
    state, later = entry.state, entry.producer_epoch - producer_epoch
    bump = 1 if entry.client_version >= _EPOCH_BUMP_VERSION else 0
    if producer_id == entry.producer_id and partition in entry.partitions:
        if state is TransactionState.PREPARE_COMMIT and later == bump:
            return TransactionOutcome.COMMIT
        # A coordinator that fences the producer takes the next epoch for it, and no further one.
        if state in _ABORTING and later in {0, 1}:
            return TransactionOutcome.ABORT
        is_two_phase = entry.timeout_ms == _TWO_PHASE_TIMEOUT_MS
        if state is TransactionState.ONGOING and later == 0 and not is_two_phase:
            return TransactionOutcome.ABORT
    # With epochs of its own, a transaction is known after its end, where a log lacks the marker.
    is_former = producer_id != entry.producer_id
    has_ended = (
        (is_former and entry.producer_epoch == 0 and producer_epoch == _LAST_EPOCH)
        or (not is_former and later == bump)
    ) and bump == 1
    if has_ended and state is TransactionState.COMPLETE_COMMIT:
        return TransactionOutcome.COMMIT
    if has_ended and state is TransactionState.COMPLETE_ABORT:
        return TransactionOutcome.ABORT
    return TransactionOutcome.UNDECIDED


class TransactionEnding(enum.StrEnum):
    """Who ends a transaction that is open in a log."""

    ONGOING = "ongoing"  # its producer, or the coordinator when it takes too long
    ENDING = "ending"  # the coordinator: its outcome is decided, the marker is on its way
    OVERDUE = "overdue"  # the coordinator, as soon as it runs: it took too long
    HANGING = "hanging"  # nobody: no transactional id has it, so a person has to abort it
    UNKNOWN = "unknown"  # unknown: the coordinator's partition is missing


@dataclass(frozen=True, slots=True, kw_only=True)
class HoldingTransaction:
    """A transaction that is open in a partition's log."""

    partition: TopicPartition
    open: OpenTransaction
    entry: TransactionEntry | None  # A coordinator's entry of its producer, None without one
    # Whether it is what committed reads stop at: it began before all other open ones of the
    # partition.
    holds_stable_offset: bool
    verdict: TransactionEnding
    command: str  # the command against it on the cluster; empty if none is needed
    outcome: TransactionOutcome


def judge_open_transactions(
    open_transactions: Mapping[TopicPartition, tuple[OpenTransaction, ...]],
    coordinators: TransactionCoordinators,
    *,
    now_ms: int,
) -> Iterator[HoldingTransaction]:
    """Yield who ends each open transaction, by partition and where it began.

    Args:
        coordinators: The coordinators' entries. Unless these are all, nobody can say of a producer
            that no coordinator knows it.
    """
    for partition in sorted(open_transactions):
        some = sorted(open_transactions[partition], key=lambda each: each.first_offset)
        for each in some:
            entry = coordinators.entries.get(each.producer_id)
            outcome = coordinators.decide(partition, each.producer_id, each.producer_epoch).outcome
            verdict = _verdict(partition, entry, outcome, coordinators, now_ms=now_ms)
            yield HoldingTransaction(
                partition=partition,
                open=each,
                entry=entry,
                holds_stable_offset=each is some[0],
                verdict=verdict,
                command=_command(verdict, partition, each.first_offset),
                outcome=outcome,
            )


def _verdict(
    partition: TopicPartition,
    entry: TransactionEntry | None,
    outcome: TransactionOutcome,
    coordinators: TransactionCoordinators,
    *,
    now_ms: int,
) -> TransactionEnding:
    if entry is None:
        return TransactionEnding.UNKNOWN if coordinators.absent else TransactionEnding.HANGING
    if not entry.is_in_flight or partition not in entry.partitions:
        # Of one that was committed the marker is in another replica: nobody may abort it.
        is_committed = outcome is TransactionOutcome.COMMIT
        return TransactionEnding.ENDING if is_committed else TransactionEnding.HANGING
    if entry.state is not TransactionState.ONGOING:
        return TransactionEnding.ENDING
    return TransactionEnding.OVERDUE if entry.is_overdue(now_ms) else TransactionEnding.ONGOING


def _command(verdict: TransactionEnding, partition: TopicPartition, first_offset: int) -> str:
    place = f"--topic {quote(partition.topic)} --partition {partition.partition}"
    tool = "kafka-transactions.sh --bootstrap-server HOST:PORT"
    if verdict is TransactionEnding.HANGING:
        return f"{tool} abort {place} --start-offset {first_offset}"
    return f"{tool} find-hanging {place}" if verdict is TransactionEnding.UNKNOWN else ""
