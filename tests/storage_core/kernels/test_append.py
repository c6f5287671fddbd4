"""The checks, the rolls and the stamps of an append, compiled and plain."""

import dataclasses

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from storage_core.formats.batch_v2 import HEADER_BYTES, TimestampType
from storage_core.kernels import append_check, append_plan, batch_scan, index_build
from storage_core.kernels.append_check import (
    ANY_EPOCH,
    DONE,
    HAS_GAPS,
    MOVED,
    NO_LIMIT_MS,
    OTHER_EPOCH,
    OUT_OF_ORDER,
    REFUSED,
    TOO_LARGE,
    UNKNOWN_CODEC,
    WRONG_CRC,
)
from storage_core.kernels.append_stamp import stamp_batches
from storage_core.log.append.segment import RollParams, SegmentAge, should_roll
from storage_core.records.batch_builder import BatchSettings, build_all
from tests.kit.builders import SOME_TIME_MS, BatchSpec, RecordSpec, encode_batch
from tests.storage_core.kernels.twins import in_both_ways
from tests.storage_core.records.new_columns import columns_of

RECORD = RecordSpec(key=b"key", value=b"value", timestamp=SOME_TIME_MS)
SIZE = len(encode_batch(BatchSpec(records=(RECORD,))))
FINE = {"taken": 2, "epoch": ANY_EPOCH, "at_0": False, "max_bytes": SIZE, "rises": True}


def scanned(*specs):
    data = np.frombuffer(bytearray(b"".join(map(encode_batch, specs))), np.uint8)
    table = np.empty((batch_scan.COLUMN_COUNT, len(specs)), np.int64)
    batch_scan.scan_batches(data, 0, data.size, table)
    return data, table


@in_both_ways(check=append_check.check_batches)
@pytest.mark.parametrize(
    ("fields", "rules", "expected"),
    [
        pytest.param({}, {}, (2, DONE), id="fine"),
        pytest.param({}, {"epoch": 3}, (2, DONE), id="the epoch"),
        pytest.param({}, {"epoch": 4}, (0, OTHER_EPOCH), id="another epoch"),
        pytest.param({}, {"at_0": True}, (1, MOVED), id="a client's second batch"),
        pytest.param({}, {"max_bytes": SIZE - 1}, (0, TOO_LARGE), id="too large"),
        pytest.param({"base_offset": 0}, {}, (1, OUT_OF_ORDER), id="repeated offset"),
        pytest.param({"base_offset": 0}, {"rises": False}, (2, DONE), id="offsets do not count"),
        pytest.param({"base_offset": 0}, {"taken": 1}, (2, DONE), id="not taken"),
    ],
)
def test_the_first_batch_that_breaks_a_rule_is_named(check, fields, rules, expected):
    specs = [
        BatchSpec(records=(RECORD,), leader_epoch=3),
        BatchSpec(**({"records": (RECORD,), "leader_epoch": 3, "base_offset": 1} | fields)),
    ]
    data, table = scanned(*specs)
    given = FINE | rules
    assert (
        check(
            data,
            table,
            given["taken"],
            given["epoch"],
            given["at_0"],
            given["max_bytes"],
            given["rises"],
        )
        == expected
    )


@in_both_ways(check=append_check.check_batches)
def test_checksums_and_codecs_are_looked_at_in_every_format(check):
    v2 = encode_batch(BatchSpec(records=(RECORD,)))
    v1 = build_all(columns_of([RECORD]), BatchSettings(magic=1)).data.tobytes()
    for batch in (v2, v1):
        data = np.frombuffer(bytearray(batch), np.uint8)
        table = np.empty((batch_scan.COLUMN_COUNT, 1), np.int64)
        batch_scan.scan_batches(data, 0, data.size, table)
        assert check(data, table, 1, ANY_EPOCH, True, 1_000, True) == (1, DONE)
        table[batch_scan.ATTRIBUTES, 0] |= 7
        assert check(data, table, 1, ANY_EPOCH, True, 1_000, True) == (0, UNKNOWN_CODEC)
        data[-1] ^= 1
        assert check(data, table, 1, ANY_EPOCH, True, 1_000, True) == (0, WRONG_CRC)
        assert table[batch_scan.CRC_OK, 0] == 0


