"""Columns of records to be written: what is taken, and what contradicts itself."""

import numpy as np
import pyarrow as pa
import pytest

from storage_core.errors import InvalidColumnError
from storage_core.records.new_records import ByteColumn, HeaderColumn, NewRecords
from tests.kit.builders import RecordSpec
from tests.storage_core.records.new_columns import HEADERS, columns_of, table_of


def strings(column):
    return [
        None if length < 0 else column.data[start : start + length].tobytes()
        for start, length in zip(column.start.tolist(), column.length.tolist(), strict=True)
    ]


TEXTS = [b"a", None, b"", b"longer than the others", None]


@pytest.mark.parametrize("kind", [pa.binary(), pa.large_binary(), pa.string(), pa.large_string()])
def test_arrow_arrays_are_taken_with_their_nulls_and_without_a_copy(kind):
    array = pa.array([b"cut", *TEXTS, b"cut"], pa.binary()).cast(kind).slice(1, len(TEXTS))
    column = ByteColumn.from_arrow(array)
    assert strings(column) == TEXTS
    assert column.data.ctypes.data == array.buffers()[2].address
    assert strings(column.rows(2, 4)) == TEXTS[2:4]


def test_chunked_and_null_arrays_are_taken():
    chunked = pa.chunked_array([pa.array(TEXTS[:2], pa.binary()), pa.array(TEXTS[2:], pa.binary())])
    assert strings(ByteColumn.from_arrow(chunked)) == TEXTS
    assert strings(ByteColumn.from_arrow(pa.nulls(3))) == [None] * 3
    assert strings(ByteColumn.from_arrow(pa.array([], pa.binary()))) == []


def test_spans_may_lie_anywhere_in_their_buffer():
    data = np.frombuffer(b"abcdef", np.uint8)
    column = ByteColumn.of_spans(data, np.array([4, 0, 0]), np.array([2, 3, -1]))
    assert strings(column) == [b"ef", b"abc", None]


@pytest.mark.parametrize(
    ("start", "length"),
    [([5], [2]), ([-1], [1]), ([0], [7]), ([0], [-2]), ([2**62], [2**62]), ([0, 1], [1])],
)
def test_spans_outside_of_their_buffer_are_refused(start, length):
    data = np.frombuffer(b"abcdef", np.uint8)
    with pytest.raises(InvalidColumnError):
        ByteColumn.of_spans(data, np.array(start), np.array(length))


@pytest.mark.parametrize("offsets", [[], [0, 7], [0, 3, 2], [-1, 3]])
def test_offsets_that_fall_or_leave_the_buffer_are_refused(offsets):
    with pytest.raises(InvalidColumnError):
        ByteColumn.of_offsets(np.frombuffer(b"abcdef", np.uint8), np.array(offsets, np.int64))


def test_a_table_needs_a_value_and_nothing_else():
    records = NewRecords.from_arrow(pa.table({"value": pa.array([b"v", None], pa.binary())}))
    assert strings(records.keys) == [None, None]
    assert records.timestamps.tolist() == [-1, -1]
    assert records.headers.first.tolist() == [0, 0, 0]
    with pytest.raises(InvalidColumnError, match="value"):
        NewRecords.from_arrow(pa.table({"key": pa.array([b"k"], pa.binary())}))


@pytest.mark.parametrize("unit", ["s", "ms", "us", "ns"])
def test_arrow_timestamps_become_milliseconds(unit):
    times = pa.array([1_700_000_000_000, None], pa.timestamp("ms")).cast(pa.timestamp(unit))
    table = pa.table({"value": pa.array([b"", b""], pa.binary()), "timestamp": times})
    assert NewRecords.from_arrow(table).timestamps.tolist() == [1_700_000_000_000, -1]


@pytest.mark.parametrize(
    "table",
    [
        {"value": pa.array([1])},
        {"value": pa.array([b"v"]), "timestamp": pa.array([1.5])},
        {"value": pa.array([b"v"]), "headers": pa.array([[1]])},
        {"value": pa.array([b"v"]), "headers": pa.array([[{"key": None, "value": b""}]], HEADERS)},
    ],
    ids=["value", "timestamp", "headers", "null header key"],
)
def test_columns_of_another_type_are_refused(table):
    with pytest.raises(InvalidColumnError):
        NewRecords.from_arrow(pa.table(table))


def test_headers_stay_with_their_records_when_rows_are_chosen():
    records = [
        RecordSpec(key=b"k", headers=tuple((f"h{i}", b"%d" % j) for j in range(i)))
        for i in range(4)
    ]
    sliced = NewRecords.from_arrow(table_of(records).slice(1, 3))
    assert strings(sliced.headers.keys) == [b"h1", b"h2", b"h2", b"h3", b"h3", b"h3"]
    last = columns_of(records).rows(2, 4)
    assert last.headers.first.tolist() == [1, 3, 6]
    with pytest.raises(InvalidColumnError):
        HeaderColumn.of(np.array([0, 9]), sliced.headers.keys, sliced.headers.values)


def test_columns_of_different_lengths_are_refused():
    with pytest.raises(InvalidColumnError):
        NewRecords.of(
            keys=ByteColumn.nulls(2), values=ByteColumn.nulls(3), timestamps=np.zeros(3, np.int64)
        )
