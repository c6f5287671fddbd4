"""Records of the batches of a window.

A batch's records lie either in the window itself (no codec) or in an arena beside it,
decompressed or made from a legacy entry; PLACE says which, RECORDS_START and RECORDS_END where.
Nothing outside of that range is read.
"""

from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from storage_core.formats.record_v2 import MIN_BODY_BYTES, MIN_RECORD_BYTES, NULL_LENGTH
from storage_core.kernels._jit import inlined_kernel, kernel
from storage_core.kernels.batch_notes import PLACE, RECORDS_END, RECORDS_START
from storage_core.kernels.varint import (
    INVALID,
    read_short,
    read_short_size,
    read_varint,
    read_varlong,
)

# Where a batch's records lie, in PLACE.
IN_WINDOW: Final = 0
EXPANDED: Final = 1  # in the arena, decompressed: only these have a largest size of a record
TRANSCODED: Final = 2  # in the arena, made from a legacy entry that was held to it before

# Why a batch's records cannot be read.
DONE: Final = 0
BAD_RECORD: Final = 1  # lengths or counts inside a record that contradict each other
BAD_COUNT: Final = 2  # a record count that is negative or cannot fit the bytes
LEFTOVER: Final = 3  # bytes after the last record
TOO_LARGE: Final = 4  # a record body above the configured maximum
WRONG_CRC: Final = 9  # nothing in the batch is what it seems to be

# What pass one notes of a batch, so that pass two need not open it.
INDEXED: Final = 1  # all its keyed records are in the offset map
HAS_TOMBSTONE: Final = 2
HAS_KEYLESS: Final = 4
OPENED: Final = 8  # its records have ordinals
HAS_STRAY: Final = 16  # a record has an offset outside of what the batch's header says

# How many bytes ahead of a record a loop asks for what comes: a CPU by itself looks less far.
AHEAD_BYTES: Final = 1024


class ParsedRecord(NamedTuple):
    """Fields and positions of one record. An INVALID next_position says that the record is
    malformed; the rest means nothing then."""

    next_position: int
    timestamp_delta: int
    offset_delta: int
    key_start: int
    key_length: int  # negative: null
    value_start: int
    value_length: int  # negative: null
    header_start: int  # of the first header
    header_count: int
    body_bytes: int


@kernel
def _skip_headers(data: NDArray[np.uint8], position: int, end: int, count: int) -> int:
    """Return the position after count headers, or INVALID."""
    for _ in range(count):
        length, position = read_varint(data, position, end)
        if position < 0 or length < 0 or length > end - position:
            return INVALID
        length, position = read_varint(data, position + length, end)
        if position < 0 or length > end - position:
            return INVALID
        if length > 0:
            position += length
    return position


@kernel
def _read_headers(data: NDArray[np.uint8], position: int, end: int) -> tuple[int, int]:
    """Return the count of headers and the start of the first one. The start is INVALID unless
    the headers end at ``end``."""
    count, start = read_varint(data, position, end)
    if start < 0 or count < 0 or count > end - start:
        return 0, INVALID
    if _skip_headers(data, start, end, count) != end:
        return 0, INVALID
    return count, start


@kernel
def _parse_any(data: NDArray[np.uint8], position: int, end: int) -> ParsedRecord:
    """As parse_record, for numbers of any length."""
    bad = ParsedRecord(INVALID, 0, 0, 0, 0, 0, 0, 0, 0, 0)
    body_bytes, body = read_varint(data, position, end)
    if body < 0 or body_bytes < 1 or body_bytes > end - body:
        return bad
    body_end = body + body_bytes
    timestamp_delta, at = read_varlong(data, body + 1, body_end)
    if at < 0:
        return bad
    offset_delta, at = read_varint(data, at, body_end)
    if at < 0:
        return bad
    key_length, key_start = read_varint(data, at, body_end)
    if key_start < 0 or key_length > body_end - key_start:
        return bad
    at = key_start + max(key_length, 0)
    value_length, value_start = read_varint(data, at, body_end)
    if value_start < 0 or value_length > body_end - value_start:
        return bad
    at = value_start + max(value_length, 0)
    header_count, header_start = _read_headers(data, at, body_end)
    if header_start < 0:
        return bad
    return ParsedRecord(
        body_end,
        timestamp_delta,
        offset_delta,
        key_start,
        max(key_length, NULL_LENGTH),
        value_start,
        max(value_length, NULL_LENGTH),
        header_start,
        header_count,
        body_bytes,
    )