@in_both_ways(check=append_check.check_records)
@pytest.mark.parametrize(
    ("records", "rules", "expected"),
    [
        pytest.param([{}, {}], {}, (DONE, SOME_TIME_MS), id="fine"),
        pytest.param([{}, {"offset_delta": 4}], {}, (HAS_GAPS, SOME_TIME_MS), id="gaps"),
        pytest.param([{}, {"key": None}], {}, (DONE, SOME_TIME_MS), id="no key, none needed"),
        pytest.param([{"key": None}], {"needs_key": True}, (REFUSED, -1), id="no key"),
        pytest.param([{"timestamp": SOME_TIME_MS - 50}], {}, (DONE, SOME_TIME_MS - 50), id="old"),
        pytest.param([{"timestamp": SOME_TIME_MS - 51}], {}, (REFUSED, -1), id="too old"),
        pytest.param([{"timestamp": SOME_TIME_MS + 9}], {}, (DONE, SOME_TIME_MS + 9), id="ahead"),
        pytest.param([{"timestamp": SOME_TIME_MS + 10}], {}, (REFUSED, -1), id="too far ahead"),
        pytest.param([{"timestamp": -1}], {}, (DONE, -1), id="no timestamp"),
        pytest.param(
            [{"timestamp": 0}, {"timestamp": 2**62}],
            {"limits": (NO_LIMIT_MS, NO_LIMIT_MS)},
            (DONE, 2**62),
            id="at any time",
        ),
        pytest.param([{}], {"max_body": 10}, (REFUSED, -1), id="too large"),
        pytest.param([{}], {"count": 2}, (REFUSED, SOME_TIME_MS), id="fewer than counted"),
        pytest.param([{}, {}], {"count": 1}, (REFUSED, SOME_TIME_MS), id="more than counted"),
    ],
)
def test_records_are_walked_over_once(check, records, rules, expected):
    given = {
        "needs_key": False,
        "max_body": 1_000,
        "count": len(records),
        "limits": (50, 9),
    } | rules
    specs = tuple(
        RecordSpec(**({"key": b"key", "value": b"value", "timestamp": SOME_TIME_MS} | fields))
        for fields in records
    )
    batch = BatchSpec(records=specs)
    data, table = scanned(batch)
    table[batch_scan.RECORD_COUNT] = given["count"]
    before_max_ms, after_max_ms = given["limits"]
    found = check(
        data,
        HEADER_BYTES,
        data.size,
        table,
        0,
        given["needs_key"],
        SOME_TIME_MS,
        before_max_ms,
        after_max_ms,
        given["max_body"],
    )
    assert found == expected


BATCHES = st.lists(
    st.tuples(st.integers(60, 400), st.integers(1, 2**30), st.integers(-1, 5_000)),
    min_size=1,
    max_size=30,
)


def new_state(interval_bytes=0, entries=1):
    state = index_build.new_state(0, interval_bytes, 0)
    state[[index_build.STATE_MAX_OFFSET_ENTRIES, index_build.STATE_MAX_TIME_ENTRIES]] = entries
    return state


