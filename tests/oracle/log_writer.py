"""Turns the steps of a random log into appends that Kafka accepts.

Steps are coarse and carry no state, so that Hypothesis can drop any of them. Epochs and which
transactions are open are kept here; for sequence numbers Kafka's own producer state is asked, since
it forgets producers that expired.
"""

import random
from dataclasses import dataclass, field, replace
from typing import Final

from tests.oracle.kafka import Kafka
from tests.oracle.partition import OpenPartition
from tests.oracle.records import NO_TIMESTAMP, NewBatch, NewRecord

IDEMPOTENT_PRODUCERS: Final = 1000
TRANSACTIONAL_PRODUCERS: Final = 2000
MAX_SEQUENCE: Final = 2**31 - 1
OLDEST_RECORD_MS: Final = 3_600_000
CURRENT_MAGIC: Final = 2
LAST_SHORT_KEY: Final = 20
LONG_KEY_PARTS: Final = 18


@dataclass(frozen=True, slots=True, kw_only=True)
class Contents:
    """What the records of one step look like; everything else comes out of the seed.

    keys: how many different keys there are. The shares are probabilities. negative: of timestamps
    below -1, which only a builder without its check writes.
    """

    record_count: int
    seed: int
    keys: int
    tombstones: float = 0.2
    null_keys: float = 0.0
    headers: float = 0.1
    gaps: float = 0.0
    untimed: float = 0.0
    negative: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Append:
    """Append a batch; by a producer with an id if producer is not None.

    A transactional one opens a transaction if none is open. Null keys and gaps make it an append
    of a follower, for a leader of a compacted topic takes no null keys and leaves no gaps. So does
    a magic below 2, which a leader converts; such a batch has no producer and no headers. With
    at_append_time it has the time of a leader whose topic has another timestamp type.
    """

    contents: Contents
    codec: str = "none"
    producer: int | None = None
    transactional: bool = False
    gap_before: int = 0
    magic: int = 2
    at_append_time: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class EndTransaction:
    """Write a marker, whether or not the producer has a transaction open."""

    producer: int
    commit: bool
    bumps_epoch: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class BumpProducerEpoch:
    """The producer starts anew with the next epoch; not while its transaction is open."""

    producer: int
    transactional: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class BumpLeaderEpoch:
    """A new leader, with or without the control batch of a KRaft leader."""

    writes_control_batch: bool = False


