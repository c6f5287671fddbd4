"""Elections beside Kafka's own controller, over random states of a partition and its brokers."""

import os
import random
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

import pytest

from storage_core.catalog.metadata_image import RegisterBrokerRecord
from storage_core.checkpoint.checkpoints import (
    LOST_DIRECTORY,
    MIGRATING_DIRECTORY,
    UNASSIGNED_DIRECTORY,
    encode_uuid,
)
from storage_core.cluster.elections import (
    NO_LEADER,
    Controller,
    Election,
    StartingBroker,
    Way,
    order_of_sessions,
    predict_election,
)
from storage_core.cluster.places import PartitionRegistration
from tests.oracle.controller import Change, KafkaController
from tests.oracle.jvm import kafka_failures

pytestmark = [pytest.mark.oracle, pytest.mark.usefixtures("kafka_jvm")]

ROUNDS = int(os.environ.get("PYLOG_ELECTION_ROUNDS", "400"))
SEED = 11
TOPIC_ID = encode_uuid(bytes(range(1, 17)))


@dataclass(frozen=True, slots=True)
class Night:
    """What a controller has, and what then comes up."""

    state: PartitionRegistration
    brokers: tuple[RegisterBrokerRecord, ...]
    start: tuple[StartingBroker, ...]
    is_elr_enabled: bool


def nights(count: int) -> Iterator[Night]:
    """Yield states that a controller may have, and orders of starts."""
    chance = random.Random(SEED)
    for _ in range(count):
        yield _night(chance)


def _directory(broker: int, number: int) -> str:
    return encode_uuid(bytes([7] * 12) + broker.to_bytes(3) + bytes([number]))


def _night(chance: random.Random) -> Night:
    brokers = sorted(chance.sample(range(1, 9), chance.randint(2, 5)))
    if chance.random() < 1 / 8:
        brokers = sorted(chance.sample(range(1, 3_000), 14))
    registered = {}
    for broker in brokers:
        registered[broker] = RegisterBrokerRecord(
            broker_id=broker,
            broker_epoch=chance.randrange(1 << chance.choice((5, 20, 40))),
            fenced=chance.random() < 1 / 2,
            log_directories=tuple(_directory(broker, n) for n in range(chance.randint(1, 2))),
            in_controlled_shutdown=chance.random() < 1 / 8,
        )
    replicas = chance.sample(brokers, chance.randint(1, min(4, len(brokers))))
    is_elr_enabled = chance.random() < 3 / 4
    least = min(chance.randint(1, 3), len(replicas))
    isr = [broker for broker in replicas if chance.random() < 1 / 2]
    leader = chance.choice(isr) if isr else NO_LEADER
    if leader == NO_LEADER and not is_elr_enabled:
        isr = [chance.choice(replicas)]
    elr, last_known = [], []
    if is_elr_enabled and len(isr) < least:
        elr = [b for b in replicas if b not in isr and chance.random() < 1 / 2]
    if is_elr_enabled and (leader == NO_LEADER or chance.random() < 1 / 8):
        last_known = [chance.choice(replicas)] if chance.random() < 3 / 4 else replicas[:2]
    if leader != NO_LEADER:
        for broker in isr:
            registered[broker] = _unfenced(registered[broker])
    state = PartitionRegistration(
        topic="t",
        partition=0,
        topic_id=TOPIC_ID,
        replicas=tuple(replicas),
        isr=tuple(isr),
        elr=tuple(elr),
        last_known_elr=tuple(last_known),
        leader=leader,
        leader_epoch=chance.randrange(20),
        min_insync_replicas=least,
        is_unclean_election_enabled=chance.random() < 1 / 2,
        directories=tuple(
            chance.choice(
                (
                    *registered[broker].log_directories * 3,
                    UNASSIGNED_DIRECTORY,
                    MIGRATING_DIRECTORY,
                    LOST_DIRECTORY,
                    _directory(broker, 9),
                )
            )
            for broker in replicas
        ),
    )
    up = chance.sample(brokers, chance.randint(0, len(brokers)))
    start = []
    for broker in up:
        directories = registered[broker].log_directories
        if chance.random() < 1 / 4:
            directories = (_directory(broker, 5),)
        start.append(
            StartingBroker(broker=broker, is_clean=chance.random() < 1 / 2, directories=directories)
        )
    return Night(state, tuple(registered.values()), tuple(start), is_elr_enabled)


def _unfenced(broker: RegisterBrokerRecord) -> RegisterBrokerRecord:
    return RegisterBrokerRecord(
        broker_id=broker.broker_id,
        broker_epoch=broker.broker_epoch,
        fenced=False,
        log_directories=broker.log_directories,
    )


def kafkas(night: Night, *, is_assigned_late: bool) -> list[Change]:
    """Return the changes that Kafka's controller makes."""
    epochs = {broker.broker_id: broker.broker_epoch for broker in night.brokers}
    controller = KafkaController(night.state, night.brokers, is_elr_enabled=night.is_elr_enabled)
    controller.end_sessions()
    for starting in night.start:
        epoch = epochs[starting.broker] if starting.is_clean else -1
        controller.start(starting, epoch, is_assigned_late=is_assigned_late)
    controller.check()
    return controller.changes


def ours(night: Night, *, is_assigned_late: bool) -> Election:
    controller = Controller(
        is_elr_enabled=night.is_elr_enabled,
        unfenced=order_of_sessions(night.brokers),
        stopping=frozenset(b.broker_id for b in night.brokers if b.in_controlled_shutdown),
        directories={b.broker_id: b.log_directories for b in night.brokers},
    )
    return predict_election(night.state, controller, night.start, is_assigned_late=is_assigned_late)


def changes_of(election: Election, state: PartitionRegistration) -> list[Change]:
    """Return our changes of a partition; those of its log directories alone are left out."""
    changes = [
        Change(s.leader, s.leader_epoch, frozenset(s.isr), frozenset(s.elr), s.last_known_elr)
        for s in (state, *(step.state for step in election.steps))
    ]
    return [change for before, change in pairwise(changes) if change != before]


@pytest.mark.thorough
@pytest.mark.item("REP-13", "CFG-22", "CFG-23")
def test_elections_are_those_of_kafkas_controller() -> None:
    """Whether a broker names new log directories before it is unfenced, or after that."""
    ways = dict.fromkeys(Way, 0)
    differing = 0
    for number, night in enumerate(nights(ROUNDS)):
        leaders = set()
        for is_late in (False, True):
            with kafka_failures():
                truth = kafkas(night, is_assigned_late=is_late)
            election = ours(night, is_assigned_late=is_late)
            assert changes_of(election, night.state) == truth, (number, is_late, night, election)
            ways[election.way] += 1
            leaders.add(election.leader)
        differing += len(leaders) - 1
    assert all(ways.values()), ways
    assert differing
