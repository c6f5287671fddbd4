"""CRC-32C (Castagnoli) over a range of a buffer."""

from typing import Final

import numpy as np
from numpy.typing import NDArray

from storage_core.kernels._intrinsics import (
    CRC32C_POLYNOMIAL,
    HAS_CRC_INSTRUCTION,
    LEAST_FOLDED_BYTES,
    VECTOR_BYTES,
    can_fold,
    crc32c_word,
    fold_crc,
    load_word,
    prefetch_byte,
)
from storage_core.kernels._jit import inlined_kernel, kernel


def _table() -> NDArray[np.uint32]:
    table = np.arange(256, dtype=np.uint32)
    for _ in range(8):
        table = np.where(table & 1, (table >> 1) ^ np.uint32(CRC32C_POLYNOMIAL), table >> 1)
    return table.astype(np.uint32)


_TABLE: Final = _table()


@kernel
def crc32c_by_table(buffer: NDArray[np.uint8], start: int, end: int) -> int:
    """Return the CRC-32C of buffer[start:end] bytewise, on any CPU."""
    crc = np.uint32(0xFFFFFFFF)
    for position in range(start, end):
        crc = _TABLE[(crc ^ np.uint32(buffer[position])) & np.uint32(0xFF)] ^ (crc >> np.uint32(8))
    return int(crc ^ np.uint32(0xFFFFFFFF))


def _apply(advance: NDArray[np.uint32], registers: NDArray[np.uint32]) -> NDArray[np.uint32]:
    """Return registers after a linear step.

    ``advance`` is what the step makes of each single bit.
    """
    is_set = (registers[..., None] >> np.arange(32, dtype=np.uint32)) & np.uint32(1)
    moved: NDArray[np.uint32] = np.bitwise_xor.reduce(is_set * advance, axis=-1)
    return moved


def _after_zeros(byte_count: int) -> NDArray[np.uint32]:
    """Return uint32[4, 256]: each register byte after byte_count zeros. The count is a power of
    two."""
    bits = np.uint32(1) << np.arange(32, dtype=np.uint32)
    advance = _TABLE[bits & np.uint32(0xFF)] ^ (bits >> np.uint32(8))
    for _ in range(byte_count.bit_length() - 1):
        advance = _apply(advance, advance)
    values = np.arange(256, dtype=np.uint32) << np.arange(0, 32, 8, dtype=np.uint32)[:, None]
    return _apply(advance, values)


# The instruction's answer takes three cycles, and one can begin at every cycle: three neighbouring
# stretches go on at once, and a table then moves a register over the stretches behind its own.
# Long ones waste little on that, short ones leave little for a walk word by word.
_LONG: Final = 4096
_SHORT: Final = 128
# Of bytes that are in no cache yet the CPU asks for too few by itself, and stretches of a page or
# more it sees as what they are: with both, bytes of a mapped file take two thirds of the time.
_LINE: Final = 64
_AHEAD: Final = 512
_OVER_LONG: Final = _after_zeros(_LONG)
_OVER_SHORT: Final = _after_zeros(_SHORT)


@inlined_kernel
def _move(register: np.uint64, over: NDArray[np.uint32]) -> np.uint64:
    """Return a register moved over the zeros that a table is for."""
    low, high = register & np.uint64(0xFFFF), register >> np.uint64(16)
    return np.uint64(
        over[0, low & np.uint64(0xFF)]
        ^ over[1, low >> np.uint64(8)]
        ^ over[2, high & np.uint64(0xFF)]
        ^ over[3, (high >> np.uint64(8)) & np.uint64(0xFF)]
    )


@inlined_kernel
def _take_three(
    register: np.uint64,
    buffer: NDArray[np.uint8],
    start: int,
    stretch: int,
    over: NDArray[np.uint32],
) -> np.uint64:
    """Return the register after three stretches of bytes from start on. Each of them has
    ``stretch`` bytes."""
    first, second, third = register, np.uint64(0), np.uint64(0)
    for line in range(start, start + stretch, _LINE):
        for ahead in range(_AHEAD, _AHEAD + 3 * stretch, stretch):
            prefetch_byte(buffer, line + ahead)
        for position in range(line, line + _LINE, 8):
            first = np.uint64(crc32c_word(first, load_word(buffer, position)))
            second = np.uint64(crc32c_word(second, load_word(buffer, position + stretch)))
            third = np.uint64(crc32c_word(third, load_word(buffer, position + 2 * stretch)))
    return _move(_move(first, over) ^ second, over) ^ third


@inlined_kernel
def _take_rest(register: np.uint64, buffer: NDArray[np.uint8], start: int, end: int) -> np.uint64:
    """Return the register after buffer[start:end], of fewer than eight bytes."""
    if start == end:
        return register
    if end < 8:
        for position in range(start, end):
            place = (register ^ np.uint64(buffer[position])) & np.uint64(0xFF)
            register = np.uint64(_TABLE[place]) ^ (register >> np.uint64(8))
        return register
    # A register of zero stays so at bytes of zero: what goes before the rest in a word counts as
    # such. Of the register the rest takes as many bytes as it has, and the others move up.
    rest_bits = np.uint64(8 * (end - start))
    others = np.uint64(64) - rest_bits
    word = (np.uint64(load_word(buffer, end - 8)) >> others) ^ register
    return np.uint64(crc32c_word(np.uint64(0), word << others)) ^ (register >> rest_bits)


@inlined_kernel
def _finish(register: np.uint64, buffer: NDArray[np.uint8], start: int, end: int) -> int:
    """Return the CRC-32C whose register, before buffer[start:end], is this one."""
    position = start
    while position + 3 * _LONG <= end:
        register = _take_three(register, buffer, position, _LONG, _OVER_LONG)
        position += 3 * _LONG
    while position + 3 * _SHORT <= end:
        register = _take_three(register, buffer, position, _SHORT, _OVER_SHORT)
        position += 3 * _SHORT
    while position + 8 <= end:
        register = np.uint64(crc32c_word(register, load_word(buffer, position)))
        position += 8
    return int(_take_rest(register, buffer, position, end) ^ np.uint64(0xFFFFFFFF))


@kernel
def crc32c_by_instruction(buffer: NDArray[np.uint8], start: int, end: int) -> int:
    """Return the CRC-32C of buffer[start:end] by the CPU's instruction. An instruction takes
    eight bytes; three run at a time."""
    return _finish(np.uint64(0xFFFFFFFF), buffer, start, end)


@kernel
def crc32c_by_folding(buffer: NDArray[np.uint8], start: int, end: int) -> int:
    """Return the CRC-32C of buffer[start:end] by the widest instructions of this very CPU. What a
    vector does not fill is left to those for a word."""
    register = np.uint64(0xFFFFFFFF)
    position = start
    if end - start >= LEAST_FOLDED_BYTES and can_fold():
        position = end - (end - start) % VECTOR_BYTES
        register = np.uint64(fold_crc(register, buffer, start, position))
    return _finish(register, buffer, position, end)


crc32c = crc32c_by_folding if HAS_CRC_INSTRUCTION else crc32c_by_table
