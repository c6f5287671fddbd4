"""Entries of old formats, compiled and plain, against bytes made by hand."""

import struct
import zlib

import numpy as np
import pytest

from storage_core.formats.batch_v2 import NO_TIMESTAMP
from storage_core.kernels import legacy_build
from tests.kit.builders import SOME_TIME_MS, RecordSpec
from tests.storage_core.kernels.twins import in_both_ways
from tests.storage_core.records.new_columns import columns_of

RECORDS = [
    RecordSpec(key=None, value=b"value", timestamp=SOME_TIME_MS),
    RecordSpec(key=b"", value=None, timestamp=SOME_TIME_MS + 1),
    RecordSpec(key=b"k" * 300, value=b"", timestamp=-1),
]


def nullable(data):
    return struct.pack(">i", -1) if data is None else struct.pack(">i", len(data)) + data


def by_hand(record, *, offset, magic, attributes=0, time=None):
    body = struct.pack(">bb", magic, attributes)
    if magic:
        body += struct.pack(">q", record.timestamp if time is None else time)
    body += nullable(record.key) + nullable(record.value)
    message = struct.pack(">I", zlib.crc32(body)) + body
    return struct.pack(">qi", offset, len(message)) + message


@in_both_ways(write_entries=legacy_build.write_entries)
@pytest.mark.parametrize("magic", [0, 1])
@pytest.mark.parametrize("time", [None, SOME_TIME_MS + 99])
def test_entries_are_those_made_by_hand(write_entries, magic, time):
    attributes = 8 if time is not None and magic else 0
    expected = b"".join(
        by_hand(record, offset=13 + i, magic=magic, attributes=attributes, time=time)
        for i, record in enumerate(RECORDS)
    )
    out = np.zeros(len(expected), np.uint8)
    time = NO_TIMESTAMP if time is None else time
    rows = columns_of(RECORDS).for_kernels(np.arange(3) + 20)
    assert write_entries(out, 0, 3, magic, attributes, time, 7, rows) == out.size
    assert out.tobytes() == expected
