"""Offsets, epochs and timestamps written into batches, compiled and plain."""

import dataclasses

import numpy as np
import pytest

from storage_core.formats.batch_v2 import TimestampType
from storage_core.kernels import batch_scan
from storage_core.kernels.append_stamp import stamp_batches
from storage_core.records.batch_builder import BatchSettings, build_all
from tests.kit.builders import SOME_TIME_MS, BatchSpec, RecordSpec, encode_batch
from tests.storage_core.kernels.twins import in_both_ways
from tests.storage_core.records.new_columns import columns_of

RECORDS = tuple(RecordSpec(key=b"k", value=b"v" * i, timestamp=SOME_TIME_MS) for i in range(3))


def scanned(data):
    own = np.frombuffer(bytearray(data), np.uint8)
    table = np.empty((batch_scan.COLUMN_COUNT, 20), np.int64)
    count, _, _ = batch_scan.scan_batches(own, 0, own.size, table)
    return own, np.ascontiguousarray(table[:, :count])


@in_both_ways(stamp=stamp_batches)
@pytest.mark.parametrize(
    ("time_type", "time"),
    [
        (TimestampType.CREATE_TIME, SOME_TIME_MS),
        (TimestampType.CREATE_TIME, SOME_TIME_MS + 1),
        (TimestampType.LOG_APPEND_TIME, SOME_TIME_MS),
    ],
    ids=["nothing changes", "another time", "another type"],
)
def test_a_v2_batch_is_as_if_it_had_been_made_so(stamp, time_type, time):
    spec = BatchSpec(records=RECORDS, leader_epoch=-1)
    data, table = scanned(encode_batch(spec))
    is_append_time = time_type is TimestampType.LOG_APPEND_TIME
    stamp(data, table, np.array([102]), 6, is_append_time, np.array([time]))
    expected = dataclasses.replace(
        spec, base_offset=100, leader_epoch=6, timestamp_type=time_type, max_timestamp=time
    )
    assert data.tobytes() == encode_batch(expected)
    assert table.tolist() == with_crc_of(scanned(data)[1], table).tolist()


def with_crc_of(found, table):
    found[batch_scan.CRC_OK] = table[batch_scan.CRC_OK]
    return found


@in_both_ways(stamp=stamp_batches)
@pytest.mark.parametrize("magic", [0, 1])
@pytest.mark.parametrize("is_append_time", [False, True])
def test_old_messages_are_as_if_they_had_been_made_so(stamp, magic, is_append_time):
    columns = columns_of(RECORDS)
    data, table = scanned(build_all(columns, BatchSettings(magic=magic)).data)
    stamp(
        data,
        table,
        np.arange(50, 53),
        6,
        is_append_time,
        np.full(3, SOME_TIME_MS + (9 if is_append_time else 0)),
    )
    expected = build_all(
        columns,
        BatchSettings(
            magic=magic,
            base_offset=50,
            append_time_ms=SOME_TIME_MS + 9,
            timestamp_type=TimestampType.LOG_APPEND_TIME
            if is_append_time
            else TimestampType.CREATE_TIME,
        ),
    )
    assert data.tobytes() == expected.data.tobytes()
