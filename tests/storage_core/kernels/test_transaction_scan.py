"""Transactions and producers in the headers of batches, against the reference."""

import dataclasses
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from storage_core.formats.batch_v2 import Codec, TimestampType
from storage_core.formats.control import NO_CONTROL_RECORD, ControlType
from storage_core.kernels import producer_scan, transaction_scan
from storage_core.kernels.batch_scan import read_control_types
from storage_core.kernels.transaction_scan import (
    ABORT,
    COMMIT,
    DATA,
    NO_TXN,
    PRODUCER_ABORTED_ENTRY,
    PRODUCER_COLUMNS,
)
from tests.kit.builders import SOME_TIME_MS, BatchSpec, RecordSpec, encode_batch, end_txn_marker
from tests.kit.decode import DecodedBatch, DecodedRecord
from tests.kit.legacy import LegacyMessage, encode_message
from tests.reference.compaction import AbortedTxn, Transactions
from tests.storage_core.kernels.arguments import as_array, scanned
from tests.storage_core.kernels.twins import in_both_ways

PRODUCERS = 3
LEADER_CHANGE = 2


@dataclasses.dataclass(frozen=True)
class Batch:
    """A batch as the tracker is told of it; a control_type of None is transactional data."""

    producer: int
    last_offset: int
    control_type: int | None


def table(rows: list[tuple[int, int, int]]) -> np.ndarray:
    """Return rows as the columns that the kernel takes."""
    return np.ascontiguousarray(np.array(rows, np.int64).reshape(-1, 3).T)


@dataclasses.dataclass
class Tracker:
    """Calls the kernel with state that lasts, as its caller does."""

    kernel: object
    aborted: list[AbortedTxn]

    def __post_init__(self) -> None:
        self.next = 0
        self.producers = np.zeros((PRODUCER_COLUMNS, PRODUCERS), np.int64)
        self.producers[PRODUCER_ABORTED_ENTRY] = NO_TXN

    def decide(self, batches: list[Batch]) -> list[tuple[bool, AbortedTxn | None]]:
        discard = np.full(len(batches), 9, np.uint8)
        ended = np.full(len(batches), 99, np.int64)
        self.next = self.kernel(
            table(
                [
                    (
                        0,
                        batch.last_offset,
                        DATA if batch.control_type is None else batch.control_type,
                    )
                    for batch in batches
                ]
            ),
            np.array([batch.producer for batch in batches], np.int64),
            table(
                [
                    (entry.first_offset, entry.producer_id, 70 + number)
                    for number, entry in enumerate(self.aborted)
                ]
            ),
            self.next,
            self.producers,
            discard,
            ended,
        )
        entries = [None if entry == NO_TXN else self.aborted[entry - 70] for entry in ended]
        return list(zip(discard.astype(bool).tolist(), entries, strict=True))


def decoded(batch: Batch) -> DecodedBatch:
    """Return a batch as the reference wants it."""
    records = ()
    if batch.control_type not in {None, NO_CONTROL_RECORD}:
        key = b"\0\0" + batch.control_type.to_bytes(2, "big")
        records = (DecodedRecord(offset=0, timestamp=0, key=key, value=b"", headers=()),)
    return DecodedBatch(
        position=0,
        size=0,
        header={
            "base_offset": batch.last_offset,
            "last_offset_delta": 0,
            "producer_id": batch.producer,
            "attributes": 0x10 if batch.control_type is None else 0x30,
        },
        crc_ok=True,
        records=records,
    )


def judged(model: Transactions, batch: Batch) -> tuple[bool, AbortedTxn | None]:
    if batch.control_type is None:
        return model.is_aborted_data(decoded(batch)), None
    return model.is_spent_marker(decoded(batch))


KINDS = st.sampled_from([None, None, None, ABORT, COMMIT, LEADER_CHANGE, NO_CONTROL_RECORD])


