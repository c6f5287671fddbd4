"""Rules of predicted elections, one at a time; Kafka's own controller is asked in tests/oracle."""

from collections.abc import Sequence

import pytest

from storage_core.cluster.elections import (
    Controller,
    Election,
    StartingBroker,
    Way,
    predict_election,
)
from storage_core.cluster.places import PartitionRegistration

ALL = (1, 2, 3)


def elect(
    start: Sequence[StartingBroker], *, least: int, is_unclean_allowed: bool = False
) -> Election:
    """Return the election of a partition of three replicas in sync, whose brokers all stopped."""
    state = PartitionRegistration(
        topic="orders",
        partition=0,
        topic_id="A" * 22,
        replicas=ALL,
        isr=ALL,
        leader=1,
        min_insync_replicas=least,
        is_unclean_election_enabled=is_unclean_allowed,
    )
    controller = Controller(is_elr_enabled=True, unfenced=ALL, directories={})
    return predict_election(state, controller, start)


@pytest.mark.parametrize(
    ("least", "eligible"),
    [(1, [(), (), (3,)]), (2, [(), (2,), (2, 3)]), (3, [(1,), (1, 2), (1, 2, 3)])],
)
def test_who_leaves_an_isr_is_eligible_where_it_becomes_smaller_than_its_minimum(least, eligible):
    steps = elect([], least=least).steps
    assert [step.broker for step in steps] == [1, 2, 3]
    assert [set(step.state.elr) for step in steps] == [set(each) for each in eligible]


def test_an_eligible_replica_leads_and_is_the_isr():
    election = elect([StartingBroker(broker=2, is_clean=True)], least=2)
    assert (election.leader, election.way) == (2, Way.ELR)
    assert election.steps[-1].state.isr == (2,)
    assert 2 not in election.steps[-1].state.elr


def test_a_replica_that_was_killed_is_eligible_no_more():
    election = elect([StartingBroker(broker=2, is_clean=False)], least=2)
    assert (election.leader, election.missing) == (-1, (3,))
