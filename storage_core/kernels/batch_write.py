"""Write batches: verbatim, as a bare header, or rebuilt from surviving records.

What is written is format v2, as Kafka's cleaner does with batches of any format. A rebuilt v2 batch
keeps its offsets; one made from a legacy entry begins with its first record and ends with its last.
"""

from typing import Final

import numpy as np
from numpy.typing import NDArray

from storage_core.formats.batch_v2 import (
    ATTRIBUTES_AT,
    BASE_OFFSET_AT,
    BASE_SEQUENCE_AT,
    BASE_TIMESTAMP_AT,
    BATCH_LENGTH_AT,
    CODEC_MASK,
    CONTROL_BIT,
    CRC_AT,
    CRC_START,
    DELETE_HORIZON_BIT,
    HEADER_BYTES,
    LAST_OFFSET_DELTA_AT,
    LEADER_EPOCH_AT,
    LENGTH_OVERHEAD,
    MAGIC_AT,
    MAGIC_V2,
    MAX_TIMESTAMP_AT,
    NO_TIMESTAMP,
    PRODUCER_EPOCH_AT,
    PRODUCER_ID_AT,
    RECORD_COUNT_AT,
    TIMESTAMP_TYPE_BIT,
    TRANSACTIONAL_BIT,
)
from storage_core.formats.record_v2 import MAX_VARINT_BYTES, NULL_LENGTH
from storage_core.kernels._intrinsics import copy_bytes, prefetch_byte
from storage_core.kernels._jit import inlined_kernel, kernel
from storage_core.kernels.batch_filter import BAD_ORDER, BAD_TIMESTAMP, NO_RECORD_OFFSET
from storage_core.kernels.batch_notes import (
    DELETE_HORIZON,
    FATE,
    FIRST_RECORD,
    NEW_BASE_TIMESTAMP,
    NEW_MAX_TIMESTAMP,
    NEW_SIZE,
    PACKED_END,
    PACKED_START,
    PLACE,
    RECORDS_END,
    RECORDS_START,
    SURVIVORS,
)
from storage_core.kernels.batch_scan import (
    ATTRIBUTES,
    BASE_OFFSET,
    BASE_SEQUENCE,
    BASE_TIMESTAMP,
    LAST_OFFSET,
    LEADER_EPOCH,
    MAGIC,
    MAX_TIMESTAMP,
    POSITION,
    PRODUCER_EPOCH,
    PRODUCER_ID,
    RECORD_COUNT,
    SIZE,
)
from storage_core.kernels.crc32c import crc32c
from storage_core.kernels.record_scan import (
    AHEAD_BYTES,
    BAD_RECORD,
    DONE,
    ParsedRecord,
    parse_record,
    skip_record,
)
from storage_core.kernels.varint import (
    read_varint,
    varlong_size,
    write_i16,
    write_i32,
    write_i64,
    write_varlong,
)

# What becomes of a batch.
GONE: Final = 0
VERBATIM: Final = 1
HEADER_ONLY: Final = 2
REBUILT: Final = 3

# A rebuilt record may grow by a longer length field and a longer timestamp delta.
MAX_RECORD_GROWTH_BYTES: Final = 16

# No length up to this one takes more than four bytes.
_MOST_OF_FOUR_BYTES: Final = 2**27 - 1

# A record of some hundred bytes is asked for whole, and so is the room for it.
_LINE: Final = 64
_LINES_AHEAD: Final = 2 * _LINE


@kernel
def write_header(  # the fields of a header
    out: NDArray[np.uint8],
    at: int,
    table: NDArray[np.int64],
    row: int,
    size: int,
    attributes: int,
    base_timestamp: int,
    max_timestamp: int,
    record_count: int,
) -> None:
    """Write a batch header with its CRC at out[at:].

    The header has the identity of the source batch `row`. The records must be in place: the CRC
    covers them.
    """
    write_i64(out, at + BASE_OFFSET_AT, table[BASE_OFFSET, row])
    write_i32(out, at + BATCH_LENGTH_AT, size - LENGTH_OVERHEAD)
    write_i32(out, at + LEADER_EPOCH_AT, table[LEADER_EPOCH, row])
    out[at + MAGIC_AT] = MAGIC_V2
    write_i16(out, at + ATTRIBUTES_AT, attributes)
    write_i32(out, at + LAST_OFFSET_DELTA_AT, table[LAST_OFFSET, row] - table[BASE_OFFSET, row])
    write_i64(out, at + BASE_TIMESTAMP_AT, base_timestamp)
    write_i64(out, at + MAX_TIMESTAMP_AT, max_timestamp)
    write_i64(out, at + PRODUCER_ID_AT, table[PRODUCER_ID, row])
    write_i16(out, at + PRODUCER_EPOCH_AT, table[PRODUCER_EPOCH, row])
    write_i32(out, at + BASE_SEQUENCE_AT, table[BASE_SEQUENCE, row])
    write_i32(out, at + RECORD_COUNT_AT, record_count)
    write_i32(out, at + CRC_AT, crc32c(out, at + CRC_START, at + size))


