"""Decode Avro values into the buffers of Arrow columns, by a program made from a schema.

The program runs once for each value. It runs twice over the values of a batch: the first time it
stores nothing, checks every byte, and counts the items of lists and the bytes of strings. Then the
buffers are made, zeroed and as large as they have to be, and the second time it fills them. A
column inside a list has its rows numbered by the list's counter; all others by the row of the
value. So a null, or a value that does not fit, needs no store: zero stands there. Only offsets have
to be filled forward.

Encoding: https://avro.apache.org/docs/1.12.0/specification/#binary-encoding
"""

from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from storage_core.kernels._intrinsics import copy_bytes, load_word
from storage_core.kernels._jit import inlined_kernel, kernel
from storage_core.kernels.gather import HIGH_BITS, find_not_utf8
from storage_core.kernels.varint import INVALID

# An operation of a program, so many int64. What A to D mean stands beside each operation.
CODE: Final = 0
ROWS: Final = 1  # the counter that numbers the rows of its column
VALUES: Final = 2  # where its buffer begins, in items; negative for nothing to store
BYTES: Final = 3  # where the bytes of its strings begin
A: Final = 4
B: Final = 5
C: Final = 6
D: Final = 7
OPERATION_WORDS: Final = 8

# Operations, the frequent ones first. What they store is in brackets.
NULLABLE: Final = 0  # a union of null and B; A: index of null, B: end of the other branch [bit]
STRING: Final = 1  # A: counter of bytes, B: 1 to check UTF-8, C: its size, or -1 for a length [i32]
LONG: Final = 2  # [i64]
INT: Final = 3  # [i32]
DOUBLE: Final = 4  # [i64]
ENUM: Final = 5  # A: table of numbers, -1 for none; B: how many [i32]
BOOLEAN: Final = 6  # [bit]
# Another integer; A: 1 for 32 bits, B: one of TO_, C: bound or 0, D: by what it is multiplied, or,
# negative, divided.
NUMBER: Final = 7
NEXT: Final = 8  # the end of an item; A: counter of items, B: stack, C: its BLOCK
BLOCK: Final = 9  # a block of items; A: counter of items, B: stack, C: end of the list [i32]
FLOAT: Final = 10  # A: one of TO_
FIXED: Final = 11  # A: size [bytes]
DECIMAL: Final = 12  # A: size, or -1 for a length, B: words, C: table of the largest [i64 each]
UUID: Final = 13  # sixteen bytes as text; A: counter of bytes [i32]
UNION: Final = 14  # A: table of operations, B: how many
PRESENT: Final = 15  # [bit]
JUMP: Final = 16  # A: the next operation
NO_PLACE: Final = 17  # a branch of a union that the reader lacks
ENTER: Final = 18  # a default: read constants from A to B
LEAVE: Final = 19  # the value again
END: Final = 20

TO_INT32: Final = 0
TO_INT64: Final = 1
TO_FLOAT: Final = 2
TO_DOUBLE: Final = 3

# Why a value does not fit, and where: verdict = position << VERDICT_BITS | one of these.
FITS: Final = 0
MALFORMED: Final = 1  # its bytes are not what the writer's schema says
LACKS_BRANCH: Final = 2  # of a union
LACKS_SYMBOL: Final = 3  # of an enum
TOO_MANY_DIGITS: Final = 4  # of a decimal
NO_TIME_OF_DAY: Final = 5
TOO_LONG: Final = 6  # a column ends at 2 GiB
TOO_MANY_ITEMS: Final = 7  # that take no bytes, in all values together
TOO_LATE: Final = 8  # a time, for 64 bits of the reader's unit
VERDICT_BITS: Final = 4
VERDICT_MASK: Final = 15
IS_NULL: Final = -1  # a verdict before the first run: there is no value

# What is in any value, or in all of them, of items that take no bytes.
FREE_ITEMS: Final = 1024
FREE_ITEMS_OF_ALL: Final = 1 << 20

_MAX_INT32: Final = 2**31 - 1
_MAX_INT64: Final = 2**63 - 1
_MOST_VARINT_BYTES: Final = 10
_UUID_BYTES: Final = 16
UUID_TEXT_BYTES: Final = 36


class Room(NamedTuple):
    """The buffers of all columns: one piece of memory as bytes, as int32, as int64."""

    octets: NDArray[np.uint8]
    halves: NDArray[np.int32]
    words: NDArray[np.int64]


