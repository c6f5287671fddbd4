"""Which transactions are open, and which of them nobody will end."""

from pathlib import Path

import pytest

from storage_core.config import CleanerConfig, LogConfig
from storage_core.log.log_loader import load_log
from storage_core.log.open_transactions import (
    LATE_TRANSACTION_BUFFER_MS,
    MAX_TRANSACTION_TIMEOUT_MS,
    OpenSpan,
    OpenTransactions,
    list_open_transactions,
)
from storage_core.log.producer_snapshot import ProducerEntry
from storage_core.store.local import LocalStore
from tests.kit.golden_data import goldens

BEGUN_MS = 1_700_000_000_000
LIMIT_MS = MAX_TRANSACTION_TIMEOUT_MS + LATE_TRANSACTION_BUFFER_MS


def producer(producer_id: int, first_offset: int, last_timestamp: int = BEGUN_MS) -> ProducerEntry:
    return ProducerEntry(
        producer_id=producer_id,
        producer_epoch=3,
        last_timestamp=last_timestamp,
        current_txn_first_offset=first_offset,
    )


@pytest.mark.item("PRD-17")
def test_only_open_transactions_are_listed_the_oldest_first():
    producers = [producer(1, 90), producer(2, -1), producer(3, 40, BEGUN_MS + 7)]
    found = list_open_transactions(producers, now_ms=BEGUN_MS + 10)
    assert [(t.producer_id, t.first_offset, t.age_ms) for t in found] == [(3, 40, 3), (1, 90, 10)]
    assert found[0].producer_epoch == 3
    assert not any(transaction.is_late for transaction in found)


@pytest.mark.item("PRD-17")
@pytest.mark.parametrize(
    ("age_ms", "is_late"),
    [
        pytest.param(LIMIT_MS, False, id="as old as it may be"),
        pytest.param(LIMIT_MS + 1, True, id="a millisecond older"),
        pytest.param(-5, False, id="from the future"),
    ],
)
def test_a_transaction_is_late_after_timeout_and_buffer(age_ms, is_late):
    [found] = list_open_transactions([producer(1, 0)], now_ms=BEGUN_MS + age_ms)
    assert found.is_late is is_late


@pytest.mark.item("PRD-17")
def test_the_cluster_may_allow_longer_transactions_and_a_missing_time_is_never_late():
    now_ms = BEGUN_MS + LIMIT_MS + 1
    entries = [producer(1, 0), producer(2, 1, last_timestamp=-1)]
    by_default = list_open_transactions(entries, now_ms=now_ms)
    assert [t.is_late for t in by_default] == [True, False]
    [first, _] = list_open_transactions(
        entries, now_ms=now_ms, max_transaction_timeout_ms=MAX_TRANSACTION_TIMEOUT_MS + 1
    )
    assert not first.is_late


@pytest.mark.item("PRD-17")
def test_the_transaction_that_was_left_open_in_a_log_of_kafka_is_found(tmp_path: Path):
    [case] = goldens("clean-txn-open-mixed-s151")
    directory = case.unpack(tmp_path)
    now_ms = case.case["clock_ms"]
    log = load_log(
        LocalStore(directory), config=LogConfig(), cleaner=CleanerConfig(), now_ms=now_ms
    )
    found = list_open_transactions(log.producers, now_ms=now_ms)
    assert found
    assert found[0].first_offset >= log.last_stable_offset
    late = list_open_transactions(log.producers, now_ms=now_ms + 10 * LIMIT_MS)
    assert late[0].is_late


@pytest.mark.item("PRD-17")
def test_a_transaction_that_goes_on_keeps_its_beginning_and_is_as_new_as_its_newest_batch():
    transactions = OpenTransactions(keeps_ended=False)
    for first_offset, newest_ms in ((10, 500), (20, 900), (30, 700)):
        transactions.extend(1, OpenSpan(first_offset, newest_ms))
    assert transactions.spans == {1: OpenSpan(10, 900)}
    assert transactions.first_unstable_offset == 10
    assert transactions.end(1, 40) == OpenSpan(10, 900)
    assert transactions.end(1, 41) is None
    assert transactions.first_unstable_offset is None
    transactions.extend(1, OpenSpan(50, 3))
    assert transactions.spans == {1: OpenSpan(50, 3)}, "nothing of the one before"


def test_two_producers_that_began_at_one_offset_hold_nothing_back_once_both_have_ended():
    transactions = OpenTransactions(keeps_ended=True)
    for producer_id in (1, 2):
        transactions.begin(producer_id, 4)
    assert transactions.complete(1, 4, 9)
    assert not transactions.complete(2, 4, 10), "Kafka refuses a log that does this"
    assert transactions.first_offsets == {}
    transactions.advance_high_watermark(10)
    assert transactions.first_unstable_offset is None
