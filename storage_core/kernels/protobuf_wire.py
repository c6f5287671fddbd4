"""Read Protobuf messages into columns: the wire format, field by field.

Source: https://protobuf.dev/programming-guides/encoding/. The bytes may be hostile: every length is
checked against the message around it before it is used.

A schema is a tree of fields, here as rows of a table in which the fields of each message stand
together, by number. Fields of one message have a place a message; a repeated field makes a new row
for each item. Values are read twice: at first they are checked and their items counted, then they
are written where the counts say.
"""

from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from storage_core.kernels._jit import inlined_kernel, kernel
from storage_core.kernels.gather import find_not_utf8
from storage_core.kernels.varint import INVALID, read_number, unfold_sign

# Kinds of fields.
VARINT: Final = 0
ZIGZAG32: Final = 1
ZIGZAG64: Final = 2
BOOL: Final = 3
CLOSED_ENUM: Final = 4  # takes the numbers that it names; others are unknown fields
FIXED32: Final = 5
FIXED64: Final = 6
BYTES: Final = 7
STRING: Final = 8  # UTF-8
MESSAGE: Final = 9
GROUP: Final = 10  # a message between two tags, without a length
RAW: Final = 11  # a message that stays bytes

# Wire types.
WIRE_VARINT: Final = 0
WIRE_FIXED64: Final = 1
WIRE_BYTES: Final = 2
WIRE_GROUP: Final = 3
WIRE_GROUP_END: Final = 4
WIRE_FIXED32: Final = 5

# Columns of the table of fields. A place is where a field's first row lies in the cells.
NUMBER: Final = 0
KIND: Final = 1
WIRE: Final = 2
LIST: Final = 3  # which of the counters counts its items, -1 for a field that is not repeated
FIRST: Final = 4  # of a message its fields, of a closed enum its numbers
LAST: Final = 5  # behind the last of these
IN_MAP: Final = 6  # whether it is a part of a map's entry
PLACE: Final = 7  # of numbers, and of where bytes begin
LENGTH: Final = 8  # place of their lengths
PRESENT: Final = 9  # place of marks that it is there; -1 for none
ONEOF: Final = 10  # place of which one of several is there; -1 for none
COUNT: Final = 11  # place of how many items each message has
FIELD_COLUMNS: Final = 12

# What is said of each value.
STATUS: Final = 0
POSITION: Final = 1  # where in the value it does not fit; of a valid one, where its message begins
FOUND: Final = 2
STATUS_COLUMNS: Final = 3

FITS: Final = 0
ABSENT: Final = 1
BAD_INDEXES: Final = 2  # of another message
BAD_TAG: Final = 3
BAD_NUMBER: Final = 4
BAD_LENGTH: Final = 5  # FOUND says how many bytes are left
BAD_TEXT: Final = 6
BAD_GROUP: Final = 7  # its end is missing, or one ends that has not begun
BAD_WIRE: Final = 8
TOO_DEEP: Final = 9
TOO_LARGE: Final = 10  # a few bytes that become very many cells
UNUSUAL: Final = 11  # valid, but has parts that the library has to put together

MAX_DEPTH: Final = 100  # as the library has it
# Of the items of repeated fields: so many cells for each byte of a value are fine, and so many more
# of all values together.
CELLS_PER_BYTE: Final = 16
FREE_CELLS: Final = 1 << 24

_MOST_TAG_BYTES: Final = 5
_MAX_INT32: Final = 2**31 - 1
# Columns of the stack.
_END: Final = 0
_FIRST: Final = 1
_LAST: Final = 2
_ROW: Final = 3
_GROUP: Final = 4
STACK_COLUMNS: Final = 5


class Schema(NamedTuple):
    """The fields of a message, and of those in it."""

    fields: NDArray[np.int64]  # int64[fields, FIELD_COLUMNS]
    root_fields: int  # how many of them are the message's own: the first ones
    enum_numbers: NDArray[np.int64]  # of closed enums, ascending each
    item_cells: NDArray[np.int64]  # int64[counters], cells of an item


