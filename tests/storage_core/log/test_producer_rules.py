"""What producers may append: sequences, epochs, transactions."""

import itertools

import pytest

from storage_core import errors
from storage_core.formats.control import ControlType
from storage_core.index.segment_indexes import AbortedTxn
from storage_core.kernels.producer_scan import NOT_A_MARKER
from storage_core.log import producer_state
from storage_core.log.producer_snapshot import ProducerEntry

CLIENT, COORDINATOR, REPLICATION = (
    producer_state.AppendOrigin.CLIENT,
    producer_state.AppendOrigin.COORDINATOR,
    producer_state.AppendOrigin.REPLICATION,
)
LAST = 2**31 - 1
offsets = itertools.count(0, 10)


def new_state(entries=()):
    return producer_state.ProducerState(
        entries, remembered_batches=producer_state.REMEMBERED_BATCHES
    )


def event(epoch, offset, **fields):
    settings = {"control_type": NOT_A_MARKER, "last_sequence": -1, "offset_delta": 0}
    settings |= {"is_transactional": True, "timestamp": 5, "coordinator_epoch": -1}
    settings |= {"last_offset": offset} | fields
    return producer_state.ProducerEvent(
        producer_id=1, producer_epoch=epoch, position=0, first_offset=offset, **settings
    )


def data(epoch, sequence, *, count=1, is_transactional=False):
    first = next(offsets)
    return event(
        epoch,
        first,
        last_offset=first + count - 1,
        offset_delta=count - 1,
        last_sequence=(sequence + count - 1) & LAST,
        timestamp=first,
        is_transactional=is_transactional,
    )


def marker(epoch, *, coordinator_epoch=0, is_abort=False):
    kind = ControlType.ABORT if is_abort else ControlType.COMMIT
    return event(epoch, next(offsets), control_type=kind, coordinator_epoch=coordinator_epoch)


def append(state, *batches, origin=CLIENT, producer_id=1, version=1):
    """Append batches as one append; return what each marker ends."""
    current = state.producers.get(producer_id, ProducerEntry(producer_id=producer_id))
    info = producer_state.ProducerAppendInfo("t-0", current, origin)
    ended = [(batch, info.append(batch, version)) for batch in batches]
    infos = {producer_id: info}
    state.take(producer_state.ProducerChanges(place="t-0", origin=origin, infos=infos))
    return [completed for batch, completed in ended if batch.control_type != NOT_A_MARKER]


def complete(state, *transactions):
    """Let transactions end; return what the transaction index gets."""
    changes = producer_state.ProducerChanges(
        place="t-0", origin=COORDINATOR, completed=list(transactions)
    )
    return state.take_indexed(changes)


def first_unstable_offset(state):
    return state.transactions.first_unstable_offset


@pytest.mark.item("PRD-01", "PRD-07")
def test_the_sixth_batch_pushes_out_the_first():
    producers = new_state()
    batches = [data(0, 3 * number, count=3) for number in range(6)]
    for batch in batches:
        append(producers, batch)
    assert producers.find_duplicate(batches[0]) is None
    for batch in batches[1:]:
        found = producers.find_duplicate(batch)
        assert (found.first_offset, found.last_offset) == (batch.first_offset, batch.last_offset)
    assert producers.find_duplicate(data(1, 15, count=3)) is None, "another epoch"
    assert producers.find_duplicate(data(0, 15, count=2)) is None, "another end"
    assert producers.find_duplicate(batches[1]._replace(producer_id=2)) is None, "another producer"


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
        producers = new_state()
        if before is not None:
            append(producers, data(*before))
        if is_fine or origin is not CLIENT:
            append(producers, data(epoch, sequence), origin=origin)
            assert producers.producers[1].last_sequence == sequence
        else:
            with pytest.raises(errors.OutOfOrderSequenceError):
                append(producers, data(epoch, sequence), origin=origin)
            assert producers.producers[1].last_sequence == before[1]


@pytest.mark.item("PRD-08")
def test_after_a_marker_that_bumps_the_epoch_sequences_begin_at_0():
    producers = new_state()
    append(producers, data(0, 8, is_transactional=True))
    append(producers, marker(1), origin=COORDINATOR, version=2)
    with pytest.raises(errors.OutOfOrderSequenceError):
        append(producers, data(1, 9, is_transactional=True))
    append(producers, data(1, 0, is_transactional=True))


@pytest.mark.item("PRD-09")
def test_an_old_epoch_is_refused_but_replicated():
    for origin in (CLIENT, COORDINATOR):
        producers = new_state()
        append(producers, data(3, 0))
        with pytest.raises(errors.InvalidProducerEpochError):
            append(producers, data(2, 1), origin=origin)
    append(producers, data(2, 1), origin=REPLICATION)
    assert producers.producers[1].producer_epoch == 2


