"""What a CPU does in one instruction, as plain functions.

Called from Python these functions run as written; called from a kernel they become the instruction:
`_overloads` says how. An intrinsic that the CPU lacks would abort the whole process, so CRC-32C by
instruction is chosen at import, by machine and CPU features, with the table as the other way.
"""

import ctypes
import platform
from typing import Final

import numpy as np
from numpy.typing import NDArray

from storage_core.kernels._cpu import crc_instruction

HAS_CRC_INSTRUCTION: Final = crc_instruction() is not None


def crc32c_word(crc: int, word: int) -> int:
    """Return the CRC-32C register after 8 bytes, a little-endian word."""
    for _ in range(8):
        crc ^= word & 0xFF
        word >>= 8
        for _ in range(8):
            crc = (crc >> 1) ^ (0x82F63B78 if crc & 1 else 0)
    return crc


def load_word(buffer: NDArray[np.uint8], position: int) -> int:
    """Return the 8 bytes at position as a little-endian word. The caller has checked the bounds."""
    return int.from_bytes(buffer[position : position + 8].tobytes(), "little")


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
