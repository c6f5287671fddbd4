"""Transactions of a log: what a committed read sees of them, and which are open."""

import json
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from storage_core.formats.control import ControlType
from storage_core.index.segment_indexes import AbortedTxn
from storage_core.kernels.transaction_scan import DATA
from storage_core.log.open_transactions import (
    LATE_TRANSACTION_BUFFER_MS,
    MAX_TRANSACTION_TIMEOUT_MS,
    OpenSpan,
    OpenTransactions,
    TransactionRows,
    TransactionTracker,
    list_open_transactions,
)
from storage_core.log.producer_snapshot import ProducerEntry
from tests.kit import builders
from tests.kit.decode import DecodedBatch, decode_segment
from tests.kit.golden_data import goldens
from tests.kit.legacy import encoded
from tests.kit.one_partition import load_partition
from tests.reference.compaction import AbortedTxn as ReferenceAbortedTxn
from tests.reference.compaction import Transactions, is_control
from tests.storage_core.records.memory_file import windows_of

PRODUCERS = [7, 8, 2**62]


@dataclass(frozen=True)
class Step:
    """What a producer writes: data, plain data, a marker of that type, or an emptied marker."""

    producer_id: int
    what: str

    def batch(self, offset: int) -> builders.BatchSpec:
        identity = {"base_offset": offset, "producer_id": self.producer_id, "producer_epoch": 0}
        if self.what == "data":
            return builders.BatchSpec(
                records=(builders.RecordSpec(),), is_transactional=True, **identity
            )
        if self.what == "plain":
            return builders.BatchSpec(records=(builders.RecordSpec(),), **identity)
        if self.what == "emptied":
            return builders.BatchSpec(is_transactional=True, is_control=True, **identity)
        return builders.end_txn_marker(control_type=ControlType[self.what], **identity)


steps = st.lists(
    st.builds(
        Step,
        st.sampled_from(PRODUCERS),
        st.sampled_from(["data", "data", "plain", "emptied", "COMMIT", "ABORT", "LEADER_CHANGE"]),
    ),
    max_size=25,
)


@st.composite
def histories(draw: st.DrawFn) -> tuple[list[builders.BatchSpec], list[AbortedTxn], list[int]]:
    """Batches, entries of transaction indexes (not all of them true), and where to cut."""
    batches = [step.batch(offset) for offset, step in enumerate(draw(steps))]
    offsets = st.integers(0, len(batches))
    entries = draw(
        st.lists(
            st.builds(
                AbortedTxn,
                producer_id=st.sampled_from(PRODUCERS),
                first_offset=offsets,
                last_offset=offsets,
                last_stable_offset=offsets,
            ),
            max_size=6,
            unique_by=lambda entry: entry.first_offset,
        )
    )
    return batches, entries, sorted(draw(st.lists(offsets, max_size=4)))


def by_the_model(
    batches: list[DecodedBatch], entries: list[AbortedTxn]
) -> tuple[list[bool], list[dict[str, int]]]:
    """(what is discarded, aborted transactions that ended) of the batches that matter."""
    model = Transactions()
    model.expect([ReferenceAbortedTxn(**asdict(entry)) for entry in entries])
    discard, ended = [], []
    for batch in batches:
        if is_control(batch):
            is_spent, entry = model.is_spent_marker(batch)
            discard.append(is_spent)
            ended += [asdict(entry)] if entry else []
        elif batch.header["attributes"] & 0x10:
            discard.append(model.is_aborted_data(batch))
    return discard, ended


def rows_of(batches: list[builders.BatchSpec]) -> TransactionRows:
    parts = [TransactionRows.select(window.batches)[1] for window in windows_of(encoded(batches))]
    return TransactionRows.concatenate(parts)


@given(histories())
def test_the_tracker_decides_as_the_model_does(history):
    batches, entries, _ = history
    decoded = decode_segment(b"".join(map(builders.encode_batch, batches)))[0]
    tracker = TransactionTracker()
    tracker.add_aborted(entries)
    discard, ended = tracker.decide(rows_of(batches))
    assert (discard.tolist(), [asdict(entry) for entry in ended]) == by_the_model(decoded, entries)


@pytest.mark.parametrize(
    "comes_late", [False, True], ids=["known before", "just before its batches"]
)
@given(histories())
def test_a_tracker_that_was_saved_goes_on_as_if_it_had_not_been(comes_late, history):
    batches, entries, cuts = history
    whole, tracker = TransactionTracker(), TransactionTracker()
    whole.add_aborted(entries)
    expected, expected_ended = whole.decide(rows_of(batches))
    if not comes_late:
        tracker.add_aborted(entries)
    discard, ended = [], []
    for start, end in zip([0, *cuts], [*cuts, len(batches)], strict=True):
        tracker = TransactionTracker.from_state(json.loads(json.dumps(tracker.state())))
        if comes_late:
            tracker.add_aborted(entry for entry in entries if start <= entry.first_offset < end)
        some_discard, some_ended = tracker.decide(rows_of(batches[start:end]))
        discard += some_discard.tolist()
        ended += some_ended
    assert (discard, ended) == (expected.tolist(), expected_ended)


def test_only_transactional_and_control_batches_matter():
    batches = [
        Step(7, "plain").batch(0),
        Step(7, "data").batch(1),
        Step(7, "plain").batch(2),
        Step(7, "COMMIT").batch(3),
    ]
    (window,) = windows_of(encoded(batches))
    rows, selected = TransactionRows.select(window.batches)
    assert rows.tolist() == [1, 3]
    assert selected.columns.tolist() == [[7, 7], [1, 3], [DATA, ControlType.COMMIT]]
    assert selected.rows_from(1).columns.tolist() == [[7], [3], [ControlType.COMMIT]]


def test_nothing_to_look_at_is_decided_at_once():
    discard, ended = TransactionTracker().decide(TransactionRows.concatenate([]))
    assert discard.dtype == np.bool_
    assert (discard.tolist(), ended) == ([], [])


P, Q = 1000, 2000


def data(base_offset: int, producer_id: int, *, in_txn: bool = True) -> builders.BatchSpec:
    return builders.BatchSpec(
        records=(builders.RecordSpec(key=b"k", value=b"v"),),
        base_offset=base_offset,
        producer_id=producer_id,
        producer_epoch=0,
        base_sequence=0,
        is_transactional=in_txn,
    )


def marker(base_offset: int, producer_id: int, kind: ControlType) -> builders.BatchSpec:
    return builders.end_txn_marker(
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
    builders.BatchSpec(records=(builders.RecordSpec(key=b"k"),)),
    data(1, P),
    data(2, Q),
    data(3, P),
    marker(4, P, ControlType.ABORT),
    marker(5, Q, ControlType.COMMIT),
    data(6, P),
    marker(7, P, ControlType.COMMIT),
    builders.leader_change_batch(base_offset=8, leader_epoch=1),
    data(9, P, in_txn=False),
]


def visible_offsets(entries: list[AbortedTxn], first: int = 0, window_bytes: int = 10_000):
    view = TransactionTracker(entries)
    return [
        int(offset)
        for window in windows_of(encoded(LOG[first:]), window_bytes=window_bytes)
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
    log = load_partition(directory, now_ms=now_ms)
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