class Columns(NamedTuple):
    """Where fields are written."""

    items: NDArray[np.int64]  # int64[counters], of each repeated field so far
    cells: NDArray[np.int64]
    present: NDArray[np.uint8]


@inlined_kernel
def _read_short_number(data: NDArray[np.uint8], position: int, end: int) -> tuple[int, int]:
    """Return a tag or a length, of at most five bytes, and the position behind it or INVALID."""
    if position < end and data[position] < 0x80:
        return np.int64(data[position]), position + 1
    number = np.int64(0)
    limit = min(end, position + _MOST_TAG_BYTES)
    shift = 0
    while position < limit:
        byte = np.int64(data[position])
        position += 1
        number |= (byte & 0x7F) << shift
        if byte < 0x80:
            return number, position
        shift += 7
    return np.int64(0), INVALID


@inlined_kernel
def _read_fixed(data: NDArray[np.uint8], position: int, size: int) -> int:
    raw = np.uint64(0)
    for at in range(size):
        raw |= np.uint64(data[position + at]) << np.uint64(8 * at)
    return np.int64(raw)


@inlined_kernel
def _find(fields: NDArray[np.int64], hint: int, first: int, last: int, number: int) -> int:
    """Return the row of a message's field, or -1. Fields mostly come in the order of their
    numbers: ``hint`` is that of the one before."""
    for row in (hint, hint + 1):
        if row < last and fields[row, NUMBER] == number:
            return row
    end = last
    while first < last:
        middle = (first + last) >> 1
        if fields[middle, NUMBER] < number:
            first = middle + 1
        else:
            last = middle
    return first if first < end and fields[first, NUMBER] == number else -1


@inlined_kernel
def _has_number(numbers: NDArray[np.int64], first: int, last: int, number: int) -> bool:
    end = last
    while first < last:
        middle = (first + last) >> 1
        if numbers[middle] < number:
            first = middle + 1
        else:
            last = middle
    return first < end and numbers[first] == number


@inlined_kernel
def _take_row(
    fields: NDArray[np.int64], columns: Columns, field: int, row: int, fill: bool
) -> tuple[int, bool]:
    """Return the row of a field that has come: of a repeated one a new item's, else that of its
    message; and whether the library has to put it together with what was there."""
    counter = fields[field, LIST]
    if counter >= 0:
        item = columns.items[counter]
        columns.items[counter] = item + 1
        if fill:
            columns.cells[fields[field, COUNT] + row] += 1
        return item, False
    is_unusual = False
    if fill:
        place = fields[field, PRESENT]
        if place >= 0:
            if columns.present[place + row] and fields[field, KIND] == RAW:
                is_unusual = True
            columns.present[place + row] = 1
        place = fields[field, ONEOF]
        if place >= 0:
            other = columns.cells[place + row]
            if other and other != field + 1:
                is_unusual = True
            columns.cells[place + row] = field + 1
    return row, is_unusual


@inlined_kernel
def _number_of(schema: Schema, field: int, kind: int, raw: int) -> tuple[int, bool]:
    """Return the number that some bits mean, and whether a closed enum has it."""
    if kind == VARINT or kind >= FIXED32:
        return raw, True
    if kind == ZIGZAG32:
        return unfold_sign(raw & 0xFFFFFFFF), True
    if kind == ZIGZAG64:
        return unfold_sign(raw), True
    if kind == BOOL:
        return np.int64(raw != 0), True
    low = raw & 0xFFFFFFFF
    raw = low - ((low & 0x80000000) << 1)
    first, last = schema.fields[field, FIRST], schema.fields[field, LAST]
    return raw, _has_number(schema.enum_numbers, first, last, raw)


