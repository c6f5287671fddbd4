"""Choose records that lie evenly over logs, and read little more than those.

A small log is counted first; the records are then those at even distances. Of a larger one, as many
places are chosen at even distances of its bytes. A place between two cuts of the offset index is an
offset, as if the offsets between them were as long as each other; its record is the first one there
or behind that was not chosen before. The same log gives the same records each time.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Final

import numpy as np
import pyarrow as pa

from storage_core.reading.ranges import ReadRange, read_range, schema_of

# What is read for one record; with less than this for each, all of a log is read.
WINDOW_BYTES: Final = 64 << 10
# So many offsets are looked at first for a record; each time that there is none, more. A batch that
# was read serves the places within it: large batches are not read for each of their records.
_FIRST_WIDTH: Final = 4096
_WIDER: Final = 16


def sample_ranges(ranges: Sequence[ReadRange], count: int) -> Iterator[pa.RecordBatch]:
    """Yield records at even distances, by partition in the order of their offsets.

    Args:
        ranges: All of them have an end.
        count: How many records, at least 1. There are fewer where the logs have fewer, and where
            the last places of a large log have no record behind them that a reader may see.
    """
    total = sum(wanted.size_bytes for wanted in ranges)
    if total <= count * WINDOW_BYTES:
        yield from _sample_by_count(ranges, count)
    else:
        yield from _sample_by_place(ranges, count, total)


def _sample_by_count(ranges: Sequence[ReadRange], count: int) -> Iterator[pa.RecordBatch]:
    counts = [
        sum(batch.num_rows for batch in read_range(replace(wanted, columns=("offset",))))
        for wanted in ranges
    ]
    total = sum(counts)
    chosen = _middles(total, min(count, total))
    first = 0
    for wanted, records in zip(ranges, counts, strict=True):
        inside = chosen[np.searchsorted(chosen, first) : np.searchsorted(chosen, first + records)]
        if inside.size:
            yield from _take(wanted, inside - first)
        first += records


def _take(wanted: ReadRange, rows: np.ndarray) -> Iterator[pa.RecordBatch]:
    """Yield the records of a range with some numbers, which ascend."""
    first = 0
    for batch in read_range(wanted):
        here = rows[np.searchsorted(rows, first) : np.searchsorted(rows, first + batch.num_rows)]
        if here.size:
            yield batch.take(pa.array(here - first))
        first += batch.num_rows
        if first > rows[-1]:
            return


def _sample_by_place(
    ranges: Sequence[ReadRange], count: int, total: int
) -> Iterator[pa.RecordBatch]:
    places = _middles(total, count)
    before = 0
    missing = 0  # places of the ranges before that found no record
    reached = 0
    former: ReadRange | None = None
    for wanted in ranges:
        inside = places[
            np.searchsorted(places, before) : np.searchsorted(places, before + wanted.size_bytes)
        ]
        start, end = _span(wanted)
        width = end - start
        # Python's integers: a product of offsets and bytes has more than 64 bits.
        offsets = [start + (int(it) - before) * width // wanted.size_bytes for it in inside]
        if former is None or former.partition != wanted.partition:
            reached = 0
        targets = [start] * missing + offsets
        missing = 0
        read = pa.RecordBatch.from_pylist([], pa.schema([("offset", pa.int64())]))
        for target in targets:
            offset = max(target, reached)
            if not read.num_rows or read.column("offset")[-1].as_py() < offset:
                read = _read_from(wanted, offset, end)
            if not read.num_rows:
                missing += 1
                continue
            row = int(np.searchsorted(read.column("offset").to_numpy(), offset))
            reached = read.column("offset")[row].as_py() + 1
            yield read.slice(row, 1).select(wanted.columns)
        before += wanted.size_bytes
        former = wanted


def _read_from(wanted: ReadRange, offset: int, end: int) -> pa.RecordBatch:
    """Return a range's next records at or behind an offset, with their offsets; none if there are
    none."""
    columns = wanted.columns if "offset" in wanted.columns else (*wanted.columns, "offset")
    width = _FIRST_WIDTH
    while offset < end:
        stop = min(offset + width, end)
        piece = replace(
            wanted,
            columns=columns,
            start_offset=offset,
            end_offset=stop,
            is_cut=wanted.is_cut or stop < end,
            window_bytes=WINDOW_BYTES,
        )
        for batch in read_range(piece):
            return batch
        offset = stop
        width *= _WIDER
    return pa.RecordBatch.from_pylist([], schema_of(columns))


def _span(wanted: ReadRange) -> tuple[int, int]:
    start, end = wanted.span
    if end is None:
        raise AssertionError("a range to sample has an end")
    return start, end


def _middles(total: int, count: int) -> np.ndarray:
    """Return the middles of ``count`` parts of about equal length of ``range(total)``."""
    return np.array([(2 * number + 1) * total // (2 * count) for number in range(count)], np.int64)