@kernel
def _write_headers(
    out: NDArray[np.uint8], at: int, source: NDArray[np.uint8], position: int, count: int
) -> int:
    """Copy count record headers, lengths written anew; return the next position."""
    for _ in range(count):
        length, start = read_varint(source, position, source.size)
        at = write_varlong(out, at, length)
        copy_bytes(out, at, source, start, length)
        at += length
        length, start = read_varint(source, start + length, source.size)
        at = write_varlong(out, at, max(length, NULL_LENGTH))
        if length > 0:
            copy_bytes(out, at, source, start, length)
            at += length
        position = start + max(length, 0)
    return at


@kernel
def _headers_size(source: NDArray[np.uint8], position: int, count: int) -> int:
    """Return how many bytes _write_headers will write."""
    size = 0
    for _ in range(count):
        length, start = read_varint(source, position, source.size)
        size += varlong_size(length) + length
        length, start = read_varint(source, start + length, source.size)
        size += varlong_size(max(length, NULL_LENGTH)) + max(length, 0)
        position = start + max(length, 0)
    return size


@kernel
def _write_record(
    out: NDArray[np.uint8],
    at: int,
    source: NDArray[np.uint8],
    record: ParsedRecord,
    timestamp_delta: int,
    offset_delta: int,
) -> int:
    """Write a record field by field; return the next position."""
    key_bytes = max(record.key_length, 0)
    value_bytes = max(record.value_length, 0)
    body = (
        1
        + varlong_size(timestamp_delta)
        + varlong_size(offset_delta)
        + varlong_size(record.key_length)
        + key_bytes
        + varlong_size(record.value_length)
        + value_bytes
        + varlong_size(record.header_count)
    )
    if record.header_count:
        body += _headers_size(source, record.header_start, record.header_count)
    at = write_varlong(out, at, body)
    out[at] = 0
    at = write_varlong(out, at + 1, timestamp_delta)
    at = write_varlong(out, at, offset_delta)
    at = write_varlong(out, at, record.key_length)
    copy_bytes(out, at, source, record.key_start, key_bytes)
    at = write_varlong(out, at + key_bytes, record.value_length)
    copy_bytes(out, at, source, record.value_start, value_bytes)
    at = write_varlong(out, at + value_bytes, record.header_count)
    if record.header_count:
        at = _write_headers(out, at, source, record.header_start, record.header_count)
    return at


@inlined_kernel
def _tail_size(record: ParsedRecord) -> int:
    """Return the size of a record's tail, if written as it is.

    The tail begins with the offset delta. It is written as it is where the record has key and
    value, no headers, and every number takes as few bytes as it can: more in any of them would show
    in the record's length. Otherwise the result is 0. A number of five bytes has bits that do not
    count, and may be written with others.
    """
    if record.header_count or record.key_length < 0 or record.value_length < 0:
        return 0
    offset_bytes = varlong_size(record.offset_delta)
    if offset_bytes >= MAX_VARINT_BYTES or record.body_bytes > _MOST_OF_FOUR_BYTES:
        return 0
    fewest = (
        offset_bytes
        + varlong_size(record.key_length)
        + record.key_length
        + varlong_size(record.value_length)
        + record.value_length
        + 1
    )
    return fewest if 1 + varlong_size(record.timestamp_delta) + fewest == record.body_bytes else 0


