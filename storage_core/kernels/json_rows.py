"""Check JSON values by a schema, and write them as lines for a reader of whole columns.

A line is an object with the value as its only field; space between tokens is left out. A part that
is to stay JSON becomes a string with its text. What is not certain here is OTHER, and its line has
null: malformed values, those of another type than the schema's, names with escapes, halves of
characters, numbers that need a look.
"""

from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from storage_core.kernels._intrinsics import copy_bytes
from storage_core.kernels._jit import inlined_kernel, kernel
from storage_core.kernels.gather import find_not_utf8
from storage_core.kernels.varint import INVALID

# Kinds of parts.
ANY: Final = 0  # not of the schema
STRUCT: Final = 1
LIST: Final = 2
TEXT: Final = 3  # stays JSON
STRING: Final = 4
INTEGER: Final = 5
NUMBER: Final = 6
BOOLEAN: Final = 7
# Columns of a schema's parts; the first part is the value, part 0 is ANY.
KIND: Final = 0
FIRST: Final = 1  # of the fields of a struct; the items of a list
LAST: Final = 2
NAME: Final = 3  # where its name begins
NAME_END: Final = 4
PART_COLUMNS: Final = 5
ROOT: Final = 1
# A line has so many bytes beside its value. In text each byte may have an escape, and text quotes.
LINE_BYTES: Final = 16
BYTES_OF_ONE: Final = 3
BEGIN: Final = np.frombuffer(b'{"value":', np.uint8).copy()  # of a line; two bytes end it

_NULL: Final = np.frombuffer(b"null", np.uint8).copy()
_TRUE: Final = np.frombuffer(b"true", np.uint8).copy()
_FALSE: Final = np.frombuffer(b"false", np.uint8).copy()
_MAX_DEPTH: Final = 64
_MOST_DIGITS: Final = 18  # that surely fit in 64 bits
_LONGEST: Final = 300  # of a number that surely fits in a double, and that Python reads
_QUOTE: Final = ord('"')
_BACKSLASH: Final = ord("\\")
_ESCAPED: Final = np.array([chr(byte) in '"\\/bfnrt' for byte in range(256)])
# Columns of the stack.
_PART: Final = 0
_HINT: Final = 1  # the field that may come next
_CLOSE: Final = 2
STACK_SHAPE: Final = (_MAX_DEPTH + 1, 3)


class JsonParts(NamedTuple):
    """The parts of a schema."""

    parts: NDArray[np.int64]  # int64[parts, PART_COLUMNS]
    names: NDArray[np.uint8]


@inlined_kernel
def _skip_space(data: NDArray[np.uint8], position: int, end: int) -> int:
    while position < end:
        byte = data[position]
        if byte != 0x20 and byte != 0x0A and byte != 0x0D and byte != 0x09:  # noqa: PLR1714
            break
        position += 1
    return position


@kernel
def _string_end(data: NDArray[np.uint8], position: int, end: int) -> int:
    """Return the position behind a string that begins somewhere, or INVALID."""
    position += 1
    while position < end:
        byte = data[position]
        if byte == _QUOTE:
            return position + 1
        if byte < 0x20:
            return INVALID
        if byte == _BACKSLASH:
            position += 1
            if position >= end:
                return INVALID
            if data[position] == ord("u"):
                if end - position < 5 or data[position + 1] | 0x20 == ord("d"):
                    return INVALID
                for at in range(position + 1, position + 5):
                    digit = data[at] | 0x20
                    is_digit = ord("0") <= data[at] <= ord("9")
                    if not is_digit and (digit < ord("a") or digit > ord("f")):
                        return INVALID
                position += 4
            elif not _ESCAPED[data[position]]:
                return INVALID
        position += 1
    return INVALID


@inlined_kernel
def _skip_digits(data: NDArray[np.uint8], position: int, end: int) -> int:
    while position < end and ord("0") <= data[position] <= ord("9"):
        position += 1
    return position


