"""Varints, most of them zigzag as a record has them, and the fixed-width integers of headers.

A reader returns ``(value, next_position)``; next_position is INVALID where the number runs past
``end`` or past the bytes that it may have. Nothing is read outside ``[position, end)``.

Most lengths take one byte or two: these are read without a loop, which a CPU mispredicts.
"""

from typing import Final

import numpy as np
from numpy.typing import NDArray

from storage_core.formats.record_v2 import MAX_VARINT_BYTES, MAX_VARLONG_BYTES
from storage_core.kernels._jit import inlined_kernel, kernel

INVALID: Final = -1


@inlined_kernel
def read_varint(buffer: NDArray[np.uint8], position: int, end: int) -> tuple[int, int]:
    """Read a 32-bit zigzag varint of at most 5 bytes. Bits above the 32nd are dropped."""
    if position < end and buffer[position] < 0x80:
        byte = np.int64(buffer[position])
        return (byte >> 1) ^ -(byte & 1), position + 1
    if position + 1 < end and buffer[position + 1] < 0x80:
        pair = np.int64(buffer[position] & 0x7F) | (np.int64(buffer[position + 1]) << 7)
        return (pair >> 1) ^ -(pair & 1), position + 2
    raw = np.uint64(0)
    shift = np.uint64(0)
    limit = min(end, position + MAX_VARINT_BYTES)
    while position < limit:
        byte = np.uint64(buffer[position])
        position += 1
        raw |= (byte & np.uint64(0x7F)) << shift
        if byte < np.uint64(0x80):
            raw &= np.uint64(0xFFFFFFFF)
            value = np.int64(raw >> np.uint64(1)) ^ -np.int64(raw & np.uint64(1))
            return value, position
        shift += np.uint64(7)
    return np.int64(0), INVALID


@inlined_kernel
def read_short(buffer: NDArray[np.uint8], position: int) -> tuple[int, int]:
    """Read a zigzag varint of one byte or two.

    The result for a longer one is INVALID. The caller has checked that there are two bytes, at no
    negative position.
    """
    byte = np.int64(buffer[np.uint64(position)])
    if byte < 0x80:
        return (byte >> 1) ^ -(byte & 1), position + 1
    second = np.int64(buffer[np.uint64(position + 1)])
    if second < 0x80:
        pair = (byte & 0x7F) | (second << 7)
        return (pair >> 1) ^ -(pair & 1), position + 2
    return np.int64(0), INVALID


@inlined_kernel
def read_short_size(buffer: NDArray[np.uint8], position: int) -> tuple[int, int]:
    """As read_short, and INVALID for a negative number. Where the next record begins waits for
    this one: without a sign it is known sooner."""
    byte = np.int64(buffer[np.uint64(position)])
    if byte & 1:
        return np.int64(0), INVALID
    if byte < 0x80:
        return byte >> 1, position + 1
    second = np.int64(buffer[np.uint64(position + 1)])
    if second < 0x80:
        return ((byte & 0x7E) >> 1) | (second << 6), position + 2
    return np.int64(0), INVALID


@inlined_kernel
def read_number(buffer: NDArray[np.uint8], position: int, end: int) -> tuple[int, int]:
    """Read the 64 bits of a varint of at most 10 bytes, without a sign folded into them."""
    if position < end and buffer[position] < 0x80:
        return np.int64(buffer[position]), position + 1
    raw = np.uint64(0)
    shift = np.uint64(0)
    limit = min(end, position + MAX_VARLONG_BYTES)
    while position < limit:
        byte = np.uint64(buffer[position])
        position += 1
        raw |= (byte & np.uint64(0x7F)) << shift
        if byte < np.uint64(0x80):
            return np.int64(raw), position
        shift += np.uint64(7)
    return np.int64(0), INVALID


@inlined_kernel
def unfold_sign(raw: int) -> int:
    """Return the signed number that zigzag made these 64 bits of."""
    bits = np.uint64(raw)
    return np.int64(bits >> np.uint64(1)) ^ -np.int64(bits & np.uint64(1))


