"""Write batches and records as JSON lines: numbers, Base64, words and plain header names.

A plain name needs no escape. What cannot be written so is left to Python, record by record: one
that is larger than the room that there is for lines, and one with a header whose name has a quote,
a control character or more than ASCII in it.
"""

from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from storage_core.kernels._intrinsics import copy_bytes
from storage_core.kernels._jit import inlined_kernel, kernel
from storage_core.kernels.record_scan import (
    RECORD_BATCH,
    RECORD_HEADER_COUNT,
    RECORD_HEADER_START,
    RECORD_KEY_LENGTH,
    RECORD_KEY_START,
    RECORD_VALUE_LENGTH,
    RECORD_VALUE_START,
)
from storage_core.kernels.varint import read_varint


def _text(text: str) -> NDArray[np.uint8]:
    return np.frombuffer(text.encode("ascii"), np.uint8).copy()


_DIGITS: Final = _text("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/")
_OFFSET: Final = _text('{"type":"record","offset":')
_TIMESTAMP: Final = _text(',"timestamp":')
_SEQUENCE: Final = _text(',"sequence":')
_KEY: Final = _text(',"key":')
_VALUE: Final = _text(',"value":')
_HEADERS: Final = _text(',"headers":[')
_END: Final = _text("]}\n")
_NULL: Final = _text("null")
_QUOTE: Final = ord('"')
_BACKSLASH: Final = ord("\\")
_COMMA: Final = ord(",")
_PAD: Final = ord("=")
_OPEN: Final = ord("[")
_CLOSE: Final = ord("]")
_MINUS: Final = ord("-")
_ZERO: Final = ord("0")
_FIRST_PLAIN: Final = 0x20
_LAST_PLAIN: Final = 0x7E
_MOST_DIGITS: Final = 20  # of a 64-bit number, its sign included

# Bytes of a line beside the Base64 of key and value, and beside headers.
LINE_BYTES: Final = (
    sum(map(len, (_OFFSET, _TIMESTAMP, _SEQUENCE, _KEY, _VALUE, _HEADERS, _END)))
    + 3 * _MOST_DIGITS
    + 2 * len(_NULL)
)
# Of a header beside its name and the Base64 of its value; the end of a line has room in it, too.
_HEADER_BYTES: Final = 16


@inlined_kernel
def _base64_bytes(length: int) -> int:
    return (max(length, 0) + 2) // 3 * 4


@inlined_kernel
def _write_text(out: NDArray[np.uint8], position: int, text: NDArray[np.uint8]) -> int:
    copy_bytes(out, position, text, 0, text.size)
    return position + text.size


@kernel
def _write_number(out: NDArray[np.uint8], position: int, number: int) -> int:
    """Write a 64-bit number in decimal digits; return the position behind it."""
    rest = np.uint64(np.int64(number))
    if number < 0:
        out[position] = _MINUS
        position += 1
        rest = ~rest + np.uint64(1)
    count = 1
    larger = rest // np.uint64(10)
    while larger:
        count += 1
        larger //= np.uint64(10)
    for place in range(position + count - 1, position - 1, -1):
        larger = rest // np.uint64(10)
        out[place] = _ZERO + np.int64(rest - larger * np.uint64(10))
        rest = larger
    return position + count


@kernel
def _write_base64(
    out: NDArray[np.uint8], position: int, source: NDArray[np.uint8], start: int, length: int
) -> int:
    """Write bytes as JSON: Base64 or null; return the end position."""
    if length < 0:
        return _write_text(out, position, _NULL)
    out[position] = _QUOTE
    position += 1
    whole = start + length // 3 * 3
    for at in range(start, whole, 3):
        bits = (np.int64(source[at]) << 16) | (np.int64(source[at + 1]) << 8)
        bits |= np.int64(source[at + 2])
        out[position] = _DIGITS[bits >> 18]
        out[position + 1] = _DIGITS[(bits >> 12) & 63]
        out[position + 2] = _DIGITS[(bits >> 6) & 63]
        out[position + 3] = _DIGITS[bits & 63]
        position += 4
    tail_bytes = start + length - whole
    if tail_bytes:
        bits = np.int64(source[whole]) << 16
        if tail_bytes > 1:
            bits |= np.int64(source[whole + 1]) << 8
        out[position] = _DIGITS[bits >> 18]
        out[position + 1] = _DIGITS[(bits >> 12) & 63]
        out[position + 2] = _DIGITS[(bits >> 6) & 63] if tail_bytes > 1 else _PAD
        out[position + 3] = _PAD
        position += 4
    out[position] = _QUOTE
    return position + 1


@kernel
def _write_headers(
    out: NDArray[np.uint8], position: int, source: NDArray[np.uint8], start: int, count: int
) -> int:
    """Write headers as elements of a JSON list; return the end position. The result is -1 where
    that fails."""
    for number in range(count):
        length, start = read_varint(source, start, source.size)
        if length + _HEADER_BYTES > out.size - position:
            return -1
        if number:
            out[position] = _COMMA
            position += 1
        out[position] = _OPEN
        out[position + 1] = _QUOTE
        position += 2
        for at in range(start, start + length):
            byte = source[at]
            if byte < _FIRST_PLAIN or byte > _LAST_PLAIN or byte in (_QUOTE, _BACKSLASH):
                return -1
            out[position] = byte
            position += 1
        out[position] = _QUOTE
        out[position + 1] = _COMMA
        length, start = read_varint(source, start + length, source.size)
        if _base64_bytes(length) + _HEADER_BYTES > out.size - position:
            return -1
        position = _write_base64(out, position + 2, source, start, length)
        start += max(length, 0)
        out[position] = _CLOSE
        position += 1
    return position