@inlined_kernel
def _read_long(source: NDArray[np.uint8], position: int, end: int) -> tuple[int, int]:
    """Read a 64-bit zigzag varint: (value, next position), INVALID for what is none."""
    if position >= end:
        return np.int64(0), INVALID
    byte = np.int64(source[np.uint64(position)])
    if byte < 0x80:
        return (byte >> 1) ^ -(byte & 1), position + 1
    if position + 1 < end:
        second = np.int64(source[np.uint64(position + 1)])
        if second < 0x80:
            pair = (byte & 0x7F) | (second << 7)
            return (pair >> 1) ^ -(pair & 1), position + 2
    raw = np.uint64(0)
    shift = np.uint64(0)
    limit = min(end, position + _MOST_VARINT_BYTES)
    while position < limit:
        part = np.uint64(source[np.uint64(position)])
        position += 1
        # Of the tenth byte one bit is within 64.
        if shift == np.uint64(63) and part > np.uint64(1):
            return np.int64(0), INVALID
        raw |= (part & np.uint64(0x7F)) << shift
        if part < np.uint64(0x80):
            return np.int64(raw >> np.uint64(1)) ^ -np.int64(raw & np.uint64(1)), position
        shift += np.uint64(7)
    return np.int64(0), INVALID


@inlined_kernel
def _is_text(source: NDArray[np.uint8], position: int, length: int) -> bool:
    """Whether bytes are UTF-8; most texts are ASCII of a few bytes."""
    if length <= 8 and position + 8 <= source.size:
        if length == 0:
            return True
        high = np.uint64(load_word(source, position)) & HIGH_BITS
        if not high << np.uint64(64 - 8 * length):
            return True
    return find_not_utf8(source, position, position + length) == INVALID


@inlined_kernel
def _set_bit(octets: NDArray[np.uint8], bit: int) -> None:
    octets[np.uint64(bit >> 3)] |= np.uint8(1 << (bit & 7))


@kernel
def _write_uuid(octets: NDArray[np.uint8], at: int, source: NDArray[np.uint8], start: int) -> None:
    """Write sixteen bytes as 8-4-4-4-12 hexadecimal digits."""
    for number in range(_UUID_BYTES):
        if number in (4, 6, 8, 10):
            octets[at] = ord("-")
            at += 1
        byte = np.int64(source[start + number])
        for digit in (byte >> 4, byte & 15):
            octets[at] = digit + (48 if digit < 10 else 87)  # "0" or "a"
            at += 1


@kernel
def _read_decimal(
    source: NDArray[np.uint8],
    start: int,
    size: int,
    tables: NDArray[np.int64],
    limit: int,
    words: NDArray[np.int64],
    at: int,
    count: int,
) -> bool:
    """Read a big-endian integer of any size; store it, unless at is negative, in so many words.

    Args:
        limit: Where in the tables the largest integer stands, as four words, the lowest first.

    Returns:
        Whether it is not larger than that, up to its sign.
    """
    if size == 0:
        return True
    is_negative = source[start] >= 0x80
    fill = np.uint64(0xFFFFFFFFFFFFFFFF) if is_negative else np.uint64(0)
    end = start + size
    # What is above the words has to be the sign.
    for position in range(start, end - 8 * count):
        if source[position] != (0xFF if is_negative else 0):
            return False
    is_decided = False
    carry = np.uint64(1)
    is_small = True
    for number in range(count):
        word = np.uint64(0)
        for shift in range(8):
            position = end - 1 - 8 * number - shift
            byte = np.uint64(source[position]) if position >= start else fill & np.uint64(0xFF)
            word |= byte << np.uint64(8 * shift)
        if at >= 0:
            words[at + number] = np.int64(word)
        size_word = word
        if is_negative:
            size_word = ~word + carry
            carry = np.uint64(1) if carry and not word else np.uint64(0)
        most = np.uint64(tables[limit + number])
        # Higher words come later, and decide.
        if size_word != most:
            is_small = size_word < most
            is_decided = True
    return is_small or not is_decided