@kernel
def _take_packed(
    data: NDArray[np.uint8],
    position: int,
    end: int,
    schema: Schema,
    columns: Columns,
    field: int,
    row: int,
    fill: bool,
) -> int:
    """Write numbers that lie side by side; return where one does not fit, or INVALID."""
    wire = schema.fields[field, WIRE]
    while position < end:
        at = position
        if wire == WIRE_VARINT:
            raw, position = read_number(data, position, end)
            if position < 0:
                return at
        else:
            size = 8 if wire == WIRE_FIXED64 else 4
            if size > end - position:
                return at
            raw = _read_fixed(data, position, size)
            position += size
        number, is_there = _number_of(schema, field, schema.fields[field, KIND], raw)
        if is_there:
            item, _ = _take_row(schema.fields, columns, field, row, fill)
            if fill:
                columns.cells[schema.fields[field, PLACE] + item] = number
    return INVALID


@inlined_kernel
def _read_indexes(
    data: NDArray[np.uint8], position: int, end: int, indexes: NDArray[np.int64]
) -> int:
    """Return the position behind the indexes of a message in its file, or INVALID for others.

    Their count comes first; a zero stands for the file's first message.
    """
    count, position = read_number(data, position, end)
    count = unfold_sign(count)
    if position < 0:
        return INVALID
    if count == 0:
        return position if indexes.shape[1] == 1 and indexes[0, 0] == 0 else INVALID
    if count != indexes.shape[1]:
        return INVALID
    begin = position
    for way in range(indexes.shape[0]):
        position = begin
        for index in indexes[way]:
            found, position = read_number(data, position, end)
            if position < 0 or unfold_sign(found) != index:
                position = np.int64(INVALID)
                break
        if position >= 0:
            return position
    return INVALID


@kernel
def _read_value(
    data: NDArray[np.uint8],
    position: int,
    end: int,
    schema: Schema,
    columns: Columns,
    stack: NDArray[np.int64],
    row: int,
    fill: bool,
) -> tuple[int, int, int]:
    """Read the message in a range; return its status, and with a bad one a position and what is
    found there."""
    fields = schema.fields
    is_unusual = False
    depth = 0
    first, last, group = 0, schema.root_fields, 0
    hint = first
    while True:
        if position == end:
            if group:
                return BAD_GROUP, position, 0
            if depth == 0:
                return (UNUSUAL if is_unusual else FITS), position, 0
            depth -= 1
            end, first, last = stack[depth, _END], stack[depth, _FIRST], stack[depth, _LAST]
            row, group = stack[depth, _ROW], stack[depth, _GROUP]
            hint = first
            continue
        at = position
        tag, position = _read_short_number(data, position, end)
        number, wire = tag >> 3, tag & 7
        if position < 0 or number == 0 or tag > 0xFFFFFFFF:
            return BAD_TAG, at, tag
        if wire == WIRE_GROUP_END:
            if number != group:
                return BAD_GROUP, at, number
            depth -= 1
            end, first, last = stack[depth, _END], stack[depth, _FIRST], stack[depth, _LAST]
            row, group = stack[depth, _ROW], stack[depth, _GROUP]
            hint = first
            continue
        field = _find(fields, hint, first, last, number) if first < last else -1
        is_packed = False
        if field >= 0:
            hint = field
            if fields[field, WIRE] != wire:
                is_packed = (
                    wire == WIRE_BYTES
                    and fields[field, LIST] >= 0
                    and fields[field, KIND] <= FIXED64
                )
                if not is_packed:
                    field = -1
        # The library does without an entry of a map that has other parts than key and value.
        if field < 0 and first < last and fields[first, IN_MAP]:
            is_unusual = True
        raw = np.int64(0)
        part_end = end
        body = position
        if wire == WIRE_VARINT:
            raw, position = read_number(data, position, end)
            if position < 0:
                return BAD_NUMBER, body, 0
        elif wire == WIRE_BYTES:
            raw, position = _read_short_number(data, position, end)
            if position < 0 or raw > _MAX_INT32:
                return BAD_NUMBER, body, 0
            if raw > end - position:
                return BAD_LENGTH, body, end - position
            part_end = position + raw
        elif wire == WIRE_FIXED64 or wire == WIRE_FIXED32:  # noqa: PLR1714, SIM109
            size = 8 if wire == WIRE_FIXED64 else 4
            if size > end - position:
                return BAD_LENGTH, body, end - position
            if field >= 0:
                raw = _read_fixed(data, position, size)
            position += size
        elif wire != WIRE_GROUP:
            return BAD_WIRE, at, wire
        kind = np.int64(GROUP)
        if field < 0:
            if wire == WIRE_BYTES:
                position = part_end
            if wire != WIRE_GROUP:
                continue
        elif is_packed:
            bad = _take_packed(data, position, part_end, schema, columns, field, row, fill)
            if bad >= 0:
                return BAD_NUMBER, bad, 0
            position = part_end
            continue
        else:
            kind = fields[field, KIND]
        if kind <= FIXED64:
            raw, is_there = _number_of(schema, field, kind, raw)
            if not is_there:
                is_unusual |= fields[field, IN_MAP] == 1
                continue
        elif kind == STRING and not fill:
            bad = find_not_utf8(data, position, part_end)
            if bad >= 0:
                return BAD_TEXT, bad, np.int64(data[bad])
        place = row
        if field >= 0:
            place, is_odd = _take_row(fields, columns, field, row, fill)
            is_unusual |= is_odd
        if kind <= FIXED64:
            if fill:
                columns.cells[fields[field, PLACE] + place] = raw
            continue
        if kind != MESSAGE and kind != GROUP:  # noqa: PLR1714
            if fill:
                columns.cells[fields[field, PLACE] + place] = position
                columns.cells[fields[field, LENGTH] + place] = raw
            position = part_end
            continue
        if depth == MAX_DEPTH:
            return TOO_DEEP, at, 0
        stack[depth, _END], stack[depth, _FIRST], stack[depth, _LAST] = end, first, last
        stack[depth, _ROW], stack[depth, _GROUP] = row, group
        depth += 1
        end = part_end
        group = number if wire == WIRE_GROUP else 0
        row = place
        first = last = 0
        if field >= 0:
            first, last = fields[field, FIRST], fields[field, LAST]
        hint = first