@in_both_ways(add_until_roll=append_plan.add_until_roll)
@given(
    batches=BATCHES,
    segment_bytes=st.integers(400, 3_000),
    max_ms=st.integers(1, 6_000),
    interval_bytes=st.sampled_from((0, 200)),
    entries=st.integers(1, 9),
    was_rolled=st.booleans(),
)
def test_batches_are_counted_up_to_the_first_that_has_to_be_rolled_for(
    add_until_roll, batches, segment_bytes, max_ms, interval_bytes, entries, was_rolled
):
    size, step, times = (np.array(column, np.int64) for column in zip(*batches, strict=True))
    last_offset = np.cumsum(step)
    room = (len(batches), 2)
    found = new_state(interval_bytes, entries)
    count, status = add_until_roll(
        found,
        size,
        last_offset,
        times,
        was_rolled,
        77,
        max_ms,
        segment_bytes,
        np.empty(room, np.int64),
        np.empty(room, np.int64),
    )
    state = new_state(interval_bytes, entries)
    first_batch_timestamp = -1
    expected = 0
    for row in range(len(batches)):
        age = SegmentAge(
            base_offset=0,
            size_bytes=int(state[index_build.STATE_POSITION]),
            first_batch_timestamp=first_batch_timestamp,
            created_ms=0,
            jitter_ms=0,
            is_index_full=bool(
                state[index_build.STATE_OFFSET_ENTRIES] >= entries
                or state[index_build.STATE_TIME_ENTRIES] >= entries - 1
            ),
        )
        params = RollParams(
            max_segment_ms=max_ms,
            max_segment_bytes=segment_bytes,
            max_timestamp=int(times[row]),
            last_offset=int(last_offset[row]),
            append_bytes=int(size[row]),
            now_ms=77,
        )
        if should_roll(age, params) and not (was_rolled and row == 0):
            assert status == append_plan.ROLL
            break
        if row == 0:
            first_batch_timestamp = int(times[0])
        _, expected_status = index_build.add_batches(
            state,
            size[row : row + 1],
            last_offset[row : row + 1],
            times[row : row + 1],
            np.empty(room, np.int64),
            np.empty(room, np.int64),
        )
        if expected_status != index_build.DONE:
            assert status == expected_status
            break
        expected += 1
    else:
        assert status == index_build.DONE
    first = found[index_build.STATE_FIRST_BATCH_TIMESTAMP]
    assert (count, first) == (expected, first_batch_timestamp)
    if status not in {index_build.OFFSET_INDEX_FULL, index_build.TIME_INDEX_FULL}:
        assert found.tolist() == state.tolist()


@pytest.mark.parametrize("kernel", [append_plan.add_until_roll, append_plan.add_until_roll.py_func])
def test_no_batches_are_no_roll(kernel):
    none = np.empty(0, np.int64)
    pairs = np.empty((0, 2), np.int64)
    state = new_state()
    assert kernel(state, none, none, none, False, 0, 1, 1, pairs, pairs) == (0, index_build.DONE)
    assert state[index_build.STATE_FIRST_BATCH_TIMESTAMP] == -1


RECORDS = tuple(RecordSpec(key=b"k", value=b"v" * i, timestamp=SOME_TIME_MS) for i in range(3))


def scanned_bytes(data):
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
    data, table = scanned_bytes(encode_batch(spec))
    is_append_time = time_type is TimestampType.LOG_APPEND_TIME
    stamp(data, table, np.array([102]), 6, is_append_time, np.array([time]))
    expected = dataclasses.replace(
        spec, base_offset=100, leader_epoch=6, timestamp_type=time_type, max_timestamp=time
    )
    assert data.tobytes() == encode_batch(expected)
    assert table.tolist() == with_crc_of(scanned_bytes(data)[1], table).tolist()


def with_crc_of(found, table):
    found[batch_scan.CRC_OK] = table[batch_scan.CRC_OK]
    return found


@in_both_ways(stamp=stamp_batches)
@pytest.mark.parametrize("magic", [0, 1])
@pytest.mark.parametrize("is_append_time", [False, True])
def test_old_messages_are_as_if_they_had_been_made_so(stamp, magic, is_append_time):
    columns = columns_of(RECORDS)
    data, table = scanned_bytes(build_all(columns, BatchSettings(magic=magic)).data)
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
