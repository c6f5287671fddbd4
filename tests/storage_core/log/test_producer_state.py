"""Producers and transactions, replayed batch by batch."""

from collections.abc import Sequence
from typing import Any

import pytest

from storage_core.errors import InvalidRecordError, InvalidTxnStateError
from storage_core.filenames import log_file
from storage_core.formats.control import ControlType
from storage_core.log.producer_snapshot import ProducerEntry
from storage_core.log.producer_state import ProducerState, events_of_windows
from tests.kit.builders import (
    SOME_TIME_MS,
    BatchSpec,
    RecordSpec,
    end_txn_marker,
    leader_change_batch,
)
from tests.kit.legacy import encoded
from tests.storage_core.records.memory_file import windows_of

P, Q = 1000, 2000
DAY_MS = 86_400_000


def data(base_offset: int, *, producer_id: int = P, count: int = 1, **fields: Any) -> BatchSpec:
    """A batch of an idempotent producer."""
    timestamp = fields.pop("timestamp", SOME_TIME_MS)
    settings = {"producer_epoch": 0, "base_sequence": 0} | fields
    return BatchSpec(
        records=(RecordSpec(key=b"k", value=b"v", timestamp=timestamp),) * count,
        base_offset=base_offset,
        producer_id=producer_id,
        **settings,
    )


def in_txn(base_offset: int, **fields: Any) -> BatchSpec:
    return data(base_offset, is_transactional=True, **fields)


def marker(base_offset: int, *, producer_id: int = P, **fields: Any) -> BatchSpec:
    settings = {"producer_epoch": 0} | fields
    return end_txn_marker(base_offset=base_offset, producer_id=producer_id, **settings)


def replayed(*batches: BatchSpec, state: ProducerState | None = None) -> ProducerState:
    state = state or ProducerState()
    state.replay(log_file(0), events_of_windows(windows_of(encoded(batches))))
    return state


def last_batch(state: ProducerState, producer_id: int = P) -> tuple[int, int, int]:
    entry = state.producers[producer_id]
    return entry.last_sequence, entry.last_offset, entry.offset_delta


def known(**fields: Any) -> ProducerState:
    """A state that was loaded from a snapshot with one producer."""
    state = ProducerState()
    entry = ProducerEntry(**{"producer_id": P, "producer_epoch": 0} | fields)
    state.load([entry], now_ms=SOME_TIME_MS, expiration_ms=2**62)
    return state


@pytest.mark.item("PRD-02")
def test_a_batch_leaves_its_sequence_offset_and_largest_timestamp():
    state = replayed(
        data(5, count=3, base_sequence=40, max_timestamp=SOME_TIME_MS + 9, producer_epoch=4)
    )
    assert state.producers[P] == ProducerEntry(
        producer_id=P,
        producer_epoch=4,
        last_sequence=42,
        last_offset=7,
        offset_delta=2,
        last_timestamp=SOME_TIME_MS + 9,
    )


def test_batches_without_a_producer_are_none_of_its_business():
    plain = BatchSpec(records=(RecordSpec(key=b"k"),))
    state = replayed(plain, leader_change_batch(base_offset=1, leader_epoch=3))
    assert state.producers == {}
    assert state.transactions.first_unstable_offset is None


@pytest.mark.item("PRD-02")
def test_a_sequence_goes_on_at_zero_after_its_largest():
    assert last_batch(replayed(data(0, count=3, base_sequence=2**31 - 2))) == (0, 2, 2)


@pytest.mark.item("PRD-02")
def test_another_epoch_clears_what_was_known_of_the_last_batch():
    state = known(last_sequence=9, last_offset=30, offset_delta=1, last_timestamp=7)
    replayed(marker(50, producer_epoch=1, timestamp=8), state=state)
    assert last_batch(state) == (-1, -1, 0)
    assert state.producers[P].producer_epoch == 1


