"""What a committed read sees."""

import pytest

from storage_core.formats.control import ControlType
from storage_core.index.segment_indexes import AbortedTxn
from storage_core.log.open_transactions import TransactionTracker
from tests.kit.builders import (
    BatchSpec,
    RecordSpec,
    end_txn_marker,
    leader_change_batch,
)
from tests.storage_core.log.windows import windows_of

P, Q = 1000, 2000


def data(base_offset: int, producer_id: int, *, in_txn: bool = True) -> BatchSpec:
    return BatchSpec(
        records=(RecordSpec(key=b"k", value=b"v"),),
        base_offset=base_offset,
        producer_id=producer_id,
        producer_epoch=0,
        base_sequence=0,
        is_transactional=in_txn,
    )


def marker(base_offset: int, producer_id: int, kind: ControlType) -> BatchSpec:
    return end_txn_marker(
        base_offset=base_offset, producer_id=producer_id, producer_epoch=0, control_type=kind
    )


def aborted(producer_id: int, first_offset: int, last_offset: int) -> AbortedTxn:
    return AbortedTxn(
        producer_id=producer_id,
        first_offset=first_offset,
        last_offset=last_offset,
        last_stable_offset=last_offset + 1,
    )


# P aborts offsets 1 and 3, Q commits 2; then P commits 6.
LOG = [
    BatchSpec(records=(RecordSpec(key=b"k"),)),
    data(1, P),
    data(2, Q),
    data(3, P),
    marker(4, P, ControlType.ABORT),
    marker(5, Q, ControlType.COMMIT),
    data(6, P),
    marker(7, P, ControlType.COMMIT),
    leader_change_batch(base_offset=8, leader_epoch=1),
    data(9, P, in_txn=False),
]


def visible_offsets(entries: list[AbortedTxn], first: int = 0, window_bytes: int = 10_000):
    view = TransactionTracker(entries)
    return [
        int(offset)
        for window in windows_of(LOG[first:], window_bytes=window_bytes)
        for offset in window.batches.base_offset[view.visible(window.batches)]
    ]


@pytest.mark.parametrize("window_bytes", [1, 150, 10_000])
def test_aborted_batches_and_markers_are_left_out(window_bytes):
    assert visible_offsets([aborted(P, 1, 4)], window_bytes=window_bytes) == [0, 2, 6, 9]


def test_a_read_may_begin_inside_an_aborted_transaction():
    assert visible_offsets([aborted(P, 1, 4)], first=3) == [6, 9]


def test_a_read_after_the_abort_marker_sees_the_producer_again():
    assert visible_offsets([], first=5) == [6, 9]


def test_without_an_entry_nothing_but_markers_is_left_out():
    assert visible_offsets([]) == [0, 1, 2, 3, 6, 9]


def test_an_aborted_transaction_hides_only_its_own_producers_batches():
    assert visible_offsets([aborted(Q, 2, 5)]) == [0, 1, 3, 6, 9]
