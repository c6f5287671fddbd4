"""Build batches of message format v2 from columns of records. The batches are cut first and then
written."""

from typing import Final, NamedTuple

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
from storage_core.kernels.record_rows import RecordRows
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


class HeaderFields(NamedTuple):
    """What the headers of new batches have in common."""

    first_offset: int  # of record 0, where the rows have no offsets
    leader_epoch: int
    attributes: int
    append_time: int  # what the largest timestamp is, NO_TIMESTAMP for the records' own
    producer_id: int
    producer_epoch: int
    base_sequence: int  # of record 0, negative for none


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
    header_first: NDArray[np.int64],
    header_key_length: NDArray[np.int64],
    header_value_length: NDArray[np.int64],
    body_bytes: NDArray[np.int64],
) -> None:
    """Fill body_bytes with the size of each record's headers, for cut_batches.

    This kernel and cut_batches take single columns of the rows: each array that Python hands to a
    kernel costs time at every call, and small batches are many calls.
    """
    for i in range(body_bytes.size):
        size = 0
        for header in range(header_first[i], header_first[i + 1]):
            key_length, value_length = header_key_length[header], header_value_length[header]
            size += varlong_size(key_length) + key_length
            size += varlong_size(value_length) + max(value_length, 0)
        body_bytes[i] = size


@kernel
def cut_batches(
    key_length: NDArray[np.int64],
    value_length: NDArray[np.int64],
    timestamps: NDArray[np.int64],
    offsets: NDArray[np.int64],
    header_first: NDArray[np.int64],
    body_bytes: NDArray[np.int64],
    max_batch_bytes: int,
    max_batch_records: int,
    batch_end: NDArray[np.int64],
    batch_bytes: NDArray[np.int64],
) -> tuple[int, int, int]:
    """Cut records into batches as a producer does. Each batch gets as many records as fit.

    Args:
        key_length: int64[n], as of `RecordRows`.
        value_length: int64[n], as of `RecordRows`.
        timestamps: int64[n].
        offsets: int64[n], or empty, as of `RecordRows`.
        header_first: int64[n + 1], as of `RecordRows`.
        body_bytes: int64[n], in: size of each record's headers; out: of what follows its length.
        max_batch_bytes: Limit of a batch, header included, before compression. A record that alone
            exceeds it has a batch of its own.
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
        headers_bytes = body_bytes[i]
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
                headers_bytes,
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
def _write_headers(out: NDArray[np.uint8], at: int, first: int, end: int, rows: RecordRows) -> int:
    for header in range(first, end):
        key_length, value_length = rows.header_key_length[header], rows.header_value_length[header]
        at = write_varlong(out, at, key_length)
        copy_bytes(out, at, rows.header_keys, rows.header_key_start[header], key_length)
        at = write_varlong(out, at + key_length, value_length)
        if value_length > 0:
            copy_bytes(out, at, rows.header_values, rows.header_value_start[header], value_length)
            at += value_length
    return at


@kernel
def write_records(out: NDArray[np.uint8], at: int, first: int, end: int, rows: RecordRows) -> int:
    """Write records [first, end) of a batch at out[at:]; return the end."""
    timestamps, offsets, header_first = rows.timestamps, rows.offsets, rows.header_first
    base_timestamp = timestamps[first]
    for i in range(first, end):
        delta = i - first
        if offsets.size > 0:
            delta = offsets[i] - offsets[first]
        key_length, value_length = rows.key_length[i], rows.value_length[i]
        at = write_varlong(out, at, rows.body_bytes[i])
        out[at] = 0
        at = write_varlong(out, at + 1, timestamps[i] - base_timestamp)
        at = write_varlong(out, at, delta)
        at = write_varlong(out, at, key_length)
        if key_length > 0:
            copy_bytes(out, at, rows.keys, rows.key_start[i], key_length)
            at += key_length
        at = write_varlong(out, at, value_length)
        if value_length > 0:
            copy_bytes(out, at, rows.values, rows.value_start[i], value_length)
            at += value_length
        at = write_varlong(out, at, header_first[i + 1] - header_first[i])
        if header_first[i + 1] > header_first[i]:
            at = _write_headers(out, at, header_first[i], header_first[i + 1], rows)
    return at


@kernel
def describe_batches(
    batch_end: NDArray[np.int64],
    timestamps: NDArray[np.int64],
    offsets: NDArray[np.int64],
    first_record: int,
    header: HeaderFields,
    table: NDArray[np.int64],
) -> None:
    """Fill a batch table with the header fields of new batches. POSITION, SIZE and CRC are left
    out.

    Args:
        batch_end: int64[m], row after the last record of each batch.
        timestamps: int64[n], of the records.
        offsets: int64[n], of the records, or empty.
        table: int64[batch_scan.COLUMN_COUNT, m], out.
    """
    first = first_record
    for row in range(batch_end.size):
        end = batch_end[row]
        base_offset = header.first_offset + first
        last_offset = header.first_offset + end - 1
        if offsets.size > 0:
            base_offset = offsets[first]
            last_offset = offsets[end - 1]
        max_timestamp = header.append_time
        if max_timestamp == NO_TIMESTAMP:
            for i in range(first, end):
                max_timestamp = max(max_timestamp, timestamps[i])
        sequence = header.base_sequence
        if sequence >= 0:
            sequence = (sequence + first) & MAX_SEQUENCE
        table[BASE_OFFSET, row] = base_offset
        table[LAST_OFFSET, row] = last_offset
        table[LEADER_EPOCH, row] = header.leader_epoch
        table[MAGIC, row] = MAGIC_V2
        table[ATTRIBUTES, row] = header.attributes
        table[BASE_TIMESTAMP, row] = timestamps[first]
        table[MAX_TIMESTAMP, row] = max_timestamp
        table[PRODUCER_ID, row] = header.producer_id
        table[PRODUCER_EPOCH, row] = header.producer_epoch
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
    """Write the header of a batch with its records in place. The row of the batch gets POSITION,
    SIZE and CRC."""
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
def write_batches(
    out: NDArray[np.uint8],
    batch_end: NDArray[np.int64],
    first_record: int,
    table: NDArray[np.int64],
    rows: RecordRows,
) -> int:
    """Write uncompressed batches end to end from out[0] on; return their size.

    Args:
        out: uint8[], with room for what cut_batches said.
        batch_end: int64[m], row after the last record of each batch.
        table: int64[batch_scan.COLUMN_COUNT, m], their header fields; gets POSITION, SIZE and CRC.
    """
    at = 0
    first = first_record
    for row in range(batch_end.size):
        end = write_records(out, at + HEADER_BYTES, first, batch_end[row], rows)
        seal_batch(out, at, end - at, table, row)
        at = end
        first = batch_end[row]
    return at