@inlined_kernel
def read_varlong(buffer: NDArray[np.uint8], position: int, end: int) -> tuple[int, int]:
    """Read a 64-bit zigzag varint of at most 10 bytes."""
    if position < end and buffer[position] < 0x80:
        byte = np.int64(buffer[position])
        return (byte >> 1) ^ -(byte & 1), position + 1
    if position + 1 < end and buffer[position + 1] < 0x80:
        pair = np.int64(buffer[position] & 0x7F) | (np.int64(buffer[position + 1]) << 7)
        return (pair >> 1) ^ -(pair & 1), position + 2
    raw, behind = read_number(buffer, position, end)
    return unfold_sign(raw), behind


@inlined_kernel
def varlong_size(value: int) -> int:
    """Return the size of a 64-bit zigzag varint, 1 to 10 bytes."""
    signed = np.int64(value)
    raw = np.uint64(signed << np.int64(1)) ^ np.uint64(signed >> np.int64(63))
    size = 1
    while raw >= np.uint64(0x80):
        raw >>= np.uint64(7)
        size += 1
    return size


@inlined_kernel
def write_varlong(buffer: NDArray[np.uint8], position: int, value: int) -> int:
    """Write a 64-bit zigzag varint; return the next position. The 32-bit varint of a value has
    the same bytes."""
    signed = np.int64(value)
    raw = np.uint64(signed << np.int64(1)) ^ np.uint64(signed >> np.int64(63))
    while raw >= np.uint64(0x80):
        buffer[position] = np.uint8(raw & np.uint64(0x7F)) | np.uint8(0x80)
        raw >>= np.uint64(7)
        position += 1
    buffer[position] = np.uint8(raw)
    return position + 1


# An index that may be negative counts from the end, which is asked at each byte; one that cannot be
# lets a CPU read all bytes of a number at once.


@kernel
def read_i16(buffer: NDArray[np.uint8], position: int) -> int:
    """Return the big-endian signed 16-bit number at position."""
    at = np.uint64(position)
    raw = (np.int64(buffer[at]) << 8) | np.int64(buffer[at + np.uint64(1)])
    return (raw << 48) >> 48


@kernel
def read_u32(buffer: NDArray[np.uint8], position: int) -> int:
    """Return the big-endian unsigned 32-bit number at position."""
    at = np.uint64(position)
    return (
        (np.int64(buffer[at]) << 24)
        | (np.int64(buffer[at + np.uint64(1)]) << 16)
        | (np.int64(buffer[at + np.uint64(2)]) << 8)
        | np.int64(buffer[at + np.uint64(3)])
    )


@kernel
def read_u32_le(buffer: NDArray[np.uint8], position: int) -> int:
    """Read a 32-bit unsigned number, little-endian as codecs have them."""
    return (
        np.int64(buffer[position])
        | np.int64(buffer[position + 1]) << 8
        | np.int64(buffer[position + 2]) << 16
        | np.int64(buffer[position + 3]) << 24
    )


@kernel
def read_i32(buffer: NDArray[np.uint8], position: int) -> int:
    """Return the big-endian signed 32-bit number at position."""
    return (read_u32(buffer, position) << 32) >> 32


@kernel
def read_i64(buffer: NDArray[np.uint8], position: int) -> int:
    """Return the big-endian signed 64-bit number at position."""
    return (read_u32(buffer, position) << 32) | read_u32(buffer, position + 4)


@kernel
def write_i16(buffer: NDArray[np.uint8], position: int, value: int) -> None:
    """Write a big-endian signed 16-bit number."""
    buffer[position] = (value >> 8) & 0xFF
    buffer[position + 1] = value & 0xFF


@kernel
def write_i32(buffer: NDArray[np.uint8], position: int, value: int) -> None:
    """Write a big-endian 32-bit number, signed or not."""
    buffer[position] = (value >> 24) & 0xFF
    buffer[position + 1] = (value >> 16) & 0xFF
    buffer[position + 2] = (value >> 8) & 0xFF
    buffer[position + 3] = value & 0xFF


@kernel
def write_i64(buffer: NDArray[np.uint8], position: int, value: int) -> None:
    """Write a big-endian signed 64-bit number."""
    write_i32(buffer, position, (value >> 32) & 0xFFFFFFFF)
    write_i32(buffer, position + 4, value & 0xFFFFFFFF)
