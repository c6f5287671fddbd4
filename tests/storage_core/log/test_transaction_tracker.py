"""The transaction tracker against the naive model, in one go, in pieces, and from a saved state."""

import json
from dataclasses import asdict, dataclass

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from storage_core.formats.control import ControlType
from storage_core.index.segment_indexes import AbortedTxn
from storage_core.kernels.transaction_scan import DATA
from storage_core.log.open_transactions import TransactionRows, TransactionTracker
from tests.kit.builders import BatchSpec, RecordSpec, encode_batch, end_txn_marker
from tests.kit.decode import DecodedBatch, decode_segment
from tests.reference.compaction import AbortedTxn as ReferenceAbortedTxn
from tests.reference.compaction import Transactions, is_control
from tests.storage_core.log.windows import windows_of

PRODUCERS = [7, 8, 2**62]


@dataclass(frozen=True)
class Step:
    """What a producer writes: data, plain data, a marker of that type, or an emptied marker."""

    producer_id: int
    what: str

    def batch(self, offset: int) -> BatchSpec:
        identity = {"base_offset": offset, "producer_id": self.producer_id, "producer_epoch": 0}
        if self.what == "data":
            return BatchSpec(records=(RecordSpec(),), is_transactional=True, **identity)
        if self.what == "plain":
            return BatchSpec(records=(RecordSpec(),), **identity)
        if self.what == "emptied":
            return BatchSpec(is_transactional=True, is_control=True, **identity)
        return end_txn_marker(control_type=ControlType[self.what], **identity)


steps = st.lists(
    st.builds(
        Step,
        st.sampled_from(PRODUCERS),
        st.sampled_from(["data", "data", "plain", "emptied", "COMMIT", "ABORT", "LEADER_CHANGE"]),
    ),
    max_size=25,
)


@st.composite
def histories(draw: st.DrawFn) -> tuple[list[BatchSpec], list[AbortedTxn], list[int]]:
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


def rows_of(batches: list[BatchSpec]) -> TransactionRows:
    parts = [TransactionRows.select(window.batches)[1] for window in windows_of(batches)]
    return TransactionRows.concatenate(parts)


@given(histories())
def test_the_tracker_decides_as_the_model_does(history):
    batches, entries, _ = history
    decoded = decode_segment(b"".join(map(encode_batch, batches)))[0]
    tracker = TransactionTracker()
    tracker.add_aborted(entries)
    discard, ended = tracker.decide(rows_of(batches))
    assert (discard.tolist(), [asdict(entry) for entry in ended]) == by_the_model(decoded, entries)


@given(histories())
def test_a_tracker_that_was_saved_goes_on_as_if_it_had_not_been(history):
    batches, entries, cuts = history
    whole = TransactionTracker()
    whole.add_aborted(entries)
    expected, expected_ended = whole.decide(rows_of(batches))
    tracker = TransactionTracker()
    tracker.add_aborted(entries)
    discard, ended = [], []
    for start, end in zip([0, *cuts], [*cuts, len(batches)], strict=True):
        tracker = TransactionTracker.from_state(json.loads(json.dumps(tracker.state())))
        some_discard, some_ended = tracker.decide(rows_of(batches[start:end]))
        discard += some_discard.tolist()
        ended += some_ended
    assert (discard, ended) == (expected.tolist(), expected_ended)


@given(histories())
def test_entries_may_come_just_before_the_batches_that_need_them(history):
    batches, entries, cuts = history
    whole = TransactionTracker()
    whole.add_aborted(entries)
    expected, expected_ended = whole.decide(rows_of(batches))
    tracker = TransactionTracker()
    discard, ended = [], []
    for start, end in zip([0, *cuts], [*cuts, len(batches)], strict=True):
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
    (window,) = windows_of(batches)
    rows, selected = TransactionRows.select(window.batches)
    assert rows.tolist() == [1, 3]
    assert selected.columns.tolist() == [[7, 7], [1, 3], [DATA, ControlType.COMMIT]]
    assert selected.rows_from(1).columns.tolist() == [[7], [3], [ControlType.COMMIT]]


def test_nothing_to_look_at_is_decided_at_once():
    discard, ended = TransactionTracker().decide(TransactionRows.concatenate([]))
    assert discard.dtype == np.bool_
    assert (discard.tolist(), ended) == ([], [])
