"""Who ends a transaction that is open in a log."""

from typing import Any

import pytest

from storage_core.coordinators.transactions import (
    HoldingTransaction,
    TransactionEnding,
    TransactionImage,
    TransactionState,
    judge_open_transactions,
)
from storage_core.filenames import TopicPartition
from storage_core.log.open_transactions import OpenTransaction
from storage_core.messages.internal_records import Problem
from tests.storage_core.coordinators.coordinator_events import COMMITTED_MS, transaction

PLACE = TopicPartition("t", 0)
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
    return list(
        judge_open_transactions(
            {place: opened}, image.entries, now_ms=now_ms, is_complete=is_complete
        )
    )


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
    assert holding.entry is not None
    assert holding.entry.transactional_id == "tx"


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
