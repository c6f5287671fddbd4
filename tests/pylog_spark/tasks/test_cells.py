"""Rows in pieces, and what the stages hand on: no cell is larger than Spark's row path bears."""

import pyarrow as pa
import pytest

from pylog_spark.operations.compact.pass_task import SegmentKeyIndex, index_segments
from pylog_spark.operations.recover.task import ScannedSegment
from pylog_spark.rows import batches_of, schema_of
from pylog_spark.tasks.message import (
    MOST_CELL_BYTES,
    PART,
    PIECE_BYTES,
    cut_batches,
    join_rows,
    join_table,
    slice_table,
    with_part,
)
from storage_core.log.segment_scan import scan_segment
from storage_core.store import LocalStore
from tests.pylog_spark.cell_sizes import largest_cell
from tests.pylog_spark.large_partitions import MANY_KEYS, large_root
from tests.pylog_spark.tasks.pipeline import Pipeline

SCHEMA = pa.schema(
    [
        pa.field("ordinal", pa.int64()),
        pa.field("content", pa.binary()),
        pa.field("text", pa.string()),
        pa.field("names", pa.list_(pa.string())),
        pa.field("sizes", pa.list_(pa.int64())),
    ]
)
BIG = 3 * PIECE_BYTES + 17
ROWS = [
    {"ordinal": 0, "content": b"small", "text": "a", "names": ["x"], "sizes": []},
    {"ordinal": 1, "content": bytes(range(256)) * (BIG // 256), "text": None, "names": None},
    {"ordinal": 2, "content": None, "text": "ü€𝄞" * (PIECE_BYTES // 4), "names": [], "sizes": None},
    {
        "ordinal": 3,
        "content": b"",
        "text": "",
        "names": ["n" * 90] * 30_000,
        "sizes": [7] * 400_000,
    },
    {"ordinal": 4, "content": b"x" * BIG, "text": "t" * BIG, "names": ["last"], "sizes": [1, 2]},
]


def batch_of(rows) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist(rows, schema=SCHEMA)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("order", [ROWS, ROWS[::-1], ROWS[:1], [ROWS[1]] * 2, []])
def test_rows_that_were_cut_are_the_same_when_they_are_joined(order):
    pieces = list(cut_batches([batch_of(order), batch_of(ROWS[:1])]))
    table = pa.Table.from_batches(pieces, schema=with_part(SCHEMA))
    expected = pa.Table.from_batches([batch_of(order), batch_of(ROWS[:1])])
    assert join_table(table, SCHEMA).to_pylist() == expected.to_pylist()
    plain = [
        {name: bytes(v) if isinstance(v, memoryview) else v for name, v in row.items()}
        for row in join_rows(pieces)
    ]
    assert plain == expected.to_pylist()


@pytest.mark.thorough
def test_no_piece_is_larger_than_a_megabyte_and_no_batch_much_larger():
    pieces = list(cut_batches([batch_of(ROWS * 3)]))
    assert max(map(largest_cell, pieces)) <= PIECE_BYTES
    assert max(piece.nbytes for piece in pieces) <= len(SCHEMA) * PIECE_BYTES
    assert largest_cell(batch_of(ROWS)) > PIECE_BYTES


def test_every_piece_has_the_numbers_that_its_row_is_dealt_out_and_sorted_by():
    rows = [row for piece in cut_batches([batch_of(ROWS)]) for row in piece.to_pylist()]
    counts = {
        row["ordinal"]: [r[PART] for r in rows if r["ordinal"] == row["ordinal"]] for row in ROWS
    }
    assert counts[0] == [0]
    assert counts[1] == list(range(3))
    assert all(parts == list(range(len(parts))) for parts in counts.values())


def test_every_piece_has_the_short_texts_that_rows_are_chosen_by():
    rows = [{"ordinal": 1, "content": b"x" * BIG, "text": "facts", "names": None, "sizes": None}]
    pieces = [row for piece in cut_batches([batch_of(rows)]) for row in piece.to_pylist()]
    assert len(pieces) > 1
    assert {piece["text"] for piece in pieces} == {"facts"}


@pytest.mark.parametrize("length", [0, 1, 255, 256, 257, PIECE_BYTES // 4, PIECE_BYTES // 4 + 1])
def test_texts_of_any_length_are_the_same_when_their_row_is_joined(length):
    row = {"ordinal": 1, "content": b"x" * BIG, "text": "t" * length, "names": [], "sizes": [1]}
    batch = batch_of([row])
    pieces = list(cut_batches([batch]))
    table = pa.Table.from_batches(pieces, schema=with_part(SCHEMA))
    assert join_table(table, SCHEMA).to_pylist() == [row]


def test_small_rows_are_handed_on_together():
    (piece,) = cut_batches([batch_of(ROWS[:1] * 500)])
    assert piece.num_rows == 500


def test_a_table_is_handed_to_spark_in_slices_that_are_no_larger_than_a_cell():
    table = pa.table({"text": ["x" * 100_000] * 300})
    slices = list(slice_table(table))
    assert pa.concat_tables(slices) == table
    assert max(part.nbytes for part in slices) <= MOST_CELL_BYTES
    assert list(slice_table(table.slice(0, 0))) == []


@pytest.mark.thorough
def test_stages_hand_on_no_cell_above_the_limit_however_many_keys_a_segment_has(tmp_path):
    root = large_root(tmp_path / "log")
    pipeline = Pipeline(root, MANY_KEYS.now_ms)
    segments = index_segments(pipeline.passes, {0: 0}, [(0, 0)])
    raw = list(batches_of(SegmentKeyIndex, segments))
    assert max(map(largest_cell, raw)) > MOST_CELL_BYTES
    assert max(map(largest_cell, cut_batches(raw))) <= PIECE_BYTES
    pipeline.exchange(buckets=1)
    assert 0 < max(pipeline.cells) <= PIECE_BYTES


def test_a_scan_of_many_batches_travels_in_pieces(tmp_path):
    root = large_root(tmp_path / "log")
    log = next((root.path / f"{MANY_KEYS.topic}-0").glob("*.log"))
    store = LocalStore(log.parent)
    reader = store.open_file(log.name)
    try:
        scan = scan_segment(reader, 0, index_interval_bytes=0, max_index_bytes=1 << 30)
    finally:
        reader.close()
    row = {"ordinal": 0, "unit": 0, "base_offset": 0, "scan": scan.to_bytes() * 4, "duration_ms": 1}
    batch = pa.RecordBatch.from_pylist([row], schema=schema_of(ScannedSegment))
    assert max(map(largest_cell, cut_batches([batch]))) <= PIECE_BYTES
    (again,) = join_rows(cut_batches([batch]))
    assert bytes(again["scan"]) == row["scan"]


def test_pieces_of_partial_indexes_are_those_of_their_columns():
    columns = schema_of(SegmentKeyIndex)
    assert PART not in columns.names
    assert with_part(columns).names == [*columns.names, PART]