@kernel
def _number_end(data: NDArray[np.uint8], position: int, end: int, kind: int) -> int:
    """Return the position behind a number, or INVALID for none and for one that a column of a kind
    may not hold."""
    begin = position
    position += data[position] == ord("-")
    digits = _skip_digits(data, position, end)
    if digits == position or (data[position] == ord("0") and digits > position + 1):
        return INVALID
    if kind == INTEGER and digits - position > _MOST_DIGITS:
        return INVALID
    position = digits
    is_whole = True
    if position < end and data[position] == ord("."):
        digits = _skip_digits(data, position + 1, end)
        if digits == position + 1:
            return INVALID
        position, is_whole = digits, False
    has_exponent = position < end and data[position] | 0x20 == ord("e")
    if has_exponent:
        position += 1
        position += position < end and (data[position] == ord("+") or data[position] == ord("-"))
        digits = _skip_digits(data, position, end)
        if digits == position or (kind == NUMBER and digits - position > 2):
            return INVALID
        position, is_whole = digits, False
    if kind == INTEGER and not is_whole:
        return INVALID
    if position - begin > (_LONGEST - 100 if has_exponent else _LONGEST):
        return INVALID
    return position


@inlined_kernel
def _word_end(data: NDArray[np.uint8], position: int, end: int, word: NDArray[np.uint8]) -> int:
    if end - position < word.size:
        return INVALID
    for at in range(word.size):
        if data[position + at] != word[at]:
            return INVALID
    return position + word.size


@kernel
def _scalar_end(data: NDArray[np.uint8], position: int, end: int, kind: int) -> int:
    """Return the position behind what is no object and no array, or INVALID."""
    byte = data[position]
    if byte == ord("n"):
        return _word_end(data, position, end, _NULL)
    is_free = kind in (ANY, TEXT)
    if byte == _QUOTE:
        behind = _string_end(data, position, end)
        is_fine = (is_free or kind == STRING) and behind >= 0
        is_fine = is_fine and find_not_utf8(data, position, behind) == INVALID
        return behind if is_fine else INVALID
    if byte == ord("t") or byte == ord("f"):
        if not is_free and kind != BOOLEAN:
            return INVALID
        return _word_end(data, position, end, _TRUE if byte == ord("t") else _FALSE)
    if is_free or kind in (INTEGER, NUMBER):
        return _number_end(data, position, end, kind)
    return INVALID


@inlined_kernel
def _put(
    data: NDArray[np.uint8], start: int, end: int, out: NDArray[np.uint8], at: int, in_text: bool
) -> int:
    """Write bytes, in text with escapes; return where they end."""
    if not in_text:
        copy_bytes(out, at, data, start, end - start)
        return at + end - start
    for position in range(start, end):
        byte = data[position]
        if byte in (_QUOTE, _BACKSLASH):
            out[at] = _BACKSLASH
            at += 1
        out[at] = byte
        at += 1
    return at


@kernel
def _find_field(
    data: NDArray[np.uint8], start: int, end: int, schema: JsonParts, part: int, hint: int
) -> int:
    """Return the field of a struct that has a name, or 0; fields mostly come in their order."""
    first, last = schema.parts[part, FIRST], schema.parts[part, LAST]
    for number in range(last - first):
        field = first + (hint - first + number) % (last - first)
        name, name_end = schema.parts[field, NAME], schema.parts[field, NAME_END]
        if name_end - name != end - start:
            continue
        is_same = True
        for at in range(end - start):
            if data[start + at] != schema.names[name + at]:
                is_same = False
                break
        if is_same:
            return field
    return 0


