"""What a CPU does in one instruction, as plain functions.

Called from Python these functions run as written; called from a kernel they become the instruction:
`_overloads` says how. An intrinsic that the CPU lacks would abort the whole process, so CRC-32C by
instruction is chosen at import, by machine and CPU features, with the table as the other way.
"""

import ctypes
import platform
from collections.abc import Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

from storage_core.kernels._cpu import crc_instruction

HAS_CRC_INSTRUCTION: Final = crc_instruction() is not None
# Castagnoli's, its bits in reversed order.
CRC32C_POLYNOMIAL: Final = 0x82F63B78


def crc32c_word(crc: int, word: int) -> int:
    """Return the CRC-32C register after 8 bytes, a little-endian word."""
    for _ in range(8):
        crc ^= word & 0xFF
        word >>= 8
        for _ in range(8):
            crc = (crc >> 1) ^ (CRC32C_POLYNOMIAL if crc & 1 else 0)
    return crc


def load_word(buffer: NDArray[np.uint8], position: int) -> int:
    """Return the 8 bytes at position as a little-endian word. The caller has checked the bounds."""
    return int.from_bytes(buffer[position : position + 8].tobytes(), "little")


# CRC-32C of many bytes at once, by carry-less multiplication of vectors.
#
# A register is the remainder of a polynomial, the message, by the CRC's. Bytes far apart can be
# added (exclusive or) once the earlier ones are multiplied by the power of x that lies between
# them, and that power may be replaced by its own remainder, which has 32 bits. So four vectors of
# 64 bytes each take in every fourth one, two multiplications each; in the end 16 bytes are left, of
# which the CRC instruction makes the register. What a wheel brings is compiled for older CPUs, too:
# so the machine code itself asks the CPU, once.

# What a vector holds, and what `fold_crc` takes at least: four of them.
VECTOR_BYTES: Final = 64
VECTORS: Final = 4
LEAST_FOLDED_BYTES: Final = VECTORS * VECTOR_BYTES
LANE_BYTES: Final = 16


def can_fold() -> bool:
    """Whether the CPU multiplies vectors of 64 bytes without carry."""
    return False


def fold_crc(register: int, buffer: NDArray[np.uint8], start: int, end: int) -> int:
    """Return the CRC-32C register after buffer[start:end].

    The caller has checked the bounds, and that ``can_fold`` says so. They are whole vectors, at
    least LEAST_FOLDED_BYTES.
    """
    for position in range(start, end, 8):
        register = np.uint64(crc32c_word(register, load_word(buffer, position)))
    return register


def factors(distance_bytes: int) -> tuple[int, int]:
    """Return by what the halves of 16 bytes are multiplied to be added to those that lie a distance
    further on.

    The first half is 64 bits further away than the second. A product of two numbers whose bits are
    in reversed order is one place too far: so both powers are one less. The powers stand in the
    upper half of 64 bits.
    """
    bits = 8 * distance_bytes
    return _power(bits + 63) << 32, _power(bits - 1) << 32


def _power(exponent: int) -> int:
    """Return the remainder of a power of x, its bits in reversed order as in a register."""
    register = 1 << 31
    for _ in range(exponent):
        register = register >> 1 ^ (CRC32C_POLYNOMIAL if register & 1 else 0)
    return register


def copy_bytes(
    target: NDArray[np.uint8],
    target_position: int,
    source: NDArray[np.uint8],
    source_position: int,
    length: int,
) -> None:
    """Copy length bytes between two buffers. The caller has checked the bounds of both."""
    target[target_position : target_position + length] = source[
        source_position : source_position + length
    ]


def prefetch_row(table: NDArray[np.uint64], row: int) -> None:
    """Prefetch a row of a table into the CPU's cache. The row will be wanted soon. A prefetch
    changes nothing but speed."""


def prefetch_byte(buffer: NDArray[np.uint8], position: int) -> None:
    """Prefetch the byte at a position into the CPU's cache. The byte is going to be read. A
    position outside of the buffer is allowed."""


# Here the first integers and pointers travel in a register of 64 bits each, and a function looks at
# as many as it has.
CAN_CALL: Final = platform.machine().lower() in {"x86_64", "amd64", "aarch64", "arm64"}


def addresses_of(library: ctypes.CDLL | None, names: Sequence[str]) -> tuple[int, ...] | None:
    """Return the addresses of a library's functions; None if one is missing."""
    try:
        functions = [getattr(library, name) for name in names]
    except AttributeError:
        return None
    return tuple(ctypes.cast(function, ctypes.c_void_p).value or 0 for function in functions)


def system_functions(names: Sequence[str]) -> NDArray[np.int64] | None:
    """Return the addresses of C functions, as kernels take them: int64[n]. None on a system that
    lacks one of them, or where kernels cannot call any."""
    addresses = addresses_of(ctypes.CDLL(None), names) if CAN_CALL else None
    return None if addresses is None else np.array(addresses, np.int64)


def call_function(
    address: int, first: int, second: int, third: int, fourth: int, fifth: int
) -> int:
    """Call a C function of at most five integers and pointers.

    The caller answers for all of them. Of a function that returns less than 64 bits the upper ones
    of the result mean nothing.
    """
    word = ctypes.c_int64
    function = ctypes.CFUNCTYPE(word, word, word, word, word, word)(int(address))
    result: int = function(int(first), int(second), int(third), int(fourth), int(fifth))
    return result
