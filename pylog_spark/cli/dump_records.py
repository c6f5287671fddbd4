"""Records as plain tuples, a slice at a time. They are for those who write a line for each
record."""

from collections.abc import Iterator
from typing import Final

import numpy as np
from numpy.typing import NDArray

from storage_core.kernels import record_scan
from storage_core.kernels.gather import list_headers
from storage_core.records.columns import RecordColumns, decode_header_key

# Offset, timestamp, sequence, key, value, headers; a null is None, no headers an empty list. The
# views are valid as long as the window is.
RecordRow = tuple[
    int,
    int,
    int,
    memoryview | None,
    memoryview | None,
    list[tuple[str, memoryview | None]],
]
OFFSET: Final = 0
TIMESTAMP: Final = 1
KEY: Final = 3
VALUE: Final = 4
HEADERS: Final = 5

# Owner, start and length of the name, start and length of the value.
_SPAN_COLUMNS: Final = 5


def record_rows(records: RecordColumns, start: int, stop: int) -> Iterator[RecordRow]:
    """Yield the records [start, stop)."""
    part = records.part(start, stop)
    data, arena = part.payload.window.data.data, part.payload.arena.data
    in_arena = part.payload.in_arena[part.batch]
    headers = _headers(part, in_arena)
    nothing: list[tuple[str, memoryview | None]] = []
    columns = zip(
        in_arena.tolist(),
        part.offset.tolist(),
        part.timestamp.tolist(),
        part.sequence.tolist(),
        part.table[record_scan.RECORD_KEY_START].tolist(),
        part.key_length.tolist(),
        part.table[record_scan.RECORD_VALUE_START].tolist(),
        part.value_length.tolist(),
        strict=True,
    )
    for row, (place, offset, timestamp, sequence, key, key_size, value, value_size) in enumerate(
        columns
    ):
        source = arena if place else data
        yield (
            offset,
            timestamp,
            sequence,
            source[key : key + key_size] if key_size >= 0 else None,
            source[value : value + value_size] if value_size >= 0 else None,
            headers.get(row, nothing),
        )


def _headers(
    part: RecordColumns, in_arena: NDArray[np.uint8]
) -> dict[int, list[tuple[str, memoryview | None]]]:
    """Return the headers by record row; records without headers are missing."""
    counts = np.ascontiguousarray(part.table[record_scan.RECORD_HEADER_COUNT])
    spans = np.empty((_SPAN_COLUMNS, int(counts.sum())), np.int64)
    headers: dict[int, list[tuple[str, memoryview | None]]] = {}
    if not spans.size:
        return headers
    data, arena = part.payload.window.data, part.payload.arena
    starts = np.ascontiguousarray(part.table[record_scan.RECORD_HEADER_START])
    list_headers(data, arena, in_arena, starts, counts, *spans)
    for owner, name, name_size, value, value_size in spans.T.tolist():
        source = (arena if in_arena[owner] else data).data
        text = decode_header_key(bytes(source[name : name + name_size]))
        content = source[value : value + value_size] if value_size >= 0 else None
        headers.setdefault(owner, []).append((text, content))
    return headers