@pytest.mark.item("PRD-02")
def test_the_same_epoch_keeps_the_last_batch_when_only_a_marker_follows():
    state = known(last_sequence=9, last_offset=30, offset_delta=1, current_txn_first_offset=30)
    replayed(marker(50, timestamp=8), state=state)
    assert last_batch(state) == (9, 30, 1)
    assert state.producers[P].last_timestamp == 8


@pytest.mark.item("PRD-04")
def test_a_marker_that_raises_the_epoch_ends_the_transaction_of_the_lower_one():
    """Transaction version 2 raises the epoch with every marker."""
    state = replayed(in_txn(0), marker(1, producer_epoch=1))
    entry = state.producers[P]
    assert (entry.producer_epoch, entry.current_txn_first_offset) == (1, -1)
    assert last_batch(state) == (-1, -1, 0)
    replayed(in_txn(2, producer_epoch=1, base_sequence=0), state=state)
    assert last_batch(state) == (0, 2, 0)


@pytest.mark.item("PRD-03")
def test_the_first_transactional_batch_opens_a_transaction_and_the_next_one_does_not():
    state = replayed(in_txn(10), in_txn(11, base_sequence=1))
    assert state.producers[P].current_txn_first_offset == 10
    assert state.transactions.first_unstable_offset == 10


@pytest.mark.item("PRD-03")
def test_a_plain_batch_amid_an_open_transaction_is_refused_with_its_place():
    with pytest.raises(InvalidTxnStateError, match="open since offset 10") as caught:
        replayed(in_txn(10), data(11))
    assert caught.value.file == "00000000000000000000.log"
    assert caught.value.position > 0


@pytest.mark.item("PRD-03")
def test_a_plain_batch_after_the_transaction_is_fine():
    state = replayed(in_txn(10), marker(11), data(12, base_sequence=1))
    assert last_batch(state) == (1, 12, 0)


@pytest.mark.item("PRD-04")
def test_a_marker_closes_the_transaction_and_notes_its_coordinator():
    state = replayed(
        in_txn(10), marker(11, coordinator_epoch=6, timestamp=SOME_TIME_MS + 5, producer_epoch=0)
    )
    assert state.producers[P] == ProducerEntry(
        producer_id=P,
        producer_epoch=0,
        last_sequence=0,
        last_offset=10,
        last_timestamp=SOME_TIME_MS + 5,
        coordinator_epoch=6,
    )


@pytest.mark.item("PRD-04")
def test_a_marker_that_comes_again_only_updates_the_producer():
    state = replayed(in_txn(10), marker(11), marker(12, coordinator_epoch=3, timestamp=77))
    entry = state.producers[P]
    assert (entry.coordinator_epoch, entry.last_timestamp) == (3, 77)
    state.transactions.advance_high_watermark(12)
    assert state.transactions.first_unstable_offset is None


@pytest.mark.item("PRD-04")
def test_an_emptied_control_batch_changes_nothing():
    empty = BatchSpec(
        base_offset=11, producer_id=P, producer_epoch=5, is_transactional=True, is_control=True
    )
    state = replayed(in_txn(10), empty)
    assert state.producers[P].current_txn_first_offset == 10
    assert state.producers[P].producer_epoch == 0


@pytest.mark.item("PRD-05")
@pytest.mark.parametrize("kind", [ControlType.COMMIT, ControlType.ABORT], ids=str)
def test_an_ended_transaction_is_unstable_until_the_high_watermark_passes_its_marker(kind):
    state = replayed(in_txn(10), in_txn(11, base_sequence=1), marker(12, control_type=kind))
    for high_watermark, unstable in ((10, 10), (12, 10), (13, None)):
        state.transactions.advance_high_watermark(high_watermark)
        assert state.transactions.first_unstable_offset == unstable


