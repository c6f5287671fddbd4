"""Build columns: scattered strings end to end, checked for UTF-8, numbers from deltas. The deltas
count from what the batches say."""

from typing import Final

import numpy as np
from numpy.typing import NDArray

from storage_core.kernels._intrinsics import copy_bytes, load_word
from storage_core.kernels._jit import kernel
from storage_core.kernels.varint import INVALID, read_varint

HIGH_BITS: Final = np.uint64(0x8080808080808080)  # of eight bytes; ASCII has none of them


@kernel
def add_lengths(length: NDArray[np.int64], offsets: NDArray[np.int32]) -> tuple[int, int]:
    """Fill offsets with the ends of strings laid end to end. A negative length is a null.

    Args:
        length: int64[n].
        offsets: int32[n + 1], out.

    Returns:
        (bytes in all, how many are null).
    """
    end = nulls = 0
    offsets[0] = 0
    for i in range(length.size):
        if length[i] < 0:
            nulls += 1
        else:
            end += length[i]
        offsets[i + 1] = end
    return end, nulls


@kernel
def gather_bytes(
    data: NDArray[np.uint8],
    arena: NDArray[np.uint8],
    in_arena: NDArray[np.uint8],
    batch: NDArray[np.int64],
    start: NDArray[np.int64],
    length: NDArray[np.int64],
    offsets: NDArray[np.int32],
    out: NDArray[np.uint8],
) -> None:
    """Copy scattered strings end to end. A negative length is a null and copies nothing.

    Args:
        data: uint8[], one place where strings lie.
        arena: uint8[], the other.
        in_arena: uint8[batches], which of them holds the strings of each batch.
        batch: int64[n], the batch of each string.
        start: int64[n].
        length: int64[n].
        offsets: int32[n + 1], where each string goes in out.
        out: uint8[offsets[n]].
    """
    for i in range(start.size):
        if length[i] > 0:
            source = arena if in_arena[batch[i]] else data
            copy_bytes(out, offsets[i], source, start[i], length[i])


@kernel
def gather_values(
    data: NDArray[np.uint8],
    start: NDArray[np.int64],
    length: NDArray[np.int64],
    offsets: NDArray[np.int32],
    out: NDArray[np.uint8],
) -> None:
    """Copy scattered bytes end to end.

    Args:
        data: uint8[], where they lie.
        start: int64[n].
        length: int64[n].
        offsets: int32[n + 1], where each goes in out.
        out: uint8[offsets[n]].
    """
    for row in range(start.size):
        size = length[row]
        at = offsets[row]
        if size > 16:
            copy_bytes(out, at, data, start[row], size)
        else:
            source = start[row]
            for byte in range(size):
                out[at + byte] = data[source + byte]


@kernel
def find_not_utf8(data: NDArray[np.uint8], position: int, end: int) -> int:
    """Return the position of the first byte in a range that is not UTF-8; INVALID for none.
    That has shortest forms, no surrogates, at most U+10FFFF."""
    while position < end:
        if end - position >= 8 and not np.uint64(load_word(data, position)) & HIGH_BITS:
            position += 8
            continue
        byte = np.int64(data[np.uint64(position)])
        if byte < 0x80:
            position += 1
            continue
        low, high = 0x80, 0xBF  # of the second byte: none is longer than needed, none a surrogate
        if 0xC2 <= byte <= 0xDF:
            more = 1
        elif 0xE0 <= byte <= 0xEF:
            more = 2
            if byte == 0xE0:
                low = 0xA0
            elif byte == 0xED:
                high = 0x9F
        elif 0xF0 <= byte <= 0xF4:
            more = 3
            if byte == 0xF0:
                low = 0x90
            elif byte == 0xF4:
                high = 0x8F
        else:
            return position
        if more >= end - position:
            return position
        second = np.int64(data[np.uint64(position + 1)])
        if second < low or second > high:
            return position
        for at in range(position + 2, position + more + 1):
            if data[np.uint64(at)] & 0xC0 != 0x80:
                return position
        position += more + 1
    return INVALID


@kernel
def add_to_batch(
    base: NDArray[np.int64],
    batch: NDArray[np.int64],
    delta: NDArray[np.int64],
    out: NDArray[np.int64],
) -> None:
    """Add each record's delta to the value of its batch. Sums wrap as in Java.

    Args:
        base: int64[batches].
        batch: int64[n], the batch of each record.
        delta: int64[n].
        out: int64[n].
    """
    for i in range(batch.size):
        out[i] = base[batch[i]] + delta[i]


@kernel
def list_headers(
    data: NDArray[np.uint8],
    arena: NDArray[np.uint8],
    in_arena: NDArray[np.uint8],
    header_start: NDArray[np.int64],
    header_count: NDArray[np.int64],
    owner: NDArray[np.int64],
    key_start: NDArray[np.int64],
    key_length: NDArray[np.int64],
    value_start: NDArray[np.int64],
    value_length: NDArray[np.int64],
) -> None:
    """List the positions of the headers of records. A record scan has checked the headers before.

    Args:
        data: uint8[], one place where records lie.
        arena: uint8[], the other.
        in_arena: uint8[n], which of them holds each record.
        header_start: int64[n].
        header_count: int64[n].
        owner: int64[m], out: the record of each header; m is the sum of the counts.
        key_start: int64[m], out.
        key_length: int64[m], out.
        value_start: int64[m], out.
        value_length: int64[m], out; negative for null.
    """
    header = 0
    for i in range(header_start.size):
        source = arena if in_arena[i] else data
        position = header_start[i]
        for _ in range(header_count[i]):
            owner[header] = i
            length, position = read_varint(source, position, source.size)
            key_start[header], key_length[header] = position, length
            length, position = read_varint(source, position + length, source.size)
            value_start[header], value_length[header] = position, length
            position += max(length, 0)
            header += 1
