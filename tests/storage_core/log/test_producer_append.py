"""What producers may append: sequences, epochs, transactions."""

import itertools

import pytest

from storage_core.errors import (
    InvalidAppendError,
    InvalidProducerEpochError,
    OutOfOrderSequenceError,
    ProducerTxnStateError,
    TransactionCoordinatorFencedError,
)
from storage_core.log.producer_append import (
    ActiveProducers,
    AppendOrigin,
    DataBatch,
    EndTxnMarker,
)
from storage_core.log.producer_snapshot import ProducerEntry

CLIENT, COORDINATOR, REPLICATION = (
    AppendOrigin.CLIENT,
    AppendOrigin.COORDINATOR,
    AppendOrigin.REPLICATION,
)
LAST = 2**31 - 1
offsets = itertools.count(0, 10)


def data(epoch, sequence, *, count=1, is_transactional=False):
    first = next(offsets)
    return DataBatch(
        producer_epoch=epoch,
        first_sequence=sequence,
        last_sequence=(sequence + count - 1) & LAST,
        first_offset=first,
        last_offset=first + count - 1,
        max_timestamp=first,
        is_transactional=is_transactional,
    )


def marker(epoch, *, version=1, coordinator_epoch=0, is_abort=False):
    return EndTxnMarker(
        producer_epoch=epoch,
        coordinator_epoch=coordinator_epoch,
        is_abort=is_abort,
        offset=next(offsets),
        timestamp=5,
        transaction_version=version,
    )


def append(producers, *batches, origin=CLIENT, producer_id=1):
    info = producers.prepare("t-0", producer_id, origin)
    completed = []
    for batch in batches:
        if isinstance(batch, DataBatch):
            info.append_data(batch)
        else:
            completed.append(info.append_marker(batch))
    producers.update(info)
    return completed


@pytest.mark.item("PRD-01", "PRD-07")
def test_the_sixth_batch_pushes_out_the_first():
    producers = ActiveProducers()
    batches = [data(0, 3 * number, count=3) for number in range(6)]
    for batch in batches:
        append(producers, batch)
    entry = producers.producers[1]
    assert [b.first_sequence for b in entry.batches] == [3, 6, 9, 12, 15]
    assert producers.find_duplicate(1, batches[0]) is None
    for batch in batches[1:]:
        found = producers.find_duplicate(1, batch)
        assert (found.first_offset, found.last_offset) == (batch.first_offset, batch.last_offset)
    assert producers.find_duplicate(1, data(1, 15, count=3)) is None, "another epoch"
    assert producers.find_duplicate(1, data(0, 15, count=2)) is None, "another end"
    assert producers.find_duplicate(2, batches[1]) is None, "another producer"


@pytest.mark.item("PRD-08")
@pytest.mark.parametrize(
    ("before", "epoch", "sequence", "is_fine"),
    [
        pytest.param(None, 4, 77, True, id="unknown producer, any start"),
        pytest.param((0, 5), 0, 6, True, id="the next one"),
        pytest.param((0, 5), 0, 5, False, id="repeated"),
        pytest.param((0, 5), 0, 7, False, id="gap"),
        pytest.param((0, LAST), 0, 0, True, id="wraps to 0"),
        pytest.param((0, LAST), 0, 1, False, id="wraps past 0"),
        pytest.param((0, 5), 1, 0, True, id="new epoch from 0"),
        pytest.param((0, 5), 1, 6, False, id="new epoch from elsewhere"),
    ],
)
def test_sequences_of_clients_follow_each_other(before, epoch, sequence, is_fine):
    for origin in (CLIENT, COORDINATOR, REPLICATION):
        producers = ActiveProducers()
        if before is not None:
            append(producers, data(*before))
        if is_fine or origin is not CLIENT:
            append(producers, data(epoch, sequence), origin=origin)
            assert producers.producers[1].last_sequence == sequence
        else:
            with pytest.raises(OutOfOrderSequenceError):
                append(producers, data(epoch, sequence), origin=origin)
            assert producers.producers[1].last_sequence == before[1]


@pytest.mark.item("PRD-08")
def test_after_a_marker_that_bumps_the_epoch_sequences_begin_at_0():
    producers = ActiveProducers()
    append(producers, data(0, 8, is_transactional=True))
    append(producers, marker(1, version=2), origin=COORDINATOR)
    with pytest.raises(OutOfOrderSequenceError):
        append(producers, data(1, 9, is_transactional=True))
    append(producers, data(1, 0, is_transactional=True))


