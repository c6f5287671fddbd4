"""Batches written out: verbatim, as a bare header, or rebuilt from the records that survive.

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
    """Write a batch's header at out[at:], with the identity of the source batch `row`, and its CRC.

    The records must be in place: the CRC covers them.
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
    """Return the bytes of a record from its offset delta on, if they are written as they are.

    That is so of a record with key and value, without headers, of which every number takes as few
    bytes as it can: more in any of them would show in the record's length. Otherwise 0. A number of
    five bytes has bits that do not count, and may be written with others.
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
def write_records(  # arrays side by side
    out: NDArray[np.uint8],
    at: int,
    source: NDArray[np.uint8],
    start: int,
    end: int,
    record_count: int,
    keep: NDArray[np.uint8],
    first_record: int,
    old_base_timestamp: int,
    append_time: int,
    delete_horizon_ms: int,
    rebases: bool,
    least_timestamp: int,
) -> tuple[int, int, int, int, int, int]:
    """Write the kept records of one batch, encoded as Kafka's builder encodes them.

    Args:
        out: uint8[], with room for the source bytes plus MAX_RECORD_GROWTH_BYTES a kept record.
        at: Where in out to begin.
        source: uint8[], the batch's records, not compressed; they have been parsed before.
        start: Where they begin.
        end: Where they end.
        record_count: How many there are.
        keep: uint8[], which to keep.
        first_record: Where in keep the batch begins.
        old_base_timestamp: The source batch's base timestamp field.
        append_time: What every record's timestamp is, NO_TIMESTAMP for create time.
        delete_horizon_ms: New base of the timestamp deltas, NO_TIMESTAMP for none: then it is the
            first kept record's timestamp.
        rebases: Whether offsets count from the first kept record.
        least_timestamp: No kept record may have a lower one; NO_TIMESTAMP as in Kafka.

    Returns:
        (end, base_timestamp, max_timestamp, first_delta, last_delta, status): the deltas are the
        old ones of the first and the last kept record; status DONE, BAD_RECORD, BAD_ORDER or
        BAD_TIMESTAMP.
    """
    position = start
    base_timestamp = delete_horizon_ms
    has_base = delete_horizon_ms != NO_TIMESTAMP
    max_timestamp = NO_TIMESTAMP
    first_delta = np.int64(0)
    last_delta = np.int64(NO_RECORD_OFFSET)
    for i in range(record_count):
        prefetch_byte(source, position + AHEAD_BYTES)
        if not keep[first_record + i]:
            position = skip_record(source, position, end)
            if position < 0:
                return at, base_timestamp, max_timestamp, first_delta, last_delta, BAD_RECORD
            continue
        record = parse_record(source, position, end)
        if record.next_position < 0:
            return at, base_timestamp, max_timestamp, first_delta, last_delta, BAD_RECORD
        position = record.next_position
        timestamp = append_time
        if append_time == NO_TIMESTAMP:
            timestamp = old_base_timestamp + record.timestamp_delta
        if timestamp < least_timestamp:
            return at, base_timestamp, max_timestamp, first_delta, last_delta, BAD_TIMESTAMP
        if record.offset_delta <= last_delta:
            return at, base_timestamp, max_timestamp, first_delta, last_delta, BAD_ORDER
        if last_delta == NO_RECORD_OFFSET:
            first_delta = np.int64(record.offset_delta)
        last_delta = np.int64(record.offset_delta)
        offset_delta = last_delta - first_delta if rebases else last_delta
        if not has_base:
            base_timestamp = timestamp
            has_base = True
        max_timestamp = max(max_timestamp, timestamp)
        delta = timestamp - base_timestamp
        tail_bytes = 0 if rebases else _tail_size(record)
        if tail_bytes:
            at = write_varlong(out, at, 1 + varlong_size(delta) + tail_bytes)
            out[at] = 0
            at = write_varlong(out, at + 1, delta)
            copy_bytes(out, at, source, position - tail_bytes, tail_bytes)
            at += tail_bytes
        else:
            at = _write_record(out, at, source, record, delta, offset_delta)
    return at, base_timestamp, max_timestamp, first_delta, last_delta, DONE


@kernel
def kept_attributes(
    attributes: int, codec: int, has_horizon: bool
) -> int:  # numba takes no keyword-only arguments
    """Return the attributes of a rebuilt batch: nothing of unused bits survives."""
    kept = attributes & (TIMESTAMP_TYPE_BIT | TRANSACTIONAL_BIT | CONTROL_BIT)
    return kept | codec | (DELETE_HORIZON_BIT if has_horizon else 0)


@kernel
def _rebuild(  # arrays side by side
    out: NDArray[np.uint8],
    at: int,
    source: NDArray[np.uint8],
    start: int,
    end: int,
    record_count: int,
    table: NDArray[np.int64],
    row: int,
    keep: NDArray[np.uint8],
    first_record: int,
    delete_horizon_ms: int,
    least_timestamp: int,
) -> tuple[int, int, int, int]:
    """Write the kept records of a batch; BASE_OFFSET and LAST_OFFSET of a legacy one become theirs.

    Returns:
        (end, base_timestamp, max_timestamp, status): as the header will have them; status as
        write_records has it.
    """
    append_time = NO_TIMESTAMP
    is_append_time = table[ATTRIBUTES, row] & TIMESTAMP_TYPE_BIT != 0
    is_legacy = table[MAGIC, row] < MAGIC_V2
    # Records made from a legacy entry have their timestamps already.
    if is_append_time and not is_legacy:
        append_time = table[MAX_TIMESTAMP, row]
    records_end, base_timestamp, max_timestamp, first, last, status = write_records(
        out,
        at,
        source,
        start,
        end,
        record_count,
        keep,
        first_record,
        table[BASE_TIMESTAMP, row],
        append_time,
        delete_horizon_ms,
        is_legacy,
        least_timestamp,
    )
    if status != DONE:
        return at, base_timestamp, max_timestamp, status
    if is_legacy:
        table[LAST_OFFSET, row] = table[BASE_OFFSET, row] + last
        table[BASE_OFFSET, row] += first
    if is_append_time:
        max_timestamp = table[MAX_TIMESTAMP, row]
    return records_end, base_timestamp, max_timestamp, DONE


@kernel
def rebuild_compressed(  # arrays side by side
    raw: NDArray[np.uint8],
    data: NDArray[np.uint8],
    arena: NDArray[np.uint8],
    in_arena: NDArray[np.uint8],
    start: NDArray[np.int64],
    end: NDArray[np.int64],
    record_count: NDArray[np.int64],
    table: NDArray[np.int64],
    fate: NDArray[np.uint8],
    kept: NDArray[np.int64],
    keep: NDArray[np.uint8],
    first_record: NDArray[np.int64],
    delete_horizon_ms: NDArray[np.int64],
    first_row: int,
    end_row: int,
    rows: NDArray[np.int64],
    raw_end: NDArray[np.int64],
    base_timestamp: NDArray[np.int64],
    max_timestamp: NDArray[np.int64],
    least_timestamp: int,
) -> tuple[int, int, int]:
    """Write the records of REBUILT batches with a codec to raw, end to end, to be compressed.

    ``rows`` gets these batches, ``raw_end`` where the records of each end; of each the other two
    get what its header will say. As in write_batches, a legacy row gets other offsets.

    Returns:
        (row, count, status): the row up to which all are written, before the first that has no
        room; how many were; DONE, BAD_RECORD, BAD_ORDER or BAD_TIMESTAMP, then of that row.
    """
    at = 0
    count = 0
    for row in range(first_row, end_row):
        if fate[row] != REBUILT or not table[ATTRIBUTES, row] & CODEC_MASK:
            continue
        most = end[row] - start[row] + kept[row] * MAX_RECORD_GROWTH_BYTES
        if most > raw.size - at:
            return row, count, DONE
        at, base_timestamp[row], max_timestamp[row], status = _rebuild(
            raw,
            at,
            arena if in_arena[row] else data,
            start[row],
            end[row],
            record_count[row],
            table,
            row,
            keep,
            first_record[row],
            delete_horizon_ms[row],
            least_timestamp,
        )
        if status != DONE:
            return row, count, status
        rows[count], raw_end[count] = row, at
        count += 1
    return end_row, count, DONE


@kernel
def write_batches(  # arrays side by side
    out: NDArray[np.uint8],
    at: int,
    data: NDArray[np.uint8],
    arena: NDArray[np.uint8],
    in_arena: NDArray[np.uint8],
    start: NDArray[np.int64],
    end: NDArray[np.int64],
    record_count: NDArray[np.int64],
    table: NDArray[np.int64],
    fate: NDArray[np.uint8],
    kept: NDArray[np.int64],
    keep: NDArray[np.uint8],
    first_record: NDArray[np.int64],
    delete_horizon_ms: NDArray[np.int64],
    first_row: int,
    end_row: int,
    packed: NDArray[np.uint8],
    packed_start: NDArray[np.int64],
    packed_end: NDArray[np.int64],
    base_timestamp: NDArray[np.int64],
    out_max_timestamp: NDArray[np.int64],
    out_size: NDArray[np.int64],
    least_timestamp: int,
) -> tuple[int, int, int]:
    """Write rows [first_row, end_row) by their fate.

    Of a REBUILT one with a codec the compressed records lie in packed, and base_timestamp and
    out_max_timestamp are known. BASE_OFFSET and LAST_OFFSET of a rebuilt legacy row become those of
    the batch that is written.

    Returns:
        (at, row, status): position in out, the row that was not written (end_row when all were),
        and DONE, BAD_RECORD, BAD_ORDER or BAD_TIMESTAMP.
    """
    for row in range(first_row, end_row):
        if fate[row] == GONE:
            out_size[row] = 0
            continue
        attributes = table[ATTRIBUTES, row]
        codec = attributes & CODEC_MASK
        if fate[row] == VERBATIM:
            copy_bytes(out, at, data, table[POSITION, row], table[SIZE, row])
            out_size[row] = table[SIZE, row]
            out_max_timestamp[row] = table[MAX_TIMESTAMP, row]
        elif fate[row] == HEADER_ONLY:
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
            out_size[row] = HEADER_BYTES
            out_max_timestamp[row] = table[MAX_TIMESTAMP, row]
        else:
            records_at = at + HEADER_BYTES
            if codec:
                length = packed_end[row] - packed_start[row]
                copy_bytes(out, records_at, packed, packed_start[row], length)
                records_end = records_at + length
            else:
                records_end, base_timestamp[row], out_max_timestamp[row], status = _rebuild(
                    out,
                    records_at,
                    arena if in_arena[row] else data,
                    start[row],
                    end[row],
                    record_count[row],
                    table,
                    row,
                    keep,
                    first_record[row],
                    delete_horizon_ms[row],
                    least_timestamp,
                )
                if status != DONE:
                    return at, row, status
            out_size[row] = records_end - at
            write_header(
                out,
                at,
                table,
                row,
                records_end - at,
                kept_attributes(attributes, codec, delete_horizon_ms[row] != NO_TIMESTAMP),
                base_timestamp[row],
                out_max_timestamp[row],
                kept[row],
            )
        at += out_size[row]
    return at, end_row, DONE


@kernel
def most_bytes(  # arrays side by side
    start: NDArray[np.int64],
    end: NDArray[np.int64],
    table: NDArray[np.int64],
    fate: NDArray[np.uint8],
    kept: NDArray[np.int64],
    first_row: int,
    end_row: int,
) -> int:
    """Return the largest output that rows [first_row, end_row) can have, but for packed records.

    Args:
        start: int64[], where the records of a batch begin.
        end: int64[], where they end.
        table: int64[COLUMN_COUNT, n], the batches.
        fate: uint8[], what becomes of each.
        kept: int64[], how many of its records stay.
        first_row: Where to begin.
        end_row: Where to end.
    """
    most = 0
    for row in range(first_row, end_row):
        if fate[row] == GONE:
            continue
        most += HEADER_BYTES
        if fate[row] != REBUILT or table[ATTRIBUTES, row] & CODEC_MASK == 0:
            most += max(table[SIZE, row], end[row] - start[row])
            most += kept[row] * MAX_RECORD_GROWTH_BYTES
    return most