@kernel
def read_values(
    data: NDArray[np.uint8],
    start: NDArray[np.int64],
    end: NDArray[np.int64],
    indexes: NDArray[np.int64],
    schema: Schema,
    columns: Columns,
    status: NDArray[np.int64],
    stack: NDArray[np.int64],
    fill: bool,
) -> None:
    """Read messages: check and count, or write.

    Args:
        data: uint8[], where they lie.
        start: int64[values].
        end: int64[values].
        indexes: int64[ways, n], which one of its file the message is: that of the outermost one,
            then of those in it; a row for each way to count them.
        schema: Its fields.
        columns: Counters of items, from zero; with ``fill`` also where fields are written.
        status: int64[values, STATUS_COLUMNS], in and out: what does not FIT is passed over. Values
            that have been counted fit when they are written, or are UNUSUAL.
        stack: int64[MAX_DEPTH + counters, STACK_COLUMNS], scratch.
        fill: Whether to write.
    """
    free = FREE_CELLS
    for row in range(start.size):
        if status[row, STATUS] != FITS:
            continue
        for counter in range(columns.items.size):
            stack[MAX_DEPTH + counter, 0] = columns.items[counter]
        begin = _read_indexes(data, start[row], end[row], indexes)
        if begin < 0:
            status[row, STATUS], status[row, POSITION] = BAD_INDEXES, 0
            continue
        code, position, found = _read_value(
            data, begin, end[row], schema, columns, stack, row, fill
        )
        status[row, STATUS] = code
        is_valid = code == FITS or code == UNUSUAL  # noqa: PLR1714  # not a set for a kernel
        status[row, POSITION] = (begin if is_valid else position) - start[row]
        status[row, FOUND] = found
        if fill:
            continue
        if is_valid:
            cells = -CELLS_PER_BYTE * (end[row] - begin)
            for counter in range(columns.items.size):
                items = columns.items[counter] - stack[MAX_DEPTH + counter, 0]
                cells += items * schema.item_cells[counter]
            if cells > free:
                status[row, STATUS], is_valid = TOO_LARGE, False
            else:
                free -= max(cells, 0)
        if not is_valid:
            for counter in range(columns.items.size):
                columns.items[counter] = stack[MAX_DEPTH + counter, 0]
