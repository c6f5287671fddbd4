"""Batches of message format v2 out of columns: where one ends and the next begins, then its bytes.

Every source of bytes is read only: a kernel compiles once for each kind of array that it is given.
Spans have been checked against their buffers before (``records.new_records``).
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
    CRC_AT,
    CRC_START,
    HEADER_BYTES,
    LAST_OFFSET_DELTA_AT,
    LEADER_EPOCH_AT,
    LENGTH_OVERHEAD,
    MAGIC_AT,
    MAGIC_V2,
    MAX_BATCH_BYTES,
    MAX_SEQUENCE,
    MAX_TIMESTAMP_AT,
    NO_TIMESTAMP,
    PRODUCER_EPOCH_AT,
    PRODUCER_ID_AT,
    RECORD_COUNT_AT,
)
from storage_core.formats.index_entries import MAX_RELATIVE_OFFSET
from storage_core.kernels._intrinsics import copy_bytes
from storage_core.kernels._jit import inlined_kernel, kernel
from storage_core.kernels.batch_scan import (
    ATTRIBUTES,
    BASE_OFFSET,
    BASE_SEQUENCE,
    BASE_TIMESTAMP,
    CONTROL_TYPE,
    COORDINATOR_EPOCH,
    CRC,
    CRC_OK,
    LAST_OFFSET,
    LEADER_EPOCH,
    MAGIC,
    MARKER_TIMESTAMP,
    MAX_TIMESTAMP,
    NOT_CONTROL,
    POSITION,
    PRODUCER_EPOCH,
    PRODUCER_ID,
    RECORD_COUNT,
    SIZE,
)
from storage_core.kernels.crc32c import crc32c
from storage_core.kernels.varint import (
    varlong_size,
    write_i16,
    write_i32,
    write_i64,
    write_varlong,
)

# Why batches cannot be made.
DONE: Final = 0
BAD_TIMESTAMP: Final = 1  # a negative one other than NO_TIMESTAMP
BAD_ORDER: Final = 2  # an offset that does not rise
TOO_LARGE: Final = 3  # a record that fits no batch at all


@inlined_kernel
def _record_body_size(
    timestamp_delta: int,
    offset_delta: int,
    key_length: int,
    value_length: int,
    header_count: int,
    headers_bytes: int,
) -> int:
    return (
        1
        + varlong_size(timestamp_delta)
        + varlong_size(offset_delta)
        + varlong_size(key_length)
        + max(key_length, 0)
        + varlong_size(value_length)
        + max(value_length, 0)
        + varlong_size(header_count)
        + headers_bytes
    )


@kernel
def size_headers(
    first: NDArray[np.int64],
    key_length: NDArray[np.int64],
    value_length: NDArray[np.int64],
    out: NDArray[np.int64],
) -> None:
    """Fill out, int64[n], with the bytes that the headers of each of n records take."""
    for i in range(out.size):
        size = 0
        for header in range(first[i], first[i + 1]):
            size += varlong_size(key_length[header]) + key_length[header]
            size += varlong_size(value_length[header]) + max(value_length[header], 0)
        out[i] = size


@kernel
def cut_batches(  # arrays side by side
    key_length: NDArray[np.int64],
    value_length: NDArray[np.int64],
    timestamps: NDArray[np.int64],
    offsets: NDArray[np.int64],
    header_first: NDArray[np.int64],
    headers_bytes: NDArray[np.int64],
    max_batch_bytes: int,
    max_batch_records: int,
    body_bytes: NDArray[np.int64],
    batch_end: NDArray[np.int64],
    batch_bytes: NDArray[np.int64],
) -> tuple[int, int, int]:
    """Decide which records share a batch: as many as fit, as a producer fills its batches.

    Args:
        key_length: int64[n], negative for null.
        value_length: int64[n], negative for null.
        timestamps: int64[n].
        offsets: int64[n], rising; or empty: one after the other.
        header_first: int64[n + 1].
        headers_bytes: int64[n].
        max_batch_bytes: Limit of a batch, header included, before compression. A record that
            alone exceeds it has a batch of its own.
        max_batch_records: Limit of a batch.
        body_bytes: int64[n], out: bytes of each record after its length.
        batch_end: int64[n], out: row after the last record of each batch.
        batch_bytes: int64[n], out: size of each batch, header included.

    Returns:
        (count, row, status): how many batches; the record at which it stopped, and why, or DONE.
    """
    count = 0
    size = HEADER_BYTES
    first = 0
    for i in range(timestamps.size):
        if timestamps[i] < NO_TIMESTAMP:
            return count, i, BAD_TIMESTAMP
        if offsets.size > 0 and i > 0 and offsets[i] <= offsets[i - 1]:
            return count, i, BAD_ORDER
        header_count = header_first[i + 1] - header_first[i]
        for _ in range(2):
            delta = i - first
            if offsets.size > 0:
                delta = offsets[i] - offsets[first]
            body = _record_body_size(
                timestamps[i] - timestamps[first],
                delta,
                key_length[i],
                value_length[i],
                header_count,
                headers_bytes[i],
            )
            record = varlong_size(body) + body
            if delta <= MAX_RELATIVE_OFFSET and (
                i == first or (size + record <= max_batch_bytes and i - first < max_batch_records)
            ):
                break
            batch_end[count] = i
            batch_bytes[count] = size
            count += 1
            first = i
            size = HEADER_BYTES
        if HEADER_BYTES + record > MAX_BATCH_BYTES:
            return count, i, TOO_LARGE
        body_bytes[i] = body
        size += record
    if timestamps.size > 0:
        batch_end[count] = timestamps.size
        batch_bytes[count] = size
        count += 1
    return count, timestamps.size, DONE


@kernel
def _write_headers(
    out: NDArray[np.uint8],
    at: int,
    first: int,
    end: int,
    keys: NDArray[np.uint8],
    key_start: NDArray[np.int64],
    key_length: NDArray[np.int64],
    values: NDArray[np.uint8],
    value_start: NDArray[np.int64],
    value_length: NDArray[np.int64],
) -> int:
    for header in range(first, end):
        at = write_varlong(out, at, key_length[header])
        copy_bytes(out, at, keys, key_start[header], key_length[header])
        at = write_varlong(out, at + key_length[header], value_length[header])
        if value_length[header] > 0:
            copy_bytes(out, at, values, value_start[header], value_length[header])
            at += value_length[header]
    return at


@kernel
def write_records(  # arrays side by side
    out: NDArray[np.uint8],
    at: int,
    first: int,
    end: int,
    keys: NDArray[np.uint8],
    key_start: NDArray[np.int64],
    key_length: NDArray[np.int64],
    values: NDArray[np.uint8],
    value_start: NDArray[np.int64],
    value_length: NDArray[np.int64],
    timestamps: NDArray[np.int64],
    offsets: NDArray[np.int64],
    header_first: NDArray[np.int64],
    header_keys: NDArray[np.uint8],
    header_key_start: NDArray[np.int64],
    header_key_length: NDArray[np.int64],
    header_values: NDArray[np.uint8],
    header_value_start: NDArray[np.int64],
    header_value_length: NDArray[np.int64],
    body_bytes: NDArray[np.int64],
) -> int:
    """Write the records [first, end) of one batch at out[at:]; return the position after them."""
    base_timestamp = timestamps[first]
    for i in range(first, end):
        delta = i - first
        if offsets.size > 0:
            delta = offsets[i] - offsets[first]
        at = write_varlong(out, at, body_bytes[i])
        out[at] = 0
        at = write_varlong(out, at + 1, timestamps[i] - base_timestamp)
        at = write_varlong(out, at, delta)
        at = write_varlong(out, at, key_length[i])
        if key_length[i] > 0:
            copy_bytes(out, at, keys, key_start[i], key_length[i])
            at += key_length[i]
        at = write_varlong(out, at, value_length[i])
        if value_length[i] > 0:
            copy_bytes(out, at, values, value_start[i], value_length[i])
            at += value_length[i]
        at = write_varlong(out, at, header_first[i + 1] - header_first[i])
        if header_first[i + 1] > header_first[i]:
            at = _write_headers(
                out,
                at,
                header_first[i],
                header_first[i + 1],
                header_keys,
                header_key_start,
                header_key_length,
                header_values,
                header_value_start,
                header_value_length,
            )
    return at


@kernel
def describe_batches(  # arrays side by side
    batch_end: NDArray[np.int64],
    timestamps: NDArray[np.int64],
    offsets: NDArray[np.int64],
    first_offset: int,
    first_record: int,
    leader_epoch: int,
    attributes: int,
    append_time: int,
    producer_id: int,
    producer_epoch: int,
    base_sequence: int,
    table: NDArray[np.int64],
) -> None:
    """Fill a batch table with the header fields of new batches, all but POSITION, SIZE and CRC.

    Args:
        batch_end: int64[m], row after the last record of each batch, counted from first_record.
        timestamps: int64[n].
        offsets: int64[n], or empty.
        first_offset: Offset of record 0, where offsets is empty.
        first_record: The record with which the first batch begins.
        leader_epoch: Of all.
        attributes: Of all.
        append_time: What the largest timestamp is, NO_TIMESTAMP for the records' own.
        producer_id: Of all.
        producer_epoch: Of all.
        base_sequence: Sequence of record 0, negative for none.
        table: int64[batch_scan.COLUMN_COUNT, m], out.
    """
    first = first_record
    for row in range(batch_end.size):
        end = batch_end[row]
        base_offset = first_offset + first
        last_offset = first_offset + end - 1
        if offsets.size > 0:
            base_offset = offsets[first]
            last_offset = offsets[end - 1]
        max_timestamp = append_time
        if append_time == NO_TIMESTAMP:
            for i in range(first, end):
                max_timestamp = max(max_timestamp, timestamps[i])
        sequence = base_sequence
        if base_sequence >= 0:
            sequence = (base_sequence + first) & MAX_SEQUENCE
        table[BASE_OFFSET, row] = base_offset
        table[LAST_OFFSET, row] = last_offset
        table[LEADER_EPOCH, row] = leader_epoch
        table[MAGIC, row] = MAGIC_V2
        table[ATTRIBUTES, row] = attributes
        table[BASE_TIMESTAMP, row] = timestamps[first]
        table[MAX_TIMESTAMP, row] = max_timestamp
        table[PRODUCER_ID, row] = producer_id
        table[PRODUCER_EPOCH, row] = producer_epoch
        table[BASE_SEQUENCE, row] = sequence
        table[RECORD_COUNT, row] = end - first
        table[CRC_OK, row] = 1
        table[CONTROL_TYPE, row] = NOT_CONTROL
        table[COORDINATOR_EPOCH, row] = -1
        table[MARKER_TIMESTAMP, row] = NO_TIMESTAMP
        first = end


@kernel
def seal_batch(
    out: NDArray[np.uint8], at: int, size: int, table: NDArray[np.int64], row: int
) -> None:
    """Write the header of a batch whose records are in place, and note POSITION, SIZE and CRC."""
    write_i64(out, at + BASE_OFFSET_AT, table[BASE_OFFSET, row])
    write_i32(out, at + BATCH_LENGTH_AT, size - LENGTH_OVERHEAD)
    write_i32(out, at + LEADER_EPOCH_AT, table[LEADER_EPOCH, row])
    out[at + MAGIC_AT] = MAGIC_V2
    write_i16(out, at + ATTRIBUTES_AT, table[ATTRIBUTES, row])
    write_i32(out, at + LAST_OFFSET_DELTA_AT, table[LAST_OFFSET, row] - table[BASE_OFFSET, row])
    write_i64(out, at + BASE_TIMESTAMP_AT, table[BASE_TIMESTAMP, row])
    write_i64(out, at + MAX_TIMESTAMP_AT, table[MAX_TIMESTAMP, row])
    write_i64(out, at + PRODUCER_ID_AT, table[PRODUCER_ID, row])
    write_i16(out, at + PRODUCER_EPOCH_AT, table[PRODUCER_EPOCH, row])
    write_i32(out, at + BASE_SEQUENCE_AT, table[BASE_SEQUENCE, row])
    write_i32(out, at + RECORD_COUNT_AT, table[RECORD_COUNT, row])
    crc = crc32c(out, at + CRC_START, at + size)
    write_i32(out, at + CRC_AT, crc)
    table[POSITION, row] = at
    table[SIZE, row] = size
    table[CRC, row] = crc


@kernel
def write_batches(  # arrays side by side
    out: NDArray[np.uint8],
    batch_end: NDArray[np.int64],
    first_record: int,
    table: NDArray[np.int64],
    keys: NDArray[np.uint8],
    key_start: NDArray[np.int64],
    key_length: NDArray[np.int64],
    values: NDArray[np.uint8],
    value_start: NDArray[np.int64],
    value_length: NDArray[np.int64],
    timestamps: NDArray[np.int64],
    offsets: NDArray[np.int64],
    header_first: NDArray[np.int64],
    header_keys: NDArray[np.uint8],
    header_key_start: NDArray[np.int64],
    header_key_length: NDArray[np.int64],
    header_values: NDArray[np.uint8],
    header_value_start: NDArray[np.int64],
    header_value_length: NDArray[np.int64],
    body_bytes: NDArray[np.int64],
) -> int:
    """Write uncompressed batches end to end from out[0] on; return how many bytes they have.

    The columns are those of write_records; out has room for what cut_batches said, and the table
    comes from describe_batches.
    """
    at = 0
    first = first_record
    for row in range(batch_end.size):
        end = write_records(
            out,
            at + HEADER_BYTES,
            first,
            batch_end[row],
            keys,
            key_start,
            key_length,
            values,
            value_start,
            value_length,
            timestamps,
            offsets,
            header_first,
            header_keys,
            header_key_start,
            header_key_length,
            header_values,
            header_value_start,
            header_value_length,
            body_bytes,
        )
        seal_batch(out, at, end - at, table, row)
        at = end
        first = batch_end[row]
    return at