@dataclass(frozen=True, slots=True)
class Roll:
    """Start a new segment."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Wait:
    """Let the clock go on."""

    milliseconds: int


Step = Append | EndTransaction | BumpProducerEpoch | BumpLeaderEpoch | Roll | Wait


@dataclass(slots=True)
class _Producer:
    epoch: int = 0
    in_transaction: bool = False


@dataclass(slots=True)
class LogWriter:
    """What one broker and its producers remember of a log from round to round."""

    kafka: Kafka
    leader_epoch: int = 0
    coordinator_epoch: int = 0
    producers: dict[int, _Producer] = field(default_factory=dict)

    def write(self, partition: OpenPartition, step: Step) -> None:
        """Carry out one step."""
        match step:
            case Append():
                self._append(partition, step)
            case EndTransaction():
                self._end_transaction(partition, step)
            case BumpProducerEpoch():
                producer = self._producer(_producer_id(step.producer, step.transactional))
                producer.epoch += not producer.in_transaction
            case BumpLeaderEpoch():
                self.leader_epoch += 1
                if step.writes_control_batch:
                    partition.change_leader(
                        timestamp=self.kafka.now_ms, leader_epoch=self.leader_epoch
                    )
            case Roll():
                partition.roll()
            case Wait():
                self.kafka.now_ms += step.milliseconds

    def _producer(self, producer_id: int) -> _Producer:
        return self.producers.setdefault(producer_id, _Producer())

    def _append(self, partition: OpenPartition, step: Append) -> None:
        records = _records(step.contents, self.kafka.now_ms)
        is_legacy = step.magic < CURRENT_MAGIC
        if is_legacy:
            records = tuple(replace(record, headers=()) for record in records)
        append_time = self.kafka.now_ms if step.at_append_time and step.magic else None
        batch = NewBatch(
            records=records, codec=step.codec, magic=step.magic, append_time=append_time
        )
        producer = None
        if step.producer is not None and not is_legacy:
            producer_id = _producer_id(step.producer, step.transactional)
            producer = self._producer(producer_id)
            batch = replace(
                batch,
                producer_id=producer_id,
                producer_epoch=producer.epoch,
                base_sequence=_next_sequence(partition, producer_id, producer.epoch),
                transactional=step.transactional,
            )
        comes_as_it_is = is_legacy or bool(step.gap_before) or step.at_append_time
        if comes_as_it_is or any(r.key is None or r.offset_gap for r in records):
            base_offset = partition.log_end_offset + step.gap_before
            partition.append_as_follower(
                batch, base_offset=base_offset, leader_epoch=self.leader_epoch
            )
        else:
            partition.append_as_leader(batch, leader_epoch=self.leader_epoch)
        if producer is not None:
            producer.in_transaction |= step.transactional

    def _end_transaction(self, partition: OpenPartition, step: EndTransaction) -> None:
        producer_id = _producer_id(step.producer, True)
        producer = self._producer(producer_id)
        producer.epoch += step.bumps_epoch
        partition.end_transaction(
            producer_id=producer_id,
            epoch=producer.epoch,
            commit=step.commit,
            timestamp=self.kafka.now_ms,
            coordinator_epoch=self.coordinator_epoch,
            leader_epoch=self.leader_epoch,
            transaction_version=2 if step.bumps_epoch else 1,
        )
        producer.in_transaction = False
        self.coordinator_epoch += producer_id % 2


def _next_sequence(partition: OpenPartition, producer_id: int, epoch: int) -> int:
    """Return the sequence that Kafka expects next; an unknown producer may start anywhere."""
    for known in partition.log.activeProducers():
        if int(known.producerId()) == producer_id:
            if int(known.producerEpoch()) != epoch:
                return 0
            return (int(known.lastSequence()) + 1) % (MAX_SEQUENCE + 1)
    # Every third producer starts close to where sequence numbers wrap.
    return MAX_SEQUENCE - 5 if producer_id % 3 == 0 else 0


def _producer_id(number: int, transactional: bool) -> int:
    return number + (TRANSACTIONAL_PRODUCERS if transactional else IDEMPOTENT_PRODUCERS)


def _records(contents: Contents, now_ms: int) -> tuple[NewRecord, ...]:
    dice = random.Random(contents.seed)
    return tuple(
        NewRecord(
            key=_key(dice, contents),
            value=_value(dice, contents),
            timestamp=_timestamp(dice, contents, now_ms),
            headers=_headers(dice, contents),
            offset_gap=dice.randrange(1, 9) if dice.random() < contents.gaps else 0,
        )
        for _ in range(contents.record_count)
    )


def _timestamp(dice: random.Random, contents: Contents, now_ms: int) -> int:
    if dice.random() < contents.untimed:
        return NO_TIMESTAMP
    if contents.negative and dice.random() < contents.negative:
        return dice.choice((-2, -3, -(2**40), dice.randrange(-(2**50), -1)))
    return now_ms - dice.choice((0, 0, 1, dice.randrange(OLDEST_RECORD_MS)))


def _key(dice: random.Random, contents: Contents) -> bytes | None:
    if dice.random() < contents.null_keys:
        return None
    number = dice.randrange(contents.keys)
    if number > LAST_SHORT_KEY:
        # Their lengths are around a block of MD5's.
        return b"k%d" % number * (LONG_KEY_PARTS + number % 3)
    # Key 0 is the empty key, which is a key like any other.
    return b"k%d" % number if number else b""


def _value(dice: random.Random, contents: Contents) -> bytes | None:
    if dice.random() < contents.tombstones:
        return None
    size = dice.choice((0, 3, 20, 40, dice.randrange(100)))
    return bytes(dice.choice(b"abcdefgh ") for _ in range(size))


def _headers(dice: random.Random, contents: Contents) -> tuple[tuple[str, bytes | None], ...]:
    if dice.random() >= contents.headers:
        return ()
    names = ("trace", "", "größe")
    return tuple(
        (dice.choice(names), dice.choice((None, b"", b"v" * dice.randrange(20))))
        for _ in range(dice.randrange(1, 4))
    )