@inlined_kernel
def _parse_short(data: NDArray[np.uint8], position: int, end: int) -> ParsedRecord:
    """Parse a record with short lengths and a short offset delta.

    Short is a varint of one byte or two. The result for any other record is INVALID. What has to
    follow a field in any record is there before the field is read, so that few checks are left:
    after the timestamp delta at least one byte of each of four numbers, after the key one of two.
    """
    bad = ParsedRecord(INVALID, 0, 0, 0, 0, 0, 0, 0, 0, 0)
    if end - position < MIN_RECORD_BYTES:
        return bad
    body_bytes, body = read_short_size(data, position)
    if body < 0 or body_bytes < MIN_BODY_BYTES or body_bytes > end - body:
        return bad
    body_end = body + body_bytes
    timestamp_delta, at = read_varlong(data, body + 1, body_end)
    if at < 0 or body_end - at < 4:
        return bad
    offset_delta, at = read_short(data, at)
    if at < 0:
        return bad
    key_length, key_start = read_short(data, at)
    if key_start < 0 or max(key_length, 0) > body_end - key_start - 2:
        return bad
    at = key_start + max(key_length, 0)
    value_length, value_start = read_short(data, at)
    if value_start < 0 or max(value_length, 0) >= body_end - value_start:
        return bad
    at = value_start + max(value_length, 0)
    header_count, header_start = 0, body_end
    if at != body_end - 1 or data[np.uint64(at)] != 0:
        header_count, header_start = _read_headers(data, at, body_end)
        if header_start < 0:
            return bad
    return ParsedRecord(
        body_end,
        timestamp_delta,
        offset_delta,
        key_start,
        max(key_length, NULL_LENGTH),
        value_start,
        max(value_length, NULL_LENGTH),
        header_start,
        header_count,
        body_bytes,
    )


@inlined_kernel
def parse_record(data: NDArray[np.uint8], position: int, end: int) -> ParsedRecord:
    """Read the record at position, which may not reach past end."""
    record = _parse_short(data, position, end)
    if record.next_position < 0:
        record = _parse_any(data, position, end)
    return record


@inlined_kernel
def skip_record(data: NDArray[np.uint8], position: int, end: int) -> int:
    """Return the end of the record at position, by its length alone. The result is INVALID for a
    record that goes past ``end``."""
    length, body = np.int64(0), np.int64(INVALID)
    if end - position >= MIN_RECORD_BYTES:
        length, body = read_short_size(data, position)
    if body < 0:
        length, body = read_varint(data, position, end)
    if body < 0 or length < 0 or length > end - body:
        return INVALID
    return body + length


@kernel
def check_counts(
    record_count: NDArray[np.int64], notes: NDArray[np.int64], wanted: NDArray[np.uint8]
) -> tuple[int, int]:
    """Check record counts; return (total, first row with an impossible count).

    Only the wanted rows are checked. The row is -1 where all counts are possible. A record takes at
    least MIN_RECORD_BYTES, so a count that passes here bounds what may be allocated for it.

    Args:
        record_count: int64[n], of batches that are open.
        notes: int64[NOTE_COUNT, n].
        wanted: uint8[n].
    """
    total = 0
    for row in range(record_count.size):
        if not wanted[row]:
            continue
        record_bytes = notes[RECORDS_END, row] - notes[RECORDS_START, row]
        if not 0 <= record_count[row] <= record_bytes // MIN_RECORD_BYTES:
            return total, row
        total += record_count[row]
    return total, -1


# Columns of the table that decode_records fills, int64[RECORD_COLUMN_COUNT, capacity].
RECORD_BATCH: Final = 0  # row of the batch
RECORD_TIMESTAMP_DELTA: Final = 1
RECORD_OFFSET_DELTA: Final = 2
RECORD_KEY_START: Final = 3
RECORD_KEY_LENGTH: Final = 4
RECORD_VALUE_START: Final = 5
RECORD_VALUE_LENGTH: Final = 6
RECORD_HEADER_START: Final = 7
RECORD_HEADER_COUNT: Final = 8
RECORD_COLUMN_COUNT: Final = 9


@kernel
def decode_records(
    data: NDArray[np.uint8],
    arena: NDArray[np.uint8],
    record_count: NDArray[np.int64],
    notes: NDArray[np.int64],
    rows: NDArray[np.int64],
    max_body_bytes: int,
    records: NDArray[np.int64],
) -> tuple[int, int, int, int]:
    """Fill one column of records a record, for some batches.

    Args:
        data: uint8[], the window.
        arena: uint8[], records that do not lie in it.
        record_count: int64[n], of batches that are open.
        notes: int64[NOTE_COUNT, n].
        rows: int64[], which batches.
        max_body_bytes: The largest record that was compressed.
        records: int64[RECORD_COLUMN_COUNT, capacity], out.

    Returns:
        (count, status, row, position): records decoded; DONE, or why and in which batch and at
        which position of its bytes it stopped.
    """
    count = 0
    for row in rows:
        place, end = notes[PLACE, row], notes[RECORDS_END, row]
        source = arena if place else data
        position = notes[RECORDS_START, row]
        for _ in range(record_count[row]):
            record = parse_record(source, position, end)
            if record.next_position < 0:
                return count, BAD_RECORD, row, position
            if record.body_bytes > max_body_bytes and place == EXPANDED:
                return count, TOO_LARGE, row, position
            records[RECORD_BATCH, count] = row
            records[RECORD_TIMESTAMP_DELTA, count] = record.timestamp_delta
            records[RECORD_OFFSET_DELTA, count] = record.offset_delta
            records[RECORD_KEY_START, count] = record.key_start
            records[RECORD_KEY_LENGTH, count] = record.key_length
            records[RECORD_VALUE_START, count] = record.value_start
            records[RECORD_VALUE_LENGTH, count] = record.value_length
            records[RECORD_HEADER_START, count] = record.header_start
            records[RECORD_HEADER_COUNT, count] = record.header_count
            count += 1
            position = record.next_position
        if position != end and record_count[row]:
            # As Kafka, which does not look behind none.
            return count, LEFTOVER, row, position
    return count, DONE, 0, 0