@kernel
def write_record_lines(
    data: NDArray[np.uint8],
    arena: NDArray[np.uint8],
    first: int,
    end: int,
    out: NDArray[np.uint8],
    position: int,
    in_arena: NDArray[np.uint8],
    records: NDArray[np.int64],
    offset: NDArray[np.int64],
    timestamp: NDArray[np.int64],
    sequence: NDArray[np.int64],
) -> tuple[int, int]:
    """Write records [first, end) as JSON lines. Writing stops at a record that needs more room or
    an escape.

    Args:
        data: uint8[], one place where records lie.
        arena: uint8[], the other.
        out: uint8[], where the lines go.
        position: Where in it they begin.
        in_arena: uint8[batches], which of them holds the records of each batch.
        records: int64[RECORD_COLUMN_COUNT, n], of a scan that has checked them.
        offset: int64[n].
        timestamp: int64[n].
        sequence: int64[n].

    Returns:
        (row, position): the first record that was not written, and where the lines end.
    """
    for row in range(first, end):
        source = arena if in_arena[records[RECORD_BATCH, row]] else data
        key_length = records[RECORD_KEY_LENGTH, row]
        value_length = records[RECORD_VALUE_LENGTH, row]
        begin = position
        needed = LINE_BYTES + _base64_bytes(key_length) + _base64_bytes(value_length)
        if needed > out.size - position:
            return row, begin
        position = _write_number(out, _write_text(out, position, _OFFSET), offset[row])
        position = _write_number(out, _write_text(out, position, _TIMESTAMP), timestamp[row])
        position = _write_number(out, _write_text(out, position, _SEQUENCE), sequence[row])
        position = _write_text(out, position, _KEY)
        key_start = records[RECORD_KEY_START, row]
        position = _write_base64(out, position, source, key_start, key_length)
        position = _write_text(out, position, _VALUE)
        value_start = records[RECORD_VALUE_START, row]
        position = _write_base64(out, position, source, value_start, value_length)
        position = _write_text(out, position, _HEADERS)
        header_count = records[RECORD_HEADER_COUNT, row]
        if header_count:
            header_start = records[RECORD_HEADER_START, row]
            position = _write_headers(out, position, source, header_start, header_count)
            if position < 0:
                return row, begin
        position = _write_text(out, position, _END)
    return end, position


class HeadLines(NamedTuple):
    """The lines of batches themselves: their values, each behind its label.

    A value is a number, or one of some words. Texts lie end to end, with the end of each.
    """

    labels: NDArray[np.uint8]
    label_ends: NDArray[np.int64]  # int64[values + 1], the last one of what ends a line
    words: NDArray[np.uint8]
    word_ends: NDArray[np.int64]
    word: NDArray[np.int64]  # int64[values, batches], which word it is, NO_WORD for a number
    number: NDArray[np.int64]  # int64[values, batches]


NO_WORD: Final = -1


@kernel
def _write_head(out: NDArray[np.uint8], position: int, heads: HeadLines, batch: int) -> int:
    """Write the line of a batch, for which there has to be room; return the end position."""
    label_start = 0
    for column in range(heads.label_ends.size):
        label_end = heads.label_ends[column]
        size = label_end - label_start
        copy_bytes(out, position, heads.labels, label_start, size)
        position += size
        label_start = label_end
        if column == heads.word.shape[0]:
            break
        word = heads.word[column, batch]
        if word == NO_WORD:
            position = _write_number(out, position, heads.number[column, batch])
        else:
            word_start = heads.word_ends[word - 1] if word else np.int64(0)
            size = heads.word_ends[word] - word_start
            copy_bytes(out, position, heads.words, word_start, size)
            position += size
    return position


@kernel
def write_batch_lines(
    data: NDArray[np.uint8],
    arena: NDArray[np.uint8],
    heads: HeadLines,
    record_ends: NDArray[np.int64],
    batch: int,
    end_batch: int,
    row: int,
    end_row: int,
    out: NDArray[np.uint8],
    in_arena: NDArray[np.uint8],
    records: NDArray[np.int64],
    offset: NDArray[np.int64],
    timestamp: NDArray[np.int64],
    sequence: NDArray[np.int64],
) -> tuple[int, int, int]:
    """Write batches, the lines of each before those of its records, as JSON lines. Writing stops as
    in write_record_lines, or at a batch whose line needs more room.

    Args:
        heads: The lines of the batches.
        record_ends: int64[batches], where each batch's records end.
        batch: The first batch whose line is not yet written.
        end_batch: Behind the last one to write.
        row: The first record that is not yet written.
        end_row: Behind the last one to write.

    Returns:
        (batch, row, bytes): the first of each that was not written, and how many bytes there are.
    """
    words = heads.word_ends.size
    # No value is longer than all words.
    longest = max(_MOST_DIGITS, heads.word_ends[words - 1])
    head_bytes = heads.labels.size + heads.word.shape[0] * longest
    position = 0
    while True:
        end = min(record_ends[batch - 1], end_row) if batch else np.int64(0)
        if row < end:
            row, position = write_record_lines(
                data,
                arena,
                row,
                end,
                out,
                position,
                in_arena,
                records,
                offset,
                timestamp,
                sequence,
            )
        if row < end or batch == end_batch or head_bytes > out.size - position:
            return batch, row, position
        position = _write_head(out, position, heads, batch)
        batch += 1
