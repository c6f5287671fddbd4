"""The checks of an append, compiled and plain: each rule alone."""

import numpy as np
import pytest

from storage_core.formats.batch_v2 import HEADER_BYTES
from storage_core.kernels import append_check, batch_scan
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
