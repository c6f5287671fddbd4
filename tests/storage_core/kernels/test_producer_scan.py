"""Events of producers, against the fields of the batches one by one."""

from dataclasses import replace

import numpy as np
import pytest

from storage_core.formats.batch_v2 import Codec, TimestampType
from storage_core.formats.control import ControlType
from storage_core.kernels import producer_scan
from storage_core.kernels.batch_scan import read_control_types
from tests.kit.builders import (
    SOME_TIME_MS,
    BatchSpec,
    RecordSpec,
    encode_batch,
    end_txn_marker,
)
from tests.kit.legacy import LegacyMessage, encode_message
from tests.storage_core.kernels.arguments import as_array, scanned
from tests.storage_core.kernels.twins import in_both_ways

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