@kernel
def write_records(
    out: NDArray[np.uint8],
    at: int,
    source: NDArray[np.uint8],
    table: NDArray[np.int64],
    notes: NDArray[np.int64],
    row: int,
    keep: NDArray[np.uint8],
    least_timestamp: int,
) -> tuple[int, int]:
    """Write the surviving records of a batch; note its new header fields.

    A batch made from a legacy entry begins with its first record and ends with its last: its
    BASE_OFFSET and LAST_OFFSET become theirs, and the records' offset deltas count from there.

    Args:
        out: uint8[], with room for the records, and MAX_RECORD_GROWTH_BYTES more for each.
        source: uint8[], where the records lie.
        table: int64[COLUMN_COUNT, n], the batches.
        notes: int64[NOTE_COUNT, n]; NEW_BASE_TIMESTAMP and NEW_MAX_TIMESTAMP are set.
        keep: uint8[], by record.
        least_timestamp: One below is refused, as Kafka does.

    Returns:
        (end, status): where in out the records end; DONE, BAD_RECORD, BAD_ORDER or BAD_TIMESTAMP.
    """
    position, end = notes[RECORDS_START, row], notes[RECORDS_END, row]
    first_record = notes[FIRST_RECORD, row]
    is_append_time = table[ATTRIBUTES, row] & TIMESTAMP_TYPE_BIT != 0
    is_legacy = table[MAGIC, row] < MAGIC_V2
    # Records made from a legacy entry have their timestamps already.
    has_append_time = is_append_time and not is_legacy
    append_time, old_base_timestamp = table[MAX_TIMESTAMP, row], table[BASE_TIMESTAMP, row]
    has_append_time = has_append_time and append_time != NO_TIMESTAMP
    base_timestamp = notes[DELETE_HORIZON, row]
    has_base = base_timestamp != NO_TIMESTAMP
    max_timestamp = np.int64(NO_TIMESTAMP)
    first_delta = np.int64(0)
    last_delta = np.int64(NO_RECORD_OFFSET)
    for i in range(table[RECORD_COUNT, row]):
        for ahead in range(AHEAD_BYTES, AHEAD_BYTES + _LINES_AHEAD, _LINE):
            prefetch_byte(source, position + ahead)
            prefetch_byte(out, at + ahead)
        if not keep[first_record + i]:
            position = skip_record(source, position, end)
            if position < 0:
                return at, BAD_RECORD
            continue
        record = parse_record(source, position, end)
        if record.next_position < 0:
            return at, BAD_RECORD
        position = record.next_position
        timestamp = append_time if has_append_time else old_base_timestamp + record.timestamp_delta
        if timestamp < least_timestamp:
            return at, BAD_TIMESTAMP
        if record.offset_delta <= last_delta:
            return at, BAD_ORDER
        if last_delta == NO_RECORD_OFFSET:
            first_delta = np.int64(record.offset_delta)
        last_delta = np.int64(record.offset_delta)
        offset_delta = last_delta - first_delta if is_legacy else last_delta
        if not has_base:
            base_timestamp = timestamp
            has_base = True
        max_timestamp = max(max_timestamp, timestamp)
        delta = timestamp - base_timestamp
        tail_bytes = 0 if is_legacy else _tail_size(record)
        if tail_bytes:
            at = write_varlong(out, at, 1 + varlong_size(delta) + tail_bytes)
            out[at] = 0
            at = write_varlong(out, at + 1, delta)
            copy_bytes(out, at, source, position - tail_bytes, tail_bytes)
            at += tail_bytes
        else:
            at = _write_record(out, at, source, record, delta, offset_delta)
    if is_legacy:
        table[LAST_OFFSET, row] = table[BASE_OFFSET, row] + last_delta
        table[BASE_OFFSET, row] += first_delta
    notes[NEW_BASE_TIMESTAMP, row] = base_timestamp
    notes[NEW_MAX_TIMESTAMP, row] = append_time if is_append_time else max_timestamp
    return at, DONE


@kernel
def kept_attributes(
    attributes: int, codec: int, has_horizon: bool
) -> int:  # numba takes no keyword-only arguments
    """Return the attributes of a rebuilt batch: nothing of unused bits survives."""
    flag_bits = attributes & (TIMESTAMP_TYPE_BIT | TRANSACTIONAL_BIT | CONTROL_BIT)
    return flag_bits | codec | (DELETE_HORIZON_BIT if has_horizon else 0)


@kernel
def rebuild_compressed(
    raw: NDArray[np.uint8],
    data: NDArray[np.uint8],
    arena: NDArray[np.uint8],
    table: NDArray[np.int64],
    notes: NDArray[np.int64],
    keep: NDArray[np.uint8],
    least_timestamp: int,
) -> tuple[int, int]:
    """Write the records of REBUILT batches with a codec to raw.

    The records lie there end to end, to be compressed. PACKED_START and PACKED_END of such a batch
    say where in raw its records lie.

    Args:
        raw: uint8[].
        data: uint8[], the window.
        arena: uint8[], records that do not lie in it.
        table: int64[COLUMN_COUNT, n], the batches.
        notes: int64[NOTE_COUNT, n].
        keep: uint8[], by record.

    Returns:
        (row, status): the row up to which all are written, before the first that has no room;
        DONE, BAD_RECORD, BAD_ORDER or BAD_TIMESTAMP, then of that row.
    """
    at = 0
    for row in range(table.shape[1]):
        if notes[FATE, row] != REBUILT or not table[ATTRIBUTES, row] & CODEC_MASK:
            continue
        most = notes[RECORDS_END, row] - notes[RECORDS_START, row]
        most += notes[SURVIVORS, row] * MAX_RECORD_GROWTH_BYTES
        if most > raw.size - at:
            return row, DONE
        source = arena if notes[PLACE, row] else data
        notes[PACKED_START, row] = at
        at, status = write_records(raw, at, source, table, notes, row, keep, least_timestamp)
        if status != DONE:
            return row, status
        notes[PACKED_END, row] = at
    return table.shape[1], DONE