@kernel
def run_program(
    data: NDArray[np.uint8],
    offsets: NDArray[np.int64],
    constants: NDArray[np.uint8],
    program: NDArray[np.int64],
    tables: NDArray[np.int64],
    counters: NDArray[np.int64],
    saved: NDArray[np.int64],
    stack: NDArray[np.int64],
    verdicts: NDArray[np.int64],
    room: Room,
) -> None:
    """Run a program for each value of a batch whose verdict is FITS.

    Args:
        data: uint8[], where the values lie.
        offsets: int64[n + 1], where each begins and ends.
        constants: uint8[], the defaults of fields that the writer lacks, as Avro.
        program: int64[OPERATION_WORDS * m].
        tables: int64[], the tables of operations.
        counters: int64[k], zero: the first numbers the values, the last one counts what is not
            kept; in between those of items and of bytes, out.
        saved: int64[k], room for them.
        stack: int64[], room for what is left of open blocks.
        verdicts: int64[n], in and out. A value that does not fit leaves no other trace.
        room: Where columns are stored; touched by operations with VALUES of at least zero.
    """
    octets, halves, words = room.octets, room.halves, room.words
    kept = counters.size - 1
    free_of_all = np.int64(FREE_ITEMS_OF_ALL)
    for row in range(verdicts.size):
        if verdicts[row] != FITS:
            continue
        begin = offsets[row]
        value_end = offsets[row + 1]
        for at in range(counters.size):
            saved[at] = counters[at]
        counters[0] = row
        counters[kept] = 0
        most_items = max(value_end - begin, FREE_ITEMS)
        items = most_items
        source = data
        position = begin
        end = value_end
        left_at = np.int64(INVALID)  # where a default has interrupted the value
        fault = MALFORMED
        operation = np.int64(0)
        while True:
            at = np.uint64(operation * OPERATION_WORDS)
            code = program[at]
            index = counters[np.uint64(program[at + np.uint64(ROWS)])]
            values = program[at + np.uint64(VALUES)]
            operand = program[at + np.uint64(A)]
            operation += 1
            if code == NULLABLE:
                branch, after = _read_long(source, position, end)
                if after < 0 or branch < 0 or branch > 1:
                    break
                position = after
                if branch == operand:
                    operation = program[at + np.uint64(B)]
                elif values >= 0:
                    _set_bit(octets, values + index)
            elif code == STRING:
                length = program[at + np.uint64(C)]
                start = position
                if length < 0:
                    length, start = _read_long(source, position, end)
                    if start < 0 or length < 0:
                        break
                if length > end - start:
                    break
                if program[at + np.uint64(B)] and not _is_text(source, start, length):
                    break
                total = counters[np.uint64(operand)]
                if values >= 0:
                    bytes_at = program[at + np.uint64(BYTES)] + total
                    copy_bytes(octets, bytes_at, source, start, length)
                    halves[np.uint64(values + index + 1)] = total + length
                elif length > _MAX_INT32 - total:
                    fault = TOO_LONG
                    break
                counters[np.uint64(operand)] = total + length
                position = start + length
            elif code == LONG:
                number, after = _read_long(source, position, end)
                if after < 0:
                    break
                position = after
                if values >= 0:
                    words[np.uint64(values + index)] = number
            elif code == INT:
                number, after = _read_long(source, position, end)
                if after < 0 or number > _MAX_INT32 or number < -_MAX_INT32 - 1:
                    break
                position = after
                if values >= 0:
                    halves[np.uint64(values + index)] = number
            elif code == DOUBLE:
                if end - position < 8:
                    break
                if values >= 0:
                    words[np.uint64(values + index)] = np.int64(load_word(source, position))
                position += 8
            elif code == ENUM:
                number, after = _read_long(source, position, end)
                if after < 0 or number < 0 or number >= program[at + np.uint64(B)]:
                    break
                symbol = tables[np.uint64(operand + number)]
                if symbol < 0:
                    fault = LACKS_SYMBOL
                    break
                position = after
                if values >= 0:
                    halves[np.uint64(values + index)] = symbol
            elif code == BOOLEAN:
                if position >= end or source[np.uint64(position)] > 1:
                    break
                if values >= 0 and source[np.uint64(position)]:
                    _set_bit(octets, values + index)
                position += 1
            elif code == NUMBER:
                number, after = _read_long(source, position, end)
                if after < 0:
                    break
                if operand and (number > _MAX_INT32 or number < -_MAX_INT32 - 1):
                    break
                factor = program[at + np.uint64(D)]
                if factor > 1:
                    most = _MAX_INT64 // factor
                    if number > most or number < -most:
                        fault = TOO_LATE
                        break
                    number *= factor
                elif factor < 0:
                    number //= -factor
                bound = program[at + np.uint64(C)]
                if bound and (number < 0 or number >= bound):
                    fault = NO_TIME_OF_DAY
                    break
                position = after
                if values >= 0:
                    target = program[at + np.uint64(B)]
                    if target == TO_INT64:
                        words[np.uint64(values + index)] = number
                    elif target == TO_INT32:
                        halves[np.uint64(values + index)] = number
                    elif target == TO_DOUBLE:
                        words[np.uint64(values + index)] = np.float64(number).view(np.int64)
                    else:
                        halves[np.uint64(values + index)] = np.float32(number).view(np.int32)
            elif code == NEXT:
                counters[np.uint64(operand)] += 1
                level = np.uint64(program[at + np.uint64(B)])
                stack[level] -= 1
                operation = program[at + np.uint64(C)]
                if stack[level]:
                    operation += 1
            elif code == BLOCK:
                count, after = _read_long(source, position, end)
                if after < 0:
                    break
                if count < 0:
                    _, after = _read_long(source, after, end)
                    # The smallest number has no opposite.
                    if after < 0 or -count < 0:
                        break
                    count = -count
                if count == 0:
                    if values >= 0:
                        total = counters[np.uint64(operand)]
                        halves[np.uint64(values + index + 1)] = total
                    operation = program[at + np.uint64(C)]
                else:
                    if left_at < 0:
                        if count > items:
                            break
                        items -= count
                    if count > _MAX_INT32 - counters[np.uint64(operand)]:
                        fault = TOO_LONG
                        break
                    stack[np.uint64(program[at + np.uint64(B)])] = count
                position = after
            elif code == FLOAT:
                if end - position < 4:
                    break
                if values >= 0:
                    bits = (
                        np.int64(source[np.uint64(position)])
                        | np.int64(source[np.uint64(position + 1)]) << 8
                        | np.int64(source[np.uint64(position + 2)]) << 16
                        | np.int64(source[np.uint64(position + 3)]) << 24
                    )
                    if operand == TO_FLOAT:
                        halves[np.uint64(values + index)] = np.int32(bits)
                    else:
                        wide = np.float64(np.int32(bits).view(np.float32))
                        words[np.uint64(values + index)] = wide.view(np.int64)
                position += 4
            elif code == FIXED:
                if operand > end - position:
                    break
                if values >= 0:
                    copy_bytes(octets, values + index * operand, source, position, operand)
                position += operand
            elif code == DECIMAL:
                length, start = operand, position
                if length < 0:
                    length, start = _read_long(source, position, end)
                    if start < 0 or length < 0:
                        break
                if length > end - start:
                    break
                count = program[at + np.uint64(B)]
                limit = program[at + np.uint64(C)]
                place = values + index * count if values >= 0 else np.int64(-1)
                if not _read_decimal(source, start, length, tables, limit, words, place, count):
                    fault = TOO_MANY_DIGITS
                    break
                position = start + length
            elif code == UUID:
                if end - position < _UUID_BYTES:
                    break
                total = counters[np.uint64(operand)]
                if values >= 0:
                    bytes_at = program[at + np.uint64(BYTES)] + total
                    _write_uuid(octets, bytes_at, source, position)
                    halves[np.uint64(values + index + 1)] = total + UUID_TEXT_BYTES
                elif total > _MAX_INT32 - UUID_TEXT_BYTES:
                    fault = TOO_LONG
                    break
                counters[np.uint64(operand)] = total + UUID_TEXT_BYTES
                position += _UUID_BYTES
            elif code == UNION:
                branch, after = _read_long(source, position, end)
                if after < 0 or branch < 0 or branch >= program[at + np.uint64(B)]:
                    break
                position = after
                operation = tables[np.uint64(operand + branch)]
            elif code == PRESENT:
                if values >= 0:
                    _set_bit(octets, values + index)
            elif code == JUMP:
                operation = operand
            elif code == NO_PLACE:
                fault = LACKS_BRANCH
                break
            elif code == ENTER:
                left_at = position
                source, position = constants, operand
                end = program[at + np.uint64(B)]
            elif code == LEAVE:
                source, position, end = data, left_at, value_end
                left_at = np.int64(INVALID)
            else:
                fault = FITS if position == end else MALFORMED
                break
        if fault == FITS:
            excess = most_items - items - (value_end - begin)
            if excess <= free_of_all:
                free_of_all -= max(excess, 0)
                continue
            fault = TOO_MANY_ITEMS
        if left_at >= 0:
            position = left_at
        verdicts[row] = ((position - begin) << VERDICT_BITS) | fault
        for at in range(counters.size):
            counters[at] = saved[at]
