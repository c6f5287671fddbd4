"""Who ends a transaction that is open in a log."""

from typing import Any

import pytest

from storage_core.coordinators.transactions import (
    HoldingTransaction,
    TransactionCoordinators,
    TransactionEnding,
    TransactionImage,
    TransactionOutcome,
    TransactionState,
    judge_open_transactions,
    name_absent_coordinators,
)
from storage_core.filenames import TopicPartition
from storage_core.log.open_transactions import OpenTransaction
from storage_core.messages.internal_records import Problem
from tests.storage_core.coordinators.coordinator_events import COMMITTED_MS, transaction

PLACE = TopicPartition("t", 0)
V2 = {"client_transaction_version": 2}
COMPLETE = {"transaction_status": 4, "transaction_partitions": ()}
PREFIX = "kafka-transactions.sh --bootstrap-server HOST:PORT"


def open_at(first_offset: int, producer_id: int = 7) -> OpenTransaction:
    return OpenTransaction(
        producer_id=producer_id,
        producer_epoch=0,
        first_offset=first_offset,
        last_timestamp=COMMITTED_MS,
        age_ms=0,
        is_late=False,
    )


def judge(
    *opened: OpenTransaction,
    now_ms: int = COMMITTED_MS,
    is_complete: bool = True,
    place: TopicPartition = PLACE,
    **fields: Any,
) -> list[HoldingTransaction]:
    image = TransactionImage()
    image.apply(transaction(3, "tx", **fields))
    coordinators = TransactionCoordinators.of(
        image.entries, absent="" if is_complete else "one is missing"
    )
    return list(judge_open_transactions({place: opened}, coordinators, now_ms=now_ms))


@pytest.mark.item("REP-18")
@pytest.mark.parametrize(
    ("status", "verdict"),
    [
        (0, TransactionEnding.HANGING),
        (1, TransactionEnding.ONGOING),
        (2, TransactionEnding.ENDING),
        (3, TransactionEnding.ENDING),
        (4, TransactionEnding.HANGING),
        (5, TransactionEnding.HANGING),
        (6, TransactionEnding.HANGING),
        (7, TransactionEnding.ENDING),
    ],
)
def test_the_state_of_the_coordinator_says_who_ends_it(status: int, verdict: TransactionEnding):
    (holding,) = judge(open_at(5), transaction_status=status)
    assert holding.verdict is verdict
    assert holding.entry.transactional_id == "tx"


# What a coordinator's newest record says of data in epoch 5: fields of the record, and the outcome.
OUTCOMES: dict[str, tuple[dict[str, Any], str]] = {
    "prepared": ({"transaction_status": 2, "producer_epoch": 5}, "commit"),
    "prepared-v2": ({"transaction_status": 2, "producer_epoch": 6, **V2}, "commit"),
    "prepared-of-a-later": ({"transaction_status": 2, "producer_epoch": 6}, "undecided"),
    "prepared-of-a-later-v2": ({"transaction_status": 2, "producer_epoch": 7, **V2}, "undecided"),
    "prepared-before-v2": ({"transaction_status": 2, "producer_epoch": 5, **V2}, "undecided"),
    "aborted": ({"transaction_status": 3, "producer_epoch": 5}, "abort"),
    "fenced": ({"transaction_status": 3, "producer_epoch": 6}, "abort"),
    "fenced-v2": ({"transaction_status": 3, "producer_epoch": 6, **V2}, "abort"),
    "a-later-one-aborted": ({"transaction_status": 3, "producer_epoch": 7, **V2}, "undecided"),
    "ongoing": ({"transaction_status": 1, "producer_epoch": 5}, "abort"),
    "ongoing-v2": ({"transaction_status": 1, "producer_epoch": 5, **V2}, "abort"),
    "a-later-one-goes-on": ({"transaction_status": 1, "producer_epoch": 6, **V2}, "undecided"),
    "an-earlier-record": ({"transaction_status": 1, "producer_epoch": 4, **V2}, "undecided"),
    "two-phase": (
        {"transaction_status": 1, "producer_epoch": 5, "transaction_timeout_ms": 2**31 - 1},
        "undecided",
    ),
    "elsewhere": (
        {"transaction_status": 2, "producer_epoch": 6, "transaction_partitions": (), **V2},
        "undecided",
    ),
    "complete": ({**COMPLETE, "producer_epoch": 5}, "undecided"),
    "complete-v2": ({**COMPLETE, "producer_epoch": 6, **V2}, "commit"),
    "complete-abort-v2": (
        {**COMPLETE, "transaction_status": 5, "producer_epoch": 6, **V2},
        "abort",
    ),
    "another-since-v2": ({**COMPLETE, "producer_epoch": 7, **V2}, "undecided"),
    "empty": ({**COMPLETE, "transaction_status": 0, "producer_epoch": 6}, "undecided"),
}


