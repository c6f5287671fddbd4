"""Read messages of formats v0 and v1 as v2 records.

Everything behind the reader knows one encoding of records: a legacy entry becomes v2 records with
the same offsets, timestamps, keys and values, in a buffer beside the window, and numbers that a v2
header would have (``formats.legacy``, ``formats.record_v2``). What is accepted is what Kafka's
iterator accepts: an inner set ends where no whole message follows, checksums of inner messages are
not looked at, and bytes behind a message's value are ignored.
"""

from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from storage_core.formats.batch_v2 import CODEC_MASK, NO_TIMESTAMP, TIMESTAMP_TYPE_BIT
from storage_core.formats.legacy import (
    ENTRY_ATTRIBUTES_AT,
    ENTRY_MAGIC_AT,
    ENTRY_OVERHEAD,
    KEY_AT_V0,
    KEY_AT_V1,
    LENGTH_BYTES,
    MAGIC_V0,
    MAGIC_V1,
    MIN_MESSAGE_BYTES_V0,
    OFFSET_AT,
    SIZE_AT,
    TIMESTAMP_AT,
)
from storage_core.formats.record_v2 import NULL_LENGTH
from storage_core.kernels._intrinsics import copy_bytes
from storage_core.kernels._jit import inlined_kernel, kernel
from storage_core.kernels.batch_notes import RECORDS_END, RECORDS_START
from storage_core.kernels.batch_scan import (
    ATTRIBUTES,
    BASE_OFFSET,
    BASE_TIMESTAMP,
    LAST_OFFSET,
    MAGIC,
    MAX_TIMESTAMP,
    RECORD_COUNT,
)
from storage_core.kernels.record_scan import DONE, TOO_LARGE
from storage_core.kernels.varint import read_i32, read_i64, varlong_size, write_varlong

# Why an entry cannot be read.
BAD_MESSAGE: Final = 7  # a length of key or value that does not fit
BAD_MESSAGE_SIZE: Final = 8  # an inner message smaller than the smallest
NO_MESSAGE: Final = 9  # a compressed set without a message
NESTED: Final = 10  # a compressed message inside a compressed one
BAD_WRAPPER_OFFSET: Final = 11  # not zero, and below the last inner offset
BAD_OFFSET_SPAN: Final = 12  # offsets inside one set that lie more than 31 bits apart

# A record takes at most 32 bytes beside key and value, an entry of a legacy format at least 26.
MAX_RECORD_OVERHEAD_BYTES: Final = 32
MIN_ENTRY_BYTES: Final = ENTRY_OVERHEAD + MIN_MESSAGE_BYTES_V0

_MAX_DELTA: Final = 2**31 - 1
_INVALID: Final = -1


class ParsedMessage(NamedTuple):
    """Spans of the key and value of a legacy message. A negative key_start says that the
    message's lengths do not fit; the rest means nothing then."""

    key_start: int
    key_length: int  # negative: null
    value_start: int
    value_length: int  # negative: null


@inlined_kernel
def parse_message(data: NDArray[np.uint8], position: int, end: int, magic: int) -> ParsedMessage:
    """Read the lengths of the entry at position, which ends at end."""
    bad = ParsedMessage(_INVALID, 0, 0, 0)
    key_start = position + (KEY_AT_V0 if magic == MAGIC_V0 else KEY_AT_V1) + LENGTH_BYTES
    if key_start > end:
        return bad
    key_length = read_i32(data, key_start - LENGTH_BYTES)
    key_bytes = max(key_length, 0)
    if key_bytes > end - key_start - LENGTH_BYTES:
        return bad
    value_start = key_start + key_bytes + LENGTH_BYTES
    value_length = read_i32(data, value_start - LENGTH_BYTES)
    if value_length > end - value_start:
        return bad
    return ParsedMessage(
        key_start, max(key_length, NULL_LENGTH), value_start, max(value_length, NULL_LENGTH)
    )


@kernel
def locate_value(
    data: NDArray[np.uint8], position: int, end: int, magic: int
) -> tuple[int, int, int]:
    """Return (status, start, length) of the value of an entry. The length is negative for null."""
    message = parse_message(data, position, end, magic)
    if message.key_start < 0:
        return BAD_MESSAGE, 0, 0
    return DONE, message.value_start, message.value_length


@kernel
def _survey_set(
    data: NDArray[np.uint8], start: int, end: int, max_message_bytes: int
) -> tuple[int, int, int, int]:
    """Walk over an inner set; return (status, position, messages, last offset). The last offset
    is as stored."""
    position = start
    count = 0
    last_offset = 0
    while end - position >= ENTRY_OVERHEAD:
        size = read_i32(data, position + SIZE_AT)
        if size < MIN_MESSAGE_BYTES_V0:
            return BAD_MESSAGE_SIZE, position, count, last_offset
        if size > max_message_bytes:
            return TOO_LARGE, position, count, last_offset
        if size > end - position - ENTRY_OVERHEAD:
            break
        if data[position + ENTRY_ATTRIBUTES_AT] & CODEC_MASK:
            return NESTED, position, count, last_offset
        last_offset = read_i64(data, position + OFFSET_AT)
        count += 1
        position += ENTRY_OVERHEAD + size
    return (DONE if count else NO_MESSAGE), position, count, last_offset


