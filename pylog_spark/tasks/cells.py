"""Cut large cells into pieces for Spark's row path. No row of any plan is then larger than that
path bears.

A value on its way through Spark is copied four or five times on the JVM's heap (from Arrow into a
row, into the buffer of a shuffle, into the page of a sort, back into Arrow), and each task has its
own. One cell of a hundred megabytes ends a JVM of Spark's default heap, and with it the whole run.

So every row that tasks of ours hand on goes through ``cut_batches``: a row with a large value
becomes several, numbered in the column ``part``. Those after the first repeat the numbers and the
short texts of the row, by which rows are chosen, dealt out and sorted, and carry nothing else but
the next piece. Whoever gets them puts them together again: ``join_table`` on the driver,
``join_rows`` in a task whose rows are sorted by what tells them apart, and by ``part``.
"""

from collections.abc import Iterable, Iterator
from typing import Any, Final

import numpy as np
import pyarrow as pa

# The promise: no cell of any plan is larger.
MOST_CELL_BYTES: Final = 8 * 1024 * 1024
# What is cut at all, is cut well below that.
PIECE_BYTES: Final = 1024 * 1024
PART: Final = "part"
_PART_FIELD: Final = pa.field(
    PART, pa.int32(), metadata={"comment": "which piece of the row this is, from 0"}
)
# A list's own offsets.
_LIST_BYTES: Final = 16
# A longer text is no kind, status or name that rows are chosen by. Well below what is cut.
_LABEL_CHARACTERS: Final = 256
# No character takes more in UTF-8.
_MOST_CHARACTER_BYTES: Final = 4


def with_part(schema: pa.Schema) -> pa.Schema:
    """Return the columns of a table whose rows may come in pieces."""
    return schema.append(_PART_FIELD)


def cut_batches(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield rows with a column ``part``, large values in several pieces."""
    for batch in batches:
        if batch.nbytes <= PIECE_BYTES:
            yield _numbered(batch, 0)
            continue
        first = gathered = 0
        for number in range(batch.num_rows):
            row = batch.slice(number, 1)
            size = row.nbytes
            if number > first and gathered + size > PIECE_BYTES:
                yield _numbered(batch.slice(first, number - first), 0)
                first, gathered = number, 0
            gathered += size
            if size > PIECE_BYTES:  # alone by now
                yield from _cut_row(row)
                first, gathered = number + 1, 0
        if first < batch.num_rows:
            yield _numbered(batch.slice(first), 0)


def slice_table(table: pa.Table) -> Iterator[pa.Table]:
    """Yield a driver's table in slices small enough for Spark. A table becomes one value of the
    plan, or one on the way into it."""
    slices = max(1, -(-table.nbytes // MOST_CELL_BYTES))
    step = max(1, -(-table.num_rows // slices))
    for first in range(0, table.num_rows, step):
        yield table.slice(first, step)


def join_table(table: pa.Table, schema: pa.Schema) -> pa.Table:
    """Return the rows of a table of consecutive pieces."""
    parts = table[PART].to_numpy()
    plain = table.select(schema.names).cast(schema)
    if not parts.any():
        return plain
    # A row that is whole is followed by another first piece.
    starts = np.flatnonzero(parts == 0)
    ends = np.append(starts[1:], len(parts))
    done, first = [], 0
    for start, end in zip(starts.tolist(), ends.tolist(), strict=True):
        if end - start > 1:
            (row,) = join_rows(table.slice(start, end - start).to_batches())
            done += [
                plain.slice(first, start - first),
                pa.Table.from_pylist([row], schema=schema),
            ]
            first = end
    return pa.concat_tables([*done, plain.slice(first)])


def join_rows(batches: Iterable[pa.RecordBatch]) -> Iterator[dict[str, Any]]:
    """Yield rows, without ``part``, from their consecutive pieces. Bytes are views of the
    batches where nothing was cut."""
    row: dict[str, Any] = {}
    pieces: dict[str, list[Any]] = {}
    for part, following in _plain_rows(batches):
        if part:
            for name in _cuttable(row):
                if following[name] is not None:
                    pieces.setdefault(name, [row[name]]).append(following[name])
            continue
        if row:
            yield row | {name: _join(values) for name, values in pieces.items()}
        row, pieces = following, {}
    if row:
        yield row | {name: _join(values) for name, values in pieces.items()}


def _numbered(batch: pa.RecordBatch, part: int) -> pa.RecordBatch:
    column = pa.array(np.full(batch.num_rows, part, np.int32))
    return pa.RecordBatch.from_arrays(
        [*batch.columns, column], schema=with_part(batch.schema.remove_metadata())
    )


def _cut_row(row: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    (values,) = row.to_pylist()
    cut = {name: _pieces(values[name]) for name in _cuttable(values)}
    for part in range(max(map(len, cut.values()))):
        if part:
            values = {name: None if name in cut else value for name, value in values.items()}
        here = {name: pieces[part] for name, pieces in cut.items() if part < len(pieces)}
        yield _numbered(pa.RecordBatch.from_pylist([values | here], schema=row.schema), part)


def _cuttable(row: dict[str, Any]) -> list[str]:
    """Return a row's filled columns of arbitrary length.

    A short text is not one of them: it stands in every piece. The last piece of a long one may be
    short, too; the first one tells.
    """
    kinds = (bytes, memoryview, str, list)
    return [
        name for name, value in row.items() if isinstance(value, kinds) and not _is_label(value)
    ]


def _is_label(value: Any) -> bool:
    return isinstance(value, str) and len(value) <= _LABEL_CHARACTERS


def _pieces(value: Any) -> list[Any]:
    if isinstance(value, list):
        return _cut_list(value)
    step = PIECE_BYTES // _MOST_CHARACTER_BYTES if isinstance(value, str) else PIECE_BYTES
    return [value[begin : begin + step] for begin in range(0, len(value), step)] or [value]


def _cut_list(values: list[Any]) -> list[list[Any]]:
    pieces: list[list[Any]] = [[]]
    size = _LIST_BYTES
    for value in values:
        own = _MOST_CHARACTER_BYTES * len(value) + 8 if isinstance(value, str) else 8
        if size + own > PIECE_BYTES and pieces[-1]:
            pieces.append([])
            size = _LIST_BYTES
        pieces[-1].append(value)
        size += own
    return pieces


def _join(pieces: list[Any]) -> Any:
    if isinstance(pieces[0], str):
        return "".join(pieces)
    if isinstance(pieces[0], list):
        return [value for piece in pieces for value in piece]
    return b"".join(pieces)


def _plain_rows(batches: Iterable[pa.RecordBatch]) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield rows with their piece numbers; copy no bytes. Bytes stay in their batch."""
    for batch in batches:
        binary = [field.name for field in batch.schema if field.type == pa.binary()]
        others = [name for name in batch.schema.names if name not in {*binary, PART}]
        parts = batch.column(PART).to_pylist()
        for number, row in enumerate(batch.select(others).to_pylist()):
            for name in binary:
                value = batch.column(name)[number]
                row[name] = memoryview(value.as_buffer()) if value.is_valid else None
            yield parts[number], row