@kernel
def _write_value(
    data: NDArray[np.uint8],
    position: int,
    end: int,
    schema: JsonParts,
    out: NDArray[np.uint8],
    at: int,
    stack: NDArray[np.int64],
) -> int:
    """Write a value; return where it ends, or INVALID."""
    depth, part, text = 0, ROOT, -1  # text: the depth at which it has begun
    while True:
        # A value begins here.
        position = _skip_space(data, position, end)
        if position == end:
            return INVALID
        byte = data[position]
        kind = schema.parts[part, KIND]
        if kind == TEXT and text < 0 and byte != ord("n"):
            text = depth
            out[at] = _QUOTE
            at += 1
        if byte == ord("{") or byte == ord("["):
            is_object = byte == ord("{")
            if kind not in (ANY, TEXT) and kind != (STRUCT if is_object else LIST):
                return INVALID
            if depth == _MAX_DEPTH:
                return INVALID
            stack[depth, _PART] = part
            stack[depth, _HINT] = schema.parts[part, FIRST]
            stack[depth, _CLOSE] = byte + 2
            depth += 1
            out[at] = byte
            at += 1
            position = _skip_space(data, position + 1, end)
            is_next = position < end and data[position] != byte + 2
        else:
            behind = _scalar_end(data, position, end, kind)
            if behind < 0:
                return INVALID
            at = _put(data, position, behind, out, at, text >= 0)
            position = behind
            is_next = False
        # Behind a value, or behind a bracket.
        while not is_next:
            if text == depth:
                out[at] = _QUOTE
                at += 1
                text = -1
            position = _skip_space(data, position, end)
            if depth == 0:
                return at if position == end else INVALID
            if position == end:
                return INVALID
            byte = data[position]
            position += 1
            out[at] = byte
            at += 1
            if byte == stack[depth - 1, _CLOSE]:
                depth -= 1
            elif byte == ord(","):
                is_next = True
            else:
                return INVALID
        # The next one of an object or array.
        around = stack[depth - 1, _PART]
        kind = schema.parts[around, KIND]
        if stack[depth - 1, _CLOSE] == ord("]"):
            part = schema.parts[around, FIRST] if kind == LIST else 0
            continue
        position = _skip_space(data, position, end)
        behind = INVALID
        if position < end and data[position] == _QUOTE:
            behind = _string_end(data, position, end)
        if behind < 0 or find_not_utf8(data, position, behind) != INVALID:
            return INVALID
        part = 0
        if kind == STRUCT:
            for place in range(position + 1, behind - 1):
                if data[place] == _BACKSLASH:
                    return INVALID
            hint = stack[depth - 1, _HINT]
            part = _find_field(data, position + 1, behind - 1, schema, around, hint)
            if part:
                stack[depth - 1, _HINT] = part + 1
        at = _put(data, position, behind, out, at, text >= 0)
        position = _skip_space(data, behind, end)
        if position == end or data[position] != ord(":"):
            return INVALID
        position += 1
        out[at] = ord(":")
        at += 1


@kernel
def write_json_rows(
    data: NDArray[np.uint8],
    offsets: NDArray[np.int64],
    schema: JsonParts,
    out: NDArray[np.uint8],
    ends: NDArray[np.int64],
    is_other: NDArray[np.uint8],
    stack: NDArray[np.int64],
) -> None:
    """Write values as lines.

    Args:
        data: uint8[], where they lie.
        offsets: int64[values + 1].
        schema: Its parts.
        out: uint8[], with room for BYTES_OF_ONE times their bytes and LINE_BYTES for each.
        ends: int64[values + 1], in and out: the first is where lines begin, the others are where
            each ends.
        is_other: uint8[values], in and out: which are null or OTHER.
        stack: int64[STACK_SHAPE], scratch.
    """
    at = ends[0]
    for row in range(is_other.size):
        copy_bytes(out, at, BEGIN, 0, BEGIN.size)
        at += BEGIN.size
        behind = np.int64(INVALID)
        if not is_other[row]:
            behind = _write_value(data, offsets[row], offsets[row + 1], schema, out, at, stack)
        if behind < 0:
            is_other[row] = 1
            copy_bytes(out, at, _NULL, 0, _NULL.size)
            behind = at + _NULL.size
        out[behind] = ord("}")
        out[behind + 1] = ord("\n")
        at = behind + 2
        ends[row + 1] = at