@kernel
def write_batches(
    out: NDArray[np.uint8],
    at: int,
    data: NDArray[np.uint8],
    arena: NDArray[np.uint8],
    table: NDArray[np.int64],
    notes: NDArray[np.int64],
    keep: NDArray[np.uint8],
    packed: NDArray[np.uint8],
    least_timestamp: int,
) -> tuple[int, int, int]:
    """Write batches by their FATE. Each batch that is written gets NEW_SIZE and NEW_MAX_TIMESTAMP.

    Args:
        out: uint8[], with room for `most_bytes`, and for the packed records.
        data: uint8[], the window.
        arena: uint8[], records that do not lie in it.
        table: int64[COLUMN_COUNT, n], the batches; a rebuilt one has the identity of its row, and
            of a legacy one BASE_OFFSET and LAST_OFFSET become those of the batch that is written.
        notes: int64[NOTE_COUNT, n].
        keep: uint8[], by record.
        packed: uint8[], the records of REBUILT batches with a codec, compressed.

    Returns:
        (at, row, status): position in out, the row that was not written (their number when all
        were), and DONE, BAD_RECORD, BAD_ORDER or BAD_TIMESTAMP.
    """
    for row in range(table.shape[1]):
        fate = notes[FATE, row]
        if fate == GONE:
            notes[NEW_SIZE, row] = 0
            continue
        attributes = table[ATTRIBUTES, row]
        codec = attributes & CODEC_MASK
        size = np.int64(HEADER_BYTES)
        if fate == VERBATIM:
            size = table[SIZE, row]
            copy_bytes(out, at, data, table[POSITION, row], size)
            notes[NEW_MAX_TIMESTAMP, row] = table[MAX_TIMESTAMP, row]
        elif fate == HEADER_ONLY:
            write_header(
                out,
                at,
                table,
                row,
                HEADER_BYTES,
                kept_attributes(attributes, 0, False),  # as above
                NO_TIMESTAMP,
                table[MAX_TIMESTAMP, row],
                0,
            )
            notes[NEW_MAX_TIMESTAMP, row] = table[MAX_TIMESTAMP, row]
        else:
            records_at = at + HEADER_BYTES
            if codec:
                start = notes[PACKED_START, row]
                length = notes[PACKED_END, row] - start
                copy_bytes(out, records_at, packed, start, length)
                size += length
            else:
                source = arena if notes[PLACE, row] else data
                records_end, status = write_records(
                    out, records_at, source, table, notes, row, keep, least_timestamp
                )
                if status != DONE:
                    return at, row, status
                size += records_end - records_at
            write_header(
                out,
                at,
                table,
                row,
                size,
                kept_attributes(attributes, codec, notes[DELETE_HORIZON, row] != NO_TIMESTAMP),
                notes[NEW_BASE_TIMESTAMP, row],
                notes[NEW_MAX_TIMESTAMP, row],
                notes[SURVIVORS, row],
            )
        notes[NEW_SIZE, row] = size
        at += size
    return at, table.shape[1], DONE


@kernel
def most_bytes(table: NDArray[np.int64], notes: NDArray[np.int64]) -> int:
    """Return the largest output that batches can have, but for packed records.

    Args:
        table: int64[COLUMN_COUNT, n], the batches.
        notes: int64[NOTE_COUNT, n].
    """
    most = 0
    for row in range(table.shape[1]):
        fate = notes[FATE, row]
        if fate == GONE:
            continue
        most += HEADER_BYTES
        if fate != REBUILT or table[ATTRIBUTES, row] & CODEC_MASK == 0:
            record_bytes = notes[RECORDS_END, row] - notes[RECORDS_START, row]
            most += max(table[SIZE, row], record_bytes)
            most += notes[SURVIVORS, row] * MAX_RECORD_GROWTH_BYTES
    return most