@in_both_ways(track_transactions=transaction_scan.track_transactions)
@given(
    steps=st.lists(st.tuples(st.integers(0, PRODUCERS - 1), st.integers(0, 3), KINDS), max_size=40),
    starts=st.lists(st.tuples(st.integers(0, PRODUCERS - 1), st.integers(0, 60)), max_size=8),
    cut=st.integers(0, 40),
)
def test_any_course_of_transactions_is_judged_as_the_reference_judges_it(
    track_transactions, steps, starts, cut
):
    batches, offset = [], 0
    for producer, step, kind in steps:
        offset += step
        batches.append(Batch(producer, offset, kind))
    aborted = [
        AbortedTxn(producer_id=producer, first_offset=first, last_offset=99, last_stable_offset=i)
        for i, (producer, first) in enumerate(sorted(starts, key=lambda start: start[1]))
    ]
    model = Transactions()
    model.expect(aborted)
    expected = [judged(model, batch) for batch in batches]
    tracker = Tracker(track_transactions, aborted)
    found = tracker.decide(batches[:cut]) + tracker.decide(batches[cut:])
    assert found == expected


def course(track_transactions, batches: list[Batch], *first_offsets: int) -> list:
    aborted = [
        AbortedTxn(producer_id=0, first_offset=first, last_offset=99, last_stable_offset=0)
        for first in first_offsets
    ]
    found = Tracker(track_transactions, aborted).decide(batches)
    return [(discard, entry and entry.first_offset) for discard, entry in found]


@in_both_ways(track_transactions=transaction_scan.track_transactions)
def test_data_of_an_aborted_transaction_goes_and_its_marker_stays_for_now(track_transactions):
    batches = [Batch(0, 5, None), Batch(1, 6, None), Batch(0, 7, ABORT), Batch(0, 8, None)]
    found = course(track_transactions, batches, 5)
    assert found == [(True, None), (False, None), (False, 5), (False, None)]


@in_both_ways(track_transactions=transaction_scan.track_transactions)
def test_a_marker_whose_data_are_gone_is_spent(track_transactions):
    assert course(track_transactions, [Batch(0, 7, ABORT)], 5) == [(True, None)]
    assert course(track_transactions, [Batch(0, 7, COMMIT)]) == [(True, None)]
    with_data = [Batch(0, 6, None), Batch(0, 7, COMMIT), Batch(0, 8, COMMIT)]
    assert course(track_transactions, with_data) == [(False, None), (False, None), (True, None)]


@in_both_ways(track_transactions=transaction_scan.track_transactions)
def test_data_of_a_producers_last_transaction_are_not_those_of_its_next(track_transactions):
    batches = [Batch(0, 5, None), Batch(0, 7, ABORT), Batch(0, 9, ABORT)]
    found = course(track_transactions, batches, 5, 8)
    assert found == [(True, None), (False, 5), (True, None)]


@in_both_ways(track_transactions=transaction_scan.track_transactions)
def test_an_aborted_transaction_begins_with_the_batch_that_reaches_its_first_offset(
    track_transactions,
):
    before, reaching = [Batch(0, 4, None)], [Batch(0, 5, None)]
    assert course(track_transactions, before, 5) == [(False, None)]
    assert course(track_transactions, reaching, 5) == [(True, None)]


@in_both_ways(track_transactions=transaction_scan.track_transactions)
def test_a_control_batch_without_a_record_is_spent_and_other_controls_stay(track_transactions):
    batches = [Batch(0, 1, NO_CONTROL_RECORD), Batch(0, 2, LEADER_CHANGE)]
    assert course(track_transactions, batches) == [(True, None), (False, None)]


both = in_both_ways(list_events=producer_scan.list_events)
RECORD = RecordSpec(key=b"k", value=b"v")