@pytest.mark.item("PRD-05")
def test_the_oldest_transaction_that_is_open_or_ended_above_the_high_watermark_counts():
    state = replayed(in_txn(10), in_txn(11, producer_id=Q), marker(12), in_txn(13, base_sequence=1))
    state.transactions.advance_high_watermark(12)
    assert state.transactions.first_unstable_offset == 10
    state.transactions.advance_high_watermark(13)
    assert state.transactions.first_unstable_offset == 11
    replayed(marker(14, producer_id=Q), state=state)
    state.transactions.advance_high_watermark(15)
    assert state.transactions.first_unstable_offset == 13


@pytest.mark.item("PRD-05")
def test_an_open_transaction_of_a_snapshot_is_unstable():
    state = known(current_txn_first_offset=4, last_offset=6, last_timestamp=0)
    assert state.transactions.first_unstable_offset == 4
    replayed(marker(20), state=state)
    state.transactions.advance_high_watermark(21)
    assert state.transactions.first_unstable_offset is None


def test_a_marker_for_a_transaction_that_began_nowhere_is_refused():
    """Two producers with one first offset: the second marker finds nothing to end."""
    entries = [
        ProducerEntry(producer_id=producer, producer_epoch=0, current_txn_first_offset=4)
        for producer in (P, Q)
    ]
    state = ProducerState()
    state.load(entries, now_ms=0, expiration_ms=1)
    with pytest.raises(InvalidTxnStateError, match="not open"):
        replayed(marker(20), marker(21, producer_id=Q), state=state)


def test_a_control_record_of_another_type_from_a_producer_is_refused():
    with pytest.raises(InvalidRecordError, match="end-transaction marker"):
        replayed(marker(3, control_type=ControlType.LEADER_CHANGE))


@pytest.mark.item("PRD-15")
@pytest.mark.parametrize(
    ("age_ms", "first_offset", "stays"),
    [
        pytest.param(DAY_MS - 1, -1, True, id="a millisecond before"),
        pytest.param(DAY_MS, -1, False, id="at the limit"),
        pytest.param(DAY_MS + 1, -1, False, id="after it"),
        pytest.param(10 * DAY_MS, 3, True, id="long after, with an open transaction"),
    ],
)
def test_a_snapshots_producer_expires_by_the_clock_unless_its_transaction_is_open(
    age_ms, first_offset, stays
):
    entry = ProducerEntry(
        producer_id=P, last_timestamp=SOME_TIME_MS, current_txn_first_offset=first_offset
    )
    state = ProducerState()
    state.load([entry], now_ms=SOME_TIME_MS + age_ms, expiration_ms=DAY_MS)
    assert (P in state.producers) == stays


@pytest.mark.item("PRD-15")
def test_a_replayed_batch_is_not_asked_for_its_age():
    assert P in replayed(data(0, timestamp=0)).producers


@pytest.mark.item("PRD-12")
def test_a_snapshot_without_a_last_offset_remembers_no_batch():
    assert last_batch(known(last_sequence=8, last_offset=-1, offset_delta=3)) == (-1, -1, 0)


@pytest.mark.item("PRD-12")
def test_of_five_batches_the_last_is_remembered():
    batches = [data(10 * n, count=2, base_sequence=2 * n) for n in range(5)]
    assert last_batch(replayed(*batches)) == (9, 41, 1)


@pytest.mark.parametrize("window_bytes", [1, 200, 10_000])
def test_the_size_of_windows_does_not_matter(window_bytes):
    batches: Sequence[BatchSpec] = [
        in_txn(0),
        in_txn(1, producer_id=Q, count=4),
        marker(5, control_type=ControlType.ABORT),
        in_txn(6, base_sequence=1),
        marker(7, producer_id=Q, producer_epoch=1),
    ]
    whole = replayed(*batches)
    state = ProducerState()
    state.replay(
        log_file(0), events_of_windows(windows_of(encoded(batches), window_bytes=window_bytes))
    )
    assert state.producers == whole.producers
    assert state.transactions.first_unstable_offset == whole.transactions.first_unstable_offset == 0