@inlined_kernel
def _write_record(
    out: NDArray[np.uint8],
    at: int,
    data: NDArray[np.uint8],
    message: ParsedMessage,
    timestamp_delta: int,
    offset_delta: int,
) -> int:
    """Write a message as a v2 record; return the next position."""
    key_bytes = max(message.key_length, 0)
    value_bytes = max(message.value_length, 0)
    body = (
        2  # attributes, and no headers
        + varlong_size(timestamp_delta)
        + varlong_size(offset_delta)
        + varlong_size(message.key_length)
        + key_bytes
        + varlong_size(message.value_length)
        + value_bytes
    )
    at = write_varlong(out, at, body)
    out[at] = 0
    at = write_varlong(out, at + 1, timestamp_delta)
    at = write_varlong(out, at, offset_delta)
    at = write_varlong(out, at, message.key_length)
    copy_bytes(out, at, data, message.key_start, key_bytes)
    at = write_varlong(out, at + key_bytes, message.value_length)
    copy_bytes(out, at, data, message.value_start, value_bytes)
    at += value_bytes
    out[at] = 0
    return at + 1


@kernel
def transcode_entries(
    data: NDArray[np.uint8],
    sets: NDArray[np.uint8],
    table: NDArray[np.int64],
    notes: NDArray[np.int64],
    rows: NDArray[np.int64],
    max_message_bytes: int,
    out: NDArray[np.uint8],
    arena_bytes: int,
) -> tuple[int, int, int, int]:
    """Write legacy messages as v2 records; set their v2 header fields.

    Args:
        data: uint8[], the window; an entry that is not compressed lies in it.
        sets: uint8[], the sets of the compressed ones, expanded.
        table: int64[COLUMN_COUNT, n], the batches; BASE_OFFSET, BASE_TIMESTAMP and RECORD_COUNT of
            the entries become those of their messages.
        notes: int64[NOTE_COUNT, n]; RECORDS_START and RECORDS_END say where an entry lies, or its
            set, and then where its records lie behind what an arena has.
        rows: int64[], which entries, of magic 0 or 1.
        max_message_bytes: The largest message that may lie in a compressed set.
        out: uint8[], with room for all bytes of the entries and sets, and 6 a message more.
        arena_bytes: How much the arena has that out will be added to.

    Returns:
        (end, status, row, position): where out ends; DONE, or why and in which entry and at which
        position of its bytes it stopped.
    """
    at = 0
    for row in rows:
        is_wrapper = table[ATTRIBUTES, row] & CODEC_MASK != 0
        is_append_time = table[ATTRIBUTES, row] & TIMESTAMP_TYPE_BIT != 0
        last_offset = table[LAST_OFFSET, row]
        source = sets if is_wrapper else data
        position = notes[RECORDS_START, row]
        count = 1
        first_offset = last_offset
        shift = np.int64(0)
        if is_wrapper:
            status, bad_at, count, last_inner = _survey_set(
                source, position, notes[RECORDS_END, row], max_message_bytes
            )
            if status != DONE:
                return at, status, row, bad_at
            if table[MAGIC, row] == MAGIC_V1 and last_offset != 0:
                if last_offset < last_inner:
                    return at, BAD_WRAPPER_OFFSET, row, position
                shift = last_offset - last_inner
            first_offset = shift + read_i64(source, position + OFFSET_AT)
        records_start = at
        first_timestamp = np.int64(NO_TIMESTAMP)
        for i in range(count):
            following = position + ENTRY_OVERHEAD + read_i32(source, position + SIZE_AT)
            inner_magic = np.int64(np.int8(source[position + ENTRY_MAGIC_AT]))
            message = parse_message(source, position, following, inner_magic)
            if message.key_start < 0:
                return at, BAD_MESSAGE, row, position
            offset = last_offset
            if is_wrapper:
                offset = shift + read_i64(source, position + OFFSET_AT)
            offset_delta = offset - first_offset
            if offset_delta > _MAX_DELTA or offset_delta < -_MAX_DELTA:
                return at, BAD_OFFSET_SPAN, row, position
            created = np.int64(NO_TIMESTAMP)
            if inner_magic != MAGIC_V0:
                created = read_i64(source, position + TIMESTAMP_AT)
                if is_append_time and inner_magic == MAGIC_V1:
                    created = table[MAX_TIMESTAMP, row]
            if i == 0:
                first_timestamp = created
            at = _write_record(out, at, source, message, created - first_timestamp, offset_delta)
            position = following
        notes[RECORDS_START, row] = arena_bytes + records_start
        notes[RECORDS_END, row] = arena_bytes + at
        table[BASE_OFFSET, row] = first_offset
        table[BASE_TIMESTAMP, row] = first_timestamp
        table[RECORD_COUNT, row] = count
    return at, DONE, 0, 0