@pytest.mark.item("PRD-09")
def test_an_old_epoch_is_refused_but_replicated():
    for origin in (CLIENT, COORDINATOR):
        producers = ActiveProducers()
        append(producers, data(3, 0))
        with pytest.raises(InvalidProducerEpochError):
            append(producers, data(2, 1), origin=origin)
    append(producers, data(2, 1), origin=REPLICATION)
    assert producers.producers[1].producer_epoch == 2


@pytest.mark.item("PRD-09")
@pytest.mark.parametrize(
    ("version", "epoch", "is_fine"),
    [(0, 3, True), (1, 3, True), (1, 2, False), (2, 4, True), (2, 3, False), (2, 2, False)],
)
def test_a_marker_of_version_2_needs_a_higher_epoch(version, epoch, is_fine):
    producers = ActiveProducers()
    append(producers, data(3, 0, is_transactional=True))
    if is_fine:
        [completed] = append(producers, marker(epoch, version=version), origin=COORDINATOR)
        assert completed is not None
    else:
        with pytest.raises(InvalidProducerEpochError):
            append(producers, marker(epoch, version=version), origin=COORDINATOR)


@pytest.mark.item("PRD-09")
def test_a_marker_of_version_2_may_be_sent_again():
    producers = ActiveProducers()
    append(producers, data(3, 0, is_transactional=True))
    append(producers, marker(4, version=2), origin=COORDINATOR)
    assert append(producers, marker(4, version=2), origin=COORDINATOR) == [None]
    last = ActiveProducers()
    append(last, data(2**15 - 1, 0, is_transactional=True))
    [completed] = append(last, marker(2**15 - 1, version=2), origin=COORDINATOR)
    assert completed is not None, "no epoch follows the last one"


@pytest.mark.item("PRD-09")
def test_a_coordinator_that_was_replaced_is_fenced_but_its_markers_are_replicated():
    producers = ActiveProducers()
    append(producers, marker(0, coordinator_epoch=5), origin=COORDINATOR)
    with pytest.raises(TransactionCoordinatorFencedError):
        append(producers, marker(0, coordinator_epoch=4), origin=COORDINATOR)
    append(producers, marker(0, coordinator_epoch=4), origin=REPLICATION)
    assert producers.producers[1].coordinator_epoch == 4


def test_a_marker_needs_a_version_unless_it_is_replicated():
    producers = ActiveProducers()
    with pytest.raises(InvalidAppendError):
        append(producers, marker(0, version=-1), origin=COORDINATOR)
    append(producers, marker(0, version=-1), origin=REPLICATION)


@pytest.mark.parametrize("origin", AppendOrigin)
def test_a_plain_batch_within_a_transaction_is_refused_from_everybody(origin):
    producers = ActiveProducers()
    append(producers, data(0, 0, is_transactional=True))
    with pytest.raises(ProducerTxnStateError):
        append(producers, data(0, 1), origin=origin)


@pytest.mark.item("PRD-06")
def test_the_last_stable_offset_after_a_transaction_is_where_the_oldest_other_began():
    producers = ActiveProducers()
    first, second = data(0, 0, is_transactional=True), data(0, 0, is_transactional=True)
    append(producers, first, producer_id=1)
    append(producers, second, producer_id=2)
    [ends] = append(producers, marker(0, is_abort=True), origin=COORDINATOR, producer_id=2)
    assert producers.last_stable_offset_after(ends) == first.first_offset
    producers.complete(ends)
    [last] = append(producers, marker(0, is_abort=True), origin=COORDINATOR, producer_id=1)
    assert producers.last_stable_offset_after(last) == last.last_offset + 1
    assert producers.first_unstable_offset == first.first_offset
    producers.complete(last)
    producers.forget_completed_below(ends.last_offset + 1)
    assert producers.first_unstable_offset == first.first_offset
    producers.forget_completed_below(last.last_offset + 1)
    assert producers.first_unstable_offset is None
    with pytest.raises(InvalidAppendError):
        producers.complete(last)


@pytest.mark.item("PRD-01")
def test_a_snapshot_brings_back_one_batch_and_the_open_transaction():
    entries = [
        ProducerEntry(
            producer_id=1,
            producer_epoch=2,
            last_sequence=9,
            last_offset=50,
            offset_delta=3,
            last_timestamp=77,
            coordinator_epoch=6,
            current_txn_first_offset=40,
        ),
        ProducerEntry(producer_id=2, producer_epoch=1, last_timestamp=5),
    ]
    producers = ActiveProducers(entries)
    assert producers.snapshot() == entries
    assert producers.first_unstable_offset == 40
    assert producers.has_ongoing_transaction(1, 2)
    assert not producers.has_ongoing_transaction(1, 3)
    producers.expire(now_ms=1_000, expiration_ms=100)
    assert list(producers.producers) == [1], "an open transaction does not expire"