def events(list_events, *batches: bytes, file_position: int = 0) -> list[dict[str, int]]:
    """Return the events of encoded batches by the names of their columns."""
    data = as_array(b"".join(batches))
    table = scanned(data)
    read_control_types(data, table, table.shape[1])
    out = np.full((producer_scan.COLUMN_COUNT, table.shape[1]), -77, np.int64)
    count = list_events(table, file_position, out)
    assert (out[:, count:] == -77).all()
    names = ("PRODUCER_ID", "PRODUCER_EPOCH", "CONTROL_TYPE", "IS_TRANSACTIONAL", "POSITION")
    names += ("FIRST_OFFSET", "LAST_OFFSET", "OFFSET_DELTA", "LAST_SEQUENCE", "TIMESTAMP")
    names += ("COORDINATOR_EPOCH",)
    rows = {name.lower(): out[getattr(producer_scan, name)].tolist() for name in names}
    return [{name: values[at] for name, values in rows.items()} for at in range(count)]


def data(**fields) -> BatchSpec:
    return BatchSpec(records=(RECORD,) * 3, **fields)


@both
def test_every_field_of_a_batch_of_a_producer(list_events):
    first = encode_batch(data())
    batch = data(base_offset=7, producer_id=5, producer_epoch=2, base_sequence=40)
    (event,) = events(list_events, first, encode_batch(batch), file_position=1000)
    assert event == {
        "producer_id": 5,
        "producer_epoch": 2,
        "control_type": producer_scan.NOT_A_MARKER,
        "is_transactional": 0,
        "position": 1000 + len(first),
        "first_offset": 7,
        "last_offset": 9,
        "offset_delta": 2,
        "last_sequence": 42,
        "timestamp": SOME_TIME_MS,
        "coordinator_epoch": -1,
    }


@both
def test_id_0_is_a_producer_and_batches_without_one_are_none(list_events):
    batches = [
        encode_batch(data(producer_id=producer_id, producer_epoch=0, base_sequence=0))
        for producer_id in (-1, 0, -1, 3)
    ]
    assert [event["producer_id"] for event in events(list_events, *batches)] == [0, 3]


@both
def test_entries_of_older_formats_have_no_producer(list_events):
    assert events(list_events, encode_message(LegacyMessage(magic=1))) == []


@both
@pytest.mark.parametrize(
    ("base", "last"), [(2**31 - 3, 2**31 - 1), (2**31 - 2, 0), (2**31 - 1, 1), (-1, -1)]
)
def test_sequences_wrap_to_0_and_none_stays_none(list_events, base, last):
    batch = data(producer_id=1, producer_epoch=0, base_sequence=base)
    (event,) = events(list_events, encode_batch(batch))
    assert event["last_sequence"] == last


@both
def test_a_batch_of_a_transaction_says_so(list_events):
    batch = data(producer_id=1, producer_epoch=0, base_sequence=0, is_transactional=True)
    (event,) = events(list_events, encode_batch(batch))
    assert event["is_transactional"] == 1
    assert event["control_type"] == producer_scan.NOT_A_MARKER


@both
@pytest.mark.parametrize(
    ("timestamp_type", "timestamp"),
    [(TimestampType.CREATE_TIME, 5), (TimestampType.LOG_APPEND_TIME, 9)],
)
def test_a_marker_has_its_records_time_unless_the_broker_set_it(
    list_events, timestamp_type, timestamp
):
    marker = end_txn_marker(
        control_type=ControlType.ABORT,
        base_offset=4,
        producer_id=6,
        producer_epoch=1,
        coordinator_epoch=8,
        timestamp=5,
    )
    batch = replace(marker, timestamp_type=timestamp_type, max_timestamp=9)
    (event,) = events(list_events, encode_batch(batch))
    assert event["control_type"] == ControlType.ABORT
    assert event["is_transactional"] == 1
    assert event["coordinator_epoch"] == 8
    assert event["timestamp"] == timestamp


@both
def test_compressed_batches_are_asked_by_their_headers(list_events):
    batch = data(codec=Codec.LZ4, producer_id=1, producer_epoch=0, base_sequence=2)
    (event,) = events(list_events, encode_batch(batch))
    assert event["last_sequence"] == 4