@pytest.mark.item("PRD-09")
@pytest.mark.parametrize(
    ("version", "epoch", "is_fine"),
    [(0, 3, True), (1, 3, True), (1, 2, False), (2, 4, True), (2, 3, False), (2, 2, False)],
)
def test_a_marker_of_version_2_needs_a_higher_epoch(version, epoch, is_fine):
    producers = new_state()
    append(producers, data(3, 0, is_transactional=True))
    if is_fine:
        [completed] = append(producers, marker(epoch), origin=COORDINATOR, version=version)
        assert completed is not None
    else:
        with pytest.raises(errors.InvalidProducerEpochError):
            append(producers, marker(epoch), origin=COORDINATOR, version=version)


@pytest.mark.item("PRD-09")
def test_a_marker_of_version_2_may_be_sent_again():
    producers = new_state()
    append(producers, data(3, 0, is_transactional=True))
    append(producers, marker(4), origin=COORDINATOR, version=2)
    assert append(producers, marker(4), origin=COORDINATOR, version=2) == [None]
    last = new_state()
    append(last, data(2**15 - 1, 0, is_transactional=True))
    [completed] = append(last, marker(2**15 - 1), origin=COORDINATOR, version=2)
    assert completed is not None, "no epoch follows the last one"


@pytest.mark.item("PRD-09")
def test_a_coordinator_that_was_replaced_is_fenced_but_its_markers_are_replicated():
    producers = new_state()
    append(producers, marker(0, coordinator_epoch=5), origin=COORDINATOR)
    with pytest.raises(errors.TransactionCoordinatorFencedError):
        append(producers, marker(0, coordinator_epoch=4), origin=COORDINATOR)
    append(producers, marker(0, coordinator_epoch=4), origin=REPLICATION)
    assert producers.producers[1].coordinator_epoch == 4


def test_a_marker_needs_a_version_unless_it_is_replicated():
    producers = new_state()
    with pytest.raises(errors.InvalidAppendError):
        append(producers, marker(0), origin=COORDINATOR, version=-1)
    append(producers, marker(0), origin=REPLICATION, version=-1)


@pytest.mark.parametrize("origin", producer_state.AppendOrigin)
def test_a_plain_batch_within_a_transaction_is_refused_from_everybody(origin):
    producers = new_state()
    append(producers, data(0, 0, is_transactional=True))
    is_load = origin is producer_state.AppendOrigin.LOAD
    with pytest.raises(errors.InvalidTxnStateError if is_load else errors.ProducerTxnStateError):
        append(producers, data(0, 1), origin=origin)


@pytest.mark.item("PRD-06")
def test_the_last_stable_offset_after_a_transaction_is_where_the_oldest_other_began():
    producers = new_state()
    first, second = data(0, 0, is_transactional=True), data(0, 0, is_transactional=True)
    append(producers, first, producer_id=1)
    append(producers, second, producer_id=2)
    [ends] = append(producers, marker(0, is_abort=True), origin=COORDINATOR, producer_id=2)
    [entry] = complete(producers, ends)
    assert entry == AbortedTxn(
        producer_id=2,
        first_offset=second.first_offset,
        last_offset=ends.last_offset,
        last_stable_offset=first.first_offset,
    )
    [last] = append(producers, marker(0, is_abort=True), origin=COORDINATOR, producer_id=1)
    assert first_unstable_offset(producers) == first.first_offset
    [entry] = complete(producers, last)
    assert entry.last_stable_offset == last.last_offset + 1
    producers.transactions.advance_high_watermark(ends.last_offset + 1)
    assert first_unstable_offset(producers) == first.first_offset
    producers.transactions.advance_high_watermark(last.last_offset + 1)
    assert first_unstable_offset(producers) is None
    with pytest.raises(errors.InvalidAppendError):
        complete(producers, last)


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
    producers = new_state(entries)
    assert list(producers.producers.values()) == entries
    assert first_unstable_offset(producers) == 40
    assert producers.transactions.first_offsets == {1: 40}
    again = event(
        2, 47, last_offset=50, offset_delta=3, last_sequence=9, is_transactional=True, timestamp=78
    )
    assert producers.find_duplicate(again).timestamp == 77
    assert producers.find_duplicate(again._replace(producer_id=2, producer_epoch=1)) is None
    later = new_state()
    later.load(entries, now_ms=1_000, expiration_ms=100)
    assert list(later.producers) == [1], "an open transaction does not expire"
