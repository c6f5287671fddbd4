"""Batches out of columns, compiled and plain, against the slow builder."""

import numpy as np
import pytest

from storage_core.formats.batch_v2 import NO_TIMESTAMP
from storage_core.kernels import batch_build, batch_scan
from storage_core.kernels.batch_build import BAD_ORDER, BAD_TIMESTAMP, DONE
from tests.kit.builders import SOME_TIME_MS, BatchSpec, RecordSpec, encode_batch
from tests.storage_core.kernels.twins import in_both_ways
from tests.storage_core.records.new_columns import columns_of

RECORDS = tuple(
    RecordSpec(
        key=None if i == 2 else b"k" * (i * 30),
        value=None if i == 1 else b"v" * (i * 70),
        timestamp=SOME_TIME_MS + (-1) ** i * i * 1000,
        headers=(("name", b"1"), ("", None)) if i % 2 else (),
    )
    for i in range(7)
)
NO_OFFSETS = np.empty(0, np.int64)


def cut(cut_batches, size_headers, rows, *, max_bytes=10**6, max_records=3):
    size_headers(
        rows.header_first, rows.header_key_length, rows.header_value_length, rows.body_bytes
    )
    count = rows.timestamps.size
    batch_end, batch_bytes = (np.empty(count, np.int64) for _ in range(2))
    answer = cut_batches(
        rows.key_length,
        rows.value_length,
        rows.timestamps,
        rows.offsets,
        rows.header_first,
        rows.body_bytes,
        max_bytes,
        max_records,
        batch_end,
        batch_bytes,
    )
    return answer, batch_end, batch_bytes


@in_both_ways(
    cut_batches=batch_build.cut_batches,
    size_headers=batch_build.size_headers,
    describe_batches=batch_build.describe_batches,
    write_batches=batch_build.write_batches,
)
@pytest.mark.parametrize(
    "offsets", [NO_OFFSETS, np.arange(7) * 3 + 50], ids=["in a row", "with gaps"]
)
def test_batches_have_the_bytes_of_the_slow_builder(
    cut_batches, size_headers, describe_batches, write_batches, offsets
):
    rows = columns_of(RECORDS).for_kernels(offsets)
    answer, batch_end, batch_bytes = cut(cut_batches, size_headers, rows)
    assert answer == (3, 7, DONE)
    assert batch_end[:3].tolist() == [3, 6, 7]
    table = np.empty((batch_scan.COLUMN_COUNT, 3), np.int64)
    header = batch_build.HeaderFields(50, 4, 0, NO_TIMESTAMP, 9, 1, 7)
    describe_batches(batch_end[:3], rows.timestamps, rows.offsets, 0, header, table)
    out = np.empty(int(batch_bytes[:3].sum()), np.uint8)
    used = write_batches(out, batch_end[:3], 0, table, rows)
    gap = 3 if offsets.size else 1
    expected = b"".join(
        encode_batch(
            BatchSpec(
                records=tuple(
                    RecordSpec(
                        key=record.key,
                        value=record.value,
                        timestamp=record.timestamp,
                        headers=record.headers,
                        offset_delta=gap * i,
                    )
                    for i, record in enumerate(RECORDS[first : first + 3])
                ),
                base_offset=50 + gap * first,
                leader_epoch=4,
                producer_id=9,
                producer_epoch=1,
                base_sequence=7 + first,
            )
        )
        for first in (0, 3, 6)
    )
    assert used == out.size
    assert out.tobytes() == expected


@in_both_ways(cut_batches=batch_build.cut_batches, size_headers=batch_build.size_headers)
@pytest.mark.parametrize(
    ("timestamps", "offsets", "expected"),
    [
        ([5, -2, 5], [], (0, 1, BAD_TIMESTAMP)),
        ([5, -1, 5], [4, 5, 5], (0, 2, BAD_ORDER)),
        ([], [], (0, 0, DONE)),
    ],
)
def test_records_that_no_batch_may_have_stop_the_cut(
    cut_batches, size_headers, timestamps, offsets, expected
):
    columns = columns_of([RecordSpec(timestamp=timestamp) for timestamp in timestamps])
    rows = columns.for_kernels(np.array(offsets, np.int64))
    assert cut(cut_batches, size_headers, rows)[0] == expected