@pytest.mark.parametrize(("fields", "outcome"), OUTCOMES.values(), ids=OUTCOMES.keys())
def test_the_newest_record_decides_the_transaction_of_its_epoch_alone(fields, outcome):
    image = TransactionImage()
    image.apply(transaction(2, "tx", producer_epoch=4, transaction_status=1))
    image.apply(transaction(3, "tx", **fields))
    for absent in ("", "a partition is missing"):
        coordinators = TransactionCoordinators.of(image.entries, absent=absent)
        assert coordinators.decide(PLACE, 7, 5).outcome == outcome


def test_an_id_without_a_further_epoch_leads_to_its_successor():
    image = TransactionImage()
    fields = {**COMPLETE, "producer_id": 8, "previous_producer_id": 7, **V2}
    image.apply(transaction(3, "tx", **fields))
    coordinators = TransactionCoordinators.of(image.entries, absent="")
    assert coordinators.decide(PLACE, 7, 32766).outcome == "commit"
    assert coordinators.decide(PLACE, 7, 32765).outcome == "undecided"


def test_only_all_coordinators_can_say_that_there_is_no_such_transaction():
    some = name_absent_coordinators({0, 2}, 8)
    assert some == "6 of 8 partitions of __transaction_state are not given (1, 3, 4, ...)"
    assert "how many it has is not known" in name_absent_coordinators({0}, None)
    assert name_absent_coordinators(range(8), 8) == ""
    for absent, outcome in ((some, "undecided"), ("", "abort")):
        coordinators = TransactionCoordinators.of([], absent=absent)
        decision = coordinators.decide(PLACE, 7, 5)
        assert decision.outcome == outcome
        assert absent in decision.reason


def test_what_was_committed_is_not_aborted_by_hand():
    """Its marker is in another replica of the log."""
    (holding,) = judge(open_at(5), producer_epoch=1, **COMPLETE, **V2)
    assert (holding.verdict, holding.outcome, holding.command) == (
        TransactionEnding.ENDING,
        TransactionOutcome.COMMIT,
        "",
    )


@pytest.mark.item("REP-18")
def test_a_transaction_is_overdue_only_after_its_timeout():
    (at_limit,) = judge(open_at(5), now_ms=COMMITTED_MS + 60_000)
    (over,) = judge(open_at(5), now_ms=COMMITTED_MS + 60_001)
    assert (at_limit.verdict, over.verdict) == (
        TransactionEnding.ONGOING,
        TransactionEnding.OVERDUE,
    )
    assert (at_limit.command, over.command) == ("", "")


@pytest.mark.item("REP-18")
def test_nobody_ends_what_the_coordinator_does_not_have_there():
    elsewhere = ({"topic": "t", "partition_ids": (1,)},)
    (holding,) = judge(open_at(5), transaction_partitions=elsewhere)
    assert holding.verdict is TransactionEnding.HANGING
    assert holding.command == f"{PREFIX} abort --topic t --partition 0 --start-offset 5"
    (unknown_producer,) = judge(open_at(5, producer_id=99))
    assert (unknown_producer.verdict, unknown_producer.entry) == (TransactionEnding.HANGING, None)


@pytest.mark.item("REP-18")
def test_nobody_can_say_so_while_a_partition_of_the_coordinator_is_missing():
    (holding,) = judge(open_at(5, producer_id=99), is_complete=False)
    assert holding.verdict is TransactionEnding.UNKNOWN
    assert holding.command == f"{PREFIX} find-hanging --topic t --partition 0"


def test_a_topic_in_a_command_is_quoted():
    place = TopicPartition("a topic", 0)
    (holding,) = judge(open_at(5, producer_id=99), place=place)
    assert "--topic 'a topic' " in holding.command


def test_committed_reads_stop_at_the_first_of_a_partition():
    first, second = judge(open_at(9, producer_id=8), open_at(5))
    assert [(h.open.first_offset, h.holds_stable_offset) for h in (first, second)] == [
        (5, True),
        (9, False),
    ]


@pytest.mark.item("REP-18")
def test_the_newest_record_of_a_transactional_id_counts_until_it_is_removed():
    image = TransactionImage()
    image.apply(transaction(0, "tx"))
    image.apply(transaction(1, "tx", transaction_status=4, transaction_partitions=()))
    (entry,) = image.entries
    assert (entry.state, entry.partitions) == (TransactionState.COMPLETE_COMMIT, ())
    assert not entry.is_in_flight
    removed = transaction(2, "tx")
    fields = {"type_id": 0, "key": removed.decoded.key, "is_tombstone": True}
    image.apply(_with(removed, **fields))
    assert image.entries == ()


@pytest.mark.item("REP-18")
def test_a_status_that_kafka_does_not_have_is_not_understood():
    image = TransactionImage()
    image.apply(transaction(0, "tx", transaction_status=8))
    assert image.entries == ()
    assert [(u.problem, u.count) for u in image.undecoded] == [(Problem.MALFORMED, 1)]


def _with(event: Any, **fields: Any) -> Any:
    decoded = type(event.decoded)(**fields)
    return type(event)(
        offset=event.offset, timestamp_ms=0, producer_id=event.producer_id, decoded=decoded
    )
