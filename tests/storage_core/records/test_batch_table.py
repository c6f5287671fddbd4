"""What the headers of batches say, column by column."""

import dataclasses

import numpy as np
import pytest
from hypothesis import given

from storage_core.formats.batch_v2 import NO_TIMESTAMP, TimestampType
from storage_core.kernels import batch_scan
from storage_core.records.batch_table import BatchTable
from tests.kit.builders import BatchSpec, RecordSpec, encode_batch, segment_bytes
from tests.kit.strategies import segments
from tests.storage_core.records.memory_file import only_window_of


def table_of(specs: list[BatchSpec]) -> BatchTable:
    return only_window_of(segment_bytes(specs)).batches


def table_with(**columns: list[int]) -> BatchTable:
    """Return a table in which only these columns mean anything."""
    count = len(next(iter(columns.values())))
    numbers = np.zeros((batch_scan.COLUMN_COUNT, count), np.int64)
    for name, values in columns.items():
        numbers[getattr(batch_scan, name.upper())] = values
    return BatchTable(numbers)


@pytest.mark.thorough
@given(specs=segments(max_batches=4).filter(bool))
def test_every_column_is_the_field_of_its_name(specs):
    table = table_of(specs)
    assert len(table) == len(specs)
    encoded = [encode_batch(spec) for spec in specs]
    assert table.size.tolist() == [len(batch) for batch in encoded]
    assert table.position.tolist() == [len(b"".join(encoded[:i])) for i in range(len(specs))]
    assert (table.magic == 2).all()
    for name in (
        "base_offset",
        "last_offset",
        "leader_epoch",
        "attributes",
        "producer_id",
        "producer_epoch",
        "base_sequence",
    ):
        assert getattr(table, name).tolist() == [getattr(spec, name) for spec in specs], name
    assert table.base_timestamp.tolist() == [spec.timestamp_base for spec in specs]
    assert table.max_timestamp.tolist() == [spec.largest_timestamp for spec in specs]
    assert table.record_count.tolist() == [len(spec.records) for spec in specs]
    assert table.codec.tolist() == [spec.codec for spec in specs]
    assert table.has_producer_id.tolist() == [spec.producer_id >= 0 for spec in specs]
    horizons = [spec.delete_horizon_ms for spec in specs]
    assert table.delete_horizon_ms.tolist() == [
        NO_TIMESTAMP if horizon is None else horizon for horizon in horizons
    ]


@pytest.mark.item("FMT-03")
def test_every_attribute_is_read_from_its_bits():
    attributes = list(range(128))
    # Bits 7 and above are in nobody's use and change nothing.
    for unused in (0, 0x80, 0x7F00, -(2**15)):
        table = table_with(attributes=[bits | unused for bits in attributes])
        assert table.codec.tolist() == [bits % 8 for bits in attributes]
        assert table.is_log_append_time.tolist() == [bool(bits & 8) for bits in attributes]
        assert table.is_transactional.tolist() == [bool(bits & 16) for bits in attributes]
        assert table.is_control.tolist() == [bool(bits & 32) for bits in attributes]
        assert table.has_delete_horizon.tolist() == [bool(bits & 64) for bits in attributes]


@pytest.mark.item("FMT-04")
def test_the_range_of_a_batch_may_end_behind_its_last_record():
    spec = BatchSpec(records=(RecordSpec(key=b"k"),), base_offset=10, last_offset_delta=6)
    table = table_of([spec, dataclasses.replace(spec, base_offset=17, records=())])
    assert table.last_offset.tolist() == [16, 23]


@pytest.mark.item("FMT-06")
def test_a_delete_horizon_is_the_base_timestamp_where_the_bit_is_set():
    table = table_with(attributes=[0x40, 0, 0x48], base_timestamp=[7, 8, 9])
    assert table.delete_horizon_ms.tolist() == [7, NO_TIMESTAMP, 9]


@pytest.mark.item("FMT-07")
def test_sequences_wrap_from_the_largest_to_zero():
    table = table_with(
        base_sequence=[2147483645, 2147483645, 2147483647, 5, -1, 0],
        base_offset=[40, 40, 40, 40, 40, 40],
        last_offset=[42, 45, 41, 40, 99, 2**31 - 1 + 40],
    )
    assert table.last_sequence.tolist() == [2147483647, 2, 0, 5, -1, 2147483647]


@pytest.mark.item("FMT-07")
def test_minus_one_is_no_producer():
    table = table_with(producer_id=[-1, 0, 2**63 - 1])
    assert table.has_producer_id.tolist() == [False, True, True]


def test_log_append_time_is_a_timestamp_type():
    table = table_of([BatchSpec(timestamp_type=TimestampType.LOG_APPEND_TIME, max_timestamp=9)])
    assert table.is_log_append_time.tolist() == [True]


def test_rows_are_a_view():
    table = table_with(size=[1, 2, 3, 4])
    part = table.rows(1, 3)
    assert part.size.tolist() == [2, 3]
    assert part.columns.base is table.columns
